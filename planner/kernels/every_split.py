"""The best split of a chain by trying every one.

Letters: ``L`` layers, ``K`` interval classes, ``p`` stages from the first to the last,
``C`` choices of recompute and ZeRO, ``F`` choices of a stage that no other one beats in
both time and tail. With ``t_s`` and ``y_s`` the time and the tail of stage ``s``::

    T = ws sum_s t_s + wm max_s (t_s + x_s) + max_s y_s

Once the longest tail is given, stages are independent: each takes its fastest choice
with a tail at most as long. So every tail that some stage may have is tried.
"""

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


@subkernel
def fill_fronts(
    time: FloatCube,
    tail: FloatCube,
    slots: IntMatrix,
    signature: IntVector,
    tied: FloatVector,
    in_flight: IntVector,
    front: IntCube,
    length: IntMatrix,
) -> None:
    """Fill the choices of every stage and class that none beats, fastest first.

    ``front (p, K, C)`` holds their numbers, ``length (p, K)`` how many there are. Of
    equal choices the first one stays. O(p K C^2).
    """
    num_choices = slots.shape[0]
    for s in range(len(signature)):
        row = signature[s]
        for k in range(slots.shape[1]):
            shortest = np.inf
            count = 0
            used = np.zeros(num_choices, dtype=np.bool_)
            while True:
                picked = -1
                for c in range(num_choices):
                    if used[c] or slots[c, k] < in_flight[s]:
                        continue
                    if not tail[row, c, k] + tied[s] < shortest:
                        continue
                    if (
                        picked < 0
                        or time[row, c, k] < time[row, picked, k]
                        or (
                            time[row, c, k] == time[row, picked, k]
                            and tail[row, c, k] < tail[row, picked, k]
                        )
                    ):
                        picked = c
                if picked < 0:
                    break
                used[picked] = True
                shortest = tail[row, picked, k] + tied[s]
                front[s, k, count] = picked
                count += 1
            length[s, k] = count


@kernel
def best_split(
    class_of: IntMatrix,
    time: FloatCube,
    tail: FloatCube,
    slots: IntMatrix,
    signature: IntVector,
    adder: FloatVector,
    tied: FloatVector,
    in_flight: IntVector,
    sum_weight: float,
    max_weight: float,
) -> tuple[float, IntArray, IntArray]:
    """Return ``(T, bounds, choices)`` of the best split, infinity if none fits.

    Shapes: ``class_of (L + 1, L + 1)``; ``time`` and ``tail (sig, C, K)``; ``slots (C,
    K)``; by stage, from the first to the last: ``signature``, ``adder``, ``tied`` and
    ``in_flight (p,)``. Requires ``1 <= p <= L``. Ties go to the split whose cuts come
    first in lexicographic order. O(binom(L - 1, p - 1) (p F)^2).
    """
    p = len(signature)
    num_layers = class_of.shape[0] - 1
    front = np.zeros((p, slots.shape[1], slots.shape[0]), dtype=np.int64)
    length = np.zeros((p, slots.shape[1]), dtype=np.int64)
    fill_fronts(time, tail, slots, signature, tied, in_flight, front, length)
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
            shortest = max(shortest, tail[signature[s], last, k] + tied[s])
        for one in range(p if possible else 0):
            k = classes[one]
            for place in range(length[one, k]):
                longest = tail[signature[one], front[one, k, place], k] + tied[one]
                if longest < shortest:
                    break
                total = 0.0
                most = -np.inf
                latest = 0.0
                for s in range(p):
                    j = classes[s]
                    row = signature[s]
                    turn = 0
                    while tail[row, front[s, j, turn], j] + tied[s] > longest:
                        turn += 1
                    c = front[s, j, turn]
                    picked[s] = c
                    total += time[row, c, j]
                    most = max(most, time[row, c, j] + adder[s])
                    latest = max(latest, tail[row, c, j] + tied[s])
                value = sum_weight * total + max_weight * most + latest
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
