"""ZB-V: no bubble where all passes take the same, in the memory of 1F1B.

References
----------
.. [1] Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv
   2401.10241), section 6.
.. [2] PyTorch, ``torch/distributed/pipelining/schedules.py``,
   ``ScheduleZBVZeroBubble``.
"""

from planner.step.schedules.language import Instructions, Schedule, ScheduleSizes
from planner.step.schedules.v_shape import NUM_CHUNKS, down_and_back, write_words


def _write(stage: int, sizes: ScheduleSizes) -> Instructions:
    """Fill the V, then F0 B0 W0 F1 B1 W1 again and again, then empty it [1]_, [2]_.

    A stage fills until the first gradient comes back from its second chunk. With fewer
    than ``2 p - 1`` microbatches the list is that of so many, without the others.
    """
    p, m, _ = sizes
    # Microbatches that the filling takes, and stages from here to the V's tip.
    filled, below = 2 * p - 1 - stage, p - stage
    whole = max(m, 2 * p - 1)
    return write_words(
        (
            ("F0", 2 * below - 1),
            ("F1 F0", stage),
            ("F1 B1 W1", below),
            ("F0 B0 W0 F1 B1 W1", whole - filled),
            ("B0 W0 F1 B1 W1", below - 1),
            ("B0 B1", stage),
            ("B0 W0", below),
            ("W1", stage),
            ("W0", stage),
        ),
        m,
    )


ZB_V = Schedule(
    name="zb-v",
    interleaves=True,
    splits_backward=True,
    num_chunks=NUM_CHUNKS,
    deals_rounds=False,
    write=_write,
    stage_of=down_and_back,
)
