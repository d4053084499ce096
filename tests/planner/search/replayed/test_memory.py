"""The bound's kernel counts memory as the prices of plans do."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np

from planner.cost.choices import choice_columns
from planner.cost.pricing import plan_degrees
from planner.frameworks.framework import FRAMEWORKS
from planner.kernels.replay_memory import Variants
from planner.search.launchable import block_counts, broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.step.memory import stage_memory
from tests import failures
from tests.planner.search.replayed.worlds import random_world

CLOSE = 1e-11
"""The kernel leaves plans out that are beyond the memory by more than 1e-12."""


def fullest(world, plan):
    """Return the memory of a plan's fullest stage [byte]."""
    table = world.workload.table(plan_degrees(plan))
    return max(
        sum(stage_memory(world.workload, table, plan, index).values())
        for index in range(len(plan.stages))
    )


def fits(candidates, leaf, memory):
    """Tell whether the kernel finds that a plan fits into some memory."""
    placed = candidates.prices.placed(leaf.configuration, leaf.placement)
    bounds = replace(candidates.bounds, memory=memory)
    found = bounds.placed(
        candidates.listing.shape(leaf.configuration)._replace(schedule=leaf.schedule),
        candidates.least_rates(leaf.configuration),
        placed,
        Variants(np.array([leaf.layout]), choice_columns((leaf.choice,))),
        np.inf,
    )
    return bool(np.isfinite(found.values[0, 0]))


def some_leaves(world, seed, count):
    """Draw plans of a job, of every kind alike."""
    candidates, rng = world.candidates(), random.Random(seed)
    found = []
    for number in rng.sample(range(len(candidates)), min(count, len(candidates))):
        for one in candidates.leaves(candidates[number], np.inf):
            places = range(len(one.bounds))
            found += [one.leaf(k) for k in rng.sample(places, min(4, len(places)))]
    return candidates, found


def with_frozen_weights(graph):
    """Return a model whose norms and biases are not trained."""
    layers = tuple(
        replace(
            layer,
            parameters=tuple(
                parameter._replace(frozen=parameter.layout == "whole")
                for parameter in layer.parameters
            ),
        )
        for layer in graph.layers
    )
    return replace(graph, layers=layers)


def seen_in(world, leaf, memory):
    """Say what is special about a plan."""
    sizes, choice = leaf.configuration, leaf.choice
    model = world.workload.graph.spec
    chunks = np.diff(leaf.layout)
    yield from (f"zero {choice.zero_stage}", choice.recompute)
    special = {
        "hybrid": choice.sharding > 0,
        "experts": sizes.ep > 1,
        "experts of their own": model.num_moe_experts > 0 and sizes.ep == 1,
        "chunks": sizes.v > 1,
        "uneven chunks": sizes.v > 1 and len(set(chunks[1:-1].tolist())) > 1,
        "tied on one stage": sizes.pp == 1 and model.tie_word_embeddings,
        "tied on several": sizes.pp > 1 and model.tie_word_embeddings,
        "tensor": sizes.tp > 1,
        "context": sizes.cp > 1,
    }
    yield from (name for name, is_so in special.items() if is_so)


def test_plans_are_left_out_where_their_fullest_stage_does_not_fit():
    seen = Counter()
    for seed in range(40):
        presets = ("ideal", "megatron-core", "torchtitan", "maxtext")
        preset = presets[seed % 4]
        world = random_world(seed, preset=preset)
        large = replace(world.workload.accelerator, memory_bytes=1e15)
        workload = replace(world.workload, accelerator=large)
        if seed % 3:
            workload._tables.update(world.workload._tables)
        else:
            graph = with_frozen_weights(workload.graph)
            workload = replace(workload, graph=graph)
        world = world._replace(workload=workload)
        candidates, leaves = some_leaves(world, seed, 8)
        for leaf in leaves:
            memory = fullest(world, candidates.plan(leaf))
            assert fits(candidates, leaf, memory * (1.0 + CLOSE)), leaf
            assert not fits(candidates, leaf, memory * (1.0 - CLOSE)), leaf
            seen.update(seen_in(world, leaf, memory))
            if workload.table(plan_degrees(candidates.plan(leaf))).frozen_weights.any():
                seen["frozen weights"] += 1
    assert set(seen) == {
        "frozen weights",
        *("zero 0", "zero 1", "zero 2", "zero 3"),
        *("none", "selective", "full", "stage", "hybrid"),
        *("experts", "experts of their own", "chunks", "uneven chunks"),
        *("tied on one stage", "tied on several", "tensor", "context"),
    }


def by_name(candidates, sizes):
    """Return the plans of a configuration by what tells them apart."""
    found = (
        one.leaf(k)
        for one in candidates.leaves(sizes, np.inf)
        for k in range(len(one.bounds))
    )
    return {(leaf.layout, leaf.choice, leaf.placement.name): leaf for leaf in found}


@failures.over("preset", sorted(FRAMEWORKS))
def test_what_is_yielded_fits_and_what_fits_is_yielded(preset):
    """Under a memory that some plans of a configuration fit into, and others not."""
    cut, every_nth = 0, 0
    for seed in range(6):
        world = random_world(seed, preset=preset)
        candidates, leaves = some_leaves(world, seed, 3)
        for sizes in sorted({leaf.configuration for leaf in leaves}):
            every = by_name(candidates, sizes)
            used = {
                name: fullest(world, candidates.plan(leaf))
                for name, leaf in list(every.items())[:60]
            }
            middle = float(np.median(list(used.values()))) * (1.0 + 1e-6)
            tight = replace(
                candidates, bounds=replace(candidates.bounds, memory=middle)
            )
            found = by_name(tight, sizes)
            counted = [leaf for leaf in found.values() if leaf.choice.counting]
            for leaf in counted:
                # One block less, and it does not; or those of the next larger n.
                plan, count = candidates.plan(leaf), leaf.num_layers
                less = count - 1
                if leaf.choice.counting > 1:
                    facts = LaunchFacts.of(world.workload, world.network.num_devices)
                    (held,) = {*block_counts(plan, facts.is_block)}
                    can = {held // n for n in range(2, held + 1)}
                    if sizes.v > 1:
                        can = {held // n for n in range(2, held + 1) if held % n == 0}
                    assert count in can
                    less = max((n for n in can if n < count), default=0)
                    rules = FRAMEWORKS[preset].rules
                    assert "recompute" not in {
                        one.rule for one in broken_rules(plan, rules, facts)
                    }
                    every_nth += 1
                fewer = candidates.plan(leaf._replace(num_layers=less))
                assert fullest(world, plan) <= middle < fullest(world, fewer)
            kept = {name for name, leaf in found.items() if leaf not in counted}
            expected = {
                name
                for name, memory in used.items()
                if memory <= middle and not every[name].choice.counting
            }
            assert kept & used.keys() == expected
            cut += len(used) - len(expected)
            # A bound of the whole configuration is finite if anything fits.
            assert not kept or np.isfinite(tight.relaxed_bound(sizes, np.inf))
    assert cut or preset == "ddp"
    assert bool(every_nth) == bool(FRAMEWORKS[preset].rules.recompute_every)


def test_plans_in_groups_of_a_size_are_left_out_where_they_do_not_fit():
    checked = rests = 0
    for seed in range(40, 60):
        world = random_world(seed, preset="megatron-core")
        large = replace(world.workload.accelerator, memory_bytes=1e15)
        workload = replace(world.workload, accelerator=large)
        workload._tables.update(world.workload._tables)
        world = world._replace(workload=workload).spec_with(
            schedules=("interleaved-1f1b",),
            virtual_pipeline_model_parallel_sizes=(2, 3),
            pipeline_model_parallel_sizes=(2, 3, 4),
            microbatch_group_sizes_per_vp_stage=(3, 4, 5, 6, 7, 8, 12),
        )
        candidates, leaves = some_leaves(world, seed, 6)
        for leaf in leaves:
            plan = candidates.plan(leaf)
            group = plan.microbatch_group_size_per_vp_stage
            rests += group is not None and plan.num_microbatches % group > 0
            memory = fullest(world, plan)
            assert fits(candidates, leaf, memory * (1.0 + CLOSE)), leaf
            assert not fits(candidates, leaf, memory * (1.0 - CLOSE)), leaf
            checked += 1
    assert checked >= 30
    assert rests >= 2


@failures.over("schedule", ["zb-h1", "zb-h2", "zb-v", "dualpipe-v"])
def test_plans_whose_weight_gradients_are_apart_are_left_out_where_they_do_not_fit(
    schedule,
):
    checked = 0
    for seed in range(12):
        world = random_world(seed, preset="ideal")
        large = replace(world.workload.accelerator, memory_bytes=1e15)
        workload = replace(world.workload, accelerator=large)
        workload._tables.update(world.workload._tables)
        world = world._replace(workload=workload).spec_with(
            schedules=(schedule,), pipeline_model_parallel_sizes=(2, 3, 4, 6, 8)
        )
        candidates, leaves = some_leaves(world, seed, 4)
        for leaf in leaves:
            assert leaf.schedule == schedule
            memory = fullest(world, candidates.plan(leaf))
            assert fits(candidates, leaf, memory * (1.0 + CLOSE)), leaf
            assert not fits(candidates, leaf, memory * (1.0 - CLOSE)), leaf
            checked += 1
    assert checked >= 20


def least_of(candidates, sizes, shape):
    """Return what the fullest stage holds under the thriftiest choice [byte]."""
    rates = candidates.least_rates(sizes)
    options = range(len(rates.group_sizes))
    choices, columns = candidates.listing.choices(sizes, options, shape.schedule)
    least = np.inf
    for kinds in candidates.listing.distinct_kinds(sizes):
        cuts = candidates.listing.layouts(sizes, shape, kinds)
        if choices:
            variants = Variants(cuts, columns)
            held = candidates.bounds.memory_of(shape, rates, variants, kinds)
            least = min(least, float(held.min()))
    return least


def test_nothing_holds_less_than_the_least_memory():
    """Nor much more: a bound that says nothing would exclude nothing."""
    near, seen = Counter(), Counter()
    for seed in range(48):
        preset = ("ideal", "megatron-core", "torchtitan", "maxtext")[seed % 4]
        candidates = random_world(seed, preset=preset).candidates()
        number = range(len(candidates))
        for place in random.Random(seed).sample(number, min(12, len(candidates))):
            sizes = candidates[place]
            for shape in candidates.listing.shapes(sizes):
                floor = candidates.memory.of(sizes, shape)
                held = least_of(candidates, sizes, shape)
                assert floor <= held * (1.0 + 1e-9), (seed, sizes, shape)
                seen[preset] += 1
                near[preset] += floor > 0.5 * held
    assert min(near.values()) > 10, (near, seen)
