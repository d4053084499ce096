"""How long transfers between stages take at least, with those that move in lockstep.

Transfers that folding puts into one class (`nestsim.simulator.folding`) leave at the
same moments and move at the same rate, whatever else there is on their links. So in
every replay each of them has, on every link, no more than its part of what the link
gives to the whole class: it takes the bytes of the class on its busiest link at least.

Classes are those of actors, transfers and links alone, of whichever passes, chunks and
numbers of microbatches: chunks send over the same links, each in a class of its own,
and collectives of a stage are all of its replicas', whatever they carry. So one stable
partition of a placement is stable for all plans on it that send the same collectives.

Letters: ``p`` stages, ``d`` replicas, ``B`` boundaries that transfers cross.
"""

import numpy as np

from estimators.collectives.messages import plain
from nestsim.lowering.collectives import KeptPhases, Phases, StepEnd
from nestsim.lowering.lower import tied_phases
from nestsim.simulator.folding import (
    DevicePairs,
    binding,
    classes_of,
    folded_incidence,
    in_units,
    joined,
    largest,
    numbered,
    seams_of,
)
from nestsim.simulator.kernels import refine as kernels
from nestsim.simulator.system import NONE, Incidence
from planner.cost.pricing import plan_degrees, plan_groups, plan_kinds
from planner.step.execution import Workload
from planner.step.plan import NO_OFFLOAD, Plan
from planner.step.schedules import find_schedule
from topologies.arrays import FloatArray, IntArray

_SEED = 0x6C6F636B
"""Seed of the first round's hashes; any number does."""


def lockstep_transfers(
    known: KeptPhases, workload: Workload, plan: Plan
) -> FloatArray | None:
    """Return the least that transfers between the stages of a plan take.

    For replays by stages: what passes send of their own over links is not looked at.

    Parameters
    ----------
    known
        Phases of collectives on the network.
    workload, plan
        The job, and a plan of it.

    Returns
    -------
    FloatArray | None
        Latency [s] and inverse bandwidth [s/byte] of activations and of gradients over
        the boundary after each stage, by replica, shape ``(d, p, 2, 2)``; None if there
        is a single stage or a host keeps anything.
    """
    network, p = known.network, len(plan.stages)
    if p == 1 or any(stage.offload != NO_OFFLOAD for stage in plan.stages):
        return None
    groups = plan_groups(plan)
    devices = groups.grid.reshape(p, -1, groups.grid.shape[3] * groups.grid.shape[4])
    d = devices.shape[1]
    chunks = plan.virtual_pipeline_model_parallel_size
    virtual = find_schedule(plan.schedule).virtual_stages(p, chunks)
    crossed = np.unique(virtual.boundary[~virtual.stays])
    pairs = _pairs(devices, crossed, _collectives(known, workload, plan, devices))
    transfers = 2 * crossed.size * d

    routes, num_links = pairs.routes(network), len(network.links)
    latency = pairs.latencies(network, routes)
    incidence = pairs.incidence(routes, num_links)
    used = np.zeros(num_links, dtype=np.bool_)
    used[incidence.links] = True
    kept = np.flatnonzero(used & binding([seams_of(routes, num_links)], network.links))
    indptr, links, weights = incidence.restricted(kept, num_links)
    capacity = network.links.bandwidth[kept]

    # Transfers of each boundary and direction, and each collective, stay apart.
    kind = np.arange(pairs.counts.size)
    kind[:transfers] = np.arange(transfers) // d
    partition = kernels.Partition(
        numbered(np.repeat(np.arange(p), d), plan_kinds(workload, plan).kind.ravel()),
        numbered(kind, latency),
        numbered(capacity),
    )
    units = in_units(Incidence(indptr, links, weights))
    ports = _ports(p, d, crossed)
    graph = kernels.ActorGraph(
        ports,
        _posts(ports, pairs.counts.size),
        (indptr, links),
        kernels.by_link(*units, kept.size),
    )
    seed = _SEED
    while not kernels.certify(graph, partition):
        kernels.refine(graph, partition, seed)
        seed += 1

    channels, of_links = classes_of(partition.channels), classes_of(partition.links)
    folded = folded_incidence(graph.link_flows, channels, of_links)
    busy = folded.weights / capacity[of_links.first][folded.links]
    inverse = largest(folded.indptr, busy)[channels.of]
    rates = np.stack([latency, inverse], axis=1)[:transfers]
    slowest = np.zeros((d, p, 2, 2))
    slowest[:, crossed] = np.transpose(rates.reshape(2, -1, d, 2), (2, 1, 0, 3))
    return slowest


def _collectives(
    known: KeptPhases, workload: Workload, plan: Plan, devices: IntArray
) -> Phases:
    """Return the phases of all collectives of the step's end, of a byte or so each."""
    groups, table = plan_groups(plan), workload.table(plan_degrees(plan))
    phases: Phases = ()
    for number, stage in enumerate(plan.stages):
        held = [table.expert_parameters[i : j + 1].any() for i, j in stage.chunks]
        expert = float(any(held))
        alone = groups._replace(grid=groups.grid[number : number + 1])
        end = StepEnd(known, plan, stage, alone, workload.parameter_bytes)
        phases += end.reduce(1.0, expert) + end.gather(1.0, expert)
    if not plan.joins_ends:
        phases += tied_phases(known.network, workload, table, devices)
    return phases


def _pairs(devices: IntArray, crossed: IntArray, collectives: Phases) -> DevicePairs:
    """Return who sends to whom: activations, gradients, then the collectives."""
    _, d, lanes = devices.shape
    up = devices[crossed].ravel()
    down = np.roll(devices, -1, axis=0)[crossed].ravel()
    counts = np.full(crossed.size * d, lanes)
    parts = [DevicePairs(counts, up, down), DevicePairs(counts, down, up)]
    for phase in collectives:
        sources, targets = map(plain, phase.ends())
        parts.append(DevicePairs(np.array([sources.size]), sources, targets))
    return joined(parts)


def _ports(p: int, d: int, crossed: IntArray) -> IntArray:
    """Return the transfers that each actor sends and receives, shape ``(p d, 4)``.

    Over the boundary after its stage and before it: activations, then gradients.
    """
    place = np.full(p, NONE)
    place[crossed] = np.arange(crossed.size)
    boundary = np.stack([place, np.roll(place, 1)], axis=1)
    ports = np.full((p, d, 4), NONE)
    for side, direction in np.ndindex(2, 2):
        numbers = (direction * crossed.size + boundary[:, side]) * d
        exists = boundary[:, side] != NONE
        ports[exists, :, 2 * direction + side] = (
            numbers[exists, None] + np.arange(d)[None]
        )
    return ports.reshape(p * d, 4)


def _posts(ports: IntArray, num_flows: int) -> tuple[IntArray, IntArray]:
    """Return the ports of each flow, of both of its ends, in compressed rows."""
    posts = np.flatnonzero(ports.ravel() != NONE)
    flow = ports.ravel()[posts]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(flow, minlength=num_flows))))
    return indptr.astype(np.int64), posts[np.argsort(flow, kind="stable")]
