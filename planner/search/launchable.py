"""Whether a framework can launch a plan: which of its rules the plan breaks.

Everything is read off the plan's own devices, chunks and settings, whoever made it;
what a rule asks for is data of `planner.frameworks.rules`. That a plan is possible
at all (each layer and each device once) is `planner.plans.checks`' and
`planner.cost.pricing`'s.

Letters: ``c`` numbers of blocks of the virtual stages in the order of the chain, ``p``
stages, ``v`` chunks of each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from planner.cost.pricing import device_grid
from planner.frameworks.rules import (
    ACCOUNTED,
    ALWAYS,
    ANY_ORDER,
    BALANCED,
    ENDS,
    EVEN,
    LAYOUT,
    ROUNDS,
    LaunchRules,
    Order,
)
from planner.search.device_kinds import DeviceOrder, device_orders
from planner.search.placements import Extents, extents_of, whole_dimensions
from planner.search.space import configuration_of
from planner.step.execution import Workload
from planner.step.plan import Offload, Plan
from planner.step.recompute import SENDING_AGAIN
from planner.step.schedules import SCHEDULES, schedule_name
from topologies import Network

T = TypeVar("T")

Breaches = Iterator[tuple[str, str, str]]
"""Rule, what was found, what is expected."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """What rules ask of the job and of the cluster."""

    is_block: tuple[bool, ...]
    """Whether each layer of the chain is a transformer block."""

    num_attention_heads: int
    """Attention heads of each block."""

    num_query_groups: int
    """Groups of heads that share keys and values."""

    num_moe_experts: int
    """Experts of each mixture-of-experts layer; 0 without any."""

    global_batch_size: int
    """Sequences per optimizer step."""

    num_devices: int
    """Devices of the cluster."""

    idle_devices: bool = False
    """Whether devices without work are asked for."""

    experts_within_data: bool = False
    """Whether the framework spreads experts over data-parallel ranks alone."""

    orders: tuple[DeviceOrder | None, ...] = (None,)
    """Orders in which nodes may be listed, None for that of their numbers."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        num_devices: int,
        *,
        idle_devices: bool = False,
        network: Network | None = None,
    ) -> "LaunchFacts":
        """Return the facts of a workload on a cluster.

        With a network nodes may be listed by how fast they are, where that differs.
        """
        spec = workload.graph.spec
        orders: tuple[DeviceOrder | None, ...] = (None,)
        if network is not None:
            orders = device_orders(network, workload, 1)
        return cls(
            is_block=tuple(name.startswith("block") for name in workload.graph.names),
            num_attention_heads=spec.num_attention_heads,
            num_query_groups=spec.num_query_groups,
            num_moe_experts=spec.num_moe_experts,
            experts_within_data=workload.software.experts_within_data,
            global_batch_size=workload.training.global_batch_size,
            num_devices=num_devices,
            idle_devices=idle_devices,
            orders=orders,
        )


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
    found = (
        breach
        for check in (
            _batch,
            _devices,
            _pipeline,
            _expert_overlap,
            _splits,
            _degrees,
            _savings,
        )
        for breach in check(plan, rules, facts)
    )
    return tuple(
        BrokenRule(rule=rule, found=what, expected=expected, source=rules.source(rule))
        for rule, what, expected in found
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


def _devices(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    idle = facts.num_devices - plan.devices_used
    if idle and not facts.idle_devices:
        yield (
            "idle_devices",
            f"{idle:,} of {facts.num_devices:,} devices have no work",
            "none idle, or search.idle_devices = true",
        )
    if not any(
        rank_order(plan, rules.orders, devices) is not None for devices in facts.orders
    ):
        yield "rank_order", _order_text(plan), _listed_orders(plan, rules.orders)


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


def _pipeline(plan: Plan, rules: LaunchRules, _: LaunchFacts) -> Breaches:
    pp, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    if pp == 1:
        return
    if not rules.pipeline:
        yield "pipeline", f"{pp} stages", "1 stage"
        return
    is_combined = plan.schedule == schedule_name(v, pairs=True)
    known = schedule_name(v) if is_combined else plan.schedule
    if known not in rules.schedules:
        yield "schedule", plan.schedule, f"one of {', '.join(rules.schedules)}"
    m = plan.num_microbatches
    deals = v > 1 and SCHEDULES[plan.schedule].deals_rounds
    if (deals or rules.microbatches == ALWAYS) and m % pp:
        yield (
            "microbatches",
            f"{m} microbatches on {pp} stages of {v} chunks",
            f"a multiple of {pp}",
        )


def _expert_overlap(plan: Plan, rules: LaunchRules, _: LaunchFacts) -> Breaches:
    if not plan.overlap_moe_expert_parallel_comm:
        return
    pp, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    if not rules.overlap_expert_parallel:
        yield "expert_overlap", "all-to-alls beside another microbatch", "none"
    elif plan.parallel.expert_model_parallel_size == 1:
        yield "expert_overlap", "experts on 1 rank", "2 ranks or more"
    elif pp > 1 and v == 1:
        yield "expert_overlap", f"{pp} stages of one chunk each", "1 stage, or chunks"
    elif SENDING_AGAIN & {stage.recompute for stage in plan.stages}:
        yield "expert_overlap", "passes that send their tokens again", "none"


def block_counts(plan: Plan, is_block: Sequence[bool]) -> tuple[int, ...]:
    """Return how many blocks each virtual stage holds, in the order of the chain."""
    before = np.cumsum([0, *is_block])
    chunks = sorted(chunk for stage in plan.stages for chunk in stage.chunks)
    return tuple(int(before[last + 1] - before[first]) for first, last in chunks)


def _splits(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    counts, pp = block_counts(plan, facts.is_block), len(plan.stages)
    least = 0 if rules.empty_ends else 1
    expected = " or ".join(SPLIT_WORDS[kind] for kind in rules.splits)
    found = f"{_shorten_list(counts)} blocks on the virtual stages"
    ends = (counts[0], counts[-1])
    if min(ends) < least or min(counts[1:-1], default=1) < 1:
        yield "split", found, "at least one block in each"
    elif not any(SPLIT_CHECKS[kind](counts, pp) for kind in rules.splits):
        yield "split", found, expected
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


def is_even(counts: Sequence[int], _: int) -> bool:
    """Tell whether all ``c`` are equal."""
    return len(set(counts)) == 1


def has_other_ends(counts: Sequence[int], num_stages: int) -> bool:
    """Tell whether stages between the first and the last are alike, chunks in each."""
    stages = [counts[stage::num_stages] for stage in range(num_stages)]
    return all(is_even(stage, 1) for stage in stages) and len(set(stages[1:-1])) <= 1


def is_accounted(counts: Sequence[int], _: int) -> bool:
    """Tell whether all ``c`` are equal with some of the ends counted."""
    return any(is_even(parts, 1) for parts in _counted_ends(counts))


def is_in_rounds(counts: Sequence[int], num_stages: int) -> bool:
    """Tell whether rounds have equal sums, and ``c`` differ by at most one."""
    starts = range(0, len(counts), num_stages)
    sums = {sum(counts[start : start + num_stages]) for start in starts}
    return len(sums) == 1 and max(counts) - min(counts) <= 1


def is_balanced(counts: Sequence[int], _: int) -> bool:
    """Tell whether ``c`` differ by at most one, with some of the ends counted."""
    return any(max(parts) - min(parts) <= 1 for parts in _counted_ends(counts))


def _counted_ends(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the counts with the embedding, the loss, both or neither as a block."""
    for embedding, loss in product((0, 1), repeat=2):
        parts = list(counts)
        parts[0] += embedding
        parts[-1] += loss
        yield parts


SPLIT_CHECKS = MappingProxyType[str, Callable[[Sequence[int], int], bool]](
    {
        EVEN: is_even,
        ENDS: has_other_ends,
        ACCOUNTED: is_accounted,
        ROUNDS: is_in_rounds,
        BALANCED: is_balanced,
        LAYOUT: lambda *_: True,
    }
)
"""Kind of split -> whether ``c`` and ``p`` are of that kind."""

SPLIT_WORDS = MappingProxyType(
    {
        EVEN: "the same number in each",
        ENDS: "others in the first and the last stage only",
        ACCOUNTED: "the same with embedding and loss counted as blocks",
        ROUNDS: "rounds of chunks with the same number, shared out evenly",
        BALANCED: "numbers that differ by one at most",
        LAYOUT: "any",
    }
)
"""Kind of split -> its name in a sentence."""


def _degrees(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    tp, _, ep, _, _ = plan.parallel.sizes()
    yield from _tensor(tp, rules, facts)
    if plan.parallel.sequence_parallel and tp == 1:
        yield (
            "sequence_parallelism",
            "sequence parallelism with tensor-parallel size 1",
            "a tensor-parallel size above 1, or none",
        )
    yield from _context(plan, rules, facts)
    if ep > 1 and not rules.expert_parallel:
        yield "expert_parallelism", f"experts on {ep} ranks", "1 rank"
    elif plan.parallel.grouping.etp or ep > 1:
        yield from _experts(plan, rules, facts)


def _context(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    tp, cp, *_ = plan.parallel.sizes()
    grouping, kinds = plan.parallel.grouping, rules.context_parallel
    if cp > 1 and grouping.cp_comm_type not in kinds:
        yield (
            "context_parallelism",
            f"{CONTEXT_WORDS[grouping.cp_comm_type]} of {cp} context-parallel ranks",
            " or ".join(CONTEXT_WORDS[kind] for kind in kinds) if kinds else "1 rank",
        )
        return
    ranks, groups = grouping.exchanging(cp), max(facts.num_query_groups // tp, 1)
    copies = rules.copies_exchanged_groups and ranks % groups == 0
    if groups % ranks and not copies:
        yield (
            "context_parallelism",
            f"heads of {groups} query groups exchanged by {ranks} ranks",
            "a divisor of the query groups on a tensor-parallel rank",
        )


CONTEXT_WORDS = MappingProxyType(
    {
        "p2p": "a ring",
        "all_gather": "gathered keys and values",
        "a2a": "exchanged heads (Ulysses)",
        "a2a+p2p": "rings of exchanged heads",
    }
)
"""Kind of context parallelism -> its name in a sentence."""


def _experts(plan: Plan, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    parallel, experts = plan.parallel, facts.num_moe_experts
    ep, etp = parallel.expert_model_parallel_size, parallel.grouping.etp
    counts_anew = not facts.experts_within_data
    if etp and not rules.expert_tensor_parallel:
        yield (
            "expert_parallelism",
            f"each expert on {etp} of {parallel.tensor_model_parallel_size} ranks",
            "all tensor-parallel ranks",
        )
    elif not experts or experts % ep:
        yield "expert_parallelism", f"{experts} experts on {ep} ranks", "a divisor"
    elif (
        not etp
        and parallel.context_parallel_size > 1
        and parallel.grouping.folds != counts_anew
    ):
        ways = "data-parallel ranks alone", "all ranks of a stage"
        yield (
            "expert_parallelism",
            f"experts spread over {ways[not counts_anew]}",
            ways[counts_anew],
        )


def _tensor(tp: int, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    heads, groups = facts.num_attention_heads, facts.num_query_groups
    if tp > 1 and not rules.tensor_parallel:
        yield "tensor_parallelism", f"tensor-parallel size {tp}", "1"
    elif heads % tp:
        yield "tensor_parallelism", f"{heads} heads on {tp} ranks", "a divisor"
    elif groups % tp and (tp % groups or not rules.copies_query_groups):
        multiple = " or a multiple" if rules.copies_query_groups else ""
        yield (
            "tensor_parallelism",
            f"{groups} query groups on {tp} ranks",
            f"a divisor{multiple} of the groups",
        )


def _savings(plan: Plan, rules: LaunchRules, _: LaunchFacts) -> Breaches:
    sizes = plan.parallel.sizes()
    whole = sizes.dp * sizes.cp
    modes = _distinct(stage.recompute for stage in plan.stages)
    zeros = _distinct(stage.zero_stage for stage in plan.stages)
    groups = _distinct(stage.sharding_group_size for stage in plan.stages)
    yield from _saving("recompute", modes, rules.recompute, rules)
    yield from _counted(plan, rules)
    yield from _offloaded(plan, rules)
    yield from _saving("zero_stage", zeros, rules.zero_stages_of(sizes.pp), rules)
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
    elif any(zero not in rules.hybrid_sharding for zero, _ in parts):
        zero, group = next(
            part for part in parts if part[0] not in rules.hybrid_sharding
        )
        yield (
            "sharding_group",
            f"ZeRO-{zero} over {group} of {whole} ranks",
            f"all {whole} ranks",
        )


def _counted(plan: Plan, rules: LaunchRules) -> Breaches:
    """Compare the numbers of recomputed blocks to what the framework has."""
    counts = _distinct(stage.recompute_num_layers for stage in plan.stages)
    if counts != [None] and not rules.recompute_num_layers:
        yield "recompute", "some blocks of a chunk", "all blocks or none"
    elif len(counts) > 1 and rules.same_savings:
        found = _join_values(["all" if one is None else one for one in counts])
        yield "recompute", f"{found} blocks on different stages", "one for all stages"


def _offloaded(plan: Plan, rules: LaunchRules) -> Breaches:
    """Compare what hosts keep to what the framework can leave there."""
    offloads = _distinct(stage.offload for stage in plan.stages)
    can = rules.offload_of(len(plan.stages))
    lacking = [
        name
        for name in Offload._fields
        if name not in can and any(getattr(one, name) > 0.0 for one in offloads)
    ]
    if lacking:
        expected = f"{_join_values(can)} at most" if can else "nothing on hosts"
        yield "offload", _join_values(lacking), expected
    elif apart := [one for one in offloads if not rules.keeps_together(one)]:
        kept = [name for name, part in apart[0]._asdict().items() if part > 0.0]
        all_of = f"{_join_values(rules.offload_together)}, whole and together, or none"
        yield "offload", f"{_join_values(kept)} alone, or in part", all_of
    elif len(offloads) > 1 and rules.same_savings:
        yield "offload", "other fractions on other stages", "one for all stages"


def _saving(
    rule: str, found: Sequence[object], known: Sequence[object], rules: LaunchRules
) -> Breaches:
    """Compare what stages save memory with to what the framework has."""
    if any(value not in known for value in found):
        yield rule, _join_values(found), f"one of {_join_values(known)}"
    elif len(found) > 1 and rules.same_savings:
        yield rule, f"{_join_values(found)} on different stages", "one for all stages"


def _distinct(values: Iterator[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _join_values(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)
