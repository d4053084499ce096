"""From a row to the table [cluster] of a scenario: device, nodes, links.

What a row says of its links is text; the forms that are understood are those of
published collections: ``8x200 Gb/s``, ``800 Gbps per node``, ``400 Gb/s per GPU``.
Where it says nothing, the accelerator's usual machine is taken, and noted.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nestsim.features.validation.columns import RowRefusedError
from nestsim.features.validation.device_names import find_device
from nestsim.features.validation.reading import (
    COUNT,
    PCIE_4,
    RATE,
    JobReading,
    Reading,
    Table,
    Uplink,
    Value,
    is_unstated,
    meaning,
    vocabulary,
)
from nestsim.scenario.hardware.systems import level, server_network
from topologies.accelerators import Accelerator, accelerator_names, load_accelerator

if TYPE_CHECKING:
    from topologies.records import Nic

_GBIT = 1e9 / 8
"""Gigabit per second [byte/s]."""

_PAIR_EFFICIENCY = 0.70
"""Efficiency of rings over links between pairs of devices: 70 of 100 GB/s, chosen for
BLOOM's runs on nodes with four NVLinks between two A100; not part of the refit."""

_NVLINK_3 = 25e9
"""One NVLink 2 or 3, one direction (NVIDIA, A100 whitepaper, 2020) [byte/s]."""

_MIST_HOST: Table = {
    "bandwidth_to_device": "5.7546e9 B/s",
    "bandwidth_to_host": "6.1252e9 B/s",
    "latency": "4e-4 s",
}
"""Mist's table of its L4s in a cloud: 5.7546 GB/s to the device, 6.1252 GB/s to the
host, and 0.4 ms each time (Dazz993/Mist, gpu bandwidths of l4-24gb)."""


def cluster_table(reading: JobReading, accelerator: Value, num_devices: int) -> Table:
    """Return the table [cluster] of a row.

    Parameters
    ----------
    reading
        The row.
    accelerator
        What `accelerator_setting` returned.
    num_devices
        Devices that took part.

    Raises
    ------
    RowRefusedError
        If its links are described in words that are not understood.
    """
    network = _network(reading, device_of(accelerator), num_devices)
    table: Table = {"accelerator": accelerator, "network": network}
    if reading.preset.name == "mist":
        table["host"] = _MIST_HOST
    return table


def single_device_table(accelerator: Value) -> Table:
    """Return the table [cluster] of a row about one device, whatever joins it."""
    inside = device_of(accelerator).interconnect_bandwidth
    levels = [level("node", 1, inside)]
    return {
        "accelerator": accelerator,
        "network": {"kind": "fat-tree", "levels": levels},
    }


def accelerator_setting(reading: Reading) -> Value:
    """Return cluster.accelerator of a row.

    Raises
    ------
    RowRefusedError
        If the catalogue does not have it.
    """
    written, memory = reading.words("accelerator"), reading.row.number("accel_mem_gb")
    if written in accelerator_names():
        return written
    known = meaning(vocabulary().accelerators, written)
    if known is not None:
        return known
    entry, is_open = find_device(written, memory)
    if entry is None:
        raise RowRefusedError(
            "unknown-accelerator",
            f"no {reading.row.words('accelerator') or 'name'} in the catalogue",
        )
    if is_open:
        held = load_accelerator(entry).memory_bytes / 2**30
        reading.assume(f"{reading.row.words('accelerator')} with {held:.0f} GB")
    return entry


def device_of(setting: Value) -> Accelerator:
    """Return the device of the catalogue that has the links of a row's accelerator."""
    if isinstance(setting, str):
        return load_accelerator(setting)
    assert isinstance(setting, Mapping)
    like = load_accelerator(str(setting["like"]))
    return replace(like, name=str(setting["name"]), measured_as=like.constants_name)


def _network(reading: JobReading, device: Accelerator, num_devices: int) -> Table:
    """Return the network of a row: nodes below one switch, non-blocking."""
    size = min(_node_size(reading, device, num_devices), num_devices)
    inside = level("node", size, _node_bandwidth(reading, device))
    if reading.says("intra_node_link", "per pair"):
        inside["efficiency"] = _PAIR_EFFICIENCY
    if size == num_devices:
        return server_network(inside, None, num_devices, device.constants_name)
    tray = reading.row.whole("devices_per_node") or size
    uplink = _uplink(reading, device, tray)
    if uplink.nic == "node" and tray < size:
        # Several hosts make up what the inner links join, each with its own adapter.
        uplink = Uplink("device", uplink.bandwidth / tray)
    return server_network(
        inside, (uplink.nic, uplink.bandwidth), num_devices, device.constants_name
    )


def _node_size(reading: JobReading, device: Accelerator, num_devices: int) -> int:
    """Return the devices that the inner links join."""
    domain = re.search(rf"nvl{COUNT}", reading.words("intra_node_link"))
    if domain is not None:
        # Jobs use whole trays, as many as divide the job: 64 of 72.
        largest = min(int(domain[1]), num_devices)
        size = next(n for n in range(largest, 0, -1) if num_devices % n == 0)
        reading.assume(f"{size} devices in one NVLink domain")
        return size
    if reading.says("intra_node_link", "ici") or reading.says(
        "inter_node_net", r"^ici\b"
    ):
        size = slice_size(reading, device, num_devices)
        reading.assume(f"the ICI torus of {size} devices as a switch")
        return size
    return reading.given("devices_per_node", 8)


def slice_size(reading: JobReading, device: Accelerator, num_devices: int) -> int:
    """Return how many TPUs a torus joins: as noted, or as few pods as hold the job."""
    stated = re.search(rf"{COUNT} slice", reading.words("notes"))
    if stated is not None:
        count = int(stated[1])
    else:
        pod = meaning(vocabulary().pods, device.name)
        assert pod is not None
        count = -(-num_devices // pod)
        reading.assume("one slice" if count == 1 else f"{count} slices of a pod each")
    if num_devices % count:
        raise RowRefusedError(
            "contradiction", f"{count} slices do not share {num_devices} devices"
        )
    return num_devices // count


def _node_bandwidth(reading: JobReading, device: Accelerator) -> float:
    """Return the bandwidth of a device's link inside the node [byte/s]."""
    link, inside = reading.words("intra_node_link"), device.interconnect_bandwidth
    pairs = re.search(rf"{COUNT} per pair", link)
    if pairs is not None:
        # Without switches, a ring has the links between two neighbours.
        return int(pairs[1]) * _NVLINK_3
    if "pcie" in link:
        return min(inside, PCIE_4)
    if is_unstated(link) or meaning(vocabulary().usual_links, link) is None:
        written = "" if is_unstated(link) else f"intra_node_link {link}: "
        reading.assume(
            f"{written}{inside / 1e9:g} GB/s inside the node, as {device.name} has"
        )
    return inside


_UNIT = r"(G(?:B/s|[Bb](?:it)?(?:/s|ps)|bE|b|E)?)(?![A-Za-z])"
"""Pattern of the unit of a rate between nodes: ``Gb/s``, ``Gbps``, ``Gbit/s``, ``G``,
``GbE``; ``GB/s``."""

_PER_DEVICE = re.compile(r"per (gpu|device|chip|accelerator)", re.IGNORECASE)
"""Pattern of a rate that each device has."""


def _uplink(reading: JobReading, device: Accelerator, tray: int) -> Uplink:
    """Return how nodes of ``tray`` devices are joined.

    As many adapters as devices are one for each device.
    """
    # Small letters would make bits of bytes.
    written = reading.row.words("inter_node_net")
    stated = re.search(rf"(?:{COUNT}\s*x\s*){RATE}\s*{_UNIT}", written) or re.search(
        rf"(){RATE}\s*{_UNIT}(.*)", written
    )
    if stated is not None:
        rate = float(stated[2]) * (1e9 if stated[3] in {"GB/s", "GBps"} else _GBIT)
        if stated[1]:
            number = int(stated[1])
            is_each = number == tray
            return Uplink("device", rate) if is_each else Uplink("node", number * rate)
        nic: Nic = "device" if _PER_DEVICE.search(stated[4]) else "node"
        return Uplink(nic, rate)
    usual = meaning(vocabulary().uplinks, device.constants_name)
    assert usual is not None, "the last of the usual uplinks is any device's"
    named = "" if is_unstated(written.lower()) else f"inter_node_net {written}: "
    reading.assume(
        f"{named}{usual.bandwidth / _GBIT:g} Gbit/s per {usual.nic} between nodes"
    )
    return usual
