"""Interleaved 1F1B: stages of several chunks, and a shorter bubble.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
   Clusters Using Megatron-LM", SC 2021, section 2.2.2.
.. [2] Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``, functions
   ``get_pp_rank_microbatches`` and ``get_schedule_table``, groups of ``p``
   microbatches, or of ``--microbatch-group-size-per-virtual-pipeline-stage``. Up to
   2023 it ran all forward passes first where ``m = p``.
.. [3] PyTorch, ``torch/distributed/pipelining/schedules.py``,
   ``ScheduleInterleaved1F1B``: ``max(1, m div p)`` rounds of one length.
"""

import numpy as np

from planner.step.schedules.language import (
    Instructions,
    Schedule,
    ScheduleSizes,
    round_length,
    warm_up_then_alternate,
)


def interleaved_instructions(
    stage: int, sizes: ScheduleSizes, ahead: int = 0
) -> Instructions:
    """As 1F1B, with w = min(m v, 2 (p-1-i) + (v-1) g + ahead) [1]_, [2]_.

    Microbatches go in groups of ``g`` (`round_length`) through the first chunk, the
    second, and so on: forward pass ``n`` is of microbatch ``(n div g v) g + n mod g``
    and chunk ``(n mod g v) div g``; backward pass ``n`` of the same microbatch and of
    the chunk as far from the last one as that is from the first [3]_.
    """
    p, m, v = sizes
    length = round_length(p, m)
    group, place = np.divmod(np.arange(m * v), length * v)
    chunk = place // length
    microbatch = group * length + place % length
    return warm_up_then_alternate(
        (microbatch, chunk), (microbatch, v - 1 - chunk), _warmup(stage, sizes, ahead)
    )


def _count(stage: int, sizes: ScheduleSizes) -> int:
    return min(sizes.m * sizes.v, _warmup(stage, sizes) + 1)


def _warmup(stage: int, sizes: ScheduleSizes, ahead: int = 0) -> int:
    p, m, v = sizes
    return min(m * v, 2 * (p - 1 - stage) + (v - 1) * round_length(p, m) + ahead)


INTERLEAVED = Schedule(
    name="interleaved-1f1b",
    interleaves=True,
    splits_backward=False,
    write=interleaved_instructions,
    count=_count,
)
