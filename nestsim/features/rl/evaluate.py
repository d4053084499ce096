"""Evaluates choices of pools: all phases of a step, by themselves and on one fabric.

The rollout is that of `estimators.generation`, on its pool alone. The trainer's updates
and forward passes are replays (`nestsim.features.rl.trainer`), and so are new weights
(`nestsim.features.rl.sync`). Pools that work side by side are replayed on one fabric
(`nestsim.features.rl.fabric`), and judged by that. Which phases there are follows from
the algorithm; how they follow each other from the schedule
(`nestsim.features.rl.step`).

States that come and go cross the host links: each device sends and takes what it holds
at the links' bandwidth, all devices at the same time. On shared devices the trainer's
weights and optimizer states leave for the rollout where they and the engine do not fit
together; the engine's weights and caches are dropped for the training. A reference
model waits in the memory of the hosts. So do the states of actor and critic in turn,
where they do not fit together.
"""

from dataclasses import dataclass, field, replace

from estimators.generation.forward import ForwardTimes
from estimators.generation.lengths import Lengths
from estimators.generation.rollout import Rollout, rollout
from estimators.layers.work import model_flops_per_sequence
from estimators.models.library import load_model, model_names
from nestsim.evaluate.cluster import (
    build_workload,
    cluster_network,
    cluster_software,
    device_fleet,
    network_in_use,
    node_size,
)
from nestsim.features.rl.batch import packed_batch
from nestsim.features.rl.fabric import (
    FabricReplay,
    PlacedModel,
    engines_work,
    replay_step,
    weights_work,
)
from nestsim.features.rl.pools import (
    BEHIND,
    PoolChoice,
    engine_sizes,
    pool_sizes,
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
from nestsim.simulator.work import PipelineWork
from planner.step.execution import Workload
from planner.work import Progress
from topologies.arrays import IntArray
from topologies.builders import sub_network
from topologies.errors import InputError, located
from topologies.fabrics.trees import TreeRouting
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

    fabric: FabricReplay | None = None
    """The step on one fabric; None where no two phases go on at a time."""


@dataclass(slots=True)
class Pools:
    """Evaluates choices of pools, and keeps what several of them share."""

    scenario: Scenario
    spec: RlSpec
    wires: Network
    network: Network
    workload: Workload
    responses: Lengths
    trainers: Trainers
    critics: Trainers | None
    progress: Progress | None
    rollouts: dict[tuple[PoolChoice, int], Rollout | str] = field(default_factory=dict)
    made: dict[PoolChoice, Rollout | str] = field(default_factory=dict)
    broadcasts: dict[tuple[int, bool], WeightExchange | None] = field(
        default_factory=dict
    )
    steps: dict[PoolChoice, RlStep] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Scenario, spec: RlSpec, progress: Progress | None) -> "Pools":
        """Return those of a scenario with a table [rl]."""
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
            progress=progress,
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
            PoolChoice(size, tp, spread)
            for size in sizes
            for tp in engine_sizes(
                size or total,
                heads,
                engine.expert_parallel_size,
                engine.tensor_parallel_size,
            )
            for spread in ((False, True) if self._may_spread(size) else (False,))
        ]

    def _may_spread(self, size: int) -> bool:
        """Whether it may matter which nodes a rollout of some devices leaves."""
        routing, nodes = self.wires.routing.built, node_size(self.network)
        if not size or size % nodes or not isinstance(routing, TreeRouting):
            return False
        return any(
            tier.block_size > nodes and tier.oversubscription > 1.0
            for tier in routing.tiers()
        )

    def devices(self, choice: PoolChoice) -> tuple[IntArray, IntArray]:
        """Return the devices of the trainer, and of a rollout with its own."""
        return choice.devices(self.wires.num_devices, node_size(self.network))

    def num_training(self, choice: PoolChoice) -> int:
        """Return the devices of the trainer."""
        return self.wires.num_devices - choice.rollout_devices

    def bound(self, choice: PoolChoice) -> float:
        """Return what a step takes at least [s]."""
        made = self.made.get(choice)
        known = 0.0 if made is None or isinstance(made, str) else made.time
        return self._step_time(choice, known)

    def guess(self, choice: PoolChoice) -> float:
        """Return about what a step takes, from rollouts of the same engines [s].

        Twice as many engines need half of the time or more.
        """
        rolled = (
            other.time * min(known.rollout_devices / choice.rollout_devices, 1.0)
            for known, other in self.made.items()
            if known.engine == choice.engine and not isinstance(other, str)
        )
        return self._step_time(choice, max(rolled, default=0.0))

    def _step_time(self, choice: PoolChoice, rolled: float) -> float:
        """Return the time of a step whose rollout takes some time, at least [s]."""
        training = self.training_bound(self.num_training(choice), choice.spread)
        rolled += self.spec.reward_time
        sent = self.broadcast(choice)
        both = 0.0 if sent is None else sent.time
        return both + (
            max(rolled, training) if self.spec.overlaps else rolled + training
        )

    def training_bound(self, num_devices: int, spread: bool = False) -> float:
        """Return what the trainer's phases take at least, of the same placement [s]."""
        known = self.trainers.known
        if (num_devices, spread) in known:
            return self._trained_time(known[num_devices, spread])
        larger = [
            self._trained_time(trained)
            for (size, is_spread), trained in known.items()
            if size > num_devices and is_spread == spread and self.scenario.plan is None
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
        setup = self.spec.engine.setup(choice.engine)
        if setup.num_devices <= node_size(self.network):
            # Engines inside of nodes are the same wherever their nodes are.
            choice = choice._replace(spread=False)
        key = choice, batches
        if key not in self.rollouts:
            self.rollouts[key] = self._rolled(choice, batches)
        return self.rollouts[key]

    def _rolled(self, choice: PoolChoice, batches: int) -> Rollout | str:
        spec, scenario = self.spec, self.scenario
        pool = choice.rollout_devices or self.wires.num_devices
        setup = spec.engine.setup(choice.engine)
        try:
            made = rollout(
                scenario.spec,
                self.workload.platform,
                self._rolling(choice),
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
        devices, _ = self.devices(choice)
        trained = self.trainers.on(devices, choice.spread)
        if trained.shortfall:
            return trained.shortfall
        critic = None
        if self.critics is not None:
            critic = self.critics.on(devices, choice.spread)
            if critic.shortfall:
                return f"critic: {critic.shortfall}"
        offloaded = self._offloaded(trained, critic)
        if isinstance(offloaded, str):
            return offloaded
        sync = self._sync(trained, choice)
        phases = self._phases(made, trained, critic, sync, offloaded)
        pool = choice.rollout_devices or self.wires.num_devices
        setup = self.spec.engine.setup(choice.engine)
        step = RlStep(
            choice=choice,
            phases=phases,
            time=step_time(
                phases, overlaps=self.spec.overlaps, is_split=self.spec.is_split
            ),
            trainer=trained,
            critic=critic,
            rollout=made,
            replicas=pool // (setup.tp * setup.ep),
            batches=self._batches(choice, made),
            sync=sync,
            offloaded=offloaded,
        )
        if self.spec.overlaps:
            step = self.on_fabric(step, confirm=False)
        self.steps[choice] = step
        return step.time.time

    def confirmed(self, choice: PoolChoice) -> RlStep:
        """Return a step that was evaluated, replayed by SimPy where pools overlap."""
        step = self.steps[choice]
        if step.fabric is None:
            return step
        if self.progress is not None:
            self.progress("replay: both pools on one fabric", None)
        return self.on_fabric(step, confirm=True)

    def on_fabric(self, step: RlStep, *, confirm: bool) -> RlStep:
        """Return a step with the times that phases of both pools take side by side."""
        actor = self._model(step.trainer)
        fabric = replay_step(
            self.network,
            step.phases,
            (actor, actor if step.critic is None else self._model(step.critic)),
            {"weights": weights_work(step.sync), "rollout": self._engines(step)},
            confirm=confirm,
        )
        time = step_time(fabric.phases, overlaps=True, is_split=True)
        return replace(step, phases=fabric.phases, time=time, fabric=fabric)

    def _model(self, trained: Trained) -> PlacedModel:
        fleet = device_fleet(self.scenario, self.wires.num_devices)
        return PlacedModel.of(self.network, trained, fleet)

    def _engines(self, step: RlStep) -> PipelineWork | None:
        spec, made = self.spec, step.rollout
        setup = spec.engine.setup(step.choice.engine)
        _, pool = self.devices(step.choice)
        times = ForwardTimes.of(
            self.scenario.spec,
            self.workload.platform,
            self._rolling(step.choice),
            setup,
        )
        count = step.replicas * setup.num_devices
        tokens = made.decode_tokens + made.prompt_tokens
        return engines_work(
            self.network,
            times.between_nodes(),
            pool[:count].reshape(step.replicas, setup.num_devices),
            made.time,
            tokens / (step.batches * step.replicas * setup.ep),
        )

    def _rolling(self, choice: PoolChoice) -> Network:
        """Return the network that the rollout has."""
        if not choice.rollout_devices:
            return self.network
        part = sub_network(self.wires, self.devices(choice)[1])
        return network_in_use(self.scenario, part.network)

    def _batches(self, choice: PoolChoice, made: Rollout) -> int:
        numbers = _numbers((self.spec.staleness or 0) + 1)
        return next(n for n in numbers if self.rolled(choice, n) is made)

    def broadcast(self, choice: PoolChoice) -> WeightExchange | None:
        """Return what carries the weights to the rollout's own devices."""
        key = choice.rollout_devices, choice.spread
        if key not in self.broadcasts:
            self.broadcasts[key] = broadcast_weights(
                self.network,
                *self.devices(choice),
                self.workload.graph.num_parameters,
            )
        return self.broadcasts[key]

    def _sync(self, trained: Trained, choice: PoolChoice) -> tuple[WeightExchange, ...]:
        number = self.workload.graph.num_parameters
        plan = trained.plan.on_devices(trained.devices)
        gathered = gather_weights(self.network, plan, number)
        exchanges = gathered, self.broadcast(choice)
        return tuple(sent for sent in exchanges if sent is not None)

    def _offloaded(self, trained: Trained, critic: Trained | None) -> float | str:
        """Return what leaves each device for the rollout, or why it cannot be [byte].

        Nothing where the rollout has devices of its own.
        """
        if self.spec.is_split:
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
