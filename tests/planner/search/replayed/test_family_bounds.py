"""What no configuration of a family can beat, against sums in plain Python."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.kernels import family_bounds as kernel
from planner.search.replayed.floors import pipelined

WHOLE = st.integers(1, 9).map(float)


@st.composite
def families(draw):
    """Draw configurations of a chain, and layouts of each, with whole times."""
    layers = draw(st.integers(2, 9))
    times = [draw(WHOLE) for _ in range(layers)]
    rows, layouts = [], []
    for _ in range(draw(st.integers(1, 4))):
        p = draw(st.integers(1, layers))
        v = draw(st.integers(1, layers // p))
        m = draw(st.integers(1, 12))
        ahead = min(p, m) if v == 1 and draw(st.booleans()) else m
        inner = st.lists(
            st.integers(0, layers), min_size=p * v - 1, max_size=p * v - 1
        ).map(sorted)
        some = [[0, *draw(inner), layers] for _ in range(draw(st.integers(1, 3)))]
        rows.append((p, v, m, ahead, len(layouts), len(some)))
        layouts.extend(some)
    alone = [draw(st.integers(0, 3).map(float)) for _ in range(layers)]
    rest = (float(draw(st.integers(0, 3))) for _ in range(3))
    return (times, alone), rows, layouts, *rest


def naive(times, row, layouts, wire, messages, end):
    """Return the least longest path of a configuration's layouts."""
    p, v, m, ahead, first, count = row
    times, alone = times
    between = messages if p > 1 else 0.0
    least = []
    for cuts in layouts[first : first + count]:
        held = [sum(times[begin:stop]) + between for begin, stop in pairwise(cuts)]
        more = [sum(alone[begin:stop]) for begin, stop in pairwise(cuts)]
        work = [sum(held[i::p]) for i in range(p)]
        paths = [
            sum(held[:i])
            + sum(more[:i])
            + i * wire
            + m * busy
            + end
            + p * sum(more[i : (v - 1) * p : p])
            + min(p - 1, 2 * (p - i) - 1) * more[(v - 1) * p + i]
            for i, busy in enumerate(work)
        ]
        turns, rest = divmod(m - 1, ahead)
        if turns:
            way = sum(work) + (p - 1) * wire
            paths.append((1 + turns) * way + rest * max(work) + end)
        least.append(max(paths))
    return min(least)


@given(families())
def test_a_family_is_bounded_by_the_paths_of_its_layouts(family):
    times, rows, layouts, wire, messages, end = family
    sums = [np.cumsum([0.0, *each]) for each in times]
    starts = np.cumsum([0, *(len(cuts) for cuts in layouts)])[:-1]
    arguments = (
        kernel.FamilyRows(*np.array(rows, dtype=np.int64).T.copy()),
        kernel.FamilyLayouts(starts, np.concatenate(layouts).astype(np.int64)),
        kernel.FamilyTimes(*sums, wire, messages, end),
    )
    compiled = kernel.family_bounds(*arguments)
    expected = [naive(times, row, layouts, wire, messages, end) for row in rows]
    assert compiled == pytest.approx(expected, rel=1e-11)
    plain = getattr(kernel.family_bounds, "py_func", kernel.family_bounds)
    assert (plain(*arguments) == compiled).all()


@given(st.lists(WHOLE, min_size=1, max_size=8), st.integers(1, 40))
def test_no_cut_of_the_chain_fills_a_pipeline_faster(work, m):
    least = float(pipelined(np.array(m), np.array(len(work))))
    paths = [sum(work[:i]) + m * busy for i, busy in enumerate(work)]
    assert max(paths) >= least * sum(work) * (1 - 1e-12)
    assert least >= m / len(work) * (1 - 1e-12)


@pytest.mark.parametrize(("m", "p"), [(1, 4), (4, 4), (64, 8)])
def test_some_cut_fills_it_as_fast_as_that(m, p):
    work = (1.0 - 1.0 / m) ** np.arange(p)
    paths = [work[:i].sum() + m * work[i] for i in range(p)]
    least = float(pipelined(np.array(m), np.array(p)))
    assert max(paths) == pytest.approx(least * work.sum())


def test_as_many_microbatches_as_stages_take_over_half_as_long_again():
    assert float(pipelined(np.array(1000), np.array(1000))) == pytest.approx(
        1 / (1 - np.exp(-1)), rel=1e-3
    )
