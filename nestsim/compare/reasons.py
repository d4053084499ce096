"""Why one plan is slower than another, and why a planner is wrong about its own.

The simulated time of a plan is the sum of the planned time's terms and of the gap's
causes. So the difference between two plans is a sum over terms, too, and its largest
part names what decides.
"""

from collections.abc import Mapping
from typing import NamedTuple

from nestsim.compare.record import Entry, Found

OWN_MODEL = "its own model"
"""What a planner's model leaves out, or counts too much, beside the common
evaluator."""


class Cause(NamedTuple):
    """The part of a difference that does most for it."""

    term: str
    seconds: float
    """[s]; of the difference's sign."""


def differences(best: Found, other: Found) -> dict[str, float]:
    """Return by term how much longer one plan takes in the replay [s]."""
    first, second = best.terms, other.terms
    return {
        name: second.get(name, 0.0) - first.get(name, 0.0)
        for name in dict.fromkeys([*first, *second])
    }


def belief_gap(entry: Entry) -> dict[str, float]:
    """Return simulated minus believed time of a plan by cause [s].

    The entry must have a plan and a belief.
    """
    assert entry.found is not None
    own = entry.found.planned.iteration_time - entry.belief
    return {OWN_MODEL: own, **entry.found.gap_terms}


def largest(parts: Mapping[str, float]) -> Cause:
    """Return the part that does most for the sum, in its direction; ties: the first."""
    sign = 1.0 if sum(parts.values()) >= 0.0 else -1.0
    term = max(parts, key=lambda name: sign * parts[name])
    return Cause(term, parts[term])


def turned_by(first: Found, second: Found) -> Cause | None:
    """Return what makes the replay reverse the order of two plans.

    None if the second one is not the faster in the replay, or is in the plan already.
    """
    is_promised = first.planned.iteration_time <= second.planned.iteration_time
    is_kept = first.simulated.iteration_time <= second.simulated.iteration_time
    if not is_promised or is_kept:
        return None
    gaps = {
        name: first.gap_terms.get(name, 0.0) - second.gap_terms.get(name, 0.0)
        for name in dict.fromkeys([*first.gap_terms, *second.gap_terms])
    }
    return largest(gaps)
