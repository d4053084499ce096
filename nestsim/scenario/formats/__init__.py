"""Configurations of other programs, as the tables of a scenario."""
