"""What limits a replayed step: the link, the stage and the term.

The simulated time is the sum of the planner's terms and of the gap's
(`nestsim.verdict.gap_by_cause`): both together are its causes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nestsim.simulator.outcome import Replay
from nestsim.verdict import gap_by_cause
from planner.cost.objective import PricedPlan
from topologies.network import Network

MOST_LINKS = 8
"""Kinds of links that are kept of a replay, hottest first."""

SMALLEST = 1e-9
"""A smaller share of the step is rounding."""

ALIKE = 1e-5
"""Links whose shares of the step differ by less carry the same."""


class HotLink(NamedTuple):
    """Links of one level that carried the same."""

    name: str
    """The first of them."""

    level: str
    """Name of its level."""

    share: float
    """Of the step during which they were busy at full bandwidth."""

    num_alike: int
    """How many they are."""


def causes(
    priced: PricedPlan, replay: Replay, *, has_slow: bool = False
) -> dict[str, float]:
    """Return the simulated time by cause [s]; the parts add up to it.

    ``"tail"`` is what synchronisation and the optimizer step add to the passes: as
    planned, and what the replay adds to it after the last pass.

    Parameters
    ----------
    priced, replay
        What was promised, and what came of it.
    has_slow
        Whether devices of the plan are slow: what they cost is then in one sum with
        contention (`nestsim.verdict.explain_gap` would part them by more replays).
    """
    gap = dict(gap_by_cause(priced, replay).terms)
    added = gap.pop("synchronisation")
    if has_slow:
        gap["slow devices and contention"] = gap.pop("contention")
    return {**priced.terms, "tail": priced.terms["tail"] + added, **gap}


def busiest_stage(replay: Replay) -> int:
    """Return the stage whose replicas work longest, the first of equals."""
    spans = replay.spans
    worked = (spans.end - spans.start) * replay.span_multiplicity
    busy = np.bincount(spans.stage, weights=worked)
    return int(np.argmax(np.round(busy / max(float(busy.max()), 1e-300), 9)))


def hottest(network: Network, replay: Replay) -> tuple[HotLink, ...]:
    """Return the links that were busiest, links that are alike once.

    Links are alike that have one level and bandwidth and carried the same amount.
    """
    links = network.links
    share = replay.links.num_bytes / (links.bandwidth * replay.iteration_time)
    used = np.flatnonzero(share > SMALLEST)
    kinds = np.stack([links.level[used], np.round(share[used] / ALIKE)], axis=1)
    _, first, count = np.unique(kinds, axis=0, return_index=True, return_counts=True)
    order = sorted(
        range(first.size), key=lambda k: (-kinds[first[k], 1], int(used[first[k]]))
    )
    return tuple(
        _named(
            network, int(used[first[k]]), float(share[used[first[k]]]), int(count[k])
        )
        for k in order[:MOST_LINKS]
    )


def _named(network: Network, link: int, share: float, count: int) -> HotLink:
    links, names = network.links, network.vertex_names
    source, target = names[links.source[link]], names[links.target[link]]
    level = network.levels[int(links.level[link])].name
    return HotLink(f"{source} -> {target}", level, share, count)


def limiting_term(
    found: Mapping[str, float], healthy: Mapping[str, float] | None
) -> str:
    """Name the cause that grew most; the largest beside compute if none did.

    Parameters
    ----------
    found
        Causes of a step under a condition [s].
    healthy
        Of the same plan in the scenario as it is; None to ask for the largest.
    """
    total = sum(found.values())
    if healthy is not None:
        grown = {name: found[name] - healthy.get(name, 0.0) for name in found}
        name = max(grown, key=lambda one: grown[one])
        if grown[name] > SMALLEST * total:
            return name
    others = {name: value for name, value in found.items() if name != "compute"}
    name = max(others, key=lambda one: others[one])
    return name if others[name] > SMALLEST * total else "compute"
