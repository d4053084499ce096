"""The published NEST artifact's problem files, solved and priced by its own rules.

Of use only for comparing searches on identical work; nestsim's own model is elsewhere.
"""

from planner.rivals.nest_artifact.instance import NestInstance, read_instance
from planner.rivals.nest_artifact.solver import (
    NestSolution,
    ScoredBaseline,
    score_baselines,
    solve,
)

__all__ = [
    "NestInstance",
    "NestSolution",
    "ScoredBaseline",
    "read_instance",
    "score_baselines",
    "solve",
]
