"""Symmetric folding: one of each class of actors, channels and links is simulated.

Classes come from colour refinement. They start from what is given - an actor's
program, a channel's bytes and latency, a link's capacity - and are divided until they
are stable: members of one class depend on the same classes, as explained in
`nestsim.simulator.kernels.refine`. Then, if all members of each class are in the same
state at one moment, they are at the next, and one run of the classes is a run of all
members:

- *Rates.* Let ``n(l, F)`` be the total weight of the flows of class ``F`` on link
  ``l``: it is the same for all links of a class. So in every round of the filling all
  links of a class have bitwise the same used capacity and open weight (sums of
  multiples of 2**-20 are exact), and saturate together; all flows of a class cross the
  same classes of links, so they are frozen together, at the same level. The search for
  what a change concerns reaches whole classes, for the same reason.
- *Channels.* All channels of a class wait for posts of the same classes of actors, by
  the same ports; they are complete at the same moment.
- *Actors.* All actors of a class run one program, and have a channel of the same class
  in each port: they wait equally long.
- What happens at one moment does not depend on the order inside it: nothing is granted
  to whoever comes first.

A class of flows has the *link's* count ``n(l, F)`` as its weight on a class of links.
A class of channels waits for one post of each class of actors and port that post to
it, because only one member of each class is simulated.

That the classes are stable is checked without hashes in every run; as long as the check
fails, they are divided further. Hence no collision of hashes can make a folding wrong.

Letters: ``A`` actors, ``S`` ports, ``C`` channels, ``L`` links; of a network ``F``
flows, ``N`` pairs of devices, ``E`` links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.kernels import refine as kernels
from nestsim.simulator.kernels.refine import (
    Neighbours,
    add_lanes,
    binding_links,
    consecutive_links,
    first_members,
)
from nestsim.simulator.kernels.steps import further_needs
from nestsim.simulator.system import (
    NONE,
    Incidence,
    Run,
    System,
    entries_of_rows,
    num_posts,
    row_pointers,
)
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.network import Links, Network, Routes

_SEED = 0x6E657374
"""Seed of the first round's hashes; any number does."""

UNITS = 2.0**20
"""Weights are whole multiples of its inverse."""


class Classes(NamedTuple):
    """Items of one kind, sorted into classes."""

    of: IntArray
    """Class of each item; classes are numbered by their first members."""

    first: IntArray
    """First member of each class, which represents the others."""

    @property
    def sizes(self) -> IntArray:
        """Members of each class."""
        return np.bincount(self.of, minlength=self.first.size)

    @property
    def representative(self) -> IntArray:
        """The first member of each item's class."""
        return self.first[self.of]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folding:
    """A system, and the larger one that it represents."""

    system: System
    """One actor, channel and link of each class."""

    actors: Classes
    """Classes of the actors that were given."""

    channels: Classes
    """Classes of the channels that were given."""

    num_rounds: int
    """Divisions until the classes were stable."""

    def unfolded(self, run: Run) -> Run:
        """Return the run of the system that was given; members share their arrays."""
        return replace(
            run,
            span_starts=_each(run.span_starts, self.actors),
            span_ends=_each(run.span_ends, self.actors),
            posts=_each(run.posts, self.channels),
            departures=_each(run.departures, self.channels),
            arrivals=_each(run.arrivals, self.channels),
            bins=run.bins[self.channels.of],
        )


def fold(
    system: System,
    actor_colours: IntArray,
    channel_colours: IntArray,
    *,
    num_common: int = 0,
) -> Folding:
    """Merge what behaves exactly alike, and return the smaller system.

    Every span and every message of the smaller system's run happens at bitwise the same
    moments as those of all members of its class in the run of the system given. The
    classes are the coarsest stable ones that keep the colours apart. O(rounds x size).

    Parameters
    ----------
    system
        What is to be simulated.
    actor_colours
        Actors of different colours stay apart, also if they behave alike, shape
        ``(A,)``.
    channel_colours
        Channels of different colours stay apart likewise, shape ``(C,)``.
    num_common
        Links from this one on, which are those of one channel each, stay apart from
        those before.
    """
    assert not system.is_delayed, "no two channels are alike"
    graph = _graph(system)
    actors = numbered(system.program, actor_colours)
    channels = numbered(system.num_bytes, system.latency, channel_colours)
    is_common = np.arange(system.capacity.size) < num_common
    links = numbered(is_common.astype(np.int64), system.capacity)
    num_rounds = 0
    partition = kernels.Partition(actors, channels, links)
    while not kernels.certify(graph, partition):
        kernels.refine(graph, partition, _SEED + num_rounds)
        num_rounds += 1
    classes = [classes_of(cells) for cells in partition]
    return Folding(
        system=_quotient(system, graph, *classes),
        actors=classes[0],
        channels=classes[1],
        num_rounds=num_rounds,
    )


def unfolded(system: System) -> Folding:
    """Return the folding in which everything represents itself."""
    actors, channels = np.arange(system.program.size), np.arange(system.latency.size)
    return Folding(
        system=system,
        actors=Classes(actors, actors),
        channels=Classes(channels, channels),
        num_rounds=0,
    )


def fold_links(
    incidence: Incidence, channels: Classes, *attributes: NDArray[np.generic]
) -> tuple[Classes, Incidence]:
    """Sort links into classes that carry the same at all times, bit for bit.

    Parameters
    ----------
    incidence
        Which flow crosses which link.
    channels
        Classes of the flows.
    attributes
        Links that differ in any of these stay apart, each of shape ``(L,)``.

    Returns
    -------
    tuple[Classes, Incidence]
        The classes, and which class of flows crosses which class of links, with the
        total weight on one link.
    """
    of = numbered(*attributes)
    link_flows = kernels.by_link(*in_units(incidence), of.size)
    seed = _SEED
    while not kernels.links_alike(*link_flows, channels.of, of):
        kernels.split_links(*link_flows, channels.of, of, seed)
        seed += 1
    links = classes_of(of)
    return links, folded_incidence(link_flows, channels, links)


def numbered(*attributes: NDArray[np.generic]) -> IntArray:
    """Give the distinct rows of some columns numbers, by first occurrence."""
    classes = np.zeros(attributes[0].size, np.int64)
    for column in attributes:
        # Adding 0 turns -0 into 0; equal values then have equal bits.
        exact = np.ascontiguousarray(column) + 0
        kernels.split(classes, exact.astype(exact.dtype).view(np.uint64))
    return classes


def classes_of(of: IntArray) -> Classes:
    """Return classes that are numbered by their first members."""
    return Classes(of, kernels.first_members(of))


def _each(logs: Sequence[FloatArray], classes: Classes) -> tuple[FloatArray, ...]:
    return tuple(logs[number] for number in classes.of.tolist())


def _graph(system: System) -> kernels.ActorGraph:
    flow_links = in_units(system.incidence)
    return kernels.ActorGraph(
        np.ascontiguousarray(system.ports),
        _senders(system),
        flow_links[:2],
        kernels.by_link(*flow_links, system.capacity.size),
    )


def in_units(incidence: Incidence) -> tuple[IntArray, IntArray, IntArray]:
    """Return an incidence with integer weights."""
    units = np.rint(incidence.weights * UNITS).astype(np.int64)
    assert np.array_equal(units / UNITS, incidence.weights), "weights are not dyadic"
    return incidence.indptr, incidence.links, units


def _senders(system: System) -> tuple[IntArray, IntArray]:
    """Return who posts to each channel: ``actor * S + port``, in compressed rows."""
    num_ports = system.ports.shape[1]
    posts = num_posts(system.programs, num_ports)[system.program] > 0
    posting = np.flatnonzero(posts & (system.ports != NONE))
    channel = system.ports.ravel()[posting]
    counts = np.bincount(channel, minlength=system.num_sources.size)
    assert np.all((counts == system.num_sources) | (counts == 0))
    order = np.argsort(channel, kind="stable")
    return row_pointers(counts), posting[order].astype(np.int64)


def _quotient(
    system: System,
    graph: kernels.ActorGraph,
    actors: Classes,
    channels: Classes,
    links: Classes,
) -> System:
    """Return the system of the classes."""
    ports = system.ports[actors.first]
    return replace(
        system,
        program=system.program[actors.first],
        ports=np.append(channels.of, NONE)[ports],
        num_sources=_num_sources(graph, actors, channels),
        latency=system.latency[channels.first],
        num_bytes=system.num_bytes[channels.first],
        incidence=folded_incidence(graph.link_flows, channels, links),
        capacity=system.capacity[links.first],
    )


def _num_sources(
    graph: kernels.ActorGraph, actors: Classes, channels: Classes
) -> IntArray:
    """Count the classes of posts to each class of channels."""
    row, post = entries_of_rows(graph.senders[0], channels.first, graph.senders[1])
    num_ports = max(1, graph.ports.shape[1])
    kind = actors.of[post // num_ports] * num_ports + post % num_ports
    distinct = kernels.first_members(numbered(row, kind))
    counts = np.bincount(row[distinct], minlength=channels.first.size)
    return np.maximum(counts, 1)


def folded_incidence(
    link_flows: tuple[IntArray, IntArray, IntArray], channels: Classes, links: Classes
) -> Incidence:
    """Return the classes of links that each class of flows crosses, by link's count."""
    indptr, flows, weights = link_flows
    link, flow, weight = entries_of_rows(indptr, links.first, flows, weights)
    pair = numbered(channels.of[flow], link)
    first = kernels.first_members(pair)
    total = np.bincount(pair, weight, minlength=first.size) / UNITS
    flow, link = channels.of[flow[first]], link[first]
    order = np.lexsort((link, flow))
    counts = np.bincount(flow, minlength=channels.first.size)
    return Incidence(row_pointers(counts), link[order], total[order])


class DevicePairs(NamedTuple):
    """Senders and receivers of several flows, flow by flow.

    The pairs of a flow run at one rate; its weight on a link is the number of pairs
    whose routes cross it, or the sum of their weights.
    """

    counts: IntArray
    """Pairs of each flow, shape ``(F,)``."""

    sources: IntArray
    """Device that sends in each pair, shape ``(N,)``."""

    targets: IntArray
    """Device that receives in each pair, shape ``(N,)``."""

    weights: FloatArray | None = None
    """Weight of each pair, a multiple of 2**-20, shape ``(N,)``; all 1 if None."""

    def routes(self, network: Network) -> Routes:
        """Return the route of every pair; there may be none."""
        if not self.sources.size:
            return Routes(np.zeros(1, np.int64), np.zeros(0, np.int64))
        return network.routes(self.sources, self.targets)

    def latencies(self, network: Network, routes: Routes) -> FloatArray:
        """Return the largest route latency among each flow's pairs [s].

        Each route is summed on its own, so that equal routes have bitwise equal
        latencies.
        """
        latency = np.zeros(routes.indptr.size - 1)
        filled = np.diff(routes.indptr) > 0
        if filled.any():
            values = network.links.latency[routes.links]
            latency[filled] = np.add.reduceat(values, routes.indptr[:-1][filled])
        return largest(np.concatenate(([0], np.cumsum(self.counts))), latency)

    def incidence(self, routes: Routes, num_links: int) -> Incidence:
        """Add up the pairs of each flow on each link."""
        # Sums of multiples of 2**-20 are exact, in any order.
        weights = np.zeros(0) if self.weights is None else self.weights
        rows = np.array(routes.indptr), np.array(routes.links)
        return Incidence(*add_lanes(self.counts, weights, *rows, num_links))


def joined(parts: list[DevicePairs]) -> DevicePairs:
    """Return the pairs of several lists of flows, one after another."""
    weights = None
    if any(part.weights is not None for part in parts):
        weights = np.concatenate(
            [
                np.ones(part.sources.size) if part.weights is None else part.weights
                for part in parts
            ]
        )
    nothing = np.zeros(0, dtype=np.int64)
    return DevicePairs(
        np.concatenate([nothing, *(part.counts for part in parts)]),
        np.concatenate([nothing, *(part.sources for part in parts)]),
        np.concatenate([nothing, *(part.targets for part in parts)]),
        weights,
    )


def largest(indptr: IntArray, values: FloatArray) -> FloatArray:
    """Return the largest value of each compressed row, 0 for an empty one."""
    values_of_rows = np.zeros(indptr.size - 1)
    filled = np.diff(indptr) > 0
    if filled.any():
        values_of_rows[filled] = np.maximum.reduceat(values, indptr[:-1][filled])
    return values_of_rows


class Seams(NamedTuple):
    """Where routes begin and end, and which links follow each other on them."""

    inner: BoolArray
    """Whether no route starts, and whether none ends, with a link, shape ``(2, E)``."""

    first: IntArray
    """Links that another one follows on some route, each pair once, shape ``(Q,)``."""

    second: IntArray
    """The links that follow them, shape ``(Q,)``."""


def seams_of(routes: Routes, num_links: int) -> Seams:
    """Return where the routes begin and end, and what is next to each other on them."""
    filled = np.diff(routes.indptr) > 0
    inner = np.ones((2, num_links), dtype=np.bool_)
    inner[0, routes.links[routes.indptr[:-1][filled]]] = False
    inner[1, routes.links[routes.indptr[1:][filled] - 1]] = False
    # Each pair of consecutive links once: flows share most of them.
    pairs = consecutive_links(
        np.array(routes.indptr), np.array(routes.links), num_links
    )
    return Seams(inner, *_distinct_pairs(pairs, num_links))


def binding(seams: Sequence[Seams], links: Links) -> BoolArray:
    """Find the links whose limits do not follow from their neighbours' on routes.

    Parameters
    ----------
    seams
        Of all routes in use, in any number of parts.
    links
        Of the network.
    """
    num_links = len(links)
    inner = np.logical_and.reduce([seam.inner for seam in seams])
    pairs = np.concatenate([seam.first * num_links + seam.second for seam in seams])
    first, second = _distinct_pairs(pairs, num_links)
    # A link without neighbours stays.
    joined_links = np.zeros(num_links, dtype=np.bool_)
    joined_links[first] = joined_links[second] = True
    order = np.flatnonzero(joined_links)
    order = order[np.argsort(links.bandwidth[order], kind="stable")]
    kept: BoolArray = binding_links(
        order,
        np.array(links.bandwidth),
        inner,
        _neighbours(second, first, num_links),
        _neighbours(first, second, num_links),
    )
    return kept


def _distinct_pairs(pairs: IntArray, num_links: int) -> tuple[IntArray, IntArray]:
    """Return what is distinct of ``first * num_links + second``, taken apart."""
    first, second = np.divmod(pairs[first_members(numbered(pairs))], max(1, num_links))
    return first, second


def _neighbours(links: IntArray, values: IntArray, num_links: int) -> Neighbours:
    """Return distinct pairs as the rising values of each link."""
    keys = np.sort(links * num_links + values)
    indptr = np.searchsorted(keys, np.arange(num_links + 1) * num_links)
    values = (keys % max(1, num_links)).astype(np.int64)
    return Neighbours(indptr.astype(np.int64), values)


class Listing(NamedTuple):
    """All steps of all programs, one program after another; the fields of `Step`."""

    first: IntArray
    """First step of each program, and behind the last one."""

    duration: FloatArray
    """Duration of each step, a multiple of the tick [s]."""

    source: IntArray
    """Port that each step waits for, or `NONE`."""

    need: IntArray
    """Messages that must have arrived there before each step."""

    target: IntArray
    """Port that each step posts to, or `NONE`."""

    span: IntArray
    """Flags of each step: `OPENS`, `CLOSES`, `WHOLE` or 0."""

    @property
    def program(self) -> IntArray:
        """Program that each step belongs to."""
        sizes = np.diff(self.first)
        return np.repeat(np.arange(sizes.size), sizes)

    def symbols(self) -> IntArray:
        """Return numbers, equal for steps that do the same.

        They take as long, wait for as many messages more of the same port, post to the
        same port, and open and close spans alike.
        """
        further = further_needs(self.first, self.source, self.need)
        return numbered(self.duration, self.source, self.target, self.span, further)


def list_steps(system: System) -> Listing:
    """Return the programs of a system as arrays."""
    sizes = [len(steps) for steps in system.programs]
    nothing = np.zeros(0, np.int64)
    return Listing(
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        np.concatenate([*(steps.duration for steps in system.programs), np.zeros(0)]),
        np.concatenate([*(steps.source for steps in system.programs), nothing]),
        np.concatenate([*(steps.need for steps in system.programs), nothing]),
        np.concatenate([*(steps.target for steps in system.programs), nothing]),
        np.concatenate([*(steps.span for steps in system.programs), nothing]),
    )


def num_posts_of_channels(system: System, listing: Listing) -> IntArray:
    """Return the posts to each channel."""
    num_programs, num_ports = len(system.programs), system.ports.shape[1]
    posting = listing.target != NONE
    places = listing.program[posting] * num_ports + listing.target[posting]
    by_program = np.bincount(places, minlength=num_programs * num_ports)
    by_actor = by_program.reshape(num_programs, num_ports)[system.program]
    used = system.ports != NONE
    posts = np.zeros(system.latency.size, np.int64)
    np.add.at(posts, system.ports[used], by_actor[used])
    return posts
