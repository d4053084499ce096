"""What differs from step to step: draws, percentiles, the slowest of many."""
