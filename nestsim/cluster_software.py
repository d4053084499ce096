"""What drives the devices of a scenario, given how they are joined."""

from dataclasses import replace
from typing import TYPE_CHECKING

from nestsim.presets import NAMED_PRESETS

if TYPE_CHECKING:
    from estimators.software import Software
    from nestsim.scenario.settings import Scenario
    from topologies.network import Network

USUAL_NODE = 8
"""Devices of one host where the network does not tell: tori and lists of links."""


def cluster_software(scenario: "Scenario", network: "Network") -> "Software":
    """Return the scenario's software, told how large its nodes are.

    Parameters
    ----------
    scenario
        Which software.
    network
        How its devices are joined; what of it is slow or gone makes no difference.
    """
    preset = NAMED_PRESETS[scenario.software_preset]
    node = _node_size(network)
    return replace(
        scenario.software,
        num_ranks=network.num_devices,
        many_nodes=network.num_devices > node,
        ranks_per_node=node if preset.sends_tokens_once else 0,
    )


def _node_size(network: "Network") -> int:
    return USUAL_NODE if network.rules is None else network.rules.node_size
