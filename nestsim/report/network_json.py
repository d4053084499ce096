"""What a network is made of, as JSON."""

from typing import Any

from nestsim.report.json import plain_values
from topologies.network import Network


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
