"""Numba kernels of the NEST artifact: its intervals, its splits."""
