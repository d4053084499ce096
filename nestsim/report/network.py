"""What a network is made of, and what of it is slow or gone, as text and as JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.report.json import plain_values
from nestsim.report.tables import add_row, facts, new_table, print_line, print_section
from nestsim.report.wording import number, percent, plural
from planner.step.plan import to_ranges
from topologies.accelerators import Accelerator
from topologies.degrade import (
    SlowDevice,
    drawn_devices,
    select_links,
    select_switches,
)
from topologies.network import Level, Network, Tier
from topologies.units import format_bandwidth, format_duration, format_rate, format_size

if TYPE_CHECKING:
    from nestsim.scenario.hardware.accelerator import DeviceGroup
    from topologies.degrade import Degradation, SlowFraction


def print_topology(
    network: Network,
    accelerator: Accelerator | None,
    console: Console,
    groups: "Sequence[DeviceGroup]" = (),
) -> None:
    """Print what a network is made of: devices, tiers, speeds, bisection bandwidth.

    Parameters
    ----------
    network, accelerator, console
        What is printed, and where; no device if it is None.
    groups
        Devices of several accelerators, in its place.
    """
    num_switches = len(network.vertex_names) - network.num_devices
    counts = (
        plural(network.num_devices, "device"),
        plural(num_switches, "switch"),
        plural(len(network.links), "directed link"),
    )
    print_line(console, Text(network.kind, style="bold"), ", ".join(counts))
    bisection = network.bisection_bandwidth()
    per_device = format_bandwidth(2 * bisection / network.num_devices)
    words = f"{format_bandwidth(bisection)} one way, {per_device} for each device"
    console.print(Text(f"Bisection bandwidth {words} of a half"), highlight=False)
    if network.adds_in_switches:
        words = "Switches outside nodes add up all-reduces (SHARP)"
        console.print(Text(words), highlight=False)
    if network.rules is not None and network.rules.summed_weight > 0.0:
        words = "Switches inside nodes add up all-reduces (NVLS)"
        console.print(Text(words), highlight=False)
    if groups:
        _print_groups(groups, console)
    elif accelerator is not None:
        print_section(console, "Device", facts(_accelerator_facts(accelerator)))
    print_section(console, "Tiers, from the inside out", tiers_table(network))
    if has_ideal_trunks(network):
        console.print(Text(f"In all tiers {IDEAL_TRUNKS}"), highlight=False)
    print_section(
        console, "What two devices have between them", _levels(network.levels)
    )


def _print_groups(groups: "Sequence[DeviceGroup]", console: Console) -> None:
    """Print each accelerator once, with the numbers of its devices."""
    sizes = [group.num_devices for group in groups]
    accelerators = [group.accelerator for group in groups]
    of_group = [accelerators.index(accelerator) for accelerator in accelerators]
    of_device = np.repeat(of_group, sizes)
    for which in dict.fromkeys(of_group):
        devices = np.flatnonzero(of_device == which).tolist()
        title = "Devices " + ", ".join(to_ranges(devices))
        print_section(console, title, facts(_accelerator_facts(accelerators[which])))


def print_assumed(assumed: Sequence[str], console: Console) -> None:
    """Print what another program's file does not say of the network, if anything."""
    if not assumed:
        return
    console.print()
    console.print(Text("Assumed of the file", style="bold"))
    for sentence in assumed:
        console.print(Text(f"  {sentence}"), highlight=False)


def _accelerator_facts(accelerator: Accelerator) -> dict[str, str]:
    rates = ", ".join(
        f"{name} {format_rate(rate)}" for name, rate in accelerator.peak_flops.items()
    )
    return {
        "name": f"{accelerator.name} ({accelerator.vendor})",
        "peak rate": rates,
        "memory": f"{format_size(accelerator.memory_bytes)} at "
        f"{format_bandwidth(accelerator.memory_bandwidth)}",
        "scale-up network": f"{format_bandwidth(accelerator.interconnect_bandwidth)} "
        "per direction",
    }


IDEAL_TRUNKS = (
    "parallel cables act as one ideal trunk: flows never collide on one of them. "
    'trunk = "ecmp" draws such collisions.'
)
"""What a network with ideal trunks leaves out, behind where that is."""


def has_ideal_trunks(network: Network) -> bool:
    """Return whether links stand for several cables that act as one."""
    return bool((network.links.num_parallel > 1).any())


def tiers_table(network: Network) -> Table:
    """Return the tiers of a network, from the inside out.

    What NICs have less than the links inside of nodes is no oversubscription.
    """
    inside = 0 if network.rules is None else network.rules.node_levels
    numbers = ("Blocks", "Devices each", "Links", "Each", "Block's uplinks", "Oversub.")
    table = new_table("Tier", *numbers, numbers=numbers)
    for index, tier in enumerate(network.tiers()):
        has_uplink = tier.num_uplinks > 0
        uplink = (
            f"{number(tier.num_uplinks)}, {format_bandwidth(tier.uplink_bandwidth)}"
        )
        add_row(
            table,
            tier.name,
            number(tier.num_blocks),
            number(tier.block_size),
            number(tier.num_links),
            _link_speed(tier),
            uplink if has_uplink else "-",
            f"{tier.oversubscription:.3g} : 1"
            if has_uplink and index >= inside
            else "-",
        )
    return table


def _link_speed(tier: Tier) -> str:
    built = format_bandwidth(tier.link_bandwidth)
    if tier.efficiency == 1.0:
        return built
    return f"{built}, {percent(tier.efficiency)} reached"


def _levels(levels: tuple[Level, ...]) -> Table:
    numbers = ("Within reach", "Bandwidth", "Latency")
    table = new_table("Level", *numbers, numbers=numbers)
    for level in levels:
        add_row(
            table,
            level.name,
            plural(level.block_size, "device"),
            format_bandwidth(level.bandwidth),
            format_duration(level.latency),
        )
    return table


def topology_json(network: Network) -> dict[str, Any]:
    """Return what a network is made of, for programs."""
    report = {
        "kind": network.kind,
        "num_devices": network.num_devices,
        "num_vertices": len(network.vertex_names),
        "num_links": len(network.links),
        "bisection_bandwidth_bytes_per_s": network.bisection_bandwidth(),
        "block_sizes": list(network.block_sizes),
        "sharp": network.adds_in_switches,
        "nvls": network.rules is not None and network.rules.summed_weight > 0.0,
        "levels": [
            {
                "name": level.name,
                "block_size": level.block_size,
                "num_blocks": level.num_blocks,
                "bandwidth_bytes_per_s": level.bandwidth,
                "latency_s": level.latency,
                "uplink_bandwidth_bytes_per_s": level.uplink_bandwidth,
                "oversubscription": level.oversubscription,
            }
            for level in network.levels
        ],
        "tiers": [
            {
                "name": tier.name,
                "num_blocks": tier.num_blocks,
                "block_size": tier.block_size,
                "num_links": tier.num_links,
                "link_bandwidth_bytes_per_s": tier.link_bandwidth,
                "efficiency": tier.efficiency,
                "num_uplinks": tier.num_uplinks,
                "uplink_bandwidth_bytes_per_s": tier.uplink_bandwidth,
                "oversubscription": tier.oversubscription,
            }
            for tier in network.tiers()
        ],
    }
    plain: dict[str, Any] = plain_values(report)
    return plain


def print_degraded(
    network: "Network", degradation: "Degradation", console: "Console"
) -> None:
    """Print what is slow or gone, and what the rest of the summary is of.

    Parameters
    ----------
    network
        The network that is left.
    degradation
        What was done to it; the network has all that it names.
    """
    console.print()
    console.print(Text("Degraded", style="bold underline"), highlight=False)
    rows: dict[str, str] = {}
    for name in degradation.removed_links:
        rows[name] = f"removed ({_num_links(network, name)})"
    for name in degradation.removed_switches:
        switches = plural(len(select_switches(network, name)), "switch")
        rows[name] = f"removed ({switches} with all links)"
    for slow_links in degradation.slow_links:
        count = _num_links(network, slow_links.links)
        divided = f"bandwidth divided by {slow_links.factor:g}"
        rows[slow_links.links] = f"{divided} ({count})"
    slow_devices = degradation.slow_devices
    drawn = drawn_devices(slow_devices, network.num_devices)
    for slow, devices in zip(slow_devices, drawn, strict=True):
        if isinstance(slow, SlowDevice):
            name = network.vertex_names[slow.device]
            rows[name] = f"computes {slow.factor:g} times as long"
        else:
            name = f"{percent(slow.fraction)} of the devices, seed {slow.seed}"
            slowed = f"compute {slow.factor:g} times as long"
            rows[name] = f"{plural(devices.size, 'device')} {slowed}"
    console.print(facts(rows), highlight=False)
    note = (
        "Tiers stand above as they were built, bandwidths between two devices as the "
        "worst of their level, the bisection as what is left."
    )
    console.print(Text(note), highlight=False)


def _num_links(network: "Network", selector: str) -> str:
    count = int(np.count_nonzero(select_links(network, selector)))
    return plural(count, "directed link")


def degraded_json(
    degradation: "Degradation | None", num_devices: int
) -> dict[str, Any] | None:
    """Return what is slow or gone of so many devices, under the scenario's names."""
    if degradation is None:
        return None
    slow_devices = degradation.slow_devices
    drawn = drawn_devices(slow_devices, num_devices)
    return {
        "removed_links": list(degradation.removed_links),
        "removed_switches": list(degradation.removed_switches),
        "slow_links": [
            {"links": one.links, "factor": one.factor} for one in degradation.slow_links
        ],
        "slow_devices": [
            _slow_json(slow, devices.size)
            for slow, devices in zip(slow_devices, drawn, strict=True)
        ],
    }


def _slow_json(slow: "SlowDevice | SlowFraction", num_slow: int) -> dict[str, Any]:
    if isinstance(slow, SlowDevice):
        return {"device": slow.device, "factor": slow.factor}
    return {
        "fraction": slow.fraction,
        "factor": slow.factor,
        "seed": slow.seed,
        "num_devices": num_slow,
    }
