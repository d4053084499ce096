"""Mist's tuner on its published case, and its parts against plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.rivals.mist.cluster import Mesh
from planner.rivals.mist.stage_costs import strategy_space
from planner.rivals.mist.tuner import (
    NUM_SAMPLES,
    WEIGHTS,
    Tuner,
    TunerSpace,
    pareto_samples,
)
from planner.step.plan import NO_OFFLOAD
from tests.planner.rivals.mist import golden
from tests.planner.rivals.mist.golden import needs_golden


def l4_tuner(*, flash: bool = False, **space) -> Tuner:
    """Return the tuner of GPT-1.3B on two L4 cards and 32 sequences."""
    return Tuner(
        space=TunerSpace(
            mesh=Mesh(1, 2),
            num_layers=24,
            global_batch_size=32,
            memory=golden.L4_MEMORY,
            tensor_sizes=(1,),
            **space,
        ),
        rates=golden.L4,
        profile=lambda b, t: golden.profile(b, flash=flash),
    )


@needs_golden
def test_the_tuner_finds_the_plan_of_the_readme():
    best = next(l4_tuner().solutions())
    assert best.time == pytest.approx(9.26892465, rel=1e-7)
    assert best.is_proven
    assert best.sizes.num_steps == 16
    assert best.sizes.micro_batch_size == 2
    assert [stage.num_layers for stage in best.stages] == [12, 12]
    assert [stage.num_recomputed for stage in best.stages] == [5, 0]
    assert {stage.strategy for stage in best.stages} == {(0, 0, 1, 0, 0, 0, 0)}


@needs_golden
def test_the_tuner_finds_mists_plan_with_flash_attention():
    # specs/baselines.md, section 5.7: G 8, one stage, 2 replicas, nothing recomputed.
    best = next(l4_tuner(flash=True).solutions())
    assert best.time == pytest.approx(6.606, abs=5e-4)
    assert best.sizes[:5] == (1, 8, 1, 2, 2)
    assert best.stages[0].num_recomputed == 0
    assert best.stages[0].strategy == (0, 0, 1, 0, 0, 0, 0)


@needs_golden
def test_solutions_come_best_first_and_each_sizes_once():
    found = list(l4_tuner().solutions())
    times = [item.time for item in found]
    assert times == sorted(times)
    assert len({item.sizes for item in found}) == len(found) > 2
    for item in found:
        assert sum(stage.num_layers for stage in item.stages) == 24


@needs_golden
def test_less_memory_never_makes_the_best_faster():
    times = []
    for share in (1.0, 0.7, 0.5):
        tuner = l4_tuner()
        tuner.space = TunerSpace(
            mesh=Mesh(1, 2),
            num_layers=24,
            global_batch_size=32,
            memory=share * golden.L4_MEMORY,
            tensor_sizes=(1,),
        )
        times.append(next(tuner.solutions()).time)
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_the_space_has_as_many_strategies_as_mists():
    assert len(strategy_space((1, 2, 3))) == 5952
    nothing = strategy_space((1,), NO_OFFLOAD)
    assert [nothing.row(k) for k in range(len(nothing))] == [(0, 0, 1, 0, 0, 0, 0)]


@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
@settings(max_examples=50)
def test_samples_are_the_best_of_each_weight(seed, count):
    rng = np.random.default_rng(seed)
    steady, delta = rng.random(count), rng.random(count) * rng.choice([0.1, 1, 10])
    kept = pareto_samples(steady, delta)
    expected = {int(np.argmin(weight * steady + delta)) for weight in WEIGHTS}
    assert set(kept.tolist()) == expected
    assert len(kept) <= NUM_SAMPLES
