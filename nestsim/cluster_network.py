"""The network of a scenario: as it was built, less what is slow or gone.

Jobs run on it as their collective library uses it (`job_network`).
"""

from typing import TYPE_CHECKING

from estimators.collectives.transports import library_network
from estimators.platform import Platform
from topologies.builders import build_network
from topologies.degrade import Degradation, degrade, slowdowns
from topologies.errors import InputError
from topologies.specs import CustomSpec

if TYPE_CHECKING:
    from nestsim.scenario.settings import Scenario
    from topologies.arrays import FloatArray
    from topologies.network import Network

_WHERE = "cluster.degraded"


def cluster_network(scenario: "Scenario") -> "Network":
    """Build the network of a scenario: its wires, without what software adds.

    Raises
    ------
    InputError
        If there is no such network, what is degraded is not there, or devices are
        cut off from others.
    """
    try:
        network = build_network(scenario.network_spec)
    except InputError as error:
        if isinstance(scenario.network_spec, CustomSpec):
            raise error.at("cluster.network.path", ": ") from None
        raise error.at("cluster.network") from None
    if scenario.degradation is None:
        return network
    try:
        return degrade(network, scenario.degradation)
    except InputError as error:
        raise error.at(_WHERE) from None


def job_network(scenario: "Scenario") -> "Network":
    """Build the network that is planned for and replayed.

    Raises
    ------
    InputError
        As `cluster_network`.
    """
    platform = Platform(
        accelerator=scenario.accelerator,
        software=scenario.software,
        links=scenario.links,
    )
    fabric = platform.transport(inside_node=False)
    return library_network(cluster_network(scenario), fabric, scenario.software)


def device_slowdowns(scenario: "Scenario", num_devices: int) -> "FloatArray":
    """Return what each device's compute times are multiplied by, shape ``(N,)``."""
    return slowdowns(scenario.degradation or Degradation(), num_devices)
