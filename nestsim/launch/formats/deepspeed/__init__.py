"""DeepSpeed: its JSON, the command line of Megatron-DeepSpeed, hosts and ranks."""
