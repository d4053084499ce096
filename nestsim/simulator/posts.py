"""Which programs post to which slots, and how often."""

from collections.abc import Sequence

import numpy as np

from nestsim.simulator.system import NONE, Steps
from topologies.arrays import IntArray


def num_posts(programs: Sequence[Steps], num_slots: int) -> IntArray:
    """Return the messages that each program posts to each slot, shape ``(P, S)``."""
    counts = np.zeros((len(programs), num_slots), np.int64)
    for number, steps in enumerate(programs):
        posted = steps.target[steps.target != NONE]
        counts[number] = np.bincount(posted, minlength=num_slots)
    return counts
