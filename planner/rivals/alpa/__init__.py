"""Alpa: shardings by an integer program, stages by a dynamic program over submeshes."""

from planner.rivals.alpa.planner import Alpa

__all__ = ["Alpa"]
