"""What a comparison says of money: the replayed plans of each planner, priced."""

import csv
import io

import pytest

from nestsim.document.terminal import plain_text, print_document
from nestsim.features.compare.document import comparison_document
from nestsim.features.compare.job import CompareSettings, compare_job
from nestsim.features.compare.record import (
    comparison_json,
    comparison_rows,
    rows_csv,
)
from nestsim.scenario import load_scenario
from tests.nestsim.features.compare.small import write
from topologies.errors import InputError

SETTINGS = CompareSettings(planners=("manual",))
COST = {"device_hour": "2 EUR/h", "tokens": 1e9}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """Return the small job, rented."""
    path = write(tmp_path_factory.mktemp("priced"))
    return load_scenario(path).replace({"cost": COST})


def test_each_planners_plan_costs_its_replayed_time(scenario):
    comparison = compare_job([scenario], SETTINGS)
    (group,) = comparison_json(comparison)["groups"]
    rate = 2.0 / 3600 * group["num_devices"]
    rows = list(csv.DictReader(io.StringIO(rows_csv(comparison_rows(comparison)))))
    for entry, row in zip(group["entries"], rows, strict=True):
        speed = entry["simulated"]["tokens_per_s"]
        assert entry["cost"]["run"]["cost"] == pytest.approx(
            1e9 / speed * rate, rel=1e-12
        )
        assert float(row["run_cost"]) == entry["cost"]["run"]["cost"]
    document = comparison_document(comparison_json(comparison))
    text = plain_text(lambda console: print_document(document, console))
    assert "Cost and power, by the replay" in text
    assert "1 billion tokens" in text


def test_comparisons_without_prices_say_nothing_of_them(scenario):
    document = scenario.document()
    del document["cost"]
    plain = compare_job([scenario.from_dict(document)], SETTINGS)
    (group,) = comparison_json(plain)["groups"]
    assert all("cost" not in entry for entry in group["entries"])
    assert "cost" not in rows_csv(comparison_rows(plain)).splitlines()[0]


def test_wrong_levels_are_told_before_the_search(scenario):
    entry = {"bandwidth": "1 GB/s", "levels": ["core"], "nic_power": "1 W"}
    wrong = scenario.replace({"cost": {"links": [entry]}})
    with pytest.raises(InputError, match=r"cost\.links\[0\]\.levels\[0\]"):
        compare_job([wrong], SETTINGS)
