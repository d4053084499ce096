"""Memory alone, against the account of plans and against trying everything."""

import itertools
from dataclasses import replace
from math import inf

import pytest

from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.cost.pricing import price_plan
from planner.frameworks.framework import FRAMEWORKS
from planner.memory.account import MemoryJob, MemoryLimits, plan_memory
from planner.memory.changes import (
    FRACTIONS,
    KINDS,
    MOST_TOGETHER,
    PlanStep,
    changed_memory,
    joint_changes,
    largest_micro_batch,
    longest_sequence,
    single_changes,
)
from planner.memory.thrift import fewest_devices, least_memory, ways
from planner.plans.build import build_plan, outline_plan
from planner.plans.spec import PlanSpec
from planner.search.candidates import CandidateSet
from planner.search.space import SearchSpec
from planner.search.thriftiest import PRECISION, thriftiest_plan
from planner.step.execution import Workload
from planner.step.memory import has_room, memory_of_stage
from tests import failures
from topologies import InputError, build_network
from topologies.accelerators import load_accelerator, usual_host
from topologies.specs import FatTreeSpec, LevelSpec

MODEL = TransformerSpec(
    family="gpt",
    num_layers=4,
    hidden_size=256,
    num_attention_heads=4,
    vocab_size=4096,
    sequence_length=512,
)
WORKLOAD = Workload(
    graph=trace_model(MODEL),
    training=TrainingSpec(global_batch_size=16),
    accelerator=load_accelerator("a100-80gb"),
)
RULES = FRAMEWORKS["megatron-core"].rules
MB = 1e6


def job(memory=inf, num_devices=8, host=inf, rules=RULES):
    limits = MemoryLimits(memory, host)
    return MemoryJob(
        workload=WORKLOAD, rules=rules, num_devices=num_devices, limits=limits
    )


def space(**settings):
    given = {"rules": RULES, "zero_stages": (0, 1), **settings}
    return SearchSpec(**given)


def network(num_devices):
    level = LevelSpec(name="node", fan_out=num_devices, latency=1e-6, bandwidth=1e11)
    return build_network(FatTreeSpec(levels=(level,)))


PLANS = [
    PlanSpec(micro_batch_size=2, tensor_model_parallel_size=2),
    PlanSpec(micro_batch_size=1, pipeline_model_parallel_size=4, zero_stage=1),
    PlanSpec(
        micro_batch_size=1,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
        recompute="full",
        recompute_num_layers=1,
    ),
    PlanSpec(
        micro_batch_size=2,
        pipeline_model_parallel_size=2,
        recompute=("full", "none"),
        offload_optimizer=0.5,
    ),
]


@failures.over("spec", PLANS)
def test_an_outline_needs_what_the_priced_plan_needs(spec):
    plan = build_plan(network(8), WORKLOAD, spec)
    priced = price_plan(network(8).with_host(usual_host("a100-80gb")), WORKLOAD, plan)
    found = job().memory(spec)
    assert found.peaks == tuple(stage.peak_memory for stage in priced.stages)
    assert [dict(one.device) for one in found.stages] == [
        dict(stage.memory) for stage in priced.stages
    ]


@failures.over("spec", PLANS)
def test_room_is_there_exactly_where_the_fullest_stage_fits(spec):
    memory = job().memory(spec)
    for limit in (memory.needed, memory.needed * (1 - 1e-8), min(memory.peaks)):
        limits = MemoryLimits(limit, inf)
        rooms = [limit] * len(memory.stages)
        found = has_room(WORKLOAD, memory.plan, rooms, inf)
        assert found is memory.fits(limits)


def everything(num_devices, micro_batch=1):
    """Yield every plan of equal stages that the framework launches, without bounds."""
    for tp, cp, pp, dp in itertools.product(
        (1, 2, 4), (1, 2, 4, 8), (1, 2, 3, 4), (1, 2, 4, 8, 16)
    ):
        for recompute, zero in itertools.product(("none", "selective", "full"), (0, 1)):
            if tp * cp * pp * dp > num_devices:
                continue
            layers = {3: (1, 2, 1)}.get(pp)
            spec = PlanSpec(
                micro_batch_size=micro_batch,
                tensor_model_parallel_size=tp,
                context_parallel_size=cp,
                pipeline_model_parallel_size=pp,
                data_parallel_size=dp,
                sequence_parallel=tp > 1,
                recompute=recompute,
                zero_stage=zero,
                num_layers_per_pipeline_stage=layers,
            )
            try:
                plan = outline_plan(WORKLOAD, spec, num_devices)
            except InputError:
                continue
            yield tp * cp * pp * dp, plan_memory(WORKLOAD, plan).needed


def test_the_bound_of_a_way_is_never_above_what_it_needs():
    for way in ways(job(), space(), 8):
        assert way.bound <= job().memory(way.spec).needed


def test_the_least_memory_is_the_least_of_everything():
    found = least_memory(job(), space())
    assert found is not None
    tried = min(needed for count, needed in everything(8) if count == 8)
    assert found.memory.needed <= tried
    of_ways = min(job().memory(way.spec).needed for way in ways(job(), space(), 8))
    assert found.memory.needed == of_ways
    assert found.memory.needed == pytest.approx(tried, rel=0.05)


def test_the_thriftiest_plan_of_the_search_needs_no_more():
    """It may also choose each stage's recompute, ZeRO and layers by itself."""
    candidates = CandidateSet.enumerate(network(8), WORKLOAD, space())
    thriftiest = thriftiest_plan(candidates).needed
    found = least_memory(job(), space(idle_devices=True))
    assert thriftiest <= found.memory.needed * (1 + PRECISION)
    assert found.memory.needed <= 1.1 * thriftiest


@failures.over("limit", [15, 20, 30, 50, 80, 120, 400])
def test_the_fewest_devices_are_the_fewest_of_everything(limit):
    found = fewest_devices(job(limit * MB), space())
    fitting = [n for n, needed in everything(64) if needed <= limit * MB]
    assert found is not None
    assert found.memory.needed <= limit * MB
    assert found.memory.plan.parallel.num_devices == min(fitting)


def test_what_fits_nowhere_has_no_fewest_devices():
    assert fewest_devices(job(1e3), space()) is None


SPEC = PlanSpec(
    micro_batch_size=4,
    tensor_model_parallel_size=2,
    pipeline_model_parallel_size=1,
    data_parallel_size=4,
)
NEEDED = job().memory(SPEC).needed


def ladder(kind):
    """Return the steps of a kind from the smallest on, spelled out."""
    resized = {"data_parallel_size": None, "num_microbatches": None}
    return {
        "sequence parallelism": [{"sequence_parallel": True}],
        "stronger ZeRO": [{"zero_stage": 1}],
        "recompute": [
            {"recompute": "selective"},
            *({"recompute": "full", "recompute_num_layers": n} for n in (1, 2, 3)),
            {"recompute": "full"},
        ],
        "smaller micro-batch": [{"micro_batch_size": size} for size in (2, 1)],
        "more pipeline stages": [
            {"pipeline_model_parallel_size": size, **resized} for size in (2, 4)
        ],
        "more tensor parallelism": [{"tensor_model_parallel_size": 4, **resized}],
        "more context parallelism": [
            {"context_parallel_size": size, **resized} for size in (2, 4)
        ],
        "weights on the host": [{"offload_weights": part} for part in FRACTIONS],
        "optimizer on the host": [{"offload_optimizer": part} for part in FRACTIONS],
        "activations on the host": [
            {"offload_activations": part} for part in FRACTIONS
        ],
    }[kind]


@failures.over("share", [0.97, 0.9, 0.75, 0.6, 0.4, 0.1])
def test_each_change_is_the_first_step_that_suffices(share):
    limit = share * NEEDED
    found = {change.kind: change for change in single_changes(job(limit), SPEC)}
    assert found.keys() <= KINDS.keys()
    numbers = {"gradients in 16 bits", "smaller optimizer states"}
    numbers |= {"LoRA, not all weights", "shorter sequences"}
    for kind, change in found.items():
        if kind in numbers:
            continue
        needs = [job().memory(replace(SPEC, **step)).needed for step in ladder(kind)]
        enough = [needed for needed in needs if needed <= limit]
        assert change.fits is bool(enough)
        assert change.memory.needed == (enough[0] if enough else min(needs))
        again = changed_memory(job(), SPEC, change.step)
        assert again is not None
        assert again[1].needed == change.memory.needed


def test_changes_that_suffice_come_first_and_all_devices_stay_in_use():
    changes = single_changes(job(0.7 * NEEDED), SPEC)
    flags = [change.fits for change in changes]
    assert flags == sorted(flags, reverse=True)
    assert {True, False} == {*flags}
    assert {change.memory.plan.parallel.num_devices for change in changes} == {8}
    assert all(change.memory.needed < NEEDED for change in changes)


def test_nothing_is_offered_that_the_framework_has_not():
    kinds = {c.kind for c in single_changes(job(rules=FRAMEWORKS["ddp"].rules), SPEC)}
    assert not kinds & {"stronger ZeRO", "more tensor parallelism"}
    assert not any("host" in kind for kind in kinds)


def test_a_full_host_is_no_way_out():
    found = {c.kind: c for c in single_changes(job(0.8 * NEEDED, host=1.0), SPEC)}
    assert not found["optimizer on the host"].fits


def test_other_numbers_change_the_training():
    found = {c.kind: c for c in single_changes(job(), SPEC)}
    share = job().memory(SPEC).stages[0].device
    step = found["gradients in 16 bits"]
    assert step.step == PlanStep({}, {"gradient_precision": "bf16"})
    assert step.memory.needed == pytest.approx(NEEDED - share["gradients"] / 2)


LONG = replace(MODEL, sequence_length=1024, max_position_embeddings=1024)


def test_other_training_and_shorter_sequences_are_other_jobs():
    long, short = (trace_model(replace(LONG, sequence_length=n)) for n in (1024, 512))
    longer = replace(job(1.0), workload=replace(WORKLOAD, graph=long))
    found = {c.kind: c for c in single_changes(longer, SPEC)}
    lora, shorter = found["LoRA, not all weights"], found["shorter sequences"]
    assert lora.step == PlanStep({}, {"adapter": "lora"})
    training = replace(WORKLOAD.training, adapter="lora")
    adapted = replace(longer, workload=longer.workload.trained_as(training))
    assert lora.memory.needed == adapted.memory(SPEC).needed
    assert "QLoRA, not all weights" not in found  # Megatron has none
    assert shorter.step == PlanStep({}, {}, {"sequence_length": 512})
    shortened = replace(longer, workload=replace(WORKLOAD, graph=short))
    assert shorter.memory.needed == shortened.memory(SPEC).needed


def test_a_model_of_a_user_is_not_traced_at_other_lengths():
    graph = trace_model(LONG)
    known = replace(job(1.0), workload=replace(WORKLOAD, graph=graph), retraces=False)
    assert "shorter sequences" not in {c.kind for c in single_changes(known, SPEC)}


@failures.over("share", [0.5, 0.3, 0.2, 0.15, 0.1, 0.05])
def test_changes_together_are_needed_and_suffice(share):
    limited = job(share * NEEDED, rules=FRAMEWORKS["fsdp"].rules)
    spec = replace(
        SPEC,
        micro_batch_size=2,
        tensor_model_parallel_size=1,
        data_parallel_size=8,
    )
    singles = single_changes(limited, spec)
    found = joint_changes(limited, spec, singles)
    if any(change.fits for change in singles):
        assert found == ()
        return
    assert len({change.kinds for change in found}) == len(found)
    sizes = {len(change.kinds) for change in found}
    assert len(sizes) <= 1
    assert sizes <= {2, MOST_TOGETHER}
    for change in found:
        assert change.fits
        again = changed_memory(limited, spec, change.step)
        assert again is not None
        assert again[1].needed == change.memory.needed <= share * NEEDED
    if sizes == {MOST_TOGETHER}:
        # No two do: each with the strongest step of the other.
        for first, second in itertools.combinations(singles, 2):
            step = PlanStep(
                *({**a, **b} for a, b in zip(first.step, second.step, strict=True))
            )
            both = changed_memory(limited, spec, step)
            assert both is None or not both[1].fits(limited.limits)


def test_full_training_that_fits_in_no_way_fits_as_adapters():
    spec = PlanSpec(micro_batch_size=1, data_parallel_size=2, zero_stage=3)
    card = job(num_devices=2, rules=FRAMEWORKS["fsdp"].rules)
    card = replace(card, limits=MemoryLimits(0.35 * card.memory(spec).needed, 0.0))
    singles = single_changes(card, spec)
    together = joint_changes(card, spec, singles)
    assert any("LoRA" in kind for change in together for kind in change.kinds)


def test_the_largest_micro_batch_is_the_largest_that_fits():
    needs = {
        size: job().memory(replace(SPEC, micro_batch_size=size)).needed
        for size in (1, 2, 4)
    }
    for size, needed in needs.items():
        found = largest_micro_batch(job(needed), SPEC)
        assert found is not None
        assert found.size == size
    assert largest_micro_batch(job(0.9 * needs[1]), SPEC) is None


def test_the_longest_sequence_fits_and_the_next_one_does_not():
    found = longest_sequence(job(1.6 * NEEDED), SPEC)
    assert found is not None
    assert found.size % (512 // 16) == 0

    def needed(length):
        longer = replace(MODEL, sequence_length=length, max_position_embeddings=length)
        workload = replace(WORKLOAD, graph=trace_model(longer))
        plan = outline_plan(workload, SPEC, 8)
        return sum(
            memory_of_stage(
                workload, workload.table(plan.degrees), plan, 0
            ).device.values()
        )

    step = 2 ** (found.size.bit_length() - 1) // 16
    assert found.memory.needed == needed(found.size) <= 1.6 * NEEDED
    assert needed(found.size + step) > 1.6 * NEEDED
    assert longest_sequence(job(0.9 * NEEDED), SPEC) is None


def test_sharding_groups_must_divide_the_replicas():
    spec = replace(SPEC, zero_stage=1, sharding_group_size=3)
    with pytest.raises(InputError, match="do not form groups"):
        job().memory(spec)
    halves = job().memory(replace(spec, sharding_group_size=2)).needed
    assert job().memory(replace(spec, sharding_group_size=4)).needed < halves < NEEDED
