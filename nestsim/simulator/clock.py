"""The clock's tick: durations are rounded to it, so that sums of them are exact.

A float64 has 53 bits: multiples of 2**-40 s below 2**13 s are all representable, and
so are their sums and differences. Moments that should coincide then do, and the same
state at another time evolves bit for bit alike.
"""

import math
from typing import overload

import numpy as np
from numpy.typing import NDArray

TICK = 2.0**-40
"""The finest tick, 0.9 ps [s]."""

_MANTISSA_BITS = 53


def tick_for(horizon: float) -> float:
    """Return the tick of a run that ends before ``horizon`` [s].

    `TICK` up to 8,192 s, about 2.3 hours; beyond, the finest power of two whose
    multiples up to the horizon are exact.
    """
    _, exponent = math.frexp(horizon)
    return max(TICK, 2.0 ** (exponent - _MANTISSA_BITS))


@overload
def quantise(duration: float, tick: float) -> float: ...
@overload
def quantise(duration: NDArray[np.float64], tick: float) -> NDArray[np.float64]: ...
def quantise(
    duration: float | NDArray[np.float64], tick: float
) -> float | NDArray[np.float64]:
    """Return the nearest multiple of the tick, halves downwards [s]."""
    # Adding 0 turns the -0 of a duration of 0 into 0.
    rounded = np.ceil(np.asarray(duration) / tick - 0.5) * tick + 0.0
    return float(rounded) if np.ndim(duration) == 0 else rounded
