"""Ways over a graph of switches: of least weight, and which of several is taken.

Ways have the least sum of weights, by which local links count less than global ones. Of
several, a way is chosen link by link from its end: of the links that are on a way, in
order of their numbers, that of a draw modulo their number, and the next one of what
remains of the draw.

Letters: ``Q`` roots, ``G`` vertices of the graph, ``E`` its links.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, FloatArray, HashArray, Int32Array, IntArray
from topologies.fabrics.trees import scramble
from topologies.network import Links, Routes, Tier

_CHUNK = 2**24
"""Numbers that are compared together, to bound the memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Switches of which the first ``Q`` are the roots of the copies."""

    names: tuple[str, ...]
    """Names of the vertices behind the roots."""

    place: IntArray
    """Copy that each vertex stands beside, shape ``(G,)``."""

    lowest: IntArray
    """Innermost level of the graph whose blocks hold each vertex; -1 for roots."""

    links: Links
    """Links of the graph, with the level among the graph's own."""

    weights: IntArray
    """What each link counts in a way, 1 or more, shape ``(E,)``."""

    level_names: tuple[str, ...]
    """Names of the graph's levels, from the inside out."""

    block_sizes: tuple[int, ...]
    """Copies of a block of each level, the last one being all of them."""

    tiers: tuple[Tier, ...]
    """The tiers of the graph's links."""

    hashed: bool = False
    """Whether a hash picks among equally long ways."""

    seed: int = 0
    """Seed of the hash."""

    halves: tuple[IntArray, ...] = ()
    """Halves of the copies, of which one may have the smallest cut; none for the first
    half of their numbers alone."""

    spread: int = 0
    """Copies of a part by which Valiant's routes go; 0 for shortest routes."""

    @property
    def num_vertices(self) -> int:
        """Roots, and what stands between them."""
        return len(self.place)


class _Arrivals(NamedTuple):
    """The links of a graph by where they end."""

    indptr: IntArray
    """Shape ``(G + 1,)``."""

    links: IntArray
    """Their numbers, shape ``(E,)``."""

    tails: IntArray
    """Where each starts."""

    weights: IntArray
    """What each counts."""


class Ways:
    """Ways of least weight over a graph.

    Parameters
    ----------
    graph
        In one piece.
    num_roots
        Its first vertices, between which routes go.
    first_link
        Number of the graph's first link in the whole network.
    """

    def __init__(self, graph: Graph, num_roots: int, first_link: int) -> None:
        self.graph = graph
        self.num_roots = num_roots
        self.first_link = first_link
        order = np.argsort(graph.links.target, kind="stable")
        heads = graph.links.target[order]
        self._in = _Arrivals(
            indptr=np.searchsorted(heads, np.arange(graph.num_vertices + 1)),
            links=order,
            tails=graph.links.source[order],
            weights=graph.weights[order],
        )
        self.distance = self._distances()
        self.landing = self._landings()

    @property
    def most_hops(self) -> int:
        """Links of the longest way, or more."""
        return int(self.distance.max() // self.graph.weights.min())

    def numbers(self) -> IntArray:
        """Return the graph as kernels read it, see `JoinedTable.graph`."""
        return np.concatenate(
            [
                self._in.indptr,
                self._in.links,
                self._in.tails,
                self._in.weights,
                self.distance.ravel(),
                self.landing.ravel(),
            ]
        )

    def _distances(self) -> Int32Array:
        """Return the least weight from every vertex to every one, ``(G, G)``."""
        count, first = self.graph.num_vertices, self._in.indptr[:-1]
        far = np.iinfo(np.int32).max // 2
        distance = np.full((count, count), far, dtype=np.int32)
        np.fill_diagonal(distance, 0)
        weights = self._in.weights.astype(np.int32)
        step = max(1, _CHUNK // len(self._in.links))
        for at in range(0, count, step):
            rows = distance[at : at + step]
            while True:
                longer = rows[:, self._in.tails] + weights
                better = np.minimum(rows, np.minimum.reduceat(longer, first, axis=1))
                if np.array_equal(better, rows):
                    break
                rows[:] = better
        assert distance.max() < far, "a graph in pieces"
        return distance

    def _landings(self) -> IntArray:
        """Return the vertex of each part that is next to each root, ``(Q, parts)``.

        Pairs of a root and a part take turns among those that are equally near. Without
        Valiant's routes there are no parts.
        """
        spread = self.graph.spread
        if not spread:
            return np.empty((self.num_roots, 0), dtype=np.int64)
        part = self.graph.place // spread
        number = self.num_roots // spread
        landing = np.empty((self.num_roots, number), dtype=np.int64)
        roots = np.arange(self.num_roots)
        for at in range(number):
            members = np.flatnonzero(part == at)
            near = self.distance[: self.num_roots, members]
            nearest = near == near.min(axis=1, keepdims=True)
            nth = (roots + at) % nearest.sum(axis=1)
            rank = np.cumsum(nearest, axis=1)
            landing[:, at] = members[np.argmax(rank > nth[:, None], axis=1)]
        return landing

    def along(self) -> tuple[FloatArray, FloatArray]:
        """Return the narrowest link and the latency of one way of each pair, (G, G).

        Ways of least weight have equally many links of each kind.
        """
        count, first = self.graph.num_vertices, self._in.indptr[:-1]
        narrow = np.full((count, count), math.inf)
        long = np.zeros((count, count))
        bandwidth = self.graph.links.bandwidth[self._in.links]
        latency = self.graph.links.latency[self._in.links]
        step = max(1, _CHUNK // len(self._in.links))
        for at in range(0, count, step):
            rows = np.arange(at, min(at + step, count))
            near = self.distance[rows][:, self._in.tails] + self._in.weights
            far = np.repeat(self.distance[rows], np.diff(self._in.indptr), axis=1)
            on_way = near == far
            places = np.where(on_way, np.arange(len(self._in.links)), 2**31)
            last = np.minimum.reduceat(places, first, axis=1)
            for weight in np.unique(self.distance[rows])[1:]:
                row, head = np.nonzero(self.distance[rows] == weight)
                place = last[row, head]
                pair = rows[row], self._in.tails[place]
                narrow[rows[row], head] = np.minimum(narrow[pair], bandwidth[place])
                long[rows[row], head] = long[pair] + latency[place]
        return narrow, long

    def walk(
        self,
        pairs: IntArray,
        ends: tuple[IntArray, IntArray],
        draws: HashArray,
        kept: BoolArray | None,
    ) -> "list[Hops]":
        """Return ways of least weight, found link by link from their ends.

        Of the links that are on a way, in order of their numbers, the one of the draw
        modulo their number is taken; the next takes what remains of the draw. Where
        ``kept`` leaves some of them only, and not that one, the draw is scrambled.
        """
        step = max(1, _CHUNK // self._widest)
        hops: list[Hops] = []
        for at in range(0, len(pairs), step):
            here = slice(at, at + step)
            some = ends[0][here], ends[1][here]
            hops += self._walk(pairs[here], some, draws[here], kept)
        return hops

    @property
    def _widest(self) -> int:
        """The most links that end at a vertex."""
        return int(np.diff(self._in.indptr).max(initial=1))

    def _walk(
        self,
        pairs: IntArray,
        ends: tuple[IntArray, IntArray],
        draws: HashArray,
        kept: BoolArray | None,
    ) -> "list[Hops]":
        sources, vertex = ends[0], ends[1].copy()
        draws = draws.copy()
        steps: list[Hops] = []
        walking = np.flatnonzero(vertex != sources)
        number = np.arange(self._widest)
        while walking.size:
            source, head = sources[walking], vertex[walking]
            place = self._in.indptr[head][:, None] + number
            exists = place < self._in.indptr[head + 1][:, None]
            place = np.where(exists, place, 0)
            near = self.distance[source[:, None], self._in.tails[place]]
            far = self.distance[source, head][:, None]
            usable = exists & (near + self._in.weights[place] == far)
            count = usable.sum(axis=1).astype(np.uint64)
            chosen = _nth(usable, draws[walking] % count)
            if kept is not None:
                rows = np.arange(len(walking))
                link = self.first_link + self._in.links[place]
                left = usable & kept[link]
                some = left.sum(axis=1)
                moves = np.flatnonzero(~left[rows, chosen] & (some > 0))
                again = scramble(draws[walking[moves]]) % some[moves].astype(np.uint64)
                chosen[moves] = _nth(left[moves], again)
            draws[walking] //= count
            place = place[np.arange(len(walking)), chosen]
            steps.append(Hops(pairs[walking], self.first_link + self._in.links[place]))
            vertex[walking] = self._in.tails[place]
            walking = walking[vertex[walking] != sources[walking]]
        return steps[::-1]


class Hops(NamedTuple):
    """Links that routes of some pairs take next."""

    pairs: IntArray
    """Numbers of the pairs; several times in a row for several links of one route."""

    links: IntArray
    """One link for each of them."""

    @classmethod
    def of(cls, pairs: IntArray, routes: Routes, offsets: IntArray) -> "Hops":
        """Return whole routes of some pairs, their links numbered from offsets."""
        hops = np.diff(routes.indptr)
        return cls(np.repeat(pairs, hops), routes.links + np.repeat(offsets, hops))


def gathered(steps: list[Hops], num_pairs: int) -> Routes:
    """Return routes from their steps, each route in the order of the steps."""
    pairs = np.concatenate([np.empty(0, np.int64), *(step.pairs for step in steps)])
    links = np.concatenate([np.empty(0, np.int64), *(step.links for step in steps)])
    order = np.argsort(pairs, kind="stable")
    indptr = np.zeros(num_pairs + 1, dtype=np.int64)
    np.cumsum(np.bincount(pairs, minlength=num_pairs), out=indptr[1:])
    return Routes(indptr=indptr, links=links[order])


def joined_links(parts: Sequence[Links]) -> Links:
    """Return the links of all parts, one part after the other."""
    return Links(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(Links)
        }
    )


def _nth(usable: BoolArray, nth: HashArray) -> IntArray:
    """Return the place of the true entry of a number, in each row."""
    rank = np.cumsum(usable, axis=1)
    places: IntArray = np.argmax(rank > nth.astype(np.int64)[:, None], axis=1)
    return places
