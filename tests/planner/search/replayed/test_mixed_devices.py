"""The search for the fastest replay where devices differ."""

import random
from dataclasses import replace

import numpy as np
import pytest

from estimators.models.spec import TransformerSpec
from estimators.training import TrainingSpec
from nestsim.simulator.system import ReplaySettings
from planner.frameworks.framework import FRAMEWORKS
from planner.search.replayed.layouts import spared_ends
from planner.search.replayed.replays import Replays
from planner.search.replayed.search import search_replayed
from planner.search.replayed.unequal import MOST_UNEQUAL, unequal_counts
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.fleet import Fleet
from tests import failures
from tests.planner.search.replayed.test_bounds import check_world
from tests.planner.search.replayed.test_search import check_answer, whole_of
from tests.planner.search.replayed.worlds import World, random_world, traced
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

FACTORS = (1.0, 1.0, 1.0, 1.5, 3.0)


def mixed(world: World, seed: int) -> World:
    """Return a job some of whose devices are others, or slow."""
    rng, num_devices = np.random.default_rng(seed), world.network.num_devices
    own = world.workload.accelerator
    memory = own.memory_bytes * float(rng.choice([0.5, 1.0, 2.0]))
    other = replace(load_accelerator("a100-80gb"), memory_bytes=memory)
    block = int(rng.choice([1, 2, 4]))
    group = np.repeat(rng.integers(0, 2, size=num_devices), block)[:num_devices]
    factors = rng.choice(FACTORS, size=num_devices)
    fleet = Fleet.of_devices((own, other), group, factors)
    return world._replace(workload=replace(world.workload, fleet=fleet))


def small(seed: int, preset: str) -> World:
    """Draw a job whose every plan can be replayed, on devices that differ."""
    rng = random.Random(seed)
    world = mixed(random_world(seed, preset=preset, most_devices=8), seed)
    return world.spec_with(
        micro_batch_sizes=(1,),
        recompute=(rng.choice(("none", "full")),),
        zero_stages=(rng.choice((0, 1)),),
    )


@failures.over("preset", ["deepspeed", "megatron-core", "torchtitan"])
def test_no_bound_exceeds_the_replay_on_mixed_devices(preset):
    checked = sum(
        check_world(
            mixed(random_world(seed, preset=preset), seed),
            seed,
            configurations=3,
            plans=3,
        )
        for seed in range(500, 505)
    )
    assert checked >= 12


def cases(seeds):
    """Yield the jobs that are small enough, and have plans that fit."""
    for seed in seeds:
        world = small(seed, ("megatron-core", "megatron-lm", "deepspeed")[seed % 3])
        blocks, batch = (
            world.workload.chain[1],
            world.workload.training.global_batch_size,
        )
        if blocks <= 6 and batch <= 12 and world.network.num_devices > 1:
            found = whole_of(world)
            if found is not None:
                yield found


def test_the_answer_is_the_best_of_all_replays_on_mixed_devices():
    found = list(cases(range(700, 714)))
    assert len([case for case in found if np.isfinite(case.best)]) >= 4
    for case in found:
        check_answer(case, 0.0)


def two_devices(factors, *, idle: bool) -> World:
    """Return eight blocks for two nodes of one device each, nearly nothing in between.

    A pipeline of 64 microbatches, or one device for all of it.
    """
    levels = tuple(
        LevelSpec(name=name, fan_out=fan, bandwidth=1e15, latency=0.0)
        for name, fan in (("node", 1), ("leaf", 2))
    )
    model = TransformerSpec(
        family="gpt",
        num_layers=8,
        hidden_size=2048,
        num_attention_heads=16,
        vocab_size=128,
        sequence_length=2048,
    )
    own = replace(load_accelerator("h100-sxm"), memory_bytes=1e13)
    fleet = Fleet.of_devices((own,), np.zeros(2, int), np.array(factors))
    workload = Workload(
        graph=traced(model),
        training=TrainingSpec(global_batch_size=64),
        accelerator=own,
    )
    spec = SearchSpec(
        rules=FRAMEWORKS["megatron-core"].rules,
        micro_batch_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
        context_parallel_sizes=(1,),
        data_parallel_sizes=(1,),
        virtual_pipeline_model_parallel_sizes=(1,),
        recompute=("none",),
        zero_stages=(0,),
        idle_devices=idle,
        keep_best=1,
    )
    network = build_network(FatTreeSpec(levels=levels))
    return World(network, workload.on(fleet), spec, ReplaySettings(), "megatron-core")


def best_of(world: World):
    """Return the fastest plan, proven."""

    def judge(priced, cutoff):
        return world.time(priced.plan)

    replays = Replays(judge=judge)
    found = search_replayed(world.network, world.workload, world.spec, replays)
    assert not found.spent.is_stopped
    return found.plans[0]


def blocks_on(plan) -> dict[int, int]:
    """Return how many blocks each device has, of a chain that begins with one layer."""
    last = max(stage.chunks[-1][1] for stage in plan.stages)
    return {
        stage.devices[0][0]: sum(
            1 <= layer <= 8 and layer < last
            for first, end in stage.chunks
            for layer in range(first, end + 1)
        )
        for stage in plan.stages
    }


@failures.over("slow", [0, 1])
def test_a_slow_device_has_as_many_blocks_as_it_has_time_for(slow):
    """A third of the speed: of eight blocks two, which take as long as the others."""
    factors = [1.0, 1.0]
    factors[slow] = 3.0
    best = best_of(two_devices(factors, idle=False))
    assert blocks_on(best.priced.plan) == {1 - slow: 6, slow: 2}
    even = best_of(two_devices([1.0, 1.0], idle=False))
    assert best.time / even.time == pytest.approx(6 / 4, rel=0.03)


@failures.over("slow", [0, 1])
def test_a_device_that_only_keeps_others_waiting_is_left_idle(slow):
    """One block there takes longer than all eight on the other device."""
    factors = [1.0, 1.0]
    factors[slow] = 20.0
    best = best_of(two_devices(factors, idle=True))
    assert blocks_on(best.priced.plan) == {1 - slow: 8}
    # Where it must work, it has a single block of the listed layouts.
    world = two_devices(factors, idle=False)
    forced = best_of(world.spec_with(proposals=0))
    assert blocks_on(forced.priced.plan) == {1 - slow: 7, slow: 1}
    assert forced.time / best.time == pytest.approx(20 / 8, rel=0.05)
    # The dynamic program proposes to leave it an end of the chain alone.
    ends = best_of(world)
    assert blocks_on(ends.priced.plan) == {1 - slow: 8, slow: 0}
    assert ends.time < forced.time


ENDS = tuple(spared_ends(4))


def test_unequal_layouts_share_out_all_blocks_and_spare_slow_stages():
    paces = (1.0, 2.0, 1.0, 1.0)
    found = unequal_counts(32, (0, 1, 2, 3), paces, ("layout",), ENDS)
    assert len(found) == len(set(found)) <= MOST_UNEQUAL * len(ENDS)
    assert {sum(counts) for counts in found} == {32}
    assert min(min(counts) for counts in found) >= 1
    # The best of all ways to share out 32 blocks is among them.
    slowest = [max(np.multiply(counts, paces)) for counts in found]
    assert min(slowest) == min(
        max(a, 2 * b, c, 32 - a - b - c)
        for a in range(1, 30)
        for b in range(1, 31 - a)
        for c in range(1, 32 - a - b)
    )


def test_chunks_of_a_slow_stage_hold_fewer_blocks_each():
    found = unequal_counts(
        12, (0, 1, 0, 1), (1.0, 2.0), ("layout",), ((0, 0),), empty_ends=True
    )
    assert (4, 2, 4, 2) in found
    # In a V the slow second stage has the two chunks in the middle.
    found = unequal_counts(12, (0, 1, 1, 0), (1.0, 2.0), ("layout",), ((0, 0),))
    assert (4, 2, 2, 4) in found


def test_frameworks_have_the_unequal_layouts_that_they_can_say():
    stage, paces = (0, 1, 2, 3), (2.0, 1.0, 1.0, 1.0)
    assert unequal_counts(14, stage, paces, ("even", "balanced"), ENDS) == ()
    assert unequal_counts(14, stage, (1.0,) * 4, ("layout",), ENDS) == ()
    found = unequal_counts(14, stage, paces, ("even", "ends"), ENDS)
    assert (2, 4, 4, 4) in found
    assert all(counts[1] == counts[2] for counts in found)
    assert unequal_counts(12, (0, 1, 0, 1), (1.0, 2.0), ("ends",), ENDS) == ()
