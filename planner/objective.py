"""What the planner believes about a plan, term by term."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from planner.plan import Plan

PART_NAMES = (
    "compute",
    "tensor collectives",
    "context ring",
    "expert all-to-all",
    "recompute",
    "zero gathers",
)
"""What the time of a stage is made of."""


class ChunkTimes(NamedTuple):
    """Passes of one microbatch through one chunk, everything folded in [s]."""

    forward: float
    """Forward pass."""

    backward: float
    """Backward pass; without weight gradients if the schedule splits them off."""

    weight_gradient: float = 0.0
    """Weight gradients; 0 unless the schedule splits them off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage of one plan, for one microbatch unless said otherwise."""

    forward_time: float
    """Forward pass with everything folded into it [s]."""

    backward_time: float
    """Backward pass with everything folded into it; without weight gradients if the
    schedule splits them off [s]."""

    weight_gradient_time: float = 0.0
    """Weight gradients with everything folded into them; 0 unless the schedule splits
    them off [s]."""

    chunk_times: tuple[ChunkTimes, ...]
    """Passes of each chunk; they add up to the three above [s]."""

    parts: Mapping[str, float]
    """`work_time` by cause [s], keys of `PART_NAMES`."""

    boundary_bytes: float
    """Sent by each lane over every boundary, forward; 0 with one stage [byte]."""

    transfer_time: float
    """Per microbatch at both boundaries of the stage, half of each round trip, in the
    replica that sets the pace [s]."""

    reduce_time: float
    """Gradient collective after the last backward pass [s]."""

    tied_time: float
    """All-reduce of a tied embedding; 0 on other stages [s]."""

    optimizer_time: float
    """Optimizer step [s]."""

    gather_time: float
    """Parameter all-gather after the optimizer step [s]."""

    memory: Mapping[str, float]
    """Peak by what it is for [byte]: ``"weights"``, ``"gradients"``,
    ``"optimizer"``, ``"buffers"``, ``"activations"`` (all microbatches in flight),
    ``"working"``."""

    @property
    def work_time(self) -> float:
        """All passes [s]."""
        return self.forward_time + self.backward_time + self.weight_gradient_time

    @property
    def peak_memory(self) -> float:
        """Upper bound of the memory that one device of the stage needs [byte]."""
        return sum(self.memory.values())

    @property
    def tail_time(self) -> float:
        """After the stage's last backward pass until the step is complete [s]."""
        return (
            self.reduce_time + self.tied_time + self.optimizer_time + self.gather_time
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan and its price under the planner's model."""

    plan: Plan
    """The plan."""

    stages: tuple[StageCost, ...]
    """From the first to the last."""

    iteration_time: float
    """With a schedule that the search considers (`planner.pricing`) its objective, a
    closed form; with any other `timeline_time` [s]."""

    terms: Mapping[str, float]
    """`iteration_time` by cause [s]: `PART_NAMES` and ``"transfers"`` of the slowest
    stage times the number of microbatches, ``"bubble"`` (fill and drain), ``"tail"``
    (synchronisation and optimizer step). Where `iteration_time` is `timeline_time`,
    ``"transfers"`` is what they add to it."""

    timeline_pipeline_time: float
    """End of the last pass on a network without contention: max-plus recurrence of
    the schedule [s]."""

    timeline_time: float
    """End of the step on a network without contention: each stage's last pass
    plus its own tail [s]."""
