"""What a network gives the collectives of a plan, alone and in the job."""
