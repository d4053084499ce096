"""The network of a scenario, as it was built, less what is slow or gone; its workload.

Jobs run on it as their collective library uses it (`job_network`), and their software
knows how large its nodes are.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from estimators.collectives.transports import library_network
from estimators.layers.adapters import with_adapters
from estimators.layers.work import Degrees
from estimators.platform import Platform
from estimators.tracing.trace import trace_model
from estimators.user_files import constants_with
from nestsim.evaluate.cost import ClusterCost, cluster_cost
from nestsim.scenario.hardware.accelerator import DeviceGroup
from planner.frameworks.framework import PRESETS
from planner.step.execution import Workload
from planner.step.fleet import DeviceKind, Fleet
from topologies.builders import build_network
from topologies.degrade import Degradation, degrade, slowdowns
from topologies.errors import InputError, located

if TYPE_CHECKING:
    from estimators.software import Software
    from nestsim.scenario.load import Scenario
    from planner.work import Progress
    from topologies.network import Network

_WHERE = "cluster.degraded"
"""Setting that mistakes are about."""


def cluster_network(scenario: "Scenario") -> "Network":
    """Build the network of a scenario: its wires, without what software adds.

    Raises
    ------
    InputError
        If there is no such network, what is degraded is not there, or devices are
        cut off from others.
    """
    network = _built_network(scenario)
    if scenario.degradation is None:
        return network
    with located(_WHERE):
        return degrade(network, scenario.degradation)


def _built_network(scenario: "Scenario") -> "Network":
    try:
        return build_network(scenario.network_spec)
    except InputError as error:
        raise scenario.network_spec.located(error, "cluster.network") from None


def priced_cluster(scenario: "Scenario") -> ClusterCost | None:
    """Return what the cluster of a scenario costs, None if it does not say.

    What is slow or gone was bought and is paid for.

    Raises
    ------
    InputError
        If there is no such network, or no such level of it.
    """
    if scenario.cost is None:
        return None
    return cluster_cost(scenario.cost, _built_network(scenario))


def job_network(scenario: "Scenario") -> "Network":
    """Build the network that is planned for and replayed.

    Raises
    ------
    InputError
        As `cluster_network`.
    """
    return network_in_use(scenario, cluster_network(scenario))


def network_in_use(scenario: "Scenario", network: "Network") -> "Network":
    """Return wires as the software of a scenario uses them, with the devices' hosts.

    Parameters
    ----------
    scenario
        Whose library and hosts.
    network
        `cluster_network` of the scenario, or a part of it.
    """
    platform = Platform(
        accelerator=scenario.accelerator,
        software=scenario.software,
        links=scenario.links,
    )
    node, fabric = (platform.transport(inside_node=here) for here in (True, False))
    used = library_network(network, node, fabric, scenario.software)
    return used.with_host(scenario.host)


def device_fleet(scenario: "Scenario", num_devices: int) -> Fleet | None:
    """Return which kinds of devices a cluster has, None if all are alike and healthy.

    Raises
    ------
    InputError
        If a slow device is not there.
    """
    factors = slowdowns(scenario.degradation or Degradation(), num_devices)
    groups = scenario.groups or (DeviceGroup(scenario.accelerator, num_devices),)
    sizes = [group.num_devices for group in groups]
    numbers = np.repeat(np.arange(len(groups)), sizes)
    accelerators = [group.accelerator for group in groups]
    fleet = Fleet.of_devices(accelerators, numbers, factors)
    healthy = fleet.kinds == (DeviceKind(scenario.accelerator),)
    return None if healthy else fleet


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
    preset = PRESETS[scenario.software_preset]
    dispatcher = scenario.software.moe_token_dispatcher_type
    node, rules = node_size(network), network.rules
    return replace(
        scenario.software,
        sums_in_nodes=rules is not None and rules.summed_weight > 0.0,
        node_step=network.levels[0].latency,
        num_ranks=network.num_devices,
        many_nodes=network.num_devices > node,
        ranks_per_node=node,
        moe_token_dispatcher_type=dispatcher or preset.dispatcher,
    )


def node_size(network: "Network") -> int:
    """Return how many devices a host has, `USUAL_NODE` where nothing tells."""
    return USUAL_NODE if network.rules is None else network.rules.node_size


def build_job(
    scenario: "Scenario", progress: "Progress | None"
) -> tuple["Network", Workload]:
    """Build the network of a scenario, and trace its model."""
    if progress is not None:
        progress("network: build", None)
    network = job_network(scenario)
    workload = build_workload(scenario, cluster_software(scenario, network), progress)
    workload = workload.on(device_fleet(scenario, network.num_devices))
    if scenario.profile is not None:
        _check_measured(workload)
    return network, workload


def build_workload(
    scenario: "Scenario", software: "Software", progress: "Progress | None"
) -> Workload:
    """Trace the model of a scenario; no network is needed.

    Parameters
    ----------
    scenario
        The job.
    software
        Its software, told how large nodes are where times matter.
    progress
        Told what is done.
    """
    if progress is not None:
        progress("model: trace", None)
    graph = (
        trace_model(scenario.spec) if scenario.module is None else scenario.module.graph
    )
    return Workload(
        graph=with_adapters(graph, scenario.training),
        training=scenario.training,
        accelerator=scenario.accelerator,
        software=software,
        execution=scenario.execution,
        constants=constants_with(scenario.constants),
        links=scenario.links,
        profile=scenario.profile,
    )


def _check_measured(workload: Workload) -> None:
    """Refuse a profile that lacks an operation of the model, before hours of work."""
    try:
        workload.table(Degrees())
    except InputError as error:
        raise error.moved("cluster.profile") from None
