"""Figures of runs: the canvas, what they show, how they are drawn."""
