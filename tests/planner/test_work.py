"""What a search may spend: counts stop it, the clock only where it is asked to."""

import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.rivals import PLANNERS
from planner.rivals.protocol import PlannerOutcome, PlannerSettings
from planner.search.best_first import FIRST_OPENING, LEFT, SearchResult, search
from planner.search.candidates import CandidateSet
from planner.search.space import SearchSpec
from planner.work import (
    DEFAULT_WORK,
    MOST_WORK,
    TIME_LIMIT,
    WORK_LIMIT,
    LimitReachedError,
    Spent,
    Work,
    stopped_sentence,
)
from tests import failures
from tests.planner.instances import instances
from tests.planner.rivals.examples import small_job
from tests.planner.search.test_infeasibility import AMPLE, eight_devices, tiny_job
from topologies import InputError

few = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
QUICK = PlannerSettings(budget=100, seeds=(0, 1))
NARROW = SearchSpec(pipeline_model_parallel_sizes=(1, 2), micro_batch_sizes=(1,))
SEARCHING = ("nest", "mcmc", "phaze", "alpa", "exhaustive", "manual")


@pytest.fixture
def slow_clock(monkeypatch):
    """Let each look at the clock take 1,000 seconds."""
    now = [0.0]

    def later():
        now[0] += 1000.0
        return now[0]

    monkeypatch.setattr(time, "monotonic", later)


def example(work_limit: int | None = None) -> SearchResult:
    spec = SearchSpec(work_limit=work_limit)
    return search(eight_devices(), tiny_job(AMPLE), spec)


def space_of(name: str) -> SearchSpec:
    return NARROW if name == "exhaustive" else SearchSpec()


def times(result: SearchResult) -> list[float]:
    return [priced.closed_form_time for priced in result.plans]


def content(outcome: PlannerOutcome) -> tuple[object, ...]:
    plans = [(p.plan.to_json(), p.iteration_time) for p in outcome.plans]
    return plans, outcome.spent, outcome.evaluations, outcome.spread, outcome.why_not


@failures.over("limit", [1, 50_000, DEFAULT_WORK])
@failures.over("name", SEARCHING)
def test_a_slow_clock_changes_nothing_of_what_is_counted(name, limit, monkeypatch):
    spec = replace(NARROW, work_limit=limit)
    quick = PLANNERS[name].find(*small_job(), spec, QUICK)
    with monkeypatch.context() as patched:
        now = iter(range(0, 10**12, 1000))
        patched.setattr(time, "monotonic", lambda: float(next(now)))
        slow = PLANNERS[name].find(*small_job(), spec, QUICK)
    assert content(quick) == content(slow)
    assert quick.plans
    assert quick.spent.is_reproducible


@failures.over("name", SEARCHING)
def test_a_search_out_of_time_has_a_plan_and_says_that_it_may_differ(name, slow_clock):
    told = replace(QUICK, time_limit=1e-9)
    outcome = PLANNERS[name].find(*small_job(), space_of(name), told)
    assert outcome.plans
    assert not outcome.why_not
    assert not outcome.spent.is_reproducible
    if name in {"nest", "mcmc", "exhaustive"}:
        assert outcome.spent.stopped_by == TIME_LIMIT
        assert not outcome.covers_space


@failures.over("name", ["nest", "mcmc", "exhaustive"])
def test_whatever_the_limit_there_is_a_plan(name):
    spec = replace(space_of(name), work_limit=1)
    outcome = PLANNERS[name].find(*small_job(), spec, QUICK)
    assert outcome.plans
    assert outcome.spent.stopped_by == WORK_LIMIT
    assert not outcome.covers_space


def test_phaze_stops_once_one_of_its_plans_fits(monkeypatch):
    monkeypatch.setattr("planner.rivals.phaze.FIRST_OPENING", 2)
    spec = SearchSpec(work_limit=1)
    stopped = PLANNERS["phaze"].find(*small_job(), spec, QUICK)
    whole = PLANNERS["phaze"].find(*small_job(), SearchSpec(), QUICK)
    assert stopped.plans
    assert stopped.spent.stopped_by == WORK_LIMIT
    assert stopped.evaluations < whole.evaluations
    assert not whole.spent.is_stopped


def test_the_opening_is_done_before_a_limit_counts():
    stopped = example(1)
    assert stopped.spent.stopped_by == WORK_LIMIT
    looked = stopped.statistics["configurations"] - stopped.statistics[LEFT]
    assert 0 < looked <= FIRST_OPENING
    assert len(stopped.plans) == SearchSpec().keep_best


def test_a_stopped_search_bounds_the_optimum_and_does_so_again():
    whole = example()
    first, second = (example(60_000) for _ in range(2))
    assert times(first) == times(second)
    assert first.statistics == second.statistics
    assert first.spent == second.spent
    assert first.lower_bound <= times(whole)[0] <= times(first)[0]


@given(instances(most_devices=8, blocks=range(1, 5)), st.lists(st.integers(0, 400_000)))
@few
def test_more_work_is_never_worse(instance, limits):
    network, workload, spec = instance
    whole = search(network, workload, spec)
    before, bound = [], 0.0
    for limit in sorted({1, *limits}):
        found = search(network, workload, replace(spec, work_limit=max(limit, 1)))
        assert bool(found.plans) == bool(whole.plans)
        best = min(times(whole), default=float("inf"))
        assert bound <= found.lower_bound <= best * (1 + 1e-9)
        if before:
            assert all(a <= b for a, b in zip(times(found), before, strict=False))
            assert len(found.plans) >= len(before)
        before, bound = times(found), found.lower_bound
        if not found.spent.is_stopped:
            assert times(found) == times(whole)
            assert found.lower_bound == whole.lower_bound


@given(instances(most_devices=8, blocks=range(1, 4)))
@few
def test_that_nothing_fits_is_said_of_whole_spaces_only(instance):
    network, workload, spec = instance
    found = search(network, workload, replace(spec, work_limit=1))
    if not found.plans:
        assert not found.spent.is_stopped
        assert found.infeasibility == search(network, workload, spec).infeasibility


@failures.over("name", ["nest", "mcmc", "exhaustive", "manual"])
def test_a_search_that_gives_up_without_a_plan_is_not_called_a_lack_of_memory(
    name, monkeypatch
):
    monkeypatch.setattr("planner.work.MOST_WORK", 10)
    spec = replace(NARROW, work_limit=1)
    outcome = PLANNERS[name].find(*small_job(), spec, QUICK)
    assert not outcome.plans
    assert not outcome.covers_space
    assert outcome.why_not.startswith("Stopped by the work limit after ")
    assert "raise search.work_limit" in outcome.why_not


def test_a_step_is_not_much_longer_than_what_is_left():
    """No configuration is gone through to its end once the work is spent."""
    opening = example(1).spent.work
    for limit in range(opening, opening + 200_000, 20_000):
        spent = example(limit).spent
        assert spent.work <= limit + 2_000


def test_a_limit_that_comes_with_the_end_stops_nothing():
    whole = example()
    found = example(whole.spent.work)
    assert found.spent == whole.spent
    assert not found.spent.is_stopped


def test_limits_count_from_the_first_plan_on(slow_clock):
    work = Work(limit=1, time_limit=1.0)
    work.spend(MOST_WORK)
    work.note_plan()
    with pytest.raises(LimitReachedError):
        work.spend(1)
    assert work.total() == Spent(
        work=MOST_WORK + 1, stopped_by=WORK_LIMIT, time_limit=1.0
    )


def test_a_search_gives_up_after_the_most_work_or_its_own_limit():
    for limit in (1, 2 * MOST_WORK):
        work = Work(limit=limit)
        work.spend(max(limit, MOST_WORK))
        with pytest.raises(LimitReachedError):
            work.spend(1)


def test_the_way_on_is_said():
    spent = Spent(work=3 * MOST_WORK, stopped_by=WORK_LIMIT)
    said = stopped_sentence(spent, "12 of 3,400 configurations")
    assert f"raise search.work_limit above {3 * MOST_WORK:,}" in said
    assert "12 of 3,400 configurations" in said


def test_listing_a_space_tells_how_far_it_is():
    told: list[tuple[str, float | None]] = []
    search(*small_job(), SearchSpec(), progress=lambda *said: told.append(said))
    shares = [share for _, share in told if share is not None]
    assert all(0.0 <= share <= 1.0 for share in shares)
    doing = list(dict.fromkeys(said.split(" configurations")[0] for said, _ in told))
    assert doing[0] == "search: list the space"
    assert any(said.startswith("search: bound the layers") for said in doing)
    assert any(said.startswith("search: bound ") for said in doing)


def test_a_space_that_is_too_large_is_refused_with_what_would_narrow_it(monkeypatch):
    network, workload = small_job()
    size = len(CandidateSet.enumerate(network, workload, SearchSpec()))
    monkeypatch.setattr("planner.search.space.MOST_CONFIGURATIONS", size)
    assert search(network, workload, SearchSpec()).plans
    monkeypatch.setattr("planner.search.space.MOST_CONFIGURATIONS", size - 1)
    with pytest.raises(InputError) as caught:
        search(network, workload, SearchSpec(pipeline_model_parallel_sizes=None))
    assert caught.value.where == "search"
    assert f"at most {size - 1:,}" in caught.value.expected
    assert "data_parallel_sizes" in caught.value.hint
    narrow = SearchSpec(data_parallel_sizes=(1, 2, 4))
    assert search(network, workload, narrow).plans


def test_listing_a_large_space_takes_little_memory():
    """Two floats and two small integers for each configuration."""
    network, workload = small_job()
    candidates = CandidateSet.enumerate(network, workload, SearchSpec())
    held = sum(array.nbytes for array in candidates.outer)
    assert held <= 24 * len(candidates)
