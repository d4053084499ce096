"""The search on spaces so small that every launchable plan of them can be replayed."""

import math
import random
import re
from dataclasses import replace
from functools import lru_cache
from itertools import islice, product
from typing import NamedTuple

import numpy as np
import pytest

from estimators.training import TrainingSpec
from planner.cost.choices import MemoryChoice, goes_with
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.search.replayed.listing import Leaf
from planner.search.replayed.replays import Replays
from planner.search.replayed.search import search_replayed
from planner.step.plan import COUNTED_MODES, NO_OFFLOAD, Offload, Plan
from planner.step.recompute import SENDING_AGAIN
from planner.step.virtual import block_span
from planner.work import WORK_LIMIT
from tests import failures
from tests.planner.search.replayed.worlds import (
    ROUNDING,
    World,
    random_world,
    traced,
)
from topologies.accelerators import Host
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

MOST_PLANS = 400

SEEDS = (14, 15, 23, 33, 42, 54, 59, 63, 65, 134)
"""Of jobs that are small enough, most of them with plans that fit; hundreds of others
are slow."""


class Whole(NamedTuple):
    """A job, and the replay of everything in its space."""

    world: World
    times: dict[str, float]
    """By what tells plans apart, infinite for those that do not fit [s]."""
    plans: dict[str, Plan]

    @property
    def best(self) -> float:
        return min(self.times.values(), default=math.inf)

    def fitting(self, *, fit: bool = True) -> list[Plan]:
        """Return the plans that fit, or those that do not."""
        return [
            plan
            for name, plan in self.plans.items()
            if math.isfinite(self.times[name]) == fit
        ]

    @property
    def slack(self) -> float:
        """What rounding durations to ticks may change [s]."""
        return 2.0 * ROUNDING


def told_apart(plan: Plan) -> str:
    """Return what tells two plans of a job apart."""
    sizes = plan.parallel, plan.micro_batch_size, plan.schedule
    return repr((*sizes, plan.recompute_modules, plan.stages))


def fits(world: World, priced: PricedPlan) -> bool:
    """Tell whether each stage fits into what a device has, and its host."""
    job, reserve = world.workload, world.spec.memory_reserve
    host = world.network.host
    if host is not None and priced.host_memory > host.memory:
        return False
    return all(
        sum(cost.memory.values()) <= job.memory_on(stage.devices, reserve)
        for cost, stage in zip(priced.stages, priced.plan.stages, strict=True)
    )


def every_leaf(world):
    """Yield every plan: all sizes, layouts, rank orders and ways to save memory."""
    candidates = world.candidates()
    rules, spec, listing = candidates.rules, world.spec, candidates.listing
    for number in range(len(candidates)):
        sizes = candidates[number]
        v, pp, pairs = sizes.v, sizes.pp, sizes.pairs
        schedules = [shape.schedule for shape in listing.shapes(sizes)]
        for placement in listing.placements(sizes):
            kinds = listing.kinds(placement)
            cuts = listing.layouts(sizes, listing.shape(sizes), kinds).tolist()
            shardings = candidates.prices.rates(sizes, placement).shardings
            modes = set(rules.recompute) - (SENDING_AGAIN if pairs else set())
            for mode in spec.recompute:
                if mode not in modes or (mode == "stage" and v > 1):
                    continue
                extents = {"tp": sizes.tp, "cp": sizes.cp, "ep": sizes.ep, "pp": pp}
                for zero in {*rules.zero_stages_of(extents)} & {*spec.zero_stages}:
                    hybrid = zero in rules.hybrid_sharding
                    options = range(len(shardings) if hybrid else 1)
                    offloads = [
                        kept
                        for kept in spec.offload
                        if goes_with(mode, kept)
                        and rules.keeps_beside(kept, mode, zero)
                    ]
                    sets = modules(candidates, mode, pairs=pairs)
                    for option, offload, cut, again in product(
                        options, offloads, cuts, sets
                    ):
                        choice = MemoryChoice(
                            mode, zero, option, offload, recompute_modules=again
                        )
                        some = [None] if again else counts(world, rules, mode, cut)
                        for count, name in product(some, schedules):
                            yield candidates.plan(
                                Leaf(sizes, tuple(cut), choice, placement, count, name)
                            )


def modules(candidates, mode, *, pairs):
    """Return what a mode may run again; nothing by name is the software's own."""
    sets = candidates.listing.space.module_sets if mode == "selective" else ()
    return [(), *(some for some in sets if not (pairs and "moe" in some))]


def has_sharding(world, plan):
    """Tell whether the framework has the sharding groups of a plan."""
    facts = LaunchFacts.of(world.workload, world.network.num_devices)
    broken = {one.rule for one in broken_rules(plan, world.spec.rules, facts)}
    return "sharding_group" not in broken


def counts(world, rules, mode, cut):
    """Return how many blocks of each chunk may be recomputed; None for all."""
    keeps = {"none"} <= {*world.spec.recompute} & {*rules.recompute}
    if not (keeps and mode in COUNTED_MODES and mode in rules.recompute_num_layers):
        return [None]
    names = world.workload.graph.names
    is_block = np.array([name.startswith("block") for name in names], dtype=float)
    first, last = block_span(is_block)
    starts, ends = np.array(cut[:-1]), np.array(cut[1:])
    blocks = np.minimum(ends, last) - np.maximum(starts, first)
    return [None, *range(1, int(blocks.max()))]


@lru_cache(maxsize=256)
def whole(seed):
    """Replay everything in the space of a small job, or return None if it is large."""
    world = random_world(seed, most_devices=8)
    blocks, batch = world.workload.chain[1], world.workload.training.global_batch_size
    if blocks > 6 or batch > 12:
        return None
    world = world.spec_with(recompute_modules=("core_attn",))
    if world.network.num_devices > 3:
        rng = random.Random(seed)
        world = world.spec_with(
            micro_batch_sizes=(rng.choice((1, 1, 2)),),
            recompute=(rng.choice(world.spec.recompute),),
            zero_stages=tuple(rng.sample(range(4), 2)),
        )
    return whole_of(world)


def whole_of(world: World) -> Whole | None:
    """Replay everything in the space of a job, or return None if it is large."""
    plans = {}
    for plan in every_leaf(world):
        if has_sharding(world, plan):
            plans[told_apart(plan)] = plan
        if len(plans) > MOST_PLANS:
            return None
    prices = {name: world.priced(plan) for name, plan in plans.items()}
    times = {
        name: world.time_of(priced) if fits(world, priced) else math.inf
        for name, priced in prices.items()
    }
    return Whole(world, times, plans)


def wholes(seeds):
    """Yield the jobs that are small enough."""
    for seed in seeds:
        found = whole(seed)
        if found is not None:
            yield found


class Judge:
    """Knows the replay of every plan, and remembers what it was asked."""

    def __init__(self, case):
        self.times, self.plans = case.times, []
        self.time_of = case.world.time

    def __call__(self, priced, cutoff):
        self.plans.append(priced.plan)
        name = told_apart(priced.plan)
        # The dynamic program has layouts that can be launched and are not searched.
        time = self.times[name] if name in self.times else self.time_of(priced.plan)
        return time if time <= cutoff else math.inf


def searched(case, *, starts=(), proposals=0, **changes):
    """Search a job; `test_proposals` is about what the dynamic program proposes."""
    world, judge = case.world, Judge(case)
    replays = Replays(
        judge=judge,
        by_layer=world.settings.granularity == "layer",
        transfers=world.transfers,
        starts=starts,
    )
    spec = replace(world.spec, proposals=proposals, **changes)
    return search_replayed(world.network, world.workload, spec, replays), judge


def check_answer(case, gap):
    """Hold the answer of a search that went to its end against all replays."""
    found, judge = searched(case, proven_gap=gap)
    assert not found.spent.stopped_by
    if math.isinf(case.best):
        assert not found.plans
        assert math.isinf(found.lower_bound)
        return
    best = found.plans[0].time
    assert best == case.times[told_apart(found.plans[0].priced.plan)]
    assert best <= case.best * (1.0 + gap) + case.slack
    assert found.lower_bound <= case.best + case.slack
    assert best <= found.lower_bound * (1.0 + gap) + case.slack
    assert [one.time for one in found.plans] == sorted(one.time for one in found.plans)
    # No plan that does not fit was replayed, and none twice.
    names = [told_apart(plan) for plan in judge.plans]
    assert all(math.isfinite(case.times[name]) for name in names)
    assert len(names) == len(set(names))


def test_the_answer_is_the_best_where_passes_may_be_paired():
    paired = 0
    for seed in (26, 165, 210, 243, 258):
        world = random_world(seed, preset="megatron-core", most_devices=8)
        case = whole_of(
            world.spec_with(
                micro_batch_sizes=(1,),
                tensor_model_parallel_sizes=(1,),
                context_parallel_sizes=(1,),
                recompute=("none",),
                zero_stages=(1,),
            )
        )
        check_answer(case, 0.0)
        best = case.plans[min(case.times, key=case.times.__getitem__)]
        paired += best.overlap_moe_expert_parallel_comm
    assert paired >= 2


def tight(seed: int) -> World:
    """Return a job that has a little less memory than it takes without recompute."""
    world = random_world(seed, preset="megatron-core", most_devices=8)
    accelerator, rng = world.workload.accelerator, random.Random(seed)
    world = world._replace(
        settings=replace(world.settings, granularity=rng.choice(("stage", "layer"))),
        spec=replace(
            world.spec,
            micro_batch_sizes=(rng.choice((1, 2)),),
            context_parallel_sizes=(1,),
            recompute=("none", "selective"),
            zero_stages=(1,),
        ),
    )
    least = min(
        max(sum(cost.memory.values()) for cost in world.priced(plan).stages)
        for plan in islice(every_leaf(world), MOST_PLANS)
        if plan.stages[0].recompute == "none"
    )
    low, high = 0.0, 1e12
    while high > low * (1.0 + 1e-9):
        memory = (low + high) / 2.0
        device = replace(accelerator, memory_bytes=memory)
        job = replace(world.workload, accelerator=device, fleet=None)
        is_enough = job.memory_on(reserve=world.spec.memory_reserve) > 0.99 * least
        low, high = (low, memory) if is_enough else (memory, high)
    return world._replace(workload=job)


def test_the_answer_is_the_best_where_modules_may_be_run_again():
    chosen = set()
    for seed in (43, 49, 55, 64, 65, 83, 111, 125):
        case = whole_of(tight(seed))
        check_answer(case, 0.0)
        best = case.plans[min(case.times, key=case.times.__getitem__)]
        chosen.add(best.recompute_modules)
    assert len(chosen - {()}) >= 5


@failures.over("gap", [0.0, 0.05])
def test_the_answer_is_the_best_of_all_replays(gap):
    cases = list(wholes(SEEDS))
    assert len(cases) == len(SEEDS)
    for case in cases:
        check_answer(case, gap)


def sharing_sequences(preset: str, cp: int) -> World:
    """Return a job whose ranks share sequences on nodes that are far apart."""
    network = build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=4, bandwidth=3e11, latency=1e-6),
                LevelSpec(name="leaf", fan_out=2, bandwidth=2e9, latency=1e-6),
            )
        )
    )
    world = random_world(59, preset=preset)
    model = replace(
        world.workload.graph.spec, num_layers=2, hidden_size=512, sequence_length=512
    )
    accelerator = replace(world.workload.accelerator, memory_bytes=80e9)
    workload = replace(
        world.workload,
        graph=traced(model),
        training=TrainingSpec(global_batch_size=8),
        accelerator=accelerator,
        fleet=None,
    )
    return world._replace(network=network, workload=workload).spec_with(
        micro_batch_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
        context_parallel_sizes=(cp,),
        cp_comm_types=("all_gather",),
        pipeline_model_parallel_sizes=(1,),
        idle_devices=False,
    )


SHARING = {
    ("fsdp", 2): {4, 8},
    ("fsdp", 4): {8},  # Accelerate has no shards of one replica beside others
    ("torchtitan", 2): {4, 8},
    ("torchtitan", 4): {4, 8},
    ("torchtitan", 8): {8},
}
"""Preset and context-parallel size -> ranks that may share shards: eight, or those of a
node."""


@failures.over(("preset", "cp"), SHARING)
def test_some_replicas_share_shards_with_the_ranks_of_their_sequences(preset, cp):
    case = whole_of(sharing_sequences(preset, cp))
    groups = {
        plan.stages[0].sharding_group_size
        for plan in case.plans.values()
        if plan.stages[0].zero_stage
    }
    assert groups == SHARING[preset, cp]
    check_answer(case, 0.0)
    best = case.plans[min(case.times, key=case.times.__getitem__)]
    assert best.stages[0].sharding_group_size == min(groups)


OFFLOADS = (
    Offload(optimizer=1.0),
    Offload(activations=0.5),
    Offload(weights=1.0, gradients=1.0, optimizer=1.0, activations=1.0),
    Offload(gradients=0.5, optimizer=0.75),
    Offload(weights=0.5),
)


def offloading(seed: int) -> Whole | None:
    """Return a small job on hosts of any speed, too large for its devices if possible.

    None if there are too many plans.
    """
    rng = random.Random(seed)
    world = random_world(seed, most_devices=4)
    blocks, batch = world.workload.chain[1], world.workload.training.global_batch_size
    if blocks > 5 or batch > 8:
        return None
    host = Host(
        to_device=10.0 ** rng.uniform(8.0, 12.0),
        to_host=10.0 ** rng.uniform(8.0, 12.0),
        devices_per_link=rng.choice((1, 1, 2)),
        memory=rng.choice((1e13, 1e13, 1e9, 1e8)),
        adam_rate=10.0 ** rng.uniform(7.0, 11.0),
    )
    execution = replace(world.workload.execution, cpu_adam=rng.random() < 0.5)
    world = world._replace(
        network=world.network.with_host(host),
        workload=replace(world.workload, execution=execution),
    ).spec_with(
        micro_batch_sizes=(1,),
        recompute=tuple(rng.sample(world.spec.recompute, 2)),
        zero_stages=tuple(rng.sample(range(4), 2)),
        offload=(NO_OFFLOAD, *rng.sample(OFFLOADS, 2)),
    )
    found = whole_of(world)
    if found is None or rng.random() < 0.3:
        return found
    # As much memory as the plans that save most need, and a little more.
    needs = [
        max(stage.peak_memory for stage in world.priced(plan).stages)
        for plan in found.plans.values()
    ]
    if not needs:
        return None
    memory = 1.05 * sorted(needs)[len(needs) // 12]
    return whole_of(world.with_memory(memory))


OFFLOADING = (8, 9, 17, 18, 23, 54, 64, 67, 92, 116, 128, 228, 302)
"""Of jobs that are small enough, most of them with plans that fit."""


def check_offloading(seeds) -> int:
    """Hold answers against all replays; return how many of the best offload."""
    offload = 0
    for seed in seeds:
        case = offloading(seed)
        if case is None:
            continue
        check_answer(case, 0.0)
        check_answer(case, 0.05)
        if math.isfinite(case.best):
            name = min(case.times, key=case.times.__getitem__)
            offload += case.plans[name].stages[0].offload != NO_OFFLOAD
    return offload


def test_the_answer_is_the_best_where_hosts_may_keep_something():
    assert check_offloading(OFFLOADING) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(10))
def test_the_answer_is_the_best_where_hosts_may_keep_something_in_hundreds(batch):
    check_offloading(range(500 + 50 * batch, 550 + 50 * batch))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_the_answer_is_the_best_of_all_replays_in_hundreds_of_spaces(batch):
    for case in wholes(range(1000 + 50 * batch, 1050 + 50 * batch)):
        check_answer(case, 0.0)
        check_answer(case, 0.05)


def test_the_answer_does_not_depend_on_the_order_in_which_sizes_are_listed():
    for case in wholes(SEEDS):
        found, _ = searched(case)
        spec = case.world.spec
        heads = case.world.workload.graph.spec.num_attention_heads
        sizes = {
            "tensor_model_parallel_sizes": tuple(
                tp for tp in range(8, 0, -1) if heads % tp == 0
            ),
            "data_parallel_sizes": tuple(range(8, 0, -1)),
            "pipeline_model_parallel_sizes": tuple(range(8, 0, -1)),
            "micro_batch_sizes": (spec.micro_batch_sizes or (1, 2, 3, 4, 6, 8, 16))[
                ::-1
            ],
            "recompute": spec.recompute[::-1],
            "zero_stages": spec.zero_stages[::-1],
        }
        other, _ = searched(case, **sizes)
        assert [one.time for one in other.plans[:1]] == [
            one.time for one in found.plans[:1]
        ]
        assert other.lower_bound == pytest.approx(found.lower_bound, rel=1e-9)


def test_a_search_twice_is_the_same():
    for case in wholes(SEEDS):
        (first, one), (second, two) = (searched(case) for _ in range(2))
        assert one.plans == two.plans
        assert first.spent == second.spent
        assert first.lower_bound == second.lower_bound


def test_a_search_that_was_stopped_gives_a_true_bound():
    stopped = 0
    for case in wholes(SEEDS):
        if math.isinf(case.best):
            continue
        full, _ = searched(case, proven_gap=0.0)
        last = math.inf
        for part in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
            limit = int(part * full.spent.work)
            found, _ = searched(case, proven_gap=0.0, work_limit=limit)
            assert found.lower_bound <= case.best + case.slack
            assert found.plans
            assert found.plans[0].time <= last
            last = found.plans[0].time
            if found.plans[0].time > found.lower_bound * (1.0 + 1e-9):
                assert found.spent.stopped_by == WORK_LIMIT
                stopped += 1
        assert last <= full.plans[0].time * (1.0 + 1e-9) or full.spent.work > limit
    assert stopped >= 5


def test_the_answer_is_no_slower_than_a_plan_to_begin_with():
    rng, honoured = random.Random(5), 0
    for case in wholes(SEEDS):
        plans = case.fitting()
        if not plans:
            continue
        starts = tuple(rng.sample(plans, min(2, len(plans))))
        found, judge = searched(case, starts=starts, work_limit=1)
        assert tuple(judge.plans[:1]) == starts[:1]
        times = [case.times[told_apart(plan)] for plan in starts]
        assert found.plans[0].time <= times[0]
        honoured += 1
        whole_search, judge = searched(case, starts=starts)
        assert tuple(judge.plans[: len(starts)]) == starts
        assert whole_search.plans[0].time <= min(times)
    assert honoured >= 5


def test_a_plan_to_begin_with_that_does_not_fit_is_no_answer():
    tried = 0
    for case in wholes(SEEDS):
        plans = case.fitting(fit=False)
        if not plans:
            continue
        found, _ = searched(case, starts=(plans[0],))
        assert told_apart(plans[0]) not in {
            told_apart(one.priced.plan) for one in found.plans
        }
        tried += 1
    assert tried


def test_progress_says_from_the_first_replay_on_how_good_the_answer_is():
    pattern = re.compile(
        r"search: (?:no plan that fits yet|best (?P<best>\S+) s)"
        r"(?:, none below (?P<bound>\S+) s)?(?:: proven to (?P<gap>\S+)%)?"
        r"; (?P<doing>.+)"
    )
    proven = 0
    for case in wholes(SEEDS[:6]):
        searched_too, texts = case.world.candidates().is_searched, list[str]()
        plans = [plan for plan in case.fitting() if searched_too(plan)][:2]
        replays = Replays(
            judge=Judge(case),
            by_layer=case.world.settings.granularity == "layer",
            ordinary=lambda plans=plans, case=case: [
                price_plan(*case.world[:2], plan) for plan in plans
            ],
            simplest_within=0.05,
        )
        search_replayed(
            *case.world[:3], replays, progress=lambda text, _, to=texts: to.append(text)
        )
        matches = [pattern.fullmatch(text) for text in texts]
        assert all(matches), texts
        bests = [float(match["best"]) for match in matches if match["best"]]
        assert bests == sorted(bests, reverse=True)
        # Of three digits more than are written.
        assert all(best >= case.best * (1.0 - 1e-3) for best in bests)
        bounds = [float(match["bound"]) for match in matches if match["bound"]]
        assert all(bound <= case.best * (1.0 + 1e-3) for bound in bounds)
        named = {match["doing"]: match["best"] for match in matches}
        assert {"list what can be launched", "bound the layers"} <= named.keys()
        if plans:
            assert all(match["best"] for match in matches[2:])
            proven += any(match["gap"] for match in matches)
    assert proven >= 3


@failures.over("seed", SEEDS[:4])
def test_configurations_in_other_chunks_are_all_that_there_are(seed):
    candidates = random_world(seed).candidates()
    every = [candidates[number] for number in range(len(candidates))]
    for mine in every[:: max(len(every) // 20, 1)]:
        expected = [
            other
            for other in every
            if other != mine
            and other._replace(v=0, pairs=False) == mine._replace(v=0, pairs=False)
        ]
        assert sorted(candidates.with_other_chunks(mine)) == sorted(expected)
