"""Measure the operators and the links of this machine with torch.

Import these modules only where something is really measured: they need torch.
"""
