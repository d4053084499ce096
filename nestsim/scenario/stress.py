"""The tables [stress] and [sweep]: what is done to the cluster, and what is varied."""

from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import (
    Bandwidth,
    Count,
    Distinct,
    Duration,
    NameChoice,
    Seed,
    Table,
    Text,
)
from nestsim.scenario.hardware.degraded import DegradedTable
from nestsim.scenario.hardware.network import Ratio
from nestsim.scenario.settings import (
    DEFAULT_PLANNERS,
    QUANTITIES,
    RANKINGS,
    SWEPT,
    BackgroundSpec,
    ConditionSpec,
    StressSpec,
    SweepSpec,
)
from topologies.degrade import Degradation
from topologies.errors import InputError

MOST_CONDITIONS = 1000

Share = Annotated[float, Field(gt=0, lt=1)]
Ratios = Distinct[Ratio]


class BackgroundTable(Table):
    """Traffic of others that takes a part of some links all the time."""

    links: Text = Field(examples=["leaf 0 <-> spine *", "level spine"])
    """Links that carry traffic of others, named as in [cluster.degraded]."""

    rate: Bandwidth | None = None
    """What traffic of others takes of each of the links, per direction [byte/s]."""

    share: Share | None = Field(None, examples=[0.3])
    """Fraction of each of the links that traffic of others takes, in place of
    `rate`."""

    def build(self) -> BackgroundSpec:
        """Return the record for the stress test."""
        if (self.rate is None) == (self.share is None):
            raise InputError(
                "says how much by none or both of its settings",
                where="rate",
                expected='either rate = "200 Gbit/s" or share = 0.5',
            )
        return BackgroundSpec(links=self.links, rate=self.rate, share=self.share)


class ConditionTable(Table):
    """One state of the cluster that plans are put under."""

    name: Text = Field(examples=["one spine down"])
    """Name of the condition, by which reports call it."""

    oversubscription: dict[str, Ratio] = Field({}, examples=[{"leaf": 4.0}])
    """Ratio of each level that has another one than in [cluster.network]."""

    degraded: DegradedTable | None = Field(
        None, examples=[{"removed_switches": ["spine 1"]}]
    )
    """What is slow or gone beside what [cluster.degraded] says."""

    background: (
        Annotated[list[BackgroundTable], Field(min_length=1, max_length=1000)] | None
    ) = Field(None, examples=[[{"links": "level spine", "share": 0.3}]])
    """Traffic of others, at a constant rate that the job cannot push aside."""

    ecmp_seed: Seed | None = None
    """Parallel cables are separate links, and a hash with this seed picks one for each
    pair. Left out, as [cluster.network] says."""

    def build(self) -> ConditionSpec:
        """Return the record for the stress test."""
        background = []
        for index, one in enumerate(self.background or ()):
            try:
                background.append(one.build())
            except InputError as error:
                raise error.at(f"background[{index}]") from None
        try:
            worse = self.degraded.build() if self.degraded else Degradation()
        except InputError as error:
            raise error.at("degraded") from None
        return ConditionSpec(
            name=self.name,
            oversubscription=self.oversubscription,
            degradation=worse,
            background=tuple(background),
            ecmp_seed=self.ecmp_seed,
        )


class StressTable(Table):
    """What `nestsim stress` does to the cluster, and what it asks."""

    oversubscription: dict[str, Ratios] = Field(
        {}, examples=[{"leaf": [1.0, 2.0, 4.0, 8.0]}]
    )
    """Ratios of each level: its children's links together over its links to the level
    above. Each alone and every combination is a condition. If neither this nor
    `conditions` nor `ecmp_seeds` is given, 1, 2, 4, 8 and 16 of the levels above the
    node."""

    conditions: Annotated[list[ConditionTable], Field(max_length=MOST_CONDITIONS)] = (
        Field([], examples=[[{"name": "congested", "oversubscription": {"leaf": 8.0}}]])
    )
    """Conditions with a name, beside those of `oversubscription` and `ecmp_seeds`."""

    ecmp_seeds: Distinct[Seed] | None = Field(None, examples=[[0, 1, 2]])
    """Seeds of the hash that picks a cable, one condition for each: parallel cables are
    then separate links."""

    planners: Distinct[Text] = Field(list(DEFAULT_PLANNERS), examples=[["nest"]])
    """Planners whose plans are stressed, by the names that `nestsim compare` knows; the
    plans of the first one answer the questions."""

    rank: Annotated[str, NameChoice(tuple(RANKINGS))] | None = Field(
        None, examples=["simulated"]
    )
    """Time by which the fastest of a planner's plans is taken: "planned", or
    "simulated" in the replay. Left out, as `search.objective` says."""

    keep: Share | None = Field(None, examples=[0.95])
    """Share of the throughput to keep: how far can a level be worsened? Left out, this
    is not asked."""

    level: Text | None = Field(None, examples=["leaf"])
    """Level that is worsened until too little throughput is kept. Left out, the
    outermost one that has links to a level above, or the outermost one of all."""

    quantity: Annotated[str, NameChoice(QUANTITIES)] | None = Field(
        None, examples=["oversubscription"]
    )
    """What of the level is worsened: the highest "oversubscription" is asked for, or
    the lowest "bandwidth" of the links into the level's switches. Left out, the first
    that the level has."""

    workers: Count | None = Field(None, examples=[8])
    """Processes at work at once; results do not depend on it. Left out, one for each
    core."""

    def build(self) -> StressSpec:
        """Return the settings for the stress test."""
        conditions: list[ConditionSpec] = []
        for index, one in enumerate(self.conditions):
            try:
                condition = one.build()
                _check_name(condition.name, conditions)
            except InputError as error:
                raise error.at(f"conditions[{index}]") from None
            conditions.append(condition)
        return StressSpec(
            oversubscription={k: tuple(v) for k, v in self.oversubscription.items()},
            conditions=tuple(conditions),
            ecmp_seeds=tuple(self.ecmp_seeds or ()),
            planners=tuple(self.planners),
            rank=self.rank,
            keep=self.keep,
            level=self.level,
            quantity=self.quantity,
            workers=self.workers,
        )


def _check_name(name: str, before: list[ConditionSpec]) -> None:
    if any(name == other.name for other in before):
        raise InputError(
            "is used twice",
            where="name",
            got=name,
            expected="another name for every condition",
        )


Values = Annotated[
    list[Any], Field(min_length=1, json_schema_extra={"uniqueItems": True})
]


class SweepTable(Table):
    """Which settings `nestsim sweep` varies: every combination of their values."""

    what: Annotated[str, NameChoice(SWEPT)] | None = Field(None, examples=["simulate"])
    """What is done at each point: replay the fixed [plan] ("simulate"), plan anew
    ("plan"), or plan anew and replay the best plans ("run"). Left out, "simulate" where
    there is a [plan], else "run"."""

    set: dict[str, Values] = Field(
        {},
        examples=[{"cluster.network.nic_bandwidth": ["200 Gbit/s", "400 Gbit/s"]}],
    )
    """Settings that are varied, each by its dotted path, such as
    "cluster.network.levels[1].bandwidth", and its values. The last setting changes
    fastest."""

    workers: Count | None = Field(None, examples=[8])
    """Processes at work at once; results do not depend on it. Left out, one for each
    core."""

    time_limit: Duration | None = Field(None, examples=["60 s"])
    """Time after which a point is recorded as failed, which depends on the machine [s].
    Left out, none is."""

    def build(self) -> SweepSpec:
        """Return the settings for the sweep."""
        return SweepSpec(
            what=self.what,
            values={path: tuple(values) for path, values in self.set.items()},
            workers=self.workers,
            time_limit=self.time_limit,
        )
