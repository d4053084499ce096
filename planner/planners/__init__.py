"""The planners that a comparison can name, behind one protocol."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.planners.alpa import Alpa
from planner.planners.exhaustive import Exhaustive
from planner.planners.manual import Manual
from planner.planners.mcmc import Mcmc
from planner.planners.mist.planner import Mist
from planner.planners.nest import Fixed, Nest
from planner.planners.phaze import Phaze
from planner.planners.protocol import Planner

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {
        planner.name: planner
        for planner in (
            Nest(),
            Manual(),
            Mcmc(),
            Phaze(),
            Alpa(),
            Mist(),
            Exhaustive(),
            Fixed(),
        )
    }
)
"""Name -> planner, in the order of comparisons."""
