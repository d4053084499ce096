"""The best split of a chain by trying every one.

Letters: ``L`` layers, ``K`` interval classes, ``p`` stages from the first to the last,
``C`` choices of recompute and ZeRO, ``F`` choices of a stage that no other one beats in
both time and step end. With ``t_s`` and ``y_s`` the time and the step end of stage
``s``::

    T = ws sum_s t_s + wm max_s (t_s + x_s) + max_s y_s

Once the longest step end is given, stages are independent: each takes its fastest
choice with a step end at most as long. So every step end that some stage may have is
tried.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    FloatCube,
    FloatVector,
    IntArray,
    IntCube,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel


class StagedChain(NamedTuple):
    """A chain and what its intervals cost, by stages from the first to the last.

    Requires ``1 <= p <= L``.
    """

    class_of: IntMatrix
    """Class of the interval ``i .. j - 1``, shape ``(L + 1, L + 1)``."""

    time: FloatCube
    """Time of one microbatch, by signature, choice and class, ``(sig, C, K)`` [s]."""

    step_end: FloatCube
    """Time after the last backward pass, by the same, ``(sig, C, K)`` [s]."""

    most_in_flight: IntCube
    """Passes in flight that memory allows, by memory, choice and class, ``(mem, C,
    K)``."""

    memory_row: IntVector
    """Row of `most_in_flight` of each stage, shape ``(p,)``."""

    signature: IntVector
    """Row of the times of each stage, shape ``(p,)``."""

    adder: FloatVector
    """What transfers add to a stage in the maximum, shape ``(p,)`` [s]."""

    tied: FloatVector
    """What tied embeddings add to each stage's step end, shape ``(p,)`` [s]."""

    in_flight: IntVector
    """Passes in flight at each stage, shape ``(p,)``."""

    sum_weight: float
    """Weight of the sum of the stages' times."""

    max_weight: float
    """Weight of the largest of them."""


@subkernel
def _fill_fronts(chain: StagedChain, front: IntCube, length: IntMatrix) -> None:
    """Fill the choices of every stage and class that none beats, fastest first.

    ``front (p, K, C)`` holds their numbers, ``length (p, K)`` how many there are. Of
    equal choices the first one stays. O(p K C^2).
    """
    time, step_end, tied = chain.time, chain.step_end, chain.tied
    signature, in_flight = chain.signature, chain.in_flight
    most_in_flight = chain.most_in_flight
    num_choices = most_in_flight.shape[1]
    for s in range(len(signature)):
        row, memory = signature[s], chain.memory_row[s]
        for k in range(most_in_flight.shape[2]):
            shortest = np.inf
            count = 0
            used = np.zeros(num_choices, dtype=np.bool_)
            while True:
                picked = -1
                for c in range(num_choices):
                    if used[c] or most_in_flight[memory, c, k] < in_flight[s]:
                        continue
                    if not step_end[row, c, k] + tied[s] < shortest:
                        continue
                    if (
                        picked < 0
                        or time[row, c, k] < time[row, picked, k]
                        or (
                            time[row, c, k] == time[row, picked, k]
                            and step_end[row, c, k] < step_end[row, picked, k]
                        )
                    ):
                        picked = c
                if picked < 0:
                    break
                used[picked] = True
                shortest = step_end[row, picked, k] + tied[s]
                front[s, k, count] = picked
                count += 1
            length[s, k] = count


@kernel
def best_split(chain: StagedChain) -> tuple[float, IntArray, IntArray]:
    """Return ``(T, bounds, choices)`` of the best split, infinity if none fits.

    Ties go to the split whose cuts come first in lexicographic order.
    O(binom(L - 1, p - 1) (p F)^2).
    """
    class_of, time, step_end = chain.class_of, chain.time, chain.step_end
    signature, adder, tied = chain.signature, chain.adder, chain.tied
    p = len(signature)
    num_layers = class_of.shape[0] - 1
    _, num_choices, num_classes = chain.most_in_flight.shape
    front = np.zeros((p, num_classes, num_choices), dtype=np.int64)
    length = np.zeros((p, num_classes), dtype=np.int64)
    _fill_fronts(chain, front, length)
    best = np.inf
    bounds = np.zeros(p + 1, dtype=np.int64)
    choices = np.zeros(p, dtype=np.int64)
    trial = np.arange(p + 1)
    trial[p] = num_layers
    picked = np.zeros(p, dtype=np.int64)
    classes = np.zeros(p, dtype=np.int64)
    while True:
        possible = True
        shortest = 0.0
        for s in range(p):
            k = class_of[trial[s], trial[s + 1]]
            classes[s] = k
            if length[s, k] == 0:
                possible = False
                break
            last = front[s, k, length[s, k] - 1]
            shortest = max(shortest, step_end[signature[s], last, k] + tied[s])
        for one in range(p if possible else 0):
            k = classes[one]
            for place in range(length[one, k]):
                longest = step_end[signature[one], front[one, k, place], k] + tied[one]
                if longest < shortest:
                    break
                total = 0.0
                most = -np.inf
                latest = 0.0
                for s in range(p):
                    j = classes[s]
                    row = signature[s]
                    turn = 0
                    while step_end[row, front[s, j, turn], j] + tied[s] > longest:
                        turn += 1
                    c = front[s, j, turn]
                    picked[s] = c
                    total += time[row, c, j]
                    most = max(most, time[row, c, j] + adder[s])
                    latest = max(latest, step_end[row, c, j] + tied[s])
                value = chain.sum_weight * total + chain.max_weight * most + latest
                if value < best:
                    best = value
                    bounds[:] = trial
                    choices[:] = picked
        # The next split: the last cut that can move does, those after it close up.
        cut = p - 1
        while cut > 0 and trial[cut] == num_layers - (p - cut):
            cut -= 1
        if cut <= 0:
            return best, bounds, choices
        trial[cut] += 1
        for later in range(cut + 1, p):
            trial[later] = trial[later - 1] + 1
