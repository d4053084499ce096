"""Trainers that stand on Megatron, and its own logs: read through its options."""
