"""Slots: the names under which the program of a stage knows its channels.

All replicas of a stage run one program, each with its own table of channels. Slots are
those of each chunk in turn, in and out for either direction; then those of the
collectives of the step's end, of collectives inside of passes, and of buckets.

Letters: ``p`` stages, ``v`` chunks of each, ``d`` replicas, ``S`` slots. Virtual stage
``k`` is chunk ``k div p`` of stage ``k mod p``.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from nestsim.simulator.flows import Flows, Numbers
from nestsim.simulator.system import NONE
from topologies.arrays import IntArray

ACTIVATION_IN, ACTIVATION_OUT, GRADIENT_IN, GRADIENT_OUT = range(4)
SLOTS_PER_CHUNK = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSlots:
    """The slots of one stage; buckets and phases are in their order."""

    channels: IntArray
    """The channel in each slot for each replica, or `NONE`, shape ``(d, S)``."""

    before: Numbers
    """Phases before the optimizer step: gradients, then the tied embedding."""

    after: Numbers
    """Phases after the optimizer step: parameter gather."""

    teams: tuple[Numbers, ...]
    """Phases of each `TeamTraffic`."""

    gather_buckets: tuple[Numbers, ...]
    """Phases of each bucket."""

    reduce_buckets: tuple[Numbers, ...]
    """Phases of each bucket."""

    signal: int
    """To the communication stream, or `NONE`."""

    def bucket_ends(self) -> list[tuple[int, int]]:
        """Return the slot of each bucket's last message, and which one there it is.

        In the order in which the communication stream sends them: parameters, then
        gradients. Messages are counted as it posts them, since a slot serves several
        buckets, and several phases of one: the reduce-scatter and the all-gather inside
        of nodes that belong to one all-reduce.
        """
        posted: Counter[int] = Counter()
        ends = []
        for phases in (*self.gather_buckets, *self.reduce_buckets):
            posted.update(phases)
            ends.append((phases[-1], posted[phases[-1]]))
        return ends


def stage_slots(flows: Flows, stage: int) -> StageSlots:
    """Lay out the slots of one stage."""
    columns = _boundary_columns(flows, stage)
    num_replicas = flows.signal.shape[1]

    def give(channels: list[IntArray]) -> Numbers:
        first = len(columns)
        columns.extend(channels)
        return tuple(range(first, len(columns)))

    def whole_stage(numbers: Numbers) -> list[IntArray]:
        return [np.full(num_replicas, number) for number in numbers]

    num_stages = len(flows.reduce)
    tied = flows.tied if stage in {0, num_stages - 1} else ()
    before = give(whole_stage((*flows.reduce[stage], *tied)))
    after = give(whole_stage(flows.gather[stage]))
    teams = tuple(give(list(phases)) for phases in flows.teams[stage])
    buckets = flows.gather_buckets[stage], flows.reduce_buckets[stage]
    distinct = tuple(sorted({f for own in buckets for flow in own for f in flow}))
    slot_of = dict(zip(distinct, give(whole_stage(distinct)), strict=True))
    gathers, reduces = (
        tuple(tuple(slot_of[f] for f in bucket) for bucket in own) for own in buckets
    )
    (signal,) = give([flows.signal[stage]]) if reduces else (NONE,)
    return StageSlots(
        channels=np.stack(columns, axis=1).astype(np.int64),
        before=before,
        after=after,
        teams=teams,
        gather_buckets=gathers,
        reduce_buckets=reduces,
        signal=signal,
    )


def _boundary_columns(flows: Flows, stage: int) -> list[IntArray]:
    """Return the channels of each chunk, in and out for either direction."""
    num_stages, num_replicas = flows.signal.shape
    nobody = np.full(num_replicas, NONE)
    last = len(flows.activation)
    columns = []
    for k in range(stage, last + 1, num_stages):
        columns += [
            flows.activation[k - 1] if k > 0 else nobody,
            flows.activation[k] if k < last else nobody,
            flows.gradient[k] if k < last else nobody,
            flows.gradient[k - 1] if k > 0 else nobody,
        ]
    return columns
