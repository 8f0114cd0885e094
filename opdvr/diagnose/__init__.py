"""Can this student learn from this teacher on these prompts? Measured before a run is paid for."""
