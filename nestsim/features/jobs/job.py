"""Jobs on one fabric: where each one is, and what they do to each other.

Jobs whose devices the file names are there first. Then the others are placed, the
largest first, of equals by name: so the order of the file makes no difference. One that
is to be placed best is tried in each of its candidates beside the jobs that are there,
by the shared replay, where its plan fits; taken is the one by which all of them
together lose the least throughput. That is counted in devices: a job of ``n`` devices
that takes ``s`` times as long as it could loses ``n (1 - 1 / s)`` of them. A job that
stands is held against itself alone; the one that is placed against the candidate where
it is fastest alone, so that a place where it is slow, but disturbs nobody, is no gain
by itself.
"""

from collections.abc import Sequence

from nestsim.features.jobs.fabric import Fabric
from nestsim.features.jobs.placements import (
    CandidateDevices,
    Room,
    candidates,
    compact,
    spread,
)
from nestsim.features.jobs.plans import NoTenantPlanError, Plans, TenantPlan
from nestsim.features.jobs.replay import long_run_notes, steady_step
from nestsim.features.jobs.results import (
    JudgedPlacement,
    Meeting,
    PlacementChoice,
    TenancyResult,
    TenantOutcome,
    lost_devices,
    meeting_levels,
    meeting_links,
)
from nestsim.features.jobs.scenario import JobsScenario, Tenant
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.cost.pricing import plan_groups
from planner.work import Progress
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.network import Network

_SAME = 1e-9
"""Devices that are lost, relative to all, by which placements do not differ."""


def jobs_job(file: JobsScenario, *, progress: Progress | None = None) -> TenancyResult:
    """Place the jobs of a file, and replay them alone and together.

    Raises
    ------
    InputError
        If a job's plan does not go with its devices, or the free ones do not suffice.
    """
    fabric = Fabric.of(file.tenants, most_steps=file.most_steps)
    for seed in file.ecmp_seeds[:1]:
        Fabric.of(file.tenants, seed)  # a network without cables is refused at once
    plans = Plans(fabric.wires, progress)
    floor = _Floor(file, fabric, plans, progress)
    try:
        floor.place_all()
        made = [plans.on(job, floor.devices[job.index]) for job in file.tenants]
    except NoTenantPlanError as error:
        return _no_result(file, fabric, str(error))
    lowered = [fabric.lower(*pair) for pair in zip(file.tenants, made, strict=True)]
    if progress is not None:
        progress("replay: all jobs", None)
    meeting = fabric.meet(file.tenants, [work for _, work in lowered], progress)
    by_seed = [_slowdowns(file, made, seed, progress) for seed in file.ecmp_seeds]
    outcomes = tuple(
        TenantOutcome(
            tenant=tenant,
            devices=floor.devices[tenant.index],
            made=plan,
            priced=priced,
            alone=meeting.alone[index],
            together=meeting.together[index],
            slowdown=meeting.slowdowns[index],
            slowdown_range=meeting.ranges[index],
            steady=steady_step(meeting.replay, index),
            by_seed=tuple(of_seed[index] for of_seed in by_seed),
        )
        for index, (tenant, plan, (priced, _)) in enumerate(
            zip(file.tenants, made, lowered, strict=True)
        )
    )
    shares = meeting.replay.shares(fabric.network.links)
    return TenancyResult(
        name=file.name,
        network=fabric.network,
        outcomes=outcomes,
        shortfall="",
        links=meeting_links(fabric.network, shares),
        levels=meeting_levels(fabric.network, shares),
        choices=tuple(floor.choices),
        seeds=file.ecmp_seeds,
        notes=(
            *floor.notes,
            *_notes(fabric, made, [priced for priced, _ in lowered], meeting),
        ),
    )


def _no_result(file: JobsScenario, fabric: Fabric, why: str) -> TenancyResult:
    """Return what there is to say where a job has no plan."""
    return TenancyResult(
        name=file.name,
        network=fabric.network,
        outcomes=(),
        shortfall=why,
        links=(),
        levels=(),
        choices=(),
        seeds=file.ecmp_seeds,
        notes=(),
    )


def _slowdowns(
    file: JobsScenario,
    made: Sequence[TenantPlan],
    seed: int,
    progress: Progress | None,
) -> tuple[float, ...]:
    """Return the slow-down of each job where a hash with a seed picks the cables."""
    if progress is not None:
        progress(f"replay: ECMP seed {seed}", None)
    fabric = Fabric.of(file.tenants, seed, file.most_steps)
    works = [fabric.lower(*pair)[1] for pair in zip(file.tenants, made, strict=True)]
    return fabric.meet(file.tenants, works, progress).slowdowns


_IN_PASSES = ("context ring", "expert all-to-all", "zero gathers")
"""Parts of a stage's time that are sent inside of passes, and leave nodes."""


def _notes(
    fabric: Fabric,
    made: Sequence[TenantPlan],
    priced: Sequence[PricedPlan],
    meeting: Meeting,
) -> tuple[str, ...]:
    notes = list(dict.fromkeys(note for plan in made for note in plan.notes))
    for tenant, plan in zip(fabric.tenants, made, strict=True):
        if not plan.fits:
            notes.append(f'The plan of "{tenant.name}" does not fit into memory.')
    by_stage = fabric.tenants[0].scenario.simulation.granularity == "stage"
    if by_stage and any(_sends_in_passes(fabric.wires, one) for one in priced):
        notes.append(
            "What is sent inside of passes, by context- and expert-parallel groups, by "
            "tensor-parallel ones that leave a node and by ZeRO-2 and 3, is part of "
            "their times and meets nobody here: "
            'simulation.granularity = "layer" puts it on the links.'
        )
    latencies = {one.links.latency.tobytes() for one in fabric.by_tenant.values()}
    if len(latencies) > 1:
        notes.append(
            "The jobs use different libraries: links have the longest of the latencies "
            "that they wait for."
        )
    names = [tenant.name for tenant in fabric.tenants]
    notes.extend(long_run_notes(names, meeting.replay))
    return tuple(notes)


def _sends_in_passes(network: Network, priced: PricedPlan) -> bool:
    sends = (stage.parts[name] > 0 for stage in priced.stages for name in _IN_PASSES)
    return any(sends) or _tensor_groups_leave_nodes(network, priced)


def _tensor_groups_leave_nodes(network: Network, priced: PricedPlan) -> bool:
    """Return whether tensor-parallel groups send where other jobs may.

    Where a network has no nodes, all of its links are such.
    """
    if priced.plan.parallel.sizes().tp == 1:
        return False
    node_size = 1 if network.rules is None else network.rules.node_size
    nodes = (groups // node_size for groups in plan_groups(priced.plan).tensor())
    return any((of_groups != of_groups[:, :1]).any() for of_groups in nodes)


class _Floor:
    """Where jobs are, while they are placed one after another."""

    def __init__(
        self,
        file: JobsScenario,
        fabric: Fabric,
        plans: Plans,
        progress: Progress | None,
    ) -> None:
        self.tenants, self.fabric, self.plans = file.tenants, fabric, plans
        self.progress = progress
        self.devices: dict[int, IntArray] = {
            tenant.index: tenant.devices
            for tenant in file.tenants
            if tenant.devices is not None
        }
        self.choices: list[PlacementChoice] = []
        self.notes: list[str] = []
        self._lowered: dict[object, tuple[PricedPlan, PipelineWork]] = {}

    def place_all(self) -> None:
        """Place the jobs whose devices the file does not name.

        Raises
        ------
        InputError
            If what is free does not suffice for one.
        """
        waiting = [one for one in self.tenants if one.index not in self.devices]
        for tenant in sorted(waiting, key=lambda one: (-one.num_devices, one.name)):
            devices = self._place(tenant)
            if devices is None:
                raise InputError(
                    "there are not enough devices left in one piece",
                    where=f"jobs[{tenant.index}].num_devices",
                    got=tenant.num_devices,
                    expected="free devices in whole runs of "
                    f"{self._room().blocks_of(tenant.num_devices)[0]}",
                )
            self.devices[tenant.index] = devices

    def _room(self) -> Room:
        standing = sorted(self._standing(), key=lambda tenant: tenant.name)
        cluster = self.tenants[0].scenario
        return Room.of(
            self.fabric.wires,
            [self.devices[tenant.index] for tenant in standing],
            is_even=cluster.degradation is None and not cluster.groups,
        )

    def _standing(self) -> list[Tenant]:
        return [tenant for tenant in self.tenants if tenant.index in self.devices]

    def _place(self, tenant: Tenant) -> IntArray | None:
        room = self._room()
        if tenant.placement == "compact":
            return compact(room, tenant.num_devices)
        if tenant.placement == "spread":
            return spread(room, tenant.num_devices)
        known = candidates(room, tenant.num_devices)
        if len(known.listed) < 2:
            return known.listed[0].devices if known.listed else None
        listed = self._with_plans(tenant, known.listed)
        if len(listed) < 2:
            return listed[0].devices
        return self._best(tenant, listed, is_complete=known.is_complete)

    def _with_plans(
        self, tenant: Tenant, listed: Sequence[CandidateDevices]
    ) -> list[CandidateDevices]:
        """Return the candidates where a job's plan fits, all with a plan if none does.

        They differ in that where accelerators do.

        Raises
        ------
        NoTenantPlanError
            If the job has no plan on any.
        """
        planned, fitting, errors = [], [], []
        for candidate in listed:
            try:
                made = self.plans.on(tenant, candidate.devices)
            except NoTenantPlanError as error:
                errors.append(error)
                continue
            planned.append(candidate)
            if made.fits:
                fitting.append(candidate)
        if not planned:
            raise errors[0]
        if fitting and len(fitting) < len(listed):
            self.notes.append(
                f"On {len(listed) - len(fitting)} of {len(listed)} placements of "
                f'"{tenant.name}" no plan of it fits into memory: these were not tried.'
            )
        return fitting or planned

    def _best(
        self, tenant: Tenant, listed: Sequence[CandidateDevices], *, is_complete: bool
    ) -> IntArray:
        """Return the candidate with the least loss, the first of equals."""
        together = [*self._standing(), tenant]
        together.sort(key=lambda one: one.index)
        own = together.index(tenant)
        meetings = []
        for number, candidate in enumerate(listed):
            if self.progress is not None:
                doing = f'place "{tenant.name}": {candidate.label}'
                self.progress(doing, number / len(listed))
            places = {**self.devices, tenant.index: candidate.devices}
            works = [self._work(one, places[one.index]) for one in together]
            meetings.append(self.fabric.meet(together, works))
        least = min(meeting.alone[own] for meeting in meetings)
        judged = [
            _judged(candidate, meeting, together, own, least)
            for candidate, meeting in zip(listed, meetings, strict=True)
        ]
        total = sum(one.num_devices for one in together)
        best = min(one.lost for one in judged)
        chosen = next(
            k for k, one in enumerate(judged) if one.lost <= best + _SAME * total
        )
        self.choices.append(
            PlacementChoice(
                tenant=tenant,
                others=tuple(one.name for one in together),
                judged=tuple(judged),
                chosen=chosen,
                is_complete=is_complete,
            )
        )
        return judged[chosen].devices

    def _work(self, tenant: Tenant, devices: IntArray) -> PipelineWork:
        """Return one step of a job on some devices."""
        key = (tenant.index, devices.tobytes())
        if key not in self._lowered:
            made = self.plans.on(tenant, devices)
            self._lowered[key] = self.fabric.lower(tenant, made)
        return self._lowered[key][1]


def _judged(
    candidate: CandidateDevices,
    meeting: Meeting,
    together: Sequence[Tenant],
    own: int,
    least: float,
) -> JudgedPlacement:
    """Return what a placement costs the jobs that meet there."""
    slowdowns = list(meeting.slowdowns)
    slowdowns[own] = meeting.together[own] / least
    return JudgedPlacement(
        label=candidate.label,
        devices=candidate.devices,
        step_time=meeting.together[own],
        slowdowns=tuple(slowdowns),
        lost=lost_devices([one.num_devices for one in together], slowdowns),
    )
