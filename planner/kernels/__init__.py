"""Numba kernels of the search: arrays in, arrays out."""
