"""From the description of a training step to the system that an engine runs.

Letters: ``A`` actors, ``S`` ports, ``d`` replicas.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nestsim.simulator.flows import Flows, StagePorts, build_flows, stage_ports
from nestsim.simulator.programs import Programs, StageProgram, build_programs
from nestsim.simulator.system import NONE, TICK, System, num_posts, quantise, tick_for
from nestsim.simulator.work import PipelineWork
from topologies.arrays import FloatArray, IntArray
from topologies.network import Network


class Model(NamedTuple):
    """A training step, ready for the engine."""

    flows: Flows
    """Flow of each channel of the system."""

    programs: tuple[StageProgram, ...]
    """What the steps of each of the system's programs mean."""

    system: System
    """Actors stage by stage, replica by replica; then, in blocks of ``d`` as well, the
    communication streams of the stages that have one. Streams have no spans."""

    num_replicas: int
    """Replicas ``d`` of each stage."""

    notes: tuple[str, ...]
    """What the replay does not simulate one by one, one sentence each."""


def build_model(network: Network, work: PipelineWork) -> Model:
    """Prepare the engine's actors, channels and network.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    _check(work)
    flows = build_flows(network, work)
    virtual = work.virtual_stages()
    by_stage = [
        stage_ports(flows, stage, virtual) for stage in range(len(work.devices))
    ]
    programs = build_programs(work, by_stage, tick=TICK)
    ports = _table(by_stage, programs)
    slowest = np.append(flows.slowest_times(network.links), 0.0)[ports]
    tick = tick_for(_horizon(programs, slowest))
    if tick > TICK:
        programs = build_programs(work, by_stage, tick=tick)
    used = np.zeros(len(network.links), dtype=np.bool_)
    used[flows.incidence.links] = True
    binding = np.flatnonzero(used & flows.binding)
    num_used = int(used.sum())
    system = System(
        programs=tuple(one.steps for one in programs.distinct),
        program=programs.of_actor,
        ports=ports,
        num_sources=flows.num_sources,
        latency=quantise(flows.latency, tick),
        num_bytes=flows.num_bytes,
        incidence=flows.incidence.restricted(binding, len(network.links)),
        capacity=network.links.bandwidth[binding],
        tick=tick,
        num_recorded=max(num_used, len(flows)),
    )
    notes = (*work.notes, *_notes(work, num_used, num_used - binding.size))
    return Model(flows, programs.distinct, system, work.devices.shape[1], notes)


def _check(work: PipelineWork) -> None:
    num_stages, num_replicas, _ = work.devices.shape
    num_virtual = num_stages * work.num_chunks
    times = work.forward_time, work.backward_time, work.weight_time
    by_kind = *work.paired_time.values(), *work.sent_time.values()
    assert {one.size for one in (*times, *by_kind)} == {num_virtual}
    assert work.boundary_bytes.size == num_virtual - 1
    assert work.slowdown.shape == (num_stages, num_replicas)
    assert (work.slowdown >= 1.0).all()
    assert work.interference >= 1.0


def _table(by_stage: Sequence[StagePorts], programs: Programs) -> IntArray:
    """Return the channels of every actor, shape ``(A, S)``; a stream has its stage's.

    Rows are filled up with `NONE`.
    """
    width = max(one.channels.shape[1] for one in by_stage)
    blocks = []
    for stage in (*range(len(by_stage)), *programs.streams):
        channels = by_stage[stage].channels
        missing = width - channels.shape[1]
        blocks.append(np.pad(channels, ((0, 0), (0, missing)), constant_values=NONE))
    return np.concatenate(blocks)


def _horizon(programs: Programs, slowest: FloatArray) -> float:
    """Return a moment before which every run of this step has ended [s].

    The chain of events that leads to the last one meets each step of each program, and
    each message that it posts, at most once: passing from one replica to another by a
    collective leads on in the program.

    Parameters
    ----------
    programs
        What the actors run.
    slowest
        The most that a message of the channel in each port of each actor takes, shape
        ``(A, S)`` [s].
    """
    most = np.zeros((len(programs.distinct), slowest.shape[1]))
    # Actors of one program are next to each other but where devices are slow.
    for number in range(len(programs.distinct)):
        rows = slowest[programs.of_actor == number]
        most[number] = rows.max(axis=0)
    steps = [one.steps for one in programs.distinct]
    messages = float((num_posts(steps, slowest.shape[1]) * most).sum())
    work = sum(float(one.duration.sum()) for one in steps)
    # Rounding to ticks adds less than the last term.
    return work + messages + 1.0


def _notes(work: PipelineWork, num_used: int, num_pruned: int) -> list[str]:
    num_stages, _, num_ranks = work.devices.shape
    notes = []
    if num_ranks > 1 and num_stages > 1:
        notes.append(
            f"The {num_ranks} tensor-parallel lanes of a stage boundary move as one "
            "flow, at the rate of the slowest lane."
        )
    if num_pruned:
        notes.append(
            f"{num_pruned} of {num_used} links in use can never limit a flow, because "
            "their neighbours on all routes do so first; they are left out when rates "
            "are solved, which changes no rate."
        )
    return notes
