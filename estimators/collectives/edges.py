"""Prices of messages that share links, from routes walked on the spot.

Letters: ``R`` rounds, ``T`` teams of a round, ``M`` messages of a team, ``S`` stages,
``G`` groups of a stage, ``n`` members of a group, ``P`` phases, ``E`` links, ``h``
links of a route, ``w`` messages on a link, ``B`` its bandwidth. With the routes of all
messages of a round counted, ``w[l] += 1`` for every link ``l`` of every route, a
message costs::

    latency = sum over its links of the links' latency, in order
    inverse = max over its links of w[l] / B[l]

Counts are never set back to zero: each round counts from a ``base`` above everything
counted before, and what lies below the base is none, so that a call costs O(M h) and
not O(E). Sums are over one route alone and maxima know no order: no result depends,
to the last bit, on the order of messages or on what else is priced in the same call.

Device numbers are not checked here, but by `estimators.collectives.edges`.

What device numbers and groups of them look like.

Letters: ``S`` stages, ``G`` groups of a stage, ``n`` members of a group, ``K`` levels.
"""

from typing import NamedTuple

import numpy as np

from estimators.collectives.walks import (
    PATHS,
    TORUS,
    TREE,
    joined_routes,
    listed_routes,
    torus_routes,
    tree_routes,
)
from topologies.arrays import (
    BoolVector,
    FloatCube,
    FloatHypercube,
    FloatMatrix,
    FrozenFloatVector,
    Int32Matrix,
    Int32Vector,
    IntCube,
    IntMatrix,
    IntVector,
    UInt32Vector,
)
from topologies.compiling import kernel, subkernel


class Detours(NamedTuple):
    """What differs from the rule, where links have been removed; all empty elsewhere.

    For ``K`` pairs whose routes are known.
    """

    kept: BoolVector
    """Links that are still there, shape ``(E,)``."""

    pairs: IntVector
    """Rising: ``source * devices + target``, shape ``(K,)``."""

    indptr: IntVector
    """Shape ``(K + 1,)``: pair ``q`` takes ``links[indptr[q]:indptr[q + 1]]``."""

    links: UInt32Vector
    """Of all routes, one behind the other."""

    missing: IntVector
    """Written by kernels: how many pairs were met whose routes are cut and not known,
    then those pairs, as many as fit."""


class NetworkArrays(NamedTuple):
    """A network (`topologies.fabrics.routing`), and what is counted on its links.

    If a call leaves a count in ``detours.missing``, what it wrote is void, and to be
    repeated when those routes are known.
    """

    kind: int
    """`TREE`, `TORUS`, `PATHS` or `JOINED`."""

    numbers: IntVector
    """Scalars and short vectors of the rule for routes: `estimators.collectives.walks`
    says which."""

    rows: Int32Matrix
    """What the rule knows of each device, a row for each."""

    tails: Int32Vector
    """Where each link starts; empty but for `PATHS`, or copies of one."""

    detours: Detours
    """Routes where links have been removed."""

    bandwidth: FrozenFloatVector
    """Bandwidth of each link, shape ``(E,)`` [byte/s]."""

    latency: FrozenFloatVector
    """Latency of each link, shape ``(E,)`` [s]."""

    longest: int
    """The most links of a route."""

    counts: IntVector
    """Kept between calls: messages counted on each link, and behind them the last base,
    shape ``(E + 1,)``."""


class RingPhaseTables(NamedTuple):
    """Phases of ``C`` collectives, for stages of ``U`` forms, each phase once."""

    rings: IntCube
    """Stride and size of the rings of each phase by form, shape ``(P, U, 2)``: the
    member at place ``i`` of its group sends to the one at ``i + stride``, the last one
    of a ring to its first. Size 1: nothing is sent."""

    turns: IntMatrix
    """Phases of each collective, in order, then -1, shape ``(C, T)``."""

    factors: FloatHypercube
    """What to multiply latency and inverse bandwidth of each turn with, its number of
    steps and its fraction, shape ``(C, T, U, 2)``."""


@subkernel
def _go_round(
    detours: Detours,
    num_devices: int,
    sources: IntVector,
    targets: IntVector,
    links: UInt32Vector,
    ends: IntVector,
) -> None:
    """Replace routes that use a link that was removed by the routes that are known.

    Those that are not known stay, and are reported. O(M h), and O(log K) for each route
    that is replaced.
    """
    kept, pairs, indptr, others, missing = detours
    total = ends[-1] if len(ends) else 0
    cut = False
    for i in range(total):
        cut = cut or not kept[links[i]]
    if not cut:
        return
    rule = links[:total].copy()
    at = 0
    start = 0
    for q in range(len(ends)):
        stop = ends[q]
        cut = False
        for i in range(start, stop):
            cut = cut or not kept[rule[i]]
        pair = sources[q] * num_devices + targets[q]
        known = np.searchsorted(pairs, pair) if cut else len(pairs)
        if known < len(pairs) and pairs[known] == pair:
            for i in range(indptr[known], indptr[known + 1]):
                links[at] = others[i]
                at += 1
        else:
            if cut:
                missing[0] += 1
                if missing[0] < len(missing):
                    missing[missing[0]] = pair
            for i in range(start, stop):
                links[at] = rule[i]
                at += 1
        ends[q] = at
        start = stop


@subkernel
def _routes(
    network: NetworkArrays,
    sources: IntVector,
    targets: IntVector,
    links: UInt32Vector,
    ends: IntVector,
) -> None:
    """Write all routes one behind the other to ``links``, and where each ends.

    In order from source to target, none where they are the same device. O(M h).
    """
    numbers, rows, detours = network.numbers, network.rows, network.detours
    num_devices = len(rows)
    if network.kind == TREE:
        tree_routes(numbers, rows, sources, targets, links, ends)
    elif network.kind == TORUS:
        torus_routes(numbers, rows, sources, targets, links, ends)
    elif network.kind == PATHS:
        listed_routes(rows, network.tails, sources, targets, links, ends)
    else:
        num_devices = numbers[12]
        joined_routes(numbers, rows, network.tails, sources, targets, links, ends)
    if len(detours.kept):
        _go_round(detours, num_devices, sources, targets, links, ends)


@kernel
def price_messages(
    network: NetworkArrays,
    sources: IntVector,
    targets: IntVector,
    round_of: IntVector,
    prices: FloatMatrix,
) -> bool:
    """Price each message among those of its round.

    Parameters
    ----------
    sources, targets, round_of
        One entry per message; ``round_of`` must not fall, and only messages with the
        same number meet.
    prices
        Filled, shape ``(2, messages)``: latency [s] and inverse bandwidth [s/byte].

    Returns
    -------
    bool
        False if ``round_of`` falls; nothing is priced then. O(messages h).
    """
    bandwidth, latency, counts = network.bandwidth, network.latency, network.counts
    num_messages = len(sources)
    most = 0
    start = 0
    for q in range(num_messages):
        if q and round_of[q] != round_of[q - 1]:
            if round_of[q] < round_of[q - 1]:
                return False
            start = q
        most = max(most, q + 1 - start)
    links = np.empty(most * network.longest, np.uint32)
    ends = np.empty(most, np.int64)
    base = counts[-1]
    start = 0
    while start < num_messages:
        stop = start
        while stop < num_messages and round_of[stop] == round_of[start]:
            stop += 1
        here = slice(start, stop)
        _routes(
            network,
            sources[here],
            targets[here],
            links,
            ends[: stop - start],
        )
        i = 0
        for q in range(start, stop):
            total = 0.0
            while i < ends[q - start]:
                link = links[i]
                total += latency[link]
                counts[link] = max(counts[link], base) + 1
                i += 1
            prices[0, q] = total
        i = 0
        for q in range(start, stop):
            slowest = 0.0
            while i < ends[q - start]:
                link = links[i]
                inverse = (counts[link] - base) / bandwidth[link]
                slowest = max(slowest, inverse)
                i += 1
            prices[1, q] = slowest
        base += stop - start
        start = stop
    counts[-1] = base
    return True


@kernel
def price_rounds(
    network: NetworkArrays,
    sources: IntCube,
    targets: IntCube,
    slowest: FloatCube,
) -> None:
    """Price the slowest message of each team, all teams of a round together.

    Parameters
    ----------
    sources, targets
        Shape ``(R, T, M)``: messages of teams of rounds.
    slowest
        Filled, shape ``(R, T, 2)``: the largest latency [s] and the largest inverse
        bandwidth [s/byte] of each team.

    O(R T M h). A round of one team needs one pass over the routes, since the largest
    ``w / B`` met while counting is that of the final counts; others need a second.
    """
    bandwidth, latency, counts = network.bandwidth, network.latency, network.counts
    num_rounds, num_teams, num_messages = sources.shape
    in_round = num_teams * num_messages
    links = np.empty(in_round * network.longest, np.uint32)
    ends = np.empty(in_round, np.int64)
    base = counts[-1]
    for r in range(num_rounds):
        _routes(
            network,
            sources[r].reshape(in_round),
            targets[r].reshape(in_round),
            links,
            ends,
        )
        i = 0
        for t in range(num_teams):
            worst_latency = 0.0
            worst_inverse = 0.0
            for q in range(t * num_messages, (t + 1) * num_messages):
                total = 0.0
                while i < ends[q]:
                    link = links[i]
                    total += latency[link]
                    count = max(counts[link], base) + 1
                    counts[link] = count
                    inverse = (count - base) / bandwidth[link]
                    worst_inverse = max(worst_inverse, inverse)
                    i += 1
                worst_latency = max(worst_latency, total)
            slowest[r, t, 0] = worst_latency
            slowest[r, t, 1] = worst_inverse
        i = 0
        for t in range(num_teams if num_teams > 1 and num_messages else 0):
            worst_inverse = 0.0
            while i < ends[(t + 1) * num_messages - 1]:
                link = links[i]
                inverse = (counts[link] - base) / bandwidth[link]
                worst_inverse = max(worst_inverse, inverse)
                i += 1
            slowest[r, t, 1] = worst_inverse
        base += in_round
    counts[-1] = base


@kernel
def price_rings(
    network: NetworkArrays,
    ordered: IntCube,
    form_of: IntVector,
    tables: RingPhaseTables,
    together: bool,
    rates: FloatCube,
) -> None:
    """Price collectives: sequences of phases in which rings turn.

    Parameters
    ----------
    ordered
        Device numbers, shape ``(S, G, n)``.
    form_of
        Which of the ``U`` forms a stage has, shape ``(S,)``.
    tables
        Phases of ``C`` collectives by form.
    together
        Whether a phase of all stages is one round, or a round each.
    rates
        Filled, shape ``(C, S, 2)``: latency [s] and inverse bandwidth [s/byte]::

            rates[c, s] = sum over t of slowest[turns[c, t], s] factors[c, t, form(s)]

        with ``slowest`` as by `price_rounds`. Each phase is priced once:
        O(P S G n h + C T S).
    """
    folds, turns, factors = tables
    num_stages, num_groups, size = ordered.shape
    num_rounds = 1 if together else num_stages
    shape = (num_rounds, num_stages // num_rounds, num_groups * size)
    targets = np.empty(ordered.size, np.int64)
    slowest = np.empty((len(folds), num_stages, 2))
    for p in range(len(folds)):
        for s in range(num_stages):
            stride = folds[p, form_of[s], 0]
            span = stride * folds[p, form_of[s], 1]
            i = s * num_groups * size
            for g in range(num_groups):
                for start in range(0, size, span):
                    for place in range(start + stride, start + span):
                        targets[i] = ordered[s, g, place]
                        i += 1
                    for place in range(start, start + stride):
                        targets[i] = ordered[s, g, place]
                        i += 1
        price_rounds(
            network,
            ordered.reshape(shape),
            targets.reshape(shape),
            slowest[p].reshape((num_rounds, num_stages // num_rounds, 2)),
        )
    for c in range(len(turns)):
        for s in range(num_stages):
            for x in range(2):
                total = 0.0
                for t in range(turns.shape[1]):
                    p = turns[c, t]
                    if p >= 0:
                        total += slowest[p, s, x] * factors[c, t, form_of[s], x]
                rates[c, s, x] = total


@kernel
def split_evenly(ordered: IntCube, blocks: IntVector, shapes: IntMatrix) -> bool:
    """Find how many members the groups of a stage have per block at each level.

    Parameters
    ----------
    ordered
        Rising device numbers, shape ``(S, G, n)``.
    blocks
        Devices per block, rising, shape ``(K,)``.
    shapes
        Shape ``(S, K)``: filled with how many parts, each within one block of a
        level, a group has within one block of the next, innermost first, then zeros.
        A level is left out where the blocks that a stage's groups touch do not all hold
        as many members of a group as each other, a multiple of those per block of the
        level below; and where that multiple is one. Where no block holds a whole group,
        there is one level of all members.

    Returns
    -------
    bool
        Whether all stages are alike. O(S G n K) at most: of members in a row, the
        first and the last one tell whether all are in one block.
    """
    num_stages, num_groups, size = ordered.shape
    alike = True
    for s in range(num_stages):
        depth = 0
        inner = 1
        for block in blocks:
            if inner == size:
                break
            end = ordered[s, 0, 0] // block * block + block
            inside = 0
            while inside < size and ordered[s, 0, inside] < end:
                inside += 1
            even = size % inside == 0 and inside % inner == 0
            if not even or inside == inner:
                continue
            for g in range(num_groups):
                for run in range(0, size, inside):
                    end = ordered[s, g, run] // block * block + block
                    after = run + inside
                    if ordered[s, g, after - 1] >= end:
                        even = False
                    if after < size and ordered[s, g, after] < end:
                        even = False
                if not even:
                    break
            if even:
                shapes[s, depth] = inside // inner
                inner = inside
                depth += 1
        if inner != size:
            depth = 0
        if depth == 0:
            shapes[s, 0] = size
            depth = 1
        shapes[s, depth:] = 0
        for k in range(shapes.shape[1]):
            alike &= shapes[s, k] == shapes[0, k]
    return alike
