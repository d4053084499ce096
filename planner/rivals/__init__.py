"""The planners that a comparison can name, ours and its rivals, behind one protocol."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planner.rivals.protocol import Planner

    PLANNERS: Mapping[str, Planner]
    """Name -> planner, in the order of comparisons."""


def __getattr__(name: str) -> Any:
    """Return the planners, imported when they are first asked for (PEP 562).

    What only reads their settings does without, as every scenario does.
    """
    if name != "PLANNERS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from planner.rivals.alpa import Alpa
    from planner.rivals.manual import Manual
    from planner.rivals.mcmc import Mcmc
    from planner.rivals.mist.planner import Mist
    from planner.rivals.nest import Exhaustive, Fixed, Nest
    from planner.rivals.phaze import Phaze

    kinds = (Nest, Manual, Mcmc, Phaze, Alpa, Mist, Exhaustive, Fixed)
    planners = MappingProxyType({kind.name: kind() for kind in kinds})
    globals()[name] = planners
    return planners
