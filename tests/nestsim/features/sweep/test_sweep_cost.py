"""What a sweep says of throughput for the money."""

import io
import itertools
import json

import pandas as pd
import pytest

import nestsim
from nestsim.face.sweep import SweepReport
from nestsim.features.sweep.axes import Axis
from nestsim.features.sweep.job import ScenarioSweepResult, csv_text, front_of
from nestsim.features.sweep.record import sweep_json
from nestsim.running.store import Outcome
from tests.nestsim.document.pictures import draw

AXES = (
    Axis(path="cluster.network.oversubscription", values=(1, 2, 4)),
    Axis(path="cluster.network.nic_bandwidth", values=("100 Gbit/s", "400 Gbit/s")),
)
ROWS = [(9.0, 5.0), (9.5, 7.0), (9.5, 6.0), (8.0, 5.0), (4.0, 1.0), None]
"""Throughput and cost of each point."""


def priced(rows=ROWS, currency="USD"):
    """Return a sweep of these points."""
    points = itertools.product(*(axis.values for axis in AXES))
    outcomes = []
    for number, (values, row) in enumerate(zip(points, rows, strict=True)):
        point = {a.path: value for a, value in zip(AXES, values, strict=True)}
        result = None
        if row is not None:
            speed, rate = row
            result = {
                "simulated_tokens_per_s": speed,
                "simulated_iteration_time_s": 1.0 / speed,
                "simulated_mfu": 0.5,
                "simulated_peak_memory_bytes": 1e9,
                "verdict": "confirmed",
                "currency": currency,
                "cost_per_s": rate,
                "tokens_per_currency": speed / rate,
            }
        outcomes.append(
            Outcome(number=number, key=str(number), point=point, row=result)
        )
    return ScenarioSweepResult(
        scenario_name="a job", what="run", axes=AXES, outcomes=tuple(outcomes)
    )


def reported(result):
    scenario = nestsim.load_scenario("scenarios/cost/gpt3_175b_1024_h100.toml")
    return SweepReport(scenario=scenario, result=result)


def test_the_front_is_in_the_json_the_table_and_the_text():
    result = priced()
    assert front_of(result.outcomes) == {0, 2, 4}
    data = sweep_json(result)
    assert data["pareto"] == [0, 2, 4]
    assert [one["pareto"] for one in data["points"]] == [
        *(True, False, True, False, True, False)
    ]
    frame = pd.read_csv(io.StringIO(csv_text(result.outcomes)))
    assert frame["pareto"].tolist() == [one["pareto"] for one in data["points"]]
    text = str(reported(result))
    table = text[text.index("Throughput and cost") : text.index("Failed")]
    rows = [line for line in table.splitlines() if line.endswith("on it")]
    settings = [result.outcomes[number].point for number in (4, 0, 2)]
    for row, point in zip(rows, settings, strict=True):
        assert all(str(value) in row for value in point.values())
    assert "tokens/USD" in table


def test_a_plan_that_does_not_fit_is_not_on_the_front():
    result = priced()
    result.outcomes[4].row["verdict"] = "infeasible"
    assert front_of(result.outcomes) == {0, 2}


def test_costs_in_two_currencies_are_not_compared():
    result = priced()
    result.outcomes[0].row["currency"] = "EUR"
    assert not front_of(result.outcomes)
    assert "pareto" not in reported(result).figures


def test_points_that_cost_nothing_are_not_on_the_front():
    result = priced()
    result.outcomes[4].row["cost_per_s"] = 0.0
    assert front_of(result.outcomes) == {0, 2}
    assert "pareto" in reported(result).figures


def test_sweeps_without_prices_have_no_front():
    result = priced()
    for one in result.outcomes:
        (one.row or {}).pop("cost_per_s", None)
    assert "pareto" not in json.dumps(sweep_json(result))
    assert "pareto" not in csv_text(result.outcomes)
    assert "pareto" not in reported(result).figures


def test_the_figure_has_the_front_and_what_it_dominates(tmp_path):
    result = priced()
    drawn = draw(reported(result).contents().writers["pareto.png"], tmp_path)
    assert not drawn.cut_off
    (axes,) = drawn.figure.axes
    front, others = axes.lines[0], axes.collections[0]
    assert list(front.get_xdata()) == [3600.0, 18000.0, 21600.0]
    assert list(front.get_ydata()) == [0.004, 0.009, 0.0095]
    assert others.get_offsets()[:, 0].tolist() == [25200.0, 18000.0]
    assert [one.get_text() for one in axes.texts] == ["1", "2", "3"]
    words = " ".join(drawn.words)
    assert "1 oversubscription 4, nic_bandwidth 100 Gbit/s" in words
    assert any(one.startswith("Most tokens for a USD: 4.0") for one in drawn.words)


def test_points_of_a_real_sweep_are_priced_by_their_networks():
    scenario = nestsim.load_scenario("scenarios/cost/gpt3_175b_1024_h100.toml")
    ratios = {"cluster.network.oversubscription": [1.0, 8.0]}
    frame = nestsim.sweep(scenario, ratios, workers=1).to_frame()
    costs = frame.groupby("cluster.network.oversubscription")["cost_per_s"]
    assert (costs.nunique() == 1).all()
    assert costs.first()[8.0] < costs.first()[1.0]
    found = frame["simulated_tokens_per_s"] / frame["cost_per_s"]
    assert found.tolist() == pytest.approx(frame["tokens_per_currency"].tolist())
