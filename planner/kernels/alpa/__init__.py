"""Numba kernels of Alpa: intervals of layers on a mesh, stages of a pipeline."""
