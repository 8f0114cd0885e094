"""Data: make, check and show the files that training and validation read. See docs/data.md."""
