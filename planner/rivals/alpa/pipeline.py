"""The inter-operator program: stages of a pipeline at the least time of a step.

``T = sum_i t_i + (B - 1) max_i t_i`` over all splits ([1]_, equation 2), with ``B``
microbatches. For a ceiling on ``max_i t_i`` the least sum is a dynamic program
(`planner.kernels.alpa.stages`). Alpa tries the distinct times of stages as ceilings,
rising, leaves out those that are less than 1e-6 above the last one, and stops once
``B`` times the ceiling is no better than the best step so far.

Here ceilings are tried best first, exactly: the least sum falls as the ceiling rises,
so that of all ceilings between two of them ``a < b`` none gives a step below
``sum(b) + (B - 1) a``. Of a few thousand ceilings a dozen are tried.

References
----------
.. [1] Zheng et al., "Alpa", OSDI 2022, section 5.
"""

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from planner.kernels.alpa.stages import equal_stages, mixed_stages
from planner.work import Work
from topologies.arrays import FloatArray, IntArray

T = TypeVar("T")

STAGE_STEPS = 1000
"""Steps of the recursion over submeshes that take one unit of work."""


class UniformSplit(NamedTuple):
    """Stages of equally many devices."""

    time: float
    """Time of a step, infinite without one [s]."""
    cuts: tuple[int, ...]
    """First unit of each stage, and the number of units."""


class MixedSplit(NamedTuple):
    """Stages on submeshes of several sizes."""

    time: float
    """Time of a step, infinite without one [s]."""
    stages: tuple[tuple[int, int], ...]
    """First unit and submesh of each stage, and the number of units with -1."""


def cheapest_ceiling(
    ceilings: FloatArray,
    num_microbatches: int,
    stages: Callable[[float], tuple[float, float, T]],
    bound: float = math.inf,
) -> tuple[float, T | None]:
    """Return the least ``sum + (B - 1) max`` and what has it.

    Parameters
    ----------
    ceilings
        Distinct times that a slowest stage may have, rising [s].
    num_microbatches
        Microbatches ``B`` of a step.
    stages
        Of a ceiling: the least sum of stages below it, their largest time, and they
        themselves. An infinite sum if there are none.
    bound
        Steps that are no faster are of no interest [s].
    """
    best, found = bound, None
    times = num_microbatches - 1
    queue: list[tuple[float, int, int, bool]] = []
    if ceilings.size:
        lowest = times * float(ceilings[0])
        queue.append((lowest, 0, len(ceilings) - 1, False))
    while queue:
        bound_here, low, high, is_known = heapq.heappop(queue)
        if bound_here >= best:
            break
        middle = (low + high) // 2 if is_known else high
        total, largest, solution = stages(float(ceilings[middle]))
        if math.isfinite(total):
            if total + times * largest < best:
                best, found = total + times * largest, solution
            # The same stages stand below every ceiling down to their largest time.
            below = int(np.searchsorted(ceilings, largest)) - 1
            if below >= low:
                at = total + times * float(ceilings[low])
                heapq.heappush(queue, (at, low, below, True))
        if is_known and middle < high:
            at = bound_here + times * float(ceilings[middle + 1] - ceilings[low])
            heapq.heappush(queue, (at, middle + 1, high, True))
    return best, found


def uniform_split(
    time: FloatArray, most_later: IntArray, num_stages: int, num_microbatches: int
) -> UniformSplit:
    """Return the best split into so many stages of equally many devices.

    Parameters
    ----------
    time
        Of a stage by its first and last unit, shape ``(L, L)`` [s].
    most_later
        Most stages that may follow one, shape ``(L, L)``.
    num_stages, num_microbatches
        Stages, and microbatches of a step.
    """

    def stages(ceiling: float) -> tuple[float, float, IntArray]:
        total, cuts = equal_stages(time, most_later, num_stages, ceiling)
        if not math.isfinite(total):
            return total, math.inf, cuts
        return total, float(time[cuts[:-1], cuts[1:] - 1].max()), cuts

    best, cuts = cheapest_ceiling(_ceilings(time), num_microbatches, stages)
    if cuts is None:
        return UniformSplit(math.inf, ())
    return UniformSplit(best, tuple(cuts.tolist()))


def mixed_split(
    times: FloatArray,
    sizes: IntArray,
    num_devices: int,
    num_microbatches: int,
    bound: float = math.inf,
    work: Work | None = None,
) -> MixedSplit:
    """Return the best split over submeshes that uses every device.

    Parameters
    ----------
    times
        As the kernel `mixed_stages` takes them, shape ``(S, M, L, L)`` [s].
    sizes
        Devices of each submesh, shape ``(M,)``.
    num_devices, num_microbatches
        Devices of the cluster, and microbatches of a step.
    bound
        Steps that are no faster are of no interest [s].
    work
        Work that the recursion is counted on.

    Raises
    ------
    LimitReachedError
        If the work is spent.
    """
    last = len(times) - 1

    def stages(ceiling: float) -> tuple[float, float, IntArray]:
        if work is not None:
            tried = int(np.count_nonzero(times <= ceiling))
            work.spend(1 + tried * num_devices // STAGE_STEPS)
        total, rows = mixed_stages(times, sizes, num_devices, ceiling)
        count = len(rows) - 1
        largest = max(
            (
                float(
                    times[
                        min(count - 1 - place, last),
                        rows[place, 1],
                        rows[place, 0],
                        rows[place + 1, 0] - 1,
                    ]
                )
                for place in range(count)
            ),
            default=math.inf,
        )
        return total, largest, rows

    best, rows = cheapest_ceiling(_ceilings(times), num_microbatches, stages, bound)
    if rows is None:
        return MixedSplit(math.inf, ())
    return MixedSplit(best, tuple((int(unit), int(mesh)) for unit, mesh in rows))


def _ceilings(times: FloatArray) -> FloatArray:
    found = np.unique(times)
    return np.asarray(found[np.isfinite(found)])
