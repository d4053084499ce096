"""What stands beside the tiers of a drawn network."""

from typing import TYPE_CHECKING

from nestsim.report.wording import percent
from topologies.fabrics.tree_routing import TreeRouting
from topologies.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from topologies.network import Tier


def blocks_label(routing: TreeRouting, tier: int) -> str:
    """Say what one tier consists of."""
    facts = routing.switch_tiers[tier]
    blocks, size = routing.num_blocks[tier], routing.block_sizes[tier]
    lines = [f"{blocks:,} x {facts.name}"]
    if facts.num_planes > 1:
        lines.append(f"{facts.num_planes} rail switches each")
    if facts.num_spines > 1:
        lines = [f"{facts.num_spines} x {facts.name}"]
    if blocks > 1:
        lines.append(f"of {size:,} devices")
    return "\n".join(lines)


def links_label(routing: TreeRouting, tier: int, row: "Tier") -> str:
    """Say what the links into one tier are, as built, and what of it is reached."""
    facts = routing.switch_tiers[tier]
    lines = [f"{row.num_links:,} x {format_bandwidth(row.link_bandwidth)}"]
    if row.efficiency < 1.0:
        lines.append(f"{percent(row.efficiency)} of it reached")
    if facts.num_parallel > 1:
        trunk = format_bandwidth(facts.bandwidth)
        lines.append(f"in trunks of {trunk}")
    lines.append(f"{format_duration(facts.latency)} a hop")
    if tier:
        ratio = routing.tiers()[tier - 1].oversubscription
        lines.append(f"oversubscription {ratio:.3g}:1")
    return "\n".join(lines)
