"""A measured collective, and the time it is predicted to have taken.

How a time was measured changes it. nccl-tests divide a train of launches by its length,
so the host's part is hidden: their times are those of
`estimators.collectives.transports`. Programs in torch wait for each call, which adds
the host's time. Profiles of kernels leave the launch out, but a kernel that starts
early waits for its peers' hosts, so no collective seems shorter than that; where ranks
happen to start together, it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from estimators.collectives.transports import Transport, ramp_time, transfer_time

Method = Literal["tests", "torch", "kernel"]

HOST_TIMES: Mapping[Method, float] = MappingProxyType(
    {"tests": 0.0, "torch": 27e-6, "kernel": 0.0}
)
"""Method -> what the host adds [s]; that of torch fitted to ml-engineering's 8 B200."""

ARRIVAL_TIMES: Mapping[str, float] = MappingProxyType({"a100": 45e-6, "h100": 37e-6})
"""Device -> how long a kernel that reduces waits for the last rank's host [s]; fitted
to Vidur's profiles below 1 MB. The spread between hosts, a property of the machine."""

_USUAL_ARRIVAL = 40e-6
"""The same where no profile is published [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCase:
    """What a row measured, ready to be predicted."""

    operation: str
    """A key of `estimators.collectives.transports.WIRE_FRACTIONS`."""

    device: str
    """Family of the accelerator, e.g. ``"h100"``."""

    num_ranks: int
    """Members of the group."""

    num_nodes: int
    """Nodes, or NVLink domains, that they are in."""

    num_bytes: float
    """Of the full tensor [byte]."""

    inside: Transport
    """Links inside a node."""

    inside_bandwidth: float
    """Of a device, by the datasheet [byte/s]."""

    across: Transport | None
    """Links between nodes; None if there is one node."""

    across_bandwidth: float
    """Of all adapters of a node that its ranks use, by the datasheet [byte/s]."""

    method: Method
    """How the time was measured."""

    measured: float
    """[s]"""

    basis: str
    """The column that it is from."""

    assumed: tuple[str, ...]
    """What the row does not say."""


def predicted_time(
    case: CollectiveCase,
    *,
    host_times: Mapping[Method, float] = HOST_TIMES,
    arrival_times: Mapping[str, float] = ARRIVAL_TIMES,
) -> float:
    """Return the time of a case as its method would have measured it [s]."""
    outermost = case.across or case.inside
    time = (
        outermost.latency(case.operation, case.num_ranks, case.num_nodes)
        + _bottleneck(case)
        + host_times[case.method]
    )
    if case.method == "kernel" and case.operation != "send_recv":
        return max(time, arrival_times.get(case.device, _USUAL_ARRIVAL))
    return time


def _bottleneck(case: CollectiveCase) -> float:
    """Return the time of bytes and ramp where it is longest [s]."""
    operation, ranks, size = case.operation, case.num_ranks, case.num_bytes
    if case.across is None:
        tau = transfer_time(case.inside, operation, ranks, size, case.inside_bandwidth)
        return tau + ramp_time(case.inside, operation, tau)
    across, bandwidth = case.across, case.across_bandwidth
    local = ranks // case.num_nodes
    if operation == "all_to_all":
        # Each of a node's ranks has its share of the adapters, and sends by them what
        # is for other nodes: S (n - n/N) / n of S (n - 1) / n.
        bandwidth *= (ranks - 1) / (ranks - local) / local
    tau = transfer_time(across, operation, ranks, size, bandwidth)
    outer = tau + ramp_time(across, operation, tau)
    if local < 2:
        return outer
    # Rings through several nodes: a switch inside one cannot add up all of them.
    ring = replace(case.inside, multicast_efficiency=0.0)
    if operation == "all_to_all":
        size *= local / ranks
        ranks = local
    tau = transfer_time(ring, operation, ranks, size, case.inside_bandwidth)
    return max(outer, tau + ramp_time(ring, operation, tau))
