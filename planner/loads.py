"""The closed form of the planned objective: transfers, and how stages are weighed.

It hides nothing, and overestimates what waits for the first and the last microbatch;
the time that a plan is reported with is `planner.plan_timeline`'s.

Letters as in `planner.kernels.split`: ``x[r, s]`` the transfers at both boundaries of
stage ``s`` in replica ``r``, ``ws`` and ``wm`` the weights of sum and maximum.
"""

from typing import NamedTuple

import numpy as np

from planner.stage_rates import PlacementRates
from topologies.arrays import FloatArray


class Weights(NamedTuple):
    """Weights of the sum and of the maximum of the stage times."""

    sum: float
    max: float


def iteration_weights(num_microbatches: int, num_chunks: int) -> Weights:
    """Return ``(1 / v, m - 1 / v)``: Narayanan et al., SC 2021, section 2.2."""
    return Weights(1.0 / num_chunks, num_microbatches - 1.0 / num_chunks)


def stage_transfers(
    rates: PlacementRates, boundary_bytes: float, num_chunks: int
) -> FloatArray:
    """Return ``x[r, s]`` for one microbatch, stages from the first to the last [s].

    Forward and backward over each boundary, half of it charged to either side; ``v``
    times with virtual stages, and ``v - 1`` times over the wrap-around.
    """
    boundary = one_way(rates, boundary_bytes).T
    times = np.full(boundary.shape[1], float(num_chunks))
    times[-1] = num_chunks - 1.0
    after = boundary * times
    return np.asarray(after + np.roll(after, 1, axis=1))


def one_way(rates: PlacementRates, boundary_bytes: float) -> FloatArray:
    """Return the mean of both directions of each boundary and replica, ``(p, d)`` [s].

    The last boundary is the wrap-around.
    """
    both = 0.5 * (rates.activation + rates.gradient)
    if len(both) == 1:
        return np.zeros(both.shape[:2])
    return np.asarray(both[..., 0] + both[..., 1] * boundary_bytes)
