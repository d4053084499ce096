"""A plan written down as a table [plan], and read back."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from nestsim.scenario.defaults import checked_plan
from planner.frameworks.framework import FRAMEWORKS, PRESETS
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.search.best_first import search
from planner.search.launchable import broken_rules, ends_together
from planner.search.launchable_sizes import LaunchFacts
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.plan import Plan
from tests import failures
from tests.nestsim.scenario.plan_settings import plan_table
from tests.planner.examples import eight_devices, tiny_job
from topologies.errors import InputError

MEMORY = 80e9
NETWORK = eight_devices()
DENSE = tiny_job(MEMORY, num_blocks=8)
EXPERTS = tiny_job(MEMORY, num_blocks=8, family="mixtral")
BATCH = 16


def facts(workload: Workload) -> LaunchFacts:
    return LaunchFacts.of(workload, NETWORK.num_devices)


def written(plan: Plan, workload: Workload) -> dict[str, Any]:
    is_block = facts(workload).is_block
    return plan_table(plan, is_block, global_batch_size=BATCH)


def read(table: dict[str, Any], workload: Workload, preset: str = "ideal") -> Plan:
    """Read a table as a scenario does, under the defaults of a preset."""
    spec = checked_plan(table, PRESETS[preset])
    return build_plan(NETWORK, workload, spec)


def parts(total: int, number: int) -> st.SearchStrategy[list[int]]:
    """Draw numbers of blocks that add up, of the ends possibly none."""
    cuts = st.lists(st.integers(0, total), min_size=number - 1, max_size=number - 1)

    def counts(places: list[int]) -> list[int]:
        bounds = [0, *sorted(places), total]
        return [b - a for a, b in pairwise(bounds)]

    return cuts.map(counts).filter(lambda found: 0 not in found[1:-1])


@st.composite
def specs(draw: st.DrawFn) -> tuple[Workload, PlanSpec]:
    """Draw settings of any kind; not all of them go together."""
    ep, workload = draw(st.sampled_from([(1, DENSE), (1, EXPERTS), (2, EXPERTS)]))
    tp, cp, pp = draw(
        st.sampled_from(
            [(1, 1, 1), (2, 1, 2), (1, 1, 4), (1, 2, 2), (2, 1, 1), (1, 1, 2)]
        )
    )
    v = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    stages = st.sampled_from([1, 2, 3])
    zero = draw(st.one_of(st.integers(0, 3), st.tuples(*[stages] * pp)))
    split = draw(
        st.one_of(
            st.just({}),
            parts(8, pp * v).map(
                lambda counts: {"pipeline_model_parallel_layout": tuple(counts)}
            ),
            st.just({"num_layers_in_first_pipeline_stage": 2}),
            st.just({"account_for_loss_in_pipeline_split": True}),
        )
    )
    modes = st.sampled_from(["none", "selective", "full"])
    group = None if zero == 0 else draw(st.sampled_from([None, 4, 8 // (tp * pp)]))
    try:
        return workload, PlanSpec(
            micro_batch_size=draw(st.sampled_from([1, 2])),
            tensor_model_parallel_size=tp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=v,
            sequence_parallel=draw(st.booleans()),
            schedule=draw(st.sampled_from([None, "gpipe"])) if v == 1 else None,
            recompute=draw(st.one_of(modes, st.tuples(*[modes] * pp))),
            zero_stage=zero,
            sharding_group_size=group,
            order=draw(st.sampled_from([None, "tp-cp-ep-pp-dp", "tp-pp-dp-ep-cp"])),
            **split,
        )
    except InputError as error:
        event(error.problem)
        assume(False)
        raise


@given(specs(), st.sampled_from(sorted(PRESETS)))
@settings(max_examples=60)
def test_what_is_written_is_read_back_whatever_the_preset(
    drawn: tuple[Workload, PlanSpec], preset: str
) -> None:
    workload, spec = drawn
    try:
        plan = build_plan(NETWORK, workload, spec)
    except InputError as error:
        event(error.problem)
        return
    event("written")
    assert read(written(plan, workload), workload, preset) == plan


def found() -> Iterator[Plan]:
    spec = SearchSpec(keep_best=150, tensor_model_parallel_sizes=(1, 2))
    for priced in search(NETWORK, DENSE, spec).plans:
        yield priced.plan


def test_what_the_search_finds_is_written_unless_the_ends_are_apart() -> None:
    plans = list(found())
    together = [p for p in plans if ends_together(p, facts(DENSE).is_block)]
    assert len(together) > 40
    for plan in together:
        assert read(written(plan, DENSE), DENSE) == plan
    assert any("num_microbatches" in written(plan, DENSE) for plan in together)


def test_every_launchable_plan_is_written_without_a_nesting() -> None:
    rules = FRAMEWORKS["ideal"].rules
    launchable = [p for p in found() if not broken_rules(p, rules, facts(DENSE))]
    assert launchable
    for plan in launchable:
        assert not {"placement", "num_microbatches"} & set(written(plan, DENSE))


def test_the_plainest_split_is_written() -> None:
    sizes = {
        "micro_batch_size": 1,
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 4,
    }
    names = ("num_layers", "account", "pipeline_model_parallel_layout")

    def split(workload: Workload, **given: Any) -> dict[str, Any]:
        table = written(read({**sizes, **given}, workload), workload)
        return {name: value for name, value in table.items() if name.startswith(names)}

    layout = "pipeline_model_parallel_layout"
    first, last = (f"num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
    assert split(DENSE, **{layout: [2, 2, 2, 2]}) == {}
    assert split(DENSE, **{layout: [1, 3, 3, 1]}) == {first: 1, last: 1}
    assert split(DENSE, **{layout: [2, 2, 3, 1]}) == {layout: [2, 2, 3, 1]}
    assert split(DENSE, **{layout: [0, 3, 3, 2]}) == {layout: [0, 3, 3, 2]}
    seven = tiny_job(MEMORY, num_blocks=7)
    assert split(seven, **{layout: [1, 2, 2, 2]}) == {
        "account_for_embedding_in_pipeline_split": True
    }
    six = tiny_job(MEMORY, num_blocks=6)
    assert split(six, **{layout: [1, 2, 2, 1]}) == {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }


def test_ends_that_are_apart_cannot_be_written() -> None:
    plan = read({"micro_batch_size": 1, "pipeline_model_parallel_size": 2}, DENSE)
    first, last = plan.stages
    length = len(facts(DENSE).is_block)
    apart = replace(
        plan,
        stages=(
            replace(first, chunks=((0, length - 2),)),
            replace(last, chunks=((length - 1, length - 1),)),
        ),
    )
    with pytest.raises(InputError, match="not with the ends of the pipeline"):
        written(apart, DENSE)


@failures.over(
    ("schedule", "chunks"),
    [(None, 1), ("1f1b", 1), ("zb-h2", 1), ("zb-v", 2), ("dualpipe-v", 2)],
)
def test_a_v_has_two_chunks_where_no_number_is_given(
    schedule: str | None, chunks: int
) -> None:
    table = {"micro_batch_size": 1}
    if schedule is not None:
        table["schedule"] = schedule
    assert checked_plan(table).virtual_pipeline_model_parallel_size == chunks
    table["virtual_pipeline_model_parallel_size"] = 3
    assert checked_plan(table).virtual_pipeline_model_parallel_size == 3
