"""What generation costs: prompts in, responses out, on replicas of an engine."""
