"""Why nothing fits: the least memory that would do, and what it would take."""

from planner.candidates import CandidateSet
from topologies.units import format_size

PRECISION = 0.01
"""The least memory is found to this relative precision."""


def memory_shortfall(candidates: CandidateSet) -> str:
    """Say in one sentence what stops every configuration of the space.

    Bisects the device memory under which some configuration could fit; 20 to 30 passes
    over the configurations, each stopping at the first that fits.
    """
    if not candidates.configurations:
        reasons = ", ".join(
            f"{n} {why}" for why, n in candidates.statistics.items() if n
        )
        return f"the search space is empty: {reasons}"
    memory = max(candidates.memory, 1.0)
    low, high = memory, memory
    while not _anything_fits(candidates, high):
        low, high = high, 2.0 * high
    while high - low > PRECISION * memory:
        middle = 0.5 * (low + high)
        low, high = (
            (low, middle) if _anything_fits(candidates, middle) else (middle, high)
        )
    name = candidates.workload.accelerator.name
    if high <= memory:
        return (
            f"memory is full to the brim: every split needs more than "
            f"{format_size(memory)} on some {name}"
        )
    return (
        f"out of memory: the least demanding configuration needs {format_size(high)} "
        f"per device, and {name} has {format_size(memory)} to give"
    )


def _anything_fits(candidates: CandidateSet, memory: float) -> bool:
    return any(candidates.fits(c, memory) for c in candidates.configurations)
