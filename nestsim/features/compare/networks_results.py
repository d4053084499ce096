"""What a comparison of networks holds.

What is the same for all is said once; a network has what it is made of, and an entry
for each planner: the best plan that it found there, replayed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nestsim.document.wording import difference
from nestsim.features.compare.results import ComparedEntries, PlannerEntry
from topologies.errors import short_repr
from topologies.fabrics.inventory import Inventory

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
