"""Replay one placed training step over the links of the network.

Every stage of every replica is a SimPy process with its schedule's instructions;
activations, gradients and collectives are flows that share links max-min fairly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.clock import quantise, tick_for
from nestsim.simulator.engine import simulate
from nestsim.simulator.flows import Flows, build_flows
from nestsim.simulator.memory import stage_memory_timeline
from nestsim.simulator.outcome import (
    SPAN_KINDS,
    TRANSFER_KINDS,
    MemoryTimeline,
    Replay,
    Spans,
    Transfers,
)
from nestsim.simulator.programs import StageProgram, actor_channels, stage_programs
from nestsim.simulator.system import NONE, Run, System
from nestsim.simulator.traffic import link_use
from nestsim.simulator.work import PipelineWork
from topologies.network import Links, Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Model(NamedTuple):
    """A training step, ready for the engine."""

    flows: Flows
    programs: tuple[StageProgram, ...]
    """Per stage."""
    system: System
    """Actors stage by stage, replica by replica; a channel for each flow."""
    folded: tuple[str, ...]
    """What the replay does not simulate one by one."""


def replay(network: Network, work: PipelineWork, *, memory: bool = True) -> Replay:
    """Simulate one training step and return everything that happened in it.

    The same input gives bitwise the same output. With nothing in each other's way the
    spans are those of `planner.kernels.timeline`, durations rounded to ticks.

    Parameters
    ----------
    network
        Links and routes.
    work
        Durations, bytes and devices of the step.
    memory
        Whether to keep the account of memory; without it `Replay.memory` is empty.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    model = build_model(network, work)
    run = simulate(model.system)
    counts = np.array([arrivals.size for arrivals in run.arrivals], np.int64)
    spans = _spans(model, run, work)
    backward = spans.kind == SPAN_KINDS.index("backward")
    return Replay(
        iteration_time=run.end,
        pipeline_time=float(spans.end[backward].max(initial=0.0)),
        spans=spans,
        transfers=_transfers(model, run, counts),
        memory=_memory(model, run, work) if memory else (),
        links=link_use(model.flows, run, counts, len(network.links)),
        num_events=run.num_events,
        folded=model.folded,
    )


def build_model(network: Network, work: PipelineWork) -> Model:
    """Prepare the engine's actors, channels and network.

    This is the place between the description of the step (flows, programs) and what
    is simulated, where alike actors and flows could be merged into classes.
    """
    num_stages, num_replicas, num_lanes = work.devices.shape
    num_virtual = num_stages * work.num_chunks
    assert work.forward_time.size == work.backward_time.size == num_virtual
    assert work.boundary_bytes.size == num_virtual - 1
    assert all(len(m.saved_per_microbatch) == work.num_chunks for m in work.memory)
    flows = build_flows(network, work)
    tick = tick_for(_horizon(network.links, work, flows))
    programs = stage_programs(work, flows, tick=tick)
    used = np.unique(flows.incidence.links)
    binding = used[flows.binding[used]]
    system = System(
        programs=tuple(program.steps for program in programs),
        program=np.repeat(np.arange(num_stages), num_replicas),
        slots=_slots(flows, num_stages, num_replicas),
        num_sources=flows.num_sources,
        latency=quantise(flows.latency, tick),
        num_bytes=flows.num_bytes,
        incidence=flows.incidence.restricted(binding, len(network.links)),
        capacity=network.links.bandwidth[binding],
        tick=tick,
        num_recorded=max(used.size, len(flows)),
    )
    folded = [*work.folded]
    if num_lanes > 1 and num_stages > 1:
        folded.append(
            f"The {num_lanes} tensor-parallel lanes of a stage boundary move as one "
            "flow, at the rate of the slowest lane."
        )
    if binding.size < used.size:
        folded.append(
            f"{used.size - binding.size} of {used.size} links in use can never limit a "
            "flow, because their neighbours on all routes do so first; they are left "
            "out when rates are solved, which changes no rate."
        )
    return Model(flows, programs, system, tuple(folded))


def _slots(flows: Flows, num_stages: int, num_replicas: int) -> IntArray:
    """Return the channels of every actor, stage by stage, replica by replica."""
    rows = [
        actor_channels(flows, stage, replica)
        for stage in range(num_stages)
        for replica in range(num_replicas)
    ]
    slots = np.full((len(rows), max(len(row) for row in rows)), NONE, dtype=np.int64)
    for number, row in enumerate(rows):
        slots[number, : len(row)] = row
    return slots


def _horizon(links: Links, work: PipelineWork, flows: Flows) -> float:
    """Return a moment before which every run of this step has ended [s].

    The chain of events that leads to the last one passes through each pass and each
    message of at most one replica, and through each collective, once.
    """
    slowest = flows.slowest_times(links)
    messages = [
        slowest[bundles].max(axis=1).sum()
        for bundles in (flows.activation, flows.gradient)
        if bundles.size
    ]
    compute = work.forward_time.sum() + work.backward_time.sum()
    per_microbatch = float(compute) + float(sum(messages))
    tail = float(work.optimizer_time.sum() + slowest[flows.replica < 0].sum())
    # Rounding to ticks adds less than the last term.
    return work.num_microbatches * per_microbatch + tail + 1.0


def _spans(model: Model, run: Run, work: PipelineWork) -> Spans:
    """Collect the actors' logs, in order of start; equal ones by stage and replica."""
    num_replicas = work.devices.shape[1]
    per_stage = np.array([program.kinds.size for program in model.programs])
    start = _joined(run.span_starts)
    order = np.argsort(start, kind="stable")
    stage = np.repeat(np.arange(per_stage.size), per_stage * num_replicas)
    replicas = np.tile(np.arange(num_replicas), per_stage.size)
    kinds = [np.tile(program.kinds, num_replicas) for program in model.programs]
    microbatches = [np.tile(one.microbatches, num_replicas) for one in model.programs]
    chunks = [np.tile(one.chunks, num_replicas) for one in model.programs]
    spans = Spans(
        stage=stage[order],
        replica=np.repeat(replicas, np.repeat(per_stage, num_replicas))[order],
        kind=np.concatenate(kinds)[order],
        microbatch=np.concatenate(microbatches)[order],
        chunk=np.concatenate(chunks)[order],
        start=start[order],
        end=_joined(run.span_ends)[order],
    )
    for values in spans:
        values.flags.writeable = False
    return spans


def _transfers(model: Model, run: Run, counts: IntArray) -> Transfers:
    """Collect the channels' logs, in order of start; equal ones by flow number."""
    flows = model.flows
    start = _joined(run.departures)
    order = np.argsort(start, kind="stable")
    flow = np.repeat(np.arange(len(flows)), counts)
    microbatch = [
        _sent(model.programs, kind, stage, chunk)
        for kind, stage, chunk in zip(
            *(each.tolist() for each in (flows.kind, flows.stage, flows.chunk)),
            strict=True,
        )
    ]
    transfers = Transfers(
        kind=flows.kind[flow][order],
        stage=flows.stage[flow][order],
        replica=flows.replica[flow][order],
        microbatch=np.concatenate([*microbatch, np.zeros(0, np.int64)])[order],
        chunk=flows.chunk[flow][order],
        posted=_joined(run.posts)[order],
        start=start[order],
        end=_joined(run.arrivals)[order],
        num_bytes=flows.num_bytes[flow][order],
    )
    for values in transfers:
        values.flags.writeable = False
    return transfers


def _sent(
    programs: Sequence[StageProgram], kind: int, stage: int, chunk: int
) -> IntArray:
    """Return the microbatches that a flow carries, in order; -1 for a collective."""
    if kind > TRANSFER_KINDS.index("gradient"):
        return np.array([-1])
    program = programs[stage]
    # Activations are sent by forward passes, gradients by backward passes.
    sent: IntArray = program.microbatches[
        (program.kinds == kind) & (program.chunks == chunk)
    ]
    return sent


def _memory(model: Model, run: Run, work: PipelineWork) -> tuple[MemoryTimeline, ...]:
    num_replicas = work.devices.shape[1]
    logs = list(zip(run.span_starts, run.span_ends, strict=True))
    return tuple(
        stage_memory_timeline(
            work.memory[stage],
            program,
            logs[stage * num_replicas : (stage + 1) * num_replicas],
        )
        for stage, program in enumerate(model.programs)
    )


def _joined(logs: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate([*logs, np.zeros(0)])
