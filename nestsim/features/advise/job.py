"""What to change in a job that runs: single changes, and the best of them together.

What runs today is replayed first. Then each setting of ``changes.toml`` takes its other
values, one at a time: the framework must be able to launch the plan, it must fit into
memory by the estimate, and its replay says what it gains. The best changes are then
tried in twos and threes; a change that fits only beside another, such as a larger
micro-batch with recompute, is found there. Last comes the search of `nestsim run`:
what there would be if the whole plan may change.

No number is guessed: each gain is the difference between two replays.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any, NamedTuple

import tomli

from nestsim.evaluate.evaluator import Evaluator, progress_of
from nestsim.evaluate.job import price_table_plan, run_job, simulate_job
from nestsim.evaluate.results import ReplayedResult
from nestsim.launch.job import LaunchJob
from nestsim.launch.registry import (
    PRESET_FORMATS,
    WITHOUT_OPTIONS,
    find_writer,
    plan_table,
)
from nestsim.scenario.editing import toml_text, with_values
from nestsim.scenario.load import Scenario
from planner.cost.objective import PricedPlan
from planner.frameworks.rules import is_tpu
from planner.rivals.protocol import fits
from planner.step.plan import Plan
from planner.work import Progress
from topologies.errors import InputError
from topologies.joined_specs import NetworkSpec

MOST_PARTS = 10
"""Single changes whose combinations are tried."""

MOST_PAIRS = 6
"""Pairs of changes to which a third one is added."""

MOST_SHOWN = 6
"""Advice of one change that is given, and advice of several."""

LEAST_GAIN = 1e-3
"""Gains below this share are none; what a change adds to others must be as much."""

GAIN_ERROR = 0.11
"""Half the width of the 80 % band of a gain, in the logarithm: of 1,564 pairs of public
runs of one job that differ in up to three settings, from ten sources that count alike
(``tests/validation/test_gains.py``); the median error is 0.06."""

_RELAUNCH = "new launch"

CONVERSION = "converted checkpoint"
"""What changes of how parameters are sharded need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A setting that may be set otherwise."""

    name: str
    """What people call it."""

    setting: str
    """Dotted path in a scenario."""

    values: tuple[Any, ...] = ()
    """Its other values."""

    factors: tuple[float, ...] = ()
    """Factors on its value of today."""

    beside: Mapping[str, Any] = field(default_factory=dict)
    """What must be set beside it."""

    drops: tuple[str, ...] = ()
    """What follows from others once it changes."""

    where: str = ""
    """What the model must have or lack: "experts", "no experts"; empty for any."""

    gpus: bool = False
    """Whether only GPUs have it."""

    restart: str = _RELAUNCH
    """What a run that has begun needs."""


@cache
def levers() -> tuple[Lever, ...]:
    """Return all of ``changes.toml``."""
    text = files("nestsim.features.advise").joinpath("changes.toml")
    tables = tomli.loads(text.read_text(encoding="utf-8"))
    return tuple(_lever(name, table) for name, table in tables.items())


def _lever(name: str, table: Mapping[str, Any]) -> Lever:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
    }
    return Lever(name=name, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSetting:
    """One setting with another value."""

    lever: Lever
    """What is set."""

    value: Any
    """Its new value."""

    today: Any
    """Its value of today; None where that is the framework's own."""

    def values(self) -> dict[str, Any]:
        """Return all that is set: path -> value."""
        return {self.lever.setting: self.value, **self.lever.beside}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """Some changes, and what comes of them."""

    changes: tuple[OtherSetting, ...]
    """What is set otherwise."""

    scenario: Scenario
    """The job with them."""

    priced: PricedPlan
    """Its plan."""

    time: float
    """Replayed iteration time [s]."""

    peak: float
    """Memory of the fullest stage [byte]."""

    file: str = ""
    """Name of the user's file that the diff is of."""

    diff: str = ""
    """What has to change in it, as ``diff -u`` shows it."""

    gaps: tuple[str, ...] = ()
    """What the file cannot say, a sentence each."""

    @property
    def restart(self) -> str:
        """What a run that has begun needs."""
        return CONVERSION if self.needs_conversion else _RELAUNCH

    @property
    def needs_conversion(self) -> bool:
        """Whether a checkpoint of today has to be converted."""
        return any(change.lever.restart != _RELAUNCH for change in self.changes)


POSSIBLE = ("out of memory", "no option of the framework", "replayed")
"""What becomes of changes that go with the job and that its framework launches."""


class Attempt(NamedTuple):
    """What became of some changes."""

    outcome: str
    """A key of `Trials.tried`."""

    advice: Advice | None = None
    """What comes of them; None unless they fit and the framework can be told."""


def is_noise(gain: float) -> bool:
    """Tell whether a gain, a share of today's time, is less than predictions err."""
    return 1.0 - (1.0 - gain) * math.exp(GAIN_ERROR) <= 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdviceResult:
    """What a job does today, and what it could do."""

    scenario: Scenario
    """The job."""

    today: ReplayedResult
    """Its plan, replayed and judged."""

    advice: tuple[Advice, ...]
    """What gains, best first."""

    tried: Mapping[str, int]
    """Number of changes, and of their combinations, by what became of them."""

    best: ReplayedResult | None
    """What a search finds where the whole plan may change; None where none was asked
    for."""

    @property
    def time(self) -> float:
        """Replayed iteration time of today [s]."""
        return self.today.candidates[0].simulated.iteration_time

    @property
    def error(self) -> float:
        """Half the width of the 80 % band of a gain, in the logarithm."""
        return GAIN_ERROR

    def gain(self, time: float) -> float:
        """Return the share of today's time that another one saves."""
        return 1.0 - time / self.time

    def band(self, advice: "Advice") -> tuple[float, float]:
        """Return the ends of the 80 % band of what advice saves, lower end first."""
        factor = math.exp(self.error)
        ratio = advice.time / self.time
        return 1.0 - ratio * factor, 1.0 - ratio / factor

    def is_noise(self, advice: "Advice") -> bool:
        """Tell whether what advice saves is less than predictions err."""
        return is_noise(self.gain(advice.time))


def advise_job(
    scenario: Scenario, *, search: bool = True, progress: Progress | None = None
) -> AdviceResult:
    """Replay what runs today, and what gains from changing it.

    Parameters
    ----------
    scenario
        The job, with what runs in its table [plan].
    search
        Whether to search for the best plan of all, too.
    progress
        Told about every step.

    Raises
    ------
    InputError
        If there is no plan, or it does not go with the job.
    """
    progress_of(progress, "advise: replay what runs today")
    today = simulate_job(scenario)
    trials = Trials(scenario, progress)
    singles = trials.singles()
    time = today.candidates[0].simulated.iteration_time
    advice = _worth_telling(trials.combined(singles), time)
    # What the best advice sets beside the plan holds for the search, too.
    searched = advice[0].scenario if advice else scenario
    return AdviceResult(
        scenario=scenario,
        today=today,
        advice=advice,
        tried=dict(trials.tried),
        best=run_job(searched, progress=progress) if search else None,
    )


def with_plan(scenario: Scenario, plan: Plan, *, source: str = "plan") -> Scenario:
    """Return a job that runs a plan: in its table [plan], modules in [software].

    Parameters
    ----------
    scenario
        The job.
    plan
        The plan.
    source
        What errors call it.

    Raises
    ------
    InputError
        If the plan does not go with the job, or settings cannot say it.
    """
    settings = LaunchJob.of(scenario, plan, source=source).settings
    values: dict[str, Any] = {"plan": plan_table(settings)}
    if plan.recompute_modules:
        values["software.recompute_modules"] = [*plan.recompute_modules]
    return scenario.replace(values)


class Trials:
    """What has been tried."""

    def __init__(self, scenario: Scenario, progress: Progress | None) -> None:
        self.scenario, self._progress = scenario, progress
        self.tried: dict[str, int] = {
            "changes": 0,
            "not possible": 0,
            "not launchable": 0,
            "no option of the framework": 0,
            "out of memory": 0,
            "replayed": 0,
        }
        self._evaluators: dict[str, Evaluator] = {}
        self.base = Evaluator.of(scenario)
        self._evaluators[_beside_plan(scenario.document())] = self.base
        self._today = price_table_plan(scenario, self.base.network, self.base.workload)
        self.time = self.base.replayed_time(self._today)
        """Replayed iteration time of today [s]."""
        self._unsaid = self._gaps(scenario)
        # What runs today runs: it may go on breaking the rules that it breaks.
        self._broken = self._rules_broken(self.base, self._today)

    def settings(self) -> Iterator[OtherSetting]:
        """Yield each setting with each other value that it may take."""
        for lever in levers():
            yield from self.settings_of(lever)

    def settings_of(self, lever: Lever) -> Iterator[OtherSetting]:
        """Yield a setting with each other value that it may take."""
        has_experts = bool(self.scenario.spec.num_moe_experts)
        if lever.where and has_experts != (lever.where == "experts"):
            return
        if lever.gpus and is_tpu(self.scenario.accelerator.name):
            return
        today = _value(self.scenario.document(), lever.setting)
        known = today if today is not None else self._today_value(lever.setting)
        values = list(lever.values)
        if isinstance(known, int) and not isinstance(known, bool):
            values += [_scaled(known, factor) for factor in lever.factors]
        for value in dict.fromkeys(map(_hashable, values)):
            if value is not None and value != _hashable(known):
                yield OtherSetting(lever=lever, value=_plain(value), today=known)

    def _today_value(self, setting: str) -> Any:
        """Return what a setting that the scenario leaves out is today."""
        table, _, name = setting.partition(".")
        if table == "plan":
            spec = self.scenario.plan
            return getattr(spec, name, None)
        for part in (self.scenario.execution, self.scenario.software):
            if hasattr(part, name):
                return getattr(part, name)
        return None

    def singles(self) -> list[tuple[OtherSetting, Advice | None]]:
        """Return each possible change; without advice those that need another one."""
        kept: list[tuple[OtherSetting, Advice | None]] = []
        options = list(self.settings())
        for number, option in enumerate(options):
            progress_of(
                self._progress,
                f"advise: change {number + 1} of {len(options)}",
                number / len(options),
            )
            outcome, advice = self.attempt((option,))
            if outcome in POSSIBLE:
                kept.append((option, advice))
        return kept

    def _gaps(self, scenario: Scenario) -> frozenset[str]:
        """Return what the framework's own configuration cannot say of a job."""
        name = PRESET_FORMATS[scenario.software_preset]
        if name in WITHOUT_OPTIONS:
            return frozenset()
        job = LaunchJob.of(scenario)
        return frozenset(
            f"{gap.setting} {gap.value}" for gap in find_writer(name)(job).gaps
        )

    def combined(
        self, singles: Sequence[tuple[OtherSetting, Advice | None]]
    ) -> list[Advice]:
        """Return the advice of single changes and of the best together."""
        advice = [trial for _, trial in singles if trial is not None]
        gaining = sorted(
            (trial for trial in advice if trial.time < self.time * (1.0 - LEAST_GAIN)),
            key=lambda trial: trial.time,
        )
        parts = [trial.changes[0] for trial in gaining[:MOST_PARTS]]
        # What fits, or can be said, only beside something else.
        tight = [option for option, trial in singles if trial is None]
        saving = [
            trial.changes[0]
            for trial in sorted(advice, key=lambda trial: trial.peak)[:MOST_PARTS]
            if trial.peak < self._peak(self._today)
        ]
        saving += [part for part in parts if part not in saving]
        pairs = [
            *combinations(parts, 2),
            *((wide, thrifty) for wide in tight for thrifty in saving),
        ]
        tried_pairs = self._all(pairs)
        advice += tried_pairs
        best = sorted(tried_pairs, key=lambda trial: trial.time)[:MOST_PAIRS]
        more = [
            (*pair.changes, part)
            for pair in best
            for part in (*parts, *tight)
            if part not in pair.changes
        ]
        seen: dict[frozenset[int], tuple[OtherSetting, ...]] = {}
        for changes in more:
            seen.setdefault(frozenset(map(id, changes)), changes)
        return advice + self._all(seen.values())

    def _all(self, options: Iterable[tuple[OtherSetting, ...]]) -> list[Advice]:
        fitting = []
        listed = [changes for changes in options if _goes_together(changes)]
        for number, changes in enumerate(listed):
            progress_of(
                self._progress,
                f"advise: {len(changes)} changes together, {number + 1} of "
                f"{len(listed)}",
                number / len(listed),
            )
            _, advice = self.attempt(changes)
            if advice is not None:
                fitting.append(advice)
        return fitting

    def attempt(self, changes: tuple[OtherSetting, ...]) -> Attempt:
        """Return what becomes of changes, and what comes of them if they fit."""
        self.tried["changes"] += 1
        attempt = self._attempt(changes)
        self.tried[attempt.outcome] += 1
        return attempt

    def _attempt(self, changes: tuple[OtherSetting, ...]) -> Attempt:
        try:
            changed = self._changed(changes)
            evaluator = self._evaluator(changed)
            priced = price_table_plan(changed, evaluator.network, evaluator.workload)
        except InputError:
            return Attempt("not possible")
        if self._rules_broken(evaluator, priced) - self._broken:
            return Attempt("not launchable")
        if not fits(evaluator.workload, changed.search, priced.plan, changed.host):
            return Attempt("out of memory")
        time = evaluator.replayed_time(priced)
        if not math.isfinite(time):
            return Attempt("not possible")
        if time < self.time and self._gaps(changed) - self._unsaid:
            return Attempt("no option of the framework")
        return Attempt(
            "replayed",
            Advice(
                changes=changes,
                scenario=changed,
                priced=priced,
                time=time,
                peak=self._peak(priced),
            ),
        )

    def time_on(self, network: NetworkSpec) -> float:
        """Return the replayed time of today's plan on another network [s]."""
        evaluator = Evaluator.of(replace(self.scenario, network_spec=network))
        return evaluator.replayed_time(evaluator.price(self._today.plan))

    def _changed(self, changes: tuple[OtherSetting, ...]) -> Scenario:
        """Return the job with other settings; what follows from others left out."""
        document = self.scenario.document()
        for change in changes:
            for path in change.lever.drops:
                table, _, name = path.partition(".")
                document.get(table, {}).pop(name, None)
        values: dict[str, Any] = {}
        for change in changes:
            values |= change.values()
        text = toml_text(with_values(document, values))
        return Scenario.from_toml(text, self.scenario.path)

    @staticmethod
    def _rules_broken(evaluator: Evaluator, priced: PricedPlan) -> frozenset[str]:
        broken = evaluator.launch_breaches(priced.plan)
        return frozenset(breach.rule for breach in broken)

    def _evaluator(self, changed: Scenario) -> Evaluator:
        """Return what evaluates plans of a job, made once for all plans of it."""
        key = _beside_plan(changed.document())
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator.of(changed)
        return self._evaluators[key]

    @staticmethod
    def _peak(priced: PricedPlan) -> float:
        return max(stage.peak_memory for stage in priced.stages)


def _worth_telling(advice: Iterable[Advice], today: float) -> tuple[Advice, ...]:
    """Return the best advice of one change and of several, best first.

    Each part of it adds something, and none does what a better one does.
    """
    ordered = sorted(advice, key=lambda trial: (trial.time, len(trial.changes)))
    times = {frozenset(map(id, trial.changes)): trial.time for trial in ordered}
    kept: dict[bool, list[Advice]] = {True: [], False: []}
    for trial in ordered:
        group = kept[len(trial.changes) == 1]
        if trial.time >= today * (1.0 - LEAST_GAIN) or len(group) == MOST_SHOWN:
            continue
        members = [id(change) for change in trial.changes]
        smaller = (
            times.get(frozenset(part))
            for count in range(1, len(members))
            for part in combinations(members, count)
        )
        is_better = all(
            time is None or trial.time < time * (1.0 - LEAST_GAIN) for time in smaller
        )
        if is_better and all(trial.time != other.time for other in group):
            group.append(trial)
    return tuple(sorted([*kept[True], *kept[False]], key=lambda trial: trial.time))


def _goes_together(changes: tuple[OtherSetting, ...]) -> bool:
    """Tell whether no setting has two values, and none that another drops."""
    paths = [path for change in changes for path in change.values()]
    if len(paths) != len({*paths}):
        return False
    dropped = {path for change in changes for path in change.lever.drops}
    return not dropped & {*paths}


def _beside_plan(document: Mapping[str, Any]) -> str:
    """Return all that a job says but its plan."""
    rest = {name: table for name, table in document.items() if name != "plan"}
    return toml_text(rest)


def _value(document: Mapping[str, Any], path: str) -> Any:
    """Return what a scenario says of a setting, None where it is silent."""
    table, _, name = path.partition(".")
    return document.get(table, {}).get(name)


def _scaled(value: int, factor: float) -> int | None:
    scaled = value * factor
    return int(scaled) if scaled >= 1 and scaled == int(scaled) else None


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
