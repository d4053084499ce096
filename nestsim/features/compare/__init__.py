"""Planners against each other: one space, one evaluator, the replay as the judge."""
