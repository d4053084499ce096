"""The split kernel against brute force over all cuts and all choices."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.choices import interval_classes
from planner.kernels import split as kernel

NUM_CHOICES = 3


@st.composite
def instances(draw, max_layers=6, *, additive=True):
    """Integers as floats: sums are exact, so optimal values compare with ``==``.

    ``additive`` times are sums over layers, as real ones; others are drawn interval by
    interval, so that many sums and maxima compete.
    """
    kinds = draw(st.lists(st.integers(0, 2), min_size=1, max_size=max_layers))
    if not additive:
        kinds = list(range(len(kinds)))
    kinds = np.unique(kinds, return_inverse=True)[1].astype(np.int64)
    classes = interval_classes(kinds)
    p = draw(st.integers(1, min(len(kinds), 4)))
    num_kinds = classes.counts.shape[1]
    num_classes = len(classes.counts)

    def numbers(*shape, low=0, high=9):
        size = int(np.prod(shape))
        drawn = draw(st.lists(st.integers(low, high), min_size=size, max_size=size))
        return np.array(drawn, dtype=np.float64).reshape(shape)

    if additive:
        per_kind = numbers(2, NUM_CHOICES, num_kinds)
        time = np.einsum("scn,kn->sck", per_kind, classes.counts)
        minima = per_kind.min(axis=(0, 1))[kinds]
    else:
        time = numbers(2, NUM_CHOICES, num_classes, high=30)
        minima = np.zeros(len(kinds))
    slots = numbers(2, NUM_CHOICES, num_classes, high=5).astype(np.int64)
    m = draw(st.integers(1, 6))
    flight = np.array([0, *(min(s, m) for s in range(1, p + 1))])
    return {
        "class_of": classes.class_of,
        "layer_minima": minima,
        "time": time,
        "step_end": numbers(2, NUM_CHOICES, num_classes, high=30),
        "most_in_flight": slots,
        "memory_row": numbers(p + 1, high=1).astype(np.int64),
        "signature": numbers(p + 1, high=1).astype(np.int64),
        "adder": numbers(p + 1, high=6),
        "step_end_adder": numbers(p + 1, high=4),
        "in_flight": flight,
        "sum_weight": draw(st.sampled_from([1.0, 0.5, 0.25])),
        "max_weight": float(m - 1),
        "least_step_end": 0.0,
    }


def price(case, bounds, choices):
    """Price one split by definition; None if it does not fit."""
    p = len(bounds) - 1
    times, loads, step_ends = [], [], []
    for index, (i, j) in enumerate(pairwise(bounds)):
        s = p - index
        k = case["class_of"][i, j]
        c = choices[index]
        if case["most_in_flight"][case["memory_row"][s], c, k] < case["in_flight"][s]:
            return None
        row = case["signature"][s]
        times.append(case["time"][row, c, k])
        loads.append(times[-1] + case["adder"][s])
        step_ends.append(case["step_end"][row, c, k] + case["step_end_adder"][s])
    return (
        case["sum_weight"] * sum(times)
        + case["max_weight"] * max(loads)
        + max(step_ends)
    )


def brute_force(case):
    """Try every split and every choice of every stage; infinity when none fits."""
    num_layers = case["class_of"].shape[0] - 1
    p = len(case["in_flight"]) - 1
    best = np.inf
    for cuts in combinations(range(1, num_layers), p - 1):
        bounds = (0, *cuts, num_layers)
        for choices in product(range(NUM_CHOICES), repeat=p):
            value = price(case, bounds, choices)
            if value is not None:
                best = min(best, value)
    return best


def check(case):
    expected = brute_force(case)
    status, value, bounds, choices, _ = kernel.split_chain(kernel.Chain(**case), np.inf)
    if np.isinf(expected):
        assert status == kernel.NOT_BETTER
        return
    assert status == kernel.OK
    assert value == expected
    assert price(case, bounds, choices) == expected


@settings(max_examples=80)
@given(instances(), st.sampled_from([1.5, 2.0, 4.0]))
def test_lower_bounds_that_are_too_high_are_said_and_never_read_past(case, factor):
    optimum = brute_force(case)
    wrong = {**case, "layer_minima": case["layer_minima"] * factor}
    status, value, bounds, choices, _ = kernel.split_chain(
        kernel.Chain(**wrong), np.inf
    )
    assert status in {kernel.OK, kernel.NOT_BETTER, kernel.BROKEN}
    if status == kernel.OK:
        assert price(case, bounds, choices) == value >= optimum


@settings(max_examples=80)
@given(instances())
def test_split_equals_exhaustive_search(case):
    check(case)


@settings(max_examples=120)
@given(instances(additive=False))
def test_split_is_exact_where_sum_and_maximum_compete(case):
    check(case)


def test_many_dense_instances_equal_exhaustive_search():
    """Random ones, without the small numbers that hypothesis prefers."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        num_layers, p = 6, int(rng.integers(2, 5))
        classes = interval_classes(np.arange(num_layers))
        shape = 2, NUM_CHOICES, len(classes.counts)
        m = int(rng.integers(1, 5))
        case = {
            "class_of": classes.class_of,
            "layer_minima": np.zeros(num_layers),
            "time": rng.integers(0, 100, shape).astype(float),
            "step_end": rng.integers(0, 200, shape).astype(float),
            "most_in_flight": rng.integers(0, 6, shape),
            "memory_row": rng.integers(0, 2, p + 1),
            "signature": rng.integers(0, 2, p + 1),
            "adder": rng.integers(0, 30, p + 1).astype(float),
            "step_end_adder": rng.integers(0, 30, p + 1).astype(float),
            "in_flight": np.array([0, *(min(s, m) for s in range(1, p + 1))]),
            "sum_weight": 1.0,
            "max_weight": float(m - 1),
            "least_step_end": 0.0,
        }
        check(case)


@settings(max_examples=80)
@given(instances(max_layers=5), st.integers(-2, 2))
def test_cutoff_hides_exactly_what_is_not_below_it(case, offset):
    _, optimum, *_ = kernel.split_chain(kernel.Chain(**case), np.inf)
    if np.isinf(optimum):
        return
    cutoff = optimum + offset
    status, value, *_ = kernel.split_chain(kernel.Chain(**case), cutoff)
    assert (status == kernel.OK) == (optimum < cutoff)
    if status == kernel.OK:
        assert value == optimum


@settings(max_examples=80)
@given(instances(max_layers=5))
def test_memory_check_never_refuses_a_split_that_exists(case):
    # The rule presumes that larger intervals need more memory.
    slots = case["most_in_flight"][0].copy()
    class_of = case["class_of"]
    num_layers = len(class_of) - 1
    for length in range(2, num_layers + 1):
        for i in range(num_layers - length + 1):
            inside = class_of[i + 1, i + length], class_of[i, i + length - 1]
            k = class_of[i, i + length]
            for part in inside:
                slots[:, k] = np.minimum(slots[:, k], slots[:, part])
    one_memory = np.stack([slots, slots])
    exists = np.isfinite(brute_force({**case, "most_in_flight": one_memory}))
    fits = kernel.fits_in_memory(class_of, slots, case["in_flight"])
    assert fits or not exists


@settings(max_examples=30)
@given(instances(max_layers=5))
def test_compiled_kernels_agree_with_their_python_source(case):
    compiled = kernel.split_chain(kernel.Chain(**case), np.inf)
    with np.errstate(invalid="ignore"):
        source = kernel.split_chain.py_func(kernel.Chain(**case), np.inf)
    assert compiled[:2] == source[:2]
    np.testing.assert_array_equal(compiled[2], source[2])
    np.testing.assert_array_equal(compiled[3], source[3])


def test_ties_go_to_the_earliest_cut_and_the_first_choice():
    classes = interval_classes(np.zeros(3, np.int64))
    num_classes = len(classes.counts)
    case = {
        "class_of": classes.class_of,
        "layer_minima": np.ones(3),
        "time": np.tile(classes.counts[:, 0].astype(float), (1, 2, 1)),
        "step_end": np.zeros((1, 2, num_classes)),
        "most_in_flight": np.full((1, 2, num_classes), 9),
        "memory_row": np.zeros(3, np.int64),
        "signature": np.zeros(3, np.int64),
        "adder": np.zeros(3),
        "step_end_adder": np.zeros(3),
        "in_flight": np.array([0, 1, 2]),
        "sum_weight": 1.0,
        "max_weight": 3.0,
        "least_step_end": 0.0,
    }
    _, _, bounds, choices, _ = kernel.split_chain(kernel.Chain(**case), np.inf)
    assert bounds.tolist() == [0, 1, 3]
    assert choices.tolist() == [0, 0]
    # On one stage there is one cut, which is tried for the maximum and for the sum.
    alone = {**case, "in_flight": np.array([0, 1])}
    assert kernel.split_chain(kernel.Chain(**alone), np.inf)[-1] == 2


def test_one_microbatch_has_no_slowest_stage():
    """With wm = 0 only sum and step_end count."""
    rng = np.random.default_rng(0)
    classes = interval_classes(np.arange(5))
    shape = 1, NUM_CHOICES, len(classes.counts)
    case = {
        "class_of": classes.class_of,
        "layer_minima": np.zeros(5),
        "time": rng.integers(1, 50, shape).astype(float),
        "step_end": rng.integers(0, 50, shape).astype(float),
        "most_in_flight": np.full(shape, 9),
        "memory_row": np.zeros(4, np.int64),
        "signature": np.zeros(4, np.int64),
        "adder": np.zeros(4),
        "step_end_adder": np.zeros(4),
        "in_flight": np.array([0, 1, 1, 1]),
        "sum_weight": 1.0,
        "max_weight": 0.0,
        "least_step_end": 0.0,
    }
    _, value, *_ = kernel.split_chain(kernel.Chain(**case), np.inf)
    assert value == pytest.approx(brute_force(case))
