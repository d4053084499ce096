"""The planners by name."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.baselines.fixed import Fixed
from planner.baselines.nest import Nest
from planner.baselines.protocol import Planner

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {planner.name: planner for planner in (Nest(), Fixed())}
)
"""Name -> planner, in the order of comparisons."""
