"""Scenario files: TOML in, checked settings out."""
