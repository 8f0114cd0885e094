"""All that knows verl. Dependencies point from here to `opdvr.core`, never back."""
