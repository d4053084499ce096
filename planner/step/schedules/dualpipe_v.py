"""DualPipe-V: DualPipe cut in half, a V whose forward passes go beside backward ones.

DualPipe feeds microbatches into a pipeline from both ends, for which each stage holds
two copies of its part of the model. Folded in the middle it needs one.

In its main phase a forward pass of one microbatch and the whole backward pass of
another are one unit, whose communication hides behind the other's compute: the two are
of different chunks, and a pair here (`Schedule.pairs_passes`). Their compute takes
turns, forward first, on the processors that communication leaves them in all of it
(20 of an H800's 132 are allocated to it, section 3.5.1 of the report [1]_). The last
stage pairs its first two passes, too, which the authors leave apart.

A backward pass that is not split is one of gradients of activations with its weight
gradients at once behind it: what it passes on goes on its way that much earlier. With
passes of one unit a bubble of ``p - 1`` is left, where the authors give ``(p - 1)(F&B +
B - 3W)`` = ``2 (p - 1)`` without any overlap.

References
----------
.. [1] DeepSeek-AI, github.com/deepseek-ai/DualPipe, ``dualpipe/dualpipev.py``, steps
   1 to 8; "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1.
.. [2] PyTorch, ``torch/distributed/pipelining/schedules.py``, ``ScheduleDualPipeV``.
"""

from planner.step.schedules.language import Instructions, Schedule, ScheduleSizes
from planner.step.schedules.v_shape import NUM_CHUNKS, down_and_back, write_words


def _write(stage: int, sizes: ScheduleSizes) -> Instructions:
    """Go through steps 1 to 8 of DualPipe-V, one phase each [1]_, [2]_.

    Half of the last backward passes leave their weight gradients for the end, first
    come, first served.
    """
    p, m, _ = sizes
    below, half = p - 1 - stage, (stage + 1) // 2
    odd_one = 1 - stage % 2
    # Chunks whose weight gradients are left, in the order of their backward passes.
    left = ["0"] * odd_one + ["1", "0"] * half + ["0"] * below
    return write_words(
        (
            ("F0", 2 * below),
            ("F0 F1", stage + 1),
            ("B1 W1 F1", below),
            ("F0 B1 W1 F1 B0 W0", m - 2 * p + stage + 1),
            ("B1 W1 F1 B0 W0", below),
            ("B1 W1 B0 W0", half),
            ("B1 W1 B0", odd_one),
            ("B1 B0", half),
            *((f"W{chunk} B0", 1) for chunk in left[:below]),
            *((f"W{chunk}", 1) for chunk in left[below:]),
        ),
        m,
    )


DUALPIPE_V = Schedule(
    name="dualpipe-v",
    interleaves=True,
    splits_backward=True,
    pairs_passes=True,
    pairs_chunks=True,
    reserves_processors=True,
    num_chunks=NUM_CHUNKS,
    deals_rounds=False,
    least_rounds=2,
    write=_write,
    stage_of=down_and_back,
)
