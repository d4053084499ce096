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
from nestsim.evaluate.cluster import build_job, node_size
from nestsim.evaluate.job import run_job, simulate_job
from nestsim.evaluate.results import Candidate, ReplayedResult
from nestsim.features.goodput.closed_form import (
    NodeLoss,
    daly_interval,
    enough_nodes,
    spares_for,
    young_interval,
)
from nestsim.features.goodput.cycle import Cycle
from nestsim.features.goodput.draws import FailureKind, SlowNodes
from nestsim.features.goodput.expected import expected_cycle, without_each
from nestsim.features.goodput.kinds import failure_kinds, failure_log
from nestsim.features.goodput.peers import kept_one_by_one
from nestsim.features.goodput.results import (
    CheckpointFacts,
    GoodputFindings,
    GoodputResult,
    HealthyStep,
    IntervalPoint,
    PeerFacts,
    SeedBand,
)
from nestsim.features.goodput.simulate import (
    PeerHabits,
    RecoveryHabits,
    run_seeds,
)
from nestsim.scenario.goodput import (
    BESIDE_PEERS,
    PUBLISHED,
    STORAGE_PER_DEVICE,
    GoodputSpec,
)
from nestsim.scenario.load import Scenario
from planner.plans.build import build_plan
from planner.step.execution import Workload
from planner.work import Progress
from topologies.errors import InputError
from topologies.network import Network

NUM_SIMULATED, NUM_EXPECTED = 9, 97
"""Intervals of the curve that are simulated, and those of the closed form."""

CURVE_SEEDS = 40
"""Most seeds of each simulated interval of the curve."""

WIDTH = 8.0
"""The curve goes from the best interval, or the job's own one if that is shorter, over
this, at least a step, to the longer one times this."""

MOST_FAILURES = 1e6
"""Expected in one run; with more, nothing would be trained."""

ENOUGH = 0.999
"""Share of the time in which spare nodes should be enough."""


def goodput_job(
    scenario: Scenario,
    *,
    replayed: ReplayedResult | None = None,
    progress: Progress | None = None,
) -> GoodputResult:
    """Find what the job of a scenario trains through failures.

    Parameters
    ----------
    scenario
        The job; its table [goodput] says what fails.
    replayed
        What a run of it found, if there was one; else the plan is replayed, or looked
        for.
    progress
        Called now and then.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    spec = scenario.goodput
    network, workload = build_job(scenario, progress)
    if replayed is None:
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
    log = failure_log(scenario, parts.num_nodes)
    if log is not None and not spec.fit_trace and log.time < spec.duration:
        spec = replace(spec, duration=log.time)
    kinds = failure_kinds(spec, network, parts.num_nodes, log)
    _check_duration(kinds, parts.healthy, spec)
    habits = parts.habits()
    cycle = expected_cycle(habits, kinds)
    habits = replace(habits, outlook=cycle.mtti)
    shortest = parts.healthy.step_time
    if habits.peers is not None:
        shortest = max(shortest, habits.peers.interval)

    def usual(cycle: Cycle) -> float:
        """Return the interval of a job that says nothing."""
        if spec.checkpoint.interval is not None:
            return spec.checkpoint.interval
        # Without failures, once at the end.
        best = max(cycle.best_interval(), spec.checkpoint.least_interval, shortest)
        most = math.inf if cycle.peers is None else max(BESIDE_PEERS, shortest)
        return min(best, most, spec.duration)

    best = max(cycle.best_interval(), shortest)
    habits = replace(habits, interval=usual(cycle))
    _check_interval(habits, parts.healthy)
    seeds = tuple(range(spec.seed, spec.seed + spec.seeds))
    finite = best if math.isfinite(best) else habits.interval
    ends = (
        max(shortest, min(finite, habits.interval) / WIDTH),
        max(finite, habits.interval) * WIDTH,
    )
    curve = _curve(habits, kinds, cycle, ends, seeds, spec.duration, progress)
    losses = [
        NodeLoss(kind.total_rate, kind.nodes, kind.repair)
        for kind in kinds
        if kind.breaks_node
    ]
    losing = cycle.memory_loss
    to_storage = cycle.mtti / losing if losing else math.inf
    spares = math.inf if habits.spares is None else habits.spares
    findings = GoodputFindings(
        healthy=parts.healthy,
        kinds=kinds,
        habits=habits,
        checkpoint=parts.checkpoint,
        cycle=cycle,
        interval_is_given=spec.checkpoint.interval is not None,
        least_interval=spec.checkpoint.least_interval,
        young=young_interval(habits.stall, to_storage),
        daly=daly_interval(habits.stall, to_storage),
        best=best,
        enough_nodes=1.0
        if math.isinf(spares)
        else float(enough_nodes(losses, habits.repair, np.array([spares]))[0]),
        spares_needed=spares_for(losses, habits.repair, ENOUGH),
        runs=run_seeds(habits, kinds, seeds, spec.duration, progress=progress),
        seeds=seeds,
        curve=curve,
        without=without_each(habits, kinds, usual),
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
    if habits.peers is not None and habits.interval < habits.peers.interval:
        raise InputError(
            "is shorter than that of checkpoints in memory",
            where="goodput.checkpoint.interval",
            got=f"{habits.interval:.4g} s",
            expected=f"at least {habits.peers.interval:.4g} s",
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
            peers=None
            if spec.peers is None
            else PeerFacts(
                group=spec.peers.replication_factor,
                jump=spec.peers.replication_jump,
                size=size / self.num_nodes * spec.peers.replication_factor,
            ),
        )

    def _peers(self) -> PeerHabits | None:
        spec = self.spec.checkpoint.peers
        if spec is None:
            return None
        if self.spec.elastic != "off":
            raise InputError(
                "goes on from the memory of all nodes, not without some",
                where="goodput.elastic",
                got=self.spec.elastic,
                expected='"off" beside goodput.checkpoint.peers',
            )
        part = self.checkpoint.size / self.num_nodes / spec.bandwidth
        others = spec.replication_factor - 1
        least = max(self.healthy.step_time, part * others)
        if spec.interval is not None and spec.interval < least:
            raise InputError(
                "is shorter than a step, or than it takes to send a checkpoint",
                where="goodput.checkpoint.peers.interval",
                got=f"{spec.interval:.4g} s",
                expected=f"at least {least:.4g} s",
            )
        return PeerHabits(
            interval=spec.interval or least,
            stall=spec.stall,
            write=part * others,
            read=self.checkpoint.copy + (part if others else 0.0),
            kept=kept_one_by_one(self.num_nodes, spec.replication_factor),
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
            peers=self._peers(),
            detection=spec.detection_time,
            hang_detection=spec.hang_timeout,
            diagnosis=spec.diagnosis_time,
            hang_share=hangs,
            restart=spec.restart_time,
            hot_restart=spec.hot_restart_time,
            warm_restart=spec.warm_restart_time,
            read=checkpoint.read,
            repair=spec.repair_time,
            slow=self._slow(),
            spares=spec.spares,
            num_nodes=self.num_nodes,
            num_replicas=units,
            fewest_replicas=units if spec.elastic == "off" else 1,
            speeds=speeds,
            maintenance_every=math.inf if stops is None else stops.every,
            maintenance=0.0 if stops is None else stops.time,
        )

    def _slow(self) -> SlowNodes | None:
        spec = self.spec.slow
        if spec is None:
            return None
        seen = spec.detection_time
        detection = math.inf if seen is None else seen
        return SlowNodes(spec.share, spec.time, spec.speed, detection)

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
