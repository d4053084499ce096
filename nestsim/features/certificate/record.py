"""What a certificate of a search holds: the space, every bound, and what closed what.

One JSON object, in columns where there is a row for each configuration or plan. Times
are seconds, sizes bytes; what is infinite or does not exist is null.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version

import numpy as np

from estimators.grouping import Grouping
from nestsim.document.dumps import Record
from nestsim.features.certificate.sources import (
    ScenarioCopyRecord,
    data_digest,
    scenario_copy,
)
from nestsim.running.store import content_key
from nestsim.scenario.load import Scenario
from planner.cost.choices import MemoryChoice
from planner.search.replayed.candidates import LaunchableCandidates, Leaves
from planner.search.replayed.fullness import mean_stage_parameters
from planner.search.replayed.trail import ProofTrail, ReplayTime
from planner.search.space import Configuration, SearchSpec
from planner.step.plan import Plan
from topologies.errors import InputError

FORMAT = "nestsim certificate 1"
"""What a certificate's key ``format`` has to be."""

FIRST, RELAXED, OPENED, PARAMETERS, MEMORY = range(5)
"""What decides of a configuration: positions in `CLOSINGS`."""

CLOSINGS = (
    "its first bound",
    "its relaxed bound",
    "its plans, one by one",
    "out of memory: the parameters alone fill the mean stage",
    "out of memory: no plan fits",
)
"""What closes a configuration, or would: `ConfigurationsRecord.by` counts them."""


class ConfigurationsRecord(Record):
    """Every configuration of the space, in columns."""

    tp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    b: tuple[int, ...]
    v: tuple[int, ...]
    pp: tuple[int, ...]
    dp: tuple[int, ...]
    pairs: tuple[bool, ...]
    etp: tuple[int, ...]
    cp_comm_type: tuple[str, ...]
    a2a: tuple[int, ...]
    folds: tuple[bool, ...]

    first_bound_s: tuple[float | None, ...]
    """Bound of all its plans before a look at it; null if the parameters alone do not
    fit [s]."""

    relaxed_bound_s: tuple[float | None, ...]
    """Bound of all its plans on any placement; null without a look at it, or if no plan
    fits [s]."""

    cutoff_s: tuple[float | None, ...]
    """Bounds from here on were not worked out in full; null for all in full [s]."""

    needed_bytes: tuple[float | None, ...]
    """What its least demanding plan needs of a device, where it is out of memory
    [byte]."""

    by: tuple[int, ...]
    """What closes it: position in `CLOSINGS`."""

    closed: tuple[bool, ...]
    """Whether nothing of it may be faster than the answer by more than the gap that
    was asked for."""

    def configurations(self) -> list[Configuration]:
        """Return the configurations."""
        groupings = zip(self.etp, self.cp_comm_type, self.a2a, self.folds, strict=True)
        sizes = zip(
            *(self.tp, self.cp, self.ep, self.b, self.v, self.pp, self.dp),
            strict=True,
        )
        return [
            Configuration._make((*size, Grouping(*grouping), pairs))
            for size, grouping, pairs in zip(sizes, groupings, self.pairs, strict=True)
        ]


class PlacementPlansRecord(Record):
    """The plans of a configuration on a placement that fit, by their bounds."""

    schedule: str
    """Name of the schedule; empty for 1F1B, interleaved with several chunks."""
    placement: str
    """Factors of the nesting of ranks, innermost first."""
    same_as: int | None
    """Position of the earlier placement with the same plans and bounds; their columns
    are empty here. Null without."""
    choices: tuple[str, ...]
    """Choices of recompute, ZeRO and what the host keeps."""
    layouts: tuple[tuple[int, ...], ...]
    """First layer of each virtual stage, and the number of layers, for each layout."""
    choice: tuple[int, ...]
    """Position of the plan's choice."""
    layout: tuple[int, ...]
    """Position of the plan's layout."""
    num_blocks: tuple[int, ...]
    """Blocks of each chunk that are recomputed, where they are counted."""
    bound_s: tuple[float, ...]
    """Lower bound of the plan's replay, rising [s]."""
    num_out_of_memory: int
    """Plans that do not fit: pairs of a choice and a layout that are not listed."""
    timeline_s: tuple[float, ...]
    """Lower bounds of the first plans' replays by their timelines; 0 without a pipeline
    [s]."""
    replayed: tuple[int, ...]
    """Positions of the plans that were replayed, rising."""
    replayed_s: tuple[float | None, ...]
    """Their replayed times; null for one that was broken off behind the answer's time,
    or has too many passes to be replayed [s]."""


class OpenedRecord(Record):
    """A configuration whose plans were bounded one by one."""

    configuration: int
    """Its position."""
    cutoff_s: float | None
    """Bounds from here on were not worked out in full; null for all in full [s]."""
    placements: tuple[PlacementPlansRecord, ...]


class ReplayRecord(Record):
    """A plan that was replayed before the search looked at bounds, or the answer."""

    plan: Mapping[str, object]
    replayed_s: float | None
    """Replayed time; null as in `PlacementPlansRecord` [s]."""


class CertificateRecord(Record):
    """What a search has shown, with all that is needed to check it."""

    format: str
    nestsim: str
    """Version that wrote it."""
    sha256: str
    """Hash of all the rest."""
    data_sha256: str
    """Hash of the constants and catalogues that nestsim ships."""
    scenario: ScenarioCopyRecord
    space: Mapping[str, str]
    """Rules of the space: what was searched."""
    device_bytes: float
    """What plans may take of a device [byte]."""
    answer: ReplayRecord | None
    """The best plan; null if nothing fits."""
    lower_bound_s: float | None
    """No plan of the space replays faster; null if nothing fits [s]."""
    optimality_gap: float | None
    """The answer's time over the bound, less one."""
    proven_gap: float
    """Gap that was asked for."""
    proven: bool
    """Whether the gap is at most that; without an answer, that nothing fits."""
    stopped_by: str | None
    """Limit that stopped the search; null if it ran to its end."""
    closings: tuple[str, ...]
    """What positions in ``configurations.by`` mean."""
    configurations: ConfigurationsRecord
    opened: tuple[OpenedRecord, ...]
    first_replays: tuple[ReplayRecord, ...]
    """Replays of plans of the space that no row of ``opened`` has."""


def certificate_json(scenario: Scenario, trail: ProofTrail) -> dict[str, object]:
    """Return the certificate of a search, sealed."""
    candidates = trail.candidates
    if candidates is None:
        raise InputError(
            "there is no search to certify",
            where="search.planner",
            expected="the search of nest for the fastest replay",
        )
    spec, best = candidates.spec, trail.best
    opened = _opened(candidates, trail)
    in_rows = {plan for plans in trail.tried.values() for plan in plans.values()}
    proven = trail.best_time / (1.0 + spec.proven_gap) <= trail.lower_bound
    written = CertificateRecord.dump(
        format=FORMAT,
        nestsim=version("nestsim"),
        sha256="",
        data_sha256=data_digest(),
        scenario=scenario_copy(scenario),
        space=space_rules(spec),
        device_bytes=candidates.bounds.memory,
        answer=None
        if best is None
        else _replay_record(best.plan, ReplayTime(trail.best_time, np.inf)),
        lower_bound_s=trail.lower_bound,
        optimality_gap=gap_of(trail.best_time, trail.lower_bound),
        proven_gap=spec.proven_gap,
        proven=proven and not (best is None and trail.stopped_by),
        stopped_by=trail.stopped_by,
        closings=CLOSINGS,
        configurations=_configurations(candidates, trail),
        opened=opened,
        first_replays=tuple(
            _replay_record(plan, done)
            for plan, done in trail.replays.items()
            if plan not in in_rows
        ),
    )
    return {**written, "sha256": seal(written)}


def seal(written: Mapping[str, object]) -> str:
    """Return the hash of all that a certificate says beside it."""
    return content_key({**written, "sha256": ""})


def gap_of(time: float, bound: float) -> float | None:
    """Return a time over a bound, less one; None without either."""
    return time / bound - 1.0 if time < np.inf else None


def space_rules(spec: SearchSpec) -> dict[str, str]:
    """Return what is searched, by setting, as texts."""
    rules = spec.rules
    settings = {
        field.name: repr(getattr(spec, field.name))
        for field in fields(spec)
        if field.name != "rules"
    }
    return {"rules": "" if rules is None else rules.framework, **settings}


def choice_label(choice: MemoryChoice) -> str:
    """Return a choice of recompute, ZeRO and what the host keeps as text."""
    kept = [f"{name} {part:g}" for name, part in choice.offload._asdict().items()]
    counted = ("all blocks", "fewest blocks", "fewest of every n-th block")
    return (
        f"{' '.join((choice.recompute, *choice.recompute_modules))}, "
        f"{counted[choice.counting]}, ZeRO-{choice.zero_stage}, "
        f"sharding {choice.sharding}, host keeps {', '.join(kept)}"
    )


def sheet_record(
    leaves: Leaves, same_as: int | None, trail: ProofTrail
) -> dict[str, object]:
    """Return the plans of a placement."""
    replays = trail.replays_of(leaves)
    number, choices, layouts, bounds = (
        leaves.numbers,
        leaves.choices,
        leaves.layouts,
        leaves.bounds,
    )
    num_out = len(choices) * len(layouts) - len(bounds)
    if same_as is not None:
        number, layouts, bounds = number[:0], layouts[:0], bounds[:0]
        choices = ()
    return PlacementPlansRecord.dump(
        schedule=leaves.schedule,
        placement=leaves.placement.name,
        same_as=same_as,
        choices=tuple(choice_label(choice) for choice in choices),
        layouts=tuple(map(tuple, layouts.tolist())),
        choice=tuple(number[:, 0].tolist()),
        layout=tuple(number[:, 1].tolist()),
        num_blocks=tuple(number[:, 2].tolist()),
        bound_s=tuple(bounds.tolist()),
        num_out_of_memory=num_out,
        timeline_s=tuple(trail.timelines.get(id(leaves), ())),
        replayed=tuple(replays),
        replayed_s=tuple(done.exact for done in replays.values()),
    )


def sheets(every: Sequence[Leaves], trail: ProofTrail) -> list[dict[str, object]]:
    """Return the plans of a configuration by placement, equal ones once."""
    first: dict[int, int] = {}
    written = []
    for position, leaves in enumerate(every):
        known = first.setdefault(id(leaves.bounds), position)
        same_as = None if known == position else known
        written.append(sheet_record(leaves, same_as, trail))
    return written


def _opened(
    candidates: LaunchableCandidates, trail: ProofTrail
) -> tuple[dict[str, object], ...]:
    """Return the configurations whose plans were listed."""
    if not trail.opened:
        return ()
    position = {candidates[number]: number for number in trail.relaxed}
    return tuple(
        {
            "configuration": position[configuration],
            "cutoff_s": plans.cutoff,
            "placements": sheets(plans.leaves, trail),
        }
        for configuration, plans in trail.opened.items()
    )


def _replay_record(plan: Plan, done: ReplayTime) -> dict[str, object]:
    return {"plan": plan.to_json(), "replayed_s": done.exact}


def _configurations(
    candidates: LaunchableCandidates, trail: ProofTrail
) -> Mapping[str, object]:
    """Return all configurations, their bounds and what closed them."""
    rows = [candidates[number] for number in range(len(candidates))]
    first = every_first_bound(candidates)
    relaxed, cutoff, needed = np.full((3, len(rows)), np.nan)
    by = np.where(np.isinf(first), PARAMETERS, FIRST)
    for number, (bound, limit) in trail.relaxed.items():
        relaxed[number], cutoff[number] = bound, limit
        by[number] = MEMORY if np.isinf(bound) else RELAXED
        if rows[number] in trail.opened:
            by[number] = OPENED
    needed[by == PARAMETERS] = parameter_bytes(candidates)[by == PARAMETERS]
    for number in np.flatnonzero(by == MEMORY).tolist():
        needed[number] = candidates.least_memory(rows[number])[0]
    left = left_bounds(candidates, trail, np.fmax(first, relaxed), by)
    return {
        **{name: [getattr(row, name) for row in rows] for name in _SIZES},
        **{name: [getattr(row.grouping, name) for row in rows] for name in _GROUPING},
        "first_bound_s": first,
        "relaxed_bound_s": relaxed,
        "cutoff_s": cutoff,
        "needed_bytes": needed,
        "by": by,
        "closed": left >= trail.best_time / (1.0 + candidates.spec.proven_gap),
    }


_SIZES = ("tp", "cp", "ep", "b", "v", "pp", "dp", "pairs")
_GROUPING = ("etp", "cp_comm_type", "a2a", "folds")


def parameter_bytes(candidates: LaunchableCandidates) -> np.ndarray:
    """Return what parameters fill of each configuration's mean stage [byte]."""
    least = mean_stage_parameters(
        candidates.bounds, candidates.families, candidates.spec
    )
    return np.concatenate([np.zeros(0), *least])


def every_first_bound(candidates: LaunchableCandidates) -> np.ndarray:
    """Return the first bound of every configuration, infinite if it fits nowhere [s].

    Of families that the search did not open, too.
    """
    every = map(candidates.first_bounds, range(len(candidates.families)))
    return np.concatenate([np.zeros(0), *every])


def left_bounds(
    candidates: LaunchableCandidates,
    trail: ProofTrail,
    bounds: np.ndarray,
    by: np.ndarray,
) -> np.ndarray:
    """Return the least bound of each configuration's plans that were not replayed [s].

    Infinite if there is none.
    """
    left = np.where(np.isin(by, (PARAMETERS, MEMORY)), np.inf, bounds)
    for number in np.flatnonzero(by == OPENED).tolist():
        some = [
            left_of(
                leaves.bounds.tolist(),
                trail.timelines.get(id(leaves), ()),
                trail.replays_of(leaves),
            )
            for leaves in trail.opened[candidates[number]].leaves
        ]
        left[number] = max(bounds[number], min(some, default=np.inf))
    return left


def left_of(
    bounds: Sequence[float], timelines: Sequence[float], replayed: Collection[int]
) -> float:
    """Return the least bound of plans that were not replayed, infinite if none [s].

    Parameters
    ----------
    bounds
        Of all plans [s].
    timelines
        Bounds of the first of them by their timelines [s].
    replayed
        Positions of plans that were replayed.
    """
    sharp = [*map(max, bounds, timelines), *bounds[len(timelines) :]]
    left = (bound for place, bound in enumerate(sharp) if place not in replayed)
    return min(left, default=np.inf)
