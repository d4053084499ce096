"""Numba kernels of the failures: arrays in, arrays out."""
