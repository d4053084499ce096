"""Shell scripts as the commands that they would start: followed, never executed."""
