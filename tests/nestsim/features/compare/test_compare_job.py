"""Every planner through small scenarios: one evaluator, the replay as the judge."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nestsim.evaluate.cluster import build_job
from nestsim.evaluate.job import simulate_job
from nestsim.features.compare import job as task
from nestsim.features.compare.job import (
    CompareSettings,
    ReplayedEntry,
    checked_settings,
    compare_job,
    default_planners,
    measure,
    scenario_labels,
    store_facts,
)
from nestsim.features.compare.record import sentences
from nestsim.features.compare.results import Comparison, PlannerEntry, ScenarioEntries
from nestsim.running.store import Store
from planner.cost.pricing import price_plan
from planner.rivals import PLANNERS
from planner.work import TIME_LIMIT, WORK_LIMIT
from tests import failures
from tests.nestsim.features.compare.small import load
from topologies.errors import InputError

ALL = tuple(PLANNERS)
QUICK = CompareSettings(planners=("nest", "manual", "phaze"))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Return all planners on 8 devices, and on 4, where the fixed plan has no room."""
    folder = tmp_path_factory.mktemp("compare")
    scenarios = [load(folder, "eight", plan=True), load(folder, nodes=1, plan=True)]
    return compare_job(scenarios, CompareSettings(planners=ALL))


def entries(comparison: Comparison) -> list[tuple[ScenarioEntries, PlannerEntry]]:
    return [(group, entry) for group in comparison.groups for entry in group.entries]


def test_every_planner_has_an_entry_for_every_scenario(comparison: Comparison) -> None:
    assert [group.num_devices for group in comparison.groups] == [8, 4]
    for group in comparison.groups:
        assert tuple(entry.planner for entry in group.entries) == ALL


def test_who_has_no_plan_says_why(comparison: Comparison) -> None:
    without = [(g.num_devices, e) for g, e in entries(comparison) if not e.is_valid]
    ((num_devices, entry),) = without
    assert (num_devices, entry.planner) == (4, "fixed")
    assert "more devices than the cluster has" in entry.obstacle
    assert math.isnan(entry.simulated_time)


def test_the_ratio_of_the_base_is_1(comparison: Comparison) -> None:
    for group in comparison.groups:
        (base,) = (entry for entry in group.entries if entry.planner == "nest")
        assert group.simulated_ratio(base) == 1.0
        assert group.planned_ratio(base) == 1.0


def test_ratios_are_ratios_of_throughput(comparison: Comparison) -> None:
    for group, entry in entries(comparison):
        if entry.found is None:
            continue
        (base,) = (one for one in group.entries if one.planner == "nest")
        assert base.found is not None
        mine, its = entry.found.simulated, base.found.simulated
        ratio = mine.tokens_per_second / its.tokens_per_second
        assert group.simulated_ratio(entry) == pytest.approx(ratio)


def test_no_planner_is_planned_faster_than_nest(comparison: Comparison) -> None:
    for group, entry in entries(comparison):
        # What is given may lie outside of the space that is searched.
        if entry.is_valid and entry.planner != "fixed":
            assert group.planned_ratio(entry) <= 1 + 1e-9


def test_the_terms_of_a_plan_add_up_to_its_simulated_time(
    comparison: Comparison,
) -> None:
    for _, entry in entries(comparison):
        if entry.found is not None:
            total = sum(entry.found.terms.values())
            assert total == pytest.approx(entry.simulated_time, rel=1e-9)


def test_plans_are_priced_by_one_evaluator(
    comparison: Comparison, tmp_path: Path
) -> None:
    scenario = load(tmp_path, "eight", plan=True)
    network, workload = build_job(scenario, None)
    for entry in comparison.groups[0].entries:
        assert entry.found is not None
        priced = price_plan(network, workload, entry.found.plan)
        assert entry.found.planned.iteration_time == priced.iteration_time


def test_a_given_plan_is_replayed_as_simulate_does_it(
    comparison: Comparison, tmp_path: Path
) -> None:
    candidate = simulate_job(load(tmp_path, "eight", plan=True)).candidate
    found = comparison.groups[0].entries[ALL.index("fixed")].found
    assert found is not None
    assert found.simulated == candidate.simulated
    assert found.verdict == candidate.verdict.kind
    assert found.gap_terms == candidate.verdict.gap.terms


def test_the_fastest_is_fastest_in_the_replay(comparison: Comparison) -> None:
    for group in comparison.groups:
        times = [e.simulated_time for e in group.entries if e.is_valid]
        assert group.fastest is not None
        assert group.fastest.simulated_time == min(times)


def test_entries_survive_the_store(comparison: Comparison) -> None:
    for _, entry in entries(comparison):
        row = entry.to_row()
        again = PlannerEntry.from_row(json.loads(json.dumps(row, allow_nan=False)))
        assert again.to_row() == row
        assert again.found == entry.found
        assert again.spread == entry.spread


def test_a_seed_that_found_nothing_survives_the_store() -> None:
    entry = PlannerEntry(planner="mcmc", spread=(1.0, math.inf))
    assert PlannerEntry.from_row(entry.to_row()).spread == (1.0, math.inf)


def test_where_nothing_fits_every_planner_says_why(tmp_path: Path) -> None:
    scenario = load(tmp_path, reserve="79.9 GiB")
    found = compare_job([scenario], CompareSettings(planners=ALL[:5]))
    (group,) = found.groups
    assert group.fastest is None
    assert not group.is_confirmed
    for entry in group.entries:
        assert entry.obstacle, entry.planner
        assert math.isnan(group.simulated_ratio(entry))


def test_a_plan_that_the_replay_has_no_room_for_is_not_valid(
    comparison: Comparison,
) -> None:
    group = comparison.groups[0]
    best = group.fastest
    assert best is not None
    assert best.found is not None
    found = replace(best.found, verdict="infeasible", reason="stage 0 needs too much")
    entry = replace(best, found=found)
    assert not entry.is_valid
    assert "stage 0 needs too much" in entry.obstacle
    other = replace(group, entries=(entry, *group.entries[1:]))
    assert other.fastest is not None
    assert other.fastest.planner == "mcmc"


def test_the_time_limit_ends_searches_with_their_best_so_far(tmp_path: Path) -> None:
    settings = CompareSettings(planners=("nest", "mcmc"), time_limit=1e-9)
    (group,) = compare_job([load(tmp_path)], settings).groups
    assert group.entries[1].spent.stopped_by == TIME_LIMIT
    assert all(entry.found is not None for entry in group.entries)
    assert "may differ from run to run" in sentences(group)[-1]


def test_a_limit_of_work_ends_searches_alike_whatever_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CompareSettings(planners=("nest", "mcmc"))
    scenario = load(tmp_path)
    scenario = replace(scenario, search=replace(scenario.search, work_limit=1))
    first = compare_job([scenario], settings)
    now = itertools.count(step=1000)
    monkeypatch.setattr("planner.work.time.monotonic", lambda: float(next(now)))
    second = compare_job([scenario], settings)
    assert plain(first) == plain(second)
    (group,) = first.groups
    assert group.entries[1].spent.stopped_by == WORK_LIMIT
    assert not any("run to run" in said for said in sentences(group))


def plain(comparison: Comparison) -> list[dict[str, Any]]:
    """Return all rows without what differs from run to run."""
    rows = [entry.to_row() for _, entry in entries(comparison)]
    return [{**row, "search_time": None} for row in rows]


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    scenarios = [load(tmp_path), load(tmp_path, "other", nodes=1)]
    settings = CompareSettings(planners=("manual", "phaze"))
    one = compare_job(scenarios, settings)
    two = compare_job(scenarios, settings, workers=2)
    assert plain(one) == plain(two)


def test_an_interrupted_comparison_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load(tmp_path)
    whole = compare_job([scenario], QUICK)
    measured = count_measurements(monkeypatch, interrupted_at=2)
    facts = store_facts([scenario], QUICK)
    with (
        Store(tmp_path / "points", facts) as store,
        pytest.raises(KeyboardInterrupt),
    ):
        compare_job([scenario], QUICK, store=store)
    assert measured == ["nest", "manual"]
    measured.clear()
    with Store(tmp_path / "points", facts) as store:
        again = compare_job([scenario], QUICK, store=store)
    assert measured == ["manual", "phaze"]
    assert plain(again) == plain(whole)


def count_measurements(
    monkeypatch: pytest.MonkeyPatch, interrupted_at: int
) -> list[str]:
    """Write down who is measured; the user interrupts one of them, once."""
    measured: list[str] = []
    times = 0

    def counted(scenario: Any, planner: str, *rest: Any, **named: Any) -> ReplayedEntry:
        nonlocal times
        times += 1
        measured.append(planner)
        if times == interrupted_at:
            raise KeyboardInterrupt
        return measure(scenario, planner, *rest, **named)

    monkeypatch.setattr(task, "measure", counted)
    return measured


def test_another_model_is_another_comparison(tmp_path: Path) -> None:
    settings = checked_settings(QUICK, [])
    first, second = load(tmp_path, "a"), load(tmp_path, "b", reserve="2 GiB")
    assert store_facts([first], settings) != store_facts([second], settings)
    commented = replace(first, text=first.text + b"\n# a remark\n")
    assert store_facts([first], settings) == store_facts([commented], settings)


def test_progress_tells_the_planner_and_ends_at_the_whole(tmp_path: Path) -> None:
    told: list[tuple[str, float | None]] = []
    compare_job([load(tmp_path)], QUICK, progress=lambda *said: told.append(said))
    assert any("nest" in doing for doing, _ in told)
    shares = [share for _, share in told if share is not None]
    assert max(shares) == 1.0
    assert told[-1][1] == 1.0


def test_fixed_takes_part_where_every_scenario_has_a_plan(tmp_path: Path) -> None:
    plain, planned = load(tmp_path), load(tmp_path, "planned", plan=True)
    assert "fixed" in default_planners([planned])
    assert "fixed" not in default_planners([plain, planned])
    assert "exhaustive" not in default_planners([planned])


def test_scenarios_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    first, second = load(tmp_path, "a"), load(tmp_path, "b")
    assert scenario_labels([first, second]) == [
        f"{first.name} (a)",
        f"{first.name} (b)",
    ]
    with pytest.raises(InputError, match="cannot be told apart"):
        scenario_labels([first, first])


@failures.over(
    ("settings", "where"),
    [
        (CompareSettings(planners=("nest", "best")), "--planners"),
        (CompareSettings(planners=("nest", "nest")), "--planners"),
        (CompareSettings(planners=("nest", "mcmc"), base="manual"), "--base"),
        (CompareSettings(planners=("nest", "fixed")), "plan"),
    ],
)
def test_mistakes_are_refused_before_anything_is_done(
    settings: CompareSettings, where: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        checked_settings(settings, [load(tmp_path)])
    assert caught.value.where.endswith(where)


@pytest.mark.parametrize(
    ("planners", "base"), [(("nest", "mcmc"), "nest"), (("phaze", "mcmc"), "phaze")]
)
def test_the_base_is_nest_or_else_the_first(
    planners: tuple[str, ...], base: str
) -> None:
    assert checked_settings(CompareSettings(planners=planners), []).base == base
