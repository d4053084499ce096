"""The exact searches: their space, bounds, candidates and splits."""
