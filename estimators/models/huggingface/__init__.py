"""Configurations of the Hugging Face hub, as architectures."""
