"""From the description of a training step to the system that an engine runs.

Letters: ``A`` actors, ``S`` ports, ``d`` replicas.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nestsim.simulator.flows import (
    Flows,
    StagePorts,
    binding_links,
    build_flows,
    stage_ports,
)
from nestsim.simulator.programs import Programs, StageProgram, build_programs
from nestsim.simulator.system import NONE, TICK, System, num_posts, quantise, tick_for
from nestsim.simulator.work import PipelineWork
from topologies.arrays import FloatArray, IntArray
from topologies.network import Links, Network


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

    horizon: float
    """A moment before which every run of the system has ended [s]."""

    notes: tuple[str, ...]
    """What the replay does not simulate one by one, one sentence each."""


class Draft(NamedTuple):
    """A training step whose clock and whose binding links are not known yet."""

    work: PipelineWork
    """The training step."""

    flows: Flows
    """Its flows."""

    by_stage: tuple[StagePorts, ...]
    """The ports of its stages."""

    def programs(self, tick: float) -> Programs:
        """Return the programs of all actors, durations in whole ticks.

        Raises
        ------
        InputError
            If the schedule does not exist or does not work with these sizes.
        """
        return build_programs(self.work, self.by_stage, tick=tick)

    def horizon(self, programs: Programs, links: Links, weights: FloatArray) -> float:
        """Return a moment before which the step has ended in every run [s].

        Parameters
        ----------
        programs
            Its programs, for any tick.
        links
            Of the network.
        weights
            Weight of all flows that there are on each link.
        """
        slowest = np.append(self.flows.slowest_times(links, weights), 0.0)
        return latest_end(programs, slowest[port_table(self.by_stage, programs)])

    def system(
        self, programs: Programs, links: Links, kept: IntArray, tick: float
    ) -> System:
        """Return what the engine runs, over the links ``kept``."""
        return System(
            programs=tuple(program.steps for program in programs.distinct),
            program=programs.of_actor,
            ports=port_table(self.by_stage, programs),
            num_sources=self.flows.num_sources,
            latency=quantise(self.flows.latency, tick),
            num_bytes=self.flows.num_bytes,
            incidence=self.flows.incidence.restricted(kept, len(links)),
            capacity=links.bandwidth[kept],
            tick=tick,
            num_recorded=max(int(self.flows.used(len(links)).sum()), len(self.flows)),
        )


def draft_step(network: Network, work: PipelineWork) -> Draft:
    """Lay out the flows and the ports of a training step.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    _check(work)
    flows = build_flows(network, work)
    virtual = work.virtual_stages()
    stages = range(len(work.devices))
    return Draft(
        work, flows, tuple(stage_ports(flows, stage, virtual) for stage in stages)
    )


def build_model(network: Network, work: PipelineWork) -> Model:
    """Prepare the engine's actors, channels and network.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    draft = draft_step(network, work)
    flows, links = draft.flows, network.links
    programs = draft.programs(TICK)
    horizon = draft.horizon(programs, links, flows.weights(len(links)))
    tick = tick_for(horizon)
    if tick > TICK:
        programs = draft.programs(tick)
    kept = binding_links([flows], links)
    system = draft.system(programs, links, kept, tick)
    num_used = int(flows.used(len(links)).sum())
    notes = (*work.notes, *step_notes(work, num_used, num_used - kept.size))
    num_replicas = work.devices.shape[1]
    return Model(flows, programs.distinct, system, num_replicas, horizon, notes)


def _check(work: PipelineWork) -> None:
    num_stages, num_replicas, _ = work.devices.shape
    num_virtual = num_stages * work.num_chunks
    for number in range(1 + len(work.others)):
        work_of_kind = work.of_kind(number)
        times = (
            work_of_kind.forward_time,
            work_of_kind.backward_time,
            work_of_kind.weight_time,
        )
        by_kind = *work_of_kind.unusual_time.values(), *work_of_kind.sent_time.values()
        assert {time_.size for time_ in (*times, *by_kind)} == {num_virtual}
        assert work_of_kind.optimizer_time.size == num_stages
    assert work.boundary_bytes.size == num_virtual - 1
    assert work.kind.shape == (num_stages, num_replicas)
    assert 0 <= work.kind.min() <= work.kind.max() <= len(work.others)
    assert work.interference >= 1.0


def port_table(
    by_stage: Sequence[StagePorts], programs: Programs, actors: IntArray | None = None
) -> IntArray:
    """Return the channels of every actor, shape ``(A, S)``; a stream has its stage's.

    Rows are filled up with `NONE`. With ``actors``, rising, only of these.
    """
    width = max(rows.channels.shape[1] for rows in by_stage)
    blocks = []
    for place, stage in enumerate((*range(len(by_stage)), *programs.streams)):
        channels = by_stage[stage].channels
        if actors is not None:
            ends = np.searchsorted(actors, len(channels) * np.array([place, place + 1]))
            channels = channels[actors[slice(*ends)] - len(channels) * place]
        block = np.full((len(channels), width), NONE)
        block[:, : channels.shape[1]] = channels
        blocks.append(block)
    return np.concatenate(blocks)


def latest_end(programs: Programs, slowest: FloatArray) -> float:
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
    # Actors of one program are next to each other but where devices differ.
    for number in range(len(programs.distinct)):
        rows = slowest[programs.of_actor == number]
        most[number] = rows.max(axis=0)
    steps = [program.steps for program in programs.distinct]
    messages = float((num_posts(steps, slowest.shape[1]) * most).sum())
    work = sum(float(step.duration.sum()) for step in steps)
    # Rounding to ticks adds less than the last term.
    return work + messages + 1.0


def step_notes(work: PipelineWork, num_used: int, num_pruned: int) -> list[str]:
    """Say what a replay does not simulate one by one."""
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
