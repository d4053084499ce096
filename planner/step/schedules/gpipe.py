"""GPipe: all forward passes, then all backward passes.

References
----------
.. [1] Huang et al., "GPipe: Efficient Training of Giant Neural Networks using
   Pipeline Parallelism", NeurIPS 2019, section 2.3.
"""

from planner.step.schedules.language import (
    Instructions,
    Schedule,
    ScheduleSizes,
    in_turn,
    warm_up_then_alternate,
)


def _write(_stage: int, sizes: ScheduleSizes) -> Instructions:
    """F_0..F_{m-1}; then B_0..B_{m-1} [1]_."""
    order = in_turn(sizes)
    return warm_up_then_alternate(order, order, sizes.m)


def _count(_stage: int, sizes: ScheduleSizes) -> int:
    return sizes.m


GPIPE = Schedule(
    name="gpipe",
    interleaves=False,
    splits_backward=False,
    forward_first=True,
    write=_write,
    count=_count,
)
