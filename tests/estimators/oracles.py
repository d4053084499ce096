"""Published formulas, and prices of communication over explicit routes, plainly."""

from collections import Counter

import numpy as np

from estimators.collectives.cost import CollectiveRate, Phase
from estimators.collectives.messages import EdgeCost
from estimators.collectives.phases import RING_OPERATIONS, ring_pass
from estimators.models.spec import TransformerSpec


def price_by_routes(network, sources, targets, round_of=None):
    """Count the links of all routes, as `edge_costs` does by walking them."""
    routes = network.routes(sources, targets)
    hops = np.diff(routes.indptr)
    links = routes.links
    if round_of is not None:
        links = links + np.repeat(round_of, hops) * len(network.links)
    load = np.bincount(links)[links]
    seconds_per_byte = load / network.links.bandwidth[routes.links]
    inverse = np.zeros(len(hops))
    if links.size:
        crossing = hops > 0
        starts = routes.indptr[:-1][crossing]
        inverse[crossing] = np.maximum.reduceat(seconds_per_byte, starts)
    return EdgeCost(network.latencies(routes), inverse)


def even_split(ordered, block_sizes):
    """Return members per block at each level, innermost first.

    Levels whose blocks do not all hold as many are left out.
    """
    shape = []
    inner = 1
    for block in block_sizes:
        counts = {
            count
            for group in ordered
            for count in Counter((group // block).tolist()).values()
        }
        inside = max(counts)
        if len(counts) == 1 and inside > inner and inside % inner == 0:
            shape.append(inside // inner)
            inner = inside
    return tuple(shape)


def plain_phases(operation, groups, block_sizes, algorithm):
    """Return the phases of one stage, their rings cut out of a grid of members."""
    ordered = np.sort(groups, axis=1)
    size = ordered.shape[1]
    if size == 1:
        return []
    shape = even_split(ordered, block_sizes) if algorithm == "hierarchical" else ()
    if len(shape) < 2:
        return [Phase(ordered, *RING_OPERATIONS[operation](size))]
    inwards = []
    part = 1.0
    for axis, members in enumerate(shape):
        grid = ordered.reshape(-1, *reversed(shape))
        rings = np.moveaxis(grid, len(shape) - axis, -1).reshape(-1, members)
        fraction, num_steps = ring_pass(members)
        inwards.append(Phase(rings, fraction * part, num_steps))
        part /= members
    if operation == "reduce_scatter":
        return inwards
    if operation == "all_gather":
        return inwards[::-1]
    top = inwards[-1]
    turned = Phase(top.rings, 2 * top.fraction, 2 * top.num_steps)
    return [*inwards[:-1], turned, *inwards[-2::-1]]


def rates_by_routes(network, operation, groups, algorithm, *, together=True):
    """Price each phase of all stages over the routes of its rings."""
    stages = [
        plain_phases(operation, stage, network.block_sizes, algorithm)
        for stage in groups
    ]
    latency = np.zeros(len(stages))
    inverse = np.zeros(len(stages))
    for index in range(max(len(phases) for phases in stages)):
        present = [s for s, phases in enumerate(stages) if index < len(phases)]
        phases = [stages[s][index] for s in present]
        sources = np.concatenate([phase.rings.ravel() for phase in phases])
        following = [np.roll(phase.rings, -1, axis=1).ravel() for phase in phases]
        sizes = [phase.rings.size for phase in phases]
        rounds = None if together else np.repeat(np.arange(len(sizes)), sizes)
        edges = price_by_routes(network, sources, np.concatenate(following), rounds)
        bounds = np.cumsum([0, *sizes])[:-1]
        slowest_hop = np.maximum.reduceat(edges.latency, bounds)
        slowest_edge = np.maximum.reduceat(edges.inverse_bandwidth, bounds)
        latency[present] += slowest_hop * [phase.num_steps for phase in phases]
        inverse[present] += slowest_edge * [phase.fraction for phase in phases]
    pairs = zip(latency.tolist(), inverse.tolist(), strict=True)
    return tuple(CollectiveRate(*pair) for pair in pairs)


def closed_form_training_flops(
    spec: TransformerSpec, *, global_batch_size: int, full_recompute: bool
) -> float:
    """Return the FLOPs of one step by the formula for GPTs [FLOP].

    With full recompute 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)), equation 3 of
    Narayanan et al., SC'21; without it 72 B s l h^2 (1 + s / (6 h) + V / (12 l h)).
    Both are exact for a feed-forward width of 4 h and as many key heads as query heads.
    """
    s, h, n, v = (
        spec.sequence_length,
        spec.hidden_size,
        spec.num_layers,
        spec.vocab_size,
    )
    factor, share = (96, 16) if full_recompute else (72, 12)
    blocks = factor * global_batch_size * s * n * h**2
    return blocks * (1 + s / (6 * h) + v / (share * n * h))
