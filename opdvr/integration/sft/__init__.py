"""Supervised fine-tuning by verl's own SFT trainer: configuration, checks, run folder, export."""
