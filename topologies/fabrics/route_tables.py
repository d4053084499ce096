"""Routing rules as plain arrays, for kernels that walk routes without objects.

A table says the same as `Network.routes`, link for link, in a form in which one route
costs a few reads: no arrays over all pairs and no loop in Python. There is one form
for each family of rules; integers are 32 bits wide where they come in numbers, so
that the table of 16,384 devices stays in a core's cache.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, Int32Array, IntArray

_ALL = np.empty(0, dtype=np.bool_)
"""Which links are kept where none was removed."""

_NO_TAILS = np.empty(0, dtype=np.int32)
"""Where links start, in tables of which routes are not walked back."""


class TreeTable(NamedTuple):
    """Up to the lowest common switch, and down again, for ``K`` tiers."""

    rows: Int32Array
    """Each device's link up into every tier, the first one where there are several,
    then its block at every tier, shape ``(N, 2 K)``."""

    down: IntArray
    """What a link down from a tier has added to the link up, shape ``(K,)``."""

    num_planes: int
    """Number of rails; 1 without rails."""

    relay: bool
    """Whether traffic to another rail crosses the sender's node first (PXN)."""

    nic_per_device: bool
    """Whether routes out of a node leave its own switch aside."""

    num_choices: tuple[int, ...]
    """Parallel links of each tier, spines or cables, among which a hash picks."""

    seeds: tuple[int, ...]
    """Seed of the hash that picks parallel links, of each tier, below ``2**64``."""

    longest: int
    """Number of links of the longest route, or more."""

    @property
    def numbers(self) -> list[int]:
        """Everything but the rows, in the order in which kernels read it."""
        return [
            len(self.down),
            self.num_planes,
            int(self.relay),
            int(self.nic_per_device),
            int(max(self.num_choices) > 1),
            len(self.rows),
            *self.down.tolist(),
            *self.num_choices,
            *(seed - 2**64 if seed >= 2**63 else seed for seed in self.seeds),
        ]

    @property
    def tails(self) -> Int32Array:
        """No vertices: routes are not walked back."""
        return _NO_TAILS

    @property
    def kept(self) -> BoolArray:
        """Links that are still there; empty where none was removed."""
        return _ALL


class TorusTable(NamedTuple):
    """Dimension by dimension, each the shorter way round, for ``A`` dimensions."""

    rows: Int32Array
    """Each device's position along every dimension, then for every dimension its link
    in the positive and in the negative direction, -1 for none, shape ``(N, 3 A)``."""

    shape: IntArray
    """Devices along each dimension, shape ``(A,)``."""

    strides: IntArray
    """Difference of neighbours' numbers along each dimension, shape ``(A,)``."""

    wrap: IntArray
    """Whether a dimension's ends are joined, 1 or 0, shape ``(A,)``."""

    longest: int
    """Number of links of the longest route."""

    @property
    def numbers(self) -> list[int]:
        """Everything but the rows, in the order in which kernels read it."""
        axes = np.stack([self.shape, self.strides, self.wrap], axis=1)
        return [len(axes), *axes.ravel().tolist()]

    @property
    def tails(self) -> Int32Array:
        """No vertices: routes are not walked back."""
        return _NO_TAILS

    @property
    def kept(self) -> BoolArray:
        """Links that are still there; empty where none was removed."""
        return _ALL


class PathTable(NamedTuple):
    """Any fixed routes, one tree of them per source."""

    rows: Int32Array
    """Last link of the route from a device to a vertex, shape ``(N, V)``."""

    tails: Int32Array
    """Vertex where each link starts, shape ``(E,)``."""

    longest: int
    """Number of links of the longest route, or more."""

    @property
    def numbers(self) -> list[int]:
        """Nothing: the rows and the tails say it all."""
        return []

    @property
    def kept(self) -> BoolArray:
        """Links that are still there; empty where none was removed."""
        return _ALL


BuiltTable = TreeTable | TorusTable | PathTable
"""A table of a network of which no link has been removed."""


class DetourTable(NamedTuple):
    """The rule that a network was built with, of which links have been removed.

    Routes over removed links are others, which no table holds: `Network.routes` finds
    them, pair by pair.
    """

    built: BuiltTable
    """Table of the undisturbed network."""

    kept: BoolArray
    """Links that are still there, shape ``(E,)``."""

    @property
    def rows(self) -> Int32Array:
        """Rows of the undisturbed network."""
        return self.built.rows

    @property
    def numbers(self) -> list[int]:
        """Numbers of the undisturbed network."""
        return self.built.numbers

    @property
    def tails(self) -> Int32Array:
        """Vertex where each link starts, if the undisturbed network's table has it."""
        return self.built.tails

    @property
    def longest(self) -> int:
        """Links of the longest route that avoids what was removed, or more."""
        return self.built.longest
