"""The main job: plan, replay the best plans, judge, and choose.

Replay one plan that is given, and judge it as the planner's own.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from estimators.layers.table import model_flops_per_sequence
from estimators.layers.work import Degrees
from estimators.tracing.trace import trace_model
from estimators.user_files.constants import constants_with
from nestsim.cluster import cluster_software, device_slowdowns, job_network
from nestsim.evaluate import Evaluator
from nestsim.lowering.lower import lower_plan
from nestsim.results import (
    Assumptions,
    C,
    Candidate,
    ExplainResult,
    JobKind,
    JobResult,
    PlannedCandidate,
    PlanResult,
    ReplayedResult,
    Throughput,
)
from nestsim.scenario.load import Scenario
from nestsim.simulator.replay import replay
from nestsim.uncertainty import Band, Setting, band
from nestsim.verdict import explain_gap, judge
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.explain.explain import explain
from planner.explain.request import Request
from planner.planners.protocol import PlannerOutcome
from planner.plans.build import build_plan, with_algorithms
from planner.plans.checks import check_plan
from planner.search.launchable import BrokenRule, LaunchFacts, broken_rules
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.step.schedules import find_schedule
from planner.work import Progress
from topologies.errors import InputError
from topologies.network import Network


def plan_job(scenario: Scenario, *, progress: Progress | None = None) -> PlanResult:
    """Search the k best plans of a scenario, without replaying them.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    network, workload = build_job(scenario, progress)
    found = find_plans(scenario, network, workload, progress)
    candidates = tuple(
        PlannedCandidate(
            rank=rank,
            priced=priced,
            planned=_planned(network, workload, priced),
            replayed_time=time,
        )
        for rank, (priced, time) in enumerate(
            zip_longest(found.plans, found.replayed_times), start=1
        )
    )
    result = job_result("plan", scenario, network, workload, candidates)
    return with_search(result, scenario, found)


def explain_job(
    scenario: Scenario, wanted: Request, *, progress: Progress | None = None
) -> ExplainResult:
    """Price what a user names beside the best plan of a scenario.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    network, workload = build_job(scenario, progress)
    found = explain(network, workload, scenario.search, wanted, progress=progress)
    return ExplainResult(
        scenario_name=scenario.name,
        network=network,
        layer_names=tuple(workload.graph.names),
        device_name=workload.accelerator.name,
        explanation=found,
    )


def run_job(scenario: Scenario, *, progress: Progress | None = None) -> ReplayedResult:
    """Plan a scenario, replay the k best plans, and choose the first confirmed one.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    network, workload = build_job(scenario, progress)
    _check_replayable(scenario, network)
    found = find_plans(scenario, network, workload, progress)
    candidates = []
    for index, priced in enumerate(found.plans):
        share = index / len(found.plans)
        doing = f"replay: plan {index + 1} of {len(found.plans)}"
        told = progress_of(progress, doing, share)
        candidates.append(
            replay_plan(scenario, network, workload, priced, index + 1, told)
        )
    candidates.sort(key=_simulated_order)
    chosen = first_confirmed(candidates)
    if candidates:
        reported = chosen or 0
        candidates[reported] = explain_candidate(
            scenario, network, workload, candidates[reported], progress
        )
    result = job_result("run", scenario, network, workload, tuple(candidates))
    return with_search(replace(result, chosen=chosen), scenario, found)


def _check_replayable(scenario: Scenario, network: Network) -> None:
    """Refuse, before a search, a batch of which no plan can be replayed.

    Whatever the plan, each device has a share of the passes of a microbatch.
    """
    sizes = scenario.search.micro_batch_sizes
    if sizes is None:
        return
    batch = scenario.training.global_batch_size
    fewest = batch // (max(sizes) * network.num_devices)
    try:
        find_schedule("1f1b").check_length(1, fewest)
    except InputError as error:
        raise InputError(
            error.problem,
            where="training.global_batch_size",
            got=f"{batch:,}, at least {fewest:,} microbatches of {max(sizes)} on each "
            f"of {network.num_devices:,} devices",
            expected=error.expected,
        ) from None


def first_confirmed(candidates: Sequence[Candidate]) -> int | None:
    """Return the index of the first plan that its replay confirms, None without."""
    kinds = [candidate.verdict.kind for candidate in candidates]
    return kinds.index("confirmed") if "confirmed" in kinds else None


def job_result(
    kind: JobKind,
    scenario: Scenario,
    network: Network,
    workload: Workload,
    candidates: tuple[C, ...],
) -> JobResult[C]:
    """Return what there is to report of a job but for what a search found."""
    return JobResult(
        kind=kind,
        scenario_name=scenario.name,
        assumptions=Assumptions(
            preset=scenario.software_preset,
            software=workload.software,
            training=workload.training,
            execution=workload.execution,
            accelerator_name=workload.accelerator.name,
            constants=scenario.constants,
            links=scenario.links,
            profile=workload.profile,
        ),
        network=network,
        layer_names=tuple(workload.graph.names),
        device_memory=workload.accelerator.memory_bytes,
        usable_memory=workload.tensor_memory(scenario.search.memory_reserve),
        band=None if scenario.constants else _band(network, workload),
        candidates=candidates,
        max_trace_events=scenario.simulation.trace_events,
    )


def _band(network: Network, workload: Workload) -> Band | None:
    """Return the band of a simulated time by shipped constants.

    Measured operators are another matter.
    """
    if workload.profile is not None:
        return None
    return band(
        Setting(
            software=workload.software.name,
            accelerator=workload.accelerator.name,
            num_devices=network.num_devices,
            has_experts=bool(workload.graph.spec.num_moe_experts),
        )
    )


def build_job(
    scenario: Scenario, progress: Progress | None
) -> tuple[Network, Workload]:
    """Build the network of a scenario, and trace its model."""
    if progress is not None:
        progress("network: build", None)
    network = job_network(scenario)
    if progress is not None:
        progress("model: trace", None)
    workload = Workload(
        graph=trace_model(scenario.spec),
        training=scenario.training,
        accelerator=scenario.accelerator,
        software=cluster_software(scenario, network),
        execution=scenario.execution,
        constants=constants_with(scenario.constants),
        links=scenario.links,
        profile=scenario.profile,
    )
    if scenario.profile is not None:
        _check_measured(workload)
    return network, workload


def _check_measured(workload: Workload) -> None:
    """Refuse a profile that lacks an operation of the model, before hours of work."""
    try:
        workload.table(Degrees())
    except InputError as error:
        raise InputError(
            error.problem,
            where="cluster.profile",
            expected=error.expected,
            hint=error.hint,
        ) from None


def find_plans(
    scenario: Scenario,
    network: Network,
    workload: Workload,
    progress: Progress | None,
) -> PlannerOutcome:
    """Return the plans of a scenario's planner, or why there are none.

    Raises
    ------
    InputError
        If the planner refuses the space, or the plan that it is given.
    """
    evaluator = Evaluator(scenario=scenario, network=network, workload=workload)
    settings = scenario.planner_settings
    return evaluator.find(scenario.planner, settings, progress=progress)


def with_search(
    result: JobResult[C], scenario: Scenario, found: PlannerOutcome
) -> JobResult[C]:
    """Return a result together with what the search has to say of itself."""
    statistics = dict(found.statistics)
    if not statistics:
        statistics = {f"plans priced by {found.planner}": found.evaluations}
    bound = found.lower_bound
    return replace(
        result,
        objective=scenario.search.objective,
        lower_bound=math.nan if bound is None else bound,
        search_statistics=statistics,
        shortfall=found.why_not,
        spent=found.spent,
        covers_space=found.covers_space,
    )


def progress_of(
    progress: Progress | None, doing: str, share: float | None = None
) -> Progress | None:
    """Say what is being done, and return what takes details of it."""
    if progress is None:
        return None
    progress(doing, share)
    return lambda detail, _: progress(f"{doing}: {detail}", share)


def replay_plan(
    scenario: Scenario,
    network: Network,
    workload: Workload,
    priced: PricedPlan,
    rank: int,
    progress: Progress | None = None,
) -> Candidate:
    """Replay a plan of a scenario and judge it.

    A long replay says before it starts about how long it will take. The plan takes
    all devices to be equally fast; the replay does not.
    """
    settings = scenario.simulation.replay
    slowdown = device_slowdowns(scenario, network.num_devices)
    work = lower_plan(network, workload, priced, settings, slowdown=slowdown)
    done = replay(network, work, settings, progress=progress)
    peak = max(timeline.peak for timeline in done.memory)
    return Candidate(
        rank=rank,
        priced=priced,
        planned=_planned(network, workload, priced),
        replay=done,
        simulated=_throughput(network, workload, done.iteration_time, peak),
        verdict=judge(network, priced, done, **_demands(scenario, workload, rank)),
        broken_rules=launch_breaches(scenario, network, workload, priced.plan),
    )


def launch_breaches(
    scenario: Scenario, network: Network, workload: Workload, plan: Plan
) -> tuple[BrokenRule, ...]:
    """Return the rules of a scenario's framework that a plan breaks."""
    search = scenario.search
    if search.rules is None:
        return ()
    facts = LaunchFacts.of(
        workload, network.num_devices, idle_devices=search.idle_devices
    )
    return broken_rules(plan, search.rules, facts)


def explain_candidate(
    scenario: Scenario,
    network: Network,
    workload: Workload,
    candidate: Candidate,
    progress: Progress | None = None,
) -> Candidate:
    """Look closer at the plan that is reported: by more runs of its step.

    The gap is split by level of the network; where the scenario's trace shows all
    devices, the replay records all of them.
    """
    settings = scenario.simulation.replay
    slowdown = device_slowdowns(scenario, network.num_devices)
    work = lower_plan(network, workload, candidate.priced, settings, slowdown=slowdown)
    done = candidate.replay
    progress_of(progress, "replay: explain the reported plan")
    if scenario.simulation.trace == "all":
        done = replay(network, work, settings, every_actor=True)
    gap = explain_gap(network, candidate.priced, done, work, settings)
    demands = _demands(scenario, workload, candidate.rank)
    verdict = judge(network, candidate.priced, done, **demands, gap=gap)
    return replace(candidate, replay=done, verdict=verdict)


def _demands(scenario: Scenario, workload: Workload, rank: int) -> dict[str, Any]:
    """Return what a plan must keep to; ``rank`` is 0 for one that was given."""
    by_replay = rank > 0 and scenario.search.objective == "replayed"
    return {
        "tolerance": None if by_replay else scenario.simulation.tolerance,
        "memory": workload.tensor_memory(scenario.search.memory_reserve),
    }


def _simulated_order(candidate: Candidate) -> tuple[bool, float, int]:
    """Order by simulated time; what does not fit comes last."""
    infeasible = candidate.verdict.kind == "infeasible"
    return infeasible, candidate.simulated.iteration_time, candidate.rank


def _planned(network: Network, workload: Workload, priced: PricedPlan) -> Throughput:
    peak = max(stage.peak_memory for stage in priced.stages)
    return _throughput(network, workload, priced.iteration_time, peak)


def _throughput(
    network: Network, workload: Workload, iteration_time: float, peak_memory: float
) -> Throughput:
    sequences = workload.training.global_batch_size
    tokens = sequences * workload.graph.spec.sequence_length / iteration_time
    flops = sequences * model_flops_per_sequence(workload.graph) / iteration_time
    causal = sequences * model_flops_per_sequence(workload.graph, counts_masked=False)
    per_device = flops / network.num_devices
    peak = workload.accelerator.peak_flops[workload.training.precision]
    return Throughput(
        iteration_time=iteration_time,
        tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / network.num_devices,
        flops_per_device=per_device,
        mfu=per_device / peak,
        mfu_causal=causal / iteration_time / network.num_devices / peak,
        peak_memory=peak_memory,
    )


def simulate_job(
    scenario: Scenario,
    *,
    plan: Plan | None = None,
    source: str = "plan",
    progress: Progress | None = None,
) -> ReplayedResult:
    """Price, replay and judge one plan.

    Parameters
    ----------
    scenario
        The model, the job and the cluster.
    plan
        The plan; None for the one of the scenario's table [plan].
    source
        What errors call ``plan``: the file that it was read from.
    progress
        Told about every step.

    Raises
    ------
    InputError
        If there is no plan, or it does not fit the model, the batch or the cluster.
        Too little memory is a verdict, not an error.
    """
    network, workload = build_job(scenario, progress)
    if plan is None:
        priced = _from_table(scenario, network, workload)
    else:
        priced = _from_file(network, workload, plan, source)
    told = progress_of(progress, "replay: the plan")
    first = replay_plan(scenario, network, workload, priced, 0, told)
    candidate = explain_candidate(scenario, network, workload, first, progress)
    result = job_result("simulate", scenario, network, workload, (candidate,))
    return replace(result, chosen=first_confirmed(result.candidates))


def _from_table(scenario: Scenario, network: Network, workload: Workload) -> PricedPlan:
    if scenario.plan is None:
        raise InputError(
            "there is no plan to replay",
            where="plan",
            expected="a table [plan] in the scenario, or --plan PLAN.json",
        )
    try:
        return price_plan(
            network, workload, build_plan(network, workload, scenario.plan)
        )
    except InputError as error:
        raise error.at("plan") from None


def _from_file(
    network: Network, workload: Workload, plan: Plan, source: str
) -> PricedPlan:
    try:
        check_plan(workload, plan, network.num_devices)
        return price_plan(network, workload, with_algorithms(network, workload, plan))
    except InputError as error:
        raise error.at(source, ": ") from None
