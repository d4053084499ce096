"""Other plans of a job than the search's answer, chosen by other means.

Manual's, those of the search by closed form, plans one change away from the answer, and
random ones, likelier where bounds are small, and these with second copies of sharded
weights, where the framework has such. All can be launched and fit.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.cost.pricing import price_plan
from planner.frameworks.framework import FRAMEWORKS
from planner.rivals.manual import manual_plans
from planner.rivals.protocol import fits
from planner.search.best_first import search
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.search.replayed.candidates import LaunchableCandidates, Leaves
from planner.search.replayed.listing import Leaf
from planner.search.replayed.second_copies import SecondCopies
from planner.search.space import Configuration, SearchSpec, configuration_of
from planner.step.execution import Workload
from planner.step.ledger import shards_weights
from planner.step.plan import Plan
from planner.work import Work
from topologies import Network

MANUAL, PLANNED, NEAR, RANDOM = "manual", "planned", "near", "random"
"""Where plans come from."""

PLANNED_WORK = 1_000_000
"""Units of work of the search by closed form."""

MOST_PASSES = 400_000
"""Passes of a plan's stages and replicas: beyond them a replay takes too long."""

Key = tuple[object, ...]


class Alternative(NamedTuple):
    """A plan to compare with."""

    plan: Plan
    source: str
    bound: float
    """What the search would bound it by; NaN if it is not of its space [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """The plans of a job, as sources of others."""

    network: Network
    workload: Workload
    spec: SearchSpec
    candidates: LaunchableCandidates

    @classmethod
    def of(
        cls, network: Network, workload: Workload, spec: SearchSpec, *, by_layer: bool
    ) -> "Alternatives":
        """List the space of a job, with no limit of work."""
        candidates = LaunchableCandidates.enumerate(
            network, workload, spec, by_layer=by_layer, work=Work()
        )
        return cls(network=network, workload=workload, spec=spec, candidates=candidates)

    def proposed(self) -> Iterator[Alternative]:
        """Yield what other planners find, if it can be launched."""
        for plan in manual_plans(self.network, self.workload, self.spec, Work()):
            if self._is_launchable(plan):
                yield Alternative(plan, MANUAL, self.bound(plan))
        spec = replace(self.spec, keep_best=40, work_limit=PLANNED_WORK)
        for priced in search(self.network, self.workload, spec).plans:
            if self._is_launchable(priced.plan):
                yield Alternative(priced.plan, PLANNED, self.bound(priced.plan))

    def drawn(self, answer: Plan | None, seed: int) -> Iterator[Alternative]:
        """Yield plans near the answer and random ones, in turn, without repetition."""
        rng = random.Random(seed)
        near = self._near(answer, rng) if answer is not None else iter(())
        seen: set[Key] = set()
        fails = 0
        while fails < 200:
            found = next(near, None)
            some = [] if found is None else [found]
            some += self._random(rng)
            some += [copied for one in some for copied in self._copied(one)]
            new = [one for one in some if plan_key(one.plan) not in seen]
            seen |= {plan_key(one.plan) for one in new}
            fails = 0 if new else fails + 1
            yield from new

    def bound(self, plan: Plan) -> float:
        """Return what the search bounds a plan by, NaN if it is not of the space."""
        found = self._find(plan)
        return float("nan") if found is None else found[1]

    def _find(self, plan: Plan) -> tuple[Leaf, float] | None:
        """Return the leaf of the space that a plan is."""
        configuration = configuration_of(plan)
        candidates, wanted = self.candidates, plan_key(plan)
        if not any(
            configuration == family.configuration(index)
            for family in candidates.families
            if _is_of(configuration, family.configuration(0))
            for index in range(len(family.pp))
        ):
            return None
        cuts = tuple(
            stage.chunks[c][0] for c in range(configuration.v) for stage in plan.stages
        )
        for leaves in self._leaves(configuration):
            for index, (choice, layout, _) in enumerate(leaves.numbers.tolist()):
                if tuple(leaves.layouts[layout].tolist())[:-1] != cuts:
                    continue
                if leaves.choices[choice].recompute != plan.stages[0].recompute:
                    continue
                leaf = leaves.leaf(index)
                if plan_key(candidates.plan(leaf)) == wanted:
                    return leaf, float(leaves.bounds[index])
        return None

    def _leaves(self, configuration: Configuration) -> list[Leaves]:
        found = self.candidates.leaves(configuration, np.inf)
        return [leaves for leaves in found if len(leaves.bounds)]

    def _is_launchable(self, plan: Plan) -> bool:
        rules = self.spec.rules or FRAMEWORKS["ideal"].rules
        idle = self.spec.idle_devices
        facts = LaunchFacts.of(self.workload, self.network, idle_devices=idle)
        is_small = fits(self.workload, self.spec, plan, self.network.host)
        return is_small and not broken_rules(plan, rules, facts)

    def _is_short(self, configuration: Configuration) -> bool:
        m = self.workload.num_microbatches(configuration.b, configuration.dp)
        passes = 2 * m * configuration.pp * configuration.v
        return passes * configuration.dp <= MOST_PASSES

    def _near(self, answer: Plan, rng: random.Random) -> Iterator[Alternative]:
        """Yield the best and another plan of configurations near the answer's."""
        mine = configuration_of(answer)
        for leaves in self._leaves(mine):
            first = range(min(12, len(leaves.bounds)))
            others = rng.sample(range(len(leaves.bounds)), min(12, len(leaves.bounds)))
            for index in [*first, *others]:
                yield self._alternative(leaves, index, NEAR)
        near = sorted(
            (sum(a != b for a, b in zip(mine, other, strict=True)), rng.random(), other)
            for other in self._configurations()
            if other != mine and self._is_short(other)
        )
        for changes, _, other in near:
            if changes > 3:
                return
            for leaves in self._leaves(other):
                yield self._alternative(leaves, 0, NEAR)
                index = rng.randrange(len(leaves.bounds))
                yield self._alternative(leaves, index, NEAR)

    def _configurations(self) -> Iterator[Configuration]:
        for family in self.candidates.families:
            for index in range(len(family.pp)):
                yield family.configuration(index)

    def _random(self, rng: random.Random) -> list[Alternative]:
        """Draw a plan, likelier of a configuration with a small bound."""
        candidates = self.candidates
        if not len(candidates):
            return []
        every = map(candidates.first_bounds, range(len(candidates.families)))
        order = np.argsort(np.concatenate(list(every)), kind="stable")
        place = int(len(order) * rng.random() ** rng.choice((1, 2, 4)))
        configuration = candidates[int(order[place])]
        if not self._is_short(configuration):
            return []
        leaves = self._leaves(configuration)
        if not leaves:
            return []
        one = rng.choice(leaves)
        index = rng.choice((0, rng.randrange(len(one.bounds))))
        return [self._alternative(one, index, RANDOM)]

    def _copied(self, other: Alternative) -> list[Alternative]:
        """Return a plan with second copies of weights; bounds are not of these."""
        if not shards_weights(other.plan.stages[0].zero_stage):
            return []
        priced = price_plan(self.network, self.workload, other.plan)
        copies = SecondCopies(candidates=self.candidates).proposed(priced, np.inf)
        return [Alternative(copy.plan, other.source, np.nan) for copy in copies]

    def _alternative(self, leaves: Leaves, index: int, source: str) -> Alternative:
        plan = self.candidates.plan(leaves.leaf(index))
        return Alternative(plan, source, float(leaves.bounds[index]))


def plan_key(plan: Plan) -> Key:
    """Return what is the same of equal plans, whatever their placement is called."""
    return (
        configuration_of(plan),
        plan.parallel,
        plan.schedule,
        plan.gradient_algorithm,
        plan.tensor_algorithm,
        plan.stages,
    )


def plan_words(plan: Plan) -> str:
    """Return a plan on one line."""
    tp, cp, ep, dp, pp = plan.parallel.sizes()
    stage = plan.stages[0]
    counts = [
        last + 1 - first
        for chunks in zip(*(each.chunks for each in plan.stages), strict=True)
        for first, last in chunks
    ]
    some = "-".join(str(count) for count in counts[:8])
    return (
        f"tp{tp} cp{cp} ep{ep} dp{dp} pp{pp} v{len(stage.chunks)} "
        f"b{plan.micro_batch_size} m{plan.num_microbatches} {plan.schedule} "
        f"{stage.recompute} zero{stage.zero_stage}/{stage.sharding_group_size} "
        f"layers {some}{'-..' if len(counts) > 8 else ''} on {plan.placement}"
    )


def _is_of(configuration: Configuration, other: Configuration) -> bool:
    """Tell whether both are of one family."""
    return configuration[:4] == other[:4]
