"""Plans written out from sizes and settings, beside what Megatron-LM and we make."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from estimators.collectives.cost import ALGORITHMS
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan, with_algorithms
from planner.plans.checks import check_plan
from planner.plans.spec import DIMENSIONS, PlanSpec
from planner.plans.written import read_plan
from planner.search.best_first import search
from planner.search.placements import Extents, placements
from planner.search.space import SearchSpec
from planner.step.plan import Plan
from tests import failures
from tests.planner.examples import eight_devices, tiny_job
from topologies import InputError
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

MEMORY = 80e9
ORDERS = ["-".join(("tp", *rest)) for rest in permutations(DIMENSIONS[1:])]
NETWORK = eight_devices()


def built(workload=None, network=NETWORK, **given) -> Plan:
    """Return the plan of a table with these settings, micro-batches of 1."""
    spec = PlanSpec(**{"micro_batch_size": 1, **given})
    return build_plan(network, workload or tiny_job(MEMORY), spec)


def sizes(tp=1, cp=1, ep=1, dp=None, pp=1):
    """Return settings under their long names."""
    return {
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "expert_model_parallel_size": ep,
        "data_parallel_size": dp,
        "pipeline_model_parallel_size": pp,
    }


def tree(*fan_outs):
    """Return a tree of switches with these numbers of children."""
    return build_network(
        FatTreeSpec(
            levels=tuple(
                LevelSpec(name=f"tier {i}", fan_out=n, bandwidth=1e11, latency=1e-6)
                for i, n in enumerate(fan_outs)
            )
        )
    )


def blocks_of(plan: Plan, num_layers: int) -> list[list[list[int]]]:
    """Return the transformer blocks of each chunk of each stage."""
    return [
        [[b for b in range(num_layers) if first <= b + 1 <= last] for first, last in s]
        for s in (stage.chunks for stage in plan.stages)
    ]


# Devices.


@given(
    order=st.sampled_from(ORDERS),
    degrees=st.sampled_from(
        [
            *((1, 1, 1, 8, 1), (2, 2, 1, 1, 2), (2, 1, 2, 2, 2), (1, 2, 2, 4, 1)),
            *((4, 1, 1, 1, 2), (1, 1, 2, 2, 4), (2, 1, 1, 2, 2), (1, 2, 1, 2, 2)),
        ]
    ),
)
@settings(max_examples=30)
def test_ranks_are_numbered_as_megatron_numbers_them(order, degrees):
    """Take every rank apart by the order, innermost first, and look it up."""
    tp, cp, ep, dp, pp = degrees
    workload = tiny_job(MEMORY, family="mixtral")
    plan = built(workload, **sizes(tp, cp, ep, dp, pp), order=order)
    # Beside context parallelism experts go round all ranks of a stage.
    ep = ep if cp == 1 else 1
    length = {"tp": tp, "cp": cp, "ep": ep, "dp": dp // ep, "pp": pp}
    for rank in range(tp * cp * dp * pp):
        rest, at = rank, {}
        for name in order.split("-"):
            rest, at[name] = divmod(rest, length[name])
        row = plan.stages[at["pp"]].devices[at["dp"] * ep + at["ep"]]
        assert row[at["cp"] * tp + at["tp"]] == rank


@failures.over("order", ORDERS)
def test_every_order_is_a_placement_of_the_search(order):
    extents = Extents(tp=2, cp=1, ep=2, dp=2, pp=4)
    known = {p.name: p for p in placements(extents, 32, (4, 32))}
    network = tree(4, 8)
    workload = tiny_job(MEMORY, family="mixtral")
    plan = built(workload, network, **sizes(2, 1, 2, 4, 4), order=order)
    devices = known[plan.placement].devices
    assert [stage.devices for stage in plan.stages] == [
        tuple(tuple(row) for row in stage) for stage in devices.tolist()
    ]


def test_the_default_order_is_megatrons():
    given = sizes(2, 1, 1, 2, 2)
    assert built(**given) == built(**given, order="tp-cp-ep-dp-pp")
    assert built(**given, order="TP-PP-DP").placement == "tp2 pp2 dp2"


def test_a_nesting_that_splits_a_dimension_is_found_by_its_name():
    network = tree(4, 4)
    plan = built(None, network, **sizes(dp=8, pp=2), placement=" tp1  dp4 pp2 dp2 ")
    assert plan.placement == "tp1 dp4 pp2 dp2"
    first, second = ([device for (device,) in stage.devices] for stage in plan.stages)
    assert first == [0, 1, 2, 3, 8, 9, 10, 11]
    assert second == [4, 5, 6, 7, 12, 13, 14, 15]


def test_replicas_that_are_left_out_fill_the_cluster():
    assert built(**sizes(tp=2, pp=2)).parallel.data_parallel_size == 2
    workload = tiny_job(MEMORY, family="mixtral")
    # Five replicas would fit, but experts are spread over pairs of them.
    plan = built(workload, tree(11), **sizes(tp=2, ep=2))
    assert plan.parallel.data_parallel_size == 4
    assert plan.devices_used == 8


def test_sequence_parallelism_needs_something_to_split():
    assert built(**sizes(tp=2), sequence_parallel=True).parallel.sequence_parallel
    assert not built(sequence_parallel=True).parallel.sequence_parallel
    assert not built(**sizes(tp=2)).parallel.sequence_parallel


# Layers.


def test_layers_are_shared_evenly_and_the_ends_keep_embedding_and_head():
    plan = built(**sizes(pp=4))
    assert blocks_of(plan, 4) == [[[0]], [[1]], [[2]], [[3]]]
    assert plan.stages[0].chunks[0][0] == 0
    names = tiny_job(MEMORY).graph.names
    assert plan.stages[-1].chunks[-1][1] == len(names) - 1


@failures.over(
    ("settings_given", "counts"),
    [
        ({"num_layers_in_first_pipeline_stage": 1}, [1, 3, 3, 3]),
        ({"num_layers_in_last_pipeline_stage": 1}, [3, 3, 3, 1]),
        (
            {
                "num_layers_in_first_pipeline_stage": 0,
                "num_layers_in_last_pipeline_stage": 2,
            },
            [0, 4, 4, 2],
        ),
        ({"num_layers_per_pipeline_stage": (1, 4, 5, 0)}, [1, 4, 5, 0]),
    ],
)
def test_uneven_stages_hold_what_is_asked_for(settings_given, counts):
    workload = tiny_job(MEMORY, num_blocks=10)
    plan = built(workload, **sizes(pp=4), **settings_given)
    assert [len(held[0]) for held in blocks_of(plan, 10)] == counts
    assert price_plan(NETWORK, workload, plan).iteration_time > 0


@given(
    pp=st.integers(2, 4),
    v=st.integers(2, 3),
    each=st.lists(st.integers(1, 2), min_size=4, max_size=4),
)
@settings(max_examples=20)
def test_chunks_are_dealt_out_in_megatrons_rounds(pp, v, each):
    """Round c, stage i: all blocks of earlier rounds, then those of earlier stages."""
    per_chunk = each[:pp]
    num_blocks = v * sum(per_chunk)
    workload = tiny_job(MEMORY, num_blocks=num_blocks)
    workload = replace(
        workload, training=replace(workload.training, global_batch_size=12)
    )
    plan = built(
        workload,
        **sizes(pp=pp, dp=1),
        virtual_pipeline_model_parallel_size=v,
        num_layers_per_pipeline_stage=tuple(v * count for count in per_chunk),
    )
    start = 0
    found = blocks_of(plan, num_blocks)
    for c in range(v):
        for stage, count in enumerate(per_chunk):
            assert found[stage][c] == list(range(start, start + count))
            start += count
    assert plan.schedule == "interleaved-1f1b"
    assert price_plan(NETWORK, workload, plan).iteration_time > 0


# Everything together.


def spec_of(plan: Plan) -> PlanSpec:
    """Say in settings what a plan is."""
    groups = {stage.sharding_group_size for stage in plan.stages if stage.zero_stage}
    return PlanSpec(
        **{name: getattr(plan.parallel, name) for name in sizes()},
        sequence_parallel=plan.parallel.sequence_parallel,
        virtual_pipeline_model_parallel_size=plan.virtual_pipeline_model_parallel_size,
        micro_batch_size=plan.micro_batch_size,
        schedule=plan.schedule,
        recompute=tuple(stage.recompute for stage in plan.stages),
        zero_stage=tuple(stage.zero_stage for stage in plan.stages),
        sharding_group_size=groups.pop() if groups else None,
        num_layers_per_pipeline_stage=tuple(
            sum(len(chunk) for chunk in held) for held in blocks_of(plan, 4)
        ),
        placement=plan.placement,
        gradient_algorithm=plan.gradient_algorithm,
        tensor_algorithm=plan.tensor_algorithm,
    )


def can_be_written(plan: Plan) -> bool:
    """Tell whether the microbatches are full and the head stays with the last norm."""
    full = 16 % (plan.parallel.data_parallel_size * plan.micro_batch_size) == 0
    groups = {stage.sharding_group_size for stage in plan.stages if stage.zero_stage}
    final_norm = 1 + 4
    return full and len(groups) < 2 and plan.stages[-1].chunks[-1][0] <= final_norm


@failures.over(("memory", "tps"), [(80e9, (1, 2)), (1.5e6, (1, 2, 4))])
def test_what_the_search_finds_can_be_written_as_settings(memory, tps):
    workload = tiny_job(memory)
    spec = SearchSpec(keep_best=40, tensor_model_parallel_sizes=tps)
    found = [priced.plan for priced in search(NETWORK, workload, spec).plans]
    written = [plan for plan in found if can_be_written(plan)]
    assert len(written) >= 5
    for plan in written:
        assert build_plan(NETWORK, workload, spec_of(plan)) == plan
    for plan in found:
        check_plan(workload, plan, NETWORK.num_devices)


def test_auto_stands_for_the_algorithm_that_the_search_would_take():
    workload = tiny_job(MEMORY)
    spec = SearchSpec(
        keep_best=1,
        tensor_model_parallel_sizes=(2,),
        pipeline_model_parallel_sizes=(1,),
        data_parallel_sizes=(4,),
        micro_batch_sizes=(1,),
        recompute=("none",),
        zero_stages=(0,),
    )
    (best,) = search(NETWORK, workload, spec).plans
    plan = built(
        workload,
        **sizes(2, 1, 1, 4, 1),
        sequence_parallel=True,
        placement=best.plan.placement,
    )
    assert plan == best.plan
    assert {plan.gradient_algorithm, plan.tensor_algorithm} <= set(ALGORITHMS)
    fixed = replace(plan, gradient_algorithm="ring", tensor_algorithm="ring")
    assert with_algorithms(NETWORK, workload, fixed) is fixed


# Mistakes.

MISTAKES = {
    "too many devices": (
        {**sizes(tp=4, pp=4, dp=2)},
        "pipeline_model_parallel_size",
        ("more devices than the cluster has", "4 x context 1", "= 32 to be at most 8"),
    ),
    "too many replicas": (
        {**sizes(tp=2, dp=16)},
        "data_parallel_size",
        ("more devices than the cluster has", "got:      16"),
    ),
    "too many devices without replicas": (
        {**sizes(tp=4, pp=4)},
        "pipeline_model_parallel_size",
        ("more devices than the cluster has", "got:      4", "at most 8"),
    ),
    "heads": (
        {**sizes(tp=8)},
        "tensor_model_parallel_size",
        ("does not divide num_attention_heads 12", "expected: one of 1, 2, 3, 4, 6"),
    ),
    "sequence": (
        {**sizes(cp=5)},
        "context_parallel_size",
        ("sequence_length 48 does not split into", "expected: one of 1, 2, 3, 4, 6"),
    ),
    "experts of a dense model": (
        {**sizes(ep=2)},
        "expert_model_parallel_size",
        ("the model has no experts", "expected: one of 1"),
    ),
    "batch": (
        {**sizes(dp=3)},
        "micro_batch_size",
        ("does not split into full microbatches", "(3) to divide global_batch_size 16"),
    ),
    "micro-batch": (
        {"micro_batch_size": 5},
        "micro_batch_size",
        ("got:      5", "global_batch_size 16"),
    ),
    "layers": (
        {**sizes(pp=3)},
        "pipeline_model_parallel_size",
        ("do not split evenly", "3 stages to share 4 layers", "num_layers_per"),
    ),
    "more stages than layers": (
        {**sizes(pp=8)},
        "pipeline_model_parallel_size",
        ("do not split evenly",),
    ),
    "layers beside the first stage": (
        {**sizes(pp=4), "num_layers_in_first_pipeline_stage": 2},
        "num_layers_in_first_pipeline_stage",
        ("do not split evenly", "3 stages to share 2 layers, 2 of them in the first"),
    ),
    "too many layers in the last stage": (
        {**sizes(pp=2), "num_layers_in_last_pipeline_stage": 5},
        "num_layers_in_last_pipeline_stage",
        ("do not split evenly", "got:      5"),
    ),
    "first and last that leave layers over": (
        {
            **sizes(pp=2),
            "num_layers_in_first_pipeline_stage": 1,
            "num_layers_in_last_pipeline_stage": 1,
        },
        "num_layers_in_first_pipeline_stage",
        ("0 stages to share 2 layers",),
    ),
    "layers that do not add up": (
        {**sizes(pp=2), "num_layers_per_pipeline_stage": (2, 1)},
        "num_layers_per_pipeline_stage",
        ("does not add up", "got:      [2, 1]", "add up to 4, not 3"),
    ),
    "a stage without layers": (
        {**sizes(pp=4), "num_layers_per_pipeline_stage": (2, 0, 1, 1)},
        "num_layers_per_pipeline_stage",
        ("stage 1 does not get layers",),
    ),
    "chunks without layers": (
        {**sizes(pp=4), "virtual_pipeline_model_parallel_size": 2},
        "pipeline_model_parallel_size",
        ("stage 0 does not get layers for every chunk", "a multiple of the 2 chunks"),
    ),
    "microbatches of chunks": (
        {
            **sizes(pp=2, dp=4),
            "micro_batch_size": 4,
            "virtual_pipeline_model_parallel_size": 2,
            "schedule": "dualpipe-v",
        },
        "schedule",
        ("dualpipe-v does not work", "got:      1", "4 or more, 2 for each"),
    ),
    "chunks of one stage": (
        {**sizes(dp=1), "virtual_pipeline_model_parallel_size": 2},
        "schedule",
        ("number of pipeline stages", "expected: 2 or more"),
    ),
    "chunks of a plain schedule": (
        {
            **sizes(pp=2),
            "virtual_pipeline_model_parallel_size": 2,
            "schedule": "gpipe",
        },
        "schedule",
        ("number of chunks per stage", "got:      2"),
    ),
    "unknown schedule": (
        {"schedule": "dual"},
        "schedule",
        ("no such schedule", '"1f1b"', '"gpipe"'),
    ),
    "unknown algorithm": (
        {"gradient_algorithm": "rings"},
        "gradient_algorithm",
        ("not one of the known values", 'one of "auto", "ring"'),
    ),
    "stage recompute of chunks": (
        {
            **sizes(pp=2),
            "virtual_pipeline_model_parallel_size": 2,
            "recompute": "stage",
        },
        "recompute",
        ("not run again as a whole", '"none", "selective", "full"'),
    ),
    "order without a dimension": (
        {**sizes(pp=2), "order": "tp-dp"},
        "order",
        ("leaves out a dimension", "pp in it, whose size is 2"),
    ),
    "unknown placement": (
        {**sizes(pp=2, dp=4), "placement": "tp1 pp4 dp2"},
        "placement",
        ("no such placement", '"tp1 dp4 pp2"', '"tp1 pp2 dp4"'),
    ),
}


@failures.over("case", MISTAKES.values(), ids=MISTAKES.keys())
def test_what_does_not_fit_is_told_with_the_setting(case):
    given, where, words = case
    with pytest.raises(InputError) as caught:
        built(**given)
    assert caught.value.where == where
    for word in words:
        assert word in str(caught.value)


def test_experts_are_spread_over_whole_groups_of_replicas():
    workload = tiny_job(MEMORY, family="mixtral")
    with pytest.raises(InputError, match="does not divide the replicas") as caught:
        built(workload, **sizes(ep=2, dp=1))
    assert caught.value.where == "expert_model_parallel_size"
    with pytest.raises(InputError, match="does not divide the 2 experts") as caught:
        built(workload, **sizes(ep=4, dp=4))
    assert "expected: one of 1, 2" in str(caught.value)


PAIRED = {"overlap_moe_expert_parallel_comm": True}


def test_all_to_alls_beside_another_microbatch_make_a_combined_schedule():
    workload = tiny_job(MEMORY, family="mixtral")
    alone = built(workload, **sizes(ep=2, dp=2), **PAIRED)
    assert alone.schedule == "combined-1f1b"
    chunks = {"virtual_pipeline_model_parallel_size": 2}
    dealt = built(workload, **sizes(ep=2, dp=2, pp=2), **chunks, **PAIRED)
    assert dealt.schedule == "combined-interleaved-1f1b"
    assert dealt.overlap_moe_expert_parallel_comm


@failures.over(
    ("settings_given", "where"),
    [
        (sizes(ep=1, dp=2), *PAIRED),
        ({**sizes(ep=2, dp=2), "recompute": "full"}, *PAIRED),
        ({**sizes(ep=2, dp=2), "schedule": "gpipe"}, "schedule"),
    ],
)
def test_pairs_that_cannot_be_are_refused(settings_given, where):
    with pytest.raises(InputError) as caught:
        built(tiny_job(MEMORY, family="mixtral"), **settings_given, **PAIRED)
    assert caught.value.where == where


def test_layers_of_experts_that_run_again_do_not_go_beside_another_microbatch():
    workload = tiny_job(MEMORY, family="mixtral")
    again = replace(workload.software, recompute_modules=("moe",))
    settings_given = {**sizes(ep=2, dp=2), "recompute": "selective", **PAIRED}
    built(workload, **settings_given)
    with pytest.raises(InputError, match="send their tokens again") as caught:
        built(replace(workload, software=again), **settings_given)
    assert caught.value.where == "overlap_moe_expert_parallel_comm"


CONTRADICTIONS = {
    "a mode for two of four": (
        {**sizes(pp=4), "recompute": ("none", "full")},
        "recompute",
    ),
    "a ZeRO stage for one of two": ({**sizes(pp=2), "zero_stage": (1,)}, "zero_stage"),
    "layers of one of two": (
        {**sizes(pp=2), "num_layers_per_pipeline_stage": (4,)},
        "num_layers_per_pipeline_stage",
    ),
    "layers in two ways": (
        {
            **sizes(pp=2),
            "num_layers_per_pipeline_stage": (2, 2),
            "num_layers_in_last_pipeline_stage": 2,
        },
        "num_layers_in_last_pipeline_stage",
    ),
    "a first stage of one": (
        {"num_layers_in_first_pipeline_stage": 2},
        "num_layers_in_first_pipeline_stage",
    ),
    "two placements": ({"order": "tp-dp-pp", "placement": "tp1 dp8"}, "order"),
    "tensor parallelism outside": ({"order": "dp-tp-pp"}, "order"),
    "a dimension twice": ({"order": "tp-dp-dp"}, "order"),
    "an unknown dimension": ({"order": "tp-xp"}, "order"),
    "an empty order": ({"order": ""}, "order"),
    "shards of nothing": ({"sharding_group_size": 2}, "sharding_group_size"),
}


@failures.over("case", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradictions_are_refused_before_anything_is_built(case):
    given, where = case
    with pytest.raises(InputError) as caught:
        PlanSpec(**{"micro_batch_size": 1, **given})
    assert caught.value.where == where
    assert caught.value.expected


def test_a_sharding_group_that_the_network_does_not_form_is_refused():
    workload = tiny_job(MEMORY)
    plan = built(workload, **sizes(dp=8), zero_stage=1, sharding_group_size=3)
    with pytest.raises(InputError, match="do not form such groups") as caught:
        price_plan(NETWORK, workload, plan)
    assert caught.value.where == "sharding_group_size"
    assert "one of [8, 4]" in caught.value.expected


# Any plan at all.

LEGAL = {
    name: built(workload, **given)
    for name, workload, given in (
        ("pipeline", tiny_job(MEMORY), {**sizes(2, 1, 1, 2, 2), "zero_stage": 1}),
        (
            "chunks",
            tiny_job(MEMORY),
            {**sizes(pp=2, dp=4), "virtual_pipeline_model_parallel_size": 2},
        ),
    )
}
VALUES = st.one_of(
    st.integers(-2, 9),
    st.sampled_from([10**12, "ring", "full", "1f1b", "", None, True, 2.5]),
    st.lists(st.integers(0, 8), max_size=3),
    st.just([[0, 5]]),
)


def places(value, path=()):
    """Yield where every value of a document is."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*path, key)
        if isinstance(one, dict | list):
            yield from places(one, (*path, key))


@given(name=st.sampled_from(list(LEGAL)), data=st.data())
@settings(max_examples=100)
def test_any_value_in_any_place_of_a_file_is_accepted_or_explained(
    name, data, tmp_path_factory
):
    written = LEGAL[name].to_json()
    *path, last = data.draw(st.sampled_from(list(places(written))))
    inner = written
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(VALUES)
    file = tmp_path_factory.getbasetemp() / "plan.json"
    file.write_text(json.dumps(written), encoding="utf-8")
    workload = tiny_job(MEMORY)
    try:
        plan = read_plan(file)
        check_plan(workload, plan, NETWORK.num_devices)
        priced = price_plan(NETWORK, workload, with_algorithms(NETWORK, workload, plan))
    except InputError as error:
        event(error.problem)
    else:
        event("accepted")
        assert np.isfinite(priced.iteration_time)
        devices = [d for stage in plan.stages for row in stage.devices for d in row]
        assert len(set(devices)) == len(devices) == plan.parallel.num_devices


@failures.over(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"", "not JSON"),
        (b"[]", "has the wrong type"),
        (b"\xff", "is not UTF-8"),
        (b'{"parallel": {}}', "virtual_pipeline_model_parallel_size: key is missing"),
        (b'{"parallel": {"tensor_model_parallel_size": 8.0}}', "a whole number"),
        (b'{"micro_batch_size": NaN}', "not finite"),
    ],
)
def test_files_that_are_no_plans_are_refused(content, words, tmp_path):
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_plan(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert words in str(caught.value)


def test_a_folder_is_no_plan(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_plan(tmp_path)


def with_second_stage(plan: Plan, *rows: tuple[int, ...]) -> Plan:
    first, second = plan.stages
    return replace(plan, stages=(first, replace(second, devices=rows)))


PIPELINE = LEGAL["pipeline"]
ELSEWHERE = {
    "a smaller cluster": (
        replace(PIPELINE.parallel, data_parallel_size=4),
        "parallel.data_parallel_size",
        "more devices than the cluster has",
    ),
    "another batch": (
        replace(PIPELINE, num_microbatches=3),
        "num_microbatches",
        "expected: 8, with micro-batches of 1 on 2 replicas and a global batch of 16",
    ),
    "fewer stages": (
        replace(PIPELINE, stages=PIPELINE.stages[:1]),
        "stages",
        "expected: 2, as parallel.pipeline_model_parallel_size says",
    ),
    "a device that is not there": (
        with_second_stage(PIPELINE, (4, 5), (6, 8)),
        "stages[1].devices",
        "no such device",
    ),
    "a device twice": (
        with_second_stage(PIPELINE, (4, 5), (6, 0)),
        "stages",
        "used more than once",
    ),
    "too few replicas": (
        with_second_stage(PIPELINE, (4, 5)),
        "stages[1].devices",
        "2 rows (data) of 2 (context x tensor)",
    ),
}


@failures.over("case", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_plan_for_something_else_is_refused(case):
    plan, where, words = case
    if not isinstance(plan, Plan):
        plan = replace(PIPELINE, parallel=plan)
    with pytest.raises(InputError) as caught:
        check_plan(tiny_job(MEMORY), plan, NETWORK.num_devices)
    assert caught.value.where == where
    assert words in str(caught.value)
