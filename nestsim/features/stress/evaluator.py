"""Plan a scenario and replay plans under conditions, and say what limits a step.

A step is limited by a link, a stage and a term: the
simulated time is the sum of the planner's terms and of the gap's
(`nestsim.evaluate.verdict.gap_by_cause`), and both together are its causes.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from nestsim.document.dumps import Record
from nestsim.evaluate.cluster import build_job, job_network
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.verdict import gap_by_cause
from nestsim.features.stress.conditions import (
    AS_BUILT,
    apply_condition,
    ratio_condition,
)
from nestsim.running.store import content_key
from nestsim.scenario.load import Scenario
from nestsim.scenario.stress import ConditionSpec
from nestsim.simulator.system import Replay
from planner.cost.objective import PricedPlan
from planner.step.execution import Workload
from planner.step.plan import Plan
from topologies.errors import InputError
from topologies.network import Network

MOST_LINKS = 8
"""Kinds of links that are kept of a replay, hottest first."""

SMALLEST = 1e-9
"""A smaller share of the step is rounding."""

ALIKE = 1e-5
"""Links whose shares of the step differ by less carry the same."""


class AlikeLinks(NamedTuple):
    """Links of one level that carried the same."""

    name: str
    """Name of the first of the links."""

    level: str
    """Name of the links' level."""

    share: float
    """Share of the step during which the links were busy at full bandwidth."""

    num_alike: int
    """Number of the links."""


def causes(priced: PricedPlan, replay: Replay) -> dict[str, float]:
    """Return the simulated time by cause [s]; the parts add up to it.

    ``"tail"`` is what synchronisation and the optimizer step add to the passes: as
    planned, and what the replay adds to it after the last pass.

    Parameters
    ----------
    priced, replay
        What was promised, and what came of it.
    """
    gap = dict(gap_by_cause(priced, replay).terms)
    added = gap.pop("synchronisation")
    return {**priced.terms, "tail": priced.terms["tail"] + added, **gap}


def busiest_stage(replay: Replay) -> int:
    """Return the stage whose replicas work longest, the first of equals."""
    spans = replay.spans
    worked = (spans.end - spans.start) * replay.span_multiplicity
    busy = np.bincount(spans.stage, weights=worked)
    return int(np.argmax(np.round(busy / max(float(busy.max()), 1e-300), 9)))


def hottest(network: Network, replay: Replay) -> tuple[AlikeLinks, ...]:
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


def _named(network: Network, link: int, share: float, count: int) -> AlikeLinks:
    links, names = network.links, network.vertex_names
    source, target = names[links.source[link]], names[links.target[link]]
    level = network.levels[int(links.level[link])].name
    return AlikeLinks(f"{source} -> {target}", level, share, count)


def limiting_term(
    terms: Mapping[str, float], healthy: Mapping[str, float] | None
) -> str:
    """Name the cause that grew most; the largest beside compute if none did.

    Parameters
    ----------
    terms
        Causes of a step under a condition [s].
    healthy
        Causes of the same plan in the scenario as it is [s]; None to name the largest.
    """
    total = sum(terms.values())
    if healthy is not None:
        grown = {name: terms[name] - healthy.get(name, 0.0) for name in terms}
        name = max(grown, key=grown.__getitem__)
        if grown[name] > SMALLEST * total:
            return name
    others = {name: value for name, value in terms.items() if name != "compute"}
    name = max(others, key=others.__getitem__)
    return name if others[name] > SMALLEST * total else "compute"


_MOST_NETWORKS = 64
"""Networks under conditions that a process keeps."""


class PlanMade(NamedTuple):
    """What a planner made for a condition."""

    plan: Plan | None
    """Best plan of the planner; None if it found none."""

    why_not: str
    """Reason why the planner found none; empty if it did."""

    stopped: bool
    """Whether a limit ended the planner's search, with its best so far."""


class ConditionResult(Record):
    """One plan under one condition."""

    planned: float
    """Iteration time by the common evaluator [s]."""

    simulated: float
    """Iteration time by the replay [s]."""

    causes: Mapping[str, float]
    """Parts of the simulated time, by cause [s]."""

    stage: int
    """Stage that works longest."""

    hottest: tuple[AlikeLinks, ...]
    """Busiest links, hottest first."""


def plan_key(plan: Plan) -> str:
    """Return what tells a plan from all others."""
    return content_key(plan.to_json())[:16]


@dataclass(slots=True)
class ConditionEvaluator:
    """A scenario with everything that does not depend on the condition."""

    scenario: Scenario
    """Scenario as it is, without a condition."""

    workload: Workload
    """Model, job and device."""

    _networks: "OrderedDict[str, tuple[Scenario, Network]]"
    """Scenario and network under each condition that was used last."""

    _made: dict[str, Plan | None] = field(default_factory=dict)
    """Plans for the cluster as it is built, by planner."""

    @classmethod
    def of(cls, scenario: Scenario) -> "ConditionEvaluator":
        """Trace the model, and make an empty store of networks."""
        _, workload = build_job(replace(scenario, degradation=None), None)
        return cls(scenario, workload, OrderedDict())

    def under(self, condition: ConditionSpec) -> tuple[Scenario, Network]:
        """Return scenario and network under a condition, built once.

        Raises
        ------
        InputError
            If there is no such network, or devices are cut off from others.
        """
        key = repr(condition)
        if key not in self._networks:
            changed = apply_condition(self.scenario, condition)
            changed = replace(changed, search=changed.stress.ranked(changed.search))
            try:
                network = job_network(changed)
            except InputError as error:
                raise error.at(f'condition "{condition.name}"', ": ") from None
            self._networks[key] = changed, network
            if len(self._networks) > _MOST_NETWORKS:
                self._networks.popitem(last=False)
        return self._networks[key]

    def make(self, condition: ConditionSpec, planner: str) -> PlanMade:
        """Return a planner's best plan for a condition.

        By the replay its plan for the cluster as it is built is one of those that it
        chooses from, so that the plan made anew is no slower.
        """
        changed, network = self.under(condition)
        if changed.search.objective == "planned":
            return self._find(changed, network, planner, None)
        kept = None
        if condition.name != AS_BUILT:
            kept = self._kept(planner)
        return self._find(changed, network, planner, kept)

    def _kept(self, planner: str) -> Plan | None:
        """Return the plan for the cluster as it is built, made once."""
        if planner not in self._made:
            made = self.make(ratio_condition(()), planner)
            self._made[planner] = made.plan
        return self._made[planner]

    def _find(
        self, scenario: Scenario, network: Network, planner: str, kept: Plan | None
    ) -> PlanMade:
        evaluator = Evaluator.on(scenario, network, self.workload)
        settings = replace(scenario.planner_settings, fixed=scenario.plan)
        starts = () if kept is None else (kept,)
        outcome = evaluator.find(planner, settings, starts=starts)
        plan = outcome.plans[0].plan if outcome.plans else None
        return PlanMade(plan, outcome.why_not, outcome.spent.is_stopped)

    def run(self, condition: ConditionSpec, plan: Plan) -> ConditionResult:
        """Price and replay a plan under a condition."""
        changed, network = self.under(condition)
        settings = changed.simulation
        if settings.engine == "auto":
            # The same bits; compiling pays over so many replays: 3 times as fast.
            settings = replace(settings, engine="compiled")
        changed = replace(changed, simulation=settings)
        evaluator = Evaluator.on(changed, network, self.workload)
        priced = evaluator.price(plan)
        work = evaluator.lower(priced)
        replayed = evaluator.replay(work, memory=False)
        return ConditionResult(
            planned=priced.iteration_time,
            simulated=replayed.iteration_time,
            causes=causes(priced, replayed),
            stage=busiest_stage(replayed),
            hottest=hottest(network, replayed),
        )
