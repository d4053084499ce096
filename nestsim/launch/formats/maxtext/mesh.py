"""The mesh of MaxText: axes inside a slice and among slices, and the ranks they make.

A slice is what fast links join: a slice of TPUs, or the GPUs of a node. ``ici_..`` are
the sizes of axes inside, ``dcn_..`` among slices, which are outside of them; each in
the order data, fsdp, context, tensor, expert, the last innermost, with the stages of a
pipeline outermost [1]_. Of the ranks that share a sequence those that exchange heads
are inside the rings (``context_usp_ulysses``, 0.2.5).

References
----------
.. [1] AI-Hypercomputer/maxtext, ``MaxText/pyconfig.py`` at 0045bf83:
   ``create_parallelisms_list``, ``pipeline_first_axis``;
   ``jax.experimental.mesh_utils.create_hybrid_device_mesh``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_INNER_FIRST = (
    ("expert", "ep"),
    ("tensor_sequence", "tp"),
    ("tensor", "tp"),
    ("context_usp_ulysses", "cp"),
    ("context", "cp"),
    ("fsdp", "dp"),
    ("data", "dp"),
    ("pipeline", "pp"),
)
"""Axis -> dimension of ours; ``dp`` are the replicas of each expert."""

_FACTOR = re.compile(r"([a-z]+)(\d+)")

Factors = tuple[tuple[str, int], ...]
"""Dimensions and sizes, innermost first, as placements nest them."""


@dataclass(frozen=True, slots=True)
class AxisMesh:
    """Sizes of all axes."""

    inside: Mapping[str, int]
    """Axis -> size inside a slice; those that are missing have 1."""

    among: Mapping[str, int]
    """Axis -> size among slices; those that are missing have 1."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        return self.inside.get(axis, 1) * self.among.get(axis, 1)

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.inside.values()) * math.prod(self.among.values())

    @property
    def factors(self) -> Factors:
        """How its ranks nest the dimensions."""
        found = [
            (dimension, sizes.get(axis, 1))
            for sizes in (self.inside, self.among)
            for axis, dimension in _INNER_FIRST
        ]
        return merged(found)


def merged(factors: list[tuple[str, int]]) -> Factors:
    """Join neighbours of one dimension, and leave out those of size 1."""
    found: list[tuple[str, int]] = []
    for dimension, size in factors:
        if size == 1:
            continue
        if found and found[-1][0] == dimension:
            found[-1] = (dimension, found[-1][1] * size)
        else:
            found.append((dimension, size))
    return tuple(found)


def placed_factors(placement: str) -> Factors:
    """Return the factors of a placement's name."""
    return merged([(name, int(size)) for name, size in _FACTOR.findall(placement)])


def mesh_of(factors: Factors, axes: Mapping[str, int], per_slice: int) -> AxisMesh:
    """Return the mesh whose slices are filled with the innermost factors.

    Parameters
    ----------
    factors
        How ranks shall nest the dimensions.
    axes
        Size of each axis.
    per_slice
        Devices of a slice.
    """
    inside: dict[str, int] = {}
    among: dict[str, int] = {}
    left, room = dict(axes), per_slice
    for dimension, whole in factors:
        size = whole
        for axis, of in _INNER_FIRST:
            if of != dimension:
                continue
            part = math.gcd(size, left.get(axis, 1))
            fitting = math.gcd(part, room)
            inside[axis] = inside.get(axis, 1) * fitting
            among[axis] = among.get(axis, 1) * (part // fitting)
            left[axis] = left.get(axis, 1) // part
            size, room = size // part, room // fitting
    return AxisMesh(inside, among)
