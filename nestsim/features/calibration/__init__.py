"""Fit the constants of the cost models to measurements, and say how far to trust them.

A tool for developers: ``python -m nestsim.features.calibration MEASUREMENTS.csv``.
"""
