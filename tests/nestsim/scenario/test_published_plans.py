"""The published plans in scenarios/published: each loads, and is what was published."""

import re
from pathlib import Path

import pytest

from estimators.layers.work import model_flops_per_sequence
from nestsim.evaluate.cluster import build_job
from nestsim.scenario.load import load_scenario
from planner.plans.build import build_plan
from tests import failures
from tests.estimators.oracles import closed_form_training_flops
from tests.nestsim.published_page import (
    FILES,
    PAGE,
    REPLAYED,
    ROOT,
    published_cells,
    rows,
    with_tables,
    words,
)


@failures.over("path", FILES, ids=lambda path: path.stem)
def test_a_published_plan_builds_on_all_devices(path: Path) -> None:
    scenario = load_scenario(path)
    network, workload = build_job(scenario, None)
    assert scenario.plan is not None
    plan = build_plan(network, workload, scenario.plan)
    assert plan.devices_used == network.num_devices
    assert f"_{network.num_devices}_" in path.stem


@failures.over("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_says_who_published_it_and_what_was_measured(path: Path) -> None:
    said = words(path)
    assert said.startswith("Published: ")
    assert re.search(r"[0-9.]+ s for a step", said)
    assert str(path.relative_to(ROOT)) in said


@failures.over(
    "path", [path for path in FILES if "sc21" in path.stem], ids=lambda path: path.stem
)
def test_step_times_of_sc21_follow_from_its_rates(path: Path) -> None:
    """Equation 3, with full recompute."""
    scenario = load_scenario(path)
    network, workload = build_job(scenario, None)
    flops = closed_form_training_flops(
        workload.graph.spec,
        global_batch_size=workload.training.global_batch_size,
        full_recompute=True,
    )
    rate = re.search(r"([0-9]+) TFLOP/s", words(path))
    time = re.search(r"([0-9.]+) s for a step", words(path))
    assert rate is not None
    assert time is not None
    expected = flops / (float(rate[1]) * 1e12 * network.num_devices)
    assert float(time[1]) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if "all of it" in words(path)],
    ids=lambda path: path.stem,
)
def test_step_times_from_model_flops_are_given_in_both_conventions(path: Path) -> None:
    scenario = load_scenario(path)
    network, workload = build_job(scenario, None)
    rate = re.search(r"([0-9]+) (model )?TFLOP/s", words(path))
    assert rate is not None
    for counts_masked, form in (
        (True, r"([0-9.]+) s for a step if all of it"),
        (False, r"([0-9.]+) s if what the causal mask"),
    ):
        flops = workload.training.global_batch_size * model_flops_per_sequence(
            workload.graph, counts_masked=counts_masked
        )
        time = re.search(form, words(path))
        assert time is not None
        expected = flops / (float(rate[1]) * 1e12 * network.num_devices)
        assert float(time[1]) == pytest.approx(expected, abs=0.005)


def test_the_page_has_a_row_for_each() -> None:
    assert list(rows()) == [path.stem for path in FILES]


def test_the_page_is_as_far_off_as_its_rows_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, rows()) == page


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_page_has_what_is_predicted_of_the_published_plan(path: Path) -> None:
    assert rows()[path.stem][:REPLAYED] == published_cells(path)
