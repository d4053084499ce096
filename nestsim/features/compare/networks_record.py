"""What a comparison of networks holds, and the plain rows that it is stored as.

What is the same for all is said once; a network has what it is made of, and an entry
for each planner: the best plan that it found there, replayed.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from nestsim.document.wording import difference
from nestsim.evaluate.cost import ClusterCost, RunCost
from nestsim.features.compare.record import PlannerEntry
from nestsim.running.store import Row
from topologies.fabrics.inventory import Inventory
from topologies.short_repr import short_repr

Equal = Literal["ports", "cost"]
"""What may be asked to be equal."""

TIE = 0.005
"""Relative difference of times below which two networks tie."""

EQUAL_WITHIN = 0.05
"""Networks are equal in a number if the largest is at most so much above the smallest:
switches come in steps of ports, and nobody sells 5 % of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLink:
    """The link that a plan uses most, relative to what it can carry."""

    name: str
    """Its ends, ``"leaf 0 -> spine 0"``."""

    level: str
    """Name of its level."""

    utilisation: float
    """Bytes carried over bytes that it could have carried in the whole iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLoad:
    """What a replayed plan asks of a network."""

    exposed: float
    """Communication that no compute hides: collectives inside of passes, waits for
    messages between stages with all contention, and synchronisation at the end of the
    step, as the mean over stages has them [s]."""

    bubble: float
    """What stages wait for each other beside that, uneven ones included [s]."""

    busiest: BusyLink | None
    """The hottest link; None where nothing is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEntry:
    """What one planner found on one network."""

    entry: PlannerEntry
    """Its plan, and what became of it."""

    load: NetworkLoad | None = None
    """What the plan asks of the network; None without one."""

    gap: float = math.nan
    """How far the time that the search minimised is above what it has proven that no
    plan goes below, relative to that bound; NaN without a proof."""

    tokens_per_second: float = math.nan
    """In the replay, NaN without a plan that it finds room for [token/s]."""

    __repr__ = short_repr

    def to_row(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "entry": self.entry.to_row(),
            "load": None if self.load is None else asdict(self.load),
            "gap": self.gap if math.isfinite(self.gap) else None,
        }

    @classmethod
    def from_row(cls, row: Row) -> "NetworkEntry":
        """Read back what `to_row` wrote."""
        load = row["load"]
        gap = row["gap"]
        return cls.of(
            PlannerEntry.from_row(row["entry"]),
            None if load is None else _load_of(load),
            math.nan if gap is None else gap,
        )

    @classmethod
    def of(
        cls, entry: PlannerEntry, load: NetworkLoad | None, gap: float
    ) -> "NetworkEntry":
        """Return an entry with what follows from it."""
        tokens = math.nan
        if entry.found is not None and entry.is_valid:
            tokens = entry.found.simulated.tokens_per_second
        return cls(entry=entry, load=load, gap=gap, tokens_per_second=tokens)

    @property
    def time(self) -> float:
        """Simulated iteration time, NaN without a valid plan [s]."""
        return self.entry.simulated_time


def _load_of(row: Row) -> NetworkLoad:
    busiest = row["busiest"]
    return NetworkLoad(
        exposed=row["exposed"],
        bubble=row["bubble"],
        busiest=None if busiest is None else BusyLink(**busiest),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNetwork:
    """One network: what it is made of, and what the planners found on it."""

    label: str
    """Its name, different from those of the others."""

    file: str
    """Name of the file that it is from."""

    kind: str

    has_ideal_trunks: bool
    """Whether parallel cables act as one, so that no flows collide on one of them."""
    """``"rail"``, ``"torus"`` and so on."""

    inventory: Inventory
    """Switches, ports and cables."""

    bisection: float
    """`Network.bisection_bandwidth`: what crosses two halves, one way [byte/s]."""

    bisection_rule: str
    """How that was found."""

    oversubscription: float
    """What NICs can send over what reaches the top of a tree; NaN where there is
    none."""

    cost: ClusterCost | None
    """What the cluster costs with this network; None if the scenario does not say."""

    entries: tuple[NetworkEntry, ...]
    """One for each planner, in the order of the planners."""

    __repr__ = short_repr

    def run_cost(self, one: NetworkEntry) -> RunCost | None:
        """Return what training costs by one plan; None without a price or a plan."""
        if self.cost is None or not one.entry.is_valid:
            return None
        return RunCost(
            cluster=self.cost,
            iteration_time=one.time,
            tokens_per_second=one.tokens_per_second,
        )

    @property
    def best(self) -> NetworkEntry:
        """The entry that is fastest in the replay; the first one if there is none."""
        valid = [one for one in self.entries if one.entry.is_valid]
        return min(valid, key=lambda one: one.time, default=self.entries[0])

    @property
    def is_confirmed(self) -> bool:
        """Whether the replay confirms some plan."""
        return any(
            one.entry.found is not None and one.entry.found.verdict == "confirmed"
            for one in self.entries
        )


class StepParts(NamedTuple):
    """Where the step of a network's best plan goes; they add up to it [s]."""

    work: float
    """Compute and the optimizer step."""

    exposed: float
    """Communication that no compute hides."""

    bubble: float
    """Stages waiting for each other."""


def step_parts(network: ComparedNetwork) -> StepParts | None:
    """Return where the step goes, None without a valid plan."""
    best = network.best
    if best.load is None or not best.entry.is_valid:
        return None
    exposed, bubble = best.load.exposed, best.load.bubble
    return StepParts(best.time - exposed - bubble, exposed, bubble)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkComparison:
    """All networks, and what they have in common."""

    scenario: str
    """Name of the scenario."""

    model: str
    """What is trained."""

    num_devices: int
    """Devices that each network joins."""

    device: str
    """Name of the device, or of the devices of all groups."""

    device_memory: float
    """Of one device, the least where devices differ [byte]."""

    planners: tuple[str, ...]
    """Names, in the order of every network's entries."""

    objective: str
    """What searches minimise, one of `planner.search.space.OBJECTIVES`."""

    work_limit: int | None
    """Of each search; None for none [unit]."""

    asked: Equal | None
    """What was asked to be equal."""

    networks: tuple[ComparedNetwork, ...]
    """In the order of the files."""

    __repr__ = short_repr

    @property
    def currency(self) -> str:
        """Of all money; empty where nothing has a price."""
        cost = self.networks[0].cost
        return "" if cost is None else cost.currency

    @property
    def base(self) -> ComparedNetwork:
        """The network that the others are measured by: the first one with a plan."""
        valid = (one for one in self.networks if one.best.entry.is_valid)
        return next(valid, self.networks[0])

    def speed(self, tokens_per_second: float) -> float:
        """Return a throughput relative to the base's best one, NaN without."""
        return tokens_per_second / self.base.best.tokens_per_second

    @property
    def fastest(self) -> ComparedNetwork | None:
        """The network with the fastest plan, the first of equals; None without any."""
        valid = [one for one in self.networks if one.best.entry.is_valid]
        return min(valid, key=lambda one: one.best.time, default=None)

    @property
    def leaders(self) -> tuple[ComparedNetwork, ...]:
        """The fastest network and those that tie with it, as they are in the files."""
        fastest = self.fastest
        return tuple(
            one
            for one in self.networks
            if fastest is not None
            and difference(fastest.best.time, one.best.time) < TIE
        )


def spread(values: Sequence[float]) -> float:
    """Return how far the largest of some numbers is above the smallest; 0 if equal.

    Infinite where some are 0 and some are not, NaN where one is not known.

    Examples
    --------
    >>> spread([200.0, 150.0, 180.0]) == 1 / 3
    True
    """
    if any(math.isnan(value) for value in values):
        return math.nan
    low, high = min(values), max(values)
    if low == high:
        return 0.0
    return high / low - 1.0 if low else math.inf
