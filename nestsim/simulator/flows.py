"""The flows of one training step: who sends what over which links.

Every message between two virtual stages of a replica and every phase of a collective
is one static flow, used once or once per microbatch. Its lanes (tensor-parallel ranks,
or the members of rings) run at one rate, the slowest lane's; its weight on a link is
the number of lanes there. With several chunks per stage several flows join the same
two stages, and share the links between them.

Letters: ``p`` stages, ``v`` chunks of each, ``d`` replicas, ``t`` lanes, ``E`` links,
``F`` flows. Virtual stage ``k`` is chunk ``k div p`` of stage ``k mod p``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.kernels.prune import binding_links
from nestsim.simulator.outcome import TRANSFER_KINDS
from nestsim.simulator.system import Incidence
from nestsim.simulator.work import PipelineWork, RingPhase
from topologies.network import Links, Network, Routes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """All flows, structure of arrays of shape ``(F,)``, and where to find each."""

    kind: IntArray
    """An index into `TRANSFER_KINDS`."""

    stage: IntArray
    """The sending stage, or the stage that a collective belongs to."""

    chunk: IntArray
    """The sending chunk; -1 for collectives."""

    replica: IntArray
    """-1 for collectives."""

    num_sources: IntArray
    """Actors that must be ready before a transfer starts."""

    num_bytes: FloatArray
    """Per lane and transfer [byte]."""

    latency: FloatArray
    """Added after the last byte [s]."""

    incidence: Incidence
    """Links of the network that each flow crosses."""

    binding: BoolArray
    """Links that can limit a flow when the others are respected, shape ``(E,)``."""

    activation: IntArray
    """Flow of the activations from virtual stage ``k`` to ``k + 1``, shape
    ``(v p - 1, d)``."""

    gradient: IntArray
    """Flow of the gradients from virtual stage ``k + 1`` to ``k``, shape
    ``(v p - 1, d)``."""

    reduce: tuple[tuple[int, ...], ...]
    """Per stage: flows of the gradient collective's phases."""

    gather: tuple[tuple[int, ...], ...]
    """Per stage: flows of the parameter gather's phases."""

    tied: tuple[int, ...]
    """Flows of the tied embedding's phases."""

    def __len__(self) -> int:
        return int(self.kind.shape[0])

    def slowest_times(self, links: Links) -> FloatArray:
        """Return how long a transfer takes at most, all flows being active [s].

        A max-min fair level is at least the least fair share on the flow's links.
        """
        share = np.bincount(
            self.incidence.links, self.incidence.weights, minlength=len(links)
        )
        slowness = (share / links.bandwidth)[self.incidence.links]
        return self.latency + self.num_bytes * _largest(self.incidence.indptr, slowness)


@dataclass(frozen=True, slots=True, eq=False)
class _Collective:
    """One phase of one collective."""

    kind: str
    stage: int
    num_sources: int
    phase: RingPhase


def build_flows(network: Network, work: PipelineWork) -> Flows:
    """Return the flows of a placed training step.

    O(total length of all lanes' routes), vectorised.
    """
    num_stages, num_replicas, num_lanes = work.devices.shape
    num_boundaries = num_stages * work.num_chunks - 1
    bundles = np.arange(2 * num_boundaries * num_replicas)
    activation, gradient = bundles.reshape(2, num_boundaries, num_replicas)
    collectives, reduce, gather, tied = _collectives(work, bundles.size)
    # Along the boundaries, then the replicas: the virtual stage at either side.
    boundary = np.repeat(np.arange(num_boundaries), num_replicas)
    senders = np.concatenate([boundary, boundary + 1])
    around = np.arange(num_boundaries + 1) % num_stages
    up = work.devices[around[:-1]].ravel()
    down = work.devices[around[1:]].ravel()
    rings = [collective.phase.rings for collective in collectives]
    lanes = np.array([num_lanes] * bundles.size + [r.size for r in rings], np.int64)
    routes = _routes(
        network,
        [up, down, *(r.ravel() for r in rings)],
        [down, up, *(np.roll(r, -1, axis=1).ravel() for r in rings)],
    )
    steps = [collective.phase.num_steps for collective in collectives]
    nothing = np.full(len(collectives), -1)
    return Flows(
        kind=np.concatenate(
            [
                np.repeat([0, 1], boundary.size),
                [TRANSFER_KINDS.index(collective.kind) for collective in collectives],
            ]
        ).astype(np.int64),
        stage=np.concatenate(
            [senders % num_stages, [one.stage for one in collectives]]
        ).astype(np.int64),
        chunk=np.concatenate([senders // num_stages, nothing]).astype(np.int64),
        replica=np.concatenate(
            [np.tile(np.arange(num_replicas), 2 * num_boundaries), nothing]
        ).astype(np.int64),
        num_sources=np.array(
            [1] * bundles.size + [one.num_sources for one in collectives], np.int64
        ),
        num_bytes=np.concatenate(
            [
                np.tile(np.repeat(work.boundary_bytes, num_replicas), 2),
                [collective.phase.bytes_per_member for collective in collectives],
            ]
        ),
        latency=_lane_latencies(network, routes, lanes)
        * np.array([1] * bundles.size + steps, np.int64),
        incidence=_incidence(routes, lanes, len(network.links)),
        binding=_binding(routes, network.links),
        activation=activation,
        gradient=gradient,
        reduce=reduce,
        gather=gather,
        tied=tied,
    )


def _collectives(
    work: PipelineWork, first: int
) -> tuple[
    list[_Collective],
    tuple[tuple[int, ...], ...],
    tuple[tuple[int, ...], ...],
    tuple[int, ...],
]:
    """Give the phases of all collectives numbers, by kind and stage."""
    num_stages, num_replicas, _ = work.devices.shape
    found: list[_Collective] = []

    def number(
        kind: str, stage: int, num_sources: int, phases: tuple[RingPhase, ...]
    ) -> tuple[int, ...]:
        begin = first + len(found)
        found.extend(_Collective(kind, stage, num_sources, phase) for phase in phases)
        return tuple(range(begin, first + len(found)))

    reduce = tuple(
        number("reduce", stage, num_replicas, phases)
        for stage, phases in enumerate(work.reduce_phases)
    )
    gather = tuple(
        number("gather", stage, num_replicas, phases)
        for stage, phases in enumerate(work.gather_phases)
    )
    both_ends = num_replicas * min(2, num_stages)
    tied = number("tied", 0, both_ends, work.tied_phases)
    return found, reduce, gather, tied


def _routes(
    network: Network, sources: list[IntArray], targets: list[IntArray]
) -> Routes:
    """Return the routes of all pairs; there may be none."""
    source = np.concatenate(sources).astype(np.int64)
    target = np.concatenate(targets).astype(np.int64)
    if not source.size:
        return Routes(np.zeros(1, np.int64), np.zeros(0, np.int64))
    return network.routes(source, target)


def _lane_latencies(network: Network, routes: Routes, lanes: IntArray) -> FloatArray:
    """Return the largest route latency among each flow's lanes [s].

    Each route is summed on its own, so that equal routes have bitwise equal latencies.
    """
    latency = np.zeros(routes.indptr.size - 1)
    filled = np.diff(routes.indptr) > 0
    if filled.any():
        values = network.links.latency[routes.links]
        latency[filled] = np.add.reduceat(values, routes.indptr[:-1][filled])
    return _largest(np.concatenate(([0], np.cumsum(lanes))), latency)


def _largest(indptr: IntArray, values: FloatArray) -> FloatArray:
    """Return the largest value of each compressed row, 0 for an empty one."""
    largest = np.zeros(indptr.size - 1)
    filled = np.diff(indptr) > 0
    if filled.any():
        largest[filled] = np.maximum.reduceat(values, indptr[:-1][filled])
    return largest


def _incidence(routes: Routes, lanes: IntArray, num_links: int) -> Incidence:
    """Count the lanes of each flow on each link."""
    num_flows = lanes.size
    flow_of_route = np.repeat(np.arange(num_flows), lanes)
    flow_of_entry = np.repeat(flow_of_route, np.diff(routes.indptr))
    keys, counts = np.unique(
        flow_of_entry * num_links + routes.links, return_counts=True
    )
    flows, links = np.divmod(keys, max(1, num_links))
    sizes = np.bincount(flows, minlength=num_flows)
    return Incidence(
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        links.astype(np.int64),
        counts.astype(np.float64),
    )


def _binding(routes: Routes, links: Links) -> BoolArray:
    """Find the links whose limits do not follow from their neighbours' on routes."""
    num_links = len(links)
    filled = np.diff(routes.indptr) > 0
    inner = np.ones((2, num_links), dtype=np.bool_)
    inner[0, routes.links[routes.indptr[:-1][filled]]] = False
    inner[1, routes.links[routes.indptr[1:][filled] - 1]] = False
    size = routes.links.size
    consecutive = np.ones(max(0, size - 1), dtype=np.bool_)
    seams = routes.indptr[(routes.indptr > 0) & (routes.indptr < size)]
    consecutive[seams - 1] = False
    first, second = routes.links[:-1][consecutive], routes.links[1:][consecutive]
    order = np.lexsort((np.arange(num_links), links.bandwidth))
    kept: BoolArray = binding_links(
        order,
        np.array(links.bandwidth),
        inner,
        *_distinct_rows(second, first, num_links),
        *_distinct_rows(first, second, num_links),
    )
    return kept


def _distinct_rows(
    rows: IntArray, values: IntArray, num_links: int
) -> tuple[IntArray, IntArray]:
    """Return the distinct values of each row, in compressed rows."""
    keys = np.unique(rows * num_links + values)
    indptr = np.searchsorted(keys, np.arange(num_links + 1) * num_links)
    return indptr.astype(np.int64), (keys % max(1, num_links)).astype(np.int64)
