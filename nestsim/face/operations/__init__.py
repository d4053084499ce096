"""What Python users call about clusters in operation, and what they get."""
