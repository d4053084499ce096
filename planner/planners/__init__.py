"""The planners that a comparison can name, behind one protocol."""
