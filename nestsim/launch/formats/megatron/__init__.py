"""Megatron-LM and Megatron Bridge: options, layouts, launch scripts."""
