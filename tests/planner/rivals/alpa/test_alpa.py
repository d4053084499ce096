"""Alpa as a planner: its plans, its belief, what it is blind to, and its refusals."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.rivals.alpa import Alpa
from planner.rivals.alpa.choices import Freedom
from planner.rivals.alpa.planner import AlpaSearch
from planner.rivals.protocol import PlannerSettings, fits
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.work import WORK_LIMIT, Work
from tests import failures
from tests.planner.rivals.alpa.test_pipeline import every_split, step
from tests.planner.rivals.examples import small_job, tree
from tests.planner.strategies import tiny_spec
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

TOLD = PlannerSettings()
few = settings(max_examples=12)


def found_by(network, workload, spec=None, told=TOLD):
    return Alpa().find(network, workload, spec or SearchSpec(), told)


@lru_cache
def expert_job():
    workload = Workload(
        graph=trace_model(tiny_spec(4, family="mixtral")),
        training=TrainingSpec(global_batch_size=16),
        accelerator=load_accelerator("a100-80gb"),
    )
    return tree(), workload


def layers_of(plan):
    return [stage.layers for stage in plan.stages]


def test_its_belief_is_the_least_step_of_any_mesh_and_split():
    network, workload = small_job()
    spec = SearchSpec(micro_batch_sizes=(1, 2))
    search = AlpaSearch.of(network, workload, spec, Work())
    steps = []
    for sizes, case in search.choices.plans(search.num_units):
        costs = search.model.costs(case)
        assert sizes.pp * sizes.dp * sizes.tp == network.num_devices
        for cuts in every_split(search.num_units, sizes.pp):
            spans = [(cuts[n], cuts[n + 1] - 1) for n in range(sizes.pp)]
            later = [costs.most_later[span] for span in spans]
            if all(later[n] >= sizes.pp - 1 - n for n in range(sizes.pp)):
                times = [costs.time[span] for span in spans]
                steps.append(step(times, case.num_microbatches))
    outcome = found_by(network, workload, spec)
    assert outcome.belief == pytest.approx(min(steps), rel=1e-12)
    assert outcome.evaluations == len(list(search.choices.plans(search.num_units)))


def test_its_plan_is_the_first_that_fits_and_uses_every_device():
    network, workload = small_job()
    (priced,) = found_by(network, workload).plans
    sizes = priced.plan.parallel.sizes()
    assert sizes.tp * sizes.dp * sizes.pp == network.num_devices
    assert fits(workload, SearchSpec(), priced.plan, None)
    assert {stage.zero_stage for stage in priced.plan.stages} == {0}
    assert {stage.recompute for stage in priced.plan.stages} == {"none"}
    for stage in priced.plan.stages:
        devices = np.ravel(stage.devices)
        assert devices.tolist() == list(range(devices.min(), devices.max() + 1))


def test_it_splits_what_no_number_of_stages_divides():
    network, workload = small_job(num_layers=9)
    spec = SearchSpec(pipeline_model_parallel_sizes=(4,), micro_batch_sizes=(1,))
    plan = found_by(network, workload, spec).plans[0].plan
    names = workload.graph.names
    counts = [
        sum(name.startswith("block") for name in names[first : last + 1])
        for first, last in layers_of(plan)
    ]
    assert (len(counts), sum(counts), max(counts)) == (4, 9, 3)


def test_lists_of_the_space_are_kept():
    network, workload = small_job()
    spec = SearchSpec(
        tensor_model_parallel_sizes=(2,),
        data_parallel_sizes=(2,),
        micro_batch_sizes=(4,),
    )
    plan = found_by(network, workload, spec).plans[0].plan
    sizes = plan.parallel.sizes()
    assert (sizes.tp, sizes.dp, sizes.pp, plan.micro_batch_size) == (2, 2, 2, 4)


def test_experts_are_shared_where_the_space_says_so():
    network, workload = expert_job()
    for ep in (1, 2):
        spec = SearchSpec(
            expert_model_parallel_sizes=(ep,), pipeline_model_parallel_sizes=(1, 2)
        )
        plan = found_by(network, workload, spec).plans[0].plan
        assert plan.parallel.sizes().ep == ep


def test_sharing_experts_is_chosen_where_their_gradients_cost_more():
    network, workload = expert_job()
    spec = SearchSpec(
        tensor_model_parallel_sizes=(1,),
        pipeline_model_parallel_sizes=(1,),
        micro_batch_sizes=(1,),
    )
    beliefs = {}
    for ep in (1, 2):
        one = replace(spec, expert_model_parallel_sizes=(ep,))
        beliefs[ep] = found_by(network, workload, one).belief
    both = found_by(network, workload, spec)
    assert both.belief == min(beliefs.values())


@given(
    inner=st.floats(1e10, 1e12), outer=st.floats(1e8, 1e11), part=st.floats(0.1, 1.0)
)
@few
def test_its_belief_is_never_better_with_less_bandwidth(inner, outer, part):
    _, workload = small_job()
    spec = SearchSpec(micro_batch_sizes=(1, 2), pipeline_model_parallel_sizes=(1, 2))

    def belief(inside, between):
        levels = (
            LevelSpec(name="node", fan_out=4, bandwidth=inside, latency=1e-6),
            LevelSpec(name="leaf", fan_out=2, bandwidth=between, latency=1e-6),
        )
        network = build_network(FatTreeSpec(levels=levels))
        search = AlpaSearch.of(network, workload, spec, Work())
        search.look("none")
        return min(plan.price for plan in search.plans)

    whole = belief(inner, outer)
    assert belief(inner * part, outer) >= whole * (1 - 1e-12)
    assert belief(inner, outer * part) >= whole * (1 - 1e-12)


def test_what_nodes_send_each_other_inside_a_stage_is_seen():
    _, workload = small_job()
    spec = SearchSpec(pipeline_model_parallel_sizes=(1,))
    fast, slow = (found_by(tree(rate), workload, spec) for rate in (2.5e11, 2.5e8))
    assert slow.belief > fast.belief


def test_what_stages_send_each_other_is_not_seen():
    _, workload = small_job()
    spec = SearchSpec(pipeline_model_parallel_sizes=(2, 4))
    fast, slow = (found_by(tree(rate), workload, spec) for rate in (2.5e11, 2.5e8))
    # A node or less holds a stage: only transfers between stages leave it.
    assert fast.belief == slow.belief
    assert layers_of(fast.plans[0].plan) == layers_of(slow.plans[0].plan)
    assert fast.plans[0].iteration_time < slow.plans[0].iteration_time


def free_of(network, workload, spec):
    search = AlpaSearch.of(network, workload, spec, Work())
    search.look("none")
    best, _ = search.first_fitting()[0]
    freedom = Freedom.of(search.choices, search.model, "none")
    return best, freedom, freedom.best(best.price, best.case.sequences)


def stages_of(freedom, sequences):
    """Return what stages of three units cost, with the size of their submesh."""
    return [
        (submesh.size, costs)
        for submesh in freedom.choices.mesh.submeshes()
        for case in freedom.choices.cases(submesh, sequences, "none")
        if (costs := freedom.model.costs(case)) is not None
    ]


def every_free_step(stages, count, last=2, left=8, times=()):
    """Yield the step of every way to give eight devices to stages."""
    if last < 0:
        if left == 0:
            yield step(times, count)
        return
    for size, costs in stages:
        for first in range(last + 1) if size <= left else ():
            if costs.most_later[first, last] >= len(times):
                more = (*times, costs.time[first, last])
                yield from every_free_step(stages, count, first - 1, left - size, more)


def test_a_mesh_for_each_stage_is_never_slower_and_found_by_trying_everything():
    workload = Workload(
        graph=trace_model(tiny_spec(3)),
        training=TrainingSpec(global_batch_size=16),
        accelerator=load_accelerator("a100-80gb"),
    )
    spec = SearchSpec(micro_batch_sizes=(1,))
    restricted, freedom, best = free_of(tree(), workload, spec)
    least = min(
        min(every_free_step(stages_of(freedom, sequences), 16 // sequences))
        for sequences in freedom.choices.sequences(3)
    )
    assert best.time == pytest.approx(min(least, restricted.price), rel=1e-12)
    assert best.is_exact
    assert best.time <= restricted.price


def test_a_note_says_what_one_mesh_costs():
    outcome = found_by(*small_job())
    (note,) = outcome.notes
    assert note.startswith("by its own model")
    assert "mesh for each stage" in note


def test_a_limit_leaves_the_best_so_far():
    network, workload = small_job()
    spec = SearchSpec(work_limit=1)
    stopped = found_by(network, workload, spec)
    whole = found_by(network, workload)
    assert stopped.plans
    assert stopped.spent.stopped_by == WORK_LIMIT
    assert stopped.evaluations < whole.evaluations
    assert stopped.belief >= whole.belief
    assert not whole.spent.is_stopped


def test_where_nothing_fits_without_it_passes_are_repeated():
    network, workload = small_job(num_layers=8)
    spec = SearchSpec(pipeline_model_parallel_sizes=(8,), micro_batch_sizes=(1,))
    least = math.inf
    search = AlpaSearch.of(network, workload, spec, Work())
    (case,) = (one for _, one in search.choices.plans(8))
    for recompute, later in (("none", 0), ("stage", 1)):
        costs = search.model.costs(case._replace(recompute=recompute))
        assert costs.most_later.max() > 0
        least = min(least, costs.time[0, 7])
        assert (costs.time[0, 7] > least) == bool(later)


def test_space_without_none_is_recomputed():
    network, workload = small_job()
    spec = SearchSpec(recompute=("stage",))
    plan = found_by(network, workload, spec).plans[0].plan
    assert {stage.recompute for stage in plan.stages} == {"stage"}


@failures.over(
    ("spec", "why"),
    [
        (SearchSpec(virtual_pipeline_model_parallel_sizes=(2,)), "Schedule"),
        (SearchSpec(context_parallel_sizes=(2,)), "Devices: it knows no context"),
        (SearchSpec(data_parallel_sizes=(3,)), "Devices: no submesh"),
    ],
)
def test_it_says_what_it_has_no_way_with(spec, why):
    outcome = found_by(*small_job(), spec)
    assert outcome.why_not.startswith(why)
    assert math.isnan(outcome.belief)
    assert not outcome.plans


def test_it_says_that_memory_stopped_it():
    network, workload = small_job()
    spec = SearchSpec(memory_reserve=workload.accelerator.memory_bytes - 1e4)
    outcome = found_by(network, workload, spec)
    assert outcome.why_not.startswith("Memory: by its own account")


def test_a_graph_without_operators_is_refused():
    network, workload = small_job()
    bare = Workload(
        graph=replace(workload.graph, layers=()),
        training=workload.training,
        accelerator=workload.accelerator,
    )
    assert found_by(network, bare).why_not.startswith("Model")


def test_it_says_the_same_twice():
    first, second = (found_by(*small_job()) for _ in range(2))
    assert first.plans[0].plan == second.plans[0].plan
    assert (first.belief, first.notes, first.spent) == (
        second.belief,
        second.notes,
        second.spent,
    )
    assert first.statistics == second.statistics


def test_operators_are_sharded_by_highs_in_the_plan_that_it_proposes():
    network, workload = small_job()
    spec = SearchSpec(pipeline_model_parallel_sizes=(1,), zero_stages=(0, 3))
    outcome = found_by(network, workload, spec)
    assert outcome.statistics["programs of layers solved by HiGHS"] > 0


def test_sharded_weights_are_zero_3():
    _, workload = small_job()
    training = replace(workload.training, gather_precision="fp8", global_batch_size=8)
    job = Workload(
        graph=workload.graph, training=training, accelerator=workload.accelerator
    )
    spec = SearchSpec(
        pipeline_model_parallel_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
        micro_batch_sizes=(1,),
    )
    wide = build_network(
        FatTreeSpec(
            levels=(LevelSpec(name="node", fan_out=8, bandwidth=1e7, latency=0.0),)
        )
    )
    plan = found_by(wide, job, spec).plans[0].plan
    assert {stage.zero_stage for stage in plan.stages} == {3}
