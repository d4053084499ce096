"""What a comparison says: sentences, tables, JSON, CSV, bars."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from rich.console import Console

from nestsim.document.figures import BarGroups, BarsOfGroup
from nestsim.document.paints import PLANNERS
from nestsim.document.parts import Document
from nestsim.document.sheet import draw_document
from nestsim.document.terminal import print_document
from nestsim.features.compare.document import comparison_document
from nestsim.features.compare.job import CompareSettings, compare_job
from nestsim.features.compare.record import (
    comparison_json,
    comparison_rows,
    comparison_title,
    fastest,
    rows_csv,
    search_times,
    sentences,
)
from nestsim.features.compare.results import (
    OWN_MODEL,
    BestPlan,
    Cause,
    Comparison,
    PlannerEntry,
    ScenarioEntries,
    belief_gap,
    largest,
    turned_by,
)
from planner.cost.objective import COLLECTIVES
from planner.work import WORK_LIMIT, Spent
from tests.nestsim.document.pictures import Picture, draw
from tests.nestsim.features.compare.small import load

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Return four planners on 8 devices; the given plan does not fit."""
    scenario = load(tmp_path_factory.mktemp("report"), plan=True)
    assert scenario.plan is not None
    plan = replace(scenario.plan, micro_batch_size=3)
    planners = ("nest", "manual", "phaze", "fixed")
    chosen = CompareSettings(planners=planners, base="manual")
    return compare_job([replace(scenario, plan=plan)], chosen)


@pytest.fixture(scope="module")
def found(real: Comparison) -> BestPlan:
    """Return a plan to be given other times."""
    one = real.groups[0].entries[0].found
    assert one is not None
    return one


def timed(found: BestPlan, planned: float, simulated: float, cause: str) -> BestPlan:
    """Return a plan with other times, all of the gap due to one cause."""
    return replace(
        found,
        planned=replace(found.planned, iteration_time=planned),
        simulated=replace(found.simulated, iteration_time=simulated),
        planned_terms={"compute": planned - 1.0, "tail": 1.0},
        gap_terms={cause: simulated - planned, "settings": 0.0},
    )


def group_of(*all_entries: PlannerEntry) -> ScenarioEntries:
    return ScenarioEntries(
        scenario="a job",
        model="a model",
        num_devices=8,
        device_memory=8e10,
        base=all_entries[0].planner,
        entries=all_entries,
    )


def comparison_of(*groups: ScenarioEntries) -> Comparison:
    planners = tuple(entry.planner for entry in groups[0].entries)
    return Comparison(planners=planners, base=planners[0], groups=groups)


def test_what_costs_nest_its_lead_in_the_replay_is_named(found: BestPlan) -> None:
    nest = PlannerEntry(
        planner="nest", found=timed(found, 10.0, 13.0, "contention at leaf")
    )
    mcmc = PlannerEntry(planner="mcmc", found=timed(found, 11.0, 12.0, "schedule"))
    said = sentences(group_of(nest, mcmc))
    assert said[0].startswith("mcmc is fastest in the replay, with 12 s")
    (slower,) = (text for text in said if text.startswith("nest takes"))
    assert "8.3 % longer, +1 s" in slower
    assert "contention at leaf, +3 s" in slower
    (turned,) = (text for text in said if text.startswith("As planned"))
    assert "nest is not slower than mcmc (by 10.0 % faster)" in turned
    assert "contention at leaf (+3 s)" in turned


def test_an_order_that_the_replay_keeps_is_not_called_turned(found: BestPlan) -> None:
    first = timed(found, 10.0, 11.0, "schedule")
    second = timed(found, 12.0, 12.0, "schedule")
    assert turned_by(first, second) is None
    assert turned_by(second, first) is None


def test_a_belief_that_is_far_off_is_split_into_model_and_replay(
    found: BestPlan,
) -> None:
    plan = timed(found, 10.0, 11.0, "synchronisation")
    entry = PlannerEntry(planner="phaze", sees="One number.", belief=6.0, found=plan)
    parts = belief_gap(entry)
    assert parts == {OWN_MODEL: 4.0, "synchronisation": 1.0, "settings": 0.0}
    (said,) = (text for text in sentences(group_of(entry)) if ":" in text)
    assert said == (
        "phaze: believed 6 s, planned 10 s by the common evaluator (+66.7 %), replayed "
        "11 s (+83.3 %). Most of it is its own model, +4 s. What it sees: one number."
    )


def test_a_belief_that_holds_needs_no_sentence(found: BestPlan) -> None:
    plan = timed(found, 10.0, 10.1, "schedule")
    entry = PlannerEntry(planner="nest", belief=10.0, found=plan)
    assert len(sentences(group_of(entry))) == 1


def test_equal_plans_are_named_together(found: BestPlan) -> None:
    plan = timed(found, 10.0, 12.0, "schedule")
    names = ("nest", "manual", "mcmc")
    group = group_of(*(PlannerEntry(planner=name, found=plan) for name in names))
    assert fastest(group) == ["nest", "manual", "mcmc"]
    assert sentences(group) == [
        "nest, manual and mcmc are fastest in the replay, with 12 s per iteration.",
        "nest, manual and mcmc: planned 10 s, replayed 12 s (+20.0 %). Most of it is "
        "schedule, +2 s.",
    ]


def test_differences_below_what_verdicts_tell_apart_say_so(found: BestPlan) -> None:
    first = PlannerEntry(planner="nest", found=timed(found, 10.0, 10.0, "schedule"))
    second = PlannerEntry(planner="mcmc", found=timed(found, 10.0, 10.05, "schedule"))
    said = sentences(group_of(first, second))
    assert any("too close to tell apart" in text for text in said)


def test_the_spread_over_seeds_and_a_limit_are_told(found: BestPlan) -> None:
    plan = timed(found, 10.0, 10.0, "schedule")
    spread = (10.0, 11.0, math.inf)
    entry = PlannerEntry(
        planner="mcmc", found=plan, spread=spread, spent=Spent(stopped_by=WORK_LIMIT)
    )
    said = sentences(group_of(entry))[1:]
    assert said == [
        "mcmc's best by 3 seeds, as planned: 10 s to 11 s (+10.0 %); 1 found nothing.",
        "The work limit ended the search of mcmc; this is its best so far.",
    ]


@given(st.dictionaries(st.text(max_size=3), st.integers(-9, 9), min_size=1))
def test_the_largest_part_has_the_direction_of_the_sum(parts: dict[str, int]) -> None:
    cause = largest(parts)
    assert cause == Cause(cause.term, parts[cause.term])
    total = sum(parts.values())
    extreme = max(parts.values()) if total >= 0 else min(parts.values())
    assert cause.seconds == extreme


def test_a_collective_that_is_hidden_is_no_cause() -> None:
    for parts, term in (
        # Mixtral 790M on 16 V100, 0.9 s apart: its all-to-alls cost 16 ms.
        ({"compute": 0.83, "expert all-to-all": -4.148, "hidden": 4.132}, "compute"),
        ({"compute": 1.0, "tensor collectives": 2.0, "hidden": -0.5}, COLLECTIVES[0]),
        ({"compute": 1.0, "tensor collectives": 2.0, "hidden": -1.5}, "compute"),
        ({"compute": 0.1, "tensor collectives": 0.0, "hidden": 0.7}, "hidden"),
        ({"compute": -1.0, "context ring": 3.0, "hidden": -2.9}, "compute"),
    ):
        assert largest(parts) == Cause(term, parts[term])


def document_of(comparison: Comparison) -> Document:
    return comparison_document(comparison_json(comparison))


def draw_comparison(comparison: Comparison, path: Path) -> None:
    draw_document(document_of(comparison), path)


def printed(comparison: Comparison, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    print_document(document_of(comparison), console)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off(real: Comparison, width: int) -> None:
    text = printed(real, width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for word in ("Vs manual", "1.000", "confirmed", "nothing valid: "):
        assert word in text


def test_several_scenarios_are_summed_up_in_one_table(real: Comparison) -> None:
    (group,) = real.groups
    other = replace(group, scenario="another job")
    both = replace(real, groups=(group, other))
    overview = printed(both, 100).split("Throughput in the replay, manual = 1")[1]
    assert overview.count("1.000") == 2
    assert overview.split("Who is ahead")[0].count(" -\n") == 2


def test_json_and_csv_agree(real: Comparison) -> None:
    report = json.loads(json.dumps(comparison_json(real), allow_nan=False))
    rows = list(csv.DictReader(io.StringIO(rows_csv(comparison_rows(real)))))
    (group,) = report["groups"]
    assert [row["planner"] for row in rows] == report["planners"]
    for entry, row in zip(group["entries"], rows, strict=True):
        if entry["simulated"] is None:
            assert row["simulated_iteration_time_s"] == ""
            assert row["obstacle"] == entry["reason"] != ""
            continue
        seconds = float(row["simulated_iteration_time_s"])
        assert seconds == entry["simulated"]["iteration_time_s"]
        ratio = float(row["simulated_relative_throughput"])
        assert ratio == entry["relative_throughput"]["simulated"]
        assert row["verdict"] == entry["verdict"]


def test_the_keys_of_json_and_csv_are_stable(real: Comparison) -> None:
    (group,) = comparison_json(real)["groups"]
    assert list(group) == [
        *("scenario", "model", "num_devices", "device_memory_bytes", "fastest"),
        *("confirmed", "space", "launchability_price", "entries", "sentences"),
    ]
    keys = [
        *("planner", "sees", "valid", "verdict", "reason", "plan", "broken_rules"),
        *("launchable_time_s", "free_time_s", "search_time_s"),
        *("evaluations", "work", "stopped_by", "reproducible"),
        *("lower_bound_s", "belief_s", "seeds_s", "notes"),
        *("planned", "simulated", "gap", "relative_throughput"),
        *("simulated_minus_belief_s", "longer_than_fastest_s"),
    ]
    assert all(list(entry) == keys for entry in group["entries"])
    rows = comparison_rows(real)
    assert len({tuple(row) for row in rows}) == 1
    assert list(rows[0])[:6] == [
        *("scenario", "model", "num_devices", "planner", "verdict", "valid"),
    ]


def test_search_times_stand_in_a_table_of_their_own(real: Comparison) -> None:
    data = comparison_json(real, with_times=False)
    assert "search_time_s" not in json.dumps(data)
    assert "search_time_s" not in rows_csv(comparison_rows(real))
    times = search_times("scenario", {group.scenario: group for group in real.groups})
    rows = list(csv.DictReader(io.StringIO(rows_csv(times))))
    assert [float(row["search_time_s"]) >= 0 for row in rows[:3]] == [True] * 3
    assert rows[3]["search_time_s"] == ""


def test_terms_in_json_add_up(real: Comparison) -> None:
    (group,) = comparison_json(real)["groups"]
    best = next(e for e in group["entries"] if e["planner"] == group["fastest"])
    for entry in group["entries"]:
        if entry["simulated"] is None:
            continue
        seconds = entry["simulated"]["iteration_time_s"]
        longer = seconds - best["simulated"]["iteration_time_s"]
        assert sum(entry["longer_than_fastest_s"].values()) == pytest.approx(longer)
        assert sum(entry["gap"]["terms"].values()) == pytest.approx(
            entry["gap"]["total_s"], abs=1e-9
        )


def bars_of(*groups: ScenarioEntries, base: str = "manual") -> list[BarsOfGroup]:
    """Return what is drawn of scenarios, all in one figure."""
    planners = tuple(entry.planner for entry in groups[0].entries)
    comparison = Comparison(planners=planners, base=base, groups=groups)
    (figure,) = document_of(comparison).figures
    assert isinstance(figure.drawing, BarGroups)
    return list(figure.drawing.groups)


def test_bars_stand_beside_the_base_and_nothing_valid_has_none(
    real: Comparison,
) -> None:
    (drawn,) = bars_of(*real.groups)
    assert not drawn.name
    bars = {bar.name: bar for bar in drawn.bars}
    assert bars["manual"].length == 1.0
    assert bars["fixed"].length is None
    assert bars["fixed"].words == "nothing valid"
    assert bars["manual"].dot is None
    group = real.groups[0]
    (manual,) = (one for one in group.entries if one.planner == "manual")
    for entry in group.entries[:3]:
        assert bars[entry.planner].length == group.simulated_ratio(entry)
        # What was planned and believed is held against the same replay.
        planned = manual.simulated_time / entry.planned_time
        assert bars[entry.planner].mark == planned
        if math.isfinite(entry.belief):
            believed = manual.simulated_time / entry.belief
            assert bars[entry.planner].dot == believed


def test_bars_without_a_base_are_relative_to_the_fastest(real: Comparison) -> None:
    group = replace(real.groups[0], base="fixed")
    (drawn,) = bars_of(group, base="fixed")
    assert drawn.name == "(nest = 1)"
    assert drawn.bars[0].length == 1.0


def test_groups_stand_by_size_and_under_their_names_where_sizes_are_equal(
    real: Comparison,
) -> None:
    (group,) = real.groups
    large = replace(group, num_devices=1024)
    labels = [one.name for one in bars_of(large, group)]
    assert labels == ["8 devices", "1,024 devices"]
    other = replace(group, scenario="another job")
    labels = [one.name for one in bars_of(group, other)]
    assert labels == [group.scenario, "another job"]


def test_each_model_has_a_figure(real: Comparison) -> None:
    (group,) = real.groups
    both = replace(real, groups=(group, replace(group, model="another")))
    figures = document_of(both).figures
    assert [one.name for one in figures] == ["throughput", "throughput-2"]
    assert [one.title for one in figures] == [group.model, "another"]


def test_titles_say_who_is_fastest(found: BestPlan, real: Comparison) -> None:
    assert comparison_title(real).startswith("Fastest in the replay: nest, up to ")
    one = group_of(
        PlannerEntry(planner="nest", found=timed(found, 1.0, 1.0, "schedule"))
    )
    title = comparison_title(comparison_of(one, replace(one, scenario="b")))
    assert title == "Fastest in the replay: nest, in 2 of 2 scenarios"
    nothing = group_of(PlannerEntry(planner="nest", why_not="too large"))
    assert comparison_title(comparison_of(nothing)).startswith("No planner")


def test_the_picture_is_the_same_every_time(real: Comparison, tmp_path: Path) -> None:
    (group,) = real.groups
    both = replace(real, groups=(group, replace(group, scenario="b", model="m $x")))
    for name in ("a.png", "b.png"):
        draw_comparison(both, tmp_path / name)
    first, second = (tmp_path / name for name in ("a.png", "b.png"))
    assert first.read_bytes().startswith(PNG)
    assert first.read_bytes() == second.read_bytes()


def test_a_picture_of_nothing_is_drawn(tmp_path: Path) -> None:
    nothing = group_of(PlannerEntry(planner="nest", why_not="too large"))
    draw_comparison(comparison_of(nothing), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)


def picture_of(comparison: Comparison, folder: Path) -> Picture:
    drawn = draw(lambda path: draw_comparison(comparison, path), folder)
    assert not drawn.cut_off
    assert not drawn.overlapping
    return drawn


def groups_of(
    found: BestPlan, count: int, beliefs: dict[str, float]
) -> tuple[ScenarioEntries, ...]:
    """Return scenarios of different sizes, the n-th planner n times as slow."""
    entries = tuple(
        PlannerEntry(
            planner=name,
            belief=belief,
            found=timed(found, number + 1.0, number + 1.0, "settings"),
        )
        for number, (name, belief) in enumerate(beliefs.items())
    )
    return tuple(
        replace(group_of(*entries), num_devices=8 * 2**size, scenario=f"job {size}")
        for size in range(count)
    )


def test_every_bar_has_its_number_behind_it(found: BestPlan, tmp_path: Path) -> None:
    names = dict.fromkeys(("nest", "manual", "mcmc", "phaze"), math.nan)
    for count in (2, 16):
        groups = groups_of(found, count, names)
        drawn = picture_of(comparison_of(*groups), tmp_path)
        for ratio in ("1.000", "0.500", "0.333", "0.250"):
            assert drawn.words.count(ratio) == count


def test_a_belief_far_above_the_bars_does_not_flatten_them(
    found: BestPlan, tmp_path: Path
) -> None:
    beliefs = {"nest": 1.0, "phaze": 0.2}
    drawn = picture_of(comparison_of(*groups_of(found, 1, beliefs)), tmp_path)
    (axes,) = drawn.figure.axes
    assert axes.get_xlim()[1] < 1.5
    marks = [line.get_marker() for line in axes.lines]
    assert ">" in marks
    assert "D" in marks


def test_a_planner_has_the_colour_of_its_name(found: BestPlan, tmp_path: Path) -> None:
    for names in (("nest", "phaze"), ("manual", "mcmc", "phaze", "fixed")):
        beliefs = dict.fromkeys(names, math.nan)
        drawn = picture_of(comparison_of(*groups_of(found, 1, beliefs)), tmp_path)
        bars = [to_hex(bar.get_facecolor()) for bar in drawn.figure.axes[0].patches]
        assert bars == [PLANNERS[name] for name in names]


def test_what_a_planner_notes_is_said(found: BestPlan) -> None:
    entry = PlannerEntry(planner="alpa", found=found, notes=("one mesh costs 2 %.",))
    assert "alpa: one mesh costs 2 %." in sentences(group_of(entry))
    assert PlannerEntry.from_row(entry.to_row()).notes == entry.notes
