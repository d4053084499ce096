"""Launch configurations of frameworks: plans written as them, scenarios read."""
