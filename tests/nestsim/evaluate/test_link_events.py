"""Links that fail in the middle of a step: from the scenario to the report."""

import json
from pathlib import Path

import pytest

import nestsim
from nestsim.cli import main
from nestsim.scenario.load import load_scenario
from tests import failures
from topologies.errors import InputError

FILE = Path(__file__).parents[3] / "scenarios/jitter/llama2_7b_64_h100.toml"
DOWN = {"time": "2.5 s", "links": "leaf 0 <-> spine 0", "is_down": True}


def simulated(*events):
    asked: dict[str, object] = {"cluster.network.trunk": "ecmp"}
    if events:
        asked["cluster.link_events"] = list(events)
    return nestsim.simulate(load_scenario(FILE).replace(asked)).result.candidates[0]


def test_a_reduction_waits_for_routes_and_shares_what_is_left() -> None:
    """The longer routes take to go round, the later; never by more than that."""
    times = []
    for reroute in ("0 s", "100 ms", "200 ms"):
        changed = simulated({**DOWN, "reroute_time": reroute}).changed
        assert changed is not None
        times.append(changed.iteration_time)
        assert changed.hits[0].num_flows >= 1
    assert simulated().replay.iteration_time < times[0] < times[1] < times[2]
    assert times[2] - times[1] == pytest.approx(0.1, abs=1e-6)


def test_what_happens_too_late_changes_nothing() -> None:
    candidate = simulated({**DOWN, "time": "1 h"})
    assert candidate.changed is not None
    assert candidate.changed.iteration_time == pytest.approx(
        candidate.replay.iteration_time, rel=1e-12
    )
    assert simulated().changed is None


@failures.over(
    ("event", "words"),
    [
        ({"links": "leaf 0 <-> spine *"}, "cuts devices off"),
        ({"links": "moon -> spine 0"}, "no such vertex"),
        ({"factor": 2.0}, "divides the bandwidth"),
        ({"time": "2"}, "unit"),
    ],
)
def test_events_that_cannot_be_are_refused(
    event: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        simulated({**DOWN, **event})
    assert "cluster.link_events" in str(caught.value)


def test_the_report_says_what_the_step_takes_with_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.read_text(encoding="utf-8").replace(
        'kind = "spine-leaf"', 'kind = "spine-leaf"\ntrunk = "ecmp"'
    )
    event = "\n".join(f"{key} = {json.dumps(value)}" for key, value in DOWN.items())
    file = tmp_path / "job.toml"
    file.write_text(f"{text}\n[[cluster.link_events]]\n{event}\n", encoding="utf-8")
    assert main(["simulate", str(file), "-o", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Links that change in the step" in printed
    assert "if nothing happens" in printed
    result = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    changed = result["changed"]
    assert changed["iteration_time_s"] > changed["plain_time_s"]
    assert [round(hit["time_s"], 3) for hit in changed["hits"]] == [2.5, 2.55]
