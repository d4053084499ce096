"""Modules that one architecture alone has: Mamba-2, T5, vision transformers."""
