"""Megatron Core's combined 1F1B: passes of two microbatches beside each other.

Once a stage alternates, each forward pass goes on beside the backward pass that follows
it, which is of another microbatch: what either sends between experts is hidden behind
the compute of the other [1]_. For the two to be independent the last stage, too, runs
one forward pass ahead: every stage warms up by one pass more than it does without, and
keeps one microbatch more. The first passes and the last ones have nobody beside them.

References
----------
.. [1] Megatron-LM, ``megatron/core/pipeline_parallel/combined_1f1b.py``: without a
   pipeline one forward pass, then pairs, then one backward pass; with interleaving the
   warm-up of ``schedules.py``, ``get_pp_rank_microbatches``, "+ 1" where
   ``overlap_moe_expert_parallel_comm``.
"""

from dataclasses import replace

from planner.step.schedules.interleaved import INTERLEAVED, interleaved_instructions
from planner.step.schedules.language import (
    Instructions,
    ScheduleSizes,
    in_turn,
    warm_up_then_alternate,
)
from planner.step.schedules.one_f_one_b import ONE_F_ONE_B


def _write(stage: int, sizes: ScheduleSizes) -> Instructions:
    order = in_turn(sizes)
    return warm_up_then_alternate(order, order, min(sizes.m, sizes.p - stage))


def _count(stage: int, sizes: ScheduleSizes) -> int:
    return min(sizes.m, sizes.p - stage + 1)


def _write_interleaved(stage: int, sizes: ScheduleSizes) -> Instructions:
    return interleaved_instructions(stage, sizes, ahead=1)


def _count_interleaved(stage: int, sizes: ScheduleSizes) -> int:
    return min(sizes.m * sizes.v, INTERLEAVED.in_flight(stage, *sizes) + 1)


COMBINED = replace(
    ONE_F_ONE_B, name="combined-1f1b", pairs_passes=True, write=_write, count=_count
)

COMBINED_INTERLEAVED = replace(
    INTERLEAVED,
    name="combined-interleaved-1f1b",
    pairs_passes=True,
    write=_write_interleaved,
    count=_count_interleaved,
)
