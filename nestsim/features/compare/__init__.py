"""Planners, or networks, against each other: one evaluator, the replay as the judge."""
