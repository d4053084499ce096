"""What a network is made of, and what of it is slow or gone: document and JSON."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nestsim.document.dumps import plain_record
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FactList,
    Headline,
    Section,
    Sentences,
    cell,
)
from nestsim.document.wording import number, percent, plural
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


def topology_document(
    network: Network,
    accelerator: Accelerator | None = None,
    groups: "Sequence[DeviceGroup]" = (),
    *,
    assumed: Sequence[str] = (),
    degradation: "Degradation | None" = None,
) -> Document:
    """Return what a network is made of: devices, tiers, speeds, bisection bandwidth.

    Parameters
    ----------
    network
        The network; of a degraded one what is left.
    accelerator
        The accelerator of all devices; None for no section on it.
    groups
        Devices of several accelerators, in its place.
    assumed
        What another program's file does not say of the network.
    degradation
        What was done to the network, which has all that it names.
    """
    num_switches = len(network.vertex_names) - network.num_devices
    counts = (
        plural(network.num_devices, "device"),
        plural(num_switches, "switch"),
        plural(len(network.links), "directed link"),
    )
    return Document(
        subject=", ".join(counts),
        doing="topology",
        headline=Headline(
            verdict=network.kind, tone="plain", sentences=tuple(_sentences(network))
        ),
        sections=tuple(_sections(network, accelerator, groups, assumed, degradation)),
    )


def _sentences(network: Network) -> Iterator[str]:
    bisection = network.bisection_bandwidth()
    per_device = format_bandwidth(2 * bisection / network.num_devices)
    yield (
        f"Bisection bandwidth {format_bandwidth(bisection)} one way, {per_device} for "
        "each device of a half"
    )
    if network.adds_in_switches:
        yield "Switches outside nodes add up all-reduces (SHARP)"
    if network.rules is not None and network.rules.summed_weight > 0.0:
        yield "Switches inside nodes add up all-reduces (NVLS)"


def _sections(
    network: Network,
    accelerator: Accelerator | None,
    groups: "Sequence[DeviceGroup]",
    assumed: Sequence[str],
    degradation: "Degradation | None",
) -> Iterator[Section]:
    if groups:
        yield from _group_sections(groups)
    elif accelerator is not None:
        yield _device_section("Device", accelerator)
    title = "Tiers, from the inside out"
    trunks = f"In all tiers {IDEAL_TRUNKS}"
    yield Section(
        "tiers",
        title,
        (
            tiers_table(network, title),
            *([Sentences((trunks,))] if has_ideal_trunks(network) else []),
        ),
    )
    title = "What two devices have between them"
    levels = _levels(network.levels, title)
    yield Section("levels", title, (levels,))
    if assumed:
        yield Section("assumed", "Assumed of the file", (Sentences(tuple(assumed)),))
    if degradation is not None:
        yield Section(
            "degraded",
            "Degraded",
            (
                FactList(_degraded_facts(network, degradation)),
                Sentences((_AS_BUILT,)),
            ),
        )


def _group_sections(groups: "Sequence[DeviceGroup]") -> Iterator[Section]:
    """Yield each accelerator once, with the numbers of its devices."""
    sizes = [group.num_devices for group in groups]
    accelerators = [group.accelerator for group in groups]
    of_group = [accelerators.index(accelerator) for accelerator in accelerators]
    of_device = np.repeat(of_group, sizes)
    for which in dict.fromkeys(of_group):
        devices = np.flatnonzero(of_device == which).tolist()
        title = "Devices " + ", ".join(to_ranges(devices))
        yield _device_section(title, accelerators[which])


def _device_section(title: str, accelerator: Accelerator) -> Section:
    facts = FactList(_accelerator_facts(accelerator))
    return Section("device", title, (facts,))


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


def tiers_table(network: Network, caption: str) -> DataTable:
    """Return the tiers of a network, from the inside out.

    What NICs have less than the links inside of nodes is no oversubscription.
    """
    inside = 0 if network.rules is None else network.rules.node_levels
    columns: dict[str, Callable[[tuple[int, Tier]], Cell | str]] = {
        "Tier": lambda row: row[1].name,
        "Blocks": lambda row: cell(row[1].num_blocks, number),
        "Devices each": lambda row: cell(row[1].block_size, number),
        "Links": lambda row: cell(row[1].num_links, number),
        "Each": lambda row: _link_speed(row[1]),
        "Block's uplinks": lambda row: _uplinks(row[1]),
        "Oversub.": lambda row: (
            f"{row[1].oversubscription:.3g} : 1"
            if row[1].num_uplinks > 0 and row[0] >= inside
            else "-"
        ),
    }
    return DataTable.of(
        caption,
        enumerate(network.tiers()),
        columns,
        numbers=tuple(columns)[1:],
    )


def _uplinks(tier: Tier) -> str:
    if tier.num_uplinks <= 0:
        return "-"
    return f"{number(tier.num_uplinks)}, {format_bandwidth(tier.uplink_bandwidth)}"


def _link_speed(tier: Tier) -> str:
    built = format_bandwidth(tier.link_bandwidth)
    if tier.efficiency == 1.0:
        return built
    return f"{built}, {percent(tier.efficiency)} reached"


def _levels(levels: tuple[Level, ...], caption: str) -> DataTable:
    return DataTable.of(
        caption,
        levels,
        {
            "Level": lambda level: level.name,
            "Within reach": lambda level: plural(level.block_size, "device"),
            "Bandwidth": lambda level: cell(level.bandwidth, format_bandwidth),
            "Latency": lambda level: cell(level.latency, format_duration),
        },
        numbers=("Within reach",),
    )


def topology_json(network: Network) -> dict[str, object]:
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
    return plain_record(report)


_AS_BUILT = (
    "Tiers stand above as they were built, bandwidths between two devices as the worst "
    "of their level, the bisection as what is left."
)
"""What the rest of the document is of where something is slow or gone."""


def _degraded_facts(network: Network, degradation: "Degradation") -> dict[str, str]:
    """Return what is slow or gone, by its name."""
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
    return rows


def _num_links(network: "Network", selector: str) -> str:
    count = int(np.count_nonzero(select_links(network, selector)))
    return plural(count, "directed link")


def degraded_json(
    degradation: "Degradation | None", num_devices: int
) -> dict[str, object] | None:
    """Return what is slow or gone of so many devices, under the scenario's names."""
    if degradation is None:
        return None
    slow_devices = degradation.slow_devices
    drawn = drawn_devices(slow_devices, num_devices)
    return {
        "removed_links": list(degradation.removed_links),
        "removed_switches": list(degradation.removed_switches),
        "slow_links": [
            {"links": slow.links, "factor": slow.factor}
            for slow in degradation.slow_links
        ],
        "slow_devices": [
            _slow_json(slow, devices.size)
            for slow, devices in zip(slow_devices, drawn, strict=True)
        ],
    }


def _slow_json(slow: "SlowDevice | SlowFraction", num_slow: int) -> dict[str, object]:
    if isinstance(slow, SlowDevice):
        return {"device": slow.device, "factor": slow.factor}
    return {
        "fraction": slow.fraction,
        "factor": slow.factor,
        "seed": slow.seed,
        "num_devices": num_slow,
    }
