"""Plans become settings, and the settings the same plans again."""

import re
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from planner.plans.build import build_plan
from planner.plans.spec import DEFAULT_ORDER, DIMENSIONS, PlanSpec, order_names
from planner.plans.written import order_of, plan_settings
from planner.search.placements import Extents, placements, whole_dimensions
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.planner.examples import tiny_job
from tests.planner.fleets import executed_on, slow_fleet
from tests.planner.plans.test_build import MEMORY, tree
from topologies import InputError

NETWORK = tree(4, 4)
GPT = tiny_job(MEMORY, num_blocks=8)
MIXTURE = tiny_job(MEMORY, num_blocks=8, family="mixtral")
MODES = ("none", "selective", "full", "stage")


def stages(values, pp):
    """Draw one value for all stages, or one for each."""
    return st.one_of(values, st.tuples(*[values] * pp))


@st.composite
def specs(draw):
    """Draw settings of every kind; many of them contradict each other."""
    size = st.sampled_from([1, 1, 1, 2, 2, 4])
    tp, cp, pp = draw(size), draw(size), draw(st.sampled_from([1, 2, 2, 3, 4, 4]))
    assume(tp * cp * pp <= 16)
    most = 16 // (tp * cp * pp)
    schedule = draw(st.sampled_from([None, None, *SCHEDULES]))
    v = draw(st.sampled_from([1, 1, 2]))
    if schedule in SCHEDULES and SCHEDULES[schedule].num_chunks:
        v = SCHEDULES[schedule].num_chunks
    zero = draw(stages(st.sampled_from([0, 1, 2, 3]), pp))
    sharded = any(zero) if isinstance(zero, tuple) else zero > 0
    recompute = draw(stages(st.sampled_from(MODES), pp))
    some = {recompute} if isinstance(recompute, str) else {*recompute}
    levels = draw(st.sampled_from([None, None, (2, 2)])) if cp == 4 else None
    kind = "a2a+p2p" if levels else draw(st.sampled_from(["p2p", "all_gather", "a2a"]))
    parts = pp * v
    cuts = st.lists(
        st.integers(0, 8), min_size=parts - 1, max_size=parts - 1, unique=parts > 2
    )
    ends = [0, *sorted(draw(cuts)), 8] if draw(st.booleans()) else None
    layout = ends and tuple(b - a for a, b in pairwise(ends))
    where = draw(st.sampled_from(["order", "placement", "neither"]))
    order = "-".join(("tp", *draw(st.permutations(DIMENSIONS[1:]))))
    dp = draw(st.sampled_from([None, most, max(most // 2, 1)]))
    ep = draw(st.sampled_from([1, 1, 2, 4]))
    name = None
    if where == "placement":
        extents = Extents(tp, cp, ep, max((dp or most) // ep, 1), pp)
        known = placements(extents, 16, tuple(NETWORK.block_sizes))
        assume(known)
        name = draw(st.sampled_from([one.name for one in known]))
    fraction = st.sampled_from([0.0, 0.0, 0.0, 0.25, 1.0])
    counted = some & {"full", "selective"}
    return {
        "micro_batch_size": draw(st.sampled_from([1, 1, 2, 4])),
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": v,
        "data_parallel_size": dp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": draw(st.sampled_from([None, None, 1, tp])),
        "cp_comm_type": kind,
        "hierarchical_context_parallel_sizes": levels,
        "sequence_parallel": draw(st.booleans()),
        "schedule": schedule,
        "microbatch_group_size_per_vp_stage": draw(
            st.sampled_from([None, None, pp, pp + 1, 2 * pp])
        )
        if v > 1
        else None,
        "overlap_moe_expert_parallel_comm": ep > 1 and draw(st.booleans()),
        "recompute": recompute,
        "recompute_num_layers": draw(stages(st.integers(0, 3), pp))
        if counted and draw(st.booleans())
        else None,
        "zero_stage": zero,
        "sharding_group_size": draw(stages(st.sampled_from([1, 2, 4]), pp))
        if sharded and draw(st.booleans())
        else None,
        "zero_hpz_partition_size": draw(stages(st.sampled_from([1, 1, 2, 4]), pp))
        if 3 in (zero if isinstance(zero, tuple) else (zero,))
        else 1,
        "pipeline_model_parallel_layout": layout,
        "order": order if where == "order" else None,
        "placement": name,
        **{
            f"offload_{part}": draw(stages(fraction, pp))
            for part in ("weights", "gradients", "optimizer", "activations")
        },
        "gradient_algorithm": draw(st.sampled_from(["auto", "ring", "hierarchical"])),
        "tensor_algorithm": draw(st.sampled_from(["auto", "double-binary-tree"])),
    }


def closest(workload, given):
    """Return the plan of settings, without those that it cannot have."""
    given = dict(given)
    plain = ("offload_weights", "offload_gradients", "offload_activations")
    drops = [
        (),
        plain,
        ("zero_hpz_partition_size",),
        ("microbatch_group_size_per_vp_stage",),
        ("schedule", "virtual_pipeline_model_parallel_size"),
        ("pipeline_model_parallel_layout",),
        ("expert_tensor_parallel_size", "overlap_moe_expert_parallel_comm"),
        ("recompute_num_layers", "recompute"),
        ("cp_comm_type", "hierarchical_context_parallel_sizes"),
    ]
    for names in drops:
        for name in names:
            given.pop(name, None)
        try:
            return build_plan(NETWORK, workload, PlanSpec(**given))
        except InputError:
            continue
    return None


@given(settings_drawn=specs(), is_mixture=st.booleans())
@settings(max_examples=120)
def test_a_plan_is_built_of_its_settings_again(settings_drawn, is_mixture):
    workload = MIXTURE if is_mixture else GPT
    plan = closest(workload, settings_drawn)
    if plan is None:
        event("no such plan")
        return
    event(f"{plan.schedule}")
    is_block = workload.table(plan.degrees).is_block
    batch = workload.training.global_batch_size
    written = plan_settings(plan, is_block, batch)
    assert build_plan(NETWORK, workload, written) == plan
    # What is written is as short as it can be: writing it again changes nothing.
    assert plan_settings(plan, is_block, batch) == written


SIZES = [(2, 1, 1, 4, 2), (1, 2, 2, 2, 2), (2, 2, 2, 1, 2), (1, 1, 1, 1, 1)]


@failures.over("sizes", SIZES)
@failures.over("order", list(permutations(DIMENSIONS[1:])))
def test_orders_are_found_by_the_placement_that_they_make(order, sizes):
    extents = Extents(*sizes)
    name = whole_dimensions(("tp", *order), extents).name
    found = order_of(name)
    assert found is not None
    assert whole_dimensions(order_names(found), extents).name == name


def test_the_default_order_needs_no_word():
    assert order_of("tp8 cp2 dp4 pp2") == DEFAULT_ORDER
    assert order_of("tp1") == DEFAULT_ORDER
    assert order_of("tp2 pp2") == DEFAULT_ORDER


@failures.over("name", ["tp8 dp2 pp4 dp4", "tp2 pp3/8 dp2", "tp2/4 dp2"])
def test_nestings_that_are_no_order_keep_their_name(name):
    assert order_of(name) is None


SLOW_NODE = executed_on(GPT, slow_fleet(GPT, [1.0] * 4 + [2.0] * 4 + [1.0] * 8))
PIPELINE = PlanSpec(
    micro_batch_size=1,
    tensor_model_parallel_size=2,
    pipeline_model_parallel_size=4,
    data_parallel_size=2,
    placement="tp2 dp2 pp4",
)


@failures.over(
    ("order", "nodes"),
    [
        ("", [0, 1, 2, 3]),
        (", fast first", [0, 2, 3, 1]),
        (",slow  first", [1, 0, 2, 3]),
    ],
)
def test_orders_of_the_nodes_are_read_back(order, nodes):
    spec = replace(PIPELINE, placement=f"tp2 dp2 pp4{order}")
    plan = build_plan(NETWORK, SLOW_NODE, spec)
    assert [stage.devices[0][0] // 4 for stage in plan.stages] == nodes
    is_block = SLOW_NODE.table(plan.degrees).is_block
    written = plan_settings(plan, is_block, 16)
    assert build_plan(NETWORK, SLOW_NODE, written) == plan
    assert (written.placement or "").endswith(order.replace(",slow  ", ", slow "))


@failures.over(
    ("workload", "order", "expected"),
    [
        (GPT, "fast first", "nothing after the dimensions$"),
        (SLOW_NODE, "best first", 'dimensions or ", fast first" or ", slow first"$'),
    ],
)
def test_an_order_that_there_is_not_is_refused(workload, order, expected):
    spec = replace(PIPELINE, placement=f"tp2 dp2 pp4, {order}")
    with pytest.raises(InputError, match="no such order of the nodes") as caught:
        build_plan(NETWORK, workload, spec)
    assert re.search(expected, str(caught.value), re.MULTILINE)


@failures.over("schedule", ["zb-v", "dualpipe-v"])
@failures.over("layout", [None, (1, 3, 3, 1), (3, 2, 2, 1), (0, 3, 3, 2)])
def test_layouts_of_a_v_are_in_the_order_of_the_chain(schedule, layout):
    spec = PlanSpec(
        micro_batch_size=1,
        data_parallel_size=2,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
        schedule=schedule,
        pipeline_model_parallel_layout=layout,
    )
    plan = build_plan(NETWORK, GPT, spec)
    is_block = GPT.table(plan.degrees).is_block
    written = plan_settings(plan, is_block, 16)
    assert written.pipeline_model_parallel_layout == layout
    assert written.schedule == schedule
    assert build_plan(NETWORK, GPT, written) == plan
