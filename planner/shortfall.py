"""Why nothing fits: the least memory that would do."""

import numpy as np

from planner.candidates import CandidateSet
from topologies.units import format_size

PRECISION = 0.01
"""The least memory is found to this relative precision."""


def memory_shortfall(candidates: CandidateSet) -> str:
    """Say in one sentence what stops every configuration of the space."""
    if not len(candidates):
        reasons = ", ".join(
            f"{n} {why}" for why, n in candidates.statistics.items() if n
        )
        return f"the search space is empty: {reasons or 'no size is left to try'}"
    memory = candidates.memory
    name = candidates.workload.accelerator.name
    if memory <= 0:
        return f"the memory reserve leaves nothing of {name}'s memory to plan with"
    needed, index = _least_memory(candidates)
    if needed <= memory:
        return (
            f"memory is full to the brim: the parts of a model do not divide well "
            f"enough to fit {format_size(memory)} of {name}"
        )
    sizes = candidates[index]._asdict()
    described = ", ".join(f"{size} {value}" for size, value in sizes.items())
    return (
        f"out of memory: the least demanding configuration ({described}) needs "
        f"{format_size(needed)} per device, and {name} has "
        f"{format_size(memory)} to give"
    )


def _least_memory(candidates: CandidateSet) -> tuple[float, int]:
    """Return the least memory under which some configuration fits, and which it is.

    Goes through the configurations by their bound and stops at one that cannot do
    better; each is bisected only if it beats the best so far by the precision.
    """
    best, found = np.inf, 0
    for index in np.argsort(candidates.outer.memory, kind="stable"):
        bound = float(candidates.outer.memory[index])
        if bound >= best * (1 - PRECISION):
            break
        configuration = candidates[int(index)]
        if np.isfinite(best):
            if not candidates.fits(configuration, best * (1 - PRECISION)):
                continue
            high = best * (1 - PRECISION)
        else:
            high = max(bound, 1.0)
            while not candidates.fits(configuration, high):
                high *= 2.0
        low = bound
        while high - low > PRECISION * high:
            middle = 0.5 * (low + high)
            if candidates.fits(configuration, middle):
                high = middle
            else:
                low = middle
        best, found = high, int(index)
    return best, found
