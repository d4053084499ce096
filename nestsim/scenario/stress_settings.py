"""What a stress test does to a cluster, and what it asks, as the scenario says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from planner.search.space import SearchSpec
from topologies.degrade import Degradation

QUANTITIES = ("oversubscription", "bandwidth")
"""What of a level is worsened until too little throughput is left."""

RANKINGS: Mapping[str, str] = MappingProxyType(
    {"planned": "planned", "simulated": "replayed"}
)
"""By which time plans are chosen -> what their search minimises, one of
`planner.search.space.OBJECTIVES`."""

DEFAULT_PLANNERS = ("nest", "manual", "phaze")
"""Ours, what people do by hand, and a search that knows less of the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundSpec:
    """Traffic of others, which the job cannot push aside."""

    links: str
    """Which links, as in `topologies.selectors`."""

    rate: float | None = None
    """What it takes of each of them [byte/s]; None if `share` says."""

    share: float | None = None
    """The fraction of each of them that it takes; None if `rate` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSpec:
    """One state of the cluster, compared with the scenario's."""

    name: str
    """What reports call it."""

    oversubscription: Mapping[str, float] = field(default_factory=dict)
    """Level -> its children's links together over its links to the level above. Other
    levels keep theirs."""

    degradation: Degradation = field(default_factory=Degradation)
    """What is slow or gone beside what the scenario says."""

    background: tuple[BackgroundSpec, ...] = ()
    """Traffic of others."""

    ecmp_seed: int | None = None
    """Parallel cables are separate links, and a hash with this seed picks one; None
    for what the scenario says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressSpec:
    """Which conditions a plan is put under, and what is asked."""

    oversubscription: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Level -> its ratios: each alone, and every combination."""

    conditions: tuple[ConditionSpec, ...] = ()
    """Others, by name."""

    ecmp_seeds: tuple[int, ...] = ()
    """One condition for each: ECMP with this seed."""

    planners: tuple[str, ...] = DEFAULT_PLANNERS
    """Whose plans; the first one's answer the questions."""

    rank: str | None = None
    """One of `RANKINGS`; None for what the search minimises."""

    keep: float | None = None
    """Share of the throughput that must be kept; None if it is not asked."""

    level: str | None = None
    """Level that is worsened until it is not kept; None for the outermost."""

    quantity: str | None = None
    """What of it, one of `QUANTITIES`; None for the first that it has."""

    workers: int | None = None
    """Processes; None for one for each core."""

    def ranked(self, search: SearchSpec) -> SearchSpec:
        """Return a search that chooses as the stress test asks."""
        if self.rank is None:
            return search
        return replace(search, objective=RANKINGS[self.rank])
