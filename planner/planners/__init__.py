"""Planners behind one protocol: ours, those it is compared with, and exact ones."""
