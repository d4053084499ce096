"""Machines that people buy and rent, of any number of devices.

A system is a table of ``systems.toml``: servers of so many devices and what joins them,
or the slices of a torus. With a number of devices it becomes what a scenario says of
its devices and its network, so that one word stands for all of it. What the scenario
says beside it counts.

Servers are taken to be joined by a fabric that does not block: one switch below which
all of them are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli

from estimators.collectives.transports import Transport, find_transport
from nestsim.scenario.errors import checked, nearest
from topologies.accelerators import load_accelerator
from topologies.errors import InputError, located
from topologies.records import Nic
from topologies.settings import Bandwidth, Count, Spec, Text

NODE_LATENCY = 0.5e-6
"""Latency of a link inside a node; an assumption of the usual order [s]."""

FABRIC_LATENCY = 1e-6
"""Latency of a link out of a node; an assumption of the usual order [s]."""

Table = dict[str, Any]
"""Table of a scenario, as TOML has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines(Spec):
    """Servers joined by a fabric, a single machine, or slices of a torus."""

    words: Text
    """What it is, in one line."""

    accelerator: Text
    """Name of its devices in the catalogue."""

    source: Text
    """Where the numbers were published."""

    framework: Text = "megatron-core"
    """Preset of [software] where nothing names one."""

    devices: Count = 1
    """Most devices of a server: those that its inner links join."""

    tray: Count = 1
    """Devices that come together: jobs take whole trays of a server."""

    link: Bandwidth | None = None
    """Bandwidth of a device's link inside the server, per direction; None for that of
    the device's data sheet [byte/s]."""

    adapter: Bandwidth | None = None
    """Bandwidth of each device to other servers, per direction [byte/s]."""

    node_adapter: Bandwidth | None = None
    """Bandwidth of a whole server to others, which its devices share [byte/s]."""

    node_transport: Text | None = None
    """What collectives reach inside a server; None for the device's usual one."""

    transport: Text | None = None
    """What collectives reach between servers; None for the device's usual one."""

    slices: tuple[tuple[Count, ...], ...] = ()
    """Shapes of a torus that can be had, by rising number of devices."""

    wraps_from: Count = 1
    """Length from which a dimension of a torus wraps around."""

    wraps_whole: bool = False
    """Whether all dimensions wrap around, or none."""

    def network(self, num_devices: int) -> Table:
        """Return the table [cluster.network] of so many devices.

        Raises
        ------
        InputError
            If there is no such system of that many devices.
        """
        if self.slices:
            return self._torus(num_devices)
        size = self._server_size(num_devices)
        device = load_accelerator(self.accelerator)
        inside = level("node", size, self.link or device.interconnect_bandwidth)
        if self.node_transport is not None:
            inside["transport"] = self.node_transport
        uplink: tuple[Nic, float] | None = None
        if self.adapter is not None:
            uplink = "device", self.adapter
        elif self.node_adapter is not None:
            uplink = "node", self.node_adapter
        return server_network(
            inside, uplink, num_devices, device.constants_name, self.transport
        )

    def _server_size(self, num_devices: int) -> int:
        """Return how many devices of each server a job takes."""
        joined = self.adapter is not None or self.node_adapter is not None
        most = self.devices // self.tray * self.tray
        if num_devices <= most:
            return num_devices
        sizes = range(most, 0, -self.tray)
        size = next((size for size in sizes if num_devices % size == 0), 0)
        if size and joined:
            return size
        expected = f"1 to {most}"
        if joined:
            expected += f", or a multiple of {self.tray}"
        raise InputError(
            "the system has no such number of devices",
            got=num_devices,
            expected=expected,
        )

    def _torus(self, num_devices: int) -> Table:
        """Return the slice of so many devices."""
        counts = {math.prod(shape): shape for shape in self.slices}
        if num_devices not in counts:
            raise InputError(
                "the system has no slice of so many devices",
                got=num_devices,
                expected="one of " + ", ".join(map(str, counts)),
            )
        shape = [length for length in counts[num_devices] if length > 1] or [1]
        device = load_accelerator(self.accelerator)
        wraps = [length >= self.wraps_from for length in shape]
        if self.wraps_whole:
            full = len(shape) == len(self.slices[-1]) and all(wraps)
            wraps = [full] * len(shape)
        links = 2 * len(self.slices[-1])
        table: Table = {
            "kind": "torus" if any(wraps) else "mesh",
            "dimensions": shape,
            "bandwidth": f"{device.interconnect_bandwidth / links!r} B/s",
            "latency": f"{FABRIC_LATENCY!r} s",
            "efficiency": find_transport(self.accelerator, inside_node=True).efficiency,
        }
        if any(wraps) and not all(wraps):
            table["wrap"] = wraps
        return table


@cache
def systems() -> Mapping[str, Machines]:
    """Return all of ``systems.toml`` by name."""
    text = files("nestsim.scenario.hardware").joinpath("systems.toml")
    tables = tomli.loads(text.read_text(encoding="utf-8"))
    for table in tables.values():
        table["slices"] = tuple(map(tuple, table.get("slices", ())))
    return MappingProxyType(
        {name: checked(Machines, table) for name, table in tables.items()}
    )


def names_system(word: object) -> bool:
    """Return whether a word is the name of a system, and of no file here."""
    return str(word) in systems() and not Path(str(word)).exists()


def load_system(name: str) -> Machines:
    """Return a system.

    Raises
    ------
    InputError
        If there is none of that name; the nearest spelling is suggested.
    """
    known = systems()
    if name not in known:
        raise InputError(
            "unknown system",
            got=name,
            expected="a name that `nestsim systems` lists",
            hint=nearest(name, list(known)),
        )
    return known[name]


def usual_system(
    accelerator: str, num_devices: int, per_server: int | None = None
) -> str | None:
    """Return the first system of so many devices, None if there is none.

    Parameters
    ----------
    accelerator
        Name of the devices in the catalogue.
    num_devices
        Of the job.
    per_server
        Devices of a server; None for as many as it has.
    """
    for name, system in systems().items():
        if system.accelerator != accelerator:
            continue
        try:
            system.network(num_devices)
        except InputError:
            continue
        taken = min(num_devices, system.devices)
        if system.slices or per_server in {None, taken}:
            return name
    return None


def with_system(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table [cluster] in which nothing is left to its system.

    Settings that the table has itself count, those of [cluster.network] one by one.

    Raises
    ------
    InputError
        If there is no such system of that many devices.
    """
    name = table.get("system")
    if not isinstance(name, str):
        return dict(table)
    with located("cluster.system"):
        system = load_system(name)
    filled = {"accelerator": system.accelerator, **table}
    count, network = table.get("num_devices"), table.get("network", {})
    if not isinstance(network, Mapping) or "kind" in network:
        return filled
    if count is None:
        raise InputError(
            "setting is missing",
            where="cluster.num_devices",
            expected=f'a number of devices beside system = "{name}"',
        )
    if not isinstance(count, int) or count < 1:
        return filled  # The table itself is refused for it.
    with located("cluster.num_devices"):
        usual = system.network(count)
    return filled | {"network": {**usual, **network}}


def level(
    name: str, fan_out: int, bandwidth: float, latency: float = NODE_LATENCY
) -> Table:
    """Return a level of a fat-tree; bandwidth in byte/s, latency in s."""
    return {
        "name": name,
        "fan_out": fan_out,
        "bandwidth": f"{bandwidth!r} B/s",
        "latency": f"{latency!r} s",
    }


def server_network(
    inside: Table,
    uplink: tuple[Nic, float] | None,
    num_devices: int,
    accelerator: str,
    transport: str | None = None,
) -> Table:
    """Return servers below one switch, each with what its inner links are.

    Parameters
    ----------
    inside
        Level of a server. Without an efficiency or a transport it reaches what the
        accelerator's usual server does.
    uplink
        Who has a link out of a server, and its bandwidth [byte/s]; None if there is one
        server.
    num_devices
        Of all servers, which are full.
    accelerator
        Name by which what collectives reach is looked up.
    transport
        Name of what collectives reach between servers; None for the usual one.
    """
    usual = find_transport(accelerator, inside_node=True)
    if "transport" not in inside:
        inside = {"efficiency": usual.efficiency, **inside}
    size = int(inside["fan_out"])
    if size == num_devices:
        return {"kind": "fat-tree", "levels": node_levels(size, inside, usual)}
    assert uplink is not None, "more than one server"
    nic, bandwidth = uplink
    fabric = level("fabric", -(-num_devices // size), bandwidth, FABRIC_LATENCY)
    if transport is not None:
        fabric["transport"] = transport
    else:
        reached = find_transport(accelerator, inside_node=False)
        fabric["efficiency"] = reached.efficiency
    return {"kind": "fat-tree", "nic": nic, "levels": [inside, fabric]}


def node_levels(size: int, inside: Table, usual: Transport) -> list[Table]:
    """Return the levels of a node: a second one where not all devices share a switch.

    Nodes that a fabric joins are taken to have one: adapters, too, stand below their
    switches.
    """
    count, rest = divmod(size, usual.devices_per_switch or 1)
    if not usual.devices_per_switch or rest or count == 1:
        return [inside]
    share = usual.links_by_size[-1] * usual.efficiency
    below = {**inside, "fan_out": usual.devices_per_switch, "transport": usual.name}
    above = {**below, "name": "sockets", "fan_out": count, "efficiency": share}
    return [below, above]
