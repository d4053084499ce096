"""``nestsim plan SCENARIO --explain``: sentences, tables, JSON, exit status."""

import json
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from tests import failures

SCENARIOS = Path(__file__).parents[3] / "scenarios"
EIGHT = SCENARIOS / "gpt3_1.3b_8_a100.toml"

WRONG_INPUT = 2


def explained(capsys: pytest.CaptureFixture[str], text: str, *more: str) -> str:
    """Return standard output, with single spaces."""
    assert main(["plan", str(EIGHT), "--explain", text, *more]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out if "--json" in more else " ".join(captured.out.split())


def answer(capsys: pytest.CaptureFixture[str], text: str) -> Any:
    return json.loads(explained(capsys, text, "--json"))


def test_what_lost_is_shown_beside_the_winner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = explained(capsys, "tp=4,pp=2")
    assert out.startswith("SLOWER tp=4, pp=2 GPT-3 1.3B on 8 A100: 8 devices. It takes")
    assert "longer than the winner (x 1." in out
    assert "the largest term of the difference is tensor collectives, +" in out
    for heading in ("Named Winner", "Cause Named Winner Difference", "ratio x 1."):
        assert heading in out
    assert "placement tp4 pp2" in out
    assert "Memory of the fullest stage" in out


def test_json_has_every_term_of_both_plans(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = answer(capsys, "tp=4,vpp=1,mbs=1,recompute=full,zero=1")
    assert data["named"] == {
        "tp": 4,
        "v": 1,
        "b": 1,
        "recompute": "full",
        "zero": 1,
    }
    assert data["verdict"] == "slower"
    named, winner = data["named_plan"], data["winner"]
    assert named["plan"]["parallel"]["tensor_model_parallel_size"] == 4
    assert (named["plan"]["recompute"], named["plan"]["zero_stage"]) == ("full", 1)
    for plan in (named, winner):
        total = sum(plan["terms_s"].values())
        assert total == pytest.approx(plan["iteration_time_s"])
        assert sum(plan["memory_bytes"].values()) == plan["peak_memory_bytes"]
    gap = named["iteration_time_s"] - winner["iteration_time_s"]
    assert sum(data["difference_s"].values()) == pytest.approx(gap)
    largest = data["largest_difference"]
    assert largest["seconds"] == max(data["difference_s"].values())
    assert data["difference_s"][largest["term"]] == largest["seconds"]
    ratio = named["iteration_time_s"] / winner["iteration_time_s"]
    assert data["time_ratio"] == pytest.approx(ratio)
    assert (data["missing_memory_bytes"], data["rule"]) == (0.0, None)


def test_the_winner_is_that_of_the_plan_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", str(EIGHT), "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]["plan"]
    data = answer(capsys, "tp=2")
    assert data["winner"]["plan"] == best
    sizes = best["parallel"]
    named = answer(
        capsys,
        f"tp={sizes['tensor_model_parallel_size']},"
        f"pp={sizes['pipeline_model_parallel_size']},"
        f"dp={sizes['data_parallel_size']},b={best['micro_batch_size']}",
    )
    assert named["verdict"] == "winner"
    assert named["reason"] == "It is the best plan of the scenario's space."


def test_what_does_not_fit_says_where_and_by_how_much(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # 1.3 billion parameters of 18 bytes, on devices of 10 GB.
    text = SCENARIOS.joinpath("gpt3_1.3b_8_a100.toml").read_text(encoding="utf-8")
    path = tmp_path / "small.toml"
    path.write_text(with_memory(text, "10 GB"), encoding="utf-8")
    command = ["plan", str(path), "--explain", "tp=1,pp=1,zero=0"]
    assert main(command) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("DOES NOT FIT tp=1, pp=1, zero=0")
    assert "Stage 1 of 1 (embedding .. head) needs " in out
    assert "too little. Most of it is optimizer, " in out
    assert "With enough memory: it takes " in out
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    lacking = data["named_plan"]["peak_memory_bytes"] - data["available_memory_bytes"]
    assert data["missing_memory_bytes"] == lacking > 0
    assert data["winner"] is not None


def with_memory(text: str, memory: str) -> str:
    """Return a scenario with another device memory."""
    assert 'accelerator = "a100-80gb"' in text
    start, _, rest = text.partition('accelerator = "a100-80gb"\n')
    device = (
        "\n[cluster.accelerator]\n"
        'name = "small"\nvendor = "nobody"\n'
        f'memory_bytes = "{memory}"\nmemory_bandwidth = "2039 GB/s"\n'
        'num_compute_units = 108\ninterconnect_bandwidth = "300 GB/s"\n'
        'peak_flops = { bf16 = "312 TFLOP/s" }\n\n'
    )
    table, blank, others = rest.partition("\n[")
    return f"{start}{table}{device}{blank}{others}"


def test_a_broken_rule_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "tp=5")
    assert out.startswith("OUTSIDE THE SPACE tp=5")
    rule = "tensor_model_parallel_size 5 does not divide num_attention_heads"
    assert f"No such configuration: {rule}" in out
    assert "Iteration time" not in out
    data = answer(capsys, "tp=5")
    assert data["verdict"] == "outside"
    assert data["rule"].startswith(rule)
    assert data["named_plan"] is None
    assert data["difference_s"] is None


def test_values_outside_of_the_scenario_are_priced_with_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = answer(capsys, "b=3,tp=1")
    assert data["named_plan"]["plan"]["micro_batch_size"] == 3
    assert "The scenario does not search b=3, tp=1: search.micro" in data["reason"]
    # 3 does not divide the 512 sequences of a step: no framework launches that.
    setting, rule = data["not_searched"]
    assert setting == "search.micro_batch_sizes allows only 1, 2, 4, 8"
    assert rule.startswith("Megatron Core 0.16 cannot launch it (global batch")


@failures.over(
    ("text", "words"),
    [
        ("tpp=4", ("--explain: unknown key", "'tpp'", "did you mean tp?")),
        ("tp=four", ("--explain: tp is not a size", "'four'")),
        ("recompute=all", ("--explain: recompute has no such value", "selective")),
        ("", ("--explain: not a list of sizes", "tp=8,pp=4,dp=32")),
    ],
)
def test_mistakes_are_one_message_and_status_2(
    text: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(EIGHT), "--explain", text]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(words[0])
    assert all(word in captured.err for word in words)


def test_an_instance_has_nothing_to_explain(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "instance.json"
    path.write_text("{}", encoding="utf-8")
    command = ["plan", "--nest-instance", str(path), "--explain", "tp=1"]
    assert main(command) == WRONG_INPUT
    assert "--explain: needs a scenario" in capsys.readouterr().err
