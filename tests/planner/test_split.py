"""The split kernel against brute force over all cuts and all choices."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.intervals import interval_classes
from planner.kernels import split as kernel

CHOICES_ZERO = np.array([0, 1, 3, 0])


@st.composite
def instances(draw, max_layers=7):
    """Integers as floats: sums are exact, so optimal values compare with ``==``."""
    kinds = np.array(
        draw(st.lists(st.integers(0, 2), min_size=1, max_size=max_layers)), np.int64
    )
    kinds = np.unique(kinds, return_inverse=True)[1].astype(np.int64)
    classes = interval_classes(kinds)
    p = draw(st.integers(1, len(kinds)))
    num_kinds = classes.counts.shape[1]

    def numbers(*shape, low=0, high=9):
        size = int(np.prod(shape))
        drawn = draw(st.lists(st.integers(low, high), min_size=size, max_size=size))
        return np.array(drawn, dtype=np.float64).reshape(shape)

    per_kind = numbers(2, len(CHOICES_ZERO), num_kinds)  # (sig, C, kinds)
    time = np.einsum("scn,kn->sck", per_kind, classes.counts)
    slots = draw(
        st.lists(
            st.integers(0, 5),
            min_size=len(CHOICES_ZERO) * len(classes.counts),
            max_size=len(CHOICES_ZERO) * len(classes.counts),
        )
    )
    parameters = classes.counts @ numbers(num_kinds)
    cut_bytes = numbers(len(kinds) + 1)
    cut_bytes[[0, -1]] = 0.0
    inverse = numbers(p + 1, high=2)
    latency = numbers(p + 1, high=2)
    inverse[[0, p]] = latency[[0, p]] = 0.0
    m = draw(st.integers(1, 6))
    flight = np.array([0, *(min(s, m) for s in range(1, p + 1))])
    return {
        "class_of": classes.class_of,
        "cut_bytes": cut_bytes,
        "layer_minima": per_kind.min(axis=(0, 1))[kinds],
        "time": time,
        "slots": np.array(slots, np.int64).reshape(len(CHOICES_ZERO), -1),
        "parameters": parameters,
        "zero_of": CHOICES_ZERO,
        "signature": np.array(
            draw(st.lists(st.integers(0, 1), min_size=p + 1, max_size=p + 1)), np.int64
        ),
        "inverse": inverse,
        "latency": latency,
        "tail_fixed": numbers(p + 1, 4, high=30),
        "tail_rate": numbers(p + 1, 4, high=3),
        "in_flight": flight,
        "num_microbatches": m,
    }


def price(case, bounds, choices):
    """Price one split by definition; None if it does not fit."""
    p = len(bounds) - 1
    times, tails = [], []
    for index, (i, j) in enumerate(pairwise(bounds)):
        s = p - index
        k = case["class_of"][i, j]
        c = choices[index]
        if case["slots"][c, k] < case["in_flight"][s]:
            return None
        t = case["time"][case["signature"][s], c, k]
        if s < p:
            t += case["cut_bytes"][i] * case["inverse"][s] + case["latency"][s]
        if s > 1:
            t += case["cut_bytes"][j] * case["inverse"][s - 1] + case["latency"][s - 1]
        times.append(t)
        z = case["zero_of"][c]
        tails.append(
            case["tail_fixed"][s, z] + case["tail_rate"][s, z] * case["parameters"][k]
        )
    return sum(times) + (case["num_microbatches"] - 1) * max(times) + max(tails)


def brute_force(case):
    """Try every split and every choice of every stage; infinity when none fits."""
    num_layers = case["class_of"].shape[0] - 1
    p = len(case["in_flight"]) - 1
    best = np.inf
    for cuts in combinations(range(1, num_layers), p - 1):
        bounds = (0, *cuts, num_layers)
        for choices in product(range(len(CHOICES_ZERO)), repeat=p):
            value = price(case, bounds, choices)
            if value is not None:
                best = min(best, value)
    return best


def fewer_layers():
    return instances(max_layers=5)


@settings(deadline=None, max_examples=300)
@given(fewer_layers())
def test_split_equals_exhaustive_search(case):
    expected = brute_force(case)
    status, value, bounds, choices = kernel.split_chain(**case, cutoff=np.inf)
    if np.isinf(expected):
        assert status == kernel.NOT_BETTER
        return
    assert status == kernel.OK
    # With one microbatch the weight of the maximum is 1e-30 instead of 0.
    assert value == pytest.approx(expected, rel=1e-12)
    assert price(case, bounds, choices) == expected


@settings(deadline=None, max_examples=200)
@given(fewer_layers(), st.integers(-2, 2))
def test_cutoff_hides_exactly_what_is_not_below_it(case, offset):
    _, optimum, _, _ = kernel.split_chain(**case, cutoff=np.inf)
    if np.isinf(optimum):
        return
    cutoff = optimum + offset
    status, value, _, _ = kernel.split_chain(**case, cutoff=cutoff)
    assert (status == kernel.OK) == (optimum < cutoff)
    if status == kernel.OK:
        assert value == optimum


@settings(deadline=None, max_examples=200)
@given(fewer_layers())
def test_memory_check_never_refuses_a_split_that_exists(case):
    exists = np.isfinite(brute_force(case))
    # The rule presumes that larger intervals need more memory.
    slots = case["slots"].copy()
    class_of = case["class_of"]
    num_layers = len(class_of) - 1
    for length in range(2, num_layers + 1):
        for i in range(num_layers - length + 1):
            inside = class_of[i + 1, i + length], class_of[i, i + length - 1]
            k = class_of[i, i + length]
            for part in inside:
                slots[:, k] = np.minimum(slots[:, k], slots[:, part])
    exists = np.isfinite(brute_force({**case, "slots": slots}))
    fits = kernel.fits_in_memory(class_of, slots, case["in_flight"])
    assert fits or not exists


@settings(deadline=None, max_examples=30)
@given(fewer_layers())
def test_compiled_kernels_agree_with_their_python_source(case):
    compiled = kernel.split_chain(**case, cutoff=np.inf)
    source = kernel.split_chain.py_func(**case, cutoff=np.inf)
    assert compiled[:2] == source[:2]
    np.testing.assert_array_equal(compiled[2], source[2])
    np.testing.assert_array_equal(compiled[3], source[3])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
@settings(deadline=None)
def test_least_bottlenecks_equal_exhaustive_search(layers):
    values = np.array(layers, dtype=np.float64)
    bound = kernel.least_bottlenecks(values)
    for p in range(1, len(values) + 1):
        expected = min(
            max(values[i:j].sum() for i, j in pairwise((0, *cuts, len(values))))
            for cuts in combinations(range(1, len(values)), p - 1)
        )
        assert bound[p] == expected


def test_ties_go_to_the_earliest_cut_and_the_first_choice():
    classes = interval_classes(np.zeros(3, np.int64))
    case = {
        "class_of": classes.class_of,
        "cut_bytes": np.zeros(4),
        "layer_minima": np.zeros(3),
        "time": np.zeros((1, 2, len(classes.counts))),
        "slots": np.full((2, len(classes.counts)), 9),
        "parameters": np.zeros(len(classes.counts)),
        "zero_of": np.array([0, 0]),
        "signature": np.zeros(3, np.int64),
        "inverse": np.zeros(3),
        "latency": np.zeros(3),
        "tail_fixed": np.zeros((3, 4)),
        "tail_rate": np.zeros((3, 4)),
        "in_flight": np.array([0, 1, 2]),
        "num_microbatches": 4,
    }
    case["layer_minima"] += 1.0
    case["time"] += classes.counts[:, 0]
    case["time"][:, :, case["class_of"][0, 1]] = 2.0
    _, _, bounds, choices = kernel.split_chain(**case, cutoff=np.inf)
    assert bounds.tolist() == [0, 1, 3]
    assert choices.tolist() == [0, 0]
