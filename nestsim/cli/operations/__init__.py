"""Commands about clusters in operation: jitter, failures, several jobs."""
