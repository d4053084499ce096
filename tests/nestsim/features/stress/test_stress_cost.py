"""How much is saved beside how far it can go."""

import csv
import io

import pytest

from nestsim.document.dumps import csv_of
from nestsim.document.parts import Document
from nestsim.document.sheet import draw_document
from nestsim.document.terminal import plain_text, print_document
from nestsim.features.stress.conditions import AS_BUILT
from nestsim.features.stress.document import stress_document
from nestsim.features.stress.job import stress_job
from nestsim.features.stress.record import stress_json, stress_rows
from nestsim.scenario import load_scenario
from tests.nestsim.document.pictures import draw
from tests.nestsim.features.stress.clusters import TEXT

COST = """
[cost]
device = "1000 USD"
node = "0 USD"
years = 1

[[cost.links]]
bandwidth = "5 GB/s"
cable = "100 USD"
"""

YEAR = 365 * 86400.0


SLOW = {"links": "level spine", "factor": 4.0}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """Return the small job on a tree with prices."""
    path = tmp_path_factory.mktemp("priced") / "small.toml"
    path.write_text(TEXT + COST)
    return load_scenario(path)


@pytest.fixture(scope="module")
def result(scenario):
    """Return what worse leaves save, and what broken ones do not."""
    conditions = [
        {"name": "slow spine", "degraded": {"slow_links": [SLOW]}},
    ]
    return stress_job(
        scenario.replace(
            {
                "stress.planners": ["manual"],
                "stress.workers": 1,
                "stress.oversubscription": {"leaf": [1.0, 2.0, 4.0, 8.0]},
                "stress.conditions": conditions,
                "stress.keep": 0.9,
                "stress.level": "leaf",
            }
        )
    )


def document_of(result) -> Document:
    return stress_document(stress_json(result))


def text_of(result):
    return plain_text(lambda console: print_document(document_of(result), console))


def by_hand(ratio):
    """Return what the cluster costs each second at a ratio of the leaves.

    Eight devices in four nodes; a node has 20 GB/s to its leaf, which is 4 cables of
    5 GB/s, and a leaf of two nodes 40 GB/s over the ratio to the spine.
    """
    uplinks = -(-40 // (5 * ratio))
    return (8 * 1000 + (4 * 4 + 2 * uplinks) * 100) / YEAR


def test_each_condition_costs_what_its_network_is_built_of(result):
    rates = {name: cost.rate for name, cost in result.costs.items()}
    assert rates["leaf 1:1"] == pytest.approx(by_hand(1), rel=1e-12)
    assert rates[AS_BUILT] == pytest.approx(by_hand(2), rel=1e-12)
    assert rates["leaf 4:1"] == pytest.approx(by_hand(4), rel=1e-12)
    assert rates["leaf 8:1"] == pytest.approx(by_hand(8), rel=1e-12)
    assert rates["slow spine"] == rates[AS_BUILT]
    saved = result.saved("leaf 8:1")
    assert saved == pytest.approx(1 - by_hand(8) / by_hand(2), rel=1e-9)
    assert result.saved("leaf 1:1") < 0.0
    assert result.saved("slow spine") == 0.0


def test_how_far_it_can_go_says_how_much_is_saved(result):
    for answer in result.answers:
        before, after = answer.costs
        assert before.rate == pytest.approx(by_hand(1), rel=1e-12)
        assert after.rate == pytest.approx(by_hand(answer.kept), rel=1e-12)
    text = text_of(result)
    words = " ".join(text.split())
    before, after = result.answers[0].costs
    share = 100 * (1 - after.rate / before.rate)
    assert f"Against 1:1 it saves {share:.1f} % of the cost of the cluster" in words
    assert "How much is saved" in words


def test_the_front_is_what_no_other_condition_dominates(result):
    points = {
        name: (result.costs[name].rate, result.cell("manual", name, name).simulated)
        for name in result.names
    }
    expected = {
        ("manual", name)
        for name, one in points.items()
        if not any(
            other[0] <= one[0] and other[1] <= one[1] and other != one
            for other in points.values()
        )
    }
    assert result.front() == expected
    data = stress_json(result)["cost"]
    assert {(one["planner"], one["condition"]) for one in data["pareto"]} == expected
    rows = list(csv.DictReader(io.StringIO(csv_of(stress_rows(result)))))
    flags = {("manual", row["condition"]) for row in rows if row["pareto"] == "True"}
    assert flags == expected
    assert data["conditions"]["leaf 8:1"]["saved_share"] == result.saved("leaf 8:1")


def test_the_figure_shows_every_priced_plan(result, tmp_path):
    document = document_of(result).with_figures("pareto")
    drawn = draw(lambda path: draw_document(document, path), tmp_path)
    assert not drawn.cut_off
    (axes,) = drawn.figure.axes
    points = [tuple(one) for mark in axes.collections for one in mark.get_offsets()]
    assert len(points) == len(result.names)


def test_clusters_that_cost_nothing_are_not_compared(scenario):
    asked = {
        "stress.planners": ["manual"],
        "stress.oversubscription": {"leaf": [2.0, 4.0]},
        "stress.keep": 0.9,
        "cost": {"device": "0 USD", "years": 1},
    }
    result = stress_job(scenario.replace(asked))
    assert result.currency == ""
    assert not result.front()
    assert "pareto" not in {one.name for one in document_of(result).figures}
    assert "saved" not in text_of(result)
    assert stress_json(result)["cost"]["currency"] is None


def test_slower_links_save_nothing(scenario):
    asked = {
        "stress.planners": ["manual"],
        "stress.oversubscription": {"leaf": [2.0]},
        "stress.keep": 0.9,
        "stress.level": "leaf",
        "stress.quantity": "bandwidth",
    }
    result = stress_job(scenario.replace(asked))
    assert all(answer.costs is None for answer in result.answers)


def test_tests_without_prices_say_nothing_of_them(scenario):
    document = scenario.document()
    del document["cost"]
    document["stress"] = {"planners": ["manual"], "oversubscription": {"leaf": [2.0]}}
    plain = stress_job(scenario.from_dict(document))
    assert "cost" not in stress_json(plain)
    assert "pareto" not in {one.name for one in document_of(plain).figures}
    assert "saved" not in text_of(plain)
    assert not [name for name in stress_rows(plain)[0] if "cost" in name]
