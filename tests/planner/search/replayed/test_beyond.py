"""Beyond the rules of a framework: what bounds the wider space."""

from dataclasses import replace

import numpy as np

from planner.search.best_first import search
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.search.replayed.beyond import search_beyond
from planner.search.replayed.replays import Replays
from planner.search.replayed.search import search_replayed
from tests.planner.search.replayed.worlds import ROUNDING, random_world

FEW = 20


def small(seed):
    """Return a job that a search beyond the rules is done with soon, or None."""
    world = random_world(seed, most_devices=8)
    if world.workload.chain[1] > 5 or world.settings.granularity == "layer":
        return None
    return world.spec_with(micro_batch_sizes=(1, 2), proven_gap=0.0)


def test_the_bound_holds_for_plans_that_no_framework_launches():
    beyond = 0
    for seed in range(12):
        world = small(seed)
        if world is None:
            continue
        network, workload, spec = world[:3]
        replays = Replays(judge=lambda priced, _, w=world: w.time(priced.plan))
        free = replace(spec, launchable=False)
        wider = search_beyond(network, workload, free, replays)
        inside = search_replayed(network, workload, spec, replays)
        if not inside.plans:
            continue
        assert wider.plans[0].time <= inside.plans[0].time
        # What it proposes beyond the rules is no launchable plan's time.
        assert wider.launchable_time == inside.plans[0].time
        assert wider.proposed_time >= wider.plans[0].time
        assert wider.lower_bound <= inside.lower_bound * (1.0 + 1e-9)
        facts = LaunchFacts.of(workload, network)
        for priced in search(network, workload, replace(spec, keep_best=FEW)).plans:
            time = world.time(priced.plan)
            assert wider.lower_bound <= time + ROUNDING
            beyond += bool(broken_rules(priced.plan, spec.rules, facts))
    assert beyond >= 10
    assert np.isfinite(wider.lower_bound)
