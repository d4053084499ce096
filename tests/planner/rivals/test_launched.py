"""Plans of planners that know no framework, written out as one launches them."""

from dataclasses import replace

import numpy as np

from planner.frameworks.framework import FRAMEWORKS
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.rivals.launched import Launcher
from planner.rivals.phaze import Phaze, PhazeProgram
from planner.rivals.protocol import PlannerSettings
from planner.search.space import SearchSpec
from tests.planner.rivals.examples import small_job

UNEVEN = PlanSpec(
    micro_batch_size=1,
    pipeline_model_parallel_size=4,
    data_parallel_size=2,
    num_layers_per_pipeline_stage=(3, 2, 1, 2),
    recompute=("full", "none", "none", "none"),
    zero_stage=(0, 1, 1, 1),
    order="tp-cp-ep-pp-dp",
)


def launcher(preset: str, num_layers: int = 8, **settings):
    network, workload = small_job(num_layers)
    spec = SearchSpec(rules=FRAMEWORKS[preset].rules, **settings)
    return Launcher.of(network, workload, spec), network, workload


def blocks_of(plan, workload):
    is_block = np.array([name.startswith("block") for name in workload.graph.names])
    return [
        int(sum(is_block[first : last + 1].sum() for first, last in stage.chunks))
        for stage in plan.stages
    ]


def test_the_same_sizes_with_what_all_stages_can_share():
    # Without a table: `--num-layers` over the stages, one recompute mode, one
    # distributed optimizer, DeepSpeed's axes with data inside of pipelines.
    wrong = []
    for preset, inside in (("megatron-core", "pp"), ("deepspeed", "dp")):
        held, network, workload = launcher(preset)
        own = build_plan(network, workload, UNEVEN)
        found = held.launched(own)
        assert found is not None
        same = found.parallel == own.parallel and found.micro_batch_size == 1
        blocks = blocks_of(found, workload)
        even = set(blocks[1:-1]) == {2} and sum(blocks) == 8
        alike = {(s.recompute, s.zero_stage) for s in found.stages}
        step = found.stages[0].devices[0][0], found.stages[1].devices[0][0]
        order = "pp" if step[1] - step[0] == 1 else "dp"
        if not (same and even and len(alike) == 1 and order == inside):
            wrong.append((preset, blocks, alike, order))
        assert held.refused == [own]
        assert "recompute" in held.notes(found)[0]
    assert not wrong


def test_a_plan_that_can_be_launched_is_left_alone():
    held, network, workload = launcher("megatron-core")
    even = replace(UNEVEN, num_layers_per_pipeline_stage=None, recompute="none")
    own = build_plan(network, workload, replace(even, zero_stage=1))
    assert held.launched(own) is own
    assert not held.refused
    assert not held.notes(own)


def test_free_plans_are_held_to_memory_alone():
    held, network, workload = launcher("megatron-core", launchable=False)
    own = build_plan(network, workload, UNEVEN)
    assert held.launched(own) is own
    assert not held.refused


def test_sizes_that_cannot_be_launched_are_not_searched():
    network, workload = small_job(8)
    spec = SearchSpec(rules=FRAMEWORKS["megatron-core"].rules)
    program = PhazeProgram.of(network, workload, spec)
    batch = workload.training.global_batch_size
    for one in program.plans():
        sizes = one.configuration
        assert sizes.devices == network.num_devices
        assert batch % (sizes.dp * sizes.b) == 0


def test_phaze_takes_the_best_of_all_micro_batches_and_context_parallel_sizes():
    network, workload = small_job()
    told = PlannerSettings()
    each = {
        (b, cp): Phaze().find(
            network,
            workload,
            SearchSpec(micro_batch_sizes=(b,), context_parallel_sizes=(cp,)),
            told,
        )
        for b in (1, 2, 4)
        for cp in (1, 2)
    }
    spec = SearchSpec(micro_batch_sizes=(1, 2, 4), context_parallel_sizes=(1, 2))
    found = Phaze().find(network, workload, spec, told)
    assert found.belief == min(outcome.belief for outcome in each.values())
    assert found.belief < each[1, 1].belief
    assert found.evaluations == sum(outcome.evaluations for outcome in each.values())
