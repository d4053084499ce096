"""ZB-H1: weight gradients fill the bubbles of 1F1B, in the memory of its first stage.

References
----------
.. [1] Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024, section
   2.1: the handcrafted schedule H1.
.. [2] PyTorch, ``torch/distributed/pipelining/schedules.py``,
   ``ScheduleInterleavedZeroBubble`` with one stage per rank.
"""

import numpy as np

from planner.step.schedules.language import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Instructions,
    Schedule,
    ScheduleSizes,
)


def write_behind(ahead: int, behind: int, num_microbatches: int) -> Instructions:
    """Return F_{w+j}, B_j, W_{j-d} for every ``j``, without what does not exist.

    Parameters
    ----------
    ahead
        ``w``: forward passes before the first backward one, less 1.
    behind
        ``d``: backward passes before the first weight gradients, less 1.
    num_microbatches
        ``m``; step ``j`` goes from ``-w`` to ``m - 1 + d``.
    """
    m = num_microbatches
    order = np.arange(m)
    step = np.concatenate((order - min(m, ahead), order, order + behind))
    kind = np.repeat(np.array([FORWARD, BACKWARD, WEIGHT], dtype=np.int64), m)
    place = np.lexsort((kind, step))
    return Instructions(
        kind[place], np.tile(order, 3)[place], np.zeros(3 * m, dtype=np.int64)
    )


def _write(stage: int, sizes: ScheduleSizes) -> Instructions:
    """F_0..F_{w-1}; then F_{w+j}, B_j, W_{j-i}; then the last W; w = min(m, p-1-i).

    Stage ``i`` does not begin with weight gradients before it is ``i`` backward passes
    ahead, so that all stages keep the same number of activations [1]_, [2]_.
    """
    return write_behind(sizes.p - 1 - stage, stage, sizes.m)


def _count(_stage: int, sizes: ScheduleSizes) -> int:
    """As many as the first stage of 1F1B, on every stage [1]_."""
    return min(sizes.p, sizes.m)


ZB_H1 = Schedule(
    name="zb-h1",
    interleaves=False,
    splits_backward=True,
    write=_write,
    count=_count,
)
