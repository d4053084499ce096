"""Networks against each other: one job on each, and the best plan that each allows."""
