"""The programs of a system as arrays."""

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.folding import numbered
from nestsim.simulator.system import NONE, Step, System

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Listing(NamedTuple):
    """All steps of all programs, one program after another; the fields of `Step`."""

    first: IntArray
    """First step of each program, and behind the last one."""

    duration: FloatArray
    source: IntArray
    need: IntArray
    target: IntArray
    span: IntArray

    @property
    def program(self) -> IntArray:
        """Program that each step belongs to."""
        sizes = np.diff(self.first)
        return np.repeat(np.arange(sizes.size), sizes)

    def advance(self) -> IntArray:
        """Return how many messages more each step needs than the last use of its slot.

        All that it needs if its program did not use the slot before; 0 for steps that
        wait for nothing.
        """
        waiting = np.flatnonzero(self.source != NONE)
        # Stable: the uses of a slot stay in order.
        order = waiting[
            np.lexsort((waiting, self.source[waiting], self.program[waiting]))
        ]
        again = (np.diff(self.source[order]) == 0) & (np.diff(self.program[order]) == 0)
        advance = np.zeros_like(self.need)
        advance[order] = self.need[order]
        advance[order[1:]] -= np.where(again, self.need[order[:-1]], 0)
        return advance

    def symbols(self) -> IntArray:
        """Return numbers, equal for steps that do the same.

        They take as long, wait for as many messages more of the same slot, post to the
        same slot, and open and close spans alike.
        """
        return numbered(
            self.duration, self.source, self.target, self.span, self.advance()
        )


def list_steps(system: System) -> Listing:
    """Return the programs of a system as arrays."""
    sizes = [len(steps) for steps in system.programs]
    fields = chain.from_iterable(chain.from_iterable(system.programs))
    width = len(Step._fields)
    # All whole numbers in the steps are exact as floats.
    table = np.fromiter(fields, np.float64, sum(sizes) * width).reshape(-1, width).T
    return Listing(
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        np.ascontiguousarray(table[0]),
        *(column.astype(np.int64) for column in table[1:]),
    )


def num_posts_of_channels(system: System, listing: Listing) -> IntArray:
    """Return the posts to each channel."""
    num_programs, num_slots = len(system.programs), system.slots.shape[1]
    posting = listing.target != NONE
    places = listing.program[posting] * num_slots + listing.target[posting]
    by_program = np.bincount(places, minlength=num_programs * num_slots)
    by_actor = by_program.reshape(num_programs, num_slots)[system.program]
    used = system.slots != NONE
    posts = np.zeros(system.latency.size, np.int64)
    np.add.at(posts, system.slots[used], by_actor[used])
    return posts
