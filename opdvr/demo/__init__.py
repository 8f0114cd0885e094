"""The embedded task: small enough that the whole method runs on two CPU cores."""
