"""The best candidates of a search that is done: plans, their bounds and replays.

Read from what the search noted (`ProofTrail`); nothing of it is changed, and what is
listed anew is counted on no limit.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.replayed.listing import Leaf
from planner.search.replayed.trail import ProofTrail
from planner.search.space import Configuration, configuration_of
from planner.step.plan import Plan
from planner.work import Work


class Shortlisted(NamedTuple):
    """The best plan of its sizes and recompute mode."""

    plan: Plan
    """The plan."""

    bound: float
    """Lower bound of its replay; NaN where it was replayed beyond the listed plans
    [s]."""

    time: float
    """Its replayed time; NaN if it was not replayed to its end [s]."""


_Kind = tuple[Configuration, str]
"""Sizes without virtual stages, and recompute mode."""


def shortlist(trail: ProofTrail, most: int) -> list[Shortlisted]:
    """Return the best candidates of a search, by replayed time, or else by bound.

    Of plans that differ in virtual stages, placement, layout, ZeRO or offloading alone
    the best: one that was replayed, or else the one with the least bound. All that were
    replayed come first in case of doubt about how many.

    Parameters
    ----------
    trail
        Of a search that is done.
    most
        How many at most: so many configurations are looked at, in the order of their
        bounds.
    """
    if trail.candidates is None:
        return []
    known: dict[_Kind, Shortlisted] = {}
    for plan, replay in trail.replays.items():
        time = replay.exact
        kind = _kind_of(configuration_of(plan), plan.stages[0].recompute)
        if time is not None and time < _time_of(known.get(kind)):
            known[kind] = Shortlisted(plan, np.nan, time)
    replayed = set(known)
    candidates = _apart(trail.candidates)
    for configuration in _by_bound(candidates, most):
        for mode, (bound, leaf) in _best_leaves(candidates, configuration).items():
            kind = _kind_of(configuration, mode)
            if kind in replayed:
                known[kind] = known[kind]._replace(bound=bound)
            else:
                plan = candidates.plan(leaf)
                known[kind] = Shortlisted(plan, bound, np.nan)
    ranked = sorted(known, key=lambda kind: (kind not in replayed, known[kind].bound))
    kept = ranked[:most]
    return sorted((known[kind] for kind in kept), key=_place)


def _apart(candidates: LaunchableCandidates) -> LaunchableCandidates:
    """Return the candidates with counts of their own, and no limit."""
    work = Work()
    return replace(
        candidates,
        work=work,
        statistics=Counter(),
        prices=replace(candidates.prices, work=work),
    )


def _by_bound(candidates: LaunchableCandidates, most: int) -> Iterator[Configuration]:
    """Yield configurations by their first bounds, of several chunks the first."""
    queue, seen = candidates.queue(), set[Configuration]()
    while np.isfinite(queue.bound) and len(seen) < most:
        configuration = candidates[queue.number]
        queue.drop()
        sizes = configuration._replace(v=1)
        if sizes not in seen:
            seen.add(sizes)
            yield configuration


def _best_leaves(
    candidates: LaunchableCandidates, configuration: Configuration
) -> dict[str, tuple[float, Leaf]]:
    """Return the plan with the least bound of each recompute mode, and the bound."""
    best: dict[str, tuple[float, Leaf]] = {}
    for leaves in candidates.leaves(configuration, np.inf):
        modes = np.array([choice.recompute for choice in leaves.choices])
        of_plan = modes[leaves.numbers[:, 0]]
        # Bounds rise: the first of a mode has its least.
        for mode, place in zip(*np.unique(of_plan, return_index=True), strict=True):
            bound = float(leaves.bounds[place])
            if str(mode) not in best or bound < best[str(mode)][0]:
                best[str(mode)] = bound, leaves.leaf(int(place))
    return best


def _kind_of(configuration: Configuration, mode: str) -> _Kind:
    return configuration._replace(v=1), mode


def _time_of(known: Shortlisted | None) -> float:
    return np.inf if known is None else known.time


def _place(candidate: Shortlisted) -> float:
    """Return what candidates are ordered by [s]."""
    return candidate.bound if np.isnan(candidate.time) else candidate.time
