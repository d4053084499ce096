"""Transfers in lockstep, held against the folding of the replays that they are in."""

import random

import numpy as np
import pytest

from nestsim.lowering.lower import lower_plan
from nestsim.simulator.build import build_model
from nestsim.simulator.replay import fold_model
from tests.planner.search.replayed.test_bounds import shared_world
from tests.planner.search.replayed.worlds import random_world


def drawn_plans(world, rng, count):
    """Draw plans that have a pipeline."""
    candidates = world.candidates()
    piped = [k for k in range(len(candidates)) if candidates[k].pp > 1]
    for index in rng.sample(piped, min(count, len(piped))):
        leaves = list(candidates.leaves(candidates[index], np.inf))
        every = [(one, k) for one in leaves for k in range(len(one.bounds))]
        for one, k in rng.sample(every, min(2, len(every))):
            yield candidates.plan(one.leaf(k))


def folded_rates(world, plan):
    """Return the least that a folded replay's transfers take, by virtual boundary.

    Latency and inverse bandwidth of activations and gradients, shape ``(d, B, 2, 2)``.
    """
    priced = world.priced(plan)
    work = lower_plan(world.network, world.workload, priced, world.settings)
    model = build_model(world.network, work)
    folding, tick = fold_model(model), model.system.tick
    incidence, capacity = folding.system.incidence, folding.system.capacity
    slowness = incidence.weights / capacity[incidence.links]
    found = np.zeros((*model.flows.activation.T.shape, 2, 2))
    for way, flows in enumerate((model.flows.activation, model.flows.gradient)):
        for (boundary, replica), flow in np.ndenumerate(flows):
            channel = folding.channels.of[flow]
            crossed = slice(*incidence.indptr[channel : channel + 2])
            found[replica, boundary, way] = (
                folding.system.latency[channel] + tick,
                slowness[crossed].max(initial=0.0),
            )
    return found, work.virtual_stages()


@pytest.mark.parametrize("draw", [random_world, shared_world])
def test_transfers_take_no_longer_than_in_the_folded_replay(draw):
    """Chunks, layouts and buckets of a plan have no say in who moves with whom."""
    checked, shared = 0, 0
    for seed in range(16):
        world, rng = draw(seed), random.Random(seed)
        if world.settings.granularity == "layer":
            continue
        for plan in drawn_plans(world, rng, 1):
            rates = world.transfers(plan)
            folded, virtual = folded_rates(world, plan)
            for number, row in enumerate(rates):
                laid = virtual.after_each(np.moveaxis(row, 1, 2))
                bound = np.moveaxis(laid, 1, 2)
                assert (bound <= folded[number] * (1.0 + 1e-12)).all(), (seed, plan)
                shared += (bound[..., 1] > 0.999 * folded[number][..., 1]).all()
            checked += 1
    assert checked >= 10
    assert shared > 0


def drawn_leaves(candidates, rng):
    """Draw plans that have a pipeline, as a search lists them, and their shapes."""
    piped = [k for k in range(len(candidates)) if candidates[k].pp > 1]
    for index in rng.sample(piped, min(12, len(piped))):
        shapes = candidates.listing.shapes(candidates[index])
        for leaves in candidates.leaves(candidates[index], np.inf):
            (shape,) = (one for one in shapes if one.schedule == leaves.schedule)
            count = len(leaves.bounds)
            for k in rng.sample(range(count), min(2, count)):
                yield leaves.leaf(k), shape


@pytest.mark.parametrize("draw", [random_world, shared_world])
def test_what_a_search_keeps_of_transfers_is_that_of_each_plan(draw):
    """Plans of other chunks, layouts and micro-batches have the same transfers."""
    asked, kept = 0, 0
    for seed in range(24):
        world, rng = draw(seed), random.Random(seed)
        if world.settings.granularity == "layer":
            continue
        candidates = world.candidates()
        timelines = world.timelines(candidates)
        for leaf, shape in drawn_leaves(candidates, rng):
            placed = candidates.prices.placed(leaf.configuration, leaf.placement)
            found = timelines._lockstep(leaf, shape, placed)
            wanted = world.transfers(candidates.plan(leaf))
            assert (found is None) == (wanted is None), (seed, leaf)
            for number, rows in enumerate(found or ()):
                alike = wanted[placed.kinds.which == number]
                assert np.array_equal(rows, np.unique(alike, axis=0)), (seed, leaf)
            asked += 1
        kept += len(timelines._known)
    assert 0 < 4 * kept < 3 * asked


def test_replicas_that_share_an_adapter_share_it_in_their_price():
    """Four replicas leave a node through one adapter: each has a quarter of it."""
    for seed in range(20):
        world = shared_world(seed).spec_with(
            tensor_model_parallel_sizes=(1,),
            context_parallel_sizes=(1,),
            expert_model_parallel_sizes=(1,),
            data_parallel_sizes=(4,),
            pipeline_model_parallel_sizes=(2,),
            idle_devices=True,
        )
        capacity = world.network.links.bandwidth
        adapters = capacity[world.network.links.level == 1]
        candidates = world.candidates()
        is_worn = world.workload.fleet is not None or capacity.min() < adapters.max()
        if not len(candidates) or is_worn:
            continue
        for one in candidates.leaves(candidates[0], np.inf):
            if len(one.bounds) and one.placement.name.endswith("dp4 pp2"):
                plan = candidates.plan(one.leaf(0))
                rates = world.transfers(plan)
                shared = np.full((4, 2), 4.0 / adapters.max())
                assert rates[:, 0, :, 1] == pytest.approx(shared)
                return
    pytest.fail("no job has four replicas and two stages")
