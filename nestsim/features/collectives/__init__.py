"""What a network gives the collectives of a plan: the job, its report, its figure."""
