"""The search on spaces so small that every launchable plan of them can be replayed."""

import math
import random
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest

from planner.class_table import Choice
from planner.placements import Extents, whole_dimensions
from planner.plan import Plan
from planner.pricing import price_plan
from planner.replayed.candidates import Leaf
from planner.replayed.search import Replays, search_replayed
from planner.work import WORK_LIMIT
from tests.planner.replayed.worlds import ROUNDING, World, random_world

MOST_PLANS = 400

SEEDS = range(24)
"""Of the jobs that most tests try; about half of them are small enough."""


class Whole(NamedTuple):
    """A job, and the replay of everything in its space."""

    world: World
    times: dict[str, float]
    """By what tells plans apart; of those that fit [s]."""

    @property
    def best(self) -> float:
        return min(self.times.values(), default=math.inf)

    @property
    def slack(self) -> float:
        """What rounding durations to ticks may change [s]."""
        return 2.0 * ROUNDING


def told_apart(plan: Plan) -> str:
    """Return what tells two plans of a job apart."""
    return repr((plan.parallel, plan.micro_batch_size, plan.stages))


def fits(world: World, plan: Plan) -> bool:
    """Tell whether each stage fits into what a device has."""
    priced = price_plan(world.network, world.workload, plan)
    memory = world.workload.tensor_memory(world.spec.memory_reserve)
    return max(sum(stage.memory.values()) for stage in priced.stages) <= memory


def every_leaf(world):
    """Yield every plan: all sizes, layouts, rank orders and ways to save memory."""
    candidates = world.candidates()
    rules, spec = candidates.rules, world.spec
    for number in range(len(candidates)):
        sizes = candidates[number]
        tp, cp, ep, _, v, pp, dp = sizes
        for order in rules.orders:
            placement = whole_dimensions(order, Extents(tp, cp, ep, dp // ep, pp))
            shardings = candidates.rates(sizes, placement).shardings
            for mode in spec.recompute:
                if mode not in rules.recompute or (mode == "stage" and v > 1):
                    continue
                for zero in set(rules.zero_stages_of(pp)) & set(spec.zero_stages):
                    hybrid = zero in rules.hybrid_sharding
                    for option in range(len(shardings) if hybrid else 1):
                        for layout in candidates._layouts(sizes).tolist():
                            choice = Choice(mode, zero, option)
                            leaf = Leaf(sizes, tuple(layout), choice, placement)
                            yield candidates.plan(leaf)


@lru_cache(maxsize=256)
def whole(seed):
    """Replay everything in the space of a small job, or return None if it is large."""
    world = random_world(seed, most_devices=8)
    blocks, batch = world.workload.chain[1], world.workload.training.global_batch_size
    if blocks > 6 or batch > 12:
        return None
    if world.network.num_devices > 3:
        rng = random.Random(seed)
        world = world.spec_with(
            micro_batch_sizes=(rng.choice((1, 1, 2)),),
            recompute=(rng.choice(world.spec.recompute),),
            zero_stages=tuple(rng.sample(range(4), 2)),
        )
    plans = {}
    for plan in every_leaf(world):
        plans[told_apart(plan)] = plan
        if len(plans) > MOST_PLANS:
            return None
    times = {
        name: world.time(plan) for name, plan in plans.items() if fits(world, plan)
    }
    return Whole(world, times)


def wholes(seeds):
    """Yield the jobs that are small enough."""
    for seed in seeds:
        found = whole(seed)
        if found is not None:
            yield found


class Judge:
    """Replays plans, and remembers them."""

    def __init__(self, world):
        self.world, self.plans, self.priced = world, [], 0

    def __call__(self, priced, cutoff):
        self.plans.append(priced.plan)
        if not fits(self.world, priced.plan):
            return math.inf
        return self.world.time(priced.plan)


def searched(world, *, starts=(), **changes):
    """Search a job."""
    spec = replace(world.spec, **changes)
    judge = Judge(world)
    found = search_replayed(
        world.network,
        world.workload,
        spec,
        Replays(
            judge=judge,
            by_layer=world.settings.granularity == "layer",
            starts=starts,
        ),
    )
    return found, judge


def check_answer(case, gap):
    """Hold the answer of a search that went to its end against all replays."""
    found, judge = searched(case.world, proven_gap=gap)
    assert not found.spent.stopped_by
    if not case.times:
        assert not found.plans
        assert math.isinf(found.lower_bound)
        return
    best = found.plans[0].time
    assert best == case.times[told_apart(found.plans[0].priced.plan)]
    assert best <= case.best * (1.0 + gap) + case.slack
    assert found.lower_bound <= case.best + case.slack
    assert best <= found.lower_bound * (1.0 + gap) + case.slack
    assert [one.time for one in found.plans] == sorted(one.time for one in found.plans)
    # Every plan that was replayed is one of the space.
    assert {told_apart(plan) for plan in judge.plans} <= set(case.times)


@pytest.mark.parametrize("gap", [0.0, 0.05])
def test_the_answer_is_the_best_of_all_replays(gap):
    cases = list(wholes(SEEDS))
    assert len(cases) >= 5
    for case in cases:
        check_answer(case, gap)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_the_answer_is_the_best_of_all_replays_in_hundreds_of_spaces(batch):
    for case in wholes(range(1000 + 50 * batch, 1050 + 50 * batch)):
        check_answer(case, 0.0)
        check_answer(case, 0.05)


def test_the_answer_does_not_depend_on_the_order_in_which_sizes_are_listed():
    for case in wholes(SEEDS):
        found, _ = searched(case.world)
        spec = case.world.spec
        heads = case.world.workload.graph.spec.num_attention_heads
        sizes = {
            "tensor_model_parallel_sizes": tuple(
                tp for tp in range(8, 0, -1) if heads % tp == 0
            ),
            "data_parallel_sizes": tuple(range(8, 0, -1)),
            "pipeline_model_parallel_sizes": tuple(range(8, 0, -1)),
            "micro_batch_sizes": (spec.micro_batch_sizes or (1, 2, 4, 8, 16))[::-1],
            "recompute": spec.recompute[::-1],
            "zero_stages": spec.zero_stages[::-1],
        }
        other, _ = searched(case.world, **sizes)
        assert [one.time for one in other.plans[:1]] == [
            one.time for one in found.plans[:1]
        ]
        assert other.lower_bound == pytest.approx(found.lower_bound, rel=1e-9)


def test_a_search_twice_is_the_same():
    for case in wholes(SEEDS):
        (first, one), (second, two) = (searched(case.world) for _ in range(2))
        assert one.plans == two.plans
        assert first.spent == second.spent
        assert first.lower_bound == second.lower_bound


def test_a_search_that_was_stopped_gives_a_true_bound():
    stopped = 0
    for case in wholes(SEEDS):
        if not case.times:
            continue
        full, _ = searched(case.world, proven_gap=0.0)
        last = math.inf
        for part in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
            limit = int(part * full.spent.work)
            found, _ = searched(case.world, proven_gap=0.0, work_limit=limit)
            assert found.lower_bound <= case.best + case.slack
            assert found.plans
            assert found.plans[0].time <= last
            last = found.plans[0].time
            if found.plans[0].time > found.lower_bound * (1.0 + 1e-9):
                assert found.spent.stopped_by == WORK_LIMIT
                stopped += 1
        assert last <= full.plans[0].time * (1.0 + 1e-9) or full.spent.work > limit
    assert stopped >= 3


def test_the_answer_is_no_slower_than_a_plan_to_begin_with():
    rng, honoured = random.Random(5), 0
    for case in wholes(SEEDS):
        plans = [plan for plan in every_leaf(case.world) if fits(case.world, plan)]
        if not plans:
            continue
        starts = tuple(rng.sample(plans, min(2, len(plans))))
        found, judge = searched(case.world, starts=starts, work_limit=1)
        assert tuple(judge.plans[:1]) == starts[:1]
        times = [case.world.time(plan) for plan in starts]
        assert found.plans[0].time <= times[0]
        honoured += 1
        whole_search, judge = searched(case.world, starts=starts)
        assert tuple(judge.plans[: len(starts)]) == starts
        assert whole_search.plans[0].time <= min(times)
    assert honoured >= 5


def test_a_plan_to_begin_with_that_does_not_fit_is_no_answer():
    tried = 0
    for case in wholes(SEEDS):
        plans = [plan for plan in every_leaf(case.world) if not fits(case.world, plan)]
        if not plans:
            continue
        found, _ = searched(case.world, starts=(plans[0],))
        assert told_apart(plans[0]) not in {
            told_apart(one.priced.plan) for one in found.plans
        }
        tried += 1
    assert tried


def test_kept_plans_are_of_different_configurations_and_the_best_of_them():
    for case in wholes(SEEDS):
        found, _ = searched(case.world, keep_best=3)
        sizes = [
            (plan.parallel.sizes(), plan.micro_batch_size)
            for plan in (one.priced.plan for one in found.plans)
        ]
        chunks = [
            one.priced.plan.virtual_pipeline_model_parallel_size for one in found.plans
        ]
        both = list(zip(sizes, chunks, strict=True))
        assert len(both) == len(set(both)) <= 3
        assert np.all(np.diff([one.time for one in found.plans]) >= 0.0)
