"""From a scenario to what a job trains through failures.

The healthy step is the one that is given, that of the plan in the table [plan] in the
replay, or of the plan that ``nestsim run`` reports. What fails is counted in the
scenario's cluster; switches and cables are those outside nodes. A checkpoint holds each
weight and optimizer state once, in equal parts on all nodes (as fully parallel saving
does), and goes through the memory of the hosts to the storage.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nestsim.document.wording import plan_label
from nestsim.evaluate.cluster import node_size
from nestsim.evaluate.evaluator import build_job
from nestsim.evaluate.job import run_job, simulate_job
from nestsim.evaluate.results import Candidate, ReplayedResult
from nestsim.features.goodput.closed_form import (
    Cycle,
    NodeLoss,
    daly_interval,
    enough_nodes,
    spares_for,
    young_interval,
)
from nestsim.features.goodput.results import (
    CheckpointFacts,
    GoodputFindings,
    GoodputResult,
    HealthyStep,
    IntervalPoint,
    SeedBand,
)
from nestsim.features.goodput.simulate import (
    GIVEN,
    FailureKind,
    RecoveryHabits,
    run_seeds,
)
from nestsim.features.goodput.trace import FailureLog, logged_kinds, read_log
from nestsim.scenario.base import input_file
from nestsim.scenario.goodput import (
    BREAKS_NODE,
    COMPONENTS,
    PARTS_OF_FABRIC,
    PUBLISHED,
    STORAGE_PER_DEVICE,
    GoodputSpec,
)
from nestsim.scenario.load import Scenario
from planner.plans.build import build_plan
from planner.step.execution import Workload
from planner.work import Progress
from topologies.errors import InputError
from topologies.fabrics.inventory import network_parts
from topologies.network import Network
from topologies.notices import notices

NUM_SIMULATED, NUM_EXPECTED = 9, 97
"""Intervals of the curve that are simulated, and those of the closed form."""

CURVE_SEEDS = 40
"""Most seeds of each simulated interval of the curve."""

WIDTH = 8.0
"""The curve goes from the best interval, or the job's own one if that is shorter, over
this, at least a step, to the longer one times this."""

MOST_FAILURES = 1e6
"""Expected in one run; with more, nothing would be trained."""

FIRST_DOMAIN = 10_000
"""Number of the random numbers of the first domain, behind all others."""

ENOUGH = 0.999
"""Share of the time in which spare nodes should be enough."""


def goodput_job(
    scenario: Scenario, *, progress: Progress | None = None
) -> GoodputResult:
    """Find what the job of a scenario trains through failures.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    spec = scenario.goodput
    network, workload = build_job(scenario, progress)
    replayed = _replayed(scenario, progress)
    result = GoodputResult(
        scenario_name=scenario.name,
        num_devices=network.num_devices,
        device_name=scenario.device_names,
    )
    candidate = _reported(replayed)
    if replayed is not None and candidate is None:
        return replace(result, shortfall=replayed.shortfall, spent=replayed.spent)
    parts = _JobParts(scenario, network, workload, candidate)
    log = _log(scenario, parts.num_nodes)
    if log is not None and not spec.fit_trace and log.time < spec.duration:
        spec = replace(spec, duration=log.time)
    kinds = failure_kinds(spec, network, parts.num_nodes, log)
    _check_duration(kinds, parts.healthy, spec)
    habits = parts.habits()
    cycle = _cycle(habits, kinds)
    habits = replace(habits, outlook=cycle.mtti)
    best = max(cycle.best_interval(), parts.healthy.step_time)
    if spec.checkpoint.interval is None:
        # Without failures, once at the end.
        interval = min(max(best, spec.checkpoint.least_interval), spec.duration)
        habits = replace(habits, interval=interval)
    _check_interval(habits, parts.healthy)
    seeds = tuple(range(spec.seed, spec.seed + spec.seeds))
    ends = (
        max(parts.healthy.step_time, min(best, habits.interval) / WIDTH),
        max(best, habits.interval) * WIDTH,
    )
    curve = _curve(habits, kinds, cycle, ends, seeds, spec.duration, progress)
    losses = [
        NodeLoss(kind.total_rate, kind.nodes) for kind in kinds if kind.breaks_node
    ]
    spares = math.inf if habits.spares is None else habits.spares
    findings = GoodputFindings(
        healthy=parts.healthy,
        kinds=kinds,
        habits=habits,
        checkpoint=parts.checkpoint,
        cycle=cycle,
        interval_is_given=spec.checkpoint.interval is not None,
        least_interval=spec.checkpoint.least_interval,
        diagnosis=spec.diagnosis_time,
        young=young_interval(habits.stall, cycle.mtti),
        daly=daly_interval(habits.stall, cycle.mtti),
        best=best,
        enough_nodes=1.0
        if math.isinf(spares)
        else float(enough_nodes(losses, habits.repair, np.array([spares]))[0]),
        spares_needed=spares_for(losses, habits.repair, ENOUGH),
        runs=run_seeds(habits, kinds, seeds, spec.duration, progress=progress),
        seeds=seeds,
        curve=curve,
    )
    return replace(
        result,
        num_devices=parts.num_devices,
        findings=findings,
        spent=None if replayed is None else replayed.spent,
    )


def _replayed(scenario: Scenario, progress: Progress | None) -> ReplayedResult | None:
    """Return the replay of the scenario's plan, None where its time is given."""
    if scenario.goodput.step_time is not None:
        return None
    if scenario.plan is not None:
        return simulate_job(scenario, progress=progress)
    return run_job(scenario, progress=progress)


def _reported(replayed: ReplayedResult | None) -> Candidate | None:
    if replayed is None or not replayed.candidates:
        return None
    return replayed.candidates[replayed.chosen or 0]


def _log(scenario: Scenario, num_nodes: int) -> FailureLog | None:
    """Return the log of failures that the scenario names."""
    spec = scenario.goodput
    if spec.trace is None:
        return None
    path = input_file(
        scenario.path.parent, spec.trace, "goodput.trace", "a log of failures"
    )
    return read_log(path, time=spec.trace_time, num_nodes=spec.trace_nodes or num_nodes)


def failure_kinds(
    spec: GoodputSpec, network: Network, num_nodes: int, log: FailureLog | None = None
) -> tuple[FailureKind, ...]:
    """Return what fails of a cluster, and how often; what never does is left out."""
    parts = network_parts(network)
    counts = {
        "device": network.num_devices,
        "node": num_nodes,
        "switch": sum(part.count for part in parts.switches if not part.inside_node),
        "link": sum(
            part.count * part.cables_each(part.cable_bandwidth)
            for part in parts.bundles
            if not part.inside_node
        ),
        "fabric": network.num_devices,
        "job": 1,
        "software": network.num_devices,
    }
    published = None if log else PUBLISHED.get(spec.failures)
    known = {} if published is None else published.rates()
    rates = spec.rates.given()
    if not rates.keys().isdisjoint(PARTS_OF_FABRIC):
        known.pop("fabric", None)
    source = "" if published is None else published.source
    kinds = logged_kinds(log, num_nodes, fits=spec.fit_trace) if log else []
    for kind in kinds:
        if kind.name in rates:
            raise InputError(
                "is the name of a cause in the log",
                where=f"goodput.rates.{kind.name}",
                expected="a component that the log has not",
            )
    for stream, name in enumerate(COMPONENTS):
        given = rates.get(name)
        rate = known.get(name, 0.0) if given is None else given.rate
        if given is not None and not counts[name]:
            notices().remark(
                f"goodput.rates.{name} has no effect: outside its nodes the network "
                f"has no {name}"
            )
        if rate and counts[name]:
            kinds.append(
                FailureKind(
                    name=name,
                    stream=stream,
                    count=counts[name],
                    rate=rate,
                    shape=1.0 if given is None else given.shape,
                    breaks_node=name in BREAKS_NODE,
                    source=source if given is None else GIVEN,
                )
            )
    taken = {*COMPONENTS, *(kind.name for kind in kinds)}
    return *kinds, *_domain_kinds(spec, network, num_nodes, taken)


def _domain_kinds(
    spec: GoodputSpec, network: Network, num_nodes: int, taken: set[str]
) -> list[FailureKind]:
    """Return what takes several nodes of a cluster at once; names are not to be taken.

    The last domain may be smaller, and counts as a whole one.
    """
    blocks = {
        level.name: -(-level.block_size // node_size(network))
        for level in network.levels
    }
    kinds = []
    for place, domain in enumerate(spec.domains):
        if domain.name in taken:
            raise InputError(
                "is the name of something else that fails",
                where=f"goodput.domains[{place}].name",
                got=domain.name,
                expected="a name of its own",
            )
        taken.add(domain.name)
        nodes = blocks.get(domain.level or "", domain.nodes)
        if nodes is None:
            raise InputError(
                "is no level of the network",
                where=f"goodput.domains[{place}].level",
                got=domain.level,
                expected=" or ".join(blocks),
            )
        if nodes > num_nodes:
            raise InputError(
                "is larger than the job",
                where=f"goodput.domains[{place}].nodes",
                got=f"{nodes:,} nodes",
                expected=f"at most {num_nodes:,}",
            )
        if domain.rate:
            kinds.append(
                FailureKind(
                    name=domain.name,
                    stream=FIRST_DOMAIN + place,
                    count=-(-num_nodes // nodes),
                    rate=domain.rate,
                    shape=domain.shape,
                    breaks_node=True,
                    nodes=nodes,
                    source=GIVEN,
                )
            )
    return kinds


def _check_duration(
    kinds: Sequence[FailureKind], healthy: HealthyStep, spec: GoodputSpec
) -> None:
    """Refuse runs of no step, and more failures or stops than any job lives with."""
    if spec.duration < healthy.step_time:
        raise InputError(
            "is shorter than a step",
            where="goodput.duration",
            got=f"{spec.duration:.4g} s",
            expected=f"at least {healthy.step_time:.4g} s",
        )
    count = sum(kind.total_rate * kind.nodes for kind in kinds) * spec.duration
    if count > MOST_FAILURES:
        raise InputError(
            "lets the job fail too often",
            where="goodput.rates" if spec.rates.given() else "goodput.duration",
            got=f"about {count:.3g} failures in {spec.duration:.4g} s",
            expected=f"at most {MOST_FAILURES:,.0f} in a run",
        )
    every = math.inf if spec.maintenance is None else spec.maintenance.every
    if spec.duration > MOST_FAILURES * every:
        raise InputError(
            "stops the job too often",
            where="goodput.maintenance.every",
            got=f"{every:.4g} s, {spec.duration / every:.3g} stops in a run",
            expected=f"at most {MOST_FAILURES:,.0f} stops in a run",
        )


def _check_interval(habits: RecoveryHabits, healthy: HealthyStep) -> None:
    if habits.interval < healthy.step_time:
        raise InputError(
            "is shorter than a step, between which checkpoints are written",
            where="goodput.checkpoint.interval",
            got=f"{habits.interval:.4g} s",
            expected=f"at least {healthy.step_time:.4g} s",
        )


def _cycle(habits: RecoveryHabits, kinds: Sequence[FailureKind]) -> Cycle:
    rate = sum(kind.total_rate for kind in kinds)
    return Cycle(
        mtti=1.0 / rate if rate else math.inf,
        stall=habits.stall,
        background=habits.background,
        detection=habits.mean_detection,
        restart=habits.restart,
        stopped=habits.stopped,
    )


def _curve(  # noqa: PLR0913, PLR0917 - what a run is made of
    habits: RecoveryHabits,
    kinds: Sequence[FailureKind],
    cycle: Cycle,
    ends: tuple[float, float],
    seeds: Sequence[int],
    duration: float,
    progress: Progress | None,
) -> tuple[IntervalPoint, ...]:
    """Return goodput over intervals; none without failures."""
    if math.isinf(cycle.mtti):
        return ()
    every = (NUM_EXPECTED - 1) // (NUM_SIMULATED - 1)
    few = seeds[:CURVE_SEEDS]
    points = []
    for place, one in enumerate(np.geomspace(*ends, NUM_EXPECTED)):
        interval = float(one)
        simulated = None
        if place % every == 0:
            if progress is not None:
                progress("goodput over intervals", place / NUM_EXPECTED)
            runs = run_seeds(
                replace(habits, interval=interval), kinds, few, duration, num_marks=1
            )
            simulated = SeedBand.of(runs.goodput)
        points.append(IntervalPoint(interval, cycle.goodput(interval), simulated))
    return tuple(points)


class _JobParts:
    """What the scenario says of the job, its checkpoints and its habits."""

    def __init__(
        self,
        scenario: Scenario,
        network: Network,
        workload: Workload,
        candidate: Candidate | None,
    ) -> None:
        self.scenario, self.spec = scenario, scenario.goodput
        self.network, self.workload, self.candidate = network, workload, candidate
        self.num_devices = network.num_devices
        self.node_size = node_size(network)
        self.num_nodes = -(-self.num_devices // self.node_size)
        self.healthy = self._healthy()
        self.checkpoint = self._checkpoint()

    def _healthy(self) -> HealthyStep:
        training, graph = self.workload.training, self.workload.graph
        tokens = float(training.global_batch_size * graph.spec.sequence_length)
        if self.spec.step_time is not None:
            return HealthyStep(
                step_time=self.spec.step_time, tokens=tokens, source="as given"
            )
        assert self.candidate is not None
        which = "the plan that is given" if self.scenario.plan else "the plan found"
        return HealthyStep(
            step_time=self.candidate.simulated.iteration_time,
            tokens=tokens,
            source=f"replay of {which}, {plan_label(self.candidate.priced.plan)}",
        )

    def _checkpoint(self) -> CheckpointFacts:
        spec = self.spec.checkpoint
        size, per_parameter = spec.size, None
        if size is None:
            kept = self.workload.parameter_bytes
            per_parameter = kept.weights - kept.frozen + kept.optimizer
            size = per_parameter * self.workload.graph.num_parameters
        host = self.scenario.host
        to_host = spec.host_bandwidth or host.to_host / host.devices_per_link
        nodes = size / (self.num_nodes * spec.node_bandwidth)
        usual = STORAGE_PER_DEVICE * self.num_devices
        written = size / (spec.write_bandwidth or usual)
        read = size / (spec.read_bandwidth or usual)
        return CheckpointFacts(
            size=size,
            bytes_per_parameter=per_parameter,
            copy=size / self.num_devices / to_host,
            upload=max(nodes, written),
            read=max(nodes, read),
            write_limit="storage" if written > nodes else "nodes",
        )

    def habits(self) -> RecoveryHabits:
        """Return what the job does; the interval is that of the user, or 0."""
        spec, checkpoint = self.spec, self.checkpoint
        published = None if spec.trace else PUBLISHED.get(spec.failures)
        hangs = spec.hang_share
        if hangs is None:
            hangs = 0.0 if published is None else published.hang_share
        units, speeds = self._replicas()
        stops = spec.maintenance
        return RecoveryHabits(
            interval=spec.checkpoint.interval or 0.0,
            copy=checkpoint.copy,
            write=checkpoint.copy + checkpoint.upload,
            is_asynchronous=spec.checkpoint.asynchronous,
            detection=spec.detection_time + spec.diagnosis_time,
            hang_detection=spec.hang_timeout + spec.diagnosis_time,
            hang_share=hangs,
            restart=spec.restart_time + checkpoint.read,
            repair=spec.repair_time,
            spares=spec.spares,
            num_nodes=self.num_nodes,
            num_replicas=units,
            fewest_replicas=units if spec.elastic == "off" else 1,
            speeds=speeds,
            maintenance_every=math.inf if stops is None else stops.every,
            maintenance=0.0 if stops is None else stops.time,
        )

    def _replicas(self) -> tuple[int, tuple[float, ...]]:
        """Return parts of the job that whole nodes make, and how fast some of them are.

        Several replicas are one part if they share a node.
        """
        if self.spec.elastic == "off":
            return 1, (0.0, 1.0)
        replicas, micro_batch = self._data_parallel()
        units = math.gcd(replicas, self.num_nodes)
        if self.spec.elastic == "smaller-batch":
            return units, tuple(count / units for count in range(units + 1))
        batches = -(-self.workload.training.global_batch_size // micro_batch)
        whole = -(-batches // replicas)
        slower = [
            whole / -(-batches // (replicas * count // units))
            for count in range(1, units + 1)
        ]
        return units, (0.0, *slower)

    def _data_parallel(self) -> tuple[int, int]:
        """Return replicas of the model, and sequences of a microbatch."""
        if self.candidate is not None:
            plan = self.candidate.priced.plan
            return plan.parallel.data_parallel_size, plan.micro_batch_size
        given = self.scenario.plan
        if given is None:
            raise InputError(
                "needs a plan to know the replicas",
                where="goodput.elastic",
                got=self.spec.elastic,
                expected='a table [plan], no goodput.step_time, or "off"',
            )
        try:
            plan = build_plan(self.network, self.workload, given)
        except InputError as error:
            raise error.at("plan") from None
        return plan.parallel.data_parallel_size, plan.micro_batch_size
