"""What the planner believes about a plan, term by term."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.cost.rates import PlacementRates
from planner.step.offload import NOTHING_SENT, StepTransfers
from planner.step.plan import Plan
from topologies.errors import short_repr

HOST = "host"
"""Name of the part of a stage's time in which devices wait for their hosts' launches,
of what is repeated, too, and for the messages that these send between stages; of a
step's time with what hosts take once in it (data loading, logging)."""

PART_NAMES = (
    "compute",
    HOST,
    "tensor collectives",
    "context ring",
    "expert all-to-all",
    "recompute",
    "zero gathers",
)
"""Names of the parts of a stage's time."""


HOST_TRANSFERS = "host transfers"
"""Name of the part of a stage's time by which transfers to and from the host outlast
the compute of the layers that they go on beside; there where a stage offloads."""


COLLECTIVES = (
    "tensor collectives",
    "context ring",
    "expert all-to-all",
    "zero gathers",
)
"""Parts of `PART_NAMES` that passes may hide."""

HIDDEN = "hidden"
"""Name of the term of what passes hide of their collectives: negative."""


def net_parts(parts: Mapping[str, float]) -> dict[str, float]:
    """Return terms with what is hidden taken off the collectives, the largest first.

    `HIDDEN` keeps what no collective stands against; not there where it was not.
    """
    net = dict(parts)
    hidden = net.pop(HIDDEN, 0.0)
    # The other way round from what is hidden.
    way = -1.0 if hidden > 0.0 else 1.0
    sent = [name for name in COLLECTIVES if name in net]
    for name in sorted(sent, key=lambda name: -way * net[name]):
        covered = max(min(way * net[name], abs(hidden)), 0.0)
        net[name] -= way * covered
        hidden += way * covered
    return net | ({HIDDEN: hidden} if HIDDEN in parts else {})


def largest_term(parts: Mapping[str, float]) -> str:
    """Return the term that does most for the sum, in its direction; ties: the first.

    Collectives that are hidden do nothing for it.
    """
    net = net_parts(parts)
    sign = 1.0 if sum(parts.values()) >= 0.0 else -1.0
    return max(parts, key=lambda name: sign * net[name])


class ChunkTimes(NamedTuple):
    """Passes of one microbatch through one chunk, with all that they wait for [s]."""

    forward: float
    """Forward pass of one microbatch through the chunk [s]."""

    backward: float
    """Backward pass of one microbatch through the chunk; without weight gradients if
    the schedule splits them off [s]."""

    weight_gradient: float = 0.0
    """Weight gradients of one microbatch in the chunk; 0 unless the schedule splits
    them off [s]."""

    paired_forward: float = 0.0
    """Forward pass with a backward pass of another microbatch beside it; 0 unless the
    schedule has such pairs [s]."""

    paired_backward: float = 0.0
    """Backward pass with a forward pass of another microbatch beside it; 0 unless the
    schedule has such pairs [s]."""

    first_forward: float = 0.0
    """Forward pass of the step's first microbatch; 0 unless stages of the plan have it
    gather what later ones find in a second copy of the weights [s]."""


class HostWaits(NamedTuple):
    """What of a microbatch's passes through a stage is waiting for the host [s].

    And of the step's end, once.
    """

    forward: float
    """Part of the forward pass [s]."""

    backward: float
    """Part of the backward pass, with what is repeated in it [s]."""

    step: float = 0.0
    """Part of the optimizer step, what the host takes once in each step [s]."""


NO_WAITS = HostWaits(0.0, 0.0)
"""Passes that wait for no host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage of one plan, for one microbatch unless said otherwise.

    Passes are without what they hide; causes and collectives are charged in full.
    """

    forward_time: float
    """Forward pass with everything that it waits for [s]."""

    backward_time: float
    """Backward pass with everything that it waits for; without weight gradients if the
    schedule splits them off [s]."""

    weight_gradient_time: float = 0.0
    """Weight gradients with everything that they wait for; 0 unless the schedule splits
    them off [s]."""

    chunk_times: tuple[ChunkTimes, ...]
    """Passes of each chunk as a replay by stages has them [s]; they add up to
    `forward_time`, `backward_time` and `weight_gradient_time`."""

    parts: Mapping[str, float]
    """Time of the passes by cause if nothing of them were hidden, keys of `PART_NAMES`
    [s]."""

    host_waits: HostWaits = NO_WAITS
    """What of the passes, and of the optimizer step, devices wait for their hosts."""

    first_gathers: float = 0.0
    """By how much the gathers of the step's first forward passes exceed those of later
    ones; 0 without a second copy of the weights [s]."""

    charged_time: float
    """What the planned objective charges for the passes: nothing hidden, all experts
    and all compute even [s]."""

    boundary_bytes: float
    """Forward traffic of each rank of a replica over every boundary; 0 with one stage
    [byte]."""

    transfer_time: float
    """Transfers of a microbatch at both boundaries of the stage, half of each round
    trip, in the replica that sets the pace [s]."""

    reduce_time: float
    """Gradient collective after the last backward pass [s]."""

    tied_time: float
    """All-reduce of a tied embedding; 0 on other stages [s]."""

    optimizer_time: float
    """Optimizer step, with what hosts take once in each step [s]."""

    gather_time: float
    """Parameter all-gather after the optimizer step [s]."""

    crowding_time: float = 0.0
    """What the stage's hidden collectives of parameters add to a step as they span
    nodes (`planner.cost.crowding`), charged after its last pass; no part of
    `step_end_time` [s]."""

    host_time: float = 0.0
    """Transfers to and from the host around the optimizer step, part of neither
    `reduce_time` nor `gather_time` [s]."""

    step_transfers: StepTransfers = NOTHING_SENT
    """What a device exchanges with its host around the optimizer step."""

    memory: Mapping[str, float]
    """Peak memory by what it is for: ``"weights"``, ``"gradients"``, ``"optimizer"``,
    ``"buffers"``, ``"activations"`` (all microbatches in flight), ``"working"``; by how
    much the copies of gradients that an optimizer makes exceed the last three, if they
    do; ``"second copy of weights"`` and ``"frozen weights"``, if there are any; and
    ``"staging"``, what is on its way to or from the host, if anything [byte]."""

    host_memory: Mapping[str, float] = field(default_factory=dict)
    """What the host keeps for the device at most: ``"weights"``, ``"gradients"``,
    ``"optimizer"``, ``"activations"``; empty where it keeps nothing [byte]."""

    @property
    def work_time(self) -> float:
        """All passes, without what they hide [s]."""
        return self.forward_time + self.backward_time + self.weight_gradient_time

    @property
    def peak_memory(self) -> float:
        """Upper bound of the memory that one device of the stage needs [byte]."""
        return sum(self.memory.values())

    @property
    def step_end_time(self) -> float:
        """After the stage's last pass, if nothing of it were hidden [s]."""
        end = self.reduce_time + self.tied_time + self.optimizer_time
        return end + self.gather_time + self.host_time


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan and its price under the planner's model."""

    plan: Plan
    """Plan that the price is of."""

    stages: tuple[StageCost, ...]
    """Cost of each stage, from the first to the last: on the devices of its slowest
    replica."""

    by_kind: tuple[tuple[StageCost, ...], ...] = ()
    """Costs of each stage where devices differ, by the kinds that its replicas work on
    (`planner.step.fleet.actor_kinds`); empty if all replicas of each stage work on the
    same."""

    iteration_time: float
    """End of the step on a network where transfers never meet, with everything hidden
    that the framework hides: the exact timeline of the schedule [s]."""

    terms: Mapping[str, float]
    """`iteration_time` by cause [s]: `PART_NAMES` of the slowest stage times the number
    of microbatches, ``"zero gathers"`` with what the first one gathers more;
    ``"hidden"``, what its passes and pairs of passes hide of them
    (negative); ``"host"`` with what hosts take once in the step; ``"transfers"``, what
    transfers between stages add; ``"bubble"``, what the stage waits for beside them
    (fill and drain); ``"tail"``, what synchronisation and the rest of the optimizer
    step add: after the last pass, and where passes wait for parameters."""

    pipeline_time: float
    """End of the last pass in the exact timeline of the schedule [s]."""

    closed_form_time: float
    """What the search with the planned objective minimises (`planner.cost.pricing`): a
    closed form that charges passes and the step's end in full. `iteration_time` with a
    schedule that this search does not choose from [s]."""

    rates: PlacementRates | None = field(default=None, compare=False)
    """Rates of its placement, where its replay may need them."""

    def costs_of(self, stage: int) -> tuple[StageCost, ...]:
        """Return what a stage costs by the kinds that its replicas work on."""
        return self.by_kind[stage] if self.by_kind else (self.stages[stage],)

    @property
    def host_memory(self) -> float:
        """Most that the host keeps for a device of any stage [byte]."""
        return max(sum(stage.host_memory.values()) for stage in self.stages)

    __repr__ = short_repr
