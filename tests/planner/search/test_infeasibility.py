"""When nothing fits: what binds, by how much, and what would change it."""

import ast
import re
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from estimators.models.library import load_model
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.explain import infeasibility
from planner.explain.infeasibility import (
    binding_settings,
    restricted_settings,
    smallest_change,
)
from planner.frameworks.framework import FRAMEWORKS
from planner.search.best_first import search
from planner.search.candidates import CandidateSet
from planner.search.space import SearchSpec
from planner.search.thriftiest import PRECISION, space_infeasibility, thriftiest_plan
from planner.step.execution import Workload
from tests import failures
from tests.planner.examples import eight_devices, tiny_job
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

AMPLE = 80e9


def least(spec, **job):
    """Return the thriftiest plan of a space."""
    candidates = CandidateSet.enumerate(eight_devices(), tiny_job(AMPLE, **job), spec)
    return thriftiest_plan(candidates)


def change(memory, spec):
    return smallest_change(eight_devices(), tiny_job(memory), spec)


restricted_spaces = st.builds(
    SearchSpec,
    recompute=st.sampled_from([("none",), ("none", "full"), ("full",)]),
    zero_stages=st.sampled_from([(0,), (1,), (0, 1), (3,), (0, 1, 2, 3)]),
    micro_batch_sizes=st.sampled_from([None, (1,), (2,), (4, 8)]),
    tensor_model_parallel_sizes=st.sampled_from([None, (1,), (2, 4)]),
    pipeline_model_parallel_sizes=st.sampled_from([None, (1,), (2,), (3,)]),
    data_parallel_sizes=st.sampled_from([None, (1,), (2,)]),
    context_parallel_sizes=st.sampled_from([None, (1,), (2,)]),
    virtual_pipeline_model_parallel_sizes=st.sampled_from([None, (1,), (1, 2), (2,)]),
    sequence_parallel=st.sampled_from([None, False]),
)


@given(restricted_spaces)
@settings(max_examples=10)
@example(
    # The configuration with the least room that is necessary needs more than others.
    SearchSpec(
        recompute=("none",),
        zero_stages=(0,),
        tensor_model_parallel_sizes=(1,),
        context_parallel_sizes=(1,),
    )
)
def test_the_least_memory_is_enough_and_less_is_not(spec):
    network = eight_devices()
    candidates = CandidateSet.enumerate(network, tiny_job(AMPLE), spec)
    if not len(candidates):
        assert space_infeasibility(candidates).startswith("The search space is empty: ")
        return
    found = thriftiest_plan(candidates)
    assert found.needed == max(cost.peak_memory for cost in found.priced.stages)
    enough = search(network, tiny_job(found.needed * (1 + 1e-9)), spec)
    assert enough.plans
    less = search(network, tiny_job(found.needed * (1 - 2 * PRECISION)), spec)
    assert not less.plans


@given(restricted_spaces, st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=20)
def test_what_is_said_to_make_it_fit_does(spec, part):
    """Whatever change is proposed, a search of the changed space finds a plan."""
    network = eight_devices()
    candidates = CandidateSet.enumerate(network, tiny_job(AMPLE), spec)
    memory = part * thriftiest_plan(candidates).needed if len(candidates) else AMPLE
    said = change(memory, spec)
    found = search(network, tiny_job(memory), loosened(spec, said))
    assert bool(found.plans) == said.startswith("It would fit")


def loosened(spec, said):
    """Return the space as a sentence changes it."""
    one = re.match(r"It would fit if search\.(\w+) allowed (\S+),", said)
    if one is None:
        whole = SearchSpec()
        return replace(
            spec, **{name: getattr(whole, name) for name in binding_settings(spec)}
        )
    name, text = one.groups()
    if name == "sequence_parallel":
        assert text == "true"
        return replace(spec, sequence_parallel=True)
    value = ast.literal_eval(text)
    assert value not in getattr(spec, name)
    return replace(spec, **{name: (*getattr(spec, name), value)})


@failures.over(
    ("restricted", "said"),
    [
        ({"recompute": ("none",)}, 'search.recompute allowed "full",'),
        ({"zero_stages": (0,)}, "search.zero_stages allowed 1,"),
        (
            {"sequence_parallel": False, "tensor_model_parallel_sizes": (4,)},
            "search.sequence_parallel allowed true,",
        ),
        ({"micro_batch_sizes": (8,)}, "search.micro_batch_sizes allowed 1,"),
        (
            {"pipeline_model_parallel_sizes": (4,), "zero_stages": (0, 1, 2, 3)},
            "search.pipeline_model_parallel_sizes allowed",
        ),
        (
            {"tensor_model_parallel_sizes": (1,)},
            "search.tensor_model_parallel_sizes allowed",
        ),
        ({"data_parallel_sizes": (5,)}, "search.data_parallel_sizes allowed"),
        ({"context_parallel_sizes": (8,)}, "search.context_parallel_sizes allowed"),
        (
            {"virtual_pipeline_model_parallel_sizes": (2,)},
            "search.virtual_pipeline_model_parallel_sizes allowed 1,",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_one_restriction_to_blame_is_named(restricted, said):
    spec = SearchSpec(**restricted)
    tight = least(spec).needed
    assert least(SearchSpec()).needed < 0.98 * tight
    assert change(0.985 * tight, spec).startswith(f"It would fit if {said}")


def test_the_least_intrusive_of_several_changes_is_named():
    spec = SearchSpec(
        recompute=("none",), zero_stages=(0,), tensor_model_parallel_sizes=(1,)
    )
    memory = least(spec).needed * 0.99
    assert change(memory, spec).startswith(
        'It would fit if search.recompute allowed "selective",'
    )
    full = replace(spec, recompute=SearchSpec().recompute)
    assert change(least(full).needed * 0.99, full).startswith(
        "It would fit if search.zero_stages allowed 1,"
    )


def test_the_nearest_size_that_would_do_is_named():
    spec = SearchSpec(
        tensor_model_parallel_sizes=(1,),
        context_parallel_sizes=(1,),
        pipeline_model_parallel_sizes=(1,),
        data_parallel_sizes=(1,),
    )
    needed = [least(replace(spec, data_parallel_sizes=(n,))).needed for n in (1, 2, 3)]
    memory = needed[2] * 1.001
    assert memory < needed[1] < needed[0]
    assert "search.data_parallel_sizes allowed 3," in change(memory, spec)


def test_restrictions_that_are_too_much_together_are_named_together():
    spec = SearchSpec(
        tensor_model_parallel_sizes=(1,),
        pipeline_model_parallel_sizes=(1,),
        data_parallel_sizes=(1,),
        context_parallel_sizes=(1,),
    )
    enough = least(SearchSpec()).needed * 1.01
    said = change(enough, spec)
    assert said.startswith(
        "It would fit without search.data_parallel_sizes, "
        "search.pipeline_model_parallel_sizes, search.tensor_model_parallel_sizes, "
        "search.context_parallel_sizes together, for example as tp "
    )
    never = change(enough / 2, spec)
    assert "it would still need" in never


def test_where_nothing_is_restricted_there_is_nothing_to_loosen():
    assert change(1e3, SearchSpec()) == ""
    assert change(1e3, SearchSpec(micro_batch_sizes=(1, 2))) == ""
    assert change(1e3, SearchSpec(recompute=("none",), memory_reserve=1e3)) == ""


def test_the_infeasibility_says_where_and_of_what():
    network, spec = eight_devices(), SearchSpec(pipeline_model_parallel_sizes=(2,))
    candidates = CandidateSet.enumerate(network, tiny_job(64 * 2.0**10), spec)
    found, said = thriftiest_plan(candidates), space_infeasibility(candidates)
    assert said.startswith("Out of memory: the least demanding configuration (tp ")
    assert "a100-80gb has 64 KiB to give, " in said
    assert f"Its fullest stage, {found.stage + 1} of 2 (recompute " in said
    held = found.priced.stages[found.stage].memory
    order = [said.index(f"{name} ") for name, _ in sorted_parts(held)]
    assert order == sorted(order)


def sorted_parts(held):
    parts = sorted(held.items(), key=lambda part: -part[1])
    return [part for part in parts if part[1] > 0]


def test_a_stopped_search_is_not_called_a_lack_of_memory(monkeypatch):
    monkeypatch.setattr("planner.work.MOST_WORK", 10)
    found = search(eight_devices(), tiny_job(AMPLE), SearchSpec(work_limit=1))
    assert not found.plans
    assert found.infeasibility.startswith("Stopped by the work limit after ")


@failures.over("setting", ["micro_batch_sizes", "virtual"])
@failures.over("zero_stages", [(0,), (3,)])
@failures.over("recompute", ["none", "selective", "full"])
def test_larger_micro_batches_and_virtual_stages_save_no_memory(
    setting, zero_stages, recompute
):
    """What the least memory takes for granted."""
    name = "virtual_pipeline_model_parallel_sizes" if setting == "virtual" else setting
    for pp, dp in ((2, 1), (2, 2), (2, 4)):
        spec = SearchSpec(
            recompute=(recompute,),
            zero_stages=zero_stages,
            pipeline_model_parallel_sizes=(pp,),
            data_parallel_sizes=(dp,),
        )
        needed = [least(replace(spec, **{name: (n,)})).needed for n in (1, 2)]
        assert needed[0] <= needed[1] * (1 + PRECISION)


def test_the_infeasibility_of_a_large_space_is_found():
    network = build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=8, bandwidth=4.5e11, latency=1e-6),
                LevelSpec(name="leaf", fan_out=64, bandwidth=5e10, latency=2e-6),
            )
        )
    )
    workload = Workload(
        graph=trace_model(load_model("gpt3-175b")),
        training=TrainingSpec(global_batch_size=1536),
        accelerator=replace(load_accelerator("h100-sxm"), memory_bytes=4e9),
    )
    spec = SearchSpec(recompute=("none",), zero_stages=(0, 1))
    search(network, workload, replace(spec, tensor_model_parallel_sizes=(8,)))
    candidates = CandidateSet.enumerate(network, workload, spec)
    said = space_infeasibility(candidates)
    said += smallest_change(network, workload, spec)
    assert "Out of memory" in said


def test_what_the_framework_does_not_have_would_not_help():
    spec = SearchSpec(recompute=("none",), zero_stages=(0, 1))
    assert restricted_settings(spec) == ("recompute", "zero_stages")
    ours = replace(spec, rules=FRAMEWORKS["megatron-lm"].rules)
    assert restricted_settings(ours) == ("recompute",)
    free = replace(ours, launchable=False)
    assert restricted_settings(free) == ("recompute", "zero_stages")


def test_what_a_space_has_beyond_the_default_is_kept_where_more_is_allowed():
    spec = SearchSpec(recompute=("full", "stage"))
    assert restricted_settings(spec) == ("recompute",)
    widest = infeasibility._thriftiest_space(spec)
    assert set(widest.recompute) == {"none", "selective", "full", "stage"}
