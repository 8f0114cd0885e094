"""Data: what training and validation files must look like."""
