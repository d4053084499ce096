"""The jobs of one scenario: plan; plan, replay, choose; replay a plan that is given."""

import ctypes
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from nestsim.evaluate.evaluator import Evaluator, progress_of
from nestsim.evaluate.results import (
    Assumptions,
    C,
    Candidate,
    ExplainResult,
    JobKind,
    JobResult,
    PlannedCandidate,
    PlanResult,
    ReplayedResult,
    SimplestPlan,
)
from nestsim.evaluate.uncertainty import (
    MemoryNeed,
    Setting,
    band,
    load_uncertainty,
    traits_of,
)
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.scenario.load import Scenario
from nestsim.simulator.system import MOST_SIMPY_EVENTS
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.explain.explain import explain
from planner.explain.request import Request
from planner.frameworks.framework import FRAMEWORKS
from planner.memory.account import MemoryJob, MemoryLimits
from planner.memory.thrift import least_memory
from planner.plans.build import build_plan, with_algorithms
from planner.plans.checks import check_plan
from planner.rivals.protocol import PlannerOutcome
from planner.search.launchable import rules_of
from planner.search.replayed.simplest import complexity_of
from planner.search.replayed.trail import ProofTrail
from planner.search.thriftiest import fullest_stage
from planner.step.execution import Workload
from planner.step.memory import is_within
from planner.step.plan import Plan
from planner.step.schedules import find_schedule
from planner.work import Progress
from topologies.errors import InputError, located
from topologies.network import Network
from topologies.notices import notices


def plan_job(
    scenario: Scenario,
    *,
    trail: ProofTrail | None = None,
    progress: Progress | None = None,
) -> PlanResult:
    """Search the k best plans of a scenario, and price them.

    Parameters
    ----------
    scenario
        The job.
    trail
        What the search fills for a certificate; None where nobody asks for one.
    progress
        Told about every step.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    evaluator = replace(Evaluator.of(scenario, progress), trail=trail)
    outcome = _find(evaluator, scenario, progress)
    candidates = tuple(
        PlannedCandidate(
            rank=rank,
            priced=priced,
            planned=evaluator.planned(priced),
            replayed_time=time,
        )
        for rank, (priced, time) in enumerate(
            zip_longest(outcome.plans, outcome.replayed_times), start=1
        )
    )
    result = job_result("plan", scenario, evaluator, candidates)
    return with_search(result, evaluator, scenario, outcome)


def explain_job(
    scenario: Scenario, request: Request, *, progress: Progress | None = None
) -> ExplainResult:
    """Price what a user names beside the best plan of a scenario.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    evaluator = Evaluator.of(scenario, progress)
    network, workload = evaluator.network, evaluator.workload
    explanation = explain(
        network,
        workload,
        scenario.search,
        request,
        replays=evaluator.replays,
        progress=progress,
    )
    device = workload.accelerator
    if explanation.priced is not None:
        stage = explanation.priced.plan.stages[explanation.lacking_stage]
        device = workload.smallest_of(stage.devices)
    return ExplainResult(
        scenario_name=scenario.name,
        network=network,
        layer_names=tuple(workload.graph.names),
        device_name=device.name,
        explanation=explanation,
    )


def run_job(
    scenario: Scenario,
    *,
    evaluator: Evaluator | None = None,
    trail: ProofTrail | None = None,
    progress: Progress | None = None,
) -> ReplayedResult:
    """Plan a scenario, replay the k best plans, and choose the first confirmed one.

    Parameters are those of `plan_job`, and the evaluator of a part of the cluster, in
    place of one of all of it.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    for name in ("link_events", "optical"):
        if getattr(scenario, name):
            notices().remark(
                f"cluster.{name} has no effect on a search: nestsim simulate replays a "
                "plan with it"
            )
    if evaluator is None:
        evaluator = Evaluator.of(scenario, progress)
    evaluator = replace(evaluator, trail=trail)
    _check_replayable(scenario, evaluator.network)
    within = scenario.search.simplest_within
    outcome = _find(evaluator, scenario, progress, simplest_within=within)
    candidates = []
    for index, priced in enumerate(outcome.plans):
        share = index / len(outcome.plans)
        doing = f"replay: plan {index + 1} of {len(outcome.plans)}"
        details = progress_of(progress, doing, share)
        # The first one is the likeliest to be reported.
        candidates.append(
            evaluator.evaluate(priced, index + 1, details, confirm=index == 0)
        )
    candidates = [evaluator.with_ramp(candidate) for candidate in candidates]
    candidates.sort(key=_simulated_order)
    chosen = first_confirmed(candidates)
    every, simple = list(candidates), outcome.simplest
    if simple is not None and simple.plan not in map(_plan_of, candidates):
        details = progress_of(progress, "replay: the simplest plan")
        every.append(evaluator.evaluate(simple, len(every) + 1, details))
    if candidates:
        reported = chosen or 0
        every[reported] = evaluator.explain(
            every[reported], progress, is_confirmed=every[reported].rank == 1
        )
        _confirm_others(evaluator, every, reported, progress)
    replayed = tuple(every[: len(candidates)])
    result = job_result("run", scenario, evaluator, replayed)
    if chosen is not None and simple is not None:
        beside = next(
            candidate for candidate in every if _plan_of(candidate) == simple.plan
        )
        result = replace(result, simplest=_simplest(evaluator, every[chosen], beside))
    result = replace(result, chosen=chosen)
    return with_search(result, evaluator, scenario, outcome)


def _plan_of(candidate: Candidate) -> Plan:
    return candidate.priced.plan


def _simplest(
    evaluator: Evaluator, best: Candidate, simple: Candidate
) -> SimplestPlan | None:
    """Hold a simple plan against the one that is reported; None if it is too slow.

    Or not confirmed.
    """
    rules, within = rules_of(evaluator.search), evaluator.search.simplest_within
    times = best.simulated.iteration_time, simple.simulated.iteration_time
    slower_by = times[1] / times[0] - 1.0
    if simple.verdict.kind != "confirmed" or not 0.0 <= slower_by <= within:
        return None
    ours, theirs = (
        complexity_of(candidate.priced.plan, evaluator.workload, rules)
        for candidate in (simple, best)
    )
    return SimplestPlan(
        plan=simple.priced.plan,
        iteration_time=simple.simulated.iteration_time,
        peak_memory=simple.simulated.peak_memory,
        slower_by=slower_by,
        within=within,
        spared=theirs.beyond(ours),
        added=ours.beyond(theirs),
    )


def _confirm_others(
    evaluator: Evaluator,
    candidates: list[Candidate],
    reported: int,
    progress: Progress | None,
) -> None:
    """Let SimPy replay what else is confirmed, best first, as far as time allows.

    All of a report has no more events than SimPy is asked for one plan.
    """
    left = MOST_SIMPY_EVENTS - candidates[reported].replay.num_events
    for index, candidate in enumerate(candidates):
        known = candidate.replay
        if candidate.verdict.kind != "confirmed" or known.engine == "simpy":
            continue
        left -= known.num_events
        if left < 0:
            return
        details = progress_of(progress, f"replay: confirm plan {index + 1}")
        candidates[index] = evaluator.confirm(candidate, details)


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


def _reported(candidates: Sequence[Candidate | PlannedCandidate]) -> int:
    """Return the index of the plan that is reported: the first confirmed one."""
    replayed = [
        candidate for candidate in candidates if isinstance(candidate, Candidate)
    ]
    return first_confirmed(replayed) or 0


def job_result(
    kind: JobKind,
    scenario: Scenario,
    evaluator: Evaluator,
    candidates: tuple[C, ...],
) -> JobResult[C]:
    """Return what there is to report of a job but for what a search found."""
    network, workload = evaluator.network, evaluator.workload
    # Where devices differ, those of the reported plan's fullest stage.
    fullest = None
    if candidates:
        priced = candidates[_reported(candidates)].priced
        fullest = priced.plan.stages[fullest_stage(priced)].devices
    setting = _setting(scenario, network, workload)
    return JobResult(
        kind=kind,
        scenario_name=scenario.name,
        assumptions=Assumptions(
            preset=scenario.software_preset,
            software=workload.software,
            training=workload.training,
            execution=workload.execution,
            accelerator=workload.accelerator,
            parameter_bytes=workload.parameter_bytes,
            constants=scenario.constants,
            links=scenario.links,
            profile=workload.profile,
            network=scenario.network_assumed,
            groups=scenario.groups,
        ),
        network=network,
        layer_names=tuple(workload.graph.names),
        device_memory=workload.smallest_of(fullest).memory_bytes,
        usable_memory=workload.memory_on(fullest, scenario.search.memory_reserve),
        band=None if setting is None else band(setting),
        band_reasons=() if setting is None else load_uncertainty().reasons(setting),
        cost=evaluator.cost,
        candidates=candidates,
        max_trace_events=scenario.simulation.trace_events,
    )


def _setting(
    scenario: Scenario, network: Network, workload: Workload
) -> Setting | None:
    """Return what the band of simulated times depends on, for the worst known device.

    None with ideal software, the user's constants and measured operators.
    """
    software = workload.software
    if scenario.constants or workload.profile is not None or software.name == "ideal":
        return None
    fleet = workload.fleet
    used = (workload.accelerator,) if fleet is None else fleet.accelerators
    settings = [
        Setting(
            software=software.name,
            release=scenario.release,
            accelerator=accelerator.name,
            num_devices=network.num_devices,
            has_experts=bool(workload.graph.spec.num_moe_experts),
            traits=traits_of(workload.graph.spec, software),
        )
        for accelerator in used
    ]
    return max(settings, key=load_uncertainty().half_width)


def _find(
    evaluator: Evaluator,
    scenario: Scenario,
    progress: Progress | None,
    *,
    simplest_within: float = 0.0,
) -> PlannerOutcome:
    """Return the plans of a scenario's planner, or why there are none."""
    outcome = evaluator.find(
        scenario.planner,
        scenario.planner_settings,
        simplest_within=simplest_within,
        progress=progress,
    )
    if sys.platform == "linux":
        # What is freed in pieces stays: 0.5 GB after a search over 100,000 devices.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
    return outcome


def with_search(
    result: JobResult[C],
    evaluator: Evaluator,
    scenario: Scenario,
    outcome: PlannerOutcome,
) -> JobResult[C]:
    """Return a result together with what the search has to say of itself."""
    statistics = dict(outcome.statistics)
    if not statistics:
        statistics = {f"plans priced by {outcome.planner}": outcome.evaluations}
    bound = outcome.lower_bound
    return replace(
        result,
        objective=scenario.search.objective,
        lower_bound=math.nan if bound is None else bound,
        proposed_time=outcome.proposed_time,
        search_statistics=statistics,
        shortfall=outcome.why_not,
        spent=outcome.spent,
        covers_space=outcome.covers_space,
        least_need=None if outcome.plans else _least_need(evaluator, scenario),
    )


def _least_need(evaluator: Evaluator, scenario: Scenario) -> MemoryNeed | None:
    """Return what the least demanding plan of a space needs, if it may fit.

    As `nestsim memory` counts it. None where the estimate decides: with ideal software,
    devices of several kinds, or hosts that have too little.
    """
    known = evaluator.memory_band
    if known is None or evaluator.workload.fleet is not None:
        return None
    search, workload = scenario.search, evaluator.workload
    room = max(workload.tensor_memory(search.memory_reserve), 0.0)
    job = MemoryJob(
        workload=workload,
        rules=search.rules or FRAMEWORKS["ideal"].rules,
        num_devices=evaluator.network.num_devices,
        limits=MemoryLimits(room, scenario.host.memory),
    )
    least = least_memory(job, search)
    if least is None or is_within(least.memory.needed, room):
        return None
    return known.need(least.memory.needed, room)


def _simulated_order(candidate: Candidate) -> tuple[bool, float, int]:
    """Order by simulated time; what does not fit comes last."""
    is_too_large = candidate.verdict.kind in NO_ROOM
    return is_too_large, candidate.simulated.iteration_time, candidate.rank


def simulate_job(
    scenario: Scenario,
    *,
    evaluator: Evaluator | None = None,
    plan: Plan | None = None,
    source: str = "plan",
    progress: Progress | None = None,
) -> ReplayedResult:
    """Price, replay and judge one plan.

    Parameters
    ----------
    scenario
        The model, the job and the cluster.
    evaluator
        Of a part of the cluster; None for one of all of it.
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
    if evaluator is None:
        evaluator = Evaluator.of(scenario, progress)
    network, workload = evaluator.network, evaluator.workload
    if plan is None:
        priced = price_table_plan(scenario, network, workload)
    else:
        priced = _price_file_plan(network, workload, plan, source)
    details = progress_of(progress, "replay: the plan")
    first = evaluator.evaluate(priced, 0, details, confirm=True)
    grown = evaluator.with_ramp(first)
    grown = evaluator.with_link_events(grown, scenario.link_events)
    grown = evaluator.with_circuits(grown, scenario.optical)
    candidate = evaluator.explain(grown, progress, is_confirmed=True)
    result = job_result("simulate", scenario, evaluator, (candidate,))
    return replace(result, chosen=first_confirmed(result.candidates))


def nothing_found(
    scenario: Scenario, *, progress: Progress | None = None
) -> ReplayedResult:
    """Return what there is to report of a scenario without a plan; nothing is searched.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    return job_result("run", scenario, Evaluator.of(scenario, progress), ())


def price_table_plan(
    scenario: Scenario, network: Network, workload: Workload
) -> PricedPlan:
    """Price the plan of a scenario's table [plan].

    Raises
    ------
    InputError
        If there is none, or it does not fit the model, the batch or the cluster.
    """
    if scenario.plan is None:
        raise InputError(
            "there is no plan to replay",
            where="plan",
            expected="a table [plan] in the scenario, or --plan PLAN.json",
        )
    with located("plan"):
        return price_plan(
            network, workload, build_plan(network, workload, scenario.plan)
        )


def _price_file_plan(
    network: Network, workload: Workload, plan: Plan, source: str
) -> PricedPlan:
    with located(source, ": "):
        check_plan(workload, plan, network.num_devices)
        return price_plan(network, workload, with_algorithms(network, workload, plan))
