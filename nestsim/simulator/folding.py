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
  the same slots; they are complete at the same moment.
- *Actors.* All actors of a class run one program, and have a channel of the same class
  in each slot: they wait equally long.
- What happens at one moment does not depend on the order inside it: nothing is granted
  to whoever comes first.

A class of flows has the *link's* count ``n(l, F)`` as its weight on a class of links.
A class of channels waits for one post of each class of actors and slot that post to
it, because only one member of each class is simulated.

That the classes are stable is checked without hashes in every run; as long as the check
fails, they are divided further. Hence no collision of hashes can make a folding wrong.

Letters: ``A`` actors, ``S`` slots, ``C`` channels, ``L`` links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.kernels import refine as kernels
from nestsim.simulator.posts import num_posts
from nestsim.simulator.system import NONE, Incidence, Run, System
from topologies.arrays import FloatArray, IntArray

_SEED = 0x6E657374
"""Of the first round's hashes; any number does."""

_UNITS = 2.0**20
"""Weights are multiples of its inverse."""


class Classes(NamedTuple):
    """Items of one kind, sorted into classes."""

    of: IntArray
    """Class of each item; classes are numbered by their first members."""

    first: IntArray
    """First member of each class: it stands for the others."""

    @property
    def sizes(self) -> IntArray:
        """Members of each class."""
        return np.bincount(self.of, minlength=self.first.size)

    @property
    def stand_in(self) -> IntArray:
        """The item that stands for each item."""
        return self.first[self.of]


class _Graph(NamedTuple):
    """Who depends on whom, as the kernels want it."""

    slots: IntArray
    senders: tuple[IntArray, IntArray]
    flow_links: tuple[IntArray, IntArray]
    link_flows: tuple[IntArray, IntArray, IntArray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folding:
    """A system, and what it stands for."""

    system: System
    """One actor, channel and link of each class."""

    actors: Classes
    """The actors that were given."""

    channels: Classes
    """The channels that were given."""

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


def fold(system: System, actor_colours: IntArray, channel_colours: IntArray) -> Folding:
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
        The same for channels, shape ``(C,)``.
    """
    graph = _graph(system)
    actors = numbered(system.program, actor_colours)
    channels = numbered(system.num_bytes, system.latency, channel_colours)
    links = numbered(system.capacity)
    num_rounds = 0
    while not kernels.certify(*graph, actors, channels, links):
        kernels.refine(*graph, actors, channels, links, _SEED + num_rounds)
        num_rounds += 1
    classes = [_classes(each) for each in (actors, channels, links)]
    return Folding(
        system=_quotient(system, graph, *classes),
        actors=classes[0],
        channels=classes[1],
        num_rounds=num_rounds,
    )


def unfolded(system: System) -> Folding:
    """Return the folding in which everything stands for itself."""
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
    link_flows = kernels.by_link(*_in_units(incidence), of.size)
    seed = _SEED
    while not kernels.links_alike(*link_flows, channels.of, of):
        kernels.split_links(*link_flows, channels.of, of, seed)
        seed += 1
    links = _classes(of)
    return links, _folded_incidence(link_flows, channels, links)


def numbered(*attributes: NDArray[np.generic]) -> IntArray:
    """Give the distinct rows of some columns numbers, by first occurrence."""
    classes = np.zeros(attributes[0].size, np.int64)
    for column in attributes:
        # Adding 0 turns -0 into 0; equal values then have equal bits.
        exact = np.ascontiguousarray(column) + 0
        kernels.split(classes, exact.astype(exact.dtype).view(np.uint64))
    return classes


def _classes(of: IntArray) -> Classes:
    return Classes(of, kernels.first_members(of))


def _each(logs: Sequence[FloatArray], classes: Classes) -> tuple[FloatArray, ...]:
    return tuple(logs[number] for number in classes.of.tolist())


def _graph(system: System) -> _Graph:
    flow_links = _in_units(system.incidence)
    return _Graph(
        np.ascontiguousarray(system.slots),
        _senders(system),
        flow_links[:2],
        kernels.by_link(*flow_links, system.capacity.size),
    )


def _in_units(incidence: Incidence) -> tuple[IntArray, IntArray, IntArray]:
    """Return an incidence with integer weights."""
    units = np.rint(incidence.weights * _UNITS).astype(np.int64)
    assert np.array_equal(units / _UNITS, incidence.weights), "weights are not dyadic"
    return incidence.indptr, incidence.links, units


def _senders(system: System) -> tuple[IntArray, IntArray]:
    """Return who posts to each channel: ``actor * S + slot``, in compressed rows."""
    num_slots = system.slots.shape[1]
    posts = num_posts(system.programs, num_slots)[system.program] > 0
    found = np.flatnonzero(posts & (system.slots != NONE))
    channel = system.slots.ravel()[found]
    counts = np.bincount(channel, minlength=system.num_sources.size)
    assert np.all((counts == system.num_sources) | (counts == 0))
    order = np.argsort(channel, kind="stable")
    return _indptr(counts), found[order].astype(np.int64)


def _quotient(
    system: System, graph: _Graph, actors: Classes, channels: Classes, links: Classes
) -> System:
    """Return the system of the classes."""
    slots = system.slots[actors.first]
    return replace(
        system,
        program=system.program[actors.first],
        slots=np.append(channels.of, NONE)[slots],
        num_sources=_num_sources(graph, actors, channels),
        latency=system.latency[channels.first],
        num_bytes=system.num_bytes[channels.first],
        incidence=_folded_incidence(graph.link_flows, channels, links),
        capacity=system.capacity[links.first],
    )


def _num_sources(graph: _Graph, actors: Classes, channels: Classes) -> IntArray:
    """Count the classes of posts to each class of channels."""
    row, post = _rows(graph.senders[0], channels.first, graph.senders[1])
    num_slots = max(1, graph.slots.shape[1])
    kind = actors.of[post // num_slots] * num_slots + post % num_slots
    distinct = kernels.first_members(numbered(row, kind))
    counts = np.bincount(row[distinct], minlength=channels.first.size)
    return np.maximum(counts, 1)


def _folded_incidence(
    link_flows: tuple[IntArray, IntArray, IntArray], channels: Classes, links: Classes
) -> Incidence:
    """Return the classes of links that each class of flows crosses, by link's count."""
    indptr, flows, weights = link_flows
    link, flow, weight = _rows(indptr, links.first, flows, weights)
    pair = numbered(channels.of[flow], link)
    first = kernels.first_members(pair)
    total = np.bincount(pair, weight, minlength=first.size) / _UNITS
    flow, link = channels.of[flow[first]], link[first]
    order = np.lexsort((link, flow))
    counts = np.bincount(flow, minlength=channels.first.size)
    return Incidence(_indptr(counts), link[order], total[order])


def _rows(indptr: IntArray, rows: IntArray, *columns: IntArray) -> tuple[IntArray, ...]:
    """Return the entries of some compressed rows, and before them their row's place."""
    sizes = indptr[rows + 1] - indptr[rows]
    place = np.repeat(np.arange(rows.size), sizes)
    begin = np.cumsum(sizes) - sizes
    entries = np.arange(place.size) + (indptr[rows] - begin)[place]
    return place, *(column[entries] for column in columns)


def _indptr(counts: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
