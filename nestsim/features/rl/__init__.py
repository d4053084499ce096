"""A step of reinforcement learning: rollout, forward passes, training, new weights."""
