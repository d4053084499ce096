"""Training through failures: checkpoints, restarts, spares, and what a month gives."""
