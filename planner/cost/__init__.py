"""The price of a plan: rates, stages, passes, the timeline of an iteration."""
