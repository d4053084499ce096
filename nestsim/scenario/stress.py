"""The tables [stress] and [sweep]: what is done to the cluster, and what is varied."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import BuiltFrom
from nestsim.scenario.hardware.cluster import DegradedTable
from nestsim.scenario.hardware.network import Ratio
from planner.search.space import SearchSpec
from topologies.degrade import Degradation
from topologies.errors import InputError
from topologies.settings import (
    Bandwidth,
    Count,
    Distinct,
    Duration,
    Examples,
    Listed,
    NameChoice,
    Seed,
    Spec,
    Text,
)

SWEPT = ("simulate", "plan", "run")
"""What may be done at each point of a sweep."""

QUANTITIES = ("oversubscription", "bandwidth")
"""What of a level is worsened until too little throughput is left."""

RANKINGS: Mapping[str, str] = MappingProxyType(
    {"planned": "planned", "simulated": "replayed"}
)
"""By which time plans are chosen -> what their search minimises, one of
`planner.search.space.OBJECTIVES`."""

DEFAULT_PLANNERS = ("nest", "manual", "phaze")
"""Ours, what people do by hand, and a search that knows less of the network."""

MOST_CONDITIONS = 1000

Share = Annotated[float, Field(gt=0, lt=1)]
Ratios = Distinct[Ratio]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundSpec(Spec):
    """Traffic of others that takes a part of some links all the time."""

    links: Annotated[Text, Examples("leaf 0 <-> spine *", "level spine")]
    """Links that carry traffic of others, named as in [cluster.degraded]."""

    rate: Bandwidth | None = None
    """What traffic of others takes of each of the links, per direction [byte/s]."""

    share: Annotated[Share | None, Examples(0.3)] = None
    """Fraction of each of the links that traffic of others takes, in place of
    `rate`."""

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.share is None):
            raise InputError(
                "says how much by none or both of its settings",
                where="rate",
                expected='either rate = "200 Gbit/s" or share = 0.5',
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSpec(Spec):
    """One state of the cluster that plans are put under."""

    name: Annotated[Text, Examples("one spine down")]
    """Name of the condition, by which reports call it."""

    oversubscription: Annotated[
        dict[str, Ratio], Examples({"leaf": 4.0}, default={})
    ] = field(default_factory=dict)
    """Ratio of each level that has another one than in [cluster.network]."""

    degraded: Annotated[
        Degradation,
        BuiltFrom(DegradedTable),
        Examples({"removed_switches": ["spine 1"]}, default=None),
    ] = field(default_factory=Degradation)
    """What is slow or gone beside what [cluster.degraded] says."""

    background: Annotated[
        tuple[BackgroundSpec, ...],
        Listed(1),
        Examples([{"links": "level spine", "share": 0.3}], default=None),
    ] = ()
    """Traffic of others, at a constant rate that the job cannot push aside."""

    ecmp_seed: Seed | None = None
    """Parallel cables are separate links, and a hash with this seed picks one for each
    pair. Left out, as [cluster.network] says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressSpec(Spec):
    """What `nestsim stress` does to the cluster, and what it asks."""

    oversubscription: Annotated[
        dict[str, Ratios], Examples({"leaf": [1.0, 2.0, 4.0, 8.0]}, default={})
    ] = field(default_factory=dict)
    """Ratios of each level: its children's links together over its links to the level
    above. Each alone and every combination is a condition. If neither this nor
    `conditions` nor `ecmp_seeds` is given, 1, 2, 4, 8 and 16 of the levels above the
    node."""

    conditions: Annotated[
        tuple[ConditionSpec, ...],
        Listed(most=MOST_CONDITIONS),
        Examples([{"name": "congested", "oversubscription": {"leaf": 8.0}}]),
    ] = ()
    """Conditions with a name, beside those of `oversubscription` and `ecmp_seeds`."""

    ecmp_seeds: Annotated[Distinct[Seed], Examples([0, 1, 2], default=None)] = ()
    """Seeds of the hash that picks a cable, one condition for each: parallel cables are
    then separate links."""

    planners: Annotated[Distinct[Text], Examples(["nest"])] = DEFAULT_PLANNERS
    """Planners whose plans are stressed, by the names that `nestsim compare` knows; the
    plans of the first one answer the questions."""

    rank: Annotated[
        Annotated[str, NameChoice(tuple(RANKINGS))] | None, Examples("simulated")
    ] = None
    """Time by which the fastest of a planner's plans is taken: "planned", or
    "simulated" in the replay. Left out, as `search.objective` says."""

    keep: Annotated[Share | None, Examples(0.95)] = None
    """Share of the throughput to keep: how far can a level be worsened? Left out, this
    is not asked."""

    level: Annotated[Text | None, Examples("leaf")] = None
    """Level that is worsened until too little throughput is kept. Left out, the
    outermost one that has links to a level above, or the outermost one of all."""

    quantity: Annotated[
        Annotated[str, NameChoice(QUANTITIES)] | None, Examples("oversubscription")
    ] = None
    """What of the level is worsened: the highest "oversubscription" is asked for, or
    the lowest "bandwidth" of the links into the level's switches. Left out, the first
    that the level has."""

    workers: Annotated[Count | None, Examples(8)] = None
    """Processes at work at once; results do not depend on it. Left out, one for each
    core."""

    def __post_init__(self) -> None:
        names = [condition.name for condition in self.conditions]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InputError(
                    "is used twice",
                    where=f"conditions[{index}].name",
                    got=name,
                    expected="another name for every condition",
                )

    def ranked(self, search: SearchSpec) -> SearchSpec:
        """Return a search that chooses as the stress test asks."""
        if self.rank is None:
            return search
        return replace(search, objective=RANKINGS[self.rank])


Values = Annotated[
    tuple[Any, ...],
    Listed(1, None),
    Field(json_schema_extra={"uniqueItems": True}),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec(Spec):
    """Which settings `nestsim sweep` varies: every combination of their values."""

    what: Annotated[Annotated[str, NameChoice(SWEPT)] | None, Examples("simulate")] = (
        None
    )
    """What is done at each point: replay the fixed [plan] ("simulate"), plan anew
    ("plan"), or plan anew and replay the best plans ("run"). Left out, "simulate" where
    there is a [plan], else "run"."""

    set: Annotated[
        dict[str, Values],
        Examples(
            {"cluster.network.nic_bandwidth": ["200 Gbit/s", "400 Gbit/s"]}, default={}
        ),
    ] = field(default_factory=dict)
    """Settings that are varied, each by its dotted path, such as
    "cluster.network.levels[1].bandwidth", and its values. The last setting changes
    fastest."""

    workers: Annotated[Count | None, Examples(8)] = None
    """Processes at work at once; results do not depend on it. Left out, one for each
    core."""

    time_limit: Annotated[Duration | None, Examples("60 s")] = None
    """Time after which a point is recorded as failed, which depends on the machine [s].
    Left out, none is."""
