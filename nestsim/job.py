"""The main job: plan, replay the best plans, judge, and choose."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from estimators.model_flops import model_flops_per_sequence
from estimators.tracing import trace_model
from nestsim.placed_work import place_work
from nestsim.scenario.settings import Scenario
from nestsim.simulator.outcome import Replay
from nestsim.simulator.replay import replay
from nestsim.verdict import Verdict, judge
from planner.explain import Explanation, explain
from planner.objective import PricedPlan
from planner.progress import Progress
from planner.remedies import shortfall_and_remedy
from planner.search import SearchResult, search
from planner.wanted import Wanted
from planner.workload import Workload
from topologies.builders import build_network
from topologies.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The same quantities for the plan and for the replay."""

    iteration_time: float
    """[s]"""

    tokens_per_second: float
    """[token/s]"""

    tokens_per_second_per_device: float
    """Over all devices of the cluster, idle ones included [token/s]."""

    flops_per_device: float
    """Model FLOPs (forward and backward, no recompute) per second and device."""

    mfu: float
    """`flops_per_device` over the device's peak."""

    peak_memory: float
    """Of the fullest device [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One of the k best plans, replayed."""

    rank: int
    """Position in the planner's order, from 1."""

    priced: PricedPlan
    planned: Throughput
    replay: Replay
    simulated: Throughput
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Everything that a report needs."""

    scenario_name: str
    network: Network
    layer_names: tuple[str, ...]
    """Names of the chain's layers."""

    device_memory: float
    """Of one device [byte]."""

    candidates: tuple[Candidate, ...]
    """Re-ranked: by simulated throughput, confirmed or not."""

    chosen: int | None
    """Index into `candidates` of the first confirmed one; None if there is none."""

    lower_bound: float
    """No plan of the search space is faster than this, by the planner's model [s]."""

    search_statistics: Mapping[str, int]
    """Configurations considered, priced, and why the others were dropped."""

    shortfall: str
    """Why nothing fits, in one sentence; empty if something does."""

    max_trace_events: int = 100_000
    """The most events that an exported trace may hold: keeps it small enough for a
    browser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCandidate:
    """One of the k best plans, not replayed."""

    rank: int
    """Position in the planner's order, from 1."""

    priced: PricedPlan
    planned: Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """What the search alone has to say: the k best plans without a replay."""

    scenario_name: str
    network: Network
    layer_names: tuple[str, ...]
    """Names of the chain's layers."""

    device_memory: float
    """Of one device [byte]."""

    candidates: tuple[PlannedCandidate, ...]
    """Best first."""

    lower_bound: float
    """No plan of the search space is faster than this, by the planner's model [s]."""

    search_statistics: Mapping[str, int]
    """Configurations considered, priced, and why the others were dropped."""

    shortfall: str
    """Why nothing fits, in one sentence; empty if something does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult:
    """What became of a configuration that a user named."""

    scenario_name: str
    network: Network
    layer_names: tuple[str, ...]
    device_name: str
    explanation: Explanation


def plan_job(scenario: Scenario, *, progress: Progress | None = None) -> PlanResult:
    """Search the k best plans of a scenario, without replaying them.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    network, workload, found = _search(scenario, progress)
    return PlanResult(
        scenario_name=scenario.name,
        network=network,
        layer_names=tuple(workload.graph.names),
        device_memory=workload.accelerator.memory_bytes,
        candidates=tuple(
            PlannedCandidate(
                rank=rank, priced=priced, planned=_planned(network, workload, priced)
            )
            for rank, priced in enumerate(found.plans, start=1)
        ),
        lower_bound=found.lower_bound,
        search_statistics=found.statistics,
        shortfall=found.shortfall,
    )


def explain_job(
    scenario: Scenario, wanted: Wanted, *, progress: Progress | None = None
) -> ExplainResult:
    """Price what a user names beside the best plan of a scenario.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    network, workload = _built(scenario, progress)
    found = explain(network, workload, scenario.search, wanted, progress=progress)
    return ExplainResult(
        scenario_name=scenario.name,
        network=network,
        layer_names=tuple(workload.graph.names),
        device_name=workload.accelerator.name,
        explanation=found,
    )


def run_job(scenario: Scenario, *, progress: Progress | None = None) -> JobResult:
    """Plan a scenario, replay the k best plans, and choose the first confirmed one.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    network, workload, found = _search(scenario, progress)
    candidates = []
    for index, priced in enumerate(found.plans):
        if progress is not None:
            progress(
                f"replay: plan {index + 1} of {len(found.plans)}",
                index / len(found.plans),
            )
        candidates.append(_replayed(scenario, network, workload, priced, index + 1))
    candidates.sort(key=_simulated_order)
    confirmed = (
        index
        for index, candidate in enumerate(candidates)
        if candidate.verdict.kind == "confirmed"
    )
    return JobResult(
        scenario_name=scenario.name,
        network=network,
        layer_names=tuple(workload.graph.names),
        device_memory=workload.accelerator.memory_bytes,
        candidates=tuple(candidates),
        chosen=next(confirmed, None),
        lower_bound=found.lower_bound,
        search_statistics=found.statistics,
        shortfall=found.shortfall,
        max_trace_events=scenario.simulation.trace_events,
    )


def _built(scenario: Scenario, progress: Progress | None) -> tuple[Network, Workload]:
    if progress is not None:
        progress("network: build", None)
    network = build_network(scenario.network_spec)
    if progress is not None:
        progress("model: trace", None)
    workload = Workload(
        graph=trace_model(scenario.spec),
        training=scenario.training,
        accelerator=scenario.accelerator,
    )
    return network, workload


def _search(
    scenario: Scenario, progress: Progress | None
) -> tuple[Network, Workload, SearchResult]:
    network, workload = _built(scenario, progress)
    found = search(network, workload, scenario.search, progress=progress)
    shortfall = shortfall_and_remedy(network, workload, scenario.search, found)
    return network, workload, replace(found, shortfall=shortfall)


def _replayed(
    scenario: Scenario,
    network: Network,
    workload: Workload,
    priced: PricedPlan,
    rank: int,
) -> Candidate:
    done = replay(network, place_work(network, workload, priced))
    peak = max(timeline.peak for timeline in done.memory)
    return Candidate(
        rank=rank,
        priced=priced,
        planned=_planned(network, workload, priced),
        replay=done,
        simulated=_throughput(network, workload, done.iteration_time, peak),
        verdict=judge(
            network,
            priced,
            done,
            tolerance=scenario.simulation.tolerance,
            memory=workload.accelerator.memory_bytes - scenario.search.memory_reserve,
        ),
    )


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
    per_device = flops / network.num_devices
    peak = workload.accelerator.peak_flops[workload.training.precision]
    return Throughput(
        iteration_time=iteration_time,
        tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / network.num_devices,
        flops_per_device=per_device,
        mfu=per_device / peak,
        peak_memory=peak_memory,
    )
