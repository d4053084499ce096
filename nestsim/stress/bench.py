"""One process's test bench: plans a scenario and replays plans under conditions."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from nestsim.cluster_network import device_slowdowns, job_network
from nestsim.evaluate import Evaluator
from nestsim.job import built
from nestsim.placed_work import place_work
from nestsim.scenario.settings import Scenario
from nestsim.scenario.stress_settings import ConditionSpec
from nestsim.simulator.replay import replay
from nestsim.stress.conditions import AS_BUILT, ratio_condition, stressed
from nestsim.stress.limits import HotLink, busiest_stage, causes, hottest
from nestsim.sweep.points import content_key
from planner.cost.pricing import price_plan
from planner.step.execution import Workload
from planner.step.plan import Plan
from topologies.errors import InputError
from topologies.fabrics.link_file import link_file_bytes
from topologies.network import Network
from topologies.specs import CustomSpec

_MOST_NETWORKS = 64
"""Networks under conditions that a process keeps."""


class Made(NamedTuple):
    """What a planner made for a condition."""

    plan: Plan | None
    """Its best plan; None if it found none."""

    why_not: str
    """Why it found none; empty if it did."""

    stopped: bool
    """Whether a limit ended its search, with its best so far."""


class Cell(NamedTuple):
    """One plan under one condition."""

    planned: float
    """Iteration time by the common evaluator [s]."""

    simulated: float
    """By the replay [s]."""

    causes: dict[str, float]
    """What the simulated time is made of [s]."""

    stage: int
    """The stage that works longest."""

    hottest: tuple[HotLink, ...]
    """The busiest links."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**self._asdict(), "hottest": [list(one) for one in self.hottest]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Cell":
        """Read back what `to_json` wrote."""
        links = tuple(HotLink(*one) for one in data["hottest"])
        return cls(**{**data, "hottest": links})


def plan_key(plan: Plan) -> str:
    """Return what tells a plan from all others."""
    return content_key(plan.to_json())[:16]


@dataclass(slots=True)
class Bench:
    """A scenario with everything that does not depend on the condition."""

    scenario: Scenario
    workload: Workload
    _networks: "OrderedDict[str, tuple[Scenario, Network]]"
    _made: dict[str, Plan | None] = field(default_factory=dict)
    """Plans for the cluster as it is built, by planner."""

    @classmethod
    def of(cls, scenario: Scenario) -> "Bench":
        """Trace the model, and make an empty store of networks."""
        _, workload = built(replace(scenario, degradation=None), None)
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
            changed = stressed(self.scenario, condition)
            changed = replace(changed, search=changed.stress.ranked(changed.search))
            try:
                network = job_network(changed)
            except InputError as error:
                raise error.at(f'condition "{condition.name}"', ": ") from None
            self._networks[key] = changed, network
            if len(self._networks) > _MOST_NETWORKS:
                self._networks.popitem(last=False)
        return self._networks[key]

    def make(self, condition: ConditionSpec, planner: str) -> Made:
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
    ) -> Made:
        evaluator = Evaluator(
            scenario=scenario, network=network, workload=self.workload
        )
        settings = replace(scenario.planner_settings, fixed=scenario.plan)
        starts = () if kept is None else (kept,)
        found = evaluator.find(planner, settings, starts=starts)
        plan = found.plans[0].plan if found.plans else None
        return Made(plan, found.why_not, found.spent.is_stopped)

    def run(self, condition: ConditionSpec, plan: Plan) -> Cell:
        """Price and replay a plan under a condition."""
        changed, network = self.under(condition)
        priced = price_plan(network, self.workload, plan)
        settings = changed.simulation.replay
        if settings.engine == "auto":
            # The same bits; compiling pays over so many replays: 3 times as fast.
            settings = replace(settings, engine="compiled")
        slowdown = device_slowdowns(changed, network.num_devices)
        work = place_work(network, self.workload, priced, settings, slowdown=slowdown)
        done = replay(network, work, settings, memory=False)
        return Cell(
            planned=priced.iteration_time,
            simulated=done.iteration_time,
            causes=causes(priced, done, has_slow=bool((work.slowdown > 1.0).any())),
            stage=busiest_stage(done),
            hottest=hottest(network, done),
        )


def scenario_digest(scenario: Scenario) -> str:
    """Return a hash of everything that plans and replays depend on."""
    content = repr(replace(scenario, path=Path(), text=b""))
    digest = hashlib.sha256(content.encode())
    if isinstance(scenario.network_spec, CustomSpec):
        digest.update(link_file_bytes(scenario.network_spec.path))
    return digest.hexdigest()


_BENCHES: dict[str, Bench] = {}
"""The bench that this process used last, by its scenario's digest: tracing a model
takes longer than many points."""


def bench_of(scenario: Scenario, digest: str) -> Bench:
    """Return this process's bench for a scenario."""
    if digest not in _BENCHES:
        _BENCHES.clear()
        _BENCHES[digest] = Bench.of(scenario)
    return _BENCHES[digest]
