"""The planners that a comparison can name, ours and its rivals, behind one protocol."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.rivals.alpa import Alpa
from planner.rivals.manual import Manual
from planner.rivals.mcmc import Mcmc
from planner.rivals.mist.planner import Mist
from planner.rivals.nest import Exhaustive, Fixed, Nest
from planner.rivals.phaze import Phaze
from planner.rivals.protocol import Planner

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
