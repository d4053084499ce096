"""ZB-H2: no bubble where all passes take the same, for twice the memory of 1F1B.

References
----------
.. [1] Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024, section
   2.2: the handcrafted schedule H2.
"""

from planner.step.schedules.language import Instructions, Schedule, ScheduleSizes
from planner.step.schedules.zb_h1 import write_behind


def _write(stage: int, sizes: ScheduleSizes) -> Instructions:
    """As ZB-H1 of a pipeline twice as deep: 2(p-i)-1 forward passes first [1]_.

    Stage ``i`` is ``2(p-1-i)`` forward passes ahead of its backward ones, and these are
    ``2 i`` ahead of its weight gradients. With passes of one unit it works without a
    pause from ``i`` to ``3 m + i``.
    """
    return write_behind(2 * (sizes.p - 1 - stage), 2 * stage, sizes.m)


def _count(_stage: int, sizes: ScheduleSizes) -> int:
    """``2 p - 1`` on every stage [1]_."""
    return min(2 * sizes.p - 1, sizes.m)


ZB_H2 = Schedule(
    name="zb-h2",
    interleaves=False,
    splits_backward=True,
    runs_ahead=True,
    write=_write,
    count=_count,
)
