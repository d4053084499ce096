"""Which programs post to which slots, and how often."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.system import NONE, Step

IntArray = NDArray[np.int64]


def num_posts(programs: Sequence[Sequence[Step]], num_slots: int) -> IntArray:
    """Return the messages that each program posts to each slot, shape ``(P, S)``."""
    counts = np.zeros((len(programs), num_slots), np.int64)
    for number, steps in enumerate(programs):
        targets = np.array([step.target for step in steps], np.int64)
        counts[number] = np.bincount(targets[targets != NONE], minlength=num_slots)
    return counts
