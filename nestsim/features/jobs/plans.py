"""The plan of each job on its own devices.

A job plans as if its devices were a cluster: `topologies.builders` is what
it sees of the network. Its plan, given or the best one found, then gets the numbers
that the devices have in the shared network, and is priced and lowered there.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from nestsim.evaluate.cluster import (
    build_workload,
    cluster_software,
    device_fleet,
    network_in_use,
)
from nestsim.evaluate.evaluator import Evaluator
from nestsim.features.jobs.scenario import Tenant
from nestsim.lowering.lower import lower_plan
from nestsim.scenario.load import Scenario
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.rivals.protocol import fits
from planner.step.execution import Workload
from planner.step.fleet import Fleet
from planner.step.plan import Plan
from planner.work import Progress
from topologies.arrays import IntArray
from topologies.builders import SubNetwork, sub_network
from topologies.errors import located, short_repr
from topologies.network import Network


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TenantPlan:
    """What a job runs on its devices."""

    plan: Plan
    """The plan, with devices of the shared network."""

    workload: Workload
    """The job, on as many devices as it has."""

    is_given: bool
    """Whether the file has the plan; else it was found."""

    fits: bool
    """Whether its stages fit into the devices' memory."""

    notes: tuple[str, ...]
    """What to know of it, one sentence each."""

    __repr__ = short_repr

    @property
    def tokens(self) -> int:
        """Tokens of one training step."""
        sequence = self.workload.graph.spec.sequence_length
        return self.workload.training.global_batch_size * sequence


@dataclass(slots=True)
class Plans:
    """Makes plans for jobs on devices, each kind of place once."""

    wires: Network
    """The shared network as it was built, less what is slow or gone; no hosts."""

    progress: Progress | None = None
    """Told what is being planned."""

    _known: dict[object, "_PlanOfKind | NoTenantPlanError"] = field(
        default_factory=dict
    )

    def on(self, tenant: Tenant, devices: IntArray) -> TenantPlan:
        """Return the plan of a job on some devices.

        Raises
        ------
        InputError
            If its plan does not fit the model, the batch or the devices.
        NoTenantPlanError
            If there is no plan to be found.
        """
        part = sub_network(self.wires, devices)
        levels = tuple(level.block_size for level in part.network.levels)
        fleet = device_fleet(tenant.scenario, self.wires.num_devices)
        selected = None if fleet is None else fleet.selected(part.devices)
        kinds = b"" if fleet is None else fleet.of_device[part.devices].tobytes()
        key = (tenant.index, part.network.kind, part.network.block_sizes, levels, kinds)
        if key not in self._known:
            try:
                self._known[key] = self._planned(tenant, part, selected)
            except NoTenantPlanError as error:
                self._known[key] = error
        made = self._known[key]
        if isinstance(made, NoTenantPlanError):
            raise made
        plan = made.plan.on_devices(part.devices)
        workload = made.workload.on(fleet)
        return TenantPlan(
            plan=plan,
            workload=workload,
            is_given=tenant.scenario.plan is not None,
            fits=fits(workload, tenant.scenario.search, plan, tenant.scenario.host),
            notes=_notes(tenant, part, plan, len(devices)),
        )

    def _planned(
        self, tenant: Tenant, part: SubNetwork, fleet: Fleet | None
    ) -> "_PlanOfKind":
        """Return the plan on a network of the job's devices alone, of some kinds."""
        scenario, progress = tenant.scenario, self.progress
        network = network_in_use(scenario, part.network)
        software = cluster_software(scenario, network)
        workload = build_workload(scenario, software, None).on(fleet)
        if progress is not None:
            progress(f'plan: job "{tenant.name}"', None)
        if scenario.plan is not None:
            with located(f"jobs[{tenant.index}].plan"):
                return _PlanOfKind(
                    build_plan(network, workload, scenario.plan), workload
                )
        evaluator = Evaluator(
            network=network,
            workload=workload,
            search=scenario.search,
            simulation=scenario.simulation,
        )
        with located(f"jobs[{tenant.index}]"):
            outcome = evaluator.find(
                scenario.planner, scenario.planner_settings, progress=progress
            )
        if not outcome.plans:
            raise NoTenantPlanError(f'Job "{tenant.name}": {outcome.why_not}')
        return _PlanOfKind(outcome.plans[0].plan, workload)


class NoTenantPlanError(Exception):
    """No plan of a job fits its devices; the message says which one, and why."""


@dataclass(frozen=True, slots=True)
class _PlanOfKind:
    """A plan on devices that are numbered from 0."""

    plan: Plan
    workload: Workload


def _notes(
    tenant: Tenant, part: SubNetwork, plan: Plan, num_devices: int
) -> tuple[str, ...]:
    notes = []
    if not part.is_exact and tenant.scenario.plan is None:
        notes.append(
            f'The plan of "{tenant.name}" was found on a compact cluster of the same '
            "kind: its devices are no whole blocks of the network as built."
        )
    idle = num_devices - plan.devices_used
    if idle:
        notes.append(
            f'{idle} of the {num_devices} devices of "{tenant.name}" have nothing to '
            "do in its plan."
        )
    return tuple(notes)


def lowered(
    scenario: Scenario, network: Network, made: TenantPlan
) -> tuple[PricedPlan, PipelineWork]:
    """Return a job's plan on the shared network, priced, and one step of it.

    Parameters
    ----------
    scenario
        The job's.
    network
        The shared network, as the job's software uses it.
    made
        The job's plan.
    """
    priced = price_plan(network, made.workload, made.plan)
    work = lower_plan(
        network,
        made.workload,
        priced,
        scenario.simulation,
        memory=False,
    )
    return priced, work


def common_network(networks: list[Network]) -> Network:
    """Return one network on which jobs meet that use it by different libraries.

    A step of a library from node to node waits for more than the wires
    (`estimators.collectives.transports.library_network`); where jobs use different
    ones, the links are given the longest of their latencies.
    """
    first = networks[0]
    latency = np.max([network.links.latency for network in networks], axis=0)
    return replace(first, links=replace(first.links, latency=latency))
