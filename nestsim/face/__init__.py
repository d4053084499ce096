"""What Python users call, and what they get: the command line calls the same."""
