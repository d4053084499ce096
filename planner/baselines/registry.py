"""The planners by name."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.baselines.exhaustive import Exhaustive
from planner.baselines.fixed import Fixed
from planner.baselines.manual import Manual
from planner.baselines.mcmc import Mcmc
from planner.baselines.nest import Nest
from planner.baselines.phaze import Phaze
from planner.baselines.protocol import Planner

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {
        planner.name: planner
        for planner in (Nest(), Manual(), Mcmc(), Phaze(), Exhaustive(), Fixed())
    }
)
"""Name -> planner, in the order of comparisons."""
