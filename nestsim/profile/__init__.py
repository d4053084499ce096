"""What a user's own runs and links say: few constants, and how firm they are."""
