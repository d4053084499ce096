"""What a framework cannot do shows at the sizes that it says, and at no others."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest

from estimators.grouping import Grouping
from estimators.tracing.trace import trace_model
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import ALWAYS, INTERLEAVED, ROUNDS
from planner.search.launchable_sizes import (
    LaunchFacts,
    LaunchSizes,
    deals_out,
    shape_breaches,
    size_breaches,
)
from planner.search.space import SearchSpec
from tests import failures
from tests.planner.rivals.examples import small_job
from tests.planner.strategies import tiny_spec

EVERYTHING = replace(
    FRAMEWORKS["ideal"].rules,
    pipelines_normed_queries=True,
    ties_over_stages=True,
    context_parallel_alone=False,
    sequence_parallel_with_pipeline=True,
    experts_fill_data=False,
    experts_in_fp16=True,
    experts_beside_whole_sequences=True,
    biased_experts=True,
    splits_biased_experts=True,
    experts_innermost=False,
    splits_latent_attention=True,
    splits_linear_attention=True,
    splits_sparse_attention=True,
    exchanges_latent_attention=True,
)
FACTS = LaunchFacts(
    is_block=(False, True, True, False),
    num_attention_heads=12,
    num_query_groups=12,
    num_moe_experts=12,
    has_biased_experts=False,
    sequence_length=9 * 64,
    global_batch_size=64,
    num_devices=64,
)


class Ban(NamedTuple):
    """What is not possible, and where that shows."""

    rules: dict[str, Any]
    facts: dict[str, Any]
    breaks: str
    where: Callable[[LaunchSizes], bool]


BANS = {
    "pipeline": Ban({"schedules": ()}, {}, "pipeline", lambda n: n.pp > 1),
    "normed queries": Ban(
        {"pipelines_normed_queries": False},
        {"has_normed_queries": True},
        "pipeline",
        lambda n: n.pp > 1,
    ),
    "tied": Ban(
        {"ties_over_stages": False}, {"is_tied": True}, "pipeline", lambda n: n.pp > 1
    ),
    "context alone": Ban(
        {"context_parallel_alone": True},
        {},
        "context_parallelism",
        lambda n: n.cp > 1 and (n.pp > 1 or n.tp > 1),
    ),
    "no context": Ban(
        {"context_parallel": ()}, {}, "context_parallelism", lambda n: n.cp > 1
    ),
    "latent attention": Ban(
        {"splits_latent_attention": False},
        {"has_latent_attention": True},
        "context_parallelism",
        lambda n: n.cp > 1,
    ),
    "linear attention": Ban(
        {"splits_linear_attention": False},
        {"has_linear_attention": True},
        "context_parallelism",
        lambda n: n.cp > 1,
    ),
    "sparse attention": Ban(
        {"splits_sparse_attention": False},
        {"has_sparse_attention": True},
        "context_parallelism",
        lambda n: n.cp > 1,
    ),
    "sequences beside stages": Ban(
        {"sequence_parallel_with_pipeline": False},
        {},
        "sequence_parallelism",
        lambda n: n.sequence_parallel and (n.tp == 1 or n.pp > 1),
    ),
    "split sequences": Ban(
        {"sequence_parallel": (False,)},
        {},
        "sequence_parallelism",
        lambda n: n.sequence_parallel,
    ),
    "whole sequences": Ban(
        {"sequence_parallel": (True,)},
        {},
        "sequence_parallelism",
        lambda n: n.sequence_parallel == (n.tp == 1),
    ),
    "no tensors": Ban(
        {"tensor_parallel": False}, {}, "tensor_parallelism", lambda n: n.tp > 1
    ),
    "heads": Ban(
        {}, {"num_attention_heads": 4}, "tensor_parallelism", lambda n: n.tp == 3
    ),
    "groups": Ban(
        {"copies_query_groups": False},
        {"num_query_groups": 2},
        "tensor_parallelism",
        lambda n: n.tp > 2,
    ),
    "copied groups": Ban(
        {"copies_query_groups": True},
        {"num_query_groups": 2},
        "tensor_parallelism",
        lambda n: n.tp == 3,
    ),
    "experts in fp16": Ban(
        {"experts_in_fp16": False}, {"precision": "fp16"}, "experts", lambda n: n.ep > 1
    ),
    "experts beside whole sequences": Ban(
        {"experts_beside_whole_sequences": False},
        {},
        "experts",
        lambda n: n.ep > 1 and n.tp > 1 and not n.sequence_parallel,
    ),
    "biased experts": Ban(
        {"biased_experts": False},
        {"has_biased_experts": True},
        "experts",
        lambda n: True,
    ),
    "shared biases": Ban(
        {"splits_biased_experts": False},
        {"has_biased_experts": True},
        "experts",
        lambda n: n.tp > 1,
    ),
    "experts innermost": Ban(
        {"experts_innermost": True},
        {},
        "rank_order",
        lambda n: n.ep > 1 and n.tp > 1,
    ),
    "no experts": Ban(
        {"expert_parallel": False}, {}, "expert_parallelism", lambda n: n.ep > 1
    ),
    "few experts": Ban(
        {}, {"num_moe_experts": 4}, "expert_parallelism", lambda n: n.ep == 3
    ),
}


@pytest.mark.parametrize("name", BANS)
def test_what_is_not_possible_shows_where_it_is_asked_for(name: str) -> None:
    ban, failures = BANS[name], []
    rules, facts = replace(EVERYTHING, **ban.rules), replace(FACTS, **ban.facts)
    for tp, cp, ep, pp, splits in product(
        *((1, 2, 3, 4), (1, 2, 3), (1, 2, 3), (1, 2, 3), (False, True))
    ):
        grouping = Grouping.of((tp, cp, ep))
        sizes = LaunchSizes(tp, cp, ep, grouping, splits, pp)
        found = {
            rule
            for breaches in (size_breaches, shape_breaches)
            for rule, *_ in breaches(sizes, rules, facts)
        }
        found -= {"sequence_length"}
        if (ban.breaks in found) != (ban.where(sizes) or _always(ban, sizes)):
            failures.append((sizes, found))
    assert not failures


def _always(ban: Ban, sizes: LaunchSizes) -> bool:
    """Whether sizes break the rule whatever the framework can do."""
    return ban.breaks == "sequence_parallelism" and (
        sizes.sequence_parallel and sizes.tp == 1
    )


@pytest.mark.parametrize("experts", [0, 1, 4, 12])
def test_experts_that_fill_replicas_are_on_as_many_ranks(experts: int) -> None:
    rules = replace(EVERYTHING, experts_fill_data=True)
    facts = replace(FACTS, num_moe_experts=experts)
    for ep, dp in product((1, 2, 4, 8), (1, 2, 4, 8)):
        sizes = LaunchSizes(1, 1, ep, Grouping.of((1, 1, ep)), False, 1, dp)
        found = [rule for rule, *_ in shape_breaches(sizes, rules, facts)]
        fills = experts == 0 or ep == min(dp, experts)
        assert found == ([] if fills else ["expert_parallelism"]), sizes


@pytest.mark.parametrize("dealt", [ALWAYS, INTERLEAVED, ROUNDS])
@pytest.mark.parametrize("v", [1, 2])
def test_microbatches_are_dealt_out_in_rounds(dealt: str, v: int) -> None:
    for full, p, m in product((False, True), range(1, 6), range(1, 30)):
        schedule = "interleaved-1f1b" if v > 1 else "1f1b"
        rules = replace(
            EVERYTHING, microbatches=dealt, full_schedules=(schedule,) if full else ()
        )
        # Rounds of one length have at least as many microbatches as stages, if there
        # are so many.
        rounds = {m // n for n in range(1, m + 1) if m % n == 0 and m // n >= min(p, m)}
        shortest = m // max(m // p, 1)
        takes = not (full and m < p)
        if dealt == ALWAYS or (dealt == INTERLEAVED and v > 1):
            takes = takes and m % p == 0
        elif v > 1:
            takes = takes and shortest in rounds and m % max(m // p, 1) == 0
        assert (deals_out(rules, schedule, p, m, v) == "") == takes, (full, p, m)


def test_rules_are_kept_by_searches_of_what_can_be_launched_alone() -> None:
    keeping = []
    for launchable, rules, objective in product(
        (False, True), (None, EVERYTHING), ("planned", "replayed")
    ):
        spec = SearchSpec(launchable=launchable, rules=rules, objective=objective)
        if spec.keeps_rules:
            keeping.append((launchable, rules, objective))
    assert keeping == [(True, EVERYTHING, "replayed")]


@failures.over(
    ("family", "settings", "is_biased"),
    [
        ("gpt", {}, False),
        ("gpt", {"qk_layernorm": True}, False),
        ("mixtral", {}, False),
        ("mixtral", {"add_bias_linear": True}, True),
    ],
    ids=["dense with biases", "normed queries", "experts", "experts with biases"],
)
def test_only_experts_with_biases_are_biased_experts(
    family: str, settings: dict[str, Any], is_biased: bool
) -> None:
    spec = replace(tiny_spec(2, family=family), **settings)
    _, job = small_job()
    facts = LaunchFacts.of(replace(job, graph=trace_model(spec)), 8)
    assert facts.has_biased_experts is is_biased
    assert facts.has_normed_queries is spec.qk_layernorm
    assert (facts.num_devices, facts.num_query_groups) == (8, 12)
