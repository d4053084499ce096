"""MaxText's pipelines: one loop over all stages at once, differentiated as a whole.

Each turn of the loop has every stage work on the microbatch that its neighbour worked
on in the turn before; ``m v + p - 1`` turns are a step's forward passes, and
``jax.grad`` of the loop goes through all of them again from the last to the first [1]_.
With several chunks of each stage (``num_pipeline_repeats``) all microbatches go through
the first chunks before any comes round to the second ones: breadth first [2]_.

What a turn saves for its backward pass the loop keeps for all of its turns, those of
the ``p - 1`` in which a stage has no microbatch included. The embedding and the head
are in front of the loop and behind it, on all devices; here they are on the first and
the last stage.

References
----------
.. [1] MaxText, ``src/maxtext/layers/pipeline.py``: ``NNXPipeline.__call__``,
   ``total_iterations``, ``jax.lax.scan`` over a ``jax.checkpoint`` of one turn;
   ``get_microbatch_and_repeat_ids``.
.. [2] Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023, section 4;
   PyTorch, ``torch/distributed/pipelining/schedules.py``, ``ScheduleLoopedBFS``.
"""

from dataclasses import replace

import numpy as np

from planner.step.schedules.gpipe import GPIPE
from planner.step.schedules.language import (
    Instructions,
    Schedule,
    ScheduleSizes,
    warm_up_then_alternate,
)


def _write(_stage: int, sizes: ScheduleSizes) -> Instructions:
    """Each chunk's forward passes, chunk by chunk; then all of it backwards [1]_."""
    chunk, microbatch = np.divmod(np.arange(sizes.m * sizes.v), sizes.m)
    forward = microbatch, chunk
    backward = microbatch[::-1], chunk[::-1]
    return warm_up_then_alternate(forward, backward, microbatch.size)


def _count(_stage: int, sizes: ScheduleSizes) -> int:
    return sizes.m * sizes.v


SCANNED = replace(GPIPE, name="scanned", keeps_bubbles=True, write=_write)

CIRCULAR = Schedule(
    name="circular",
    interleaves=True,
    splits_backward=False,
    forward_first=True,
    keeps_bubbles=True,
    write=_write,
    count=_count,
)
