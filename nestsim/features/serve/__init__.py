"""A service: scenarios in, results out, over HTTP, in processes with limits."""
