"""Sets of modules that selective recompute is tried with."""

from dataclasses import replace
from itertools import combinations

import pytest

from estimators.layers.saved_activations import RECOMPUTE_MODULES
from estimators.layers.work import Degrees
from estimators.models.library import load_model
from estimators.training import TrainingSpec
from planner.frameworks.framework import FRAMEWORKS, PRESETS
from planner.search.replayed.recomputed import LEAST_SAVED, module_sets
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from tests import failures
from tests.planner.search.replayed.worlds import traced
from topologies.accelerators import load_accelerator

RULES = FRAMEWORKS["megatron-core"].rules
EXPERTS = "mixtral-8x7b"


def job(model: str = EXPERTS, **software: object) -> Workload:
    """Return a job of Megatron Core."""
    spec = load_model(model)
    return Workload(
        graph=traced(spec),
        training=TrainingSpec(global_batch_size=8),
        accelerator=load_accelerator("h100-sxm"),
        software=replace(PRESETS["megatron-core"].software, **software),
    )


def sets_of(workload: Workload, rules=RULES, **spec: object) -> set[tuple[str, ...]]:
    return {*module_sets(workload, SearchSpec(**spec), rules)}


@failures.over("model", ["llama2-7b", EXPERTS, "deepseek-v3"])
def test_no_set_is_left_out_that_would_save_more_in_no_more_time(model):
    """Held against the layer tables of all sets, which know what modules share."""
    workload = job(model)
    kept = workload.table(Degrees()).saved_bytes["none"].sum()

    def cost(modules: tuple[str, ...]) -> tuple[float, float]:
        table = workload.table(Degrees(recompute_modules=modules))
        saved = kept - table.saved_bytes["selective"].sum()
        return float(table.recompute_time["selective"].sum()), float(saved)

    sets = module_sets(workload, SearchSpec(), RULES)
    costs = [cost(some) for some in sets]
    assert costs == sorted(costs)
    assert [saved for _, saved in costs] == sorted(saved for _, saved in costs)
    for number in range(1, len(RECOMPUTE_MODULES) + 1):
        for other in combinations(RECOMPUTE_MODULES, number):
            time, saved = cost(other)
            as_quick = [known for quick, known in costs if quick <= time * (1 + 1e-9)]
            assert saved <= max(as_quick, default=0.0) + LEAST_SAVED * kept * 1.001


def test_what_somebody_decided_is_not_searched():
    assert sets_of(job()) > {("layernorm",), ("moe_act",), ("moe",)}
    assert not sets_of(job(recompute_modules=("layernorm",)))
    assert sets_of(
        job(recompute_modules=("layernorm",)), recompute_modules=("layernorm", "moe")
    ) == {("moe",), ("layernorm", "moe")}
    assert sets_of(job(), recompute_modules=("moe_act",)) == {("moe_act",)}
    assert not sets_of(job(), recompute=("none", "full"))


def test_only_frameworks_that_name_modules_are_given_any():
    releases = FRAMEWORKS["megatron-core"]
    assert not sets_of(job(), releases.rules_of("0.11"))
    assert sets_of(job(), releases.rules_of("0.12"))
    assert not sets_of(job(saves_products=True))
    for name in ("deepspeed", "megatron-lm", "torchtitan", "maxtext"):
        assert not sets_of(job(), FRAMEWORKS[name].rules)


@pytest.mark.parametrize("is_beside", [False, True])
def test_shared_experts_beside_all_to_alls_are_not_run_again(is_beside):
    workload = job("deepseek-v3")
    execution = replace(workload.execution, moe_shared_expert_overlap=is_beside)
    sets = sets_of(
        replace(workload, execution=execution), recompute_modules=("shared_experts",)
    )
    assert sets == (set() if is_beside else {("shared_experts",)})


def test_experts_behind_a_router_in_a_graph_are_not_run_again():
    captured = job(cuda_graphs="layers")
    assert not sets_of(captured, recompute_modules=("moe",))
    outside = job(cuda_graphs="layers", cuda_graph_modules=("attn",))
    assert sets_of(outside, recompute_modules=("moe",))
