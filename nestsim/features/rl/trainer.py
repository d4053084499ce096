"""The pool that trains: its plan, one update of it, and its forward passes.

A pool sees its own devices alone, as a network of their own. The plan is the
scenario's, or the best that the search finds for a mini-batch, confirmed by its replay
as in ``nestsim run``; a critic of another model has a plan of its own.
"""

from dataclasses import dataclass, field, replace

from nestsim.document.wording import plan_label
from nestsim.evaluate.cluster import (
    build_workload,
    cluster_software,
    device_fleet,
    network_in_use,
)
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import run_job, simulate_job
from nestsim.evaluate.results import Candidate, ReplayedResult
from nestsim.evaluate.uncertainty import room_band
from nestsim.features.rl.batch import PackedBatch
from nestsim.features.rl.forward import closed_form_time, forward_only, forward_time
from nestsim.scenario.load import Scenario
from planner.plans.spec import PlanSpec
from planner.step.plan import Plan
from planner.work import Progress, Spent
from topologies.arrays import IntArray
from topologies.builders import sub_network
from topologies.network import Network

MOST_EMPTY = 0.02
"""Part of a mini-batch's rows that may be added empty."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """One model on the devices of a pool."""

    devices: IntArray
    """Device of the whole network that each of the pool's devices is."""

    evaluator: Evaluator
    """What its plans are evaluated with."""

    candidate: Candidate | None
    """The plan that is reported, with its replay; None if none fits."""

    shortfall: str
    """Why there is no plan; empty if there is one."""

    spent: Spent | None
    """What the search took; None where the plan was given."""

    forward: float = 0.0
    """All rows of a step through the forward pass alone, in the replay [s]."""

    forward_closed_form: float = 0.0
    """The same by the closed form [s]."""

    updates: int = 1
    """Updates of a step."""

    rounds: int = 1
    """Microbatches of each replica in the forward passes of a step."""

    @property
    def plan(self) -> Plan:
        """The plan that is reported."""
        assert self.candidate is not None
        return self.candidate.priced.plan

    @property
    def label(self) -> str:
        """The plan in a few letters."""
        return plan_label(self.plan)

    @property
    def update(self) -> float:
        """One update of the weights in the replay [s]."""
        assert self.candidate is not None
        return self.candidate.replay.iteration_time

    @property
    def training(self) -> float:
        """All updates of a step [s]."""
        return self.updates * self.update

    @property
    def peak_memory(self) -> float:
        """Most that a device holds in training [byte]."""
        assert self.candidate is not None
        return self.candidate.simulated.peak_memory

    def held(self, *parts: str) -> float:
        """Return the most that a device holds of some parts of memory [byte]."""
        assert self.candidate is not None
        return max(
            sum(stage.memory.get(part, 0.0) for part in parts)
            for stage in self.candidate.priced.stages
        )


@dataclass(slots=True)
class Trainers:
    """Trains the batch of a step on pools of any size, each size once."""

    scenario: Scenario
    """The whole job."""

    wires: Network
    """Network of all devices, as built; no hosts."""

    batch: PackedBatch
    """What is trained in a step."""

    progress: Progress | None = None
    """Told what is planned."""

    known: dict[tuple[int, bool], Trained] = field(default_factory=dict)
    """What was found, by the number of devices and whether they are spread."""

    def on(self, devices: IntArray, spread: bool = False) -> Trained:
        """Return the model on some devices, the first ones or spread over all.

        Raises
        ------
        InputError
            If the plan that is given does not fit the model, the batch or the devices.
        """
        key = devices.size, spread
        if key not in self.known:
            self.known[key] = self._trained(devices)
        return self.known[key]

    def _trained(self, devices: IntArray) -> Trained:
        batch = self.batch
        scenario = replace(
            self.scenario,
            spec=batch.model,
            training=replace(
                self.scenario.training,
                global_batch_size=batch.num_rows
                if self.scenario.plan is not None
                else divisible_rows(batch.num_rows, devices.size),
            ),
            plan=_padded(self.scenario.plan, batch.num_rows, devices.size),
        )
        network = self.wires
        if devices.size < network.num_devices:
            network = sub_network(network, devices).network
        used = network_in_use(scenario, network)
        workload = build_workload(scenario, cluster_software(scenario, used), None)
        fleet = device_fleet(scenario, self.wires.num_devices)
        evaluator = Evaluator(
            network=used,
            workload=workload.on(None if fleet is None else fleet.selected(devices)),
            search=scenario.search,
            simulation=replace(scenario.simulation, granularity="stage"),
            memory_band=room_band(
                scenario.software_preset, workload.software, workload.constants
            ),
        )
        job = run_job if scenario.plan is None else simulate_job
        if self.progress is not None:
            self.progress(f"rl: plan training on {devices.size:,} devices", None)
        result: ReplayedResult = job(scenario, evaluator=evaluator)
        candidate = result.candidates[result.chosen or 0] if result.candidates else None
        trained = Trained(
            devices=devices,
            evaluator=evaluator,
            candidate=candidate,
            shortfall=_shortfall(result, candidate),
            spent=None if scenario.plan is not None else result.spent,
            updates=batch.mini_batches,
        )
        return trained if trained.shortfall else _with_forward(trained, batch)


def divisible_rows(num_rows: int, num_devices: int) -> int:
    """Return rows of a mini-batch, some of them empty, that many replicas divide.

    A multiple of the largest divisor of the devices that adds no more than `MOST_EMPTY`
    to them: frameworks give each replica as many rows.

    Examples
    --------
    >>> divisible_rows(6982, 704)
    7040
    """
    most = max(1, int(MOST_EMPTY * num_rows))
    unit = max(size for size in range(1, most + 1) if num_devices % size == 0)
    return -(-num_rows // unit) * unit


def _padded(plan: PlanSpec | None, num_rows: int, num_devices: int) -> PlanSpec | None:
    """Return a plan that is given, its last microbatches filled up with padding."""
    if plan is None or plan.num_microbatches is not None:
        return plan
    replica = (
        plan.tensor_model_parallel_size
        * plan.pipeline_model_parallel_size
        * plan.context_parallel_size
    )
    replicas = plan.data_parallel_size or max(num_devices // replica, 1)
    rounds = -(-num_rows // (plan.micro_batch_size * replicas))
    return replace(plan, num_microbatches=rounds)


def _shortfall(result: ReplayedResult, candidate: Candidate | None) -> str:
    """Return why the pool cannot train, if it cannot."""
    if candidate is None:
        return result.shortfall or "no plan fits"
    if candidate.verdict.kind == "infeasible":
        return f"{plan_label(candidate.priced.plan)} does not fit into memory"
    return ""


def _with_forward(trained: Trained, batch: PackedBatch) -> Trained:
    """Return a model with its forward passes, of all mini-batches in a row."""
    evaluator, candidate = trained.evaluator, trained.candidate
    assert candidate is not None
    priced, plan = candidate.priced, trained.plan
    in_a_round = plan.micro_batch_size * plan.parallel.data_parallel_size
    rounds = -(-batch.num_rows * batch.mini_batches // in_a_round)
    work = forward_only(evaluator.lower(priced, memory=False), rounds)
    # Half of each round trip over both boundaries of a stage is one way over one.
    one_way = max(stage.transfer_time for stage in priced.stages) / 2.0
    return replace(
        trained,
        rounds=rounds,
        forward=forward_time(evaluator.network, work, evaluator.simulation),
        forward_closed_form=closed_form_time(work, one_way),
    )
