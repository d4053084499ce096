"""From a row of collective measurements to its predicted time.

What a row says of its links is text. Which interconnect that is, and how fast it is by
its datasheet, follows from the accelerator, the number of nodes and the words of the
column ``link``; what is taken instead of a statement is noted.

How a time was measured changes it. nccl-tests divide a train of launches by its length,
so the host's part is hidden: their times are those of
`estimators.collectives.transports`. Programs in torch wait for each call, which adds
the host's time. Profiles of kernels leave the launch out, but a kernel that starts
early waits for its peers' hosts, so no collective seems shorter than that; where ranks
happen to start together, it is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from estimators.collectives.transports import (
    WIRE_FRACTIONS,
    Transport,
    collective_time,
    find_transport,
    ramp_time,
    transfer_time,
    transports,
)
from nestsim.features.validation.columns import Row, RowRefusedError, refusing
from nestsim.features.validation.reading import (
    COUNT,
    PCIE_4,
    RATE,
    Reading,
    meaning,
    vocabulary,
)
from topologies.accelerators import load_accelerator
from topologies.records import check_num_devices

Method = Literal["tests", "torch", "kernel"]
"""Way in which a time was measured."""

HOST_TIMES: Mapping[Method, float] = MappingProxyType(
    {"tests": 0.0, "torch": 27e-6, "kernel": 0.0}
)
"""Method -> what the host adds [s]; that of torch fitted to ml-engineering's 8 B200."""

ARRIVAL_TIMES: Mapping[str, float] = MappingProxyType({"a100": 45e-6, "h100": 37e-6})
"""Device -> how long a kernel that reduces waits for the last rank's host [s]; fitted
to Vidur's profiles below 1 MB. The spread between hosts, a property of the machine."""

_USUAL_ARRIVAL = 40e-6
"""Wait of a kernel for its peers' hosts where no profile is published [s]."""


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
    """Size of the full tensor [byte]."""

    inside: Transport
    """Links inside a node."""

    inside_bandwidth: float
    """Bandwidth of a device inside of a node, by the datasheet [byte/s]."""

    across: Transport | None
    """Links between nodes; None if there is one node."""

    across_bandwidth: float
    """Bandwidth of all adapters of a node that its ranks use, by the datasheet
    [byte/s]."""

    method: Method
    """How the time was measured."""

    measured: float
    """Measured time [s]."""

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
    time = _time(case) + host_times[case.method]
    if case.method == "kernel" and case.operation != "send_recv":
        return max(time, arrival_times.get(case.device, _USUAL_ARRIVAL))
    return time


def _time(case: CollectiveCase) -> float:
    """Return the time on the device [s]."""
    operation, ranks = case.operation, case.num_ranks
    if case.across is None:
        message = (operation, ranks, case.num_bytes, case.inside_bandwidth)
        return collective_time(case.inside, *message)
    latency = case.across.latency(operation, ranks, case.num_nodes)
    return latency + _bottleneck(case, case.across)


def _bottleneck(case: CollectiveCase, across: Transport) -> float:
    """Return the time of bytes and ramp where it is longest [s]."""
    operation, ranks, size = case.operation, case.num_ranks, case.num_bytes
    bandwidth = case.across_bandwidth
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
    ring = replace(case.inside, multicast_efficiency=0.0, curves=None)
    if operation == "all_to_all":
        ring = case.inside
        size *= local / ranks
        ranks = local
    tau = transfer_time(ring, operation, ranks, size, case.inside_bandwidth)
    return max(outer, tau + ramp_time(ring, operation, tau))


_NVL_DOMAIN = 72
"""Devices that a rack of GB200 or GB300 joins by NVLink."""

_TRAY = 4
"""Devices of a host in such a rack."""

_FABRIC = r"\b(ib|infiniband|efa|roce|rdma|tcp|omni|opa|ethernet|nic|network)"
"""Pattern of words that only descriptions of links between nodes have."""


def read_collective(row: Row) -> CollectiveCase:
    """Turn a row into a case.

    Raises
    ------
    RowRefusedError
        If the row states no time, or its network cannot be known.
    """
    reading = Reading(row)
    _refuse_what_is_no_measurement(reading)
    operation = reading.words("collective").replace("-", "_")
    if operation not in WIRE_FRACTIONS:
        raise RowRefusedError(
            "other-collective", f"collective is {row.words('collective') or 'empty'}"
        )
    ranks, nodes = reading.needed("num_ranks"), row.whole("num_nodes") or 1
    if ranks < 2 or ranks % nodes:
        raise RowRefusedError(
            "contradiction", f"{ranks} ranks do not share {nodes} nodes evenly"
        )
    with refusing("no-such-cluster"):
        check_num_devices("num_ranks", ranks)
    size = row.number("message_bytes")
    if size is None:
        raise RowRefusedError("missing-column", "message_bytes is empty")
    measured, basis = _measured(row, operation, ranks, size)
    return _Links(reading, ranks, nodes).case(operation, size, measured, basis)


def _refuse_what_is_no_measurement(reading: Reading) -> None:
    row = reading.row
    if reading.says("notes", "badly configured"):
        raise RowRefusedError("broken-cluster", row.words("notes"))
    if row.words("time_us"):
        return
    if row.words("bw_efficiency_ratio"):
        raise RowRefusedError(
            "undocumented-ratio", "a bandwidth ratio without the measurement behind it"
        )
    if reading.says("notes", "not nccl busbw|logical"):
        raise RowRefusedError("other-bandwidth", row.words("notes"))


def _measured(row: Row, operation: str, ranks: int, size: float) -> tuple[float, str]:
    """Return the time of a row, or that which its bus bandwidth is defined by [s]."""
    time, bus = row.number("time_us"), row.number("busbw_GBps")
    derived = time is None or "derived from busbw" in row.words("notes").lower()
    if derived and bus and 0.005 / bus > _ROUNDING:
        raise RowRefusedError(
            "imprecise-measurement", f"time follows from a bandwidth printed as {bus}"
        )
    if time is not None:
        return time * 1e-6, "time_us"
    if not bus:
        raise RowRefusedError("missing-measurement", "no time and no bandwidth")
    return WIRE_FRACTIONS[operation](ranks) * size / (bus * 1e9), "busbw_GBps"


_ROUNDING = 0.1
"""Bandwidths printed with two decimals that are worse than this say too little."""


class _Links:
    """The interconnects of a row, as far as its words tell them.

    Parameters
    ----------
    reading
        The row.
    num_ranks, num_nodes
        Of the group.
    """

    def __init__(self, reading: Reading, num_ranks: int, num_nodes: int) -> None:
        self.reading, self.ranks, self.nodes = reading, num_ranks, num_nodes
        written = reading.row.words("accelerator")
        known = meaning(vocabulary().link_families, written.lower())
        if known is None:
            raise RowRefusedError(
                "unknown-network",
                f"links of {written or 'an unnamed accelerator'} not known",
            )
        self.family, self.device = known.family, known.device
        self.is_rack = self.family.startswith("gb")
        if self.is_rack and num_nodes > 1:
            self.nodes = -(-num_ranks // _NVL_DOMAIN)
            while num_ranks % self.nodes:
                self.nodes += 1
            reading.assume(f"{self.local} devices in one domain")

    @property
    def local(self) -> int:
        """Ranks of a node."""
        return self.ranks // self.nodes

    def case(
        self, operation: str, size: float, measured: float, basis: str
    ) -> CollectiveCase:
        """Put the case together."""
        inside, inside_bandwidth = self._inside()
        across, across_bandwidth = self._across() if self.nodes > 1 else (None, 0.0)
        return CollectiveCase(
            operation=operation,
            device=self.family,
            num_ranks=self.ranks,
            num_nodes=self.nodes,
            num_bytes=size,
            inside=inside,
            inside_bandwidth=inside_bandwidth,
            across=across,
            across_bandwidth=across_bandwidth,
            method=_method(self.reading),
            measured=measured,
            basis=basis,
            assumed=tuple(self.reading.assumed),
        )

    def _inside(self) -> tuple[Transport, float]:
        reading = self.reading
        bridged = reading.says("accelerator", "pairwise nvlink")
        if reading.says("link", "pcie") or (bridged and self.local > 2):
            return transports()["pcie-peer"], PCIE_4
        transport = find_transport(self.family, inside_node=True)
        if bridged:
            transport = transports()["nvlink-pair"]
        if transport.links_by_size and reading.row.whole("devices_per_node") == 4:
            # Four devices with all their links among themselves are no cube mesh.
            transport = replace(transport, links_by_size=())
        if reading.says("notes", r"\bring\b"):
            transport = replace(transport, multicast_efficiency=0.0, curves=None)
        return transport, load_accelerator(self.device).interconnect_bandwidth

    def _across(self) -> tuple[Transport, float]:
        reading, written = self.reading, self.reading.row.words("link")
        stated = re.search(
            rf"(?:{COUNT}\s*x\s*)?{RATE}\s*(GB|Gb|gb|Gbit)/?p?s?(.*)", written
        )
        adapters = vocabulary().adapters
        is_unsaid = stated is None and not reading.says("link", _FABRIC)
        if is_unsaid and self.family == "a100":
            reading.assume("adapters without access to device memory")
            usual = meaning(adapters, "nic-staged a100")
            assert usual is not None
            return transports()["nic-staged"], min(self.local, 4) * usual
        name = meaning(vocabulary().transports, reading.words("link"))
        assert name is not None
        transport = transports()[name]
        if any(reading.says(of, r"(?<!nvlink )\bsharp\b") for of in ("link", "notes")):
            transport = replace(transport, adds_in_switches=True)
        if stated is not None:
            unit = 1e9 if stated[3] == "GB" else 1e9 / 8
            bandwidth = int(stated[1] or 1) * float(stated[2]) * unit
            if not bandwidth:
                raise RowRefusedError("unknown-network", f"link is {written}")
            return transport, bandwidth * self._hosts(stated[4].lower())
        usual = meaning(adapters, f"{name} {self.family}")
        if usual is None:
            raise RowRefusedError(
                "unknown-network",
                f"link says {written or 'nothing'}, and there is no usual adapter of "
                f"{self.family}",
            )
        reading.assume(f"{self.local * usual / 1e9:g} GB/s out of a node")
        return transport, self.local * usual

    def _hosts(self, words: str) -> float:
        """Return how many times a node has the adapters that the link tells of.

        A rack that NVLink joins has those of each of its trays.
        """
        if re.search(r"\bper (gpu|device)", words):
            return self.local
        if not self.is_rack or re.search(r"\bper (rack|domain)", words):
            return 1.0
        tray = self.reading.row.whole("devices_per_node") or _TRAY
        if re.search(r"\bper tray", words):
            tray = _TRAY
        return self.local / tray if tray < self.local else 1.0


def _method(reading: Reading) -> Method:
    if reading.says("notes", "kernel time") or reading.says("software", "profiler"):
        return "kernel"
    is_torch = reading.says("software", "torch|all_reduce_bench")
    return "torch" if is_torch else "tests"
