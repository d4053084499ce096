"""Measure the operators of this machine with torch.

Import these modules only where something is really measured: they need torch.
"""
