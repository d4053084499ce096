"""What of a cluster is slow or gone, as text and for programs."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from nestsim.report.tables import facts
from nestsim.report.wording import plural
from topologies.selectors import select_links, select_switches

if TYPE_CHECKING:
    from rich.console import Console

    from topologies.degrade import Degradation
    from topologies.network import Network


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
        count = len(select_switches(network, name))
        rows[name] = f"removed ({plural(count, 'switch')} with all links)"
    for one in degradation.slow_links:
        rows[one.links] = (
            f"bandwidth divided by {one.factor:g} ({_num_links(network, one.links)})"
        )
    for slow in degradation.slow_devices:
        name = network.vertex_names[slow.device]
        rows[name] = f"computes {slow.factor:g} times as long"
    console.print(facts(rows), highlight=False)
    note = (
        "Tiers stand above as they were built, bandwidths between two devices as the "
        "worst of their level, the bisection as what is left."
    )
    console.print(Text(note), highlight=False)


def _num_links(network: "Network", selector: str) -> str:
    count = int(np.count_nonzero(select_links(network, selector)))
    return plural(count, "directed link")


def degraded_json(degradation: "Degradation | None") -> dict[str, Any] | None:
    """Return what is slow or gone, under the scenario's names."""
    if degradation is None:
        return None
    return {
        "removed_links": list(degradation.removed_links),
        "removed_switches": list(degradation.removed_switches),
        "slow_links": [
            {"links": one.links, "factor": one.factor} for one in degradation.slow_links
        ],
        "slow_devices": [
            {"device": one.device, "factor": one.factor}
            for one in degradation.slow_devices
        ],
    }
