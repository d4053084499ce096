"""Numba kernels of the cost models: arrays in, arrays out."""
