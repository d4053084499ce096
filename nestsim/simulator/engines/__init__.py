"""Engines that carry a system through time: SimPy's, and a compiled one."""
