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
    find_transport,
    ramp_time,
    transfer_time,
    transports,
)
from nestsim.features.validation.columns import Row, RowRefusedError, refusing
from nestsim.features.validation.reading import COUNT, RATE
from topologies.accelerators import load_accelerator
from topologies.specs import check_num_devices

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


_DEVICES = (
    ("gb300", "gb200"),
    ("gb200", "gb200"),
    ("b300", "b200"),
    ("b200", "b200"),
    ("h200", "h200"),
    ("h100", "h100-sxm"),
    ("h800", "h100-sxm"),
    ("a100", "a100-80gb"),
    ("v100", "v100"),
    ("l4", "l4"),
    ("a10g", "a10g"),
)
"""Words in a description -> the accelerator of the catalogue that has those links."""

_ADAPTERS: Mapping[str, float] = MappingProxyType(
    {"v100": 6.25e9, "a100": 25e9, "h100": 50e9, "h200": 50e9, "b200": 50e9}
    | {"gb200": 50e9, "gb300": 100e9, "b300": 100e9}
)
"""Usual adapter of a device between nodes [byte/s]: DGX-1 (4 x 100 Gbit/s for 8), DGX
A100 (HDR), H100, H200, B200, GB200 (NDR), B300 and GB300 (XDR) datasheets."""

_NVL_DOMAIN = 72
"""Devices that a rack of GB200 or GB300 joins by NVLink."""

_TRAY = 4
"""Devices of a host in such a rack."""

_TRANSPORTS: Mapping[str, str] = MappingProxyType(
    {"efa": "efa", "omni": "omni-path"}
    | {"tcpxo": "gpudirect-tcpxo", "fastrak": "gpudirect-tcpxo"}
    | {"a3 mega": "gpudirect-tcpxo", "a3-mega": "gpudirect-tcpxo"}
    | {"tcpx": "gpudirect-tcpx", "a3 high": "gpudirect-tcpx"}
    | {"a3-high": "gpudirect-tcpx"}
)
"""Words of a link -> the transport between nodes; the first that is found counts."""

_TRANSPORT_ADAPTERS: Mapping[str, float] = MappingProxyType(
    {"gpudirect-tcpx": 12.5e9, "gpudirect-tcpxo": 25e9}
)
"""Transport -> its machine's adapter of a device [byte/s]: A3 High has 4 of 200
Gbit/s for 8 devices, A3 Mega 8."""

_PCIE_4 = 31.5e9
"""PCIe 4.0 x16, one direction: 16 GT/s x 16 lanes x 128/130 [byte/s]."""

_FABRIC_WORDS = (
    "ib",
    "infiniband",
    "efa",
    "roce",
    "rdma",
    "tcp",
    "omni",
    "opa",
    "ethernet",
    "nic",
    "network",
)
"""Words that only descriptions of links between nodes have."""


def read_collective(row: Row) -> CollectiveCase:
    """Turn a row into a case.

    Raises
    ------
    RowRefusedError
        If the row states no time, or its network cannot be known.
    """
    _refuse_what_is_no_measurement(row)
    operation = row.words("collective").lower().replace("-", "_")
    if operation not in WIRE_FRACTIONS:
        raise RowRefusedError(
            "other-collective", f"collective is {row.words('collective') or 'empty'}"
        )
    ranks, nodes = _needed(row, "num_ranks"), row.whole("num_nodes") or 1
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
    return _Links(row, ranks, nodes).case(operation, size, measured, basis)


def _refuse_what_is_no_measurement(row: Row) -> None:
    notes = row.words("notes").lower()
    if "badly configured" in notes:
        raise RowRefusedError("broken-cluster", row.words("notes"))
    if row.words("time_us"):
        return
    if row.words("bw_efficiency_ratio"):
        raise RowRefusedError(
            "undocumented-ratio", "a bandwidth ratio without the measurement behind it"
        )
    if "not nccl busbw" in notes or "logical" in notes:
        raise RowRefusedError("other-bandwidth", row.words("notes"))


def _needed(row: Row, column: str) -> int:
    value = row.whole(column)
    if value is None:
        raise RowRefusedError("missing-column", f"{column} is empty")
    return value


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
    row
        As it is written.
    num_ranks, num_nodes
        Of the group.
    """

    def __init__(self, row: Row, num_ranks: int, num_nodes: int) -> None:
        self.row, self.ranks, self.nodes = row, num_ranks, num_nodes
        self.link = row.words("link").lower()
        self.assumed: list[str] = []
        self.device = _device(row)
        if self.device.startswith("gb") and num_nodes > 1:
            self.nodes = -(-num_ranks // _NVL_DOMAIN)
            while num_ranks % self.nodes:
                self.nodes += 1
            self.assumed.append(f"{num_ranks // self.nodes} devices in one domain")

    def case(
        self, operation: str, size: float, measured: float, basis: str
    ) -> CollectiveCase:
        """Put the case together."""
        inside, inside_bandwidth = self._inside()
        across, across_bandwidth = self._across() if self.nodes > 1 else (None, 0.0)
        return CollectiveCase(
            operation=operation,
            device=self.device,
            num_ranks=self.ranks,
            num_nodes=self.nodes,
            num_bytes=size,
            inside=inside,
            inside_bandwidth=inside_bandwidth,
            across=across,
            across_bandwidth=across_bandwidth,
            method=_method(self.row),
            measured=measured,
            basis=basis,
            assumed=tuple(self.assumed),
        )

    def _inside(self) -> tuple[Transport, float]:
        local = self.ranks // self.nodes
        written = self.row.words("accelerator").lower()
        bridged = "pairwise nvlink" in written
        if "pcie" in self.link or (bridged and local > 2):
            return transports()["pcie-peer"], _PCIE_4
        transport = find_transport(self.device, inside_node=True)
        if bridged:
            transport = transports()["nvlink-pair"]
        if transport.links_by_size and self.row.whole("devices_per_node") == 4:
            # Four devices with all their links among themselves are no cube mesh.
            transport = replace(transport, links_by_size=())
        if re.search(r"\bring\b", self.row.words("notes").lower()):
            transport = replace(transport, multicast_efficiency=0.0)
        catalogue = dict(_DEVICES)[self.device]
        return transport, load_accelerator(catalogue).interconnect_bandwidth

    def _across(self) -> tuple[Transport, float]:
        local = self.ranks // self.nodes
        stated = re.search(rf"\b({'|'.join(_FABRIC_WORDS)})", self.link)
        several = re.search(
            rf"(?:{COUNT}\s*x\s*)?{RATE}\s*(GB|Gb|gb|Gbit)/?p?s?(.*)",
            self.row.words("link"),
        )
        if stated is None and several is None and self.device == "a100":
            self.assumed.append("adapters without access to device memory")
            return transports()["nic-staged"], min(local, 4) * _ADAPTERS["a100"]
        words = (word for word in _TRANSPORTS if word in self.link)
        name = _TRANSPORTS.get(next(words, ""), "default-fabric")
        transport = transports()[name]
        text = " ".join((self.link, self.row.words("notes").lower()))
        if re.search(r"(?<!nvlink )\bsharp\b", text):
            transport = replace(transport, adds_in_switches=True)
        usual = _TRANSPORT_ADAPTERS.get(name, _ADAPTERS.get(self.device))
        if several is None and usual is None:
            raise RowRefusedError(
                "unknown-network",
                f"link says {self.row.words('link') or 'nothing'}, and there is no "
                f"usual adapter of {self.device}",
            )
        if several is None:
            assert usual is not None
            bandwidth = local * usual
            self.assumed.append(f"{bandwidth / 1e9:g} GB/s out of a node")
            return transport, bandwidth
        unit = 1e9 if several[3] == "GB" else 1e9 / 8
        bandwidth = int(several[1] or 1) * float(several[2]) * unit
        if not bandwidth:
            raise RowRefusedError(
                "unknown-network", f"link is {self.row.words('link')}"
            )
        return transport, bandwidth * self._hosts(several[4].lower())

    def _hosts(self, words: str) -> float:
        """Return how many times a node has the adapters that the link tells of.

        A rack that NVLink joins has those of each of its trays.
        """
        local = self.ranks // self.nodes
        if re.search(r"\bper (gpu|device)", words):
            return local
        if not self.device.startswith("gb") or re.search(r"\bper (rack|domain)", words):
            return 1.0
        tray = self.row.whole("devices_per_node") or _TRAY
        if re.search(r"\bper tray", words):
            tray = _TRAY
        return local / tray if tray < local else 1.0


def _device(row: Row) -> str:
    written = row.words("accelerator").lower()
    for word, _ in _DEVICES:
        if re.search(rf"\b{word}\b", written):
            return word
    raise RowRefusedError(
        "unknown-network",
        f"links of {row.words('accelerator') or 'an unnamed accelerator'} not known",
    )


def _method(row: Row) -> Method:
    software = row.words("software").lower()
    if "kernel time" in row.words("notes").lower() or "profiler" in software:
        return "kernel"
    if "torch" in software or "all_reduce_bench" in software:
        return "torch"
    return "tests"
