"""Second copies of sharded weights, proposed for plans that were replayed.

With ZeRO-3 every pass gathers weights among all ranks that share shards. Where ranks
next to each other hold a second copy of them, passes gather among these: all but the
first forward pass of a step (DeepSpeed's hpZ), or the backward passes (FSDP2,
``reshard_after_forward = n``). It costs memory, and saves what goes over slow links.

Such copies are not listed: each plan with ZeRO-3 would be some plans more. They are
tried with plans whose replays are among the fastest. The replay decides; no bound comes
of this.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan, rates_of
from planner.search.replayed.candidates import LaunchableCandidates
from planner.step.ledger import shards_weights
from planner.step.plan import Plan
from planner.work import PLAN


@dataclass(slots=True, kw_only=True, eq=False)
class SecondCopies:
    """Proposes second copies of weights, for each plan once."""

    candidates: LaunchableCandidates
    """The space whose plans these begin from."""

    _seen: set[Plan] = field(default_factory=set)
    """Plans that proposals were made of."""

    def proposed(self, priced: PricedPlan, limit: float) -> Iterator[PricedPlan]:
        """Yield a plan with copies of each size that may take less than a limit [s].

        None if the framework has no such copies, the plan has nothing to copy or copies
        already, or was asked about before.
        """
        plan, candidates = priced.plan, self.candidates
        rules = candidates.rules
        has_copies = rules.reshards_in_groups or rules.second_copies
        if not has_copies or not candidates.spec.proposals or plan in self._seen:
            return
        self._seen.add(plan)
        if not all(
            shards_weights(stage.zero_stage) and stage.nearby_size == 1
            for stage in plan.stages
        ):
            return
        rates = rates_of(candidates.network, candidates.workload, plan)
        group = min(stage.sharding_group_size for stage in plan.stages)
        sizes = {option.group_size for option in rates.shardings}
        for size in sorted(part for part in sizes if part < group and not group % part):
            for other in _with_copies(plan, size):
                if not candidates.is_launchable(other):
                    continue
                candidates.work.spend(PLAN)
                known = price_plan(candidates.network, candidates.workload, other)
                if known.iteration_time < limit and candidates.has_room(known):
                    yield known


def _with_copies(plan: Plan, size: int) -> Iterator[Plan]:
    """Yield a plan whose copies are shared by a number of ranks, in either way."""
    again = [replace(stage, reshard_after_forward=size) for stage in plan.stages]
    kept = [replace(stage, zero_hpz_partition_size=size) for stage in plan.stages]
    for stages in (again, kept):
        yield replace(plan, stages=tuple(stages))
