"""Numba kernels of the replay: arrays in, arrays out."""
