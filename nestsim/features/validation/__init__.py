"""Predict measured training steps, and say how far off the predictions are."""
