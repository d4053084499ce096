"""What software adds to a layer: launches that the device waits for, gaps, libraries.

A block takes at least as long as the host needs to launch its kernels. With compute
``g``, collectives ``c`` and host time ``h`` of a pass::

    t = (  (g + c)^q + h^q  )^(1/q) + gap,   h = operators tau (1 + beta log2 tp)

With CUDA graphs [1]_ the host launches a step and no kernel: ``h`` is 0, the gap that
of compiled programs, and collectives follow kernels as kernels follow each other.

Messages between pipeline stages are the host's, too: it launches a send and a receive
for each pass of each chunk, waits for what came, and goes through its schedule.
Compiled programs and graphs hold them already.

A large ``q`` makes it the maximum of both; a finite one says that kernels of a layer
that is slow on the whole may be quick one by one. Collectives are priced as if their
groups sat side by side on the accelerator's own links; what of ``c`` goes over the wire
depends on the placement and is the planner's to add, what a library needs beside it
(`estimators.collectives.transports`) is added here.

References
----------
.. [1] A. Gray, "Getting Started with CUDA Graphs", NVIDIA, 2019.
"""

import math
from typing import NamedTuple

from estimators.collectives.transports import overhead, transfer_time
from estimators.layers.work import CollectiveWork, Degrees, LayerWork, OperatorWork
from estimators.operators.roofline import GRAPH_LAUNCH_TIME, LAUNCH_TIME
from estimators.platform import Platform

SHARPNESS = 6.0
"""Exponent ``q`` of the model, chosen: on every fourth of 712 published single-node
runs the mean error is 8.5, 8.1 and 8.2 % with 4, 6 and 10, all else alike."""

BACKWARD_LAUNCHES = 1.6
"""Kernels of a backward pass for each of the forward pass, assumed: a plain block's 6
products of 15 operators become two each (1.4), and gradients are added up."""

FORWARD_GAP = 0.25
"""Part of a layer's gap in its forward pass, assumed; the rest is in the backward
pass. Only where forward passes are run again does it matter."""


class HostTimes(NamedTuple):
    """What software adds to the passes of one layer [s]."""

    forward: float
    """Host time of the forward pass [s]."""
    backward: float
    """Host time of the backward pass [s]."""


class _Collectives(NamedTuple):
    """All collectives of one pass [s]."""

    wire: float
    """Time of the layer's collectives on the wire [s]."""
    library: float
    """Time that the library adds to it [s]."""


def host_times(
    work: LayerWork,
    compute: tuple[float, float],
    degrees: Degrees,
    platform: Platform,
) -> HostTimes:
    """Return what is to be added to a block's compute.

    Parameters
    ----------
    work
        The layer.
    compute
        Time of its forward and backward pass without collectives [s].
    degrees
        How it is split.
    platform
        What runs it.
    """
    constants = platform.software_constants
    software = platform.software
    launch, gap = 0.0, constants.layer_gap
    if software.cuda_graphs:
        gap = min(gap, constants.graph_gap)
    elif not software.compiled:
        slope = constants.kernel_time_per_tp_doubling
        launch = constants.kernel_time * (1.0 + slope * math.log2(degrees.tp))
    if launch <= 0.0 and gap <= 0.0 and not software.library:
        return HostTimes(0.0, 0.0)
    forward, backward = _collectives(work, degrees, platform)
    kernels_per_expert = constants.kernels_per_expert
    host = launch * sum(
        _launches(operator, kernels_per_expert) for operator in work.operators
    )
    return HostTimes(
        _combined_time(compute[0], forward, host) + FORWARD_GAP * gap,
        _combined_time(compute[1], backward, BACKWARD_LAUNCHES * host)
        + (1.0 - FORWARD_GAP) * gap,
    )


def message_time(platform: Platform) -> float:
    """Return what a device waits for its host at each message between stages [s]."""
    if platform.software.compiled or platform.software.cuda_graphs:
        return 0.0
    return platform.software_constants.message_time


def _launches(operator: OperatorWork, per_expert: float) -> float:
    """Return the kernels of an operator's forward pass.

    One, but for products of experts: these are launched expert by expert.
    """
    return per_expert * operator.batch if operator.is_grouped else 1.0


def _combined_time(compute: float, collectives: _Collectives, host: float) -> float:
    """Return how much longer than compute and wire a pass takes [s]."""
    device = compute + collectives.wire + collectives.library
    if host <= 0.0:
        return collectives.library
    larger, smaller = max(device, host), min(device, host)
    together = larger * (1.0 + (smaller / larger) ** SHARPNESS) ** (1.0 / SHARPNESS)
    return float(together - compute - collectives.wire)


def _collectives(
    work: LayerWork, degrees: Degrees, platform: Platform
) -> tuple[_Collectives, _Collectives]:
    """Return the collectives of the forward and the backward pass."""
    if not platform.software.library:
        return _Collectives(0.0, 0.0), _Collectives(0.0, 0.0)
    accelerator = platform.accelerator
    bandwidth = accelerator.interconnect_bandwidth
    passes = []
    for forward in (True, False):
        priced = [
            _price_collective(platform, item, degrees, bandwidth, forward=forward)
            for item in work.collectives
        ]
        passes.append(
            _Collectives(
                sum(part.wire for part in priced), sum(part.library for part in priced)
            )
        )
    return passes[0], passes[1]


def _price_collective(
    platform: Platform,
    item: CollectiveWork,
    degrees: Degrees,
    bandwidth: float,
    *,
    forward: bool,
) -> _Collectives:
    count = item.forward_count if forward else item.backward_count
    num_bytes = item.forward_bytes if forward else item.backward_bytes
    if count == 0:
        return _Collectives(0.0, 0.0)
    ranks = degrees.group_size(item.group, item.operation)
    transport = platform.transport(inside_node=True, num_ranks=ranks)
    message = (transport, item.operation, ranks, num_bytes / count, bandwidth)
    library = overhead(*message)
    if platform.software.cuda_graphs:
        library = max(0.0, library - LAUNCH_TIME + GRAPH_LAUNCH_TIME)
    return _Collectives(count * transfer_time(*message), count * library)
