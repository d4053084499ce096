"""Several jobs on one fabric: replayed together, placed where they hurt least."""
