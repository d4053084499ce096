"""Whether a framework can launch a plan: which of its rules the plan breaks.

Everything is read off the plan's own devices, chunks and settings, whoever made it;
what a rule asks for is data of `planner.frameworks.rules`. That a plan is possible
at all (each layer and each device once) is `planner.plans.checks`' and
`planner.cost.pricing`'s.

Letters: ``c`` numbers of blocks of the virtual stages in the order of the chain, ``p``
stages, ``v`` chunks of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.cost.pricing import device_grid
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import ANY_ORDER, SPLIT_CHECKS, WORDS, LaunchRules, Order
from planner.search.device_kinds import DeviceOrder
from planner.search.launchable_sizes import (
    Breaches,
    LaunchFacts,
    LaunchSizes,
    deals_out,
    orders_of,
    shape_breaches,
    size_breaches,
)
from planner.search.placements import Extents, extents_of, whole_dimensions
from planner.search.space import SearchSpec, configuration_of
from planner.step.execution import Workload
from planner.step.ledger import shards_weights
from planner.step.plan import Offload, Plan
from planner.step.recompute import SENDING_AGAIN
from planner.step.schedules import SCHEDULES, grouped_name, schedule_name
from topologies import Network

T = TypeVar("T")

_MOST_LISTED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """One rule of a framework that a plan does not keep."""

    rule: str
    """Name of the rule, one of `planner.frameworks.rules.RULES`."""

    found: str
    """Value that the plan has."""

    expected: str
    """Values that the framework can launch."""

    source: str
    """Where the framework says so."""

    def to_json(self) -> dict[str, str]:
        """Return plain JSON values with stable keys."""
        return {
            "rule": self.rule,
            "found": self.found,
            "expected": self.expected,
            "source": self.source,
        }


def broken_rules(
    plan: Plan, rules: LaunchRules, facts: LaunchFacts
) -> tuple[BrokenRule, ...]:
    """Return the rules that a plan breaks; none if the framework can launch it.

    Parameters
    ----------
    plan
        Must be possible: each layer in one chunk, each device in one stage.
    rules
        Those of the framework.
    facts
        The job and the cluster.
    """
    breaches = (
        breach
        for check in (
            _batch,
            _devices,
            _pipeline,
            _expert_overlap,
            _splits,
            _sizes,
            _savings,
        )
        for breach in check(plan, rules, facts)
    )
    return tuple(
        BrokenRule(rule=rule, found=what, expected=expected, source=rules.source(rule))
        for rule, what, expected in breaches
    )


def _batch(plan: Plan, _: LaunchRules, facts: LaunchFacts) -> Breaches:
    dp = plan.parallel.data_parallel_size
    b, m = plan.micro_batch_size, plan.num_microbatches
    if dp * b * m != facts.global_batch_size:
        yield (
            "global_batch",
            f"{dp} replicas x {m} microbatches of {b} = {dp * b * m:,} sequences",
            f"{facts.global_batch_size:,} sequences, all microbatches full",
        )
        return
    uneven = (size for size in facts.ramp_sizes if size % (dp * b))
    if (size := next(uneven, 0)) > 0:
        yield (
            "global_batch",
            f"{size:,} sequences of training.rampup_batch_size on {dp} replicas",
            f"microbatches of {b} that are all full",
        )


def _devices(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    idle = facts.num_devices - plan.devices_used
    if idle and not facts.idle_devices:
        yield (
            "idle_devices",
            f"{idle:,} of {facts.num_devices:,} devices have no work",
            "none idle, or search.idle_devices = true",
        )
    orders = orders_of(rules, configuration_of(plan))
    if not any(
        rank_order(plan, orders, devices) is not None for devices in facts.orders
    ):
        yield "rank_order", _order_text(plan), _listed_orders(plan, orders)


def _order_text(plan: Plan) -> str:
    order = rank_order(plan)
    if order is not None:
        return f"ranks in the order {'-'.join(order)}"
    return f'placement "{plan.placement}", which no order of whole dimensions gives'


def _listed_orders(plan: Plan, orders: Sequence[Order]) -> str:
    """List the orders, without the dimensions that the plan does not have."""
    sizes = plan_extents(plan)._asdict()
    names = {
        "-".join(name for name in order if sizes[name] > 1 or name == "tp"): None
        for order in orders
    }
    return f"one of {', '.join(names)}" if len(names) > 1 else next(iter(names))


def plan_extents(plan: Plan) -> Extents:
    """Return the sizes of a plan's dimensions, ``dp`` without the spread of experts."""
    return extents_of(configuration_of(plan))


def rank_order(
    plan: Plan,
    orders: Sequence[Order] = ANY_ORDER,
    devices: DeviceOrder | None = None,
) -> Order | None:
    """Return the first of some orders that a plan's devices follow, None if none is.

    Where sizes of 1 leave several, `ANY_ORDER` begins with Megatron's default.

    Parameters
    ----------
    plan
        The plan.
    orders
        Orders of its ranks.
    devices
        Order in which devices are listed, None for that of their numbers.
    """
    extents = plan_extents(plan)
    grid = device_grid(plan)
    for order in orders:
        placement = whole_dimensions(order, extents).ordered(devices)
        if np.array_equal(grid, placement.grid):
            return order
    return None


def _pipeline(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    pp, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    if pp == 1 or not rules.pipeline:
        return
    family, group = plan.schedule_family, plan.microbatch_group_size_per_vp_stage
    is_combined = family == schedule_name(v, pairs=True)
    known = schedule_name(v) if is_combined else family
    if known not in rules.schedules:
        yield "schedule", plan.schedule, f"one of {', '.join(rules.schedules)}"
    known = grouped_name(known, group)
    sizes = (facts.global_batch_size, *facts.ramp_sizes)
    for size in sizes if known in SCHEDULES else ():
        m = -(-plan.num_microbatches * size // facts.global_batch_size)
        if expected := deals_out(rules, known, pp, m, v):
            dealt = f"{m} microbatches on {pp} stages of {v} chunks"
            yield "microbatches", dealt, expected
            return


def _expert_overlap(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    if not plan.overlap_moe_expert_parallel_comm:
        return
    pp, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    predictions = facts.mtp_num_layers
    if not rules.overlap_expert_parallel:
        yield "expert_overlap", "all-to-alls beside another microbatch", "none"
    elif plan.parallel.expert_model_parallel_size == 1:
        yield "expert_overlap", "experts on 1 rank", "2 ranks or more"
    elif pp > 1 and v == 1:
        yield "expert_overlap", f"{pp} stages of one chunk each", "1 stage, or chunks"
    elif _sending_again(plan) & {stage.recompute for stage in plan.stages}:
        yield "expert_overlap", "passes that send their tokens again", "none"
    elif any(stage.recompute_num_layers is not None for stage in plan.stages):
        yield "expert_overlap", "recompute of some blocks", "of all or of none"
    elif not rules.overlaps_predictions(predictions, pp):
        layers = f"{predictions} layers of multi-token prediction on {pp} stages"
        alone = "" if rules.overlap_predictions_alone else ", none on 1 stage"
        expected = f"{rules.overlap_most_predictions} at most{alone}"
        yield "expert_overlap", layers, expected


def _sending_again(plan: Plan) -> frozenset[str]:
    """Return the recompute modes of a plan that send tokens to experts again."""
    again = {"selective"} if "moe" in plan.recompute_modules else set()
    return SENDING_AGAIN | again


def block_counts(plan: Plan, is_block: Sequence[bool]) -> tuple[int, ...]:
    """Return how many blocks each virtual stage holds, in the order of the chain."""
    before = np.cumsum([0, *is_block])
    chunks = sorted(chunk for stage in plan.stages for chunk in stage.chunks)
    return tuple(int(before[last + 1] - before[first]) for first, last in chunks)


def _splits(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    counts, pp = block_counts(plan, facts.is_block), len(plan.stages)
    least = 0 if rules.empty_ends else 1
    expected = " or ".join(WORDS["splits"][kind] for kind in rules.splits)
    held = f"{_shorten_list(counts)} blocks on the virtual stages"
    ends = (counts[0], counts[-1])
    if min(ends) < least or min(counts[1:-1], default=1) < 1:
        yield "split", held, "at least one block in each"
    elif not any(SPLIT_CHECKS[kind](counts, pp) for kind in rules.splits):
        yield "split", held, expected
    elif not ends_together(plan, facts.is_block):
        yield (
            "split",
            "an end of the chain apart from the end of the pipeline",
            "the embedding on the first virtual stage, norm and head on the last",
        )


def ends_together(plan: Plan, is_block: Sequence[bool]) -> bool:
    """Tell whether all before the first block, and all after the last, are together."""
    blocks = [layer for layer, block in enumerate(is_block) if block]
    chunks = sorted(chunk for stage in plan.stages for chunk in stage.chunks)
    first, last = chunks[0], chunks[-1]
    return first[1] >= blocks[0] - 1 and last[0] <= blocks[-1] + 1


def _shorten_list(counts: Sequence[int]) -> str:
    some = ", ".join(str(count) for count in counts[:_MOST_LISTED])
    return f"{some}, .." if len(counts) > _MOST_LISTED else some


def _sizes(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    sizes = launch_sizes(plan)
    yield from size_breaches(sizes, rules, facts)
    yield from shape_breaches(sizes, rules, facts)


def launch_sizes(plan: Plan) -> LaunchSizes:
    """Return the sizes that rules ask about."""
    tp, cp, ep, dp, pp = plan.parallel.sizes()
    return LaunchSizes(
        tp, cp, ep, plan.parallel.grouping, plan.parallel.sequence_parallel, pp, dp
    )


def _savings(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    sizes = launch_sizes(plan)
    whole, has_experts = sizes.dp * sizes.cp, facts.num_moe_experts > 0
    can = rules.zero_stages_of(sizes.by_name, has_experts=has_experts)
    hybrid = rules.hybrid_sharding_of(has_experts=has_experts)
    modes = _distinct(stage.recompute for stage in plan.stages)
    zeros = _distinct(stage.zero_stage for stage in plan.stages)
    groups = _distinct(stage.sharding_group_size for stage in plan.stages)
    yield from _saving("recompute", modes, rules.recompute, rules)
    if more := {*plan.recompute_modules} - {*rules.recompute_modules}:
        modules = _join_values(rules.recompute_modules) or "what it is of by itself"
        yield "recompute", f"selective of {_join_values(sorted(more))}", modules
    yield from _counted(plan, rules, facts)
    yield from _second_copies(plan, rules, whole)
    yield from _resharding(plan, rules)
    yield from _offloaded(plan, rules, sum(facts.is_block))
    if whole > 1 or any(zeros):  # one replica has nothing to share
        yield from _saving("zero_stage", zeros, can, rules)
    parts = [
        (stage.zero_stage, stage.sharding_group_size)
        for stage in plan.stages
        if stage.zero_stage and stage.sharding_group_size != whole
    ]
    if len(groups) > 1 and len(zeros) == 1 and rules.same_savings:
        yield (
            "sharding_group",
            f"{_join_values(groups)} ranks",
            "one size for all stages",
        )
    elif not all(rules.shards_over(size, sizes.by_name) for _, size in parts):
        unit = rules.shared_as_one(sizes.by_name)
        sharers = f"groups of {_join_values(groups)} ranks"
        several = " and more than these" if rules.shards_several_replicas else ""
        expected = f"a multiple of the {unit} of {' x '.join(rules.shards_fill)}"
        yield "sharding_group", sharers, f"{expected}{several}"
    elif any(zero not in hybrid for zero, _ in parts):
        zero, group = next(part for part in parts if part[0] not in hybrid)
        yield (
            "sharding_group",
            f"ZeRO-{zero} over {group} of {whole} ranks",
            f"all {whole} ranks",
        )


def _second_copies(plan: Plan, rules: LaunchRules, whole: int) -> Breaches:
    """Compare who shares second copies of weights to what the framework has."""
    sharded = [stage for stage in plan.stages if shards_weights(stage.zero_stage)]
    sizes = _distinct(stage.zero_hpz_partition_size for stage in sharded)
    if not plan.has_second_copies:
        return
    copies = f"second copies of weights over {_join_values(sizes)} ranks"
    if not rules.second_copies:
        yield "sharding_group", copies, "no second copy (zero_hpz_partition_size = 1)"
    elif len(sizes) > 1 and rules.same_savings:
        yield "sharding_group", copies, "one size for all stages"
    elif rules.second_copies_alone and plan.parallel.sizes().tp > 1:
        yield "sharding_group", copies, "none beside tensor parallelism"
    elif rules.second_copies_alone and any(
        stage.sharding_group_size != whole for stage in sharded
    ):
        yield "sharding_group", copies, f"shards over all {whole} ranks beside them"


def _resharding(plan: Plan, rules: LaunchRules) -> Breaches:
    """Compare who shares weights between the passes to what the framework has."""
    sharded = [stage for stage in plan.stages if shards_weights(stage.zero_stage)]
    sizes = _distinct(stage.reshard_after_forward or 0 for stage in sharded)
    if not any(sizes):
        return
    kept = f"weights sharded again over {_join_values(sizes)} ranks"
    if not rules.reshards_in_groups:
        yield "sharding_group", kept, "over all ranks that share shards"
    elif len(sizes) > 1 and rules.same_savings:
        yield "sharding_group", kept, "one size for all stages"
    elif plan.parallel.sizes().tp > 1:
        yield "sharding_group", kept, "none beside tensor parallelism"


def _counted(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    """Compare the numbers of recomputed blocks to what the framework has."""
    counts = _distinct(stage.recompute_num_layers for stage in plan.stages)
    modes = {
        stage.recompute
        for stage in plan.stages
        if stage.recompute_num_layers is not None
    }
    most = max(block_counts(plan, facts.is_block))
    is_whole = all(count is not None and count >= most for count in counts)
    if is_whole or _is_every(plan, rules, facts):
        return
    if modes - {*rules.counted_modes(len(plan.stages))}:
        words = " and ".join(sorted(modes))
        yield "recompute", f"some blocks of a chunk, {words}", "all blocks or none"
    elif len(counts) > 1 and rules.same_savings:
        listed = _join_values(["all" if count is None else count for count in counts])
        yield "recompute", f"{listed} blocks on different stages", "one for all stages"


def _is_every(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> bool:
    """Tell whether the recomputed blocks are every ``n``-th one of each stage.

    They are counted over all chunks of a stage, which are alike if ``n`` divides them.
    """
    held = block_counts(plan, facts.is_block)
    several = plan.virtual_pipeline_model_parallel_size > 1
    if any(stage.recompute not in rules.recompute_every for stage in plan.stages):
        return False
    counts = [stage.recompute_num_layers for stage in plan.stages]
    return any(
        all(
            counts[number % len(counts)] == blocks // every
            and not (several and blocks % every)
            for number, blocks in enumerate(held)
        )
        for every in range(2, max(held) + 1)
    )


def _offloaded(plan: Plan, rules: LaunchRules, num_blocks: int) -> Breaches:
    """Compare what hosts keep to what the framework can leave there."""
    offloads = _distinct(stage.offload for stage in plan.stages)
    can = rules.offload_of(len(plan.stages))
    lacking = [
        name
        for name in Offload._fields
        if name not in can and any(getattr(kept, name) > 0.0 for kept in offloads)
    ]
    if lacking:
        expected = f"{_join_values(can)} at most" if can else "nothing on hosts"
        yield "offload", _join_values(lacking), expected
    elif apart := [kept for kept in offloads if not rules.keeps_together(kept)]:
        kept = [name for name, part in apart[0]._asdict().items() if part > 0.0]
        all_of = f"{_join_values(rules.offload_together)}, whole and together, or none"
        yield "offload", f"{_join_values(kept)} alone, or in part", all_of
    elif not all(
        rules.keeps_beside(stage.offload, stage.recompute, stage.zero_stage)
        for stage in plan.stages
    ):
        modes = _join_values(_distinct(stage.recompute for stage in plan.stages))
        zeros = _join_values(_distinct(stage.zero_stage for stage in plan.stages))
        yield "offload", f"it beside recompute {modes} and ZeRO-{zeros}", _beside(rules)
    elif not all(rules.keeps_blocks(kept, num_blocks) for kept in offloads):
        names = _join_values(rules.offload_by_layers)
        yield "offload", f"a part of {names}", f"k of {num_blocks} blocks, not all"
    elif len(offloads) > 1 and rules.same_savings:
        yield "offload", "other fractions on other stages", "one for all stages"


def _beside(rules: LaunchRules) -> str:
    """Return what goes with what hosts keep only beside it."""
    without = [f"{name} without recompute" for name in rules.offload_unrepeated]
    sharded = [f"{name} with ZeRO-1 or above" for name in rules.offload_sharded]
    return _join_values([*without, *sharded])


def _saving(
    rule: str, values: Sequence[object], known: Sequence[object], rules: LaunchRules
) -> Breaches:
    """Compare what stages save memory with to what the framework has."""
    if any(value not in known for value in values):
        yield rule, _join_values(values), f"one of {_join_values(known)}"
    elif len(values) > 1 and rules.same_savings:
        yield rule, f"{_join_values(values)} on different stages", "one for all stages"


def _distinct(values: Iterator[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _join_values(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


def is_launchable(
    network: Network, workload: Workload, spec: SearchSpec, plan: Plan
) -> bool:
    """Tell whether a plan keeps the rules of the framework, where they hold."""
    if not spec.launchable:
        return True
    facts = LaunchFacts.of(workload, network, idle_devices=spec.idle_devices)
    return not broken_rules(plan, rules_of(spec), facts)


def rules_of(spec: SearchSpec) -> LaunchRules:
    """Return the rules of the framework that launches plans."""
    return spec.rules or FRAMEWORKS["ideal"].rules
