"""What a run leaves behind: its folder, its curves, its summary, and its line a step.

Nothing here imports verl, Ray or torch, so reading a finished run needs neither.
"""
