"""Architectures that are spelled out with settings of their own."""
