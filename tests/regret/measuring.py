"""The regret of a scenario: how much slower the answer replays than another plan.

The judge is the replay itself; the answer is the search's, with the work that it may
spend by default.
"""

import csv
import math
import time
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from nestsim.evaluate.cluster import build_job
from nestsim.evaluate.evaluator import Evaluator
from nestsim.lowering.lower import lower_plan
from nestsim.running.store import Point, content_key
from nestsim.scenario.load import Scenario, scenario_of
from nestsim.simulator.replay import replay
from planner.cost.pricing import price_plan
from planner.rivals.protocol import PlannerOutcome
from planner.step.execution import Workload
from planner.step.plan import Plan
from tests.regret.alternatives import (
    MANUAL,
    Alternative,
    Alternatives,
    Key,
    plan_key,
    plan_words,
)
from tests.regret.scenarios import Drawn, draw, draw_small
from topologies import Network
from topologies.input_file import parse_toml

ROUNDING = 1e-9
"""Bounds may exceed times by this, relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of a scenario. Times are of a step."""

    seed: int
    scenario: str
    preset: str
    network: str
    answer: float
    """Of the search's answer; infinite if it found none [s]."""
    answer_in_full: float
    """The same, replayed once more without any cutoff [s]."""
    best_other: float
    """Of the fastest other plan that can be launched [s]."""
    best_source: str
    best_inside: float
    """Of the fastest other plan of the space that was searched [s]."""
    regret: float
    """Answer over the best of both, less 1; NaN without any plan."""
    lower_bound: float
    """That the search proves [s]."""
    stopped: bool
    cpu_seconds: float
    """Of the search."""
    replays: int
    configurations: int
    others: int
    """Other plans that were replayed."""
    outside: int
    """Of them, plans that can be launched and are not of the space."""
    manual: int
    """Of them, Manual's."""
    worst_bound: float
    """The largest quotient of a plan's bound and its replay."""
    answer_plan: str
    other_plan: str
    worst_plan: str
    """That with the largest quotient."""

    @property
    def proven_gap(self) -> float:
        """The most that any plan of the space can be faster, relative."""
        if not math.isfinite(self.answer):
            return math.nan
        return self.answer / self.lower_bound - 1.0

    @property
    def tightness(self) -> float:
        """What is proven over the answer."""
        return self.lower_bound / self.answer if self.answer < math.inf else math.nan

    @property
    def faults(self) -> tuple[str, ...]:
        """What must never be."""
        found = []
        if self.lower_bound > self.best_inside * (1.0 + ROUNDING):
            found.append("the lower bound is above the time of a plan")
        if self.worst_bound > 1.0 + ROUNDING:
            found.append("the bound of a plan is above its time")
        if math.isinf(self.answer) and self.best_other < math.inf:
            found.append("nothing was found although there is a plan")
        if self.answer / self.best_inside - 1.0 > self.proven_gap + ROUNDING:
            found.append("the regret is larger than the gap that was proven")
        if self.answer != self.answer_in_full:
            found.append("the answer replays otherwise without a cutoff")
        return tuple(found)

    def values(self) -> dict[str, object]:
        """Return all of it by name."""
        found: dict[str, object] = {
            field.name: getattr(self, field.name) for field in fields(self)
        }
        found["proven_gap"] = self.proven_gap
        found["tightness"] = self.tightness
        found["faults"] = "; ".join(self.faults)
        return found


def rows_of(table: Path) -> list[Row]:
    """Read the rows that were written as their `Row.values`; none without a file."""
    if not table.is_file():
        return []
    read = {
        "int": int,
        "float": float,
        "str": str,
        "bool": lambda text: text == "True",
    }
    types = {field.name: read[_name(field.type)] for field in fields(Row)}
    with table.open(encoding="utf-8", newline="") as file:
        return [
            Row(**{name: of(row[name]) for name, of in types.items()})
            for row in csv.DictReader(file)
        ]


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


@dataclass(slots=True)
class _Judge:
    """Replays plans of a job in full."""

    network: Network
    workload: Workload
    scenario: Scenario
    count: int = 0

    def __call__(self, plan: Plan) -> float:
        """Return the time of a plan's replay [s]."""
        settings = self.scenario.simulation
        priced = price_plan(self.network, self.workload, plan)
        work = lower_plan(self.network, self.workload, priced, settings)
        self.count += 1
        found = replay(self.network, work, settings, memory=False)
        return float(found.iteration_time)


def measure(drawn: Drawn, *, most_others: int, seconds: float = math.inf) -> Row:
    """Search a scenario as the commands do, replay other plans, and compare.

    Parameters
    ----------
    drawn
        The scenario.
    most_others
        The most other plans to replay.
    seconds
        Of processor time, for them [s].
    """
    text = drawn.text.encode()
    scenario = scenario_of(parse_toml(text), Path("scenario.toml"), text)
    network, workload = build_job(scenario, None)
    evaluator = Evaluator.on(scenario, network, workload)
    begun = time.process_time()
    found = evaluator.find("nest", scenario.planner_settings)
    spent = time.process_time() - begun
    alternatives = Alternatives.of(
        network,
        workload,
        scenario.search,
        by_layer=scenario.simulation.granularity == "layer",
    )
    compared = _Compared(_Judge(network, workload, scenario), found)
    compared.replay_all(alternatives, drawn.seed, most_others, seconds)
    answer = found.replayed_times[0] if found.plans else math.inf
    best = compared.best
    fastest = min(answer, best.time)
    return Row(
        seed=drawn.seed,
        scenario=scenario.name,
        preset=drawn.preset,
        network=_network_words(scenario),
        answer=answer,
        answer_in_full=compared.answer_in_full,
        best_other=best.time,
        best_source=best.source,
        best_inside=compared.inside,
        regret=answer / fastest - 1.0 if fastest < math.inf else math.nan,
        lower_bound=math.nan if found.lower_bound is None else found.lower_bound,
        stopped=found.spent.is_stopped,
        cpu_seconds=spent,
        replays=found.statistics.get("plans replayed", 0),
        configurations=found.statistics.get("configurations", 0),
        others=compared.judge.count,
        outside=compared.num_outside,
        manual=compared.num_manual,
        worst_bound=compared.worst.time,
        answer_plan=plan_words(found.plans[0].plan) if found.plans else "",
        other_plan=best.words,
        worst_plan=compared.worst.words,
    )


@dataclass(frozen=True, slots=True)
class _Noted:
    """A plan worth a note."""

    time: float
    source: str = ""
    words: str = ""


class _Compared:
    """Other plans beside the answer."""

    def __init__(self, judge: _Judge, found: PlannerOutcome) -> None:
        self.judge = judge
        self.answer_in_full = math.inf
        self.best = _Noted(math.inf)
        self.inside = math.inf
        self.worst = _Noted(0.0)
        self.num_outside = self.num_manual = 0
        self._times: dict[Key, float] = {}
        self._answer: Plan | None = None
        if found.plans:
            self._answer = found.plans[0].plan
            self.answer_in_full = judge(self._answer)

    def replay_all(
        self, alternatives: Alternatives, seed: int, most: int, seconds: float
    ) -> None:
        """Replay other plans until there are enough, or the time is over."""
        begun = time.process_time()
        for source in (
            alternatives.proposed(),
            alternatives.drawn(self._answer, seed),
        ):
            for one in source:
                if self.judge.count >= most or time.process_time() - begun > seconds:
                    break
                self._replay(one)

    def _replay(self, other: Alternative) -> None:
        key = plan_key(other.plan)
        if self._answer is not None and key == plan_key(self._answer):
            self.num_manual += other.source == MANUAL
            return
        self.num_manual += other.source == MANUAL
        found = self._times.get(key)
        if found is None:
            found = self.judge(other.plan)
            self._times[key] = found
        words = plan_words(other.plan)
        if found < self.best.time:
            self.best = _Noted(found, other.source, words)
        if math.isnan(other.bound):
            self.num_outside += 1
            return
        self.inside = min(self.inside, found)
        if other.bound / found > self.worst.time:
            self.worst = _Noted(other.bound / found, other.source, words)


def _network_words(scenario: Scenario) -> str:
    """Return the network in a few words."""
    spec = scenario.network_spec
    ratio = getattr(spec, "oversubscription", None)
    if ratio is None:
        levels = getattr(spec, "levels", ())
        ratios = [level.oversubscription for level in levels if level.oversubscription]
        ratio = ratios[0] if ratios else None
    kind = type(spec).__name__.removesuffix("Spec")
    shared = ", node's adapter" if getattr(spec, "nic", "") == "node" else ""
    return f"{kind}{f' {ratio:g}:1' if ratio else ''}{shared}"


@cache
def warm() -> None:
    """Load the kernels once in a process, so that no search is charged for that."""
    measure(draw_small(0), most_others=10)


@dataclass(frozen=True, slots=True)
class RegretTask:
    """Measures the scenario of a seed, wherever: workers need this repository."""

    most_devices: int
    most_others: int
    seconds: float
    """Of CPU, for the other plans [s]."""

    def __call__(self, point: Point) -> dict[str, Any]:
        """Return what came of it."""
        warm()
        drawn = draw(point["seed"], most_devices=self.most_devices)
        row = measure(drawn, most_others=self.most_others, seconds=self.seconds)
        return asdict(row)

    def key(self, point: Point) -> str:
        """Return a hash of all that the scenario and its measuring depend on."""
        return content_key([dict(point), asdict(self)])
