"""Batches that grow: how many steps a run takes of each batch size on its way up.

Megatron's rule [1]_. With ``K = (global - start) / increment`` the batch of a step is

    start + floor(consumed / (samples / K)) * increment

while no more than ``samples`` sequences have been consumed before the step, and the
global batch from then on. The increment divides ``global - start``, and ``start`` is
less than the global batch: of ``K = 0`` the rule divides by 0. Sizes may be left out
where a step is longer than ``samples / K``.

Steps are counted as Megatron counts them, quotients in floating point included.

References
----------
.. [1] Megatron Core 0.16.1, ``megatron/core/num_microbatches_calculator.py``,
   ``RampupBatchsizeNumMicroBatchesCalculator``.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, NamedTuple

from annotated_types import Ge, Le

from topologies.errors import InputError
from topologies.settings import Examples, Listed

MOST_INCREMENTS = 256
"""Most increments: a plan is replayed at each batch size. BLOOM's run had 116."""


GlobalBatch = Annotated[int, Ge(1), Le(1_000_000), Examples(512)]
"""Sequences of one optimizer step."""

BatchRamp = Annotated[
    tuple[Annotated[int, Ge(1), Le(10**12)], ...],
    Listed(most=3),
    Examples([16, 16, 1_000_000], default=None),
]
"""First batch, increment, sequences of the ramp; empty without one."""


class RampPhase(NamedTuple):
    """Steps of one batch size."""

    global_batch_size: int
    """Sequences of each step."""

    num_steps: int
    """How many there are."""


@lru_cache(maxsize=64)
def ramp_phases(
    rampup_batch_size: tuple[int, ...], global_batch_size: int
) -> tuple[RampPhase, ...]:
    """Return the steps below the global batch, by rising batch size.

    Parameters
    ----------
    rampup_batch_size
        First batch, increment [sequences], and how many sequences the ramp takes; empty
        for no ramp.
    global_batch_size
        Sequences of a step behind the ramp.

    Raises
    ------
    InputError
        If there is no such ramp.
    """
    if not rampup_batch_size:
        return ()
    _check(rampup_batch_size, global_batch_size)
    start, increment, samples = rampup_batch_size
    count = (global_batch_size - start) // increment
    width = samples / count
    phases, consumed = [], 0
    while consumed <= samples:
        level = int(consumed / width)
        batch = start + level * increment
        if batch >= global_batch_size:
            break
        steps = _steps_below(consumed, batch, width, Fraction(samples, count), level)
        phases.append(RampPhase(batch, steps))
        consumed += steps * batch
    return tuple(phases)


def batch_sizes(
    rampup_batch_size: tuple[int, ...], global_batch_size: int
) -> tuple[int, ...]:
    """Return the batch sizes of a run, rising; the last one is the global batch."""
    phases = ramp_phases(rampup_batch_size, global_batch_size)
    return (*(phase.global_batch_size for phase in phases), global_batch_size)


def _steps_below(
    consumed: int, batch: int, width: float, exact: Fraction, level: int
) -> int:
    """Return the steps until the quotient is above a level."""
    steps = max(math.ceil(((level + 1) * exact - consumed) / batch), 1)
    # The quotient in floating point may be above a level a step sooner or later.
    while int((consumed + steps * batch) / width) <= level:
        steps += 1
    while steps > 1 and int((consumed + (steps - 1) * batch) / width) > level:
        steps -= 1
    return steps


def _check(ramp: tuple[int, ...], global_batch_size: int) -> None:
    """Refuse what is no ramp up to a batch."""
    expected = "[start, increment, samples], e.g. [16, 16, 1_000_000]"
    if len(ramp) != 3 or min(ramp) < 1:
        raise _wrong("is not three whole numbers above 0", ramp, expected)
    start, increment, _ = ramp
    rise = global_batch_size - start
    if rise < 1:
        problem = "starts with no less than the global batch"
        raise _wrong(problem, ramp, f"a start below {global_batch_size:,}")
    if rise % increment:
        problem = "has an increment that does not lead to the global batch"
        raise _wrong(problem, ramp, f"an increment that divides {rise:,}")
    if rise // increment > MOST_INCREMENTS:
        problem = f"has {rise // increment:,} increments"
        raise _wrong(problem, ramp, f"at most {MOST_INCREMENTS}")


def _wrong(problem: str, ramp: tuple[int, ...], expected: str) -> InputError:
    where = "rampup_batch_size"
    return InputError(problem, where=where, got=list(ramp), expected=expected)
