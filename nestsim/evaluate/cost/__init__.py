"""Money and power: what a cluster costs, and what a training run on it does."""
