"""Replay one placed training step over the links of the network.

Every stage of every replica is a SimPy process with its schedule's instructions;
activations, gradients and collectives are flows that share links max-min fairly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.clock import quantise, tick_for
from nestsim.simulator.engine import Actor, ChannelSpec, Engine
from nestsim.simulator.flows import Flows, build_flows
from nestsim.simulator.fluid import Fluid
from nestsim.simulator.memory import stage_memory_timeline
from nestsim.simulator.programs import (
    NONE,
    StageProgram,
    actor_channels,
    stage_programs,
)
from nestsim.simulator.traffic import link_use
from nestsim.simulator.work import (
    SPAN_KINDS,
    TRANSFER_KINDS,
    MemoryTimeline,
    PipelineWork,
    Replay,
    Spans,
    Transfers,
)
from topologies.network import Links, Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Model(NamedTuple):
    """A training step, ready for the engine."""

    flows: Flows
    programs: tuple[StageProgram, ...]
    """Per stage."""
    actors: tuple[Actor, ...]
    """Stage by stage, replica by replica."""
    channels: tuple[ChannelSpec, ...]
    """One for each flow."""
    fluid: Fluid
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
    engine = Engine(model.actors, model.channels, model.fluid)
    end = engine.run()
    counts = np.array([channel.arrived for channel in engine.channels], np.int64)
    spans = _spans(model, work)
    backward = spans.kind == SPAN_KINDS.index("backward")
    return Replay(
        iteration_time=end,
        pipeline_time=float(spans.end[backward].max(initial=0.0)),
        spans=spans,
        transfers=_transfers(model, engine, counts),
        memory=_memory(model, work) if memory else (),
        links=link_use(model.flows, model.fluid, counts, len(network.links), end),
        num_events=engine.num_events,
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
    wired = (flows.num_bytes > 0) & (np.diff(flows.incidence.indptr) > 0)
    latency = quantise(flows.latency, tick)
    channels = tuple(
        ChannelSpec(flow if wired[flow] else NONE, float(latency[flow]), int(sources))
        for flow, sources in enumerate(flows.num_sources)
    )
    actors = tuple(
        Actor(programs[stage].steps, actor_channels(flows, stage, replica))
        for stage in range(num_stages)
        for replica in range(num_replicas)
    )
    used = np.unique(flows.incidence.links)
    binding = used[flows.binding[used]]
    fluid = Fluid(
        flows.incidence.restricted(binding, len(network.links)),
        network.links.bandwidth[binding],
        flows.num_bytes,
        tick=tick,
        num_recorded_links=max(used.size, len(flows)),
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
    return Model(flows, programs, actors, channels, fluid, tuple(folded))


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


def _spans(model: Model, work: PipelineWork) -> Spans:
    """Collect the actors' logs, in order of start; equal ones by stage and replica."""
    num_replicas = work.devices.shape[1]
    per_stage = np.array([program.kinds.size for program in model.programs])
    start = _joined([actor.starts for actor in model.actors])
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
        end=_joined([actor.ends for actor in model.actors])[order],
    )
    for values in spans:
        values.flags.writeable = False
    return spans


def _transfers(model: Model, engine: Engine, counts: IntArray) -> Transfers:
    """Collect the channels' logs, in order of start; equal ones by flow number."""
    flows = model.flows
    start = _joined([channel.starts for channel in engine.channels])
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
        posted=_joined([channel.posts for channel in engine.channels])[order],
        start=start[order],
        end=_joined([channel.arrivals for channel in engine.channels])[order],
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


def _memory(model: Model, work: PipelineWork) -> tuple[MemoryTimeline, ...]:
    num_replicas = work.devices.shape[1]
    return tuple(
        stage_memory_timeline(
            work.memory[stage],
            program,
            [
                (np.array(actor.starts), np.array(actor.ends))
                for actor in model.actors[
                    stage * num_replicas : (stage + 1) * num_replicas
                ]
            ],
        )
        for stage, program in enumerate(model.programs)
    )


def _joined(logs: Sequence[Sequence[float]]) -> FloatArray:
    return np.concatenate([*(np.array(log) for log in logs), np.zeros(0)])
