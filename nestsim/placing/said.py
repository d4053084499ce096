"""What a placed step folds into durations or leaves out, in words."""

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.settings import ReplaySettings
from planner.objective import PricedPlan
from planner.schedules import SCHEDULES

_NAMES = {
    "tensor collectives": "Tensor-parallel collectives",
    "context ring": "The context-parallel ring",
    "expert all-to-all": "The expert-parallel all-to-all",
}

_MOST_DEVICES = 8
"""Slow devices that a sentence names."""


def folded_sentences(priced: PricedPlan, settings: ReplaySettings) -> tuple[str, ...]:
    """Return one sentence for each thing that is not simulated event by event."""
    by_layer = settings.granularity == "layer"
    said = _by_layer(priced) if by_layer else _by_stage(priced, settings)
    if not settings.overlap_p2p_comm and len(priced.plan.stages) > 1:
        said.append(
            "A sender waits until its message has arrived; whether the receiver is "
            "ready for it is not modelled."
            if SCHEDULES[priced.plan.schedule].interleaves
            else "Transfers between stages start when both sides are ready, and both "
            "wait for them."
        )
    if settings.communication_slowdown > 1.0:
        said.append(
            "Compute is slowed down beside gradient buckets, beside parameter buckets "
            "on the first stage, and beside collectives of layers that overlap it; not "
            "beside transfers between stages."
        )
    if settings.expert_skew > 1.0:
        said.append(
            "The first rank of each expert-parallel group is the busiest in every "
            "layer; what it holds in memory is not larger."
        )
    return tuple(said)


def _has(priced: PricedPlan, part: str) -> bool:
    return any(stage.parts[part] > 0 for stage in priced.stages)


def _by_stage(priced: PricedPlan, settings: ReplaySettings) -> list[str]:
    said = []
    for part, name in _NAMES.items():
        if _has(priced, part):
            verb = "are" if name.endswith("s") else "is"
            said.append(
                f"{name} {verb} part of the stage times, priced with all groups active "
                "at once."
            )
    if _has(priced, "zero gathers"):
        hidden = settings.overlap_param_gather or settings.overlap_grad_reduce
        said.append(
            "What ZeRO-2 and ZeRO-3 send in every microbatch is part of the stage "
            f"times, {'partly' if hidden else 'not'} hidden behind compute."
        )
    return said


def _by_layer(priced: PricedPlan) -> list[str]:
    said = []
    if any(_has(priced, part) for part in _NAMES):
        said.append(
            "The compute of a layer is divided evenly between its collectives, which "
            "take turns by kind."
        )
    if _has(priced, "zero gathers") or any(_has(priced, part) for part in _NAMES):
        said.append(
            "Groups that have replicas of a stage in common do their collectives as "
            "one flow, at the rate of the slowest."
        )
    return said


def slow_device_sentences(
    priced: PricedPlan, slowdown: NDArray[np.float64]
) -> tuple[str, ...]:
    """Return what the plan does not know of the devices it uses.

    Parameters
    ----------
    priced
        The plan.
    slowdown
        What each device's compute times are multiplied by, shape ``(N,)``.
    """
    used = np.unique([stage.devices for stage in priced.plan.stages])
    slow = used[slowdown[used] > 1.0].tolist()
    if not slow:
        return ()
    shown = [f"{device} ({slowdown[device]:g}x)" for device in slow[:_MOST_DEVICES]]
    more = len(slow) - len(shown)
    names = ", ".join(shown) + (f" and {more} more" if more else "")
    return (
        "Compute takes longer on slow devices, which the plan takes to be as fast as "
        f"the others: {names}. What that costs is part of the gap.",
    )
