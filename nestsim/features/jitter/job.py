"""Replay a plan again and again, each time with other draws.

The plan is that of the table [plan], or the one that replays fastest among those that
the scenario's planner finds. Runs are points of a sweep: some runs of a number of
replicas each, so that processes share them and results depend on nothing but the
scenario. A run's draws depend on the seed and its number alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from nestsim.evaluate.evaluator import Evaluator, progress_of
from nestsim.evaluate.job import price_table_plan
from nestsim.features.jitter.closed_form import Paces, approximations
from nestsim.features.jitter.order_statistics import QuantileBand, sample_quantile
from nestsim.features.jitter.pipelines import form_of
from nestsim.features.jitter.scale import (
    ScaleRow,
    SimulatedMean,
    fewer_replicas,
    sizes_of,
)
from nestsim.features.sweep.executors.processes import Processes
from nestsim.features.sweep.executors.protocol import Executor, Shared
from nestsim.features.sweep.runner import run_sweep
from nestsim.features.sweep.scenario_task import scenario_digest
from nestsim.running.store import Point, Row, content_key
from nestsim.scenario.jitter import JitterSpec
from nestsim.scenario.load import Scenario
from nestsim.simulator.jittered import jittered_replay
from nestsim.simulator.system import Replay
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.rivals.protocol import PlannerOutcome
from planner.step.plan import Plan
from planner.work import Progress, Spent
from topologies.arrays import FloatArray
from topologies.errors import InputError, short_repr

SHARES = (0.5, 0.95, 0.99)
"""Quantiles that are reported."""

RUNS_OF_POINT = 25
"""Runs of a point: few enough to be shared by processes, and many beside building the
step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestActor:
    """Who computed longest in the longest step, beside what it takes without jitter."""

    run: int
    """Number of the run."""

    time: float
    """The step's time [s]."""

    stage: int
    """Stage of the pipeline."""

    replica: int
    """Replica of the stage."""

    devices: tuple[int, ...]
    """Its devices."""

    slow_devices: tuple[int, ...]
    """Those of them that were slow in this run."""

    ratio: float
    """Its time at work over what it is without jitter, always slow devices included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JitteredSteps:
    """What a plan's steps take."""

    plain_time: float
    """Time of a step without jitter, by the same replay [s]."""

    times: FloatArray
    """Time of each run's step, in their order, shape ``(R,)`` [s]."""

    tokens: float
    """Tokens of a step."""

    slowest: SlowestActor
    """Who was slowest in the longest step."""

    @property
    def simulated(self) -> SimulatedMean:
        """Mean of the runs."""
        return SimulatedMean.of(self.times)

    @property
    def loss(self) -> float:
        """Mean step over the step without jitter, less 1."""
        return self.simulated.mean / self.plain_time - 1.0

    @property
    def worst(self) -> float:
        """The longest step [s]."""
        return float(self.times.max())

    def bands(self) -> tuple[QuantileBand, ...]:
        """Return the quantiles of `SHARES` with their bands [s]."""
        ordered = np.sort(self.times)
        return tuple(sample_quantile(ordered, share) for share in SHARES)


@dataclass(frozen=True, slots=True, kw_only=True)
class JitterResult:
    """Everything that a report on jitter needs."""

    scenario_name: str
    """Name of the scenario."""

    spec: JitterSpec
    """What differs from step to step."""

    num_devices: int
    """Devices of the cluster."""

    priced: PricedPlan | None
    """The plan; None if none fits."""

    shortfall: str
    """Why there is no plan, in one sentence; empty if there is one."""

    spent: Spent | None
    """The work of the search; None where the plan was given."""

    steps: JitteredSteps | None
    """What was replayed; None without a plan."""

    scale: tuple[ScaleRow, ...]
    """The plan on fewer and on more replicas, from the fewest on."""

    approximations: tuple[str, ...]
    """Why the closed form is not exact, one clause each; empty if it is."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class JitterTask:
    """Point: replicas and some runs. Row: the time of each run's step."""

    spec: JitterSpec
    """What differs from step to step."""

    sizes: "Shared[ReplicaSizes]"
    """The plan on each number of replicas."""

    read: tuple[Path, ...]
    """Files that the scenario is read from."""

    @classmethod
    def of(
        cls, scenario: Scenario, plan: Plan, evaluator: Evaluator | None = None
    ) -> "JitterTask":
        """Return the task for a plan of a scenario, and what evaluates both here."""
        parts = [scenario_digest(scenario), repr(scenario.jitter), plan.to_json()]
        make = partial(ReplicaSizes.of, scenario, plan)
        sizes = Shared(content_key(parts), make)
        if evaluator is not None:
            sizes.put(ReplicaSizes(evaluator, plan))
        return cls(spec=scenario.jitter, sizes=sizes, read=scenario.files())

    def __call__(self, point: Point) -> Row:
        """Return the time of each run's step [s]."""
        evaluator, priced = self.sizes().of_size(point["replicas"])
        runs = range(point["first"], point["first"] + point["runs"])
        times = jittered_times(evaluator, priced, self.spec, runs)
        return {"step_times_s": times.tolist()}

    def files(self, _: Sequence[Point]) -> tuple[Path, ...]:
        """Return the files that points read, which travel to other machines."""
        return self.read

    def key(self, point: Point) -> str:
        """Return a hash of the point, the scenario and the plan."""
        return content_key([self.sizes.key, dict(point)])


@dataclass(slots=True)
class ReplicaSizes:
    """A plan with each number of replicas, made once."""

    evaluator: Evaluator
    """What evaluates the plan."""

    plan: Plan
    """The plan as it was found."""

    _sizes: dict[int, tuple[Evaluator, PricedPlan]] = field(default_factory=dict)
    """The plan with so many replicas, and what evaluates it, where that was asked."""

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan) -> "ReplicaSizes":
        """Return a plan of a scenario."""
        return cls(compiled(Evaluator.of(scenario)), plan)

    def of_size(self, num_replicas: int) -> tuple[Evaluator, PricedPlan]:
        """Return the plan with so many replicas, and what evaluates it."""
        if num_replicas not in self._sizes:
            sized = fewer_replicas(self.evaluator, self.plan, num_replicas)
            assert sized is not None
            self._sizes[num_replicas] = sized
        return self._sizes[num_replicas]


def compiled(evaluator: Evaluator) -> Evaluator:
    """Return an evaluator whose replays are compiled: there are many, of equal bits."""
    settings = evaluator.simulation
    if settings.engine != "auto":
        return evaluator
    return replace(evaluator, simulation=replace(settings, engine="compiled"))


def with_slow_devices(evaluator: Evaluator, spec: JitterSpec, run: int) -> Evaluator:
    """Return the evaluator of a fleet with the slow devices of one run, too."""
    drawn = spec.slowdowns(evaluator.network.num_devices, run)
    return replace(evaluator, workload=evaluator.workload.slowed(drawn))


def always_slow(evaluator: Evaluator) -> FloatArray:
    """Return what each device's compute takes longer without jitter, shape ``(N,)``."""
    fleet = evaluator.workload.fleet
    return np.ones(evaluator.network.num_devices) if fleet is None else fleet.factors()


def paces_of(evaluator: Evaluator, priced: PricedPlan) -> Paces:
    """Return how slow the devices of a plan are, and what slower ones make of it."""
    num_devices = evaluator.network.num_devices

    def slowed(factor: float) -> PipelineWork:
        workload = evaluator.workload.slowed(np.full(num_devices, factor))
        slower = replace(evaluator, workload=workload)
        return slower.lower(slower.price(priced.plan), memory=False)

    return Paces(always_slow(evaluator), slowed)


def jittered_times(
    evaluator: Evaluator, priced: PricedPlan, spec: JitterSpec, runs: range
) -> FloatArray:
    """Return how long the steps of some runs take [s].

    Parameters
    ----------
    evaluator, priced
        The plan, and what evaluates it.
    spec
        What differs from step to step.
    runs
        Numbers of the runs.
    """
    if not spec.slow:
        return evaluator.jittered_times(priced, spec.jitter, runs)
    num_devices = evaluator.network.num_devices
    used = np.unique([stage.devices for stage in priced.plan.stages])
    alike: dict[bytes, list[int]] = {}
    for run in runs:
        drawn = spec.slowdowns(num_devices, run)[used]
        alike.setdefault(drawn.tobytes(), []).append(run)
    times = np.empty(len(runs))
    for some in alike.values():
        # One step is built for all runs on devices that are alike.
        slowed = with_slow_devices(evaluator, spec, some[0])
        again = slowed.price(priced.plan)
        places = np.array(some) - runs.start
        times[places] = slowed.jittered_times(again, spec.jitter, some)
    return times


def jitter_job(
    scenario: Scenario,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> JitterResult:
    """Replay the scenario's plan with the draws of its table [jitter].

    Parameters
    ----------
    scenario
        The job.
    workers
        Processes; None for one for each core. Results do not depend on it.
    executor
        Who replays; None for so many processes.
    progress
        Told about every step.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    evaluator = compiled(Evaluator.of(scenario, progress))
    priced, outcome = _plan_of(scenario, evaluator, progress)
    spec = scenario.jitter
    result = JitterResult(
        scenario_name=scenario.name,
        spec=spec,
        num_devices=evaluator.network.num_devices,
        priced=priced,
        shortfall="" if outcome is None or priced is not None else outcome.why_not,
        spent=None if outcome is None else outcome.spent,
        steps=None,
        scale=(),
        approximations=(),
    )
    if priced is None:
        return result
    task = JitterTask.of(scenario, priced.plan, evaluator)
    jobs = task.sizes()
    sizes = sizes_of(evaluator, priced.plan)
    times = _all_times(task, sizes, executor or Processes(workers), progress)
    replicas = priced.plan.parallel.data_parallel_size
    plain = {size: _plain_time(*jobs.of_size(size)) for size in sizes}
    progress_of(progress, "replay: the longest step")
    whole = times[replicas]
    slowest = _slowest(evaluator, priced, spec, int(np.argmax(whole)), whole)
    tokens = (
        evaluator.workload.training.global_batch_size
        * evaluator.workload.graph.spec.sequence_length
    )
    work = evaluator.lower(priced, memory=False)
    scale = tuple(_scale(jobs, spec, plain, times))
    return replace(
        result,
        steps=JitteredSteps(
            plain_time=plain[replicas], times=whole, tokens=tokens, slowest=slowest
        ),
        scale=scale,
        approximations=approximations(
            work,
            spec,
            sum_error=max(row.closed_error / row.plain_time for row in scale),
        ),
    )


def _plan_of(
    scenario: Scenario, evaluator: Evaluator, progress: Progress | None
) -> tuple[PricedPlan | None, PlannerOutcome | None]:
    """Return the plan, None if there is none, and what the search says of itself."""
    if scenario.plan is not None:
        network, workload = evaluator.network, evaluator.workload
        return price_table_plan(scenario, network, workload), None
    settings = scenario.planner_settings
    outcome = evaluator.find(scenario.planner, settings, progress=progress)
    if not outcome.plans:
        return None, outcome
    times = outcome.replayed_times or [
        evaluator.replayed_time(priced) for priced in outcome.plans
    ]
    return outcome.plans[int(np.argmin(times))], outcome


def _all_times(
    task: JitterTask,
    sizes: Sequence[int],
    executor: Executor,
    progress: Progress | None,
) -> dict[int, FloatArray]:
    """Return the times of all runs of each number of replicas [s].

    Raises
    ------
    InputError
        If a run could not be replayed.
    """
    spec = task.spec
    points = [
        {
            "replicas": size,
            "first": first,
            "runs": min(RUNS_OF_POINT, spec.runs - first),
        }
        # The largest first: processes then end at about the same time.
        for size in reversed(sizes)
        for first in range(0, spec.runs, RUNS_OF_POINT)
    ]
    swept = run_sweep(
        points, task, executor=executor, progress=progress_of(progress, "replay")
    )
    for failed in swept.failed:
        raise InputError(
            f"a step cannot be replayed: {failed.reason}",
            where="jitter",
            got=f"{failed.point['replicas']:,} replicas",
            expected="a step that `nestsim simulate` replays",
        )
    parts: dict[int, list[float]] = {size: [] for size in sizes}
    for point, row in zip(points, swept.rows, strict=True):
        assert row is not None
        parts[point["replicas"]] += row["step_times_s"]
    return {size: np.array(part) for size, part in parts.items()}


def _plain_time(evaluator: Evaluator, priced: PricedPlan) -> float:
    return evaluator.replayed_time(priced)


def _scale(
    jobs: ReplicaSizes,
    spec: JitterSpec,
    plain: Mapping[int, float],
    times: Mapping[int, FloatArray],
) -> Iterator[ScaleRow]:
    """Yield the plan on each number of replicas that is simulated, and on more."""
    for size, plain_time in plain.items():
        evaluator, priced = jobs.of_size(size)
        work = evaluator.lower(priced, memory=False)
        paces = paces_of(evaluator, priced)
        packed = evaluator.packed(priced, spec.jitter)
        form = form_of(evaluator.network, work, plain_time, spec, paces, packed)
        simulated = SimulatedMean.of(times[size])
        row = ScaleRow.of(size, work, plain_time, form(1), simulated)
        yield row
        if size == max(plain):
            multiple = 2
            while multiple <= spec.most_replicas:
                more = form(multiple)
                yield ScaleRow.of(size * multiple, work, plain_time, more, row)
                multiple *= 2


def _slowest(
    evaluator: Evaluator,
    priced: PricedPlan,
    spec: JitterSpec,
    run: int,
    times: FloatArray,
) -> SlowestActor:
    """Return who was at work longest in a run, beside others of its stage."""
    slowed = with_slow_devices(evaluator, spec, run)
    work = slowed.lower(slowed.price(priced.plan), memory=False)
    settings = evaluator.simulation
    packed = slowed.packed(priced, spec.jitter)
    done = jittered_replay(evaluator.network, work, settings, spec.jitter, run, packed)
    quiet = evaluator.lower(priced, memory=False)
    num_stages, num_replicas, _ = work.devices.shape
    plain = _worked(evaluator.replay(quiet, memory=False), num_stages, num_replicas)
    worked = _worked(done, num_stages, num_replicas)
    usual = np.array([min(row[row > 0.0]) for row in plain])[:, None]
    place = int(np.argmax(worked / usual))
    stage, replica = np.unravel_index(place, worked.shape)
    devices = work.devices[stage, replica]
    # One of the actors of a stage on equal devices is never folded.
    alike = plain[stage, quiet.kind[stage] == quiet.kind[stage, replica]]
    fleet = slowed.workload.fleet
    assert fleet is not None
    is_slow = fleet.factors()[devices] > 1.0
    return SlowestActor(
        run=run,
        time=float(times[run]),
        stage=int(stage),
        replica=int(replica),
        devices=tuple(devices.tolist()),
        slow_devices=tuple(devices[is_slow].tolist()),
        ratio=float(worked[stage, replica] / min(alike[alike > 0.0])),
    )


def _worked(done: Replay, num_stages: int, num_replicas: int) -> FloatArray:
    """Return how long each actor worked, shape ``(p, d)``; 0 for folded ones [s]."""
    spans = done.spans
    place = spans.stage * num_replicas + spans.replica
    total = np.zeros(num_stages * num_replicas)
    np.add.at(total, place, spans.end - spans.start)
    return total.reshape(num_stages, num_replicas)
