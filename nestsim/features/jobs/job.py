"""Jobs on one fabric: where each one is, and what they do to each other.

They are placed (`nestsim.features.jobs.floor`), replayed alone and together, once more
for each ECMP seed, and, where the file says so, for other starts of each
(`nestsim.features.jobs.orbits`).
"""

from collections.abc import Sequence

from nestsim.features.jobs.fabric import Fabric
from nestsim.features.jobs.floor import Floor
from nestsim.features.jobs.orbits import Company, Shifts, shifted_starts
from nestsim.features.jobs.plans import NoTenantPlanError, Plans, TenantPlan
from nestsim.features.jobs.replay import long_run_notes, steady_step
from nestsim.features.jobs.results import (
    Meeting,
    TenancyResult,
    TenantOutcome,
    meeting_levels,
    meeting_links,
)
from nestsim.features.jobs.scenario import JobsScenario
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.cost.pricing import plan_groups
from planner.work import Progress
from topologies.network import Network


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
    floor = Floor(file.tenants, fabric, plans, progress)
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
        choice=floor.choice,
        shifts=_shifts(file, fabric, [work for _, work in lowered], meeting, progress),
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
        choice=None,
        shifts=(),
        seeds=file.ecmp_seeds,
        notes=(),
    )


def _shifts(
    file: JobsScenario,
    fabric: Fabric,
    works: Sequence[PipelineWork],
    meeting: Meeting,
    progress: Progress | None,
) -> tuple[Shifts, ...]:
    """Return what other starts make of the jobs that meet; none if nobody asks.

    Of two jobs only the difference of their starts counts: the second one's is moved.
    """
    shifts = []
    for group in meeting.replay.groups if file.shifts else ():
        tenants = [file.tenants[job] for job in group]
        company = Company(
            network=fabric.network,
            works=[works[job] for job in group],
            names=[tenant.name for tenant in tenants],
            num_devices=[tenant.num_devices for tenant in tenants],
            settings=file.cluster.simulation,
            most_steps=file.most_steps,
            starts=[tenant.start for tenant in tenants],
            alone=[meeting.alone[job] for job in group],
        )
        moved = range(1 if len(group) < 3 else 0, len(group))
        shifts += [shifted_starts(company, job, file.shifts, progress) for job in moved]
    return tuple(shifts)


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
