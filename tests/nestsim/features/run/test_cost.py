"""What reports say of money and power."""

import csv
import io
import json

import pytest

import nestsim
from nestsim.document.terminal import plain_text
from nestsim.evaluate.cost import RunCost, cluster_cost
from nestsim.features.run.cost import cost_cells, cost_json, cost_rows, cost_sentences
from nestsim.scenario.hardware.cost import CostSpec, LinkPrice, SwitchPrice
from tests import failures
from tests.nestsim.evaluate.test_cluster_cost import BOUGHT, changed
from tests.topologies.test_parts import GBIT, rail
from topologies.builders import build_network
from topologies.errors import InputError


@pytest.fixture(scope="module")
def small():
    """Return a scenario whose plan is replayed in no time."""
    return nestsim.load_scenario("scenarios/gpt3_175b_1024_h100.toml")


@pytest.fixture(scope="module")
def priced(small):
    """Return the report on a rented cluster."""
    cost = {"device_hour": "2.50 USD/h", "tokens": 3e11}
    return nestsim.simulate(small.replace({"cost": cost}))


def run_of(spec, speed=4e5):
    cost = cluster_cost(spec, build_network(rail()))
    return RunCost(cluster=cost, iteration_time=8.0, tokens_per_second=speed)


def test_reports_say_nothing_of_money_without_prices(small):
    report = nestsim.simulate(small)
    assert report.cost is None
    assert "cost" not in report.to_dict()
    assert not [name for name in report.to_frame() if "cost" in name]
    assert "Cost and power" not in plain_text(report.print_to)


def test_everything_is_from_the_replayed_throughput(small, priced):
    data = priced.to_dict()
    speed = data["simulated"]["tokens_per_s"]
    rate = 1024 * 2.5 / 3600
    found = data["cost"]
    assert found["currency"] == "USD"
    assert found["tokens_per_currency"] == pytest.approx(speed / rate, rel=1e-12)
    assert found["step_cost"] == pytest.approx(
        rate * data["simulated"]["iteration_time_s"], rel=1e-12
    )
    assert found["run"]["cost"] == pytest.approx(3e11 / speed * rate, rel=1e-12)
    assert found["run"]["energy_j"] == pytest.approx(
        3e11 / speed * 1024 * 700, rel=1e-12
    )
    assert found["network"]["share_of_cost"] is None
    plain = nestsim.simulate(small).to_dict()
    assert {key: one for key, one in data.items() if key != "cost"} == plain


def test_the_folder_has_the_cost_in_json_csv_and_text(priced, tmp_path):
    priced.save(tmp_path / "results", figures=False)
    folder = tmp_path / "results"
    data = json.loads((folder / "result.json").read_text())
    (row,) = csv.DictReader(io.StringIO((folder / "summary.csv").read_text()))
    assert float(row["run_cost"]) == data["cost"]["run"]["cost"]
    assert row["currency"] == "USD"
    assert row["network_share_of_cost"] == ""
    text = (folder / "report.txt").read_text()
    assert "Cost and power" in text
    assert "rented at 2.5 USD/h" in text
    assert priced.cost.run_cost == data["cost"]["run"]["cost"]
    assert priced.facts()["run_cost"] == data["cost"]["run"]["cost"]


def test_what_is_left_out_is_said():
    spec = CostSpec(
        currency="USD",
        device=1.0,
        years=1.0,
        device_power=700.0,
        links=(LinkPrice(bandwidth=400 * GBIT, levels=("spine",), cable=9.0),),
    )
    last = cost_sentences(run_of(spec).cluster)[-1]
    assert last == (
        "Left out, as the scenario does not say: the price of nodes, switch ports, "
        "electricity; the power of nodes, switch ports, transceivers; the links of "
        "level rail unit."
    )
    whole = changed(
        links=(LinkPrice(bandwidth=400 * GBIT, nic=1.0, nic_power=2.0, cable=3.0),),
        switches=(SwitchPrice(bandwidth=25.6e12 / 8, price=4.0, power=5.0),),
    )
    last = cost_sentences(run_of(whole).cluster)[-1]
    assert last.endswith("does not say: the power of transceivers.")
    assert not any("Left out" in one for one in cost_sentences(run_of(BOUGHT).cluster))


def test_where_power_is_from_is_said():
    published = changed(
        device_power=700.0, device_power_source="a datasheet", power_factor=0.5
    )
    sentences = cost_sentences(run_of(published).cluster)
    assert sentences[0] == (
        "A device has 700 W (a datasheet) and draws 50.0 % of that on average, waiting "
        "included."
    )
    unknown = CostSpec(currency="USD", device_hour=1.0)
    assert "No power" in cost_sentences(run_of(unknown).cluster)[0]
    assert cost_json(run_of(unknown))["power_w"] is None
    assert "power" not in cost_rows(run_of(unknown))


def test_cells_have_the_runs_cost_where_its_tokens_are_known():
    assert cost_cells(None) == {}
    assert "run_cost" not in cost_cells(run_of(BOUGHT))
    cells = cost_cells(run_of(changed(tokens=1e12)))
    assert cells["run_cost"] == 1e12 / cells["tokens_per_currency"]
    assert cost_rows(run_of(changed(tokens=15e12)))["15 trillion tokens"]


@failures.over(
    ("cost", "where", "words"),
    [
        ({"device": "3 USD"}, "years", "is missing"),
        ({"years": 3}, "years", "writes off nothing"),
        ({"device_hour": "2 USD"}, "device_hour", "price of time"),
        ({"device_hour": 3}, "device_hour", "no unit"),
        ({"device_hour": "3 usd/h"}, "device_hour", "unknown unit"),
        (
            {"device_hour": "2 USD/h", "electricity": "0.1 EUR/kWh"},
            "electricity",
            "another currency",
        ),
        ({"links": [{"bandwidth": "1 GB/s"}]}, "links[0].bandwidth", "neither"),
        (
            {
                "years": 1,
                "links": [
                    {"bandwidth": "1 GB/s", "cable": "1 USD"},
                    {"bandwidth": "1 GB/s", "nic": "1 USD"},
                ],
            },
            "links[1].bandwidth",
            "priced twice",
        ),
        ({"power_factor": 0.0}, "power_factor", "power_factor"),
    ],
)
def test_prices_that_make_no_sense_are_refused(small, cost, where, words):
    with pytest.raises(InputError) as caught:
        small.replace({"cost": cost})
    assert f"cost.{where}" in str(caught.value)
    assert words in str(caught.value)


def test_electricity_of_devices_of_unknown_power_is_asked_for(small):
    cost = {"electricity": "0.1 USD/kWh"}
    unknown = {"cluster.accelerator": "tpu-v5p", "cost": cost}
    with pytest.raises(InputError, match=r"cost\.device_power"):
        small.replace(unknown)
    known = small.replace({**unknown, "cost": {**cost, "device_power": "400 W"}})
    assert known.cost.device_power == 400.0
    own = {"like": "tpu-v5p", "tdp": "350 W"}
    like = small.replace({"cluster.accelerator": own, "cost": cost})
    assert like.cost.device_power == 350.0


def test_a_level_that_there_is_not_is_refused_before_the_search(small):
    entry = {"bandwidth": "400 Gbit/s", "levels": ["core"], "cable": "1 USD"}
    wrong = small.replace({"cost": {"years": 1, "links": [entry]}})
    with pytest.raises(InputError, match=r"cost\.links\[0\]\.levels\[0\]"):
        nestsim.run(wrong)


def test_prices_change_nothing_of_what_plans_and_replays_are_kept_by(small):
    assert small.replace({"cost": {"device_hour": "1 USD/h"}}).content() == (
        small.content()
    )
