"""From a row to the cluster it was measured on: device, nodes, links.

What a row says of its links is text; the forms that are understood are those of
published collections: ``8x200 Gb/s``, ``800 Gbps per node``, ``400 Gb/s per GPU``.
Where it says nothing, the accelerator's usual machine is taken, and noted.
"""

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from estimators.collectives.transports import find_transport
from nestsim.features.validation.rows.columns import (
    COUNT,
    RATE,
    Reading,
    RowRefusedError,
    is_unstated,
)
from topologies.accelerators import Accelerator, accelerator_names, load_accelerator
from topologies.specs import FatTreeSpec, LevelSpec, Nic

NODE_LATENCY = 0.5e-6
"""Latency of a link inside a node; an assumption of the usual order [s]."""

FABRIC_LATENCY = 1e-6
"""Latency of a link out of a node; an assumption of the usual order [s]."""

_GBIT = 1e9 / 8
"""Gigabit per second [byte/s]."""

_NAMES = (
    (r"a100.{0,12}40 ?gb", "a100-40gb"),
    (r"a100.{0,12}80 ?gb", "a100-80gb"),
    (r"a800", "a800"),
    (r"h100-96gb-hbm2e", "h100-96gb-hbm2e"),
    (r"h100\b(?!.*(pcie|nvl\b|94 ?gb|96 ?gb))", "h100-sxm"),
    (r"h800\b(?!.*pcie)", "h800"),
    (r"h200\b(?!.*nvl\b)", "h200"),
    (r"gb200", "gb200"),
    (r"gb300", "gb300"),
    (r"b200", "b200"),
    (r"b300", "b300"),
    (r"v100.{0,12}16 ?gb", "v100-16gb"),
    (r"v100.{0,12}32 ?gb", "v100"),
    (r"l4\b", "l4"),
    (r"a10g", "a10g"),
    (r"tpu ?v3", "tpu-v3"),
    (r"tpu ?v4", "tpu-v4"),
    (r"tpu ?v5 ?(e|lite)", "tpu-v5e"),
    (r"tpu ?v5 ?p", "tpu-v5p"),
    (r"tpu ?v6 ?e|trillium", "tpu-v6e"),
)
"""How descriptions begin, as patterns without maker and hyphens behind TPU -> name in
the catalogue or among the variants. Of what is left out, boards with PCIe and Grace
Hopper have other rates."""


class Uplink(NamedTuple):
    """How a node is joined to the others."""

    nic: Nic
    """Whether the devices of a node share the bandwidth or have it each."""

    bandwidth: float
    """Bandwidth to other nodes, of a device or of a whole node [byte/s]."""


USUAL_UPLINKS: Mapping[str, Uplink] = MappingProxyType(
    {
        # DGX-1/2: four EDR adapters of 100 Gbit/s a node.
        "v100": Uplink("node", 400 * _GBIT),
        # DGX A100: eight HDR adapters of 200 Gbit/s, one for each device.
        "a100": Uplink("device", 200 * _GBIT),
        # DGX H100, H200 and B200: eight NDR adapters of 400 Gbit/s.
        "h100": Uplink("device", 400 * _GBIT),
        "h200": Uplink("device", 400 * _GBIT),
        "b200": Uplink("device", 400 * _GBIT),
        "gb200": Uplink("device", 400 * _GBIT),
        # DGX B300 and GB300 NVL72: an XDR adapter of 800 Gbit/s for each device.
        "b300": Uplink("device", 800 * _GBIT),
        "gb300": Uplink("device", 800 * _GBIT),
        # Cloud instances with one adapter of 100 Gbit/s.
        "l4": Uplink("node", 100 * _GBIT),
        "a10g": Uplink("node", 100 * _GBIT),
        # Data-centre network between slices: one adapter of 100 Gbit/s a host.
        "tpu": Uplink("node", 100 * _GBIT),
    }
)
"""Start of a name in the catalogue -> what its usual machine has."""

_PAIR_EFFICIENCY = 0.70
"""Efficiency of rings over links between pairs of devices: 70 of 100 GB/s, chosen for
BLOOM's runs on nodes with four NVLinks between two A100; not part of the refit."""

_PCIE_4 = 31.5e9
"""PCIe 4.0 x16, one direction: 16 GT/s x 16 lanes x 128/130 [byte/s]."""

_NVLINK_3 = 25e9
"""One NVLink 2 or 3, one direction (NVIDIA, A100 whitepaper, 2020) [byte/s]."""


def read_accelerator(reading: Reading) -> Accelerator:
    """Return the device of a row.

    Raises
    ------
    RowRefusedError
        If the catalogue does not have it.
    """
    written = reading.words("accelerator")
    if written in accelerator_names():
        return load_accelerator(written)
    if written == "a100":
        large = reading.row.number("accel_mem_gb") != 40
        if not reading.row.words("accel_mem_gb"):
            reading.assume("A100 with 80 GB")
        return load_accelerator("a100-80gb" if large else "a100-40gb")
    plain = re.sub(r"^(nvidia|google( cloud)?) ", "", written).replace("tpu-", "tpu ")
    for start, name in _NAMES:
        if re.match(start, plain):
            return _variant(name)
    raise RowRefusedError(
        "unknown-accelerator",
        f"no {reading.row.words('accelerator') or 'name'} in the catalogue",
    )


def _variant(name: str) -> Accelerator:
    """Return a device of the catalogue, or one that differs from it in few values."""
    if name != "h100-96gb-hbm2e":
        return load_accelerator(name)
    # torchtitan's benchmarks: H100 with 96 GB of HBM2e at 2.4 TB/s, 500 W.
    return dataclasses.replace(
        load_accelerator("h100-sxm"),
        name=name.replace("h100", "h100-sxm"),
        memory_bytes=96 * 2.0**30,
        memory_bandwidth=2.4e12,
    )


def read_network(
    reading: Reading, accelerator: Accelerator, num_devices: int
) -> FatTreeSpec:
    """Return the network of a row: nodes below one switch, non-blocking.

    Raises
    ------
    RowRefusedError
        If its links are described in words that are not understood.
    """
    size = min(_node_size(reading, num_devices), num_devices)
    inside = LevelSpec(
        name="node",
        fan_out=size,
        bandwidth=_node_bandwidth(reading, accelerator),
        efficiency=_node_efficiency(reading, accelerator),
        latency=NODE_LATENCY,
    )
    if size == num_devices:
        return FatTreeSpec(levels=(inside,))
    tray = reading.row.whole("devices_per_node") or size
    uplink = _uplink(reading, accelerator, tray)
    if uplink.nic == "node" and tray < size:
        # Several hosts make up what the inner links join, each with its own adapter.
        uplink = Uplink("device", uplink.bandwidth / tray)
    fabric = LevelSpec(
        name="fabric",
        fan_out=-(-num_devices // size),
        bandwidth=uplink.bandwidth,
        efficiency=find_transport(
            accelerator.constants_name, inside_node=False
        ).efficiency,
        latency=FABRIC_LATENCY,
    )
    return FatTreeSpec(levels=(inside, fabric), nic=uplink.nic)


def _node_size(reading: Reading, num_devices: int) -> int:
    """Return the devices that the inner links join."""
    link = reading.words("intra_node_link")
    domain = re.search(rf"nvl{COUNT}", link)
    if domain is not None:
        # Jobs use whole trays, as many as divide the job: 64 of 72.
        largest = min(int(domain[1]), num_devices)
        size = next(n for n in range(largest, 0, -1) if num_devices % n == 0)
        reading.assume(f"{size} devices in one NVLink domain")
        return size
    if "ici" in link or re.match(r"ici\b", reading.words("inter_node_net")):
        size = slice_size(reading, num_devices)
        reading.assume(f"the ICI torus of {size} devices as a switch")
        return size
    return reading.given("devices_per_node", 8)


def slice_size(reading: Reading, num_devices: int) -> int:
    """Return how many TPUs a torus joins: as noted, or as few pods as hold the job."""
    stated = re.search(rf"{COUNT} slice", reading.words("notes"))
    if stated is not None:
        count = int(stated[1])
    else:
        name = read_accelerator(reading).name
        pod = next(size for start, size in _PODS.items() if name.startswith(start))
        count = -(-num_devices // pod)
        reading.assume("one slice" if count == 1 else f"{count} slices of a pod each")
    if num_devices % count:
        raise RowRefusedError(
            "contradiction", f"{count} slices do not share {num_devices} devices"
        )
    return num_devices // count


_PODS: Mapping[str, int] = MappingProxyType(
    {
        "tpu-v3": 1024,
        "tpu-v4": 4096,
        "tpu-v5e": 256,
        "tpu-v5p": 8960,
        "tpu-v6e": 256,
        "": 10_000_000,
    }
)
"""Start of a name in the catalogue -> chips that one torus joins at most: Google Cloud
documentation, "TPU v5p" and its sisters, 2025; no limit is known of others."""


def _node_efficiency(reading: Reading, accelerator: Accelerator) -> float:
    """Return the part of the inner links' bandwidth that collectives reach."""
    if "per pair" in reading.words("intra_node_link"):
        return _PAIR_EFFICIENCY
    return find_transport(accelerator.constants_name, inside_node=True).efficiency


def _node_bandwidth(reading: Reading, accelerator: Accelerator) -> float:
    """Return the bandwidth of a device's link inside the node [byte/s]."""
    link = reading.words("intra_node_link")
    inside = accelerator.interconnect_bandwidth
    if not link or is_unstated(link):
        reading.assume(
            f"{inside / 1e9:g} GB/s inside the node, as {accelerator.name} has"
        )
        return inside
    pairs = re.search(rf"{COUNT} per pair", link)
    if pairs is not None:
        # Without switches, a ring has the links between two neighbours.
        return int(pairs[1]) * _NVLINK_3
    if "pcie" in link:
        return min(inside, _PCIE_4)
    if "nvlink" in link or "nvl" in link or "ici" in link:
        return inside
    raise RowRefusedError(
        "unknown-network", f"intra_node_link: {reading.row.words('intra_node_link')}"
    )


_UNIT = r"(G(?:B/s|[Bb](?:it)?(?:/s|ps)|bE|b|E)?)(?![A-Za-z])"
"""Pattern of the unit of a rate between nodes: ``Gb/s``, ``Gbps``, ``Gbit/s``, ``G``,
``GbE``; ``GB/s``."""

_PER_DEVICE = re.compile(r"per (gpu|device|chip|accelerator)", re.IGNORECASE)
"""Pattern of a rate that each device has."""


def _unit(written: str) -> float:
    """Return a unit of bandwidth [byte/s]."""
    return 1e9 if written in {"GB/s", "GBps"} else _GBIT


def _uplink(reading: Reading, accelerator: Accelerator, tray: int) -> Uplink:
    """Return how nodes of ``tray`` devices are joined.

    As many adapters as devices are one for each device.
    """
    # Small letters would make bits of bytes.
    written = reading.row.words("inter_node_net")
    several = re.search(rf"{COUNT}\s*x\s*{RATE}\s*{_UNIT}", written)
    if several is not None:
        number, rate = int(several[1]), float(several[2]) * _unit(several[3])
        if number == tray:
            return Uplink("device", rate)
        return Uplink("node", number * rate)
    match = re.search(rf"{RATE}\s*{_UNIT}(.*)", written)
    if match is not None:
        nic: Nic = "device" if _PER_DEVICE.search(match[3]) else "node"
        return Uplink(nic, float(match[1]) * _unit(match[2]))
    known_as = accelerator.constants_name
    matches = [name for name in USUAL_UPLINKS if known_as.startswith(name)]
    if not matches:
        raise RowRefusedError(
            "unknown-network",
            f"inter_node_net says {written or 'nothing'}, and there is no usual "
            f"machine with {accelerator.name}",
        )
    usual = USUAL_UPLINKS[max(matches, key=len)]
    reading.assume(f"{usual.bandwidth / _GBIT:g} Gbit/s per {usual.nic} between nodes")
    return usual
