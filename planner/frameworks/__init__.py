"""What frameworks do unless told otherwise, and what they can launch."""
