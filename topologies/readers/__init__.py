"""Networks that other programs' files describe: Slurm, NCCL, InfraGraph."""
