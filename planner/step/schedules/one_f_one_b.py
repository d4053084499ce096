"""1F1B, also called PipeDream-Flush: no more in flight than the pipeline is deep.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
   Clusters Using Megatron-LM", SC 2021, section 2.2.1.
"""

from planner.step.schedules.language import (
    Instructions,
    Schedule,
    ScheduleSizes,
    in_turn,
    warm_up_then_alternate,
)


def _write(stage: int, sizes: ScheduleSizes) -> Instructions:
    """F_0..F_{w-1}; then F_{w+j}, B_j; then the last w B; w = min(m, p-1-i) [1]_."""
    order = in_turn(sizes)
    return warm_up_then_alternate(order, order, min(sizes.m, sizes.p - 1 - stage))


def _count(stage: int, sizes: ScheduleSizes) -> int:
    return min(sizes.p - stage, sizes.m)


ONE_F_ONE_B = Schedule(
    name="1f1b",
    interleaves=False,
    splits_backward=False,
    write=_write,
    count=_count,
)
