"""No bound exceeds what it bounds, however sharp."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from estimators.collectives.cost import searched_algorithms
from estimators.grouping import Grouping
from planner.cost.pricing import iteration_weights
from planner.cost.rates import AlgorithmChoice, placement_rates
from planner.kernels import memory_bound, placement_loads, tables
from planner.kernels.split import stage_adders
from planner.search.bounds import Relaxation, best_group_rates
from planner.search.candidates import CandidateSet
from planner.search.placements import (
    Extents,
    PlacementBounds,
    groups_of,
    placements,
)
from planner.search.replayed.floors import relaxed_rates
from planner.search.space import Configuration, SearchSpec
from tests.planner.strategies import networks, workloads
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

checked = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

WHOLE_SPACE = SearchSpec(
    micro_batch_sizes=(1, 2),
    tensor_model_parallel_sizes=(1, 2),
    context_parallel_sizes=(1, 2),
    expert_model_parallel_sizes=(1, 2),
    virtual_pipeline_model_parallel_sizes=(1, 2),
)

SLACK = 1.0 + 1e-9


@st.composite
def adding_networks(draw, **sizes):
    """Networks some of whose switches add up all-reduces, inside nodes or outside."""
    network = draw(networks(**sizes))
    if network.rules is None:
        return network
    rules = replace(
        network.rules,
        adds_in_switches=draw(st.booleans()),
        summed_weight=draw(st.sampled_from([0.0, 1.0, 1.25, 3.0])),
    )
    return replace(network, rules=rules)


@checked
@given(adding_networks(max_devices=16), workloads(wide=True, max_blocks=3), st.data())
def test_no_bound_exceeds_the_best_plan_of_a_configuration(network, workload, data):
    sizes = data.draw(st.sampled_from([None, (2, 3, 4, 6, 8)]))
    space = replace(WHOLE_SPACE, sharding_group_sizes=sizes)
    candidates = CandidateSet.enumerate(network, workload, space)
    assume(len(candidates))
    for _ in range(min(len(candidates), 12)):
        index = data.draw(st.integers(0, len(candidates) - 1))
        one = candidates[index]
        # Bounds leave room for rounding themselves: not even by that do they exceed it.
        solution = candidates.solve(one, np.inf)
        best = np.inf if solution is None else solution.value
        first = candidates.bound(index)
        assert first <= best
        forced = candidates.memory_bound(index, np.inf)
        assert first <= forced <= best
        relaxed = candidates.relaxed_bound(one, forced, np.inf)
        assert relaxed <= best
        if np.isfinite(relaxed):
            assert forced <= relaxed
            assert candidates.placed_bound(one, relaxed, np.inf) <= best


@checked
@given(adding_networks(max_devices=16), st.data())
def test_rates_of_a_placement_are_at_least_their_bounds(network, data):
    sizes, left = [], network.num_devices
    for _ in range(5):
        sizes.append(data.draw(st.integers(1, min(4, left))))
        left //= sizes[-1]
    tp, cp, ep, dp, pp = sizes
    grouping = Grouping.of((tp, cp, ep), within_data=data.draw(st.booleans()))
    extents = Extents(*sizes)
    if grouping.is_folded:
        extents = Extents(tp, cp, 1, ep * dp, pp)
    found = placements(extents, network.num_devices, network.block_sizes)
    relaxation = Relaxation.of(network)
    tensor = best_group_rates(network, tp)
    one = Configuration(tp, cp, ep, 1, 1, pp, ep * dp, grouping)
    relaxed = relaxed_rates(relaxation, tensor, one)
    bounds = PlacementBounds.of(network)
    fixed = tables.NUM_FIXED_RATES + 4
    for placement, algorithm in product(found[:8], searched_algorithms(network)):
        choice = AlgorithmChoice(algorithm, 1.0)
        true = placement_rates(
            network, groups_of(one, placement), tensor=choice, gradient=choice
        ).stage_rates
        least = bounds.rates(placement, relaxed)
        own, bounded = true.rows[true.signature], least.rows[least.signature]
        assert (bounded[:, :fixed] <= own[:, :fixed] * SLACK).all()
        assert (least.boundary <= true.boundary * SLACK + 1e-12).all()


def test_a_slow_way_out_is_seen_in_the_bound_of_a_placement_that_needs_it():
    # Two stages inside each node of 4: gradients of both leave over one uplink.
    sizes, steps = np.array([1, 1, 1, 4, 2]), np.zeros((5, 3), dtype=np.int64)
    steps[:, 0] = sizes
    steps[4, 1], steps[3, 1] = 1, 2  # pipeline innermost
    rates, boundary = placement_loads.placement_loads(
        sizes,
        steps,
        8,
        np.array([4, 8]),
        np.array([4]),
        np.array([10.0]),
        np.array([10.0]),
    )
    # Each node holds 2 of 4 replicas of either stage: 2 groups send half a tensor.
    assert rates[:, placement_loads.PASS].tolist() == [10.0, 10.0]
    assert not boundary.any()


def test_padding_may_let_tensor_groups_straddle_nodes_and_then_little_is_known():
    # Nodes of 2 in a block of 12: groups of 2 may start every 3 devices.
    tiers = (2, 6)
    levels = tuple(
        LevelSpec(name=f"tier{i}", fan_out=fan_out, bandwidth=2.0 - i, latency=0.0)
        for i, fan_out in enumerate(tiers)
    )
    straddling = Relaxation.of(build_network(FatTreeSpec(levels=levels)))
    assert straddling.context_inverse(2, 2) == 0.5
    # In a block of 8 every divisor that holds a group is a multiple of it.
    levels = (levels[0], replace(levels[1], fan_out=4))
    aligned = Relaxation.of(build_network(FatTreeSpec(levels=levels)))
    assert aligned.context_inverse(2, 2) > 0.5


def naive_dual(cost, memory, num_blocks, available):
    """Solve the linear relaxation itself: blocks of each kind at each stage."""
    from scipy.optimize import linprog

    stages, kinds = memory.shape
    result = linprog(
        np.tile(cost, stages),
        A_ub=np.kron(np.eye(stages), np.ones(kinds)) * memory.ravel(),
        b_ub=np.full(stages, available),
        A_eq=np.ones((1, stages * kinds)),
        b_eq=[num_blocks],
    )
    return result.fun if result.status == 0 else np.inf


@checked
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9)),
             min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 60),
)  # fmt: skip
def test_the_dual_is_at_most_the_linear_program(choices, stages, blocks, available):
    cost, static, saved = (np.array(c, dtype=float) for c in zip(*choices, strict=True))
    in_flight = np.arange(1.0, stages + 1)
    exact = naive_dual(
        cost, static + in_flight[:, None] * saved, blocks, float(available)
    )
    best = -np.inf
    for mu in np.linspace(0.0, 200.0, 401):
        kinds = memory_bound.BlockKinds(cost, static, saved, np.zeros(cost.size))
        value, _ = memory_bound.dual_value(
            mu, kinds, in_flight, float(blocks), float(available)
        )
        assert value <= exact * SLACK + 1e-9
        best = max(best, value)
    if np.isfinite(exact):
        assert best == pytest.approx(exact, abs=0.5 * blocks)


@checked
@given(
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_stage_adders_reproduce_the_slowest_replica(p, d, v, m, seed):
    # max over replicas of ws sum (C + x) + wm max (C + x), the maxima exchanged.
    assume(p > 1 or v == 1)
    rng = np.random.default_rng(seed)
    weights = iteration_weights(m, v)
    boundary = rng.uniform(0.0, 3.0, (p, d, 2))
    work = rng.uniform(0.0, 9.0, p)
    adder, constant = stage_adders(boundary, 2.0, v, weights.sum, weights.max)
    one = boundary[..., 0] + 2.0 * boundary[..., 1]
    one[-1] *= (v - 1) / v
    x = v * (one + np.roll(one, 1, axis=0)) * (p > 1)
    expected = max(
        weights.sum * (work + x[:, r]).sum() + weights.max * (work + x[:, r]).max()
        for r in range(d)
    )
    got = weights.sum * work.sum() + weights.max * (work + adder[:0:-1]).max()
    assert got + constant == pytest.approx(expected, rel=1e-12)
