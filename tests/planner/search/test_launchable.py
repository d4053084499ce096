"""Plans made by hand: for every preset, each rule kept once and broken once."""

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from estimators.training import ParallelismConfig
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import (
    ALWAYS,
    ANY_ORDER,
    INTERLEAVED,
    ROUNDS,
    RULES,
    SPLIT_CHECKS,
)
from planner.search.device_kinds import DeviceOrder
from planner.search.launchable import block_counts, broken_rules, rank_order
from planner.search.launchable_sizes import LaunchFacts
from planner.step.plan import NO_OFFLOAD, Offload, Plan, Stage
from planner.step.schedules import SCHEDULES, schedule_name
from tests import failures

DEFAULT = "tp-cp-ep-dp-pp"


def chain(num_blocks: int) -> tuple[bool, ...]:
    """Return an embedding, the blocks, final norm and head."""
    return (False, *(True,) * num_blocks, False, False)


FACTS = LaunchFacts(
    is_block=chain(8),
    num_attention_heads=8,
    num_query_groups=2,
    num_moe_experts=0,
    global_batch_size=16,
    num_devices=8,
)


def numbered(extents: dict[str, int], order: str) -> list[list[list[int]]]:
    """Number ranks by an order: stage, replica, lane -> device, digit by digit."""
    tp, cp, ep, dp, pp = (extents[name] for name in ("tp", "cp", "ep", "dp", "pp"))
    grid = [[[0] * (cp * tp) for _ in range(dp * ep)] for _ in range(pp)]
    for rank in range(tp * cp * ep * dp * pp):
        rest, at = rank, {}
        for name in order.split("-"):
            rest, at[name] = divmod(rest, extents[name])
        row = grid[at["pp"]][at["dp"] * ep + at["ep"]]
        row[at["cp"] * tp + at["tp"]] = rank
    return grid


def cut(counts: list[int], num_blocks: int) -> list[tuple[int, int]]:
    """Return the interval of each virtual stage, ends of the chain included."""
    bounds = [0]
    for count in counts[:-1]:
        bounds.append(max(bounds[-1], 1) + count)
    bounds.append(num_blocks + 3)
    return [(a, b - 1) for a, b in pairwise(bounds)]


def made(
    tp=1,
    cp=1,
    ep=1,
    dp=1,
    pp=1,
    *,
    v=1,
    b=1,
    m=None,
    batch=16,
    counts=None,
    bounds=None,
    order=DEFAULT,
    devices=None,
    schedule=None,
    recompute="none",
    zero=0,
    group=None,
    sp=False,
    offload=NO_OFFLOAD,
    within_data=False,
    a2a=False,
    etp=None,
    count=None,
    modules=(),
) -> Plan:
    """Return a plan of eight blocks, or of as many as the counts say."""
    counts = counts or [8 // (pp * v)] * (pp * v)
    bounds = bounds or cut(counts, sum(counts))
    spread = 1 if etp else ep
    extents = {"tp": tp, "cp": cp, "ep": spread, "dp": dp // spread, "pp": pp}
    devices = devices or numbered(extents, order)

    def each(value):
        is_one = isinstance(value, Offload) or not isinstance(value, tuple)
        return [value] * pp if is_one else list(value)

    zeros = each(zero)
    groups = each(dp * cp if group is None else group)
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=tp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            data_parallel_size=dp,
            pipeline_model_parallel_size=pp,
            sequence_parallel=sp,
            experts_within_data=within_data,
            cp_comm_type="a2a" if a2a else "p2p",
            expert_tensor_parallel_size=etp,
        ),
        virtual_pipeline_model_parallel_size=v,
        micro_batch_size=b,
        num_microbatches=batch // (b * dp) if m is None else m,
        schedule=schedule or ("interleaved-1f1b" if v > 1 else "1f1b"),
        placement="",
        gradient_algorithm="ring",
        tensor_algorithm="ring",
        recompute_modules=modules,
        stages=tuple(
            Stage(
                chunks=tuple(bounds[stage::pp]),
                devices=tuple(tuple(row) for row in devices[stage]),
                recompute=mode,
                zero_stage=zero_stage,
                sharding_group_size=ranks if zero_stage else 1,
                offload=kept,
                recompute_num_layers=counted,
            )
            for stage, (mode, zero_stage, ranks, kept, counted) in enumerate(
                zip(
                    *(each(recompute), zeros, groups, each(offload), each(count)),
                    strict=True,
                )
            )
        ),
    )


def broken(plan: Plan, preset: str, **facts) -> set[str]:
    """Return the names of the rules that a plan breaks; experts where it spreads some.

    Of four experts, and of the usual release, unless facts say otherwise.
    """
    rules = FRAMEWORKS[preset].rules_of(facts.pop("release", None))
    if plan.parallel.expert_model_parallel_size > 1:
        facts = {"num_moe_experts": 4, **facts}
    return {one.rule for one in broken_rules(plan, rules, replace(FACTS, **facts))}


# tp1 dp2 pp2 dp2: replicas of one pipeline side by side, then the stages.
SPLIT_PLACEMENT = [[[0], [1], [4], [5]], [[2], [3], [6], [7]]]
APART = [(0, 4), (5, 8), (9, 9), (10, 10)]  # the norm before the stage of the head
TWO = {"tp": 2, "dp": 2, "pp": 2}
FOUR = {"dp": 2, "pp": 4}
UNEVEN = {**FOUR, "counts": [2, 1, 3, 2]}
ODD = {"dp": 2, "pp": 4, "batch": 22}
ODD_FACTS = {"global_batch_size": 22}
SPLIT = {**TWO, "sp": True}

KEPT = {
    "megatron-lm": [
        {**TWO, "zero": 1, "recompute": "full", "sp": True},
        {**TWO, "order": "tp-pp-cp-ep-dp", "v": 2, "zero": 1},
        {**FOUR, "recompute": "selective"},
        {"cp": 2, "dp": 2, "pp": 2, "v": 2},
        {"ep": 4, "dp": 4, "pp": 2},
    ],
    "megatron-core": [
        {**TWO, "zero": 1, "recompute": "full", "sp": True},
        {**TWO, "order": "tp-pp-cp-ep-dp", "v": 2, "zero": 1},
        {**UNEVEN, "zero": 1},
        {"dp": 4, "pp": 2, "zero": 1, "group": 2},
        {**TWO, "v": 2, "counts": [1, 3, 3, 1]},
        {**FOUR, "counts": [0, 4, 4, 0]},
        {"tp": 4, "dp": 2},
        {"ep": 4, "dp": 4, "pp": 2},
    ],
    "deepspeed": [
        {**TWO, "zero": 1},
        {"dp": 8, "zero": 3, "recompute": "full"},
        {"tp": 2, "dp": 4, "zero": 2},
        {"dp": 2, "pp": 3, "counts": [3, 3, 2], "tp": 1},
    ],
    "fsdp": [
        {"dp": 8, "zero": 3},
        {"tp": 2, "dp": 4, "zero": 2, "group": 2, "sp": True},
        {"cp": 2, "dp": 4, "zero": 3, "recompute": "full"},
    ],
    "torchtitan": [
        {**SPLIT, "zero": 2},
        {**SPLIT, "v": 2, "counts": [1, 3, 2, 2], "zero": 3},
        {"dp": 4, "pp": 2, "zero": 3, "group": 2, "schedule": "gpipe"},
        {"dp": 8},
        {"cp": 2, "dp": 2, "ep": 2, "pp": 2, "zero": 3},
    ],
    "maxtext": [
        {**TWO, "zero": 3, "recompute": "full", "schedule": "scanned"},
        {**TWO, "v": 2, "order": "tp-cp-ep-pp-dp", "schedule": "circular"},
        {"dp": 8, "zero": 1},
        {"dp": 8, "zero": 3, "group": 4},
        {"cp": 2, "dp": 4, "zero": 3},
    ],
    "internevo": [
        {**TWO, "zero": 1, "group": 1},
        {**TWO, "v": 2},
        {"dp": 2, "pp": 3, "counts": [2, 3, 3]},
        {"ep": 4, "dp": 4, "pp": 2, "zero": 1, "recompute": "full"},
    ],
    "ddp": [{"dp": 8}, {"dp": 8, "recompute": "full"}],
    "ideal": [
        {**TWO, "zero": 3, "recompute": "stage"},
        {**FOUR, "counts": [1, 3, 3, 1]},
        {"tp": 2, "cp": 2, "pp": 2, "order": "tp-pp-cp-dp-ep", "v": 4},
        {**TWO, "v": 2, "counts": [1, 2, 2, 2]},
        {"dp": 4, "pp": 2, "zero": 2, "group": 2},
    ],
    "aceso": [{**UNEVEN, "recompute": ("none", "full", "none", "none")}],
    "mist": [{**UNEVEN, "zero": (1, 2, 1, 1)}],
}
"""Preset -> plans that its framework launches."""

PIPELINED = {
    "global_batch": {**TWO, "m": 7},
    "idle_devices": {"tp": 2, "pp": 2},
    "rank_order": {**TWO, "order": "tp-pp-cp-ep-dp"},
    "split": UNEVEN,
    "tensor_parallelism": ({"tp": 4, "dp": 2}, {"num_attention_heads": 6}),
    "sequence_parallelism": {"dp": 8, "sp": True},
    "expert_parallelism": ({"ep": 4, "dp": 8}, {"num_moe_experts": 6}),
    "expert_overlap": {"dp": 4, "pp": 2, "schedule": "combined-1f1b"},
    "sharding_group": {"dp": 4, "pp": 2, "zero": 1, "group": 2},
    "recompute": {**TWO, "recompute": ("full", "none")},
    "offload": {**TWO, "offload": (Offload(optimizer=1.0), NO_OFFLOAD)},
}
INTERLEAVED_ODD = ({**ODD, "v": 2}, ODD_FACTS)
LONG = ({"cp": 2, "dp": 4}, {"sequence_length": 6})
IN_FP16 = ({"ep": 4, "dp": 8}, {"precision": "fp16"})
SCANNED = {"schedule": "scanned"}
"""The order of plans that MaxText launches, of one chunk for each stage."""
PLACED = {"dp": 4, "pp": 2, "devices": SPLIT_PLACEMENT}
ALONE = {
    "global_batch": {"dp": 8, "m": 3},
    "idle_devices": {"dp": 4},
    "pipeline": {"dp": 4, "pp": 2},
    "sequence_parallelism": {"dp": 8, "sp": True},
    "expert_parallelism": {"dp": 8, "ep": 2},
    "expert_overlap": {"dp": 8, "schedule": "combined-1f1b"},
    "recompute": {"dp": 8, "recompute": "stage"},
}
MIXED_GROUPS = {"dp": 4, "pp": 2, "zero": 1, "group": (2, 4)}
BROKEN = {
    "megatron-lm": {
        **PIPELINED,
        "rank_order": PLACED,
        "schedule": {**TWO, "schedule": "gpipe"},
        "microbatches": INTERLEAVED_ODD,
        "tensor_parallelism": {"tp": 4, "dp": 2},
        "sequence_length": LONG,
        "experts": IN_FP16,
        "zero_stage": {**TWO, "zero": 2},
    },
    "megatron-core": {
        **PIPELINED,
        "rank_order": PLACED,
        "schedule": {**TWO, "schedule": "zb-h1"},
        "microbatches": INTERLEAVED_ODD,
        "split": {**FOUR, "bounds": APART},
        "sequence_length": LONG,
        "experts": ({"tp": 2, "dp": 4, "ep": 2}, {"has_biased_experts": True}),
        "zero_stage": {**TWO, "zero": (1, 0)},
        "sharding_group": MIXED_GROUPS,
    },
    "deepspeed": {
        **PIPELINED,
        "schedule": {**TWO, "schedule": "gpipe"},
        "context_parallelism": {"cp": 2, "dp": 2, "pp": 2},
        "sequence_length": ({"cp": 2, "dp": 4, "a2a": True}, {"sequence_length": 7}),
        "zero_stage": {**TWO, "zero": 2},
    },
    "fsdp": {
        **ALONE,
        "rank_order": {"tp": 2, "dp": 4, "zero": 3, "order": "dp-tp-cp-ep-pp"},
        "tensor_parallelism": (
            {"tp": 4, "dp": 2, "zero": 3},
            {"num_attention_heads": 6},
        ),
        "sequence_length": ({"cp": 2, "dp": 4, "zero": 3}, {"sequence_length": 6}),
        "zero_stage": {"dp": 8, "zero": 1},
    },
    "torchtitan": {
        **{
            rule: {**case, "zero": 3, "sp": "tp" in case or "sp" in case}
            for rule, case in PIPELINED.items()
            if not isinstance(case, tuple)
        },
        "offload": {**SPLIT, "zero": 3, "offload": Offload(optimizer=1.0)},
        "sequence_length": ({"dp": 8, "zero": 3}, {"sequence_length": 7}),
        "pipeline": ({"dp": 4, "pp": 2, "zero": 3}, {"is_tied": True}),
        "schedule": {**SPLIT, "zero": 3, "schedule": "zb-h1"},
        "microbatches": ({**ODD, "zero": 3, "v": 2}, ODD_FACTS),
        "split": {**FOUR, "zero": 3, "bounds": APART},
        "tensor_parallelism": (
            {"tp": 4, "dp": 2, "zero": 3, "sp": True},
            {"num_attention_heads": 6},
        ),
        "expert_parallelism": (
            {"ep": 4, "dp": 8, "zero": 3},
            {"num_moe_experts": 6},
        ),
        "zero_stage": {**SPLIT, "zero": 1},
        "sharding_group": {**MIXED_GROUPS, "zero": 3},
    },
    "maxtext": {
        **{
            rule: {**SCANNED, **case} if isinstance(case, dict) else case
            for rule, case in PIPELINED.items()
        },
        "sequence_length": (
            {"cp": 2, "dp": 4, "zero": 3},
            {"sequence_length": 7},
        ),
        "expert_parallelism": (
            {"ep": 4, "dp": 8, "zero": 3},
            {"num_moe_experts": 6},
        ),
        "global_batch": {**TWO, **SCANNED, "m": 6},
        "rank_order": {**PLACED, **SCANNED},
        "schedule": TWO,
        "microbatches": ({**ODD, **SCANNED}, ODD_FACTS),
        "expert_overlap": {"dp": 8, "schedule": "combined-1f1b"},
        "zero_stage": {"cp": 2, "dp": 4},
        "sharding_group": {**MIXED_GROUPS, **SCANNED, "zero": 3},
    },
    "internevo": {
        **PIPELINED,
        "schedule": {**TWO, "schedule": "gpipe"},
        "microbatches": INTERLEAVED_ODD,
        "context_parallelism": {"cp": 2, "dp": 4},
        "expert_parallelism": {"ep": 2, "dp": 4, "pp": 2, "zero": 1},
        "zero_stage": {**TWO, "zero": 2},
        "sharding_group": MIXED_GROUPS,
    },
    "ddp": {
        **ALONE,
        "rank_order": {"dp": 8, "devices": [[[7 - device] for device in range(8)]]},
        "tensor_parallelism": {"tp": 2, "dp": 4},
        "context_parallelism": {"cp": 2, "dp": 4},
        "zero_stage": {"dp": 8, "zero": 1},
        "offload": {"dp": 8, "offload": (Offload(weights=0.5),)},
    },
    "ideal": {
        **PIPELINED,
        "rank_order": PLACED,
        "schedule": {**TWO, "schedule": "one of its own"},
        "microbatches": INTERLEAVED_ODD,
        "zero_stage": {**TWO, "zero": (1, 0)},
        "sharding_group": MIXED_GROUPS,
    },
}
BROKEN["aceso"] = {
    **{rule: case for rule, case in PIPELINED.items() if rule != "sharding_group"},
    "schedule": {**TWO, "schedule": "gpipe"},
    "split": {**FOUR, "counts": [0, 3, 3, 2]},
    "context_parallelism": {"cp": 2, "dp": 4},
    "expert_parallelism": {"ep": 2, "dp": 8},
    "zero_stage": {**TWO, "zero": 1},
    "recompute": {**TWO, "recompute": "stage"},
}
BROKEN["mist"] = {
    rule: case for rule, case in BROKEN["aceso"].items() if rule != "offload"
} | {
    "sequence_parallelism": SPLIT,
    "zero_stage": {**TWO, "zero": 4},
    "sharding_group": {"dp": 4, "pp": 2, "zero": 1, "group": 2},
}
BROKEN["llm-foundry"] = {
    **{
        rule: case for rule, case in BROKEN["fsdp"].items() if rule != "sequence_length"
    },
    "tensor_parallelism": {"tp": 2, "dp": 4, "zero": 3},
    "rank_order": {"dp": 8, "devices": [[[7 - device] for device in range(8)]]},
    "context_parallelism": {"cp": 2, "dp": 4, "zero": 3},
}
"""Preset -> rule -> a plan that breaks it, and what else the job is."""

SAME_RUNTIME = {"nemo": "megatron-core"}
"""Preset -> that of the framework that launches its plans."""

NEVER_BROKEN = {
    "megatron-lm": {"pipeline", "context_parallelism"},
    "megatron-core": {"pipeline", "context_parallelism"},
    # Two chunks would break it, but DeepSpeed has none.
    "deepspeed": {"pipeline", "microbatches", "experts"},
    # Without a pipeline there is nothing to order, to deal out or to split.
    "fsdp": {
        *("schedule", "microbatches", "split", "context_parallelism"),
        *("sharding_group", "offload", "experts"),
    },
    "llm-foundry": {
        *("schedule", "microbatches", "split", "sequence_length"),
        *("sharding_group", "offload", "experts"),
    },
    "torchtitan": {"context_parallelism", "experts"},
    "maxtext": {"pipeline", "context_parallelism", "experts"},
    "internevo": {"pipeline", "sequence_length", "experts"},
    "ddp": {
        *("schedule", "microbatches", "split", "sharding_group"),
        *("sequence_length", "experts"),
    },
    "ideal": {"pipeline", "context_parallelism", "sequence_length", "experts"},
    "aceso": {
        *("pipeline", "microbatches", "sequence_length", "experts"),
        "sharding_group",
    },
    "mist": {"pipeline", "microbatches", "offload", "sequence_length", "experts"},
}
"""Preset -> rules that no plan breaks which keeps the others."""


def test_every_preset_has_rules_and_every_rule_a_source():
    for rules in (framework.rules for framework in FRAMEWORKS.values()):
        assert [rule for rule, _ in rules.sources] == list(RULES)
        assert all(rules.source(rule) for rule in RULES)
        assert pickle.loads(pickle.dumps(rules)) == rules
        assert hash(rules) is not None
        assert set(rules.splits) <= set(SPLIT_CHECKS)
        assert set(rules.schedules) <= set(SCHEDULES)
        assert rules.microbatches in {INTERLEAVED, ROUNDS, ALWAYS}
        assert set(rules.orders) <= set(ANY_ORDER)
        assert set(rules.hybrid_sharding) <= set(rules.zero_stages)
        assert bool(rules.zero_stages_with_pipeline) == rules.pipeline


@failures.over("preset", FRAMEWORKS)
def test_every_rule_of_every_preset_is_tried(preset):
    if preset in SAME_RUNTIME:
        assert FRAMEWORKS[preset].rules == FRAMEWORKS[SAME_RUNTIME[preset]].rules
        return
    tried = set(BROKEN[preset])
    assert tried | NEVER_BROKEN[preset] == set(RULES)
    assert not tried & NEVER_BROKEN[preset]


@failures.over(
    ("preset", "given"),
    [(preset, given) for preset, plans in KEPT.items() for given in plans],
)
def test_a_plan_that_the_framework_launches_breaks_no_rule(preset, given):
    plan = made(**given)
    assert broken(plan, preset, num_devices=plan.devices_used) == set()


@failures.over(
    ("preset", "rule"),
    [(preset, rule) for preset, cases in BROKEN.items() for rule in cases],
)
def test_a_plan_that_breaks_one_rule_is_told_so(preset, rule):
    case = BROKEN[preset][rule]
    given, facts = case if isinstance(case, tuple) else (case, {})
    assert broken(made(**given), preset, **facts) == {rule}


@failures.over(
    ("given", "found"),
    [
        ({"dp": 8}, "experts on 1 rank"),
        ({"ep": 2, **TWO}, "2 stages of one chunk each"),
        (
            {"ep": 2, "dp": 8, "recompute": "full"},
            "passes that send their tokens again",
        ),
        ({"ep": 2, "dp": 8}, None),
        ({"ep": 2, **TWO, "v": 2}, None),
    ],
)
def test_all_to_alls_are_hidden_where_megatron_core_hides_them(given, found):
    name = schedule_name(given.get("v", 1), pairs=True)
    told = broken_rules(
        made(**given, schedule=name),
        FRAMEWORKS["megatron-core"].rules,
        replace(FACTS, num_moe_experts=4),
    )
    assert [one.found for one in told] == ([] if found is None else [found])
    assert {one.rule for one in told} <= {"expert_overlap"}


def test_what_is_told():
    (one,) = broken_rules(made(**TWO, zero=2), FRAMEWORKS["megatron-lm"].rules, FACTS)
    assert (one.rule, one.found, one.expected) == ("zero_stage", "2", "one of 0, 1")
    assert "--use-distributed-optimizer" in one.source
    assert set(one.to_json()) == {"rule", "found", "expected", "source"}


def test_a_placement_is_told_by_its_name_and_an_order_by_its_dimensions():
    rules = FRAMEWORKS["megatron-core"].rules
    placed = replace(made(**PLACED), placement="tp1 dp2 pp2 dp2")
    (one,) = broken_rules(placed, rules, FACTS)
    assert '"tp1 dp2 pp2 dp2"' in one.found
    assert one.expected == "one of tp-dp-pp, tp-pp-dp"
    (one,) = broken_rules(
        made(**TWO, order="tp-pp-cp-ep-dp"), FRAMEWORKS["deepspeed"].rules, FACTS
    )
    assert one.expected == "tp-dp-pp"


def test_nodes_may_be_listed_in_any_order_that_is_tried():
    numbers = np.array(numbered({"cp": 1, "ep": 1, **TWO}, DEFAULT))
    listed = DeviceOrder(name="slow first", devices=np.roll(np.arange(8), 4))
    for devices, order, other in (
        (numbers, None, listed),
        (listed.devices[numbers], listed, None),
    ):
        plan = made(**TWO, devices=devices.tolist())
        for orders in ((order, other), (other, order)):
            assert broken(plan, "megatron-core", orders=orders) == set()
        assert broken(plan, "megatron-core", orders=(other,)) == {"rank_order"}


def test_idle_devices_may_be_asked_for():
    plan = made(tp=2, pp=2)
    assert broken(plan, "megatron-core", idle_devices=True) == set()


def test_llama_405b_goes_over_16_stages_of_8_chunks_with_its_ends_counted():
    counts = [0, *[1] * 126, 0]
    plan = made(pp=16, v=8, m=16, counts=counts)
    facts = {"is_block": chain(126), "num_devices": 16}
    assert broken(plan, "megatron-core", **facts) == set()
    assert broken(plan, "megatron-lm", **facts) == {"split"}


@given(
    order=st.sampled_from(ANY_ORDER),
    sizes=st.tuples(*[st.integers(1, 3)] * 5),
)
def test_ranks_are_read_back_from_devices(order, sizes):
    extents = dict(zip(("tp", "cp", "ep", "dp", "pp"), sizes, strict=True))
    devices = numbered(extents, "-".join(order))
    extents["dp"] *= extents["ep"]
    pp = extents["pp"]
    plan = made(
        **extents,
        batch=extents["dp"] * pp,
        counts=[1] * pp,
        devices=devices,
        within_data=True,
    )
    found = rank_order(plan)
    assert found is not None
    extents["dp"] //= extents["ep"]
    assert numbered(extents, "-".join(found)) == devices


def test_blocks_are_counted_in_the_order_of_the_chain():
    plan = made(pp=2, v=2, counts=[1, 2, 3, 2])
    assert block_counts(plan, FACTS.is_block) == (1, 2, 3, 2)
