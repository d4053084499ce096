"""Why not this configuration: rules, prices beside the winner, lack of memory."""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators.layers.shares import divisibility_problem
from planner.cost.pricing import plan_degrees, price_plan
from planner.explain.explain import explain
from planner.explain.request import SETTINGS, Request, broken_rule, exclusions
from planner.frameworks.framework import FRAMEWORKS
from planner.search.best_first import search
from planner.search.replayed.beyond import search_by_replay
from planner.search.replayed.replays import Replays
from planner.search.space import SearchSpec, inner_configurations
from tests import failures
from tests.planner.examples import eight_devices, tiny_job
from tests.planner.search.replayed.test_search import Judge, whole_of
from tests.planner.search.replayed.worlds import random_world
from tests.planner.strategies import networks, workloads
from topologies.errors import InputError

relaxed = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SMALL = SearchSpec(
    micro_batch_sizes=(1, 2),
    tensor_model_parallel_sizes=(1, 2),
    context_parallel_sizes=(1,),
    virtual_pipeline_model_parallel_sizes=(1, 2),
    recompute=("none", "selective", "full", "stage"),
)

AMPLE = 80e9
MEMORIES = (50e3, 150e3, 200e3, 250e3, 350e3, AMPLE)
SIZES = ("tp", "pp", "dp", "cp", "ep", "b", "v")


def parsed(text):
    return dict(Request.parse(text).values)


def test_every_key_and_alias_is_read():
    text = "tp=8, pp=4,dp=32 ,cp=2,ep=1,mbs=3,vpp=2,recompute=full,zero=0"
    assert parsed(text) == {
        "tp": 8,
        "pp": 4,
        "dp": 32,
        "cp": 2,
        "ep": 1,
        "b": 3,
        "v": 2,
        "recompute": "full",
        "zero": 0,
    }


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{key: st.integers(1, 10**9) for key in SIZES},
            "recompute": st.sampled_from(["none", "selective", "full", "stage"]),
            "zero": st.integers(0, 3),
        },
    ).filter(bool)
)
def test_what_is_named_is_written_as_it_is_read(values):
    assert parsed(str(Request(values=values))) == values


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_words(text):
    try:
        values = parsed(text)
    except InputError:
        return
    assert values
    assert set(values) <= set(SETTINGS)


@failures.over(
    ("text", "problem", "hint"),
    [
        ("tpp=8", "unknown key", "did you mean tp?"),
        ("recompte=full", "unknown key", "did you mean recompute?"),
        ("recompute=ful", "recompute has no such value", "did you mean full?"),
        ("zero=4", "zero has no such value", ""),
        ("tp=0", "tp is not a size", ""),
        ("tp=-1", "tp is not a size", ""),
        ("tp=2.0", "tp is not a size", ""),
        ("tp=1000000001", "tp is not a size", ""),
        ("tp=8,tp=4", "tp is named twice", ""),
        ("b=1,mbs=2", "b is named twice", ""),
        ("tp", "not a list of sizes", ""),
        ("", "not a list of sizes", ""),
    ],
)
def test_mistakes_are_named(text, problem, hint):
    with pytest.raises(InputError) as caught:
        Request.parse(text)
    assert (caught.value.problem, caught.value.hint) == (problem, hint)


def sizes(most):
    return st.integers(1, most)


named_in_full = st.fixed_dictionaries(
    {
        "tp": sizes(4),
        "pp": sizes(7),
        "dp": sizes(6),
        "cp": sizes(3),
        "ep": sizes(3),
        "b": sizes(4),
        "v": sizes(3),
    }
)


@given(workloads(wide=True), st.integers(1, 16), named_in_full, st.booleans())
@settings(max_examples=400)
def test_a_rule_is_broken_exactly_where_the_space_is_empty(
    workload, num_devices, values, sequence_parallel
):
    spec = SearchSpec(sequence_parallel=None if sequence_parallel else False)
    request = Request(values=values)
    found, _ = inner_configurations(workload, request.narrowed(spec), num_devices)
    rule = broken_rule(workload, spec, request, num_devices)
    assert (rule is None) == bool(found)


@failures.over(
    ("text", "rule"),
    [
        ("tp=5", "tensor_model_parallel_size 5 does not divide num_attention_heads 12"),
        ("ep=2", "expert_model_parallel_size 2, but the model has no experts"),
        (
            "tp=2,pp=2,dp=3",
            "tp 2 x pp 2 x dp 3 takes 12 devices, and the cluster has 8",
        ),
        ("pp=8", "pp 8 is more stages than the chain has layers (7, 4 of them blocks)"),
        (
            "dp=8,b=3",
            "8 replicas with a micro-batch of 3 take 24 sequences, and the global "
            "batch has 16",
        ),
        ("v=3", "v 3 does not divide the 4 blocks"),
        (
            "v=2,recompute=stage",
            "recompute stage needs stages of one chunk, and v is 2",
        ),
        ("v=2,pp=1", "v 2 needs at least 2 stages, and pp is 1"),
        ("v=2,pp=4", "v 2 x pp 4 is more chunks than there are blocks (4)"),
        (
            "v=2,pp=3,dp=1,b=1,tp=2",
            "interleaving (v 2) needs rounds of one length, of pp 3 or a little more, "
            "and b 1 with dp 1 makes 16 microbatches",
        ),
    ],
)
def test_the_broken_rule_is_said(text, rule):
    workload = tiny_job(AMPLE, num_blocks=6 if "pp=3" in text else 4)
    found = explain(eight_devices(), workload, SearchSpec(), Request.parse(text))
    assert (found.verdict, found.rule, found.priced) == ("outside", rule, None)
    assert found.winner is not None


def test_experts_must_divide_the_ranks_that_they_are_spread_over():
    workload = tiny_job(AMPLE, family="mixtral")
    wrong = "ep 2 does not divide dp 3, over which the experts are spread"
    free, core = SearchSpec(), SearchSpec(rules=FRAMEWORKS["megatron-core"].rules)
    for spec, text, expected in (
        (free, "ep=2,dp=3", None),
        (free, "ep=2,dp=3,cp=2,tp=1", None),
        # Without rules an expert is split as the other layers are.
        (free, "ep=2,dp=3,cp=1,tp=2", wrong),
        (core, "ep=2,dp=3,cp=1,tp=2", None),
        (core, "ep=2,dp=3,cp=1,tp=1", wrong),
    ):
        found = broken_rule(workload, spec, Request.parse(text), 8)
        assert found == expected
    within = replace(workload.software, experts_within_data=True)
    over_replicas = replace(workload, software=within)
    request = Request.parse("ep=2,dp=3")
    assert broken_rule(over_replicas, SearchSpec(), request, 8) == wrong
    assert broken_rule(workload, SearchSpec(), Request.parse("ep=2"), 1) == (
        "ep 2 takes 2 devices, and the cluster has 1"
    )


def test_a_scenario_that_leaves_nothing_is_blamed():
    spec = SearchSpec(data_parallel_sizes=(8,))
    found = explain(eight_devices(), tiny_job(AMPLE), spec, Request.parse("tp=2"))
    assert found.verdict == "outside"
    assert found.rule == (
        "no size that the scenario allows (search.data_parallel_sizes) goes with tp=2"
    )


requested_values = st.fixed_dictionaries(
    {},
    optional={
        "tp": sizes(2),
        "pp": sizes(3),
        "dp": sizes(4),
        "b": sizes(2),
        "v": sizes(2),
        "zero": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full", "stage"]),
    },
).filter(bool)


@given(networks(), st.sampled_from(MEMORIES), requested_values)
@relaxed
def test_what_is_named_is_priced_and_never_beats_the_winner(network, memory, values):
    workload = tiny_job(memory, num_blocks=2)
    found = explain(network, workload, SMALL, Request(values=values))
    assert not found.excluded
    if found.priced is None:
        assert found.verdict == "outside"
        assert found.rule
        return
    check_named(found.priced.plan, values)
    again = price_plan(network, workload, found.priced.plan)
    assert again.iteration_time == found.priced.iteration_time
    if found.winner is None:
        assert found.verdict == "does not fit"
        assert found.infeasibility
        return
    gap = found.time - found.winner_time
    assert found.time == found.priced.closed_form_time
    assert found.winner_time == found.winner.closed_form_time
    assert sum(found.differences().values()) == pytest.approx(gap, rel=1e-6, abs=1e-6)
    term, most = found.largest_difference()
    assert found.differences()[term] == most
    if found.fits:
        assert found.verdict in {"winner", "equal", "slower"}
        assert (gap >= -1e-6) <= (most >= -1e-6)
    else:
        assert found.verdict == "does not fit"
        assert found.missing_memory > 0


def check_named(plan, values):
    shape = plan.parallel.sizes()._asdict() | {
        "b": plan.micro_batch_size,
        "v": plan.virtual_pipeline_model_parallel_size,
    }
    for key, value in values.items():
        if key == "recompute":
            assert {stage.recompute for stage in plan.stages} == {value}
        elif key == "zero":
            assert {stage.zero_stage for stage in plan.stages} == {value}
        else:
            assert shape[key] == value


@given(networks(), workloads(max_blocks=3, memory=1e6))
@relaxed
def test_naming_the_winner_explains_that_it_won(network, workload):
    winner = search(network, workload, SMALL).plans[0].plan
    values = winner.parallel.sizes()._asdict() | {
        "b": winner.micro_batch_size,
        "v": winner.virtual_pipeline_model_parallel_size,
    }
    found = explain(network, workload, SMALL, Request(values=values))
    assert found.verdict == "winner"
    assert found.ratio == 1.0
    assert set(found.differences().values()) == {0.0}


def test_the_winner_has_the_best_of_all_replays_where_chunks_hold_unequal_blocks():
    # 7 blocks in two chunks or more: none divides them.
    for seed in (19, 33):
        world = random_world(seed, preset="megatron-core", most_devices=8).spec_with(
            micro_batch_sizes=(1,),
            tensor_model_parallel_sizes=(1,),
            context_parallel_sizes=(1,),
            virtual_pipeline_model_parallel_sizes=(1, 2),
            recompute=("none",),
            zero_stages=(1,),
            idle_devices=False,
            proven_gap=0.0,
            proposals=0,
        )
        assert world.workload.chain[1] % 2
        case = whole_of(world)
        best = {
            v: min(
                case.times[name]
                for name, plan in case.plans.items()
                if plan.virtual_pipeline_model_parallel_size == v
            )
            for v in (1, 2)
        }
        assert best[2] < best[1]
        network, workload, spec, settings, _ = world
        replays = Replays(judge=Judge(case), by_layer=settings.granularity == "layer")
        answer = search_by_replay(network, workload, spec, replays).plans[0]
        for v, verdict in ((1, "slower"), (2, "winner")):
            request = Request.parse(f"v={v}")
            found = explain(network, workload, spec, request, replays=replays)
            assert found.winner.plan == answer.priced.plan
            assert found.winner_time == answer.time <= best[2] + case.slack
            assert best[v] <= found.time <= best[v] + case.slack
            assert (found.verdict, found.excluded) == (verdict, ())
            check_named(found.priced.plan, {"v": v})
            total = sum(found.terms_of(found.priced).values())
            assert total == pytest.approx(found.time)


def test_what_no_framework_launches_is_priced_with_a_word():
    network, workload = eight_devices(), tiny_job(AMPLE)
    spec = SearchSpec(rules=FRAMEWORKS["megatron-lm"].rules)
    # Any other time than the planned one.
    replays = Replays(
        judge=lambda priced, _: (
            2.0 * price_plan(network, workload, priced.plan).iteration_time
        )
    )
    found = explain(network, workload, spec, Request.parse("zero=3"), replays=replays)
    (refusal,) = found.excluded
    assert refusal.startswith("Megatron-LM, core 0.8 cannot launch it (")
    assert "zero stage: 3; expected: one of 0, 1" in refusal
    assert {stage.zero_stage for stage in found.winner.plan.stages} <= {0, 1}
    assert found.time == 2.0 * found.priced.iteration_time
    broken = explain(network, workload, spec, Request.parse("tp=5"), replays=replays)
    assert (broken.verdict, broken.priced) == ("outside", None)


def test_values_that_the_scenario_leaves_out_are_priced_all_the_same():
    network, workload = eight_devices(), tiny_job(AMPLE)
    best = search(network, workload, SearchSpec()).plans[0]
    dp = best.plan.parallel.data_parallel_size
    poor = SearchSpec(data_parallel_sizes=(dp // 2 if dp > 1 else 2,))
    found = explain(network, workload, poor, Request.parse(f"dp={dp}"))
    assert found.verdict == "faster"
    assert found.excluded == (
        f"search.data_parallel_sizes allows only {poor.data_parallel_sizes[0]}",
    )
    assert found.priced.iteration_time == best.iteration_time
    assert found.largest_difference()[1] < 0


def test_sizes_that_are_no_powers_of_two_are_said_not_to_be_searched():
    said = list(exclusions(SearchSpec(), Request.parse("b=3,cp=6,tp=3")))
    assert said == [
        "search.micro_batch_sizes is left out, which means powers of two up to 64",
        "search.context_parallel_sizes is left out, which means powers of two",
    ]
    listed = SearchSpec(micro_batch_sizes=(3,), recompute=("none",), zero_stages=(1,))
    said = list(exclusions(listed, Request.parse("b=3,recompute=full,zero=2")))
    assert said == [
        "search.recompute allows only none",
        "search.zero_stages allows only 1",
    ]


def test_what_does_not_fit_is_priced_as_if_it_did():
    network, text = eight_devices(), "tp=1,pp=1,dp=8,recompute=none,zero=0"
    roomy = explain(network, tiny_job(AMPLE), SearchSpec(), Request.parse(text))
    needed = max(stage.peak_memory for stage in roomy.priced.stages)
    tight = tiny_job(0.5 * needed)
    found = explain(network, tight, SearchSpec(), Request.parse(text))
    assert found.verdict == "does not fit"
    assert found.winner is not None
    # The least of the micro-batch sizes, which is not the fastest.
    assert found.priced.plan.micro_batch_size == 1
    assert found.missing_memory > 0
    enough = tiny_job(found.memory + found.missing_memory)
    spec = Request.parse(text).narrowed(SearchSpec())
    assert search(network, enough, spec).plans
    less = tiny_job((found.memory + found.missing_memory) * 0.98)
    assert not search(network, less, spec).plans


def test_a_reserve_is_not_for_plans():
    network, text = eight_devices(), Request.parse("tp=1,pp=1")
    found = explain(network, tiny_job(AMPLE), SearchSpec(memory_reserve=AMPLE), text)
    assert (found.memory, found.winner, found.verdict) == (0.0, None, "does not fit")
    assert math.isinf(found.lower_bound)


def test_a_search_stopped_without_a_plan_leaves_what_is_named(monkeypatch):
    monkeypatch.setattr("planner.work.MOST_WORK", 10)
    network, workload = eight_devices(), tiny_job(AMPLE)
    spec = SearchSpec(work_limit=1)
    found = explain(network, workload, spec, Request.parse("tp=1,pp=1,dp=8"))
    assert found.winner is None
    assert found.spent.is_stopped
    assert found.verdict == "fits"
    degrees = plan_degrees(found.priced.plan)
    assert divisibility_problem(workload.graph.spec, degrees) is None


def test_two_explanations_agree():
    network, request = eight_devices(), Request.parse("tp=2")
    twice = [explain(network, tiny_job(AMPLE), SearchSpec(), request) for _ in range(2)]
    assert twice[0] == replace(twice[1])
