"""Collectives round all rings of a torus at once, in both directions.

A device of a torus has a link each way along every dimension; a single ring, or one
dimension after the other, leaves most of them idle. Pieces of the tensor that go over
the dimensions in different orders, half of each piece either way round, keep all links
busy all the time [1]_ [2]_, so that an all-gather or a reduce-scatter of ``S`` bytes
among ``n`` members takes

    t = steps * latency + (n - 1) / n * S / (P W),

``W`` being what a link carries one way and ``P`` the links that a member receives by:
two of each dimension that it goes round, one of a dimension of two members and of a
line without its closing link, whose end receives from one side alone. Nothing is
faster: each member receives ``(n - 1) / n * S``. An all-reduce is a reduce-scatter and
an all-gather.
Pieces are small against the tensor, so that a dimension's pieces of one order fill what
those of another one leave: all of it is one phase, in which every link carries as much.

What lies outside of the torus, its pods, has one phase of rings for each level.

References
----------
.. [1] N. Jain and Y. Sabharwal, "Optimal bucket algorithms for large MPI collectives on
   torus interconnects", ICS 2010: a bucket for each dimension and direction.
.. [2] J. Austin et al., "How to Scale Your Model", 2025, part 3, summary of
   collectives: bytes over bidirectional bandwidth times the number of axes, half a
   ring's hops. What XLA does on TPUs.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from estimators.collectives.phases import Exchange, Exchanges, Shape, ring_pass
from topologies import InputError, Network
from topologies.arrays import IntArray

MULTI_RING = "multi-ring"
"""The algorithm of networks that have dimensions (`Network.num_axes`)."""


class Side(NamedTuple):
    """A side of the box that the members of a group fill."""

    size: int
    """Members along the dimension."""

    closed: bool
    """Whether they are a ring: the last one is next to the first."""

    @property
    def num_ports(self) -> int:
        """Links that a member receives by, the one at an end of a line."""
        return 2 if self.closed and self.size > 2 else 1

    @property
    def num_steps(self) -> int:
        """Most hops from a member to another one."""
        return self.size // 2 if self.closed else self.size - 1


@lru_cache(maxsize=1024)
def multi_ring_exchanges(
    operation: str, axes: tuple[Side, ...], outer: Shape
) -> Exchanges:
    """Return the phases of a collective over groups that fill a box of a torus.

    Parameters
    ----------
    operation
        One of `estimators.collectives.phases.RING_OPERATIONS`.
    axes
        The box's sides, innermost first.
    outer
        Boxes in other tori at each level outside, innermost first.
    """
    sizes = tuple(size for size, _ in axes)
    members = math.prod(sizes)
    sides = (*((members,) if axes else ()), *(size for size in outer if size > 1))
    inwards: list[Exchange] = []
    stride, left = 1, 1.0
    for number, size in enumerate(sides):
        turn = ring_pass(size)
        if number == 0 and axes:
            part = _around(axes, math.prod(sides))
        else:
            part = _ring(size, stride, math.prod(sides), turn.num_steps)
        fraction = turn.fraction * left / _ports(axes if number == 0 else ())
        inwards.append(part._replace(fraction=fraction))
        stride, left = stride * size, left / size
    if operation == "reduce_scatter" or not inwards:
        return tuple(inwards)
    if operation == "all_gather":
        return tuple(inwards[::-1])
    *inner, top = inwards
    twice = top._replace(fraction=2 * top.fraction, num_steps=2 * top.num_steps)
    return (*inner, twice, *inner[::-1])


def _ports(axes: Sequence[Side]) -> int:
    return sum(axis.num_ports for axis in axes) or 1


def _around(axes: Sequence[Side], members: int) -> Exchange:
    """Return messages to all neighbours in boxes of these sides."""
    senders: list[IntArray] = []
    receivers: list[IntArray] = []
    places, stride = np.arange(members), 1
    for axis in axes:
        size, closed = axis
        at = places // stride % size
        after = places + np.where(at == size - 1, 1 - size, 1) * stride
        kept = np.full(members, True) if closed and size > 2 else at < size - 1
        senders += [places[kept], after[kept]]
        receivers += [after[kept], places[kept]]
        stride *= size
    steps = sum(axis.num_steps for axis in axes)
    return _frozen(np.concatenate(senders), np.concatenate(receivers), steps)


def _ring(size: int, stride: int, members: int, num_steps: int) -> Exchange:
    """Return messages round rings of members so far apart."""
    grid = np.arange(members).reshape(-1, size, stride)
    return _frozen(grid.ravel(), np.roll(grid, -1, axis=1).ravel(), num_steps)


def _frozen(senders: IntArray, receivers: IntArray, num_steps: int) -> Exchange:
    senders, receivers = senders.astype(np.int64), receivers.astype(np.int64)
    senders.flags.writeable = receivers.flags.writeable = False
    return Exchange(senders, receivers, 1.0, num_steps)


def require_axes(network: Network) -> None:
    """Refuse the algorithm on a network without dimensions.

    Raises
    ------
    InputError
        If it has none.
    """
    if not network.num_axes:
        raise InputError(
            "only tori and meshes have rings along their dimensions",
            got=MULTI_RING,
            expected=f"another algorithm for a network of kind {network.kind!r}",
        )


def boxes(
    network: Network, ordered: IntArray, shapes: IntArray
) -> list[tuple[tuple[Side, ...], Shape]]:
    """Return the sides of each stage's groups, and the levels outside of their boxes.

    Parameters
    ----------
    network
        One with axes.
    ordered
        Rising device numbers, shape ``(S, G, n)``.
    shapes
        The `level_shapes` of the groups, one row for each stage, or one for all.
    """
    torus = network.block_sizes[network.num_axes - 1]
    first = ordered[:, 0]
    inside = (first // torus == first[:, :1] // torus).sum(axis=1).tolist()
    rows = np.broadcast_to(shapes, (len(ordered), shapes.shape[1])).tolist()
    sides = [[size for size in row if size > 1] for row in rows]
    depths = [_depth(*of_stage) for of_stage in zip(sides, inside, strict=True)]
    # The last member of each side, and the second one.
    ends = np.array(
        [
            (s, place)
            for s, depth in enumerate(depths)
            for k in range(depth)
            for stride in (math.prod(sides[s][:k]),)
            for place in ((sides[s][k] - 1) * stride, stride)
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    stage, place = ends.T
    routes = network.routes(first[stage, place], first[stage, 0])
    far, near = np.diff(routes.indptr).reshape(-1, 2).T
    closed = iter((far <= near).tolist())
    return [
        (
            tuple(Side(size, next(closed)) for size in sides[s][:depth]),
            tuple(sides[s][depth:]),
        )
        for s, depth in enumerate(depths)
    ]


def _depth(sides: Sequence[int], inside: int) -> int:
    """Return how many of a group's sides are inside of a torus, 0 if uneven."""
    products = [math.prod(sides[: k + 1]) for k in range(len(sides))]
    return products.index(inside) + 1 if inside in products else 0
