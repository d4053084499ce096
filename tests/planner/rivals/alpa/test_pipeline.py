"""The inter-operator program against every split, and against Alpa's own order."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.rivals import equal_stages, mixed_stages
from planner.rivals.alpa.stages import mixed_split, uniform_split
from planner.work import LimitReachedError, Work

few = settings(max_examples=30)


def every_split(num_units, num_stages):
    for cuts in combinations(range(1, num_units), num_stages - 1):
        yield (0, *cuts, num_units)


def step(times, num_microbatches):
    most = max(times)
    return sum(times) + (num_microbatches - 1) * most if most < math.inf else most


@st.composite
def equal_problems(draw):
    """Return times and what may follow, in whole numbers whose sums are exact."""
    units = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    time = rng.integers(1, 30, (units, units)).astype(float)
    time[rng.uniform(size=time.shape) < 0.1] = np.inf
    time[np.tril_indices(units, -1)] = np.inf
    later = rng.integers(-1, units, (units, units))
    return time, later, draw(st.integers(1, units)), draw(st.integers(1, 20))


def all_steps(time, later, num_stages, count):
    """Yield the step of every split that is allowed."""
    for cuts in every_split(len(time), num_stages):
        spans = [(cuts[n], cuts[n + 1] - 1) for n in range(num_stages)]
        if all(later[span] >= num_stages - 1 - n for n, span in enumerate(spans)):
            yield step([time[span] for span in spans], count)


@given(equal_problems())
@few
def test_equal_meshes_are_split_as_trying_everything_does(problem):
    split = uniform_split(*problem)
    assert split.time == min(all_steps(*problem), default=math.inf)
    time, _, num_stages, count = problem
    if math.isfinite(split.time):
        spans = [(a, b - 1) for a, b in zip(split.cuts, split.cuts[1:], strict=False)]
        assert step([time[span] for span in spans], count) == split.time
        assert len(spans) == num_stages


def alpas_scan(time, later, num_stages, count):
    """Return what Alpa's own order of ceilings comes to, its gap apart."""
    best = math.inf
    for ceiling in np.unique(time[np.isfinite(time)]):
        if count * ceiling >= best:
            break
        total, _ = equal_stages.py_func(time, later, num_stages, float(ceiling))
        best = min(best, total + (count - 1) * ceiling)
    return best


@given(equal_problems())
@few
def test_best_first_over_ceilings_is_alpas_scan(problem):
    assert uniform_split(*problem).time == alpas_scan(*problem)


@given(equal_problems(), st.integers(0, 30))
@few
def test_the_kernel_of_equal_meshes_is_its_own_plain_python(problem, ceiling):
    time, later, num_stages, _ = problem
    compiled = equal_stages(time, later, num_stages, float(ceiling))
    plain = equal_stages.py_func(time, later, num_stages, float(ceiling))
    assert compiled[0] == plain[0]
    assert (compiled[1] == plain[1]).all()


@st.composite
def mixed_problems(draw):
    units = draw(st.integers(1, 4))
    devices = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = np.array([1, 2, 4][: draw(st.integers(1, 3))], dtype=np.int64)
    rows = draw(st.sampled_from([1, units]))
    times = rng.integers(1, 30, (rows, len(sizes), units, units)).astype(float)
    times[rng.uniform(size=times.shape) < 0.1] = np.inf
    times[:, :, *np.tril_indices(units, -1)] = np.inf
    # More stages behind never make one possible.
    times = np.maximum.accumulate(times, axis=0)
    return times, sizes, devices, draw(st.integers(1, 20))


def every_mixed_step(times, sizes, devices, count):
    rows, meshes, units, _ = times.shape

    def extend(unit, left, chosen):
        if unit == units:
            if left == 0:
                n = len(chosen)
                taken = [
                    times[min(n - 1 - place, rows - 1), m, i, j]
                    for place, (m, i, j) in enumerate(chosen)
                ]
                yield step(taken, count)
            return
        for end in range(unit, units):
            for m in range(meshes):
                if sizes[m] <= left:
                    more = [*chosen, (m, unit, end)]
                    yield from extend(end + 1, left - int(sizes[m]), more)

    yield from extend(0, devices, [])


@given(mixed_problems())
@few
def test_submeshes_are_chosen_as_trying_everything_does(problem):
    split = mixed_split(*problem)
    assert split.time == min(every_mixed_step(*problem), default=math.inf)
    if math.isfinite(split.time):
        _, sizes, devices, _ = problem
        assert sum(int(sizes[mesh]) for _, mesh in split.stages[:-1]) == devices


@given(mixed_problems(), st.integers(0, 30))
@few
def test_the_kernel_of_submeshes_is_its_own_plain_python(problem, ceiling):
    times, sizes, devices, _ = problem
    compiled = mixed_stages(times, sizes, devices, float(ceiling))
    plain = mixed_stages.py_func(times, sizes, devices, float(ceiling))
    assert compiled[0] == plain[0]
    assert (compiled[1] == plain[1]).all()


@given(mixed_problems())
@few
def test_a_bound_hides_what_is_no_faster(problem):
    best = mixed_split(*problem).time
    if math.isfinite(best):
        assert math.isinf(mixed_split(*problem, best).time)
        assert mixed_split(*problem, best + 1.0).time == best


def test_work_ends_the_recursion():
    times = np.ones((1, 1, 4, 4))
    work = Work(limit=1)
    work.note_plan()
    work.count(1)
    with pytest.raises(LimitReachedError):
        mixed_split(times, np.array([1]), 4, 2, math.inf, work)
