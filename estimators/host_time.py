"""What the host adds to a layer: launches that the device waits for, and gaps.

A layer takes at least as long as the host needs to launch its kernels. With device
time ``g`` (collectives included) and host time ``h``::

    t = (g^q + h^q)^(1/q) + gap,   h = operators tau (1 + beta log2 tp)

A large ``q`` makes it the maximum of both; a finite one says that kernels of a layer
that is slow on the whole may be quick one by one.
"""

import math
from typing import NamedTuple

from estimators.constants import SoftwareConstants
from estimators.layer_work import LayerWork
from estimators.software import Software

SHARPNESS = 6.0
"""The exponent ``q``; between 4 and 10 the errors on published single-node runs do not
change much."""

BACKWARD_LAUNCHES = 1.6
"""Kernels of a backward pass for each of the forward pass: each product becomes two,
all else one."""

FORWARD_GAP = 0.25
"""Part of a layer's gap in its forward pass; the rest is in the backward pass."""


class HostTimes(NamedTuple):
    """What the host adds to the passes of one layer [s]."""

    forward: float
    backward: float


def host_times(
    work: LayerWork,
    device: tuple[float, float],
    *,
    tp: int,
    software: Software,
    constants: SoftwareConstants,
) -> HostTimes:
    """Return what is to be added to the device's time.

    Parameters
    ----------
    work
        The layer.
    device
        Time of its forward and backward pass on the device, collectives included [s].
    tp
        Tensor-parallel size.
    software, constants
        What launches it.
    """
    launch = 0.0
    if not software.compiled:
        slope = constants.kernel_time_per_tp_doubling
        launch = constants.kernel_time * (1.0 + slope * math.log2(tp))
    forward = len(work.operators) * launch
    gap = constants.layer_gap
    return HostTimes(
        _waiting(device[0], forward) + FORWARD_GAP * gap,
        _waiting(device[1], BACKWARD_LAUNCHES * forward) + (1.0 - FORWARD_GAP) * gap,
    )


def _waiting(device: float, host: float) -> float:
    """Return how much longer than the device's own time a pass takes [s]."""
    if host <= 0.0:
        return 0.0
    larger, smaller = max(device, host), min(device, host)
    together = larger * (1.0 + (smaller / larger) ** SHARPNESS) ** (1.0 / SHARPNESS)
    return float(together - device)
