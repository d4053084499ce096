"""`nestsim sites` as a whole: findings, mistakes, files, pages."""

import csv
import json
from pathlib import Path

import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.html import page_html
from nestsim.document.parts import Document
from nestsim.document.terminal import plain_text, print_document
from nestsim.document.wording import amount
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.sites.document import sites_document
from nestsim.features.sites.record import sites_json
from nestsim.scenario.load import Scenario
from tests.nestsim.features.jitter.jobs import TEXT
from topologies.errors import InputError

TABLE = """
[sites]
count = 3
bandwidth = "1 Gbit/s"
latency = "20 ms"
sync_every = 20
fragments = 4
delay = 2
compression = 8
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.from_toml(TEXT + TABLE)


@pytest.fixture(scope="module")
def report(scenario: Scenario) -> nestsim.SitesReport:
    return nestsim.sites(scenario)


def shown(document: Document) -> str:
    """Return what the terminal shows."""
    return plain_text(lambda console: print_document(document, console))


def findings(scenario: Scenario):
    answer = nestsim.sites(scenario).result.findings
    assert answer is not None
    return answer


def test_the_inner_step_is_the_replayed_one(scenario, report) -> None:
    evaluator = Evaluator.of(scenario)
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    answer = report.result.findings
    assert answer.step_time == evaluator.replayed_time(priced)
    assert answer.tokens == 32 * 1024
    assert answer.alone_per_day == pytest.approx(
        answer.tokens * 86400 / answer.step_time
    )


def test_ways_are_beside_each_other_and_one_is_given(report) -> None:
    answer = report.result.findings
    names = [way.name for way in answer.ways]
    assert names == ["synchronous", "DiLoCo", "streaming", "overlapped"]
    assert answer.given.name == "overlapped"
    loop = answer.given.loop
    assert (loop.sync_every, loop.fragments, loop.delay) == (20, 4, 2)
    # One byte a value, in a ring of three: each site sends 4/3 of a fragment.
    assert loop.bytes_sent == pytest.approx(answer.num_parameters / 4 * 4 / 3)
    per_day = [answer.tokens_per_day(way) for way in answer.ways]
    assert per_day[0] < per_day[2] < per_day[3] <= 3 * answer.alone_per_day * 1.0000001


def test_the_replay_agrees_with_the_closed_form(report) -> None:
    answer = report.result.findings
    expected = answer.given.loop.round_time(answer.spec.rate())
    assert answer.replayed.round_time == pytest.approx(expected, rel=1e-9)
    assert answer.replayed.engine == "simpy"


def test_least_bandwidths_give_what_they_are_for(report) -> None:
    answer = report.result.findings
    for way in answer.ways:
        needed = answer.least_bandwidth(way, 0.9)
        if way.name == "DiLoCo":
            assert way.loop.compute_share(needed) == pytest.approx(0.9)
        assert way.loop.compute_share(0.9 * needed) < 0.9


def test_synchronous_sends_whole_gradients_in_each_step(scenario) -> None:
    document = scenario.document()
    for name in ("sync_every", "fragments", "delay", "compression"):
        del document["sites"][name]
    document["sites"]["synchronous"] = True
    answer = findings(Scenario.from_dict(document))
    assert answer.given.name == "synchronous"
    wire = Evaluator.of(scenario).workload.parameter_bytes.reduce
    assert answer.given.loop.num_bytes == answer.num_parameters * wire
    assert answer.given.loop.optimizer_time == 0.0


def test_local_sgd_has_no_momentum_and_hosts_can_keep_the_state(scenario) -> None:
    nesterov = findings(scenario).state
    average = findings(scenario.replace({"sites.outer_optimizer": "average"}))
    assert average.state.momentum == 0.0
    assert average.ways[1].name == "local SGD"
    parameters = findings(scenario).num_parameters / 8
    assert nesterov.copy == nesterov.momentum == pytest.approx(4 * parameters)
    assert nesterov.resident == pytest.approx(2 * nesterov.copy + parameters)
    hosted = findings(scenario.replace({"sites.offload": True})).state
    assert hosted.resident == pytest.approx(parameters)
    assert hosted.at_once == pytest.approx(3 * parameters)
    assert hosted.time > nesterov.time > average.state.time


def test_a_step_that_is_given_is_taken(scenario) -> None:
    answer = findings(scenario.replace({"sites.step_time": "7 s"}))
    assert answer.step_time == answer.given.loop.step_time == 7.0
    assert "as given" in json.dumps(
        nestsim.sites(scenario.replace({"sites.step_time": "7 s"})).to_dict()
    )


def test_loss_is_said_to_hold_tcp_back(scenario) -> None:
    lossy = scenario.replace({"sites.loss": 0.01})
    text = shown(sites_document(sites_json(nestsim.sites(lossy).result)))
    assert "Loss holds 1 connection of TCP to 3.576 Mbit/s of 1 Gbit/s" in text


def test_the_slowest_uplink_is_said_to_decide(scenario) -> None:
    """All is as if every site had it; beside it stands what it would be otherwise."""
    slow = nestsim.sites(scenario.replace({"sites.slow_uplinks": ["0.5 Gbit/s"]}))
    narrow = nestsim.sites(scenario.replace({"sites.bandwidth": "0.5 Gbit/s"}))
    wide = nestsim.sites(scenario)
    assert slow.facts() == narrow.facts()
    assert slow.to_dict()["ways"] == narrow.to_dict()["ways"]
    text = " ".join(shown(sites_document(slow.to_dict())).split())
    alike = wide.result.findings.tokens_per_day(wide.result.findings.given)
    decides = "The slowest uplink, 500 Mbit/s, decides: with 1 Gbit/s everywhere"
    assert f"{decides} it would be {amount(alike)} a day." in text
    assert "1 Gbit/s each way, slower ones 500 Mbit/s" in text


@pytest.mark.parametrize(
    ("changed", "where", "expected"),
    [
        ({"sites.slow_uplinks": ["1 B/s"] * 9}, "sites.slow_uplinks", "at most "),
        ({"sites.fragments": 3}, "sites.fragments", "e.g. 2"),
        ({"sites.delay": 20}, "sites.delay", "at most 19"),
        ({"sites.synchronous": True}, "sites.sync_every", "synchronous"),
        ({"sites.compression": 5}, "sites.compression", "16, 8 or 4"),
        ({"sites.count": 1}, "sites.count", "2"),
        ({"sites.loss": 1.0}, "sites.loss", "1"),
        ({"sites.bandwidth": "10"}, "sites.bandwidth", "Gbit/s"),
        ({"sites.outer_optimizer": "adam"}, "sites.outer_optimizer", "nesterov"),
    ],
)
def test_mistakes_name_the_setting(scenario, changed, where, expected) -> None:
    with pytest.raises(InputError) as caught:
        scenario.replace(changed)
    assert where in str(caught.value)
    assert expected in str(caught.value)


def test_a_scenario_without_sites_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(TEXT)
    assert main(["sites", str(file)]) == 2
    message = capsys.readouterr().err
    assert "job.toml: sites: there are no sites" in message
    assert "count = 2" in message


def test_without_a_plan_it_says_so(scenario) -> None:
    document = scenario.document()
    del document["plan"]
    document["cluster"]["memory_reserve"] = "79.9 GiB"
    report = nestsim.sites(Scenario.from_dict(document))
    assert not report.succeeded
    assert report.facts()["reason"]
    assert sites_document(sites_json(report.result)).headline.tone == "bad"


def test_a_plan_is_searched_where_none_is_given(scenario) -> None:
    document = scenario.document()
    del document["plan"]
    searched = findings(Scenario.from_dict(document))
    assert searched.step_time <= findings(scenario).step_time


def test_files_hold_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(TEXT + TABLE)
    folder = tmp_path / "out"
    options = ["-q", "--no-figures", "--html", "-o", str(folder)]
    assert main(["sites", str(file), "--sync-every", "40", *options]) == 0
    data = json.loads((folder / "sites.json").read_text())
    (given,) = (way for way in data["ways"] if way["is_given"])
    assert given["sync_every"] == 40
    rows = [*csv.DictReader((folder / "sites.csv").read_text().splitlines())]
    assert len(rows) == 4 * (11 + len(data["latencies_s"]))
    printed = capsys.readouterr().out
    assert data["headline"] in printed
    assert "Least uplink" in printed
    assert "Least uplink" in page_html(sites_document(data))
