"""What a comparison holds, and the plain rows that it is stored as.

A group is one scenario; an entry is what one planner found for it. Ratios of
throughput are inverse ratios of iteration times, as the work is the same. A comparison
of networks says once what is the same for all; a network has what it is made of, and an
entry for each planner.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal, NamedTuple

from pydantic import ConfigDict, PlainSerializer, PlainValidator, TypeAdapter

from nestsim.document.dumps import Record
from nestsim.document.wording import difference
from nestsim.evaluate.cost import ClusterCost, RunCost
from nestsim.evaluate.results import Throughput
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.running.store import Row
from planner.cost.objective import largest_term
from planner.step.plan import Plan
from planner.work import Spent
from topologies.errors import short_repr
from topologies.fabrics.inventory import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlan:
    """The plan that a planner proposes first, priced, replayed and judged."""

    plan: Annotated[Plan, PlainSerializer(Plan.to_json), PlainValidator(Plan.from_json)]

    planned: Throughput
    """By the common evaluator."""

    simulated: Throughput
    """By the replay."""

    planned_terms: Mapping[str, float]
    """`PricedPlan.terms`: the planned iteration time by cause [s]."""

    gap_terms: Mapping[str, float]
    """`Gap.terms`: simulated minus planned iteration time by cause [s]."""

    verdict: str
    """``"confirmed"``, ``"slower"``, ``"doubtful"`` or ``"infeasible"``."""

    reason: str
    """Of the verdict, one sentence."""

    broken_rules: tuple[str, ...] = ()
    """Rules of the framework that it breaks, each with what was found; empty if the
    framework can launch it."""

    __repr__ = short_repr

    @property
    def terms(self) -> dict[str, float]:
        """The simulated iteration time by cause [s]; the terms add up to it."""
        return {**self.planned_terms, **self.gap_terms}


class BusyLink(Record):
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
class PlannerEntry:
    """What one planner found for one scenario."""

    planner: str
    """Its name."""

    sees: str = ""
    """What it sees of the network, in one sentence; empty if it never ran."""

    belief: float = math.nan
    """Iteration time of its best plan by its own model; NaN if it has none [s]."""

    evaluations: int = 0
    """Plans or parts of plans that it priced."""

    lower_bound: float = math.nan
    """No plan of the space is faster; NaN from planners that prove nothing [s]."""

    spent: Spent = field(default_factory=Spent)
    """The work of its search, and which limit stopped it, if one did."""

    spread: tuple[float, ...] = ()
    """Best iteration time of each seed, infinite where a walk found nothing; empty
    from planners without seeds [s]."""

    search_time: float = math.nan
    """How long the search took: another time in every run; NaN if it failed [s]."""

    launchable_time: float = math.nan
    """Fastest replay of its plans that the framework can launch, NaN without one
    [s]."""

    free_time: float = math.nan
    """Fastest replay of its plans that no rules hold; NaN if it had none but those that
    keep them [s]."""

    notes: tuple[str, ...] = ()
    """What else its planner says of what it found, in sentences."""

    found: BestPlan | None = None
    """Its plan; None if it has none."""

    why_not: str = ""
    """Why it has no plan, in one sentence; empty if it has one."""

    load: NetworkLoad | None = None
    """What its plan asks of the network; None without one, or where networks are not
    compared."""

    gap: float = math.nan
    """How far the time that the search minimised is above what it has proven that no
    plan goes below, relative to that bound; NaN without a proof, or where networks are
    not compared."""

    __repr__ = short_repr

    @property
    def is_valid(self) -> bool:
        """Whether there is a plan that the replay finds room for."""
        return self.found is not None and self.found.verdict not in NO_ROOM

    @property
    def obstacle(self) -> str:
        """Why there is nothing valid; empty if there is something."""
        if self.found is None:
            return self.why_not
        if self.found.verdict in NO_ROOM:
            return f"The replay runs out of memory: {self.found.reason}."
        return ""

    @property
    def reason(self) -> str:
        """Reason of the verdict, or why there is nothing valid."""
        return (self.found.reason if self.found else "") or self.obstacle

    @property
    def simulated_time(self) -> float:
        """Of its plan, NaN without a valid one [s]."""
        if self.found is None or not self.is_valid:
            return math.nan
        return self.found.simulated.iteration_time

    @property
    def planned_time(self) -> float:
        """Of its plan, NaN without a valid one [s]."""
        if self.found is None or not self.is_valid:
            return math.nan
        return self.found.planned.iteration_time

    @property
    def tokens_per_second(self) -> float:
        """Of its plan in the replay, NaN without a valid one [token/s]."""
        if self.found is None or not self.is_valid:
            return math.nan
        return self.found.simulated.tokens_per_second

    def to_row(self) -> Row:
        """Return plain JSON values; those that JSON does not have are in words."""
        (row,) = json.loads(_entries().dump_json((self,)))
        plain: Row = row
        return plain

    @classmethod
    def from_row(cls, row: Row) -> "PlannerEntry":
        """Read back what `to_row` wrote."""
        (entry,) = _entries().validate_python((row,))
        return entry


@cache
def _entries() -> TypeAdapter[tuple[PlannerEntry]]:
    """Return what reads and writes entries: of a tuple, which takes settings of ours.

    The settings of a dataclass are its own.
    """
    config = ConfigDict(ser_json_inf_nan="strings")
    return TypeAdapter(tuple[PlannerEntry], config=config)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedEntries:
    """What each planner found on one cluster."""

    entries: tuple[PlannerEntry, ...]
    """In the order of the planners, the same in every group."""

    cost: ClusterCost | None = None
    """What the cluster costs and draws; None if the scenario does not say."""

    @property
    def fastest(self) -> PlannerEntry | None:
        """The entry that is fastest in the replay, the first of equals, if any."""
        valid = [entry for entry in self.entries if entry.is_valid]
        return min(valid, key=lambda entry: entry.simulated_time, default=None)

    @property
    def is_confirmed(self) -> bool:
        """Whether the replay confirms the plan of some planner."""
        return any(
            entry.found is not None and entry.found.verdict == "confirmed"
            for entry in self.entries
        )

    def cost_of(self, entry: PlannerEntry) -> RunCost | None:
        """Return what a planner's plan costs; None without a plan or prices."""
        if self.cost is None or not entry.is_valid:
            return None
        return RunCost(
            cluster=self.cost,
            iteration_time=entry.simulated_time,
            tokens_per_second=entry.tokens_per_second,
        )


@dataclass(frozen=True, kw_only=True)
class ComparedJob:
    """The job that plans are compared for."""

    scenario: str
    """Name of the scenario, different from those of others."""

    model: str
    """Model that is trained."""

    num_devices: int
    """Devices of the cluster."""

    device_memory: float
    """Memory of one device, the least where devices differ [byte]."""


@dataclass(frozen=True, kw_only=True)
class ScenarioEntries(ComparedEntries, ComparedJob):
    """One scenario, and what each planner found for it."""

    base: str
    """Name of the planner that the others are measured by."""

    launchable: bool = False
    """Whether planners were held to what the framework can launch."""

    framework: str = ""
    """Whose rules those are, and which version's."""

    __repr__ = short_repr

    @property
    def launchability_price(self) -> float:
        """What launchability costs: the best launchable replay over the best free one.

        Of the plans that planners had: 1.02 is 2 % of the iteration time, and a lower
        bound where they were held to the rules, of which only a planner's own plan is
        free then. NaN where no plan was free of the rules, or none kept them.
        """
        within = [entry.launchable_time for entry in self.entries]
        free = [entry.free_time for entry in self.entries]
        if not any(map(math.isfinite, within)) or not any(map(math.isfinite, free)):
            return math.nan
        least = min(filter(math.isfinite, within))
        return least / min(least, *filter(math.isfinite, free))

    def simulated_ratio(self, entry: PlannerEntry) -> float:
        """Return simulated throughput relative to the base's, NaN without both."""
        return self._base.simulated_time / entry.simulated_time

    def planned_ratio(self, entry: PlannerEntry) -> float:
        """Return planned throughput relative to the base's, NaN without both."""
        return self._base.planned_time / entry.planned_time

    @property
    def _base(self) -> PlannerEntry:
        (base,) = (entry for entry in self.entries if entry.planner == self.base)
        return base


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All groups."""

    planners: tuple[str, ...]
    """Names, in the order of every group's entries."""

    base: str
    """Name of the planner that the others are measured by."""

    groups: tuple[ScenarioEntries, ...]
    """In the order of the scenarios."""

    __repr__ = short_repr


OWN_MODEL = "its own model"
"""Cause: what a planner's model leaves out, or counts too much, beside the common
evaluator."""


class Cause(NamedTuple):
    """The part of a difference that does most for it."""

    term: str
    """Name of the part."""

    seconds: float
    """Size of the part, of the difference's sign [s]."""


def differences(best: BestPlan, other: BestPlan) -> dict[str, float]:
    """Return by term how much longer one plan takes in the replay [s]."""
    first, second = best.terms, other.terms
    return {
        name: second.get(name, 0.0) - first.get(name, 0.0)
        for name in dict.fromkeys([*first, *second])
    }


def belief_gap(entry: PlannerEntry) -> dict[str, float]:
    """Return simulated minus believed time of a plan by cause [s].

    The entry must have a plan and a belief.
    """
    assert entry.found is not None
    by_model = entry.found.planned.iteration_time - entry.belief
    return {OWN_MODEL: by_model, **entry.found.gap_terms}


def largest(parts: Mapping[str, float]) -> Cause:
    """Return the part that does most for the sum, as `largest_term`."""
    term = largest_term(parts)
    return Cause(term, parts[term])


def turned_by(first: BestPlan, second: BestPlan) -> Cause | None:
    """Return what makes the replay reverse the order of two plans.

    None if the second one is not the faster in the replay, or is in the plan already.
    """
    is_promised = first.planned.iteration_time <= second.planned.iteration_time
    is_kept = first.simulated.iteration_time <= second.simulated.iteration_time
    if not is_promised or is_kept:
        return None
    gaps = {
        name: first.gap_terms.get(name, 0.0) - second.gap_terms.get(name, 0.0)
        for name in dict.fromkeys([*first.gap_terms, *second.gap_terms])
    }
    return largest(gaps)


Equal = Literal["ports", "cost"]
"""What may be asked to be equal."""

TIE = 0.005
"""Relative difference of times below which two networks tie."""

EQUAL_WITHIN = 0.05
"""Networks are equal in a number if the largest is at most so much above the smallest:
switches come in steps of ports, and nobody sells 5 % of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNetwork(ComparedEntries):
    """One network: what it is made of, and what the planners found on it."""

    label: str
    """Its name, different from those of the others."""

    file: str
    """Name of the file that it is from."""

    kind: str
    """``"rail"``, ``"torus"`` and so on."""

    has_ideal_trunks: bool
    """Whether parallel cables act as one, so that no flows collide on one of them."""

    inventory: Inventory
    """Switches, ports and cables."""

    bisection: float
    """`Network.bisection_bandwidth`: what crosses two halves, one way [byte/s]."""

    bisection_rule: str
    """How that was found."""

    oversubscription: float
    """What NICs can send over what reaches the top of a tree; NaN where there is
    none."""

    __repr__ = short_repr

    @property
    def best(self) -> PlannerEntry:
        """The entry that is fastest in the replay; the first one if there is none."""
        return self.fastest or self.entries[0]


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
    if best.load is None or not best.is_valid:
        return None
    exposed, bubble = best.load.exposed, best.load.bubble
    return StepParts(best.simulated_time - exposed - bubble, exposed, bubble)


@dataclass(frozen=True, kw_only=True)
class NetworkComparison(ComparedJob):
    """All networks, and what they have in common."""

    device: str
    """Name of the device, or of the devices of all groups."""

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
        valid = (network for network in self.networks if network.best.is_valid)
        return next(valid, self.networks[0])

    def speed(self, tokens_per_second: float) -> float:
        """Return a throughput relative to the base's best one, NaN without."""
        return tokens_per_second / self.base.best.tokens_per_second

    @property
    def fastest(self) -> ComparedNetwork | None:
        """The network with the fastest plan, the first of equals; None without any."""
        valid = [network for network in self.networks if network.best.is_valid]
        return min(valid, key=lambda network: network.best.simulated_time, default=None)

    @property
    def leaders(self) -> tuple[ComparedNetwork, ...]:
        """The fastest network and those that tie with it, as they are in the files."""
        fastest = self.fastest
        return tuple(
            network
            for network in self.networks
            if fastest is not None
            and difference(fastest.best.simulated_time, network.best.simulated_time)
            < TIE
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
