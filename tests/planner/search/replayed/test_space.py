"""What a framework can launch: nothing else, and all of it."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from estimators.grouping import CP_COMM_TYPES, Grouping
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.training import ParallelismConfig
from planner.frameworks.framework import FRAMEWORKS
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts, orders_of
from planner.search.placements import Extents, whole_dimensions
from planner.search.replayed.layouts import layouts
from planner.search.replayed.replays import Replays
from planner.search.replayed.search import search_replayed
from planner.search.replayed.space import LaunchableSpace
from planner.search.space import Configuration, SearchSpec
from planner.step.plan import Plan, Stage
from planner.step.schedules import schedule_name
from tests import failures
from tests.planner.search.replayed.test_layouts import compositions
from tests.planner.search.replayed.worlds import (
    random_network,
    random_workload,
    random_world,
)

POWERS = (1, 2, 4, 8, 16, 32, 64)


def facts_of(world, candidates):
    """Return what rules ask of a job; devices may be idle where all are in no plan."""
    num_devices = world.network.num_devices
    uses_all = any(
        candidates[number].devices == num_devices for number in range(len(candidates))
    )
    idle = world.spec.idle_devices or not uses_all
    return LaunchFacts.of(world.workload, world.network, idle_devices=idle)


@failures.over("preset", sorted(FRAMEWORKS))
def test_every_plan_keeps_every_rule(preset):
    plans = 0
    for seed in range(6):
        world = random_world(seed, preset=preset, most_devices=12)
        candidates, rng = world.candidates(), random.Random(seed)
        facts, rules = facts_of(world, candidates), FRAMEWORKS[preset].rules
        for number in rng.sample(range(len(candidates)), min(6, len(candidates))):
            leaves = list(candidates.leaves(candidates[number], np.inf))
            some = [one.leaf(k) for one in leaves for k in range(len(one.bounds))]
            for leaf in rng.sample(some, min(6, len(some))):
                assert broken_rules(candidates.plan(leaf), rules, facts) == ()
                plans += 1
    assert plans >= 20


def every_grouping(tp, cp, ep):
    """Return all ways to share attention, experts being split like the rest or not.

    Those that are can be spread over all ranks, or over replicas alone.
    """
    kinds = [("p2p", 0), ("all_gather", 0), ("a2a", 0)] if cp > 1 else [("p2p", 0)]
    kinds += [("a2a+p2p", a) for a in range(2, cp) if cp % a == 0]
    experts = [(0, False)]
    experts += [(0, True)] if cp > 1 and ep > 1 else []
    experts += [(1, False)] if tp > 1 else []
    return [
        Grouping(etp=etp, cp_comm_type=kind, a2a=a, folds=folds)
        for etp, folds in experts
        for kind, a in kinds
    ]


def largest_level(model, grouping, tp, cp):
    """Return the ranks that exchange heads in the search, 0 without levels."""
    if grouping.cp_comm_type != "a2a+p2p":
        return 0
    groups = max(model.num_query_groups // tp, 1)
    levels = [a for a in range(1, cp) if cp % a == 0 and groups % a == 0]
    return max(levels, default=0) if groups % cp else None


class Brute:
    """Everything that rules allow of a job, tried one by one."""

    def __init__(self, workload, num_devices, rules, spec):
        self.workload, self.num_devices = workload, num_devices
        self.rules, self.spec = rules, spec
        self.facts = LaunchFacts.of(workload, num_devices, idle_devices=True)
        self.layers, self.blocks = workload.chain

    @property
    def space(self):
        """What the search takes it to be."""
        return LaunchableSpace(
            workload=self.workload,
            spec=self.spec,
            rules=self.rules,
            num_devices=self.num_devices,
        )

    def configurations(self):
        """Return the sizes of which there is a plan that breaks no rule."""
        model, most = self.workload.graph.spec, range(1, self.num_devices + 1)
        found = set()
        sizes = (*POWERS, 3, 6)
        for tp, cp, ep, b, pp, dp in product(most, POWERS, most, sizes, most, most):
            if tp * cp * pp * dp > self.num_devices:
                continue
            if model.num_attention_heads % tp or max(model.num_moe_experts, 1) % ep:
                continue
            groupings = self.groupings(tp, cp, ep, b, dp)
            chunks = range(1, self.blocks + 3)
            for v, grouping, pairs in product(chunks, groupings, (False, True)):
                sizes = Configuration(tp, cp, ep, b, v, pp, dp, grouping, pairs)
                # Splits that no layout of the search has are beyond its space.
                is_tried = pp * v <= self.blocks + 2 and self.space.layouts(pp, v)
                if is_tried and self.is_launchable(sizes):
                    found.add(sizes)
        if not self.spec.idle_devices:
            whole = {one for one in found if one.devices == self.num_devices}
            return whole or found
        return found

    def groupings(self, tp, cp, ep, b, dp):
        """Return how ranks may form groups that divide the model and themselves."""
        model, found = self.workload.graph.spec, []
        for one in every_grouping(tp, cp, ep):
            # Two levels are searched with the most ranks that can exchange heads; what
            # one rank holds all of is not split anew.
            if one.a2a != largest_level(model, one, tp, cp) or (
                one.is_folded and ep == 1
            ):
                continue
            spread, ranks = ep, dp
            if one.folds or one.etp:
                spread, ranks = (one.etp or tp) * ep, tp * cp * dp
            degrees = Degrees(tp, cp, ep, b, tp > 1, one)
            if ranks % spread == 0 and not divisibility_problem(model, degrees):
                found.append(one)
        return found

    def is_launchable(self, sizes):
        """Tell whether some split of some sizes breaks no rule."""
        b, v, pp, dp = sizes.b, sizes.v, sizes.pp, sizes.dp
        batch = self.workload.training.global_batch_size
        if batch % (b * dp) or (v > 1 and pp == 1):
            return False
        counts = compositions(self.blocks, pp * v)
        # Stages of one chunk hold a block each.
        some = (one for one in counts if all(one[1:-1] if v > 1 else one))
        return any(self.keeps_rules(sizes, one) for one in some)

    def keeps_rules(self, sizes, counts):
        """Tell whether a plan with the framework's own choices breaks no rule."""
        tp, cp, ep, b, v, pp, dp, grouping, pairs = sizes
        names = self.workload.graph.names
        before = [name.startswith("block") for name in names].index(True)
        after = len(names) - before - self.blocks
        (cuts,) = layouts((counts,), before, after).tolist()
        placement = whole_dimensions(
            orders_of(self.rules, sizes)[0],
            Extents(tp, cp, 1, dp, pp)
            if grouping.is_folded
            else Extents(tp, cp, ep, dp // ep, pp),
        )
        zero = self.rules.zero_stages_of(
            {"tp": tp, "cp": cp, "ep": ep, "pp": pp, "etp": grouping.etp or tp},
            has_experts=self.facts.num_moe_experts > 0,
        )
        own = None if pairs or pp == 1 else self.rules.usual_schedule(v)
        plan = Plan(
            parallel=ParallelismConfig(
                tensor_model_parallel_size=tp,
                context_parallel_size=cp,
                expert_model_parallel_size=ep,
                data_parallel_size=dp,
                pipeline_model_parallel_size=pp,
                sequence_parallel=tp > 1,
                **grouping.settings(cp, ep),
            ),
            virtual_pipeline_model_parallel_size=v,
            micro_batch_size=b,
            num_microbatches=self.workload.training.global_batch_size // (b * dp),
            schedule=own or schedule_name(v, pairs=pairs),
            placement="",
            gradient_algorithm="ring",
            tensor_algorithm="ring",
            stages=tuple(
                Stage(
                    chunks=tuple(
                        (cuts[c * pp + i], cuts[c * pp + i + 1] - 1) for c in range(v)
                    ),
                    devices=tuple(tuple(row) for row in devices),
                    recompute=self.rules.recompute[0],
                    zero_stage=zero[0] if zero else 0,
                    sharding_group_size=dp * cp if zero and zero[0] else 1,
                )
                for i, devices in enumerate(placement.devices.tolist())
            ),
        )
        return broken_rules(plan, self.rules, self.facts) == ()


def space_of(brute):
    """List the configurations of the search's space."""
    families, _ = brute.space.families()
    found = [
        family.configuration(number)
        for family in families
        for number in range(len(family.pp))
    ]
    assert len(found) == len(set(found))
    return set(found)


def drawn(seed, preset):
    """Draw a job on a few devices."""
    rng = random.Random(seed)
    while True:
        workload = random_workload(rng, preset)
        batch = workload.training.global_batch_size
        if workload.chain[1] <= 5 and batch <= 12:
            break
    spec = SearchSpec(cp_comm_types=CP_COMM_TYPES, idle_devices=rng.random() < 0.4)
    return Brute(workload, rng.randint(1, 6), FRAMEWORKS[preset].rules, spec)


@failures.over("seed", range(6))
@failures.over("preset", sorted(FRAMEWORKS))
def test_all_that_the_rules_allow_is_in_the_space(preset, seed):
    brute = drawn(seed, preset)
    assert space_of(brute) == brute.configurations()


def test_lists_of_sizes_are_kept_to():
    rng = random.Random(2)
    lists = {
        "tensor_model_parallel_sizes": (2,),
        "pipeline_model_parallel_sizes": (1, 2),
        "data_parallel_sizes": (2,),
        "micro_batch_sizes": (1, 2),
        "virtual_pipeline_model_parallel_sizes": (2,),
    }
    fields = ("tp", "pp", "dp", "b", "v")
    for _ in range(20):
        brute = drawn(rng.randrange(1000), "megatron-core")
        brute.num_devices = 8
        free = replace(brute.spec, idle_devices=True)
        brute.spec = free
        every = space_of(brute)
        for name, field in zip(lists, fields, strict=True):
            brute.spec = replace(free, **{name: lists[name]})
            assert space_of(brute) == {
                one for one in every if getattr(one, field) in lists[name]
            }


def test_rings_and_ulysses_are_searched_unless_others_are_listed():
    kinds = set()
    for seed in range(40):
        brute = drawn(seed, "megatron-core")
        brute.num_devices, every = 8, replace(brute.spec, idle_devices=True)
        brute.spec = every
        listed = space_of(brute)
        brute.spec = replace(every, cp_comm_types=None)
        found = space_of(brute)
        kinds |= {one.grouping.cp_comm_type for one in listed}
        assert found == {
            one for one in listed if one.grouping.cp_comm_type in ("p2p", "a2a")
        }
        brute.spec = replace(every, expert_tensor_parallel_sizes=(1,))
        own = {one for one in space_of(brute) if one.ep > 1}
        assert all((one.grouping.etp > 0) == (one.tp > 1) for one in own)
    assert kinds == set(CP_COMM_TYPES)


def test_devices_are_idle_only_where_none_can_be_busy_or_it_is_asked_for():
    seen = set()
    for seed in range(60):
        brute = drawn(seed, "megatron-core")
        brute.spec = SearchSpec(cp_comm_types=CP_COMM_TYPES)
        found = space_of(brute)
        brute.spec = SearchSpec(cp_comm_types=CP_COMM_TYPES, idle_devices=True)
        every = space_of(brute)
        whole = {one for one in every if one.devices == brute.num_devices}
        assert found == (whole or every)
        seen.add(bool(whole))
    assert seen == {True, False}


@failures.over("lists", [{"zero_stages": (1,)}, {"recompute": ("stage",)}])
def test_nothing_to_choose_from_is_no_plan_but_a_reason(lists):
    """A framework that has none of the savings that the scenario lists."""
    rng = random.Random(1)
    network, workload = random_network(rng), random_workload(rng, "fsdp")
    spec = SearchSpec(rules=FRAMEWORKS["fsdp"].rules, **lists)
    replays = Replays(judge=lambda *_: pytest.fail("there is no plan to replay"))
    found = search_replayed(network, workload, spec, replays)
    assert found.plans == ()
    assert found.lower_bound == np.inf
    assert "ZeRO stage or recompute mode" in found.infeasibility


def test_chunks_are_not_run_again_as_a_stage():
    rng = random.Random(2)
    workload = random_workload(rng, "ideal")
    spec = SearchSpec(recompute=("stage",), idle_devices=True)
    brute = Brute(workload, 8, FRAMEWORKS["ideal"].rules, spec)
    assert {one.v for one in space_of(brute)} == {1}
