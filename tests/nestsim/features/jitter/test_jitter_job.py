"""`nestsim jitter` as a whole: runs, workers, reports, files."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.dumps import dump_json
from nestsim.document.html import page_html, specification
from nestsim.document.sheet import draw_document
from nestsim.document.terminal import plain_text, print_document
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.jitter.document import jitter_document
from nestsim.features.jitter.job import JitterResult, JitterTask, jitter_job
from nestsim.features.jitter.record import jitter_json
from nestsim.features.jitter.scale import sizes_of
from nestsim.scenario.load import Scenario
from tests import failures
from tests.nestsim.features.jitter.jobs import TEXT, noisy, small
from topologies.errors import InputError

TABLE = """
[jitter]
compute = { distribution = "lognormal", cv = 0.05, per = "pass" }
links = { mean = "20 us" }
slow = [{ fraction = 0.25, factor = 1.2 }]
runs = 30
seed = 3
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.from_toml(TEXT + TABLE)


@pytest.fixture(scope="module")
def result(scenario: Scenario) -> JitterResult:
    return jitter_job(scenario, workers=1)


def test_results_are_the_same_bytes_for_any_number_of_workers(
    scenario: Scenario, result: JitterResult
) -> None:
    parallel = jitter_job(scenario, workers=2)
    assert dump_json(jitter_json(parallel)) == dump_json(jitter_json(result))


def test_more_runs_begin_with_the_same_ones_and_seeds_differ(
    scenario: Scenario, result: JitterResult
) -> None:
    assert result.steps is not None
    few = jitter_job(scenario.replace({"jitter.runs": 7}), workers=1)
    other = jitter_job(
        scenario.replace({"jitter.runs": 7, "jitter.seed": 4}),
        workers=1,
    )
    assert few.steps is not None
    assert other.steps is not None
    assert few.steps.times.tolist() == result.steps.times[:7].tolist()
    assert not set(few.steps.times.tolist()) & set(other.steps.times.tolist())


def test_the_plan_is_replayed_with_all_replicas_and_with_halves(
    result: JitterResult,
) -> None:
    rows = result.scale
    assert [row.replicas for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert [row.num_devices for row in rows] == [row.replicas for row in rows]
    simulated = [row for row in rows if row.simulated is not None]
    assert [row.replicas for row in simulated] == [1, 2, 4, 8]
    assert result.steps is not None
    assert simulated[-1].simulated == result.steps.simulated
    assert simulated[-1].plain_time == result.steps.plain_time
    assert all(row.plain_time == rows[3].plain_time for row in rows[3:])
    # More replicas begin where the simulation ends, and rise as the closed form does.
    for row, fewer in zip(rows[4:], rows[3:], strict=False):
        added = row.closed_loss - fewer.closed_loss
        assert row.expected_loss - fewer.expected_loss == pytest.approx(added)
        assert row.loss_error == rows[3].loss_error
    assert rows[3].expected_loss == rows[3].simulated_loss


def test_a_run_without_jitter_is_the_plain_replay_and_loses_nothing() -> None:
    quiet = jitter_job(
        small({"jitter.compute": {"cv": 0.0}, "jitter.runs": 3}), workers=1
    )
    assert quiet.steps is not None
    assert quiet.steps.times.tolist() == [quiet.steps.plain_time] * 3
    assert quiet.steps.loss == 0.0
    assert all(abs(row.closed_loss) < 1e-9 for row in quiet.scale)
    document = jitter_document(jitter_json(quiet))
    text = plain_text(lambda console: print_document(document, console))
    assert "mean step 0.0 % longer" in text


def test_more_jitter_never_loses_less() -> None:
    losses = []
    for cv in (0.0, 0.02, 0.1, 0.4):
        found = jitter_job(
            noisy("gamma", cv, "step", {"jitter.runs": 40}), workers=1
        ).steps
        assert found is not None
        losses.append(found.loss)
    assert losses == sorted(losses)


def test_the_slowest_is_the_one_with_the_slow_devices() -> None:
    slow = small(
        {
            "jitter.slow": [{"fraction": 0.03, "factor": 3.0}],
            "jitter.compute": {"cv": 0.001},
            "jitter.runs": 5,
        }
    )
    found = jitter_job(slow, workers=1)
    assert found.steps is not None
    who = found.steps.slowest
    factors = slow.jitter.slowdowns(8, who.run)
    assert who.slow_devices == who.devices == tuple(np.flatnonzero(factors > 1.0))
    assert who.ratio == pytest.approx(3.0, rel=0.02)


def test_devices_that_are_always_slow_are_part_of_the_plain_step() -> None:
    always = small(
        {
            "cluster.degraded.slow_devices": [{"fraction": 0.125, "factor": 2.0}],
            "jitter.compute": {"cv": 0.0},
            "jitter.runs": 2,
        }
    )
    found = jitter_job(always, workers=1).steps
    healthy = jitter_job(
        small({"jitter.compute": {"cv": 0.0}, "jitter.runs": 2}), workers=1
    ).steps
    assert found is not None
    assert healthy is not None
    assert found.plain_time > 1.5 * healthy.plain_time
    assert found.loss == 0.0


def test_devices_that_are_always_slow_take_longer_only_by_the_jitter() -> None:
    always = small(
        {
            "cluster.degraded.slow_devices": [{"device": 3, "factor": 2.0}],
            "jitter.compute": {"cv": 0.01},
            "jitter.runs": 5,
        }
    )
    found = jitter_job(always, workers=1).steps
    assert found is not None
    assert found.slowest.slow_devices == found.slowest.devices == (3,)
    assert found.slowest.ratio == pytest.approx(found.worst / found.plain_time, 0.005)


def test_one_run_has_no_error_and_says_so() -> None:
    text = str(nestsim.jitter(small(), runs=1, workers=1))
    assert "1 step takes" in text
    assert "(one run)." in text
    assert "inf" not in text


@failures.over(
    ("asked", "is_exact"),
    [
        ({"jitter.compute": {"cv": 0.02, "per": "pass"}}, True),
        ({"jitter.compute": {"cv": 2.0, "per": "pass"}}, False),
        ({"jitter.slow": [{"fraction": 0.125, "factor": 2.0}]}, True),
        ({"jitter.slow": [{"fraction": 0.5, "factor": 2.0}]}, True),
    ],
)
def test_the_closed_form_is_called_exact_only_where_it_is(
    asked: dict[str, Any], is_exact: bool
) -> None:
    found = jitter_job(small({"jitter.runs": 2, **asked}), workers=1)
    assert jitter_json(found)["closed_form"]["is_exact"] is is_exact


def test_without_a_plan_in_the_scenario_one_is_searched() -> None:
    document = small().document()
    del document["plan"]
    document["search"] = {"micro_batch_sizes": [1, 2]}
    document["jitter"] = {"runs": 2, "most_replicas": 1}
    found = jitter_job(Scenario.from_dict(document), workers=1)
    assert found.spent is not None
    assert found.steps is not None
    document["cluster"]["memory_reserve"] = "79.9 GiB"
    report = nestsim.jitter(Scenario.from_dict(document), workers=1)
    assert not report.succeeded
    assert report.result.shortfall
    assert "NO PLAN" in str(report)
    assert page_html(report.document())
    assert report.figures == ()


def test_keys_of_points_depend_on_draws_and_plan(scenario: Scenario) -> None:
    evaluator = Evaluator.of(scenario)
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    point = {"replicas": 8, "first": 0, "runs": 5}
    key = JitterTask.of(scenario, priced.plan).key(point)
    other = scenario.replace({"jitter.seed": 9})
    assert key != JitterTask.of(other, priced.plan).key(point)
    assert key != JitterTask.of(scenario, priced.plan).key({**point, "first": 5})


def test_the_command_writes_what_it_prints_and_the_page_comes_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(TEXT + TABLE, encoding="utf-8")
    asked = ["jitter", str(file), "--runs", "5", "--seed", "1", "--workers", "1"]
    assert main([*asked, "-o", str(folder), "--html", "-q"]) == 0
    told = capsys.readouterr().out
    assert "p95" in told
    assert "steps         5, seed 1" in told
    data = json.loads((folder / "jitter.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader(io.StringIO((folder / "jitter.csv").read_text())))
    assert [float(row["step_time_s"]) for row in rows] == data["steps"]["times_s"]
    assert data["headline"] in told
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert nestsim.report_page(folder).to_html() == page
    assert main([*asked, "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out) == data
    assert (folder / "jitter.png").stat().st_size > 10_000


@failures.over(
    ("table", "where"),
    [
        ('compute = { distribution = "cauchy" }', "jitter.compute.distribution"),
        ('compute = { distribution = "uniform", cv = 0.9 }', "jitter.compute.cv"),
        ("compute = { cv = -0.1 }", "jitter.compute.cv"),
        ('compute = { per = "week" }', "jitter.compute.per"),
        ('links = { distribution = "gamma" }', "jitter.links.mean"),
        ('links = { mean = "5 GB" }', "jitter.links.mean"),
        ('links = { distribution = "normal", mean = "5 us" }', "jitter.links.cv"),
        ("slow = [{ fraction = 1.5, factor = 2.0 }]", "jitter.slow[0].fraction"),
        ("slow = [{ fraction = 0.5, factor = 0.5 }]", "jitter.slow[0].factor"),
        ("runs = 0", "jitter.runs"),
    ],
)
def test_wrong_settings_are_refused_by_name(table: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        Scenario.from_toml(f"{TEXT}\n[jitter]\n{table}\n")
    assert where in str(caught.value)


def test_what_is_left_out_of_the_table_is_none_or_all_of_the_usual() -> None:
    usual = small().jitter
    assert usual.jitter.compute is not None
    assert usual.jitter.per == "step"
    links = small({"jitter.links": {"mean": "5 us"}}).jitter
    assert links.jitter.compute is None
    assert links.jitter.links is not None
    assert links.jitter.links.mean == pytest.approx(5e-6)


@failures.over("value", [-1, 1.5, "3", True])
@failures.over("name", ["runs", "seed", "workers"])
def test_the_face_refuses_numbers_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        nestsim.jitter(small(), **{name: value})


def test_the_picture_and_the_page_are_the_same_every_time(
    result: JitterResult, tmp_path: Path
) -> None:
    for name in ("a.png", "b.png"):
        draw_document(jitter_document(jitter_json(result)), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    data = json.loads(dump_json(jitter_json(result)))
    assert page_html(jitter_document(data)) == page_html(jitter_document(data))
    assert {one.name for one in jitter_document(data).figures} == {"steps", "scale"}


def test_a_gain_is_drawn_too_and_times_have_round_ticks(result: JitterResult) -> None:
    data = json.loads(dump_json(jitter_json(result)))
    data["scale"][0]["simulated_loss"] = -0.05
    steps, scale = jitter_document(data).figures
    axes = [
        specification(one.drawing)["layer"][0]["encoding"] for one in (steps, scale)
    ]
    assert axes[1]["y"]["scale"]["domain"][0] < -5.0
    assert "values" not in axes[0]["x"]["axis"]
    # One time is no range that could have round numbers.
    data["steps"]["times_s"] = [0.07045]
    data["steps"]["plain_time_s"] = 0.07045
    for quantile in data["steps"]["quantiles"].values():
        quantile["time_s"] = 0.07045
    (alone, _) = jitter_document(data).figures
    across = specification(alone.drawing)["layer"][0]["encoding"]["x"]
    assert across["axis"]["values"] == [0.07045]


def test_fewer_replicas_end_where_experts_need_them_all() -> None:
    scenario = small(
        {
            "model.family": "mixtral",
            "model.num_moe_experts": 4,
            "model.moe_router_topk": 2,
            "plan.expert_model_parallel_size": 4,
        }
    )
    evaluator = Evaluator.of(scenario)
    plan = price_table_plan(scenario, evaluator.network, evaluator.workload).plan
    assert sizes_of(evaluator, plan) == (4, 8)
