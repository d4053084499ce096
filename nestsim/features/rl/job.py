"""From a scenario to a step of reinforcement learning, and its best pools.

The rollout is that of `estimators.generation`, on its pool alone. The trainer's updates
and forward passes are replays (`nestsim.features.rl.trainer`), and so are new weights
(`nestsim.features.rl.sync`). Which phases there are follows from the algorithm; how
they follow each other from the schedule (`nestsim.features.rl.step`).

States that come and go cross the host links: each device sends and takes what it holds
at the links' bandwidth, all devices at the same time. On shared devices the trainer's
weights and optimizer states leave for the rollout where they and the engine do not fit
together; the engine's weights and caches are dropped for the training. A reference
model waits in the memory of the hosts. So do the states of actor and critic in turn,
where they do not fit together.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from estimators.generation.lengths import Lengths
from estimators.generation.rollout import Rollout, rollout
from estimators.layers.work import model_flops_per_sequence
from estimators.models.library import load_model, model_names
from nestsim.evaluate.cluster import (
    cluster_network,
    cluster_software,
    network_in_use,
    node_size,
)
from nestsim.evaluate.evaluator import build_workload
from nestsim.features.rl.batch import PackedBatch, packed_batch
from nestsim.features.rl.pools import (
    BEHIND,
    PoolChoice,
    PoolSearch,
    engine_sizes,
    pool_sizes,
    search_pools,
)
from nestsim.features.rl.step import (
    BOTH,
    ROLLOUT,
    TRAINING,
    StepPhase,
    StepTime,
    step_time,
)
from nestsim.features.rl.sync import (
    WeightExchange,
    broadcast_weights,
    gather_weights,
)
from nestsim.features.rl.trainer import Trained, Trainers
from nestsim.scenario.load import Scenario
from nestsim.scenario.rl import RlSpec
from planner.step.execution import Workload
from planner.work import Progress
from topologies.builders import sub_network
from topologies.errors import InputError, located
from topologies.network import Network
from topologies.units import format_size

FORWARD_SHARE = 1.0 / 3.0
"""Part of a training pass's operations that its forward pass is: a product has two
more in the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RlStep:
    """A step with the best pools."""

    choice: PoolChoice
    """The pools."""

    phases: tuple[StepPhase, ...]
    """What a step does, in order."""

    time: StepTime
    """How long a step takes."""

    trainer: Trained
    """The trainer's pool."""

    critic: Trained | None
    """The critic, where it is another model."""

    rollout: Rollout
    """The rollout of one batch."""

    replicas: int
    """Engines."""

    batches: int
    """Batches that the rollout makes in one go."""

    sync: tuple[WeightExchange, ...]
    """What carries the new weights."""

    offloaded: float
    """What leaves each device for the rollout, and comes back [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RlResult:
    """What `nestsim rl` finds."""

    scenario_name: str
    """Name of the scenario."""

    num_devices: int
    """Devices of the cluster."""

    device_name: str
    """What they are called."""

    device_memory: float
    """Memory of a device [byte]."""

    spec: RlSpec
    """What was asked."""

    batch: PackedBatch
    """What is trained in a step."""

    search: PoolSearch
    """What the search has looked at."""

    step: RlStep | None
    """The fastest step; None if there is none."""

    shortfall: str
    """Why there is none; empty if there is one."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of prompts and responses over the time of a step [token/s]."""
        assert self.step is not None
        return self.batch.num_tokens / self.step.time.time

    @property
    def overlaps(self) -> bool:
        """Whether the rollout makes another batch while the trainer works."""
        return self.spec.schedule != "synchronous"

    @property
    def is_split(self) -> bool:
        """Whether rollout and trainer have devices of their own."""
        return self.spec.placement == "split"


def rl_job(scenario: Scenario, *, progress: Progress | None = None) -> RlResult:
    """Find the time of a step of reinforcement learning, and the best pools for it.

    Raises
    ------
    InputError
        If there is no table [rl], or parts of the scenario do not go together.
    """
    spec = scenario.rl
    if spec is None:
        raise InputError(
            "there is nothing to say of a step",
            where="rl",
            got="no table [rl]",
            expected="a table [rl] with prompts, samples and lengths",
        )
    if scenario.module is not None:
        raise InputError(
            "has sequences of one length alone",
            where="model",
            got="a module of your own",
            expected="a model of the library or an architecture, for nestsim rl",
        )
    pools = _Pools.of(scenario, spec, progress)
    search = search_pools(pools.choices(), pools.bound, pools.evaluate)
    step = None if search.best is None else pools.steps[search.best]
    reasons = dict.fromkeys(entry.reason for entry in search.explored)
    return RlResult(
        scenario_name=scenario.name,
        num_devices=pools.wires.num_devices,
        device_name=scenario.device_names,
        device_memory=scenario.accelerator.memory_bytes,
        spec=spec,
        batch=pools.trainers.batch,
        search=search,
        step=step,
        shortfall="" if step is not None else "; ".join(filter(None, reasons)),
    )


@dataclass(slots=True)
class _Pools:
    """Evaluates choices of pools, and keeps what several of them share."""

    scenario: Scenario
    spec: RlSpec
    wires: Network
    network: Network
    workload: Workload
    responses: Lengths
    trainers: Trainers
    critics: Trainers | None
    rollouts: dict[tuple[PoolChoice, int], Rollout | str] = field(default_factory=dict)
    made: dict[PoolChoice, Rollout | str] = field(default_factory=dict)
    broadcasts: dict[int, WeightExchange | None] = field(default_factory=dict)
    steps: dict[PoolChoice, RlStep] = field(default_factory=dict)

    @classmethod
    def of(
        cls, scenario: Scenario, spec: RlSpec, progress: Progress | None
    ) -> "_Pools":
        model = scenario.spec
        responses = spec.lengths(model.sequence_length, scenario.path.parent)
        wires = cluster_network(scenario)
        batch = packed_batch(spec, model, responses)
        trainers = Trainers(scenario, wires, batch, progress)
        critics = None
        if spec.critic is not None:
            critic = _critic_scenario(scenario, spec.critic)
            of_critic = packed_batch(spec, critic.spec, responses)
            critics = Trainers(critic, wires, of_critic, progress)
        network = network_in_use(scenario, wires)
        return cls(
            scenario=scenario,
            spec=spec,
            wires=wires,
            network=network,
            workload=build_workload(
                replace(scenario, spec=batch.model),
                cluster_software(scenario, network),
                progress,
            ),
            responses=responses,
            trainers=trainers,
            critics=critics,
        )

    def choices(self) -> list[PoolChoice]:
        """Return all choices."""
        spec, engine = self.spec, self.spec.engine
        heads = self.scenario.spec.num_attention_heads
        total = self.wires.num_devices
        sizes: tuple[int, ...] = (0,)
        if spec.placement == "split":
            sizes = pool_sizes(total, node_size(self.network), spec.rollout_devices)
        return [
            PoolChoice(size, tp)
            for size in sizes
            for tp in engine_sizes(
                size or total,
                heads,
                engine.expert_parallel_size,
                engine.tensor_parallel_size,
            )
        ]

    @property
    def overlaps(self) -> bool:
        return self.spec.schedule != "synchronous"

    @property
    def is_split(self) -> bool:
        return self.spec.placement == "split"

    def num_training(self, choice: PoolChoice) -> int:
        """Return the devices of the trainer."""
        return self.wires.num_devices - choice.rollout_devices

    def bound(self, choice: PoolChoice) -> float:
        """Return what a step takes at least [s]."""
        training = self.training_bound(self.num_training(choice))
        rolled = self.rollout_bound(choice) + self.spec.reward_time
        sent = self.broadcast(choice)
        both = 0.0 if sent is None else sent.time
        return both + (max(rolled, training) if self.overlaps else rolled + training)

    def rollout_bound(self, choice: PoolChoice) -> float:
        """Return what the rollout takes at least [s]."""
        made = self.made.get(choice)
        if made is not None:
            return 0.0 if isinstance(made, str) else made.time
        return max(
            (
                other.time * min(known.rollout_devices / choice.rollout_devices, 1.0)
                for known, other in self.made.items()
                if known.engine == choice.engine and not isinstance(other, str)
            ),
            default=0.0,
        )

    def training_bound(self, num_devices: int) -> float:
        """Return what the trainer's phases take at least [s]."""
        known = self.trainers.known
        if num_devices in known:
            return self._trained_time(known[num_devices])
        larger = [
            self._trained_time(trained)
            for size, trained in known.items()
            if size > num_devices and self.scenario.plan is None
        ]
        return max([self._peak_time(num_devices), *larger])

    def _trained_time(self, trained: Trained) -> float:
        """Return the updates and forward passes of the actor [s]."""
        if trained.shortfall:
            return 0.0
        passes = self.spec.old_log_probs + self.spec.reference
        return trained.training + passes * trained.forward

    def _peak_time(self, num_devices: int) -> float:
        """Return the trainer's operations at the peak rate of all its devices [s]."""
        batch, workload = self.trainers.batch, self.workload
        if self.scenario.training.adapter != "none":
            return 0.0
        flops = model_flops_per_sequence(workload.graph, counts_masked=False)
        passes = 1.0 + FORWARD_SHARE * (self.spec.old_log_probs + self.spec.reference)
        rows = batch.num_rows * batch.mini_batches
        return passes * rows * flops / (num_devices * workload.mean_peak_flops)

    def generated(self, choice: PoolChoice) -> Rollout | str:
        """Return the rollout that counts in a step, or why there is none.

        Of the numbers of batches in one go that the staleness allows, the best.
        """
        if choice not in self.made:
            ahead = self.spec.staleness or 0
            tries = (self.rolled(choice, batches) for batches in _numbers(ahead + 1))
            made = next(tries)
            for other in tries:
                assert not isinstance(made, str)
                if not isinstance(other, str) and other.time < made.time:
                    made = other
            self.made[choice] = made
        return self.made[choice]

    def rolled(self, choice: PoolChoice, batches: int) -> Rollout | str:
        """Return the rollout of some batches in one go, its time that of one [s]."""
        key = choice, batches
        if key not in self.rollouts:
            self.rollouts[key] = self._rolled(choice, batches)
        return self.rollouts[key]

    def _rolled(self, choice: PoolChoice, batches: int) -> Rollout | str:
        spec, scenario = self.spec, self.scenario
        pool = choice.rollout_devices or self.wires.num_devices
        setup = spec.engine.setup(choice.engine)
        first = np.arange(self.wires.num_devices - pool, self.wires.num_devices)
        network = self.network
        if choice.rollout_devices:
            network = network_in_use(scenario, sub_network(self.wires, first).network)
        try:
            made = rollout(
                scenario.spec,
                self.workload.platform,
                network,
                setup,
                spec.prompts * batches,
                spec.samples,
                Lengths.fixed(spec.prompt_length),
                self.responses,
                pool // (setup.tp * setup.ep),
                spec.seed,
            )
        except InputError as error:
            return f"engines of {choice.engine:,} devices: {error.problem}"
        return replace(made, time=made.time / batches)

    def evaluate(self, choice: PoolChoice, limit: float) -> float | str:
        """Return the time of a step with some pools, or why it cannot be [s]."""
        made = self.generated(choice)
        if isinstance(made, str):
            return made
        if self.bound(choice) >= limit:
            return BEHIND
        trained = self.trainers.on(self.num_training(choice))
        if trained.shortfall:
            return trained.shortfall
        critic = None
        if self.critics is not None:
            critic = self.critics.on(self.num_training(choice))
            if critic.shortfall:
                return f"critic: {critic.shortfall}"
        offloaded = self._offloaded(trained, critic)
        if isinstance(offloaded, str):
            return offloaded
        sync = self._sync(trained, choice)
        phases = self._phases(made, trained, critic, sync, offloaded)
        time = step_time(phases, overlaps=self.overlaps, is_split=self.is_split)
        pool = choice.rollout_devices or self.wires.num_devices
        setup = self.spec.engine.setup(choice.engine)
        self.steps[choice] = RlStep(
            choice=choice,
            phases=phases,
            time=time,
            trainer=trained,
            critic=critic,
            rollout=made,
            replicas=pool // (setup.tp * setup.ep),
            batches=self._batches(choice, made),
            sync=sync,
            offloaded=offloaded,
        )
        return time.time

    def _batches(self, choice: PoolChoice, made: Rollout) -> int:
        numbers = _numbers((self.spec.staleness or 0) + 1)
        return next(n for n in numbers if self.rolled(choice, n) is made)

    def broadcast(self, choice: PoolChoice) -> WeightExchange | None:
        """Return what carries the weights to the rollout's own devices."""
        size = choice.rollout_devices
        if size not in self.broadcasts:
            self.broadcasts[size] = broadcast_weights(
                self.network,
                self.num_training(choice),
                self.workload.graph.num_parameters,
            )
        return self.broadcasts[size]

    def _sync(self, trained: Trained, choice: PoolChoice) -> tuple[WeightExchange, ...]:
        number = self.workload.graph.num_parameters
        gathered = gather_weights(self.network, trained.plan, number)
        exchanges = gathered, self.broadcast(choice)
        return tuple(sent for sent in exchanges if sent is not None)

    def _offloaded(self, trained: Trained, critic: Trained | None) -> float | str:
        """Return what leaves each device for the rollout, or why it cannot be [byte].

        Nothing where the rollout has devices of its own.
        """
        if self.is_split:
            return 0.0
        models = self._models(trained, critic)
        kept = sum(model.held("weights", "optimizer") for model in models)
        buffers = sum(model.held("gradients") for model in models)
        memory = self.scenario.accelerator.memory_bytes
        engine = self.spec.engine.memory_utilisation * memory
        too_much = kept + buffers + engine > memory
        if too_much and self.spec.offload == "never":
            return (
                f"the trainer's states ({format_size(kept + buffers)} a device) do not "
                "fit beside the engine, and rl.offload keeps them there"
            )
        return kept if too_much or self.spec.offload == "always" else 0.0

    def _models(self, trained: Trained, critic: Trained | None) -> tuple[Trained, ...]:
        """Return the models that are trained: the actor, and the critic if any."""
        if self.spec.algorithm != "ppo":
            return (trained,)
        return trained, critic or trained

    def _phases(
        self,
        made: Rollout,
        trained: Trained,
        critic: Trained | None,
        sync: tuple[WeightExchange, ...],
        offloaded: float,
    ) -> tuple[StepPhase, ...]:
        """Return the phases of a step, in order."""
        spec = self.spec
        phases = []
        if offloaded:
            moved = self._moved(offloaded, back=True)
            phases.append(StepPhase("states", BOTH, moved, moved, "host links"))
        if sync:
            phases.append(
                StepPhase(
                    "weights",
                    BOTH,
                    sum(sent.time for sent in sync),
                    sum(sent.closed_form for sent in sync),
                    "replay of flows",
                )
            )
        phases.append(
            StepPhase("rollout", ROLLOUT, made.time, None, "events of engines")
        )
        if spec.reward_time:
            phases.append(
                StepPhase("reward", ROLLOUT, spec.reward_time, None, "given", True)
            )
        forward = trained.forward, trained.forward_closed_form
        basis = "replay of forward passes"
        if spec.old_log_probs:
            phases.append(StepPhase("old log-probs", TRAINING, *forward, basis))
        if spec.reference:
            fetched = self._moved(trained.held("weights"), back=False)
            times = forward[0] + fetched, forward[1] + fetched
            phases.append(
                StepPhase("reference", TRAINING, *times, f"{basis}, host links")
            )
        if spec.algorithm == "ppo":
            model = critic or trained
            times = (model.forward, model.forward_closed_form)
            phases.append(StepPhase("values", TRAINING, *times, basis))
            phases.append(_training("critic", model))
            swapped = self._swapped(trained, model)
            if swapped:
                moved = self._moved(swapped, back=True)
                phases.append(StepPhase("swap", TRAINING, moved, moved, "host links"))
        phases.append(_training("training", trained))
        return tuple(phases)

    def _swapped(self, actor: Trained, critic: Trained) -> float:
        """Return what actor and critic clear for each other on each device [byte]."""
        states = [model.held("weights", "optimizer") for model in (actor, critic)]
        peak = max(actor.peak_memory, critic.peak_memory)
        fits = peak + min(states) <= self.scenario.accelerator.memory_bytes
        return 0.0 if fits else sum(states)

    def _moved(self, num_bytes: float, *, back: bool) -> float:
        """Return how long states take from the hosts, with ``back`` to them, too."""
        host = self.scenario.host
        together = num_bytes * host.devices_per_link
        time = host.latency + together / host.to_device
        return time + back * (host.latency + together / host.to_host)


def _training(name: str, model: Trained) -> StepPhase:
    """Return the phase that trains a model: its updates one after another."""
    assert model.candidate is not None
    planned = model.updates * model.candidate.planned.iteration_time
    return StepPhase(name, TRAINING, model.training, planned, "replay of the plan")


def _numbers(most: int) -> list[int]:
    """Return numbers of batches in one go: powers of two, and the most."""
    powers = (2**power for power in range(most.bit_length()))
    return sorted({*(power for power in powers if power <= most), most})


def _critic_scenario(scenario: Scenario, name: str) -> Scenario:
    """Return the job of a critic that is another model; its plan is searched."""
    if name not in model_names():
        raise InputError(
            "is no model of the library",
            where="rl.critic",
            got=name,
            expected="a name that nestsim models lists",
        )
    with located("rl.critic"):
        model = load_model(name, sequence_length=scenario.spec.sequence_length)
    return replace(scenario, spec=model, plan=None)
