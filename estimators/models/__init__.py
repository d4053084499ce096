"""Model library: torch modules and the specifications of known models."""
