"""The reference itself: what it leaves out, and the planner's evaluator beside it."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimators.training import ParallelismConfig
from planner.cost.pricing import price_plan
from planner.step.plan import Plan, Stage
from tests.planner.brute_force import BruteForce, Pace, best_choices
from tests.planner.instances import instances
from tests.planner.naive_placements import naive_grids

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
@settings(max_examples=100)
def test_one_tail_at_a_time_misses_no_combination_of_choices(seed):
    rng = np.random.default_rng(seed)
    num_stages, num_replicas = rng.integers(1, 5), rng.integers(1, 4)
    transfers = rng.integers(0, 6, (num_replicas, num_stages)).tolist()
    pace = Pace((1.0, 0.5)[rng.integers(2)], float(rng.integers(0, 5)), transfers)
    tied = rng.integers(0, 4, num_stages).tolist()
    every = [
        rng.integers(0, 20, (rng.integers(1, 7), 2)).tolist() for _ in range(num_stages)
    ]
    expected = min(
        pace.time([work for work, _ in picked])
        + max(tail + extra for (_, tail), extra in zip(picked, tied, strict=True))
        for picked in product(*every)
    )
    fronts = [
        [
            (work, tail)
            for work, tail in sorted(choices)
            if not any(
                (w <= work and t <= tail) and (w, t) != (work, tail) for w, t in choices
            )
        ]
        for choices in every
    ]
    assert best_choices(fronts, pace, tied, np.inf) == expected
    assert best_choices(fronts, pace, tied, expected) == expected


def any_plan(force: BruteForce, rng: np.random.Generator) -> Plan:
    """Return a plan of the space, good or bad, whether it fits or not."""

    def one_of(items):
        return items[rng.integers(len(items))]

    sizes = one_of(force.configurations)
    grids = naive_grids(
        force.space.extents(sizes),
        force.space.network.num_devices,
        force.space.network.block_sizes,
    )
    grid = one_of(grids)
    stages, _ = force.priced(sizes, grid)
    job = force.job(sizes)
    lanes = grid.reshape(sizes.pp, sizes.dp, sizes.cp * sizes.tp)
    plan_stages = []
    for piece, rates, devices in zip(
        one_of(force.pieces(sizes)[0]), stages, lanes.tolist(), strict=True
    ):
        zero = one_of(job.zeros)
        plan_stages.append(
            Stage(
                chunks=tuple((first, end - 1) for first, end in piece),
                devices=tuple(tuple(row) for row in devices),
                recompute=one_of(job.modes),
                zero_stage=zero,
                sharding_group_size=one_of(rates.shardings).group_size if zero else 1,
            )
        )
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=sizes.tp,
            pipeline_model_parallel_size=sizes.pp,
            data_parallel_size=sizes.dp,
            context_parallel_size=sizes.cp,
            expert_model_parallel_size=sizes.ep,
            sequence_parallel=force.space.degrees(sizes).sequence_parallel,
            experts_within_data=force.space.workload.software.experts_within_data,
        ),
        virtual_pipeline_model_parallel_size=sizes.v,
        micro_batch_size=sizes.b,
        num_microbatches=force.space.num_microbatches(sizes),
        schedule="1f1b" if sizes.v == 1 else "interleaved-1f1b",
        placement="",
        gradient_algorithm="auto",
        tensor_algorithm="auto",
        stages=tuple(plan_stages),
    )


@given(instances(most_devices=16, blocks=range(1, 7)), SEEDS)
@settings(max_examples=30)
def test_the_planner_prices_any_plan_as_the_reference_does(instance, seed):
    force = BruteForce(*instance)
    assume(force.configurations)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        plan = any_plan(force, rng)
        time, peaks = force.price(plan)
        priced = price_plan(instance.network, instance.workload, plan)
        assert priced.closed_form_time == pytest.approx(time, rel=1e-9)
        found = [stage.peak_memory for stage in priced.stages]
        assert found == pytest.approx(peaks, rel=1e-9)
