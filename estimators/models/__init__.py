"""Model library: modules in torch's words, and the specifications of known models."""
