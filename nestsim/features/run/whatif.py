"""The best candidates of a search, and what they would take on other bandwidths.

Each candidate carries the planner's terms of its time, and by how much each of them
changes where the links of one level carry a quarter, half or twice as much
(`planner.cost.levels`). The page puts these together for the bandwidths that a reader
asks for; `estimated_times` is the same in Python. Nothing is replayed anew for it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nestsim.document.drawing import rounded
from nestsim.document.dumps import Record
from nestsim.document.parts import Explorer, Section, Sentences
from nestsim.document.wording import HOUR, plural, recompute_of_plan
from nestsim.evaluate.results import ReplayedResult
from planner.cost.levels import (
    FACTORS,
    LevelPrices,
    PriceByLevel,
    estimated_terms,
    linked_levels,
)
from planner.search.replayed.shortlist import Shortlisted, shortlist
from planner.search.replayed.trail import ProofTrail
from planner.step.plan import Plan
from topologies.arrays import FloatArray
from topologies.network import Network

MOST_CANDIDATES = 500
"""Candidates of a page."""

MOST_PRICED = 7_500
"""Prices of stages that a page takes, a quarter of a minute: of deep pipelines on
networks of many levels there are fewer candidates."""

ROUNDING = 1e-12
"""Changes below this share of a candidate's time are none."""

CANDIDATES = "candidates.json"
"""File of a folder of results with a page."""


_TITLE = "What if: other bandwidths, other candidates"


class LevelRecord(Record):
    """A level of the network, whose bandwidth can be changed."""

    name: str
    """As `topologies.network.Level.name`."""

    bandwidth_bytes_per_s: float
    """Capacity of its slowest link [byte/s]."""

    oversubscription: float | None
    """What its blocks' devices can send into it, over what leads to the level above;
    null where there is none, inside of nodes, and where levels are no switches."""


class CandidatesRecord(Record):
    """The best candidates of a search, in columns."""

    num_devices: int
    """Devices of the cluster."""

    tokens: float
    """Tokens of an iteration."""

    device_hour: float | None
    """What the cluster costs for an hour, over its devices: rent, capital and
    electricity; null where the scenario has no prices."""

    currency: str | None
    """Of the price."""

    levels: tuple[LevelRecord, ...]
    """Levels with links, from the inside out."""

    terms: tuple[str, ...]
    """Names of the terms, those left out that are 0 for all candidates."""

    reported: int | None
    """Position of the plan that is reported."""

    tp: tuple[int, ...]
    pp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    dp: tuple[int, ...]
    b: tuple[int, ...]
    """Sequences per microbatch."""
    v: tuple[int, ...]
    """Chunks of each stage."""
    recompute: tuple[str, ...]
    """Recompute mode, the same of all stages, or ``"mixed"``."""
    recomputed: tuple[str, ...]
    """What is recomputed, in words."""
    zero: tuple[str, ...]
    """ZeRO stage, the same of all stages, or ``"mixed"``."""
    memory_bytes: tuple[float, ...]
    """Upper bound of what a device needs [byte]."""
    planned_s: tuple[float, ...]
    """Planned time: the sum of the terms [s]."""
    bound_s: tuple[float | None, ...]
    """Lower bound of the replay; null for plans that no bound covers [s]."""
    replayed_s: tuple[float | None, ...]
    """Replayed time; null for plans that were not replayed [s]."""
    terms_s: tuple[tuple[float, ...], ...]
    """Planned time by cause [s]."""
    changes_s: tuple[tuple[float, ...], ...]
    """By how much each term changes where a level has a quarter, half and twice its
    bandwidth: level by level, these bandwidths, term by term [s]."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Levels, bandwidths and terms of `changes_s`."""
        return len(self.levels), len(FACTORS), len(self.terms)


def candidates_json(result: ReplayedResult, trail: ProofTrail) -> dict[str, object]:
    """Return the best candidates of a search that has listed its space.

    Parameters
    ----------
    result
        What was found.
    trail
        What the search noted.
    """
    searched = trail.candidates
    assert searched is not None, "the search is done"
    network, workload = searched.network, searched.workload
    levels = linked_levels(network)
    short = _affordable(shortlist(trail, MOST_CANDIDATES), len(levels))
    price = LevelPrices(network, workload, levels)
    by_level = [price(candidate.plan) for candidate in short]
    plans = [candidate.plan for candidate in short]
    columns = _term_columns(by_level, len(levels))
    sizes = [plan.parallel.sizes() for plan in plans]
    best = result.candidates[result.chosen or 0] if result.candidates else None
    cost = result.cost
    rate = None if cost is None else cost.rate
    return CandidatesRecord.dump(
        num_devices=network.num_devices,
        tokens=_tokens(result),
        device_hour=None if rate is None else HOUR * rate / network.num_devices,
        currency=None if cost is None or rate is None else cost.currency,
        levels=tuple(_level(network, level, levels) for level in levels),
        reported=plans.index(best.priced.plan)
        if best is not None and best.priced.plan in plans
        else None,
        **{
            axis: tuple(getattr(size, axis) for size in sizes)
            for axis in ("tp", "pp", "cp", "ep", "dp")
        },
        b=tuple(plan.micro_batch_size for plan in plans),
        v=tuple(plan.virtual_pipeline_model_parallel_size for plan in plans),
        recompute=tuple(str(plan.settings_json()["recompute"]) for plan in plans),
        recomputed=tuple(map(recompute_of_plan, plans)),
        zero=tuple(map(_zero, plans)),
        memory_bytes=tuple(
            max(stage.peak_memory for stage in row.priced.stages) for row in by_level
        ),
        planned_s=tuple(row.priced.iteration_time for row in by_level),
        bound_s=tuple(candidate.bound for candidate in short),
        replayed_s=tuple(candidate.time for candidate in short),
        **columns,
    )


def _term_columns(
    by_level: Sequence[PriceByLevel], num_levels: int
) -> dict[str, tuple[object, ...]]:
    """Return the columns of terms and of their changes; those that say nothing go."""
    names = [*dict.fromkeys(name for row in by_level for name in row.priced.terms)]
    shape = len(by_level), num_levels, len(FACTORS), len(names)
    terms, changes = np.zeros((len(by_level), len(names))), np.zeros(shape)
    for number, row in enumerate(by_level):
        has = [names.index(name) for name in row.priced.terms]
        terms[number, has] = [*row.priced.terms.values()]
        changes[number][..., has] = row.changes
    # Sums in another order are no change.
    least = ROUNDING * terms.sum(axis=1)[:, None, None, None]
    changes[np.abs(changes) < least] = 0.0
    kept = np.flatnonzero(terms.any(axis=0) | changes.any(axis=(0, 1, 2)))
    return {
        "terms": tuple(names[number] for number in kept),
        "terms_s": _rows(terms[:, kept], 12),
        "changes_s": tuple(
            row
            for of_plan in changes[..., kept]
            for row in _rows(of_plan.reshape(1, -1), 6)
        ),
    }


def _affordable(short: Sequence[Shortlisted], num_levels: int) -> list[Shortlisted]:
    """Return the first candidates, as many as are priced."""
    each = 1 + len(FACTORS) * num_levels
    spent = np.cumsum([each * len(candidate.plan.stages) for candidate in short])
    return [*short[: int(np.searchsorted(spent, MOST_PRICED, side="right"))]]


def _rows(numbers: FloatArray, digits: int) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(rounded(number, digits) for number in row) for row in numbers.tolist()
    )


def _tokens(result: ReplayedResult) -> float:
    """Return the tokens of an iteration."""
    if not result.candidates:
        return 0.0
    planned = result.candidates[0].planned
    return planned.tokens_per_second * planned.iteration_time


def _zero(plan: Plan) -> str:
    stages = {stage.zero_stage for stage in plan.stages}
    return str(stages.pop()) if len(stages) == 1 else "mixed"


def _level(network: Network, number: int, linked: Sequence[int]) -> LevelRecord:
    level, links = network.levels[number], network.links
    is_switch = network.is_tree and number > 0 and number + 1 in linked
    return LevelRecord(
        name=level.name,
        bandwidth_bytes_per_s=float(links.bandwidth[links.level == number].min()),
        oversubscription=level.oversubscription if is_switch else None,
    )


def estimated_times(record: CandidatesRecord, factors: Sequence[float]) -> FloatArray:
    """Return the closed form of the page: times of the candidates [s].

    Parameters
    ----------
    record
        The candidates.
    factors
        Bandwidth of each level over what it has.
    """
    num = len(record.tp)
    nothing = np.zeros((num, len(record.terms)))
    changes = np.array(record.changes_s).reshape(num, *record.shape)
    moved = estimated_terms(nothing, changes, factors)
    return np.asarray(np.array(record.planned_s) + moved.sum(axis=1))


def candidates_section(record: Mapping[str, object] | None) -> Section:
    """Return the candidates and what would be, for the page; empty without several."""
    count = 0 if record is None else len(CandidatesRecord.read(record).tp)
    if record is None or count < 2:
        return Section("what-if", _TITLE, (), in_text=False)
    return Section(
        "what-if",
        _TITLE,
        (
            Sentences(
                (
                    f"The best {plural(count, 'candidate')} of the search, by their "
                    "planned terms. Move a bandwidth: each term follows it as the "
                    "planner's own prices at other bandwidths say. "
                    "That is an estimate; the replay is the judge.",
                )
            ),
            Explorer(name="candidates", title="Candidates", columns=record),
        ),
        in_text=False,
    )
