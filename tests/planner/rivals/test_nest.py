"""The split that is found by trying every one, against its definition."""

import math
from itertools import combinations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.rivals import StagedChain, best_split


@st.composite
def chains(draw):
    """Return a chain with whole numbers, whose sums are exact."""
    p = draw(st.integers(1, 4))
    num_layers = draw(st.integers(p, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_classes, num_choices, num_rows = rng.integers(1, [9, 4, 3])
    shape = num_rows, num_choices, num_classes
    return StagedChain(
        class_of=rng.integers(0, num_classes, (num_layers + 1, num_layers + 1)),
        time=rng.integers(0, 20, shape).astype(float),
        step_end=rng.integers(0, 20, shape).astype(float),
        most_in_flight=rng.integers(0, p + 3, shape),
        memory_row=rng.integers(0, num_rows, p),
        signature=rng.integers(0, num_rows, p),
        adder=rng.integers(0, 5, p).astype(float),
        tied=rng.integers(0, 5, p).astype(float),
        in_flight=np.arange(p, 0, -1),
        sum_weight=float(rng.integers(1, 3)),
        max_weight=float(rng.integers(0, 5)),
    )


def naive_value(chain, bounds, choices):
    """Return the time of a split and its choices, infinity where one does not fit."""
    times, ends = [], []
    for s, choice in enumerate(choices):
        k = chain.class_of[bounds[s], bounds[s + 1]]
        most = chain.most_in_flight[chain.memory_row[s], choice, k]
        if most < chain.in_flight[s]:
            return math.inf
        times.append(chain.time[chain.signature[s], choice, k])
        ends.append(chain.step_end[chain.signature[s], choice, k] + chain.tied[s])
    slowest = max(time + adder for time, adder in zip(times, chain.adder, strict=True))
    return chain.sum_weight * sum(times) + chain.max_weight * slowest + max(ends)


@given(chains())
@settings(max_examples=40)
def test_the_best_split_is_that_of_all_splits_and_choices(chain):
    p, num_layers = len(chain.signature), len(chain.class_of) - 1
    num_choices = chain.time.shape[1]
    best, first = math.inf, None
    for cuts in combinations(range(1, num_layers), p - 1):
        for choices in product(range(num_choices), repeat=p):
            value = naive_value(chain, (0, *cuts, num_layers), choices)
            if value < best:
                best, first = value, (0, *cuts, num_layers)
    value, bounds, choices = best_split(chain)
    assert value == best
    if first is not None:
        assert tuple(bounds) == first
        assert naive_value(chain, bounds, choices) == value
