"""The intra-operator program: reduction, HiGHS and every choice tried agree."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.rivals import interval_costs
from planner.rivals.alpa.program import (
    FOOTPRINT,
    ProgramEdge,
    ProgramNode,
    Reduction,
    ShardingProgram,
    add_footprints,
    pinned,
    solve,
    solve_ends,
)
from tests import failures


def joined(first: ShardingProgram, second: ShardingProgram) -> ShardingProgram:
    """Return the program of two that follow each other.

    What leaves the first one is what enters the second, in the same state.
    """
    shift = len(first.nodes)
    size = len(first.nodes[first.leave].strategies)
    same = np.where(np.eye(size) > 0, 0.0, np.inf)
    moved = tuple(
        ProgramEdge(edge.source + shift, edge.target + shift, edge.cost)
        for edge in second.edges
    )
    bridge = ProgramEdge(first.leave, second.entrance + shift, same)
    return ShardingProgram(
        nodes=(*first.nodes, *second.nodes),
        edges=(*first.edges, bridge, *moved),
        entrance=first.entrance,
        leave=second.leave + shift,
    )


few = settings(max_examples=25)


def random_program(rng, pairs, num_nodes, *, gaps=0.2, states=0):
    """Return a program of some edges, the first and the last node being its ends."""
    sizes = rng.integers(1, 4, num_nodes)
    if states:
        sizes[[0, -1]] = states
    nodes = tuple(
        ProgramNode(
            f"node {number}",
            tuple(f"{number}.{s}" for s in range(size)),
            rng.uniform(1.0, 2.0, size) * (0 < number < num_nodes - 1),
            rng.integers(0, 9, (size, len(FOOTPRINT))).astype(float),
        )
        for number, size in enumerate(sizes)
    )
    edges = []
    for u, v in pairs:
        cost = rng.uniform(0.0, 1.0, (sizes[u], sizes[v]))
        cost[rng.uniform(size=cost.shape) < gaps] = np.inf
        edges.append(ProgramEdge(u, v, cost))
    return ShardingProgram(
        nodes=nodes, edges=tuple(edges), entrance=0, leave=num_nodes - 1
    )


def best_of_all(program):
    """Return the cheapest choice of all, None if there is none."""
    choices = product(*(range(len(node.cost)) for node in program.nodes))
    best = min(choices, key=program.cost)
    return best if np.isfinite(program.cost(best)) else None


def footprint(program, chosen):
    total = np.zeros(len(FOOTPRINT))
    for node, s in zip(program.nodes, chosen, strict=True):
        total = add_footprints(total, node.footprint[s])
    return total


SHAPES = {
    "chain": (5, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    "residual": (6, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (4, 5), (3, 5)]),
    "leaf": (5, [(0, 1), (1, 2), (1, 3), (1, 4)]),
    "alone": (5, [(0, 1), (1, 4)]),
    "no way through": (4, [(0, 1), (2, 3)]),
    # Every two of the four inner nodes are joined: no reduction takes one out.
    "core": (
        6,
        [(0, 1), (4, 5), *((u, v) for u in range(1, 5) for v in range(u + 1, 5))],
    ),
}


@failures.over("shape", SHAPES)
@given(seed=st.integers(0, 2**32 - 1))
@few
def test_the_reduction_finds_what_trying_everything_finds(shape, seed):
    num_nodes, pairs = SHAPES[shape]
    program = random_program(np.random.default_rng(seed), pairs, num_nodes)
    assert Reduction.of(program).is_solved == (shape != "core")
    table = solve_ends(program)
    for entering, leaving in np.ndindex(*table.cost.shape):
        fixed = pinned(program, entering, leaving)
        best = best_of_all(fixed)
        if best is None:
            assert np.isinf(table.cost[entering, leaving])
            continue
        assert table.cost[entering, leaving] == pytest.approx(fixed.cost(best))
        assert (table.footprint[entering, leaving] == footprint(fixed, best)).all()


@failures.over("shape", SHAPES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(few, max_examples=15)
def test_highs_finds_what_trying_everything_finds(shape, seed):
    num_nodes, pairs = SHAPES[shape]
    program = random_program(np.random.default_rng(seed), pairs, num_nodes)
    chosen, best = solve(program), best_of_all(program)
    assert (chosen is None) == (best is None)
    if best is not None:
        assert program.cost(chosen) == pytest.approx(program.cost(best), rel=1e-8)


@given(seed=st.integers(0, 2**32 - 1), budget=st.integers(5, 40))
@settings(few, max_examples=15)
def test_a_budget_of_memory_is_kept(seed, budget):
    num_nodes, pairs = SHAPES["residual"]
    program = random_program(np.random.default_rng(seed), pairs, num_nodes)
    choices = product(*(range(len(node.cost)) for node in program.nodes))
    allowed = [one for one in choices if footprint(program, one)[:2].sum() <= budget]
    costs = [program.cost(one) for one in allowed]
    least = min(costs, default=np.inf)
    chosen = solve(program, budget=float(budget))
    assert (chosen is None) == np.isinf(least)
    if chosen is not None:
        assert chosen in allowed
        assert program.cost(chosen) == pytest.approx(least, rel=1e-8)


@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.lists(st.integers(0, 1), min_size=1, max_size=4),
)
@settings(few, max_examples=15)
def test_layers_one_by_one_are_the_whole_stage(seed, kinds):
    rng = np.random.default_rng(seed)
    layers = [
        random_program(rng, pairs, num_nodes, states=2, gaps=0.1)
        for num_nodes, pairs in (SHAPES["residual"], SHAPES["chain"])
    ]
    whole = layers[kinds[0]]
    for kind in kinds[1:]:
        whole = joined(whole, layers[kind])
    tables = [solve_ends(layer) for layer in layers]
    time, memory = interval_costs(
        np.array(kinds, dtype=np.int64),
        np.array([table.cost for table in tables]),
        np.array([table.footprint for table in tables]),
    )
    reduced = solve_ends(whole)
    assert time[0, -1] == pytest.approx(reduced.cost.min())
    chosen = solve(whole)
    if chosen is None:
        assert np.isinf(time[0, -1])
        return
    assert whole.cost(chosen) == pytest.approx(time[0, -1], rel=1e-8)
    assert memory[0, -1] == pytest.approx(footprint(whole, chosen))


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 6))
@few
def test_intervals_are_min_plus_products(seed, length):
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, 9, (2, 3, 3)).astype(float)
    cost[rng.uniform(size=cost.shape) < 0.1] = np.inf
    held = rng.integers(0, 9, (2, 3, 3, len(FOOTPRINT))).astype(float)
    kinds = rng.integers(0, 2, length)
    compiled = interval_costs(kinds, cost, held)
    plain = interval_costs.py_func(kinds, cost, held)
    assert all((one == two).all() for one, two in zip(compiled, plain, strict=True))
    time, _ = compiled
    for i in range(length):
        value = np.zeros(3)
        for j in range(i, length):
            value = (value[:, None] + cost[kinds[j]]).min(axis=0)
            assert time[i, j] == value.min()
    assert np.isinf(time[np.tril_indices(length, -1)]).all()
