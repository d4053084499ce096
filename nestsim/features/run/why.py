"""Why a step takes as long as it does: what it waits for, and what single changes gain.

The step is split by cause (`nestsim.features.run.statistics.step_causes`). For the
largest causes that are no compute, ``causes.toml`` names changes: rows of those that
`nestsim advise` tries, and wider links of the network. Each gain is a replay of the
same plan with that one thing changed, as `nestsim advise` makes it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nestsim.evaluate.evaluator import Evaluator, progress_of
from nestsim.evaluate.job import price_table_plan
from nestsim.evaluate.results import (
    C,
    Candidate,
    GivenPlan,
    JobResult,
    StepCause,
    WhatIf,
)
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.features.advise.job import (
    LEAST_GAIN,
    Lever,
    OtherSetting,
    Trials,
    is_noise,
    levers,
    with_plan,
)
from nestsim.features.run.causes import Wait, waits
from nestsim.features.run.statistics import ROUNDING, exposed_causes, level_uses
from nestsim.scenario.load import Scenario
from nestsim.simulator.system import MOST_SIMPY_EVENTS
from planner.work import Progress
from topologies.builders import build_network
from topologies.errors import InputError
from topologies.network import Network
from topologies.notices import notices

MOST_CAUSES = 3
"""Causes that are shown, the largest ones."""

LEAST_SHARE = 0.01
"""Causes that take less of the step are none."""

MOST_REPLAYS = 6
"""Changes that are replayed for all causes together."""

REPLAYED = ("no option of the framework", "replayed")
"""What becomes of changes that are replayed, as `Trials.tried` calls it."""

NETWORK = ("network",)
"""The change that is wider links, beside those of settings."""

WIDER = 2.0
"""What bandwidth is multiplied by where it is not oversubscribed."""


def explained(
    scenario: Scenario, result: JobResult[C], progress: Progress | None = None
) -> JobResult[C]:
    """Return a result that says why its best plan takes as long as it does.

    And, of a run in a scenario with a plan, what that plan takes beside it. Without a
    plan, or where the search has looked at no replay, it stays as it is.

    Parameters
    ----------
    scenario
        The job.
    result
        What was found.
    progress
        Told about every replay.
    """
    best = _replayed(scenario, result)
    if best is None:
        return result
    given = _given_plan(scenario, best, progress) if result.kind == "run" else None
    return replace(result, why=_why(scenario, result, best, progress), given=given)


def _replayed(scenario: Scenario, result: JobResult[C]) -> Candidate | None:
    """Return the plan that is reported with its replay."""
    if not result.candidates:
        return None
    best = result.candidates[result.chosen or 0]
    if isinstance(best, Candidate):
        return best
    if result.objective == "planned":
        return None
    try:
        return Evaluator.of(scenario).evaluate(best.priced, best.rank)
    except InputError:
        return None


def _why(
    scenario: Scenario,
    result: JobResult[C],
    best: Candidate,
    progress: Progress | None,
) -> tuple[StepCause, ...]:
    """Return what a step waits for, the longest first; nothing where it has no room."""
    if best.verdict.kind in NO_ROOM:
        return ()
    total = best.simulated.iteration_time
    seconds = {
        term: time
        for term, time in exposed_causes(best).items()
        if term in waits() and time > LEAST_SHARE * total
    }
    largest = sorted(seconds, key=lambda term: -seconds[term])[:MOST_CAUSES]
    # What SimPy is not asked to confirm is not replayed six times more, either.
    is_short = best.replay.num_events <= MOST_SIMPY_EVENTS
    trials = _trials(scenario, best) if largest and is_short else None
    what_ifs = None
    if trials is not None:
        most = MOST_REPLAYS // len(largest)
        what_ifs = WhatIfs(trials, result.network, best, most)
    causes = []
    for term in largest:
        wait = waits()[term]
        progress_of(progress, f"replay: what if there were less of {wait.words}")
        causes.append(
            StepCause(
                cause=wait.words,
                seconds=seconds[term],
                share=seconds[term] / total,
                what_if=None if what_ifs is None else _most_gaining(what_ifs.of(wait)),
            )
        )
    return tuple(causes)


def _trials(scenario: Scenario, best: Candidate) -> Trials | None:
    """Return what tries changes of a plan; None where settings cannot tell it."""
    try:
        trials = Trials(with_plan(scenario, best.priced.plan), None)
    except InputError:
        return None
    is_same = math.isclose(trials.time, best.simulated.iteration_time, rel_tol=ROUNDING)
    return trials if is_same else None


def _most_gaining(what_ifs: Iterable[WhatIf]) -> WhatIf | None:
    """Return what gains most; if nothing gains, the first that does not fit."""
    known = list(what_ifs)
    gaining = [what_if for what_if in known if what_if.gain > LEAST_GAIN]
    lacking = [what_if for what_if in known if not what_if.fits]
    if gaining:
        return max(gaining, key=lambda what_if: what_if.gain)
    return lacking[0] if lacking else None


class Tried(NamedTuple):
    """What became of a change."""

    what_ifs: tuple[WhatIf, ...]
    """Its values that were replayed, or do not fit."""

    replays: int
    """Replays that it took."""


class WhatIfs:
    """Single changes of one plan, each tried once however many causes name it.

    Parameters
    ----------
    trials
        What tries changes of settings.
    network
        What the plan was replayed on.
    best
        The plan.
    most
        Replays for each cause.
    """

    def __init__(
        self, trials: Trials, network: Network, best: Candidate, most: int
    ) -> None:
        self._trials, self._network, self._best = trials, network, best
        self._most = most
        self._known: dict[tuple[str, ...], Tried] = {}

    def of(self, wait: Wait) -> Iterator[WhatIf]:
        """Yield the changes of a cause that are replayed, and those without memory."""
        left = self._most
        for change in (*wait.changes, *([NETWORK] if wait.network else [])):
            if change not in self._known and left > 0:
                self._known[change] = (
                    self._wider() if change == NETWORK else self._changed(left, *change)
                )
                left -= self._known[change].replays
            if change in self._known:
                yield from self._known[change].what_ifs

    def _changed(self, most: int, name: str, *way: str) -> Tried:
        """Try the values of a setting until one gains or lacks memory."""
        lever = next(lever for lever in levers() if lever.name == name)
        what_ifs, replays = [], 0
        for option in values_of(self._trials, lever, way):
            outcome, advice = self._trials.attempt((option,))
            replays += outcome in REPLAYED
            if advice is not None or outcome == "out of memory":
                time = math.nan if advice is None else advice.time
                what_ifs.append(self._what_if(name, time, option.values()))
                if not what_ifs[-1].gain <= LEAST_GAIN:
                    break
            if replays == most:
                break
        return Tried(tuple(what_ifs), replays)

    def _wider(self) -> Tried:
        """Try wider links up from the level below the busiest; nothing in tori."""
        spec = self._trials.scenario.network_spec
        tiers = build_network(spec).tiers()
        used = level_uses(self._best.replay, self._network)
        use = {level.name: level.max_utilisation for level in used}
        places = [
            number
            for number, tier in enumerate(tiers[:-1])
            if tier.num_uplinks and use.get(tiers[number + 1].name)
        ]
        if not places:
            return Tried((), 0)
        number = max(places, key=lambda place: use[tiers[place + 1].name])
        name, built = tiers[number].name, tiers[number].oversubscription
        rules = self._network.rules
        # What nodes have inside is no measure of their way out.
        if built > 1.0 and (rules is None or number >= rules.node_levels):
            words, ratio = f"{name} uplinks 1:1 instead of {built:g}:1", 1.0
        else:
            words, ratio = f"{name} uplinks {WIDER:g} x as wide", built / WIDER
        try:
            wider = spec.with_oversubscription(tiers, number, ratio)
            time = self._trials.time_on(wider)
        except InputError:
            return Tried((), 0)
        return Tried((self._what_if(words, time, {}),), 1)

    def _what_if(self, change: str, time: float, settings: Mapping[str, Any]) -> WhatIf:
        gain = 1.0 - time / self._trials.time
        return WhatIf(
            change=change,
            settings=settings,
            iteration_time=time,
            gain=gain,
            below_model_error=is_noise(gain),
        )


def values_of(
    trials: Trials, lever: Lever, way: Sequence[str]
) -> Iterator[OtherSetting]:
    """Yield the values of a lever, with "more" or "less" those, the nearest first."""
    options = list(trials.settings_of(lever))
    if not way:
        yield from options
        return

    def place(value: Any) -> float:
        return value if isinstance(value, int) else lever.values.index(value)

    sign = {"more": 1.0, "less": -1.0}[way[0]]
    ahead = [
        (sign * (place(option.value) - place(option.today)), option)
        for option in options
        if isinstance(option.today, int) or option.today in lever.values
    ]
    for distance, option in sorted(ahead, key=lambda pair: pair[0]):
        if distance > 0.0:
            yield option


def _given_plan(
    scenario: Scenario, best: Candidate, progress: Progress | None
) -> GivenPlan | None:
    """Return the scenario's own plan beside a search's; None if there is none."""
    if scenario.plan is None or scenario.planner == "fixed":
        return None
    evaluator = Evaluator.of(scenario)
    progress_of(progress, "replay: the scenario's plan")
    try:
        priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
        yours = evaluator.evaluate(priced, 0)
    except InputError as error:
        words = " ".join(str(error).split())
        notices().remark(f"[plan] is not replayed beside the search: {words}")
        return None
    times, ours = exposed_causes(yours), exposed_causes(best)
    longer = {
        term: times.get(term, 0.0) - ours.get(term, 0.0)
        for term in dict.fromkeys([*times, *ours])
    }
    return GivenPlan(
        plan=priced.plan,
        iteration_time=yours.simulated.iteration_time,
        planned_time=yours.planned.iteration_time,
        peak_memory=yours.simulated.peak_memory,
        verdict=yours.verdict.kind,
        longer=dict(sorted(longer.items(), key=lambda pair: -abs(pair[1]))),
    )
