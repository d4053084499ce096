"""What a network is made of, as text."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.report.sections import print_line, print_section
from nestsim.report.tables import add_row, facts, new_table
from nestsim.report.wording import number, percent, plural
from topologies.accelerators import Accelerator
from topologies.network import Level, Network, Tier
from topologies.units import (
    format_bandwidth,
    format_duration,
    format_rate,
    format_size,
)


def print_topology(
    network: Network, accelerator: Accelerator | None, console: Console
) -> None:
    """Print what a network is made of: devices, tiers, speeds, bisection bandwidth."""
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
    if accelerator is not None:
        print_section(console, "Device", facts(_accelerator_facts(accelerator)))
    print_section(console, "Tiers, from the inside out", _tiers(network.tiers()))
    print_section(
        console, "What two devices have between them", _levels(network.levels)
    )


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


def _tiers(tiers: tuple[Tier, ...]) -> Table:
    numbers = ("Blocks", "Devices each", "Links", "Each", "Block's uplinks", "Oversub.")
    table = new_table("Tier", *numbers, numbers=numbers)
    for tier in tiers:
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
            f"{tier.oversubscription:.3g} : 1" if has_uplink else "-",
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
