"""The programs of a system as arrays."""

from typing import NamedTuple

import numpy as np

from nestsim.simulator.folding import numbered
from nestsim.simulator.kernels.steps import further_needs
from nestsim.simulator.system import NONE, System
from topologies.arrays import FloatArray, IntArray


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

    def symbols(self) -> IntArray:
        """Return numbers, equal for steps that do the same.

        They take as long, wait for as many messages more of the same slot, post to the
        same slot, and open and close spans alike.
        """
        further = further_needs(self.first, self.source, self.need)
        return numbered(self.duration, self.source, self.target, self.span, further)


def list_steps(system: System) -> Listing:
    """Return the programs of a system as arrays."""
    sizes = [len(steps) for steps in system.programs]
    nothing = np.zeros(0, np.int64)
    return Listing(
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        np.concatenate([*(one.duration for one in system.programs), np.zeros(0)]),
        np.concatenate([*(one.source for one in system.programs), nothing]),
        np.concatenate([*(one.need for one in system.programs), nothing]),
        np.concatenate([*(one.target for one in system.programs), nothing]),
        np.concatenate([*(one.span for one in system.programs), nothing]),
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
