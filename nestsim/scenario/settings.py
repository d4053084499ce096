"""What a scenario says of replays, stress tests, sweeps and assertions, below TOML.

The records that jobs read, and the table [simulation], which makes one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from nestsim.scenario.base import Factor, NameChoice, Table
from nestsim.scenario.software import EXECUTION
from nestsim.simulator.replay import ENGINES, GRANULARITIES, ReplaySettings
from planner.search.space import SearchSpec
from topologies.degrade import Degradation

TRACES = ("representatives", "all")
"""What a trace may show."""

SWEPT = ("simulate", "plan", "run")
"""What may be done at each point of a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """Which settings a sweep varies, and what it does at each point."""

    what: str | None = None
    """One of `SWEPT`; None for what the rest of the scenario suggests."""

    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Dotted path of a setting -> the values that it takes, as written."""

    workers: int | None = None
    """Processes; None for one for each core."""

    time_limit: float | None = None
    """Of one point [s]; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """One thing that must come out."""

    name: str
    """The setting of the table [assert]."""

    quantity: str
    """What is compared: a key of `nestsim.evaluate.results.found_values`."""

    operator: str
    """``"<="``, ``">="``, ``"<"``, ``">"`` or ``"=="``."""

    value: float | str
    """What it is compared with, in base units."""

    written: str
    """The comparison as people write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """How plans are replayed and judged."""

    tolerance: float = 0.05
    """A plan is confirmed if its replay is at most this much slower, relative."""

    trace_events: int = 100_000
    """The most events that the exported trace holds."""

    trace: str = "representatives"
    """A name of `TRACES`: whether the exported trace shows one of each class of devices
    that are alike, or all."""

    replay: ReplaySettings = field(default_factory=ReplaySettings)
    """What is simulated event by event, and how."""


_DEFAULT = ReplaySettings()


def _moved() -> Any:
    """Return the field of a setting that stood here before it moved to [software]."""
    return Field(None, json_schema_extra={"deprecated": True})


class SimulationTable(Table):
    """How plans are replayed and judged."""

    tolerance: float = Field(0.05, gt=0, lt=1, examples=[0.05])
    """How much slower than planned, relative, a replay may be and still confirm a plan
    that was given."""

    trace_events: int = Field(100_000, ge=0, le=100_000_000, examples=[100_000])
    """Events that the exported trace holds at most."""

    trace: Annotated[str, NameChoice(TRACES)] = "representatives"
    """What the exported trace shows: of devices that are provably alike the first ones
    ("representatives"), or all of them ("all"), which takes memory in proportion to the
    cluster and may need more `trace_events`."""

    granularity: Annotated[str, NameChoice(GRANULARITIES)] = _DEFAULT.granularity
    """Whether collectives inside layers are part of the stages' times ("stage"), or
    each a flow over the links ("layer")."""

    folding: bool = _DEFAULT.folding
    """Whether one of each class of devices that are provably alike is simulated for all
    of them; the result is exact."""

    skipping: bool = _DEFAULT.skipping
    """Whether whole periods are skipped once the state of the pipeline repeats; the
    result is exact."""

    engine: Annotated[str, NameChoice(ENGINES)] = _DEFAULT.engine
    """What runs the events: "simpy", "compiled", or "auto", which compiles long runs.
    The results are the same to the bit."""

    seed: int = Field(_DEFAULT.seed, ge=0, le=2**63 - 1, examples=[0])
    """Seed of everything that is drawn at random."""

    overlap_grad_reduce: bool | None = _moved()
    """Moved to `software.overlap_grad_reduce`; still read here in this release."""

    overlap_param_gather: bool | None = _moved()
    """Moved to `software.overlap_param_gather`; still read here in this release."""

    overlap_p2p_comm: bool | None = _moved()
    """Moved to `software.overlap_p2p_comm`; still read here in this release."""

    tp_comm_overlap: bool | None = _moved()
    """Moved to `software.tp_comm_overlap`; still read here in this release."""

    communication_slowdown: Factor | None = _moved()
    """Moved to `software.communication_slowdown`; still read here in this release."""

    expert_skew: Factor | None = _moved()
    """Moved to `software.expert_skew`; still read here in this release."""

    @property
    def moved(self) -> dict[str, Any]:
        """What is set here that now belongs to [software]."""
        return {
            name: value
            for name in EXECUTION
            if (value := getattr(self, name, None)) is not None
        }

    def build(self) -> SimulationSpec:
        """Return the settings for the simulator."""
        return SimulationSpec(
            tolerance=self.tolerance,
            trace_events=self.trace_events,
            trace=self.trace,
            replay=ReplaySettings(
                granularity=self.granularity,
                folding=self.folding,
                skipping=self.skipping,
                engine=self.engine,
                seed=self.seed,
            ),
        )


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
    """Which links, as in `topologies.degrade`."""

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
