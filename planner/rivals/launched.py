"""What planners make of their plans where the framework's rules hold for all of them.

A planner that knows of no framework shares out layers one by one, or chooses for each
stage. Where the space keeps to what the framework can launch, its plan is written out
as a user of the framework would: the same sizes, the nearest split that the framework
has, one recompute mode, one ZeRO stage and one offload for all stages, ranks in an
order that it has. The lightest of these that fits is taken. What its own plan would
have reached is kept, as the price of that.

The rules are those of `planner.search.launchable`, the splits those that the search
for the fastest replay looks at (`planner.search.replayed.space`).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import TypeVar

import numpy as np

from estimators.training import Sizes
from planner.frameworks.rules import LaunchRules
from planner.plans.build import with_algorithms
from planner.rivals.protocol import (
    PlannerOutcome,
    fits,
    priced_best_first,
    too_little_memory,
)
from planner.search.candidates import CandidateSet
from planner.search.launchable import (
    BrokenRule,
    block_counts,
    broken_rules,
    plan_extents,
    rank_order,
)
from planner.search.launchable_sizes import LaunchFacts, orders_of
from planner.search.placements import whole_dimensions
from planner.search.replayed.layouts import layouts
from planner.search.replayed.space import LaunchableSpace
from planner.search.space import Configuration, Inner, SearchSpec, configuration_of
from planner.step.execution import Workload
from planner.step.plan import NO_OFFLOAD, Offload, Plan, Stage
from planner.step.schedules import SCHEDULES
from planner.work import Progress, Work
from topologies import Network

T = TypeVar("T")

MOST_TRIED = 64
"""Most plans of a planner whose true memory is looked at."""

_NEAREST = 4
"""Splits that are looked at, nearest first."""

_LIGHTEST = ("none", "selective", "full", "stage")
"""Recompute modes, by what they repeat."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launcher:
    """Holds the plans of one planner to a space's memory, and to its framework."""

    network: Network
    """Network that plans are placed on."""
    workload: Workload
    """Model, job and device."""
    spec: SearchSpec
    """Space that plans are taken from."""
    space: LaunchableSpace | None
    """What the framework can launch; None where plans are free."""
    facts: LaunchFacts
    """What its rules ask of the job."""
    refused: list[Plan] = field(default_factory=list)
    """The first of the planner's own plans that fits and cannot be launched."""

    @classmethod
    def of(cls, network: Network, workload: Workload, spec: SearchSpec) -> "Launcher":
        """Return what holds the plans of a space."""
        space = None
        if spec.keeps_rules:
            assert spec.rules is not None
            space = LaunchableSpace(
                workload=workload,
                spec=spec,
                rules=spec.rules,
                num_devices=network.num_devices,
            )
        facts = LaunchFacts.of(workload, network, idle_devices=spec.idle_devices)
        return cls(
            network=network, workload=workload, spec=spec, space=space, facts=facts
        )

    def breaches(self, plan: Plan) -> tuple[BrokenRule, ...]:
        """Return the rules that plans are held to and that a plan breaks."""
        if self.space is None:
            return ()
        return broken_rules(plan, self.space.rules, self.facts)

    def fits(self, plan: Plan) -> bool:
        """Tell whether a plan fits in memory."""
        return fits(self.workload, self.spec, plan, self.network.host)

    def takes(self, plan: Plan) -> bool:
        """Tell whether a plan fits and keeps the rules that hold."""
        if not self.fits(plan):
            return False
        if self.breaches(plan):
            self._refuse(plan)
            return False
        return True

    def launched(self, plan: Plan) -> Plan | None:
        """Return a plan as it is launched; None if nothing like it fits.

        The plan itself where it keeps the rules, or none hold.
        """
        if self.takes(plan):
            return plan
        if self.space is None or not self.fits(plan):
            return None
        for written in self._written(self.space, plan):
            if self.fits(written) and not self.breaches(written):
                return self.with_cheapest_algorithms(written)
        return None

    def with_cheapest_algorithms(self, plan: Plan) -> Plan:
        """Return a plan whose collectives take the algorithms that are cheapest."""
        auto = replace(plan, gradient_algorithm="auto", tensor_algorithm="auto")
        return with_algorithms(self.network, self.workload, auto)

    def candidates(
        self, work: Work | None = None, progress: Progress | None = None
    ) -> CandidateSet:
        """Return those configurations of the space that the framework can launch.

        Parameters are those of `CandidateSet.enumerate`.
        """
        return CandidateSet.enumerate(
            self.network,
            self.workload,
            self.spec,
            work=work,
            kept=self._launchable_sizes,
            progress=progress,
        )

    def first_launched(
        self, proposed: Iterable[tuple[T, Plan]]
    ) -> tuple[tuple[T, Plan] | None, str]:
        """Return the first plan that fits, as it is launched, or why none does.

        Parameters
        ----------
        proposed
            What a planner believes of each plan, and the plan, best first; no more
            than `MOST_TRIED` are asked for.

        Returns
        -------
        tuple
            What it believes of the plan, and the plan; and why there is none, empty
            where nothing was proposed.
        """
        first, number = None, 0
        for belief, plan in islice(proposed, MOST_TRIED):
            launched = self.launched(plan)
            if launched is not None:
                return (belief, launched), ""
            first, number = first or plan, number + 1
        if first is None:
            return None, ""
        if self.refused:
            return None, self.why_not(number)
        short = too_little_memory(self.network, self.workload, self.spec, first)
        return None, (
            "Memory: plans that fit by its own account do not fit in truth. "
            f"Its best one: {short}"
        )

    def outcome(
        self,
        work: Work,
        proposed: tuple[float, Plan] | None,
        why_not: str,
        *,
        evaluations: int,
        notes: tuple[str, ...] = (),
    ) -> PlannerOutcome:
        """Return what a planner of one plan has found.

        Parameters
        ----------
        work
            What the search spent.
        proposed
            Time of a step by its own model [s], and the plan as it is launched; None if
            there is none.
        why_not
            Why there is none.
        evaluations, notes
            As of `PlannerOutcome`.
        """
        plans = () if proposed is None else (proposed[1],)
        return PlannerOutcome(
            plans=priced_best_first(self.network, self.workload, plans),
            belief=math.nan if proposed is None else proposed[0],
            spent=work.total(),
            evaluations=evaluations,
            why_not="" if plans else why_not,
            notes=(*(note for plan in plans for note in self.notes(plan)), *notes),
            refused=tuple(self.refused),
        )

    def notes(self, proposed: Plan) -> tuple[str, ...]:
        """Say which rules the planner's own first plan breaks, if it breaks any."""
        if self.space is None or not self.refused:
            return ()
        first = self.refused[0]
        broken = "; ".join(
            f"{breach.rule} ({breach.found})" for breach in self.breaches(first)
        )
        alike = configuration_of(first) == configuration_of(proposed)
        instead = (
            "the plan is of the same sizes" if alike else "the plan is another one"
        )
        framework = self.space.rules.framework
        return (
            f"its own plan breaks rules of {framework}: {broken}; {instead}, and keeps "
            "them.",
        )

    def why_not(self, number: int) -> str:
        """Say that none of so many plans fits and can be launched."""
        assert self.space is not None
        broken = ", ".join(breach.rule for breach in self.breaches(self.refused[0]))
        return (
            f"Rules of {self.space.rules.framework}: none of {number} plans fits and "
            f"can be launched; the first that fits breaks {broken}."
        )

    def zero_stages(
        self, pp: int, sizes: Configuration | Sizes | None = None
    ) -> tuple[int, ...]:
        """Return the ZeRO stages that plans of some sizes may have, rising."""
        within = [] if self.space is None else self.space.zero_stages(pp, sizes)
        return tuple(within) or tuple(sorted(self.spec.zero_stages))

    def _launchable_sizes(self, inner: tuple[Inner, ...]) -> tuple[Inner, ...]:
        """Return those configurations that the framework can launch; all if free."""
        if self.space is None:
            return inner
        known: dict[Configuration, set[tuple[int, int]]] = {}
        families, _ = self.space.families({item.degrees for item in inner})
        for family in families:
            for index in np.flatnonzero(family.pairs == 0).tolist():
                configuration = family.configuration(index)
                shape = configuration._replace(pp=0, dp=0)
                known.setdefault(shape, set()).add((configuration.pp, configuration.dp))
        launchable = []
        for item in inner:
            shape = item.configuration(0)._replace(pp=0, dp=0)
            allowed = known.get(shape, set())
            kept = np.array(
                [
                    pair in allowed
                    for pair in zip(item.pp.tolist(), item.dp.tolist(), strict=True)
                ],
                dtype=np.bool_,
            )
            if kept.any():
                launchable.append(item._replace(pp=item.pp[kept], dp=item.dp[kept]))
        return tuple(launchable)

    def _refuse(self, plan: Plan) -> None:
        if not self.refused:
            self.refused.append(plan)

    def _written(self, space: LaunchableSpace, plan: Plan) -> Iterator[Plan]:
        """Yield plans of the same sizes that may be launched, best first."""
        sizes = configuration_of(plan)
        plan_counts = np.array(block_counts(plan, self.facts.is_block))
        schedule = plan.schedule
        if sizes.pp > 1:
            schedule = space.rules.usual_schedule(sizes.v) or schedule

        def distance(counts: tuple[int, ...]) -> int:
            return int(np.abs(plan_counts - np.array(counts)).sum())

        nearest = sorted(space.layouts(sizes.pp, sizes.v), key=distance)[:_NEAREST]
        if not nearest:
            return
        blocks = np.flatnonzero(self.facts.is_block)
        before, after = int(blocks[0]), len(self.facts.is_block) - int(blocks[-1]) - 1
        number = SCHEDULES[schedule].virtual_stages(sizes.pp, sizes.v).number.tolist()
        name, devices = self._placed(space.rules, plan)
        for saving, bounds in product(
            self._savings(space, plan),
            layouts(tuple(nearest), before, after).tolist(),
        ):
            stages = (
                replace(
                    saving(stage),
                    chunks=tuple((bounds[k], bounds[k + 1] - 1) for k in held),
                    devices=rows,
                )
                for stage, held, rows in zip(plan.stages, number, devices, strict=True)
            )
            yield replace(plan, stages=tuple(stages), schedule=schedule, placement=name)

    def _placed(
        self, rules: LaunchRules, plan: Plan
    ) -> tuple[str, tuple[tuple[tuple[int, ...], ...], ...]]:
        """Return a plan's devices, or those in the framework's first order."""
        listed, orders = self.facts.orders, orders_of(rules, configuration_of(plan))
        if any(rank_order(plan, orders, nodes) is not None for nodes in listed):
            return plan.placement, tuple(stage.devices for stage in plan.stages)
        placement = whole_dimensions(orders[0], plan_extents(plan))
        placement = placement.ordered(listed[0])
        return placement.name, placement.rows

    def _savings(
        self, space: LaunchableSpace, plan: Plan
    ) -> list[Callable[[Stage], Stage]]:
        """Return what makes stages save memory alike, lightest first.

        Each of the plan's own modes for all stages; ZeRO as the plan has it least, or
        the least that the framework has.
        """
        if not space.rules.same_savings:
            return [lambda stage: stage]
        pp, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
        modes = space.recompute_modes(v)
        used = {stage.recompute for stage in plan.stages}
        tried = [mode for mode in _LIGHTEST if mode in used and mode in modes] or modes
        counts = {
            stage.recompute_num_layers
            for stage in plan.stages
            if stage.recompute_num_layers
        }
        again: list[tuple[str, int | None]] = [(mode, None) for mode in tried]
        if counts and "full" in {*space.rules.counted_modes(pp)} & {*modes}:
            again.insert(-1, ("full", max(counts)))
        can = space.zero_stages(pp, configuration_of(plan))
        zeros = sorted({stage.zero_stage for stage in plan.stages} & {*can}) or can[:1]
        keeps = [
            *(kept for kept in {s.offload for s in plan.stages} if kept != NO_OFFLOAD),
            NO_OFFLOAD,
        ]
        keeps = [kept for kept in keeps if kept in space.offloads(pp)]
        whole = plan.parallel.data_parallel_size * plan.parallel.context_parallel_size

        def saving(
            mode: str, count: int | None, zero: int, keep: Offload
        ) -> Callable[[Stage], Stage]:
            return lambda stage: replace(
                stage,
                recompute=mode,
                recompute_num_layers=count,
                zero_stage=zero,
                sharding_group_size=whole if zero else 1,
                offload=keep,
            )

        return [
            saving(mode, count, zero, keep)
            for (mode, count), zero, keep in product(again, zeros, keeps)
        ]
