"""Several jobs on one network: priced, lowered and replayed, alone and together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nestsim.evaluate.cluster import cluster_network, network_in_use
from nestsim.features.jobs.plans import TenantPlan, common_network, lowered
from nestsim.features.jobs.replay import (
    MOST_STEPS,
    replay_alone,
    replay_together,
    slowdown,
    steady_step,
)
from nestsim.features.jobs.results import Meeting
from nestsim.features.jobs.scenario import Tenant
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.work import Progress
from topologies.errors import InputError
from topologies.network import Network


@dataclass(frozen=True, kw_only=True, eq=False)
class Fabric:
    """The network of some jobs, as their software uses it."""

    tenants: tuple[Tenant, ...]
    """The jobs that may meet on it."""

    wires: Network
    """The network without hosts and without what software adds."""

    most_steps: int = MOST_STEPS
    """Steps of the slowest of the jobs that meet, at most."""

    @classmethod
    def of(
        cls,
        tenants: Sequence[Tenant],
        seed: int | None = None,
        most_steps: int = MOST_STEPS,
    ) -> "Fabric":
        """Return the network of jobs, with an ECMP seed if there is one.

        Raises
        ------
        InputError
            If there is no such network.
        """
        scenario = tenants[0].scenario
        if seed is not None:
            try:
                spec = scenario.network_spec.with_ecmp_seed(seed)
            except InputError as error:
                raise error.moved("shared.ecmp_seeds") from None
            scenario = replace(scenario, network_spec=spec)
        wires = cluster_network(scenario)
        return cls(tenants=tuple(tenants), wires=wires, most_steps=most_steps)

    @cached_property
    def by_tenant(self) -> dict[int, Network]:
        """The network as each job's software uses it, by the job's index."""
        return {
            tenant.index: network_in_use(tenant.scenario, self.wires)
            for tenant in self.tenants
        }

    @cached_property
    def network(self) -> Network:
        """The network on which the jobs meet."""
        return common_network(list(self.by_tenant.values()))

    def lower(
        self, tenant: Tenant, made: TenantPlan
    ) -> tuple[PricedPlan, PipelineWork]:
        """Return a job's plan with its prices here, and one step of it."""
        return lowered(tenant.scenario, self.by_tenant[tenant.index], made)

    def meet(
        self,
        tenants: Sequence[Tenant],
        works: Sequence[PipelineWork],
        progress: Progress | None = None,
    ) -> Meeting:
        """Replay jobs together, and each by itself.

        Parameters
        ----------
        tenants
            Jobs of this network, on devices of their own.
        works
            One step of each.
        progress
            Told before a long replay.
        """
        network = self.network
        settings = self.tenants[0].scenario.simulation
        shared = replay_together(
            network,
            works,
            settings,
            steps=self.most_steps,
            offsets=[tenant.start for tenant in tenants],
            progress=progress,
        )
        alone = replay_alone(network, works, shared, settings)
        jobs = range(len(works))
        together = [steady_step(shared, job) for job in jobs]
        by_itself = [steady_step(alone[job], 0).time for job in jobs]
        return Meeting(
            replay=shared,
            alone=tuple(by_itself),
            together=tuple(steady.time for steady in together),
            slowdowns=tuple(slowdown(shared, alone[job], job) for job in jobs),
            ranges=tuple(
                (steady.low / time, steady.high / time)
                for steady, time in zip(together, by_itself, strict=True)
            ),
        )
