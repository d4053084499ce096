"""No bound exceeds a replay: what the proof of the search rests on.

Random launchable plans of random jobs, each bounded at every step of the search and
replayed.
"""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from estimators.layers.saved_activations import RECOMPUTE_MODULES
from estimators.training import TrainingSpec
from nestsim.simulator.system import ReplaySettings
from planner.cost.choices import choice_columns
from planner.frameworks.framework import FRAMEWORKS
from planner.kernels.replay_memory import Variants
from planner.search.replayed.orders import alone_passes, pass_counts
from planner.search.replayed.timelines import timeline_bound
from planner.search.space import SearchSpec
from planner.step.execution import Execution
from planner.step.instructions import BACKWARD, FORWARD
from planner.step.rounds import group_takes, round_length
from planner.step.schedules import SCHEDULES, grouped_name, schedule_name
from tests import failures
from tests.planner.fleets import slow_fleet
from tests.planner.search.replayed.worlds import (
    ROUNDING,
    every_first_bound,
    random_wear,
    random_world,
)
from topologies.builders import build_network
from topologies.degrade import degrade, slowdowns
from topologies.specs import FatTreeSpec, LevelSpec

FASTER = 1.0 + 1e-9
SPLIT = [name for name, one in SCHEDULES.items() if one.splits_backward]


def drawn(candidates, rng, count):
    """Draw configurations, rare kinds as often as others."""
    kinds: dict[tuple[bool | str, ...], list[int]] = {}
    for index in range(len(candidates)):
        sizes = candidates[index]
        own = (sizes.grouping.is_folded, sizes.grouping.cp_comm_type)
        kind = (*(size > 1 for size in (sizes.v, sizes.pp, sizes.dp, sizes.ep)), *own)
        kinds.setdefault(kind, []).append(index)
    names = sorted(kinds)
    picked = [rng.choice(kinds[rng.choice(names)]) for _ in range(count)]
    return sorted(set(picked))


def held_bounds(world, seed, *, configurations, plans):
    """Yield some plans of a job with their replays' times and all their bounds [s]."""
    candidates, rng = world.candidates(), random.Random(seed)
    timelines = world.timelines(candidates)
    first_bounds = every_first_bound(candidates)
    for index in drawn(candidates, rng, configurations) if len(candidates) else ():
        configuration = candidates[index]
        first = float(first_bounds[index])
        relaxed = candidates.relaxed_bound(configuration, np.inf)
        leaves = list(candidates.leaves(configuration, np.inf))
        rates = candidates.least_rates(configuration)
        some = [(one, k) for one in leaves for k in range(len(one.bounds))]
        for one, k in rng.sample(some, min(plans, len(some))):
            bounds = {
                "first": first,
                "relaxed": relaxed,
                "placed": float(one.bounds[k]),
                "timeline": timelines.bound(one.leaf(k), rates),
            }
            yield one.leaf(k), world.time(candidates.plan(one.leaf(k))), bounds


def check_world(world, seed, *, configurations, plans):
    """Hold the bounds of some plans of a job against their replays; say how many."""
    checked = 0
    for leaf, time, bounds in held_bounds(
        world, seed, configurations=configurations, plans=plans
    ):
        above = {
            name: bound / time - 1.0
            for name, bound in bounds.items()
            if bound > time * FASTER + ROUNDING
        }
        assert not above, (seed, world.preset, leaf, above)
        checked += 1
    return checked


@failures.over("preset", sorted(FRAMEWORKS))
def test_no_bound_exceeds_the_replay(preset):
    checked = sum(
        check_world(random_world(seed, preset=preset), seed, configurations=4, plans=3)
        for seed in range(4)
    )
    assert checked >= 10


def test_no_bound_exceeds_the_replay_where_a_graph_joins_copies_of_a_network():
    checked = sum(
        check_world(random_world(seed, joined=True), seed, configurations=4, plans=3)
        for seed in range(16)
    )
    assert checked >= 50


def paired_world(seed, **changes):
    """Draw a job whose passes may go on beside each other, in groups of sizes."""
    return random_world(seed, preset="megatron-core", **changes).spec_with(
        overlap_moe_expert_parallel_comm=True,
        microbatch_group_sizes_per_vp_stage=(3, 4, 5, 6, 8),
    )


def test_no_bound_of_paired_passes_exceeds_the_replay():
    checked = 0
    for seed in range(60):
        world = paired_world(seed, most_devices=8)
        if not world.workload.graph.spec.num_moe_experts or checked > 20:
            continue
        candidates = world.candidates()
        if any(candidates[number].pairs for number in range(len(candidates))):
            checked += check_world(world, seed, configurations=6, plans=3)
    assert checked >= 20


@failures.over("slowdown", [None, 3.0])
@failures.over("schedule", ["", "dualpipe-v", "zb-v"])
def test_windows_beside_all_to_alls_are_no_longer_than_in_the_replay(
    slowdown, schedule
):
    """And as long in some plan, whatever sending and compute do to each other."""
    ratios = []
    for seed in range(20, 60):
        world = split_world(seed, schedule) if schedule else paired_world(seed)
        if not world.workload.graph.spec.num_moe_experts:
            continue
        execution = replace(
            world.workload.execution,
            expert_communication_slowdown=slowdown,
            delay_wgrad_compute=seed % 2 == 1,
            moe_shared_expert_overlap=seed % 3 > 0,
        )
        world = world._replace(
            workload=replace(world.workload, execution=execution),
            settings=ReplaySettings(granularity="layer" if seed % 5 == 0 else "stage"),
        ).with_memory(1e12)
        for leaf, time, bounds in held_bounds(world, seed, configurations=3, plans=2):
            assert max(bounds.values()) <= time * FASTER + ROUNDING, (seed, leaf)
            if leaf.configuration.ep > 1:
                ratios.append(max(bounds.values()) / time)
        if len(ratios) >= 6 and max(ratios) > 0.98:
            return
    pytest.fail(f"no bound is near its replay: {sorted(ratios)}")


def test_a_timeline_counts_what_passes_that_are_alone_do_not_hide():
    """Of a pair's passes the bound of all paths; of the others all that they send."""
    for seed in range(60):
        world = random_world(seed, preset="megatron-core", most_devices=8)
        world = world.spec_with(overlap_moe_expert_parallel_comm=True)
        candidates, timelines = world.candidates(), world.timelines(world.candidates())
        for number in range(len(candidates)):
            sizes = candidates[number]
            if not sizes.pairs or sizes.pp == 1:
                continue
            rates = candidates.least_rates(sizes)
            for leaves in candidates.leaves(sizes, np.inf):
                if not len(leaves.bounds):
                    continue
                leaf = leaves.leaf(0)
                exact = timelines.bound(leaf, rates)
                (shape,) = candidates.listing.shapes(sizes)
                placed = candidates.prices.placed(sizes, leaf.placement)
                sets = candidates.listing.space.module_sets
                columns = choice_columns((leaf.choice,), candidates.listing.hosts, sets)
                families = candidates.bounds.families(shape, rates, placed, columns)
                loose = timeline_bound(
                    *(shape, families, families, placed.alone.boundaries),
                    Variants(np.array([leaf.layout]), columns),
                    leaf.num_layers or 0,
                )
                time = world.time(candidates.plan(leaf))
                assert loose <= exact <= time * FASTER + ROUNDING
                if loose < 0.9 * exact:
                    return
    pytest.fail("no timeline is longer for passes that are alone")


def experts_behind_passes(seed):
    """Return a mixture of experts whose ZeRO-2 and 3 send behind passes, slowly."""
    world = random_world(seed, preset=("torchtitan", "fsdp", "megatron-core")[seed % 3])
    if world.workload.graph.spec.family != "mixtral":
        return None
    hidden = Execution(
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        communication_slowdown=1.0 + 0.3 * (seed % 2),
    )
    world = world._replace(workload=replace(world.workload, execution=hidden))
    return world.with_memory(1e12).spec_with(zero_stages=(2, 3))


def test_no_bound_exceeds_the_replay_where_experts_are_sent_behind_passes():
    worlds = {seed: experts_behind_passes(seed) for seed in range(40)}
    checked = sum(
        check_world(world, seed, configurations=3, plans=3)
        for seed, world in worlds.items()
        if world is not None
    )
    assert checked >= 30


def test_experts_that_are_sent_behind_passes_count_where_links_are_slow():
    """What is hidden of ZeRO-3 cannot be hidden where it takes longer than compute."""
    levels = (
        LevelSpec(name="node", fan_out=2, bandwidth=1e11, latency=1e-6),
        LevelSpec(name="fabric", fan_out=2, bandwidth=1e8, latency=1e-6),
    )
    worlds = [experts_behind_passes(seed) for seed in range(40)]
    world = next(some for some in worlds if some and some.preset == "torchtitan")
    world = world._replace(
        network=build_network(FatTreeSpec(levels=levels, nic="node")),
        workload=replace(
            world.workload, fleet=None, training=TrainingSpec(global_batch_size=32)
        ),
        settings=ReplaySettings(),
    ).spec_with(
        micro_batch_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
        context_parallel_sizes=(1,),
        expert_model_parallel_sizes=(2,),
        pipeline_model_parallel_sizes=(1,),
        zero_stages=(3,),
    )
    candidates = world.candidates()
    assert len(candidates)
    for leaves in candidates.leaves(candidates[0], np.inf):
        for place, bound in enumerate(leaves.bounds):
            time = world.time(candidates.plan(leaves.leaf(place)))
            assert 0.85 * time < bound <= time * FASTER


def test_no_bound_exceeds_the_replay_where_modules_are_run_again():
    checked: Counter[str] = Counter()
    for seed in range(70):
        rng = random.Random(seed)
        world = random_world(seed, preset="megatron-core", most_devices=8)
        names = rng.sample(sorted(RECOMPUTE_MODULES), 2)
        world = world.spec_with(recompute=("selective",), recompute_modules=names)
        sets = world.candidates().listing.space.module_sets
        if not sets or any(checked[name] > 8 for some in sets for name in some):
            continue
        if count := check_world(world, seed, configurations=3, plans=3):
            checked.update({name: count for some in sets for name in some})
    assert min(checked[name] for name in ("layernorm", "moe_act", "mlp", "moe")) >= 3


def adding_world(seed):
    """Draw a job some of whose switches add up all-reduces."""
    world, rng = random_world(seed), random.Random(seed)
    rules = world.network.rules
    if rules is None:
        return None
    rules = replace(
        rules,
        adds_in_switches=rng.random() < 0.6,
        summed_weight=rng.choice((0.0, 1.0, 1.2, 3.0)),
    )
    if not rules.adds_anywhere:
        return None
    return world._replace(network=replace(world.network, rules=rules))


def check_adding_worlds(seeds):
    """Check those of the jobs drawn whose switches add up; say how many plans."""
    worlds = ((seed, adding_world(seed)) for seed in seeds)
    return sum(
        check_world(world, seed, configurations=4, plans=3)
        for seed, world in worlds
        if world is not None
    )


def test_no_bound_exceeds_the_replay_where_switches_add_up():
    assert check_adding_worlds(range(3000, 3010)) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_no_bound_exceeds_thousands_where_switches_add_up(batch):
    seeds = range(3100 + 20 * batch, 3120 + 20 * batch)
    assert check_adding_worlds(seeds) >= 20


def split_world(seed, schedule):
    """Draw a job whose pipelines have a schedule that splits the backward pass."""
    world = random_world(seed, preset="ideal")
    return world.spec_with(
        schedules=(schedule,), pipeline_model_parallel_sizes=(2, 3, 4, 6, 8)
    )


@failures.over("schedule", SPLIT)
def test_no_bound_exceeds_the_replay_where_weight_gradients_are_apart(schedule):
    checked = sum(
        check_world(split_world(seed, schedule), seed, configurations=3, plans=3)
        for seed in range(12)
    )
    assert checked >= 20


def grouped_world(seed, **changes):
    """Draw a job whose microbatches may go through chunks in groups of sizes."""
    world = random_world(seed, preset="megatron-core", **changes)
    return world.spec_with(
        schedules=("interleaved-1f1b",),
        virtual_pipeline_model_parallel_sizes=(2, 3),
        pipeline_model_parallel_sizes=(2, 3, 4),
        microbatch_group_sizes_per_vp_stage=(3, 4, 5, 6, 7, 8, 12),
    )


def test_no_bound_exceeds_the_replay_where_groups_have_a_size():
    checked, groups, rests = 0, set(), 0
    for seed in range(40, 64):
        world = grouped_world(seed)
        checked += check_world(world, seed, configurations=2, plans=4)
        candidates = world.candidates()
        for number in range(len(candidates)):
            for shape in candidates.listing.shapes(candidates[number]):
                group = SCHEDULES[shape.schedule].group
                groups.add(group)
                rests += group is not None and shape.m % group > 0
    assert checked >= 40
    assert len(groups) >= 4
    assert rests >= 10


@failures.over("pairs", [False, True])
@failures.over(("p", "v"), [(2, 2), (3, 2), (4, 3)])
def test_counts_of_groups_are_those_of_all_microbatches(p, v, pairs):
    for group in range(p, 9):
        name = grouped_name(schedule_name(v, pairs=pairs), group)
        for m in range(p, 40):
            if not group_takes(group, p, m):
                continue
            in_flight, first = pass_counts(name, p, m, v)
            for stage in range(p):
                kind, _, _ = SCHEDULES[name].instructions(stage, p, m, v)
                assert first[stage] == np.argmax(kind == BACKWARD)
                assert in_flight[stage] == SCHEDULES[name].in_flight(stage, p, m, v)
            if pairs:
                assert alone_passes(name, p, m, v).tolist() == alone_one_by_one(
                    name, p, m, v
                )


def alone_one_by_one(name, p, m, v):
    """Count passes before a stage's first pair, and behind its last one."""
    counts = []
    for stage in range(p):
        kind, _, chunk = SCHEDULES[name].instructions(stage, p, m, v)
        passes = list(zip(kind.tolist(), chunk.tolist(), strict=True))
        both = [FORWARD, BACKWARD]
        kinds = kind.tolist()
        begins = [n for n in range(2 * m * v) if kinds[n : n + 2] == both]
        first, last = (begins[0], begins[-1] + 2) if begins else (len(passes), 0)
        filling, emptying = passes[:first], passes[last:]
        assert {kind for kind, _ in filling} <= {FORWARD}
        counts.append(
            [
                [filling.count((FORWARD, c)) for c in range(v)],
                [emptying.count((BACKWARD, c)) for c in range(v)],
            ]
        )
    return counts


@failures.over(("p", "v"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4)])
def test_what_fills_and_empties_is_that_of_all_microbatches(p, v):
    name = schedule_name(v, pairs=True)
    for m in range(1, 40):
        if v == 1 or (m >= p and m % round_length(p, m) == 0):
            alone = alone_passes(name, p, m, v)
            assert alone.tolist() == alone_one_by_one(name, p, m, v)
            # What first bounds take of it.
            assert (alone[:, :, :-1] >= p).all()
            last = np.minimum(p - 1, 2 * np.arange(p)[::-1] + 1)
            assert (alone[:, :, -1] >= last[:, None]).all()


@failures.over("schedule, hides_experts", [("dualpipe-v", False), ("zb-v", True)])
def test_what_zero_sends_in_passes_is_shared_by_chunks_as_in_the_replay(
    schedule, hides_experts
):
    """Pairs send what is theirs even without experts; others a mean layer's part."""
    world = split_world(5007, schedule).spec_with(
        tensor_model_parallel_sizes=(1,),
        context_parallel_sizes=(2,),
        pipeline_model_parallel_sizes=(2,),
        data_parallel_sizes=(3,),
        zero_stages=(3,),
        micro_batch_sizes=(1,),
    )
    execution = replace(
        world.workload.execution, moe_shared_expert_overlap=hides_experts
    )
    world = world._replace(workload=replace(world.workload, execution=execution))
    assert check_world(world, 1, configurations=1, plans=12) >= 6


@failures.over("preset", ["ideal", "maxtext"])
def test_no_bound_exceeds_the_replay_where_all_forward_passes_come_first(preset):
    checked = 0
    for seed in range(40, 52):
        world = random_world(seed, preset=preset).spec_with(
            schedules=("gpipe",), pipeline_model_parallel_sizes=(2, 3, 4, 6, 8)
        )
        checked += check_world(world, seed, configurations=3, plans=3)
    assert checked >= 20


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
@pytest.mark.parametrize("schedule", SPLIT)
def test_no_bound_exceeds_thousands_where_weight_gradients_are_apart(schedule, batch):
    seeds = range(2000 + 20 * batch, 2020 + 20 * batch)
    checked = sum(
        check_world(split_world(seed, schedule), seed, configurations=6, plans=4)
        for seed in seeds
    )
    assert checked >= 30


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
@pytest.mark.parametrize("preset", sorted(FRAMEWORKS))
def test_no_bound_exceeds_the_replay_of_thousands(preset, batch):
    seeds = range(1000 + 10 * batch, 1010 + 10 * batch)
    checked = sum(
        check_world(random_world(seed, preset=preset), seed, configurations=6, plans=4)
        for seed in seeds
    )
    assert checked >= 30


def shared_world(seed):
    """Draw a job on nodes whose devices share an adapter, slow ones now and then."""
    world, rng = random_world(seed), random.Random(seed)
    levels = (
        LevelSpec(name="node", fan_out=4, bandwidth=1e11, latency=1e-6),
        LevelSpec(
            name="fabric",
            fan_out=rng.choice((2, 3, 4)),
            bandwidth=10.0 ** rng.uniform(7.5, 10.0),
            latency=1e-6,
        ),
    )
    shared = build_network(FatTreeSpec(levels=levels, nic="node"))
    wear = random_wear(rng, shared)
    workload = replace(world.workload, fleet=None)
    factors = slowdowns(wear, shared.num_devices)
    if (factors > 1.0).any():
        workload = workload.on(slow_fleet(workload, factors))
    world = world._replace(
        network=degrade(shared, wear), workload=workload, settings=ReplaySettings()
    )
    return world.spec_with(pipeline_model_parallel_sizes=(2, 3, 4, 6, 8))


def test_no_bound_exceeds_the_replay_where_devices_share_adapters():
    checked = sum(
        check_world(shared_world(seed), seed, configurations=4, plans=3)
        for seed in range(12)
    )
    assert checked >= 40


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_no_bound_exceeds_thousands_where_devices_share_adapters(batch):
    checked = sum(
        check_world(shared_world(seed), seed, configurations=6, plans=5)
        for seed in range(6000 + 20 * batch, 6020 + 20 * batch)
    )
    assert checked >= 200


@failures.over("schedule", sorted(set(SCHEDULES) & set(SearchSpec().schedules)))
def test_a_timeline_is_the_replay_where_nothing_is_sent_for_long(schedule):
    """All waits of a schedule count: passes, latencies, and nothing that meets."""
    levels = (LevelSpec(name="fabric", fan_out=8, bandwidth=1e18, latency=1e-4),)
    network, checked = build_network(FatTreeSpec(levels=levels)), 0
    for seed in range(30):
        world = split_world(seed, schedule).spec_with(
            tensor_model_parallel_sizes=(1,),
            context_parallel_sizes=(1,),
            expert_model_parallel_sizes=(1,),
            data_parallel_sizes=(1,),
            idle_devices=True,
        )
        execution = replace(world.workload.execution, overlap_p2p_comm=True)
        world = world._replace(
            network=network,
            settings=ReplaySettings(),
            workload=replace(world.workload, execution=execution, fleet=None),
        )
        candidates, rng = world.candidates(), random.Random(seed)
        timelines = world.timelines(candidates)
        for index in drawn(candidates, rng, 2) if len(candidates) else ():
            rates = candidates.least_rates(candidates[index])
            for one in candidates.leaves(candidates[index], np.inf):
                for k in rng.sample(range(len(one.bounds)), min(2, len(one.bounds))):
                    time = world.time(candidates.plan(one.leaf(k)))
                    bound = timelines.bound(one.leaf(k), rates)
                    assert bound == pytest.approx(time, rel=1e-6, abs=ROUNDING)
                    checked += 1
        if checked >= 20:
            return
    pytest.fail(f"only {checked} plans have pipelines")


@failures.over("granularity", ["stage", "layer"])
def test_the_bound_of_a_plan_on_one_device_is_its_replay(granularity):
    """Without anything to send the bound must be all of the step."""
    for seed in range(400):
        world = random_world(seed, preset="ideal")
        if world.settings.granularity != granularity:
            continue
        narrow = world.spec_with(
            tensor_model_parallel_sizes=(1,),
            context_parallel_sizes=(1,),
            pipeline_model_parallel_sizes=(1,),
            data_parallel_sizes=(1,),
            idle_devices=True,
        )
        candidates = narrow.candidates()
        for one in candidates.leaves(candidates[0], np.inf):
            for k, bound in enumerate(one.bounds):
                time = narrow.time(candidates.plan(one.leaf(k)))
                assert bound == pytest.approx(time, rel=1e-6, abs=ROUNDING)
            return
    pytest.fail("no job of that kind fits on one device")
