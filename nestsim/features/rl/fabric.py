"""A whole step on one fabric: what both pools send meets on the links of the cluster.

Where the rollout makes another batch while the trainer works, phases of two pools go on
side by side. They are replayed together (`nestsim.simulator.phases`): the updates and
forward passes of the trainer with all that they send, the new weights, and the rollout
with what its engines send from node to node. The phases of one pool follow each other;
new weights wait for both. What phases take by themselves comes from the same fabric
with one phase after another. So what is more is what it costs to share links.

An engine sends thousands of times a second. Its rollout is `SLICES` equal parts, each
of them work and then what all tokens of the part send between nodes, by the algorithm
that the engine's steps are priced with (`estimators.generation.forward`). Work is what
is left of a part when one engine has the links for itself. What engines send inside of
nodes is part of their work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from estimators.collectives.messages import placed_exchanges
from estimators.generation.forward import NodeTraffic
from nestsim.features.collectives.runs import time_alone, wires_of
from nestsim.features.rl.forward import forward_only
from nestsim.features.rl.step import BOTH, ROLLOUT, TRAINING, StepPhase, step_time
from nestsim.features.rl.sync import WeightExchange
from nestsim.features.rl.trainer import Trained
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.phases import Duty, PhasedRun, PoolWork, replay_phases
from nestsim.simulator.system import NONE, ReplaySettings
from nestsim.simulator.work import (
    EdgePhase,
    LayerTraffic,
    LockstepEdgePhase,
    LockstepTraffic,
    Move,
    PipelineWork,
)
from planner.cost.pricing import price_plan
from planner.step.fleet import Fleet
from planner.step.instructions import BACKWARD, FORWARD
from topologies.arrays import IntArray
from topologies.network import Network

SLICES = 64
"""Parts of a rollout in which engines work and send."""


SAME = 1e-9
"""Relative difference up to which times are alike."""


class FabricReplay(NamedTuple):
    """A step on one fabric."""

    phases: tuple[StepPhase, ...]
    """Its phases, with the times that they take side by side."""

    apart: float
    """Time of the step if no phase met another one on a link [s]."""

    num_events: int
    """Events of the replay."""

    engine: str
    """Engine that replayed it, ``"simpy"`` or ``"compiled"``."""

    @property
    def time(self) -> float:
        """Time of the step [s]."""
        return _time(self.phases)

    @property
    def contention(self) -> float:
        """What it costs that phases share links [s]."""
        return self.time - self.apart

    @property
    def costs(self) -> bool:
        """Whether it costs more than what sums of ticks differ by."""
        return self.contention > SAME * self.apart

    @property
    def closed_form(self) -> float:
        """Time of the step by closed forms, of phases that have one [s]."""
        return _time(
            [
                phase
                if phase.closed_form is None
                else phase._replace(time=phase.closed_form)
                for phase in self.phases
            ]
        )


def _time(phases: Sequence[StepPhase]) -> float:
    return step_time(phases, overlaps=True, is_split=True).time


class PlacedModel(NamedTuple):
    """One model of the trainer on the whole network."""

    update: PipelineWork
    """One update."""

    forward: PipelineWork
    """All forward passes of a step."""

    updates: int
    """Updates of a step."""

    passes: float
    """What the forward passes take on the pool's own network [s]."""

    @classmethod
    def of(
        cls, network: Network, trained: Trained, fleet: Fleet | None
    ) -> "PlacedModel":
        """Lower a model onto the devices that its pool has.

        Parameters
        ----------
        network
            Of all devices.
        trained
            The model on a network of its own.
        fleet
            Kinds of all devices, if they differ.
        """
        evaluator = trained.evaluator
        workload = evaluator.workload.on(fleet)
        plan = trained.plan.on_devices(trained.devices)
        priced = price_plan(network, workload, plan)
        update = lower_plan(
            network, workload, priced, evaluator.simulation, memory=False
        )
        forward = forward_only(update, trained.rounds)
        return cls(update, forward, trained.updates, trained.forward)


@dataclass(slots=True)
class _Duties:
    """Says what each phase of a step is on the fabric."""

    actor: PlacedModel
    critic: PlacedModel
    others: Mapping[str, PipelineWork | None]
    parts: list[PoolWork] = field(default_factory=list)

    def of(self, phase: StepPhase) -> Duty:
        """Return the duty of a phase."""
        model = self.critic if phase.name in {"values", "critic"} else self.actor
        if phase.name in {"training", "critic"}:
            return self._duty(PoolWork(model.update), num_steps=model.updates)
        if phase.name in {"old log-probs", "reference", "values"}:
            passes = PoolWork(model.forward, model.forward.num_microbatches)
            return self._duty(passes, max(phase.time - model.passes, 0.0))
        work = self.others.get(phase.name)
        return Duty(phase.time) if work is None else self._duty(PoolWork(work))

    def _duty(self, part: PoolWork, time: float = 0.0, num_steps: int = 1) -> Duty:
        known = [id(other.work) for other in self.parts]
        if id(part.work) not in known:
            self.parts.append(part)
            known.append(id(part.work))
        return Duty(time, known.index(id(part.work)), num_steps)


def replay_step(
    network: Network,
    phases: Sequence[StepPhase],
    models: tuple[PlacedModel, PlacedModel],
    others: Mapping[str, PipelineWork | None],
    *,
    confirm: bool,
) -> FabricReplay:
    """Replay a step whose pools work side by side.

    Parameters
    ----------
    network
        Of all devices.
    phases
        Of the step, with the times that they take by themselves.
    models
        Actor and critic of the trainer; the same one twice if they are alike.
    others
        Phase -> what it sends, ``"weights"`` and ``"rollout"``; None for nothing.
    confirm
        Whether SimPy has to give the same run.
    """
    known = _Duties(*models, others)
    # New weights are there when both have done what is theirs.
    ordered = sorted(range(len(phases)), key=lambda k: phases[k].pool == BOTH)
    duties = {k: known.of(phases[k]) for k in ordered}
    pools = [
        [k for k in ordered if phases[k].pool in {pool, BOTH}]
        for pool in (ROLLOUT, TRAINING)
    ]

    def times(pools: Sequence[Sequence[int]], *, confirm: bool) -> PhasedRun:
        by_pool = [[duties[k] for k in pool] for pool in pools]
        return replay_phases(
            network, known.parts, by_pool, ReplaySettings(), confirm=confirm
        )

    together = times(pools, confirm=confirm)
    in_turn = times([ordered], confirm=False)
    return FabricReplay(
        phases=_timed(phases, pools, together),
        apart=_time(_timed(phases, [ordered], in_turn)),
        num_events=together.num_events,
        engine=together.engine,
    )


def _timed(
    phases: Sequence[StepPhase], pools: Sequence[Sequence[int]], run: PhasedRun
) -> tuple[StepPhase, ...]:
    """Return phases with their times in a run: from when the last pool came to it."""
    begun = np.zeros(len(phases))
    ended = np.zeros(len(phases))
    for pool, starts, ends in zip(pools, run.starts, run.ends, strict=True):
        begun[pool] = np.maximum(begun[pool], starts)
        ended[pool] = ends
    times = (ended - begun).tolist()
    return tuple(
        phase._replace(time=time) for phase, time in zip(phases, times, strict=True)
    )


def weights_work(sent: Sequence[WeightExchange]) -> PipelineWork | None:
    """Return the collectives that carry new weights, one after another, as a work."""
    phases = tuple(phase for exchange in sent for phase in exchange.phases)
    if not phases:
        return None
    first = phases[0].sources[:1]
    return _passes(first[None], 1, 0.0, phases=phases)


def engines_work(
    network: Network,
    traffic: Sequence[NodeTraffic],
    devices: IntArray,
    time: float,
    tokens: float,
) -> PipelineWork | None:
    """Return a rollout whose engines send from node to node; None if they do not.

    Parameters
    ----------
    network
        Of all devices.
    traffic
        What ranks of an engine send between nodes.
    devices
        Of each engine, shape ``(engines, n)``.
    time
        Of the rollout, if an engine has the links for itself [s].
    tokens
        That go through a rank of an engine.
    """
    if not traffic:
        return None
    kinds = []
    sending = 0.0
    for sent in traffic:
        num_bytes = tokens / SLICES * sent.bytes_per_token
        groups = sent.groups(devices)
        once = placed_exchanges(network, sent.operation, groups[0], sent.algorithm)
        sending += time_alone(network.links, wires_of(network, once), num_bytes)
        parts = [
            placed_exchanges(network, sent.operation, of_engine, sent.algorithm)
            for of_engine in groups
        ]
        phases = tuple(
            LockstepEdgePhase(
                np.concatenate([part.sources for part in alike]),
                np.concatenate([part.targets for part in alike]),
                np.repeat(np.arange(len(alike)), [part.sources.size for part in alike]),
                max(part.fraction for part in alike) * num_bytes,
                alike[0].num_steps,
            )
            for alike in zip(*parts, strict=True)
        )
        kinds.append(LockstepTraffic("tensor", np.arange(len(devices)), phases))
    return _passes(
        devices, SLICES, max(time / SLICES - sending, 0.0), collectives=tuple(kinds)
    )


def _passes(
    devices: IntArray,
    count: int,
    time: float,
    *,
    collectives: tuple[LockstepTraffic, ...] = (),
    phases: tuple[EdgePhase, ...] = (),
) -> PipelineWork:
    """Return passes of some actors, each with collectives, and phases behind all."""
    nothing = np.zeros(1)
    layers = None
    if collectives:
        layers = LayerTraffic(
            collectives=(collectives,),
            passes={
                FORWARD: (tuple(_moves(time, len(collectives))),),
                BACKWARD: ((Move(NONE, 0.0, NONE),),),
            },
        )
    return PipelineWork(
        schedule="gpipe",
        num_chunks=1,
        num_microbatches=count,
        devices=devices[None],
        forward_time=np.array([time]),
        backward_time=nothing,
        weight_time=nothing,
        sent_time={},
        layers=layers,
        boundary_bytes=np.zeros(0),
        blocking_transfers=False,
        reduce_buckets=((),),
        reduce_phases=(phases,),
        optimizer_time=nothing,
        gather_phases=((),),
        gather_buckets=((),),
        tied_phases=(),
        kind=np.zeros((1, len(devices)), np.int64),
        interference=1.0,
        memory=(),
        notes=(),
    )


def _moves(time: float, number: int) -> Iterator[Move]:
    """Yield work, and then one collective after another."""
    yield Move(NONE, time, 0)
    for sent in range(1, number):
        yield Move(sent - 1, 0.0, sent)
    yield Move(number - 1, 0.0, NONE)
