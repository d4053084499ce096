"""``nestsim plan --nest-instance``: answers, scores, exit status, one clear error."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nestsim.cli import main
from tests import failures

WRONG_INPUT = 2
NOTHING_FITS = 1

NODE = {
    "parameterSize": 2**30,
    "activationSize": 2**30,
    "optimalLatencyFw": 1.0,
    "optimalLatencyBw": 2.0,
}

IDS = (-1, 0, 1, 2)

INSTANCE: dict[str, Any] = {
    "ep_degree": 1,
    "cp_degree": 1,
    "maxMemoryPerDevice": 7 * 2**30,
    "maxDevices": 8,
    "bws": [2.0**33, 2.0**32],
    "latency_per_level": [0.0, 0.25],
    "devices_per_level": [4, 2],
    "mbsInBatch": 16.0,
    "nodes": {"1": [{"id": i, **NODE} for i in reversed(IDS)]},
    "edges": {
        "1": [
            {"sourceId": u, "destId": v, "communicationCost": 2**31}
            for u, v in pairwise(IDS)
        ]
    },
    "activationRecomputation": False,
    "optimizerAlgorithm": "SGD",
    "baselines": {
        "Manual": {"num_transformer_layers": 3, "p": 2, "d": 2, "t": 1},
        "Wide": {"num_transformer_layers": 3, "p": 2, "d": 2, "t": 8},
    },
}
"""Four equal nodes of 3 GiB; two of them need 6 GiB, and 4 as the first of two."""

SCORE = {
    "type": "object",
    "required": ["time_per_batch", "ratio", "reason"],
    "additionalProperties": False,
    "properties": {
        "time_per_batch": {"type": ["number", "null"]},
        "ratio": {"type": ["number", "null"]},
        "reason": {"type": ["string", "null"]},
    },
}

ANSWER = {
    "type": "object",
    "required": ["time_per_batch", "tensor", "data", "stages", "solve_seconds"],
    "properties": {
        "time_per_batch": {"type": ["number", "null"]},
        "tensor": {"type": ["integer", "null"]},
        "data": {"type": ["integer", "null"]},
        "stages": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["nodes", "devices"],
                "additionalProperties": False,
                "properties": {
                    "nodes": {"type": "array", "items": {"type": "integer"}},
                    "devices": {"type": "integer"},
                },
            },
        },
        "solve_seconds": {"type": "number", "minimum": 0},
        "reason": {"type": ["string", "null"]},
        "baselines": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "as_scored", "true_order", "best_cuts"],
                "properties": dict.fromkeys(
                    ("as_scored", "true_order", "best_cuts"), SCORE
                ),
            },
        },
    },
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an instance file in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("four.json")
    path.write_text(json.dumps(INSTANCE), encoding="utf-8")
    return path


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    captured = capsys.readouterr()
    assert captured.err == ""
    data = json.loads(captured.out)
    jsonschema.validate(data, ANSWER)
    return data


def test_json_has_the_stages_from_the_first_to_the_last_in_ids_of_the_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--nest-instance", str(file), "--json"]) == 0
    data = answer(capsys)
    nodes = [node for stage in data["stages"] for node in stage["nodes"]]
    assert nodes == list(IDS)
    assert [stage["devices"] for stage in data["stages"]] == [1] * len(data["stages"])
    assert (data["tensor"], data["reason"]) == (1, None)
    used = data["data"] * len(data["stages"])
    assert used <= INSTANCE["maxDevices"]
    # Four stages of one node (12 GiB do not fit, nor do 8 GiB in the first of two),
    # twice: 3 of compute, and 0.25 each way over both of its links. Gradients: 0.125
    # inside the groups of four, then up and down 0.25 of latency and 0.25 of sending.
    assert (len(data["stages"]), data["data"]) == (4, 2)
    assert data["time_per_batch"] == 3.5 * (8 + 4 - 1) + 0.125 + 2 * 0.5


def test_text_says_the_same(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--nest-instance", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("39.625 per batch  four.json: 4 nodes, 8 devices")
    text = " ".join(captured.out.split())
    assert "replicas 2 of 8 microbatches" in text
    assert "devices 8 of 8" in text
    assert re.search(r"1 -1 1 3\.25 6 of 7 GiB - no", text)
    assert re.search(r"2 0 1 3\.5 5 of 7 GiB level 0 no", text)
    assert max(map(len, captured.out.splitlines())) <= 80


def test_scores_stand_beside_the_best_plan(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--nest-instance", str(file), "--score", "--json"]) == 0
    data = answer(capsys)
    manual, wide = data["baselines"]
    assert (manual["name"], manual["pipeline"], manual["tensor"]) == ("Manual", 2, 1)
    assert manual["best_cuts"]["reason"] == "no cuts fit in memory"
    assert wide["true_order"] == {
        "time_per_batch": None,
        "ratio": None,
        "reason": "no graph of tensor width 8",
    }
    assert "back to front" in data["explanation"]


def test_the_table_of_scores_has_both_ratios_and_says_why_they_differ(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roomy = INSTANCE | {
        "maxMemoryPerDevice": 2**40,
        "mbsInBatch": 1.0,
        "activationRecomputation": True,
    }
    file.write_text(json.dumps(roomy), encoding="utf-8")
    manual = {"num_transformer_layers": 3, "p": 2, "d": 1, "t": 1}
    roomy["baselines"] = {"Manual": manual}
    file.write_text(json.dumps(roomy), encoding="utf-8")
    assert main(["plan", "--nest-instance", str(file), "--score"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(best plan) 1 1 1 12 1.0000 12 1.0000 1.0000" in text
    # Both stages of two nodes: 2 + 4 (+ 4 with recompute), 0.25 for the link.
    # In either order one of them recomputes: first in truth, last as scored.
    scored, true = 2 * (0.25 + 2 + 4 + 4), 2 * (2 + 4 + 4)
    assert f"Manual 1 2 1 {scored:g} {scored / 12:.4f} {true:g} {true / 12:.4f}" in text
    assert "The artifact prices its baselines back to front" in text


def test_a_missing_price_is_told_below_the_table(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--nest-instance", str(file), "--score"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    words = "as scored and in true order and with the best cuts"
    assert f"Wide has no price {words}: no graph of tensor width 8." in text


def test_an_instance_without_baselines_says_so(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps(INSTANCE | {"baselines": {}}), encoding="utf-8")
    assert main(["plan", "--nest-instance", str(file), "--score"]) == 0
    assert "The file stores no baselines." in capsys.readouterr().out


@pytest.mark.parametrize("score", [[], ["--score"]])
def test_an_instance_that_does_not_fit_is_a_result_with_a_reason(
    score: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = INSTANCE | {"maxMemoryPerDevice": 2**30}
    file.write_text(json.dumps(tight), encoding="utf-8")
    call = ["plan", "--nest-instance", str(file), *score]
    assert main([*call, "--json"]) == NOTHING_FITS
    data = answer(capsys)
    assert data["time_per_batch"] is data["tensor"] is data["data"] is None
    assert data["stages"] == []
    assert "needs 6 GiB on a device, which has 1 GiB" in data["reason"]
    assert main(call) == NOTHING_FITS
    assert capsys.readouterr().out.startswith("NO PLAN FITS  four.json")


@failures.over(
    ("arguments", "words"),
    [
        ((), "SCENARIO: nothing to plan"),
        (("--json",), "SCENARIO: nothing to plan"),
        (("--score",), "SCENARIO: nothing to plan"),
        (("x.toml", "--score"), "--score: needs an instance that stores baselines"),
        (
            ("x.toml", "--nest-instance", "four.json"),
            "--nest-instance: does not go with a scenario",
        ),
        (("--nest-instance", "no.json"), "no.json: no such file"),
        (("--nest-instance", "."), ".: is a folder, not a file"),
        (("--nest-instance", "bad.json"), "bad.json: maxDevices: is out of range"),
    ],
)
def test_a_mistake_is_one_clear_error(
    arguments: tuple[str, ...],
    words: str,
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = INSTANCE | {"maxDevices": -1}
    file.with_name("bad.json").write_text(json.dumps(bad), encoding="utf-8")
    assert main(["plan", *arguments]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(words)
    assert "Traceback" not in captured.err


def test_the_same_instance_twice_gives_the_same_answer(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for _ in range(2):
        assert main(["plan", "--nest-instance", str(file), "--score", "--json"]) == 0
        data = answer(capsys)
        assert math.isfinite(data.pop("solve_seconds"))
        found.append(data)
    assert found[0] == found[1]
