"""``nestsim collectives``: its table, its files, its errors, and what plans send."""

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimators.collectives.cost import collective_rates
from nestsim.cli import main
from nestsim.evaluate.cluster import build_job
from nestsim.lowering.traffic import GroupTraffic, plan_traffic
from nestsim.scenario import load_scenario
from planner.cost.pricing import price_plan
from planner.cost.stage import PART_OF_GROUP
from planner.plans.build import build_plan
from tests import failures
from tests.nestsim.document.pictures import draw

WRONG_INPUT = 2

SCENARIO = """
name = "small"

[model]
family = "{family}"
num_layers = 4
hidden_size = 512
num_attention_heads = 8
vocab_size = 32000
sequence_length = 1024
{experts}

[software]
preset = "ideal"

[training]
global_batch_size = 32

[cluster]
accelerator = "a100-80gb"

[cluster.network]
kind = "fat-tree"
nic = "node"

[[cluster.network.levels]]
name = "node"
fan_out = 8
bandwidth = "300 GB/s"
latency = "500 ns"

[[cluster.network.levels]]
name = "leaf"
fan_out = 2
bandwidth = "100 GB/s"
latency = "1 us"
"""

PLAN = """
[plan]
micro_batch_size = 1
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
"""

SEARCH = """
[search]
keep_best = 1
micro_batch_sizes = [1]
tensor_model_parallel_sizes = [1, 2]
pipeline_model_parallel_sizes = [1, 2]
context_parallel_sizes = [1]
virtual_pipeline_model_parallel_sizes = [1]
recompute = ["none"]
zero_stages = [0]
"""

EXPERTS = "num_moe_experts = 4\nmoe_router_topk = 2\nffn_hidden_size = 1024"


def write(
    folder: Path, plan: str = PLAN, family: str = "gpt", experts: str = ""
) -> Path:
    path = folder / "small.toml"
    text = SCENARIO.format(family=family, experts=experts) + plan
    path.write_text(text, encoding="utf-8")
    return path


RANGE = ("-b", "1KiB", "-e", "1 MiB", "-f", "32")


def test_the_table_has_every_group_of_the_plan_and_every_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["collectives", str(write(tmp_path)), *RANGE, "-o", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err.endswith(f"Results are in {out}\n")
    assert "tp2 pp2 dp4 b1" in shown.out
    for title in ("Tensor all-reduce", "Pipeline send/recv", "Data all-reduce"):
        assert title in shown.out
    for word in ("1 KiB", "32 KiB", "1 MiB", "algbw", "busbw", "together", "busy"):
        assert word in shown.out
    assert "8 groups of 2, the first one devices 0-1" in shown.out
    picture = (out / "collectives.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert sorted(p.name for p in out.iterdir()) == [
        "collectives.csv",
        "collectives.png",
        "manifest.json",
    ]
    lines = list(csv.DictReader(io.StringIO((out / "collectives.csv").read_text())))
    assert len(lines) % 3 == 0
    for line in lines:
        time = float(line["alone_time_s"])
        assert float(line["alone_algbw_bytes_per_s"]) == int(line["size_bytes"]) / time
        assert float(line["together_time_s"]) >= time * (1 - 1e-9)


def test_json_holds_the_same_numbers_and_writes_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = str(write(tmp_path))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["collectives", scenario, *RANGE, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert list((tmp_path / "empty").iterdir()) == []
    result = json.loads(shown.out)
    assert result["plan"]["parallel"]["data_parallel_size"] == 4
    tables = {(one["kind"], one["operation"]): one for one in result["tables"]}
    tensor = tables["tensor", "all_reduce"]
    assert tensor["num_members"] == 2
    assert tensor["first_group"] == [0, 1]
    assert [row["size_bytes"] for row in tensor["rows"]] == [2**10, 2**15, 2**20]
    for row in tensor["rows"]:
        closed = row["closed_forms_s"]
        assert row["algorithm"] in closed
        assert closed[row["algorithm"]] == pytest.approx(min(closed.values()))
        assert row["together"]["time_s"] == pytest.approx(
            closed[row["algorithm"]], rel=1e-4
        )
    # Twice what a byte needs over 300 GB/s, of half of the tensor.
    last = tensor["rows"][-1]["alone"]
    assert last["busbw_bytes_per_s"] == pytest.approx(300e9, rel=0.4)
    assert tables["data", "all_reduce"]["plan_period_s"] is None


def test_the_same_scenario_gives_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = str(write(tmp_path))
    found = []
    for name in ("a", "b"):
        folder = str(tmp_path / name)
        assert main(["collectives", scenario, *RANGE, "-q", "-o", folder]) == 0
        files = sorted((tmp_path / name).iterdir())
        found.append((capsys.readouterr().out, [file.read_bytes() for file in files]))
    assert found[0] == found[1]


def test_a_narrow_terminal_gets_one_table_for_each_condition(tmp_path: Path) -> None:
    from rich.console import Console

    from nestsim.document.terminal import print_document
    from nestsim.features.collectives.document import collectives_document
    from nestsim.features.collectives.job import collectives_job

    result = collectives_job(load_scenario(write(tmp_path)), [2**20])
    text = io.StringIO()
    console = Console(file=text, width=80, highlight=False)
    print_document(collectives_document(result), console)
    lines = text.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "…" not in text.getvalue()
    assert sum("alone" in line and "Size" not in line for line in lines) >= 3


def test_a_plan_on_one_device_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = "[plan]\nmicro_batch_size = 1\ndata_parallel_size = 1\n"
    out = tmp_path / "out"
    scenario = str(write(tmp_path, plan))
    assert main(["collectives", scenario, *RANGE, "-o", str(out)]) == 0
    assert "No device of this plan sends anything" in capsys.readouterr().out
    assert not out.exists()


def test_no_plan_that_fits_is_status_one_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = SEARCH.replace("stages = [0]", "stages = [0]\ndata_parallel_sizes = [64]")
    path = write(tmp_path, search)
    assert main(["collectives", str(path), *RANGE, "-q"]) == 1
    assert "NO PLAN FITS" in capsys.readouterr().out


def test_without_a_plan_the_best_one_of_the_search_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, SEARCH)
    assert main(["collectives", str(path), *RANGE, "--json"]) == 0
    parallel = json.loads(capsys.readouterr().out)["plan"]["parallel"]
    assert main(["plan", str(path), "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]["plan"]["parallel"]
    assert parallel == best


WRONG = {
    "speed": (["-b", "1 kB/s"], "--min-bytes", "unit is not one of size"),
    "no size": (["-b", "zero"], "--min-bytes", "not a quantity"),
    "zero": (["-b", "0"], "--min-bytes", "not a size"),
    "half a byte": (["-b", "0.5 B"], "--min-bytes", "is absurdly small"),
    "too large": (["-e", "1e9 TB"], "--max-bytes", "is absurdly large"),
    "range": (["-b", "2 KiB", "-e", "1 KiB"], "--max-bytes", "below the smallest"),
    "factor": (["-f", "1"], "--step-factor", "sizes must grow"),
}


@failures.over("case", sorted(WRONG))
def test_wrong_options_say_which_one_and_what_is_expected(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, name, words = WRONG[case]
    assert main(["collectives", str(write(tmp_path)), *options]) == WRONG_INPUT
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"{name}: ")
    assert words in shown.err
    assert "expected:" in shown.err


def test_results_need_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    assert main(["collectives", str(path), "-o", str(path)]) == WRONG_INPUT
    assert capsys.readouterr().err.startswith("--output: is not a folder")


def test_a_plan_that_does_not_fit_the_cluster_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = PLAN.replace("tensor_model_parallel_size = 2", "data_parallel_size = 99")
    path = write(tmp_path, plan)
    assert main(["collectives", str(path), *RANGE]) == WRONG_INPUT
    assert f"{path}: plan.data_parallel_size" in capsys.readouterr().err


# What plans send.


def priced_traffic(
    path: Path,
) -> tuple[Any, Any, tuple[GroupTraffic, ...]]:
    scenario = load_scenario(path)
    network, workload = build_job(scenario, None)
    assert scenario.plan is not None
    plan = build_plan(network, workload, scenario.plan)
    priced = price_plan(network, workload, plan)
    return network, priced, plan_traffic(workload, priced)


RICH = """
[plan]
micro_batch_size = 1
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
context_parallel_size = {cp}
expert_model_parallel_size = {ep}
sequence_parallel = {sp}
zero_stage = {zero}
"""


@pytest.mark.parametrize(
    "case", [(1, 4, "true", 0), (2, 1, "false", 0), (2, 2, "true", 0)]
)
def test_what_stages_send_per_microbatch_costs_what_the_plan_says(
    case: tuple[int, int, str, int], tmp_path: Path
) -> None:
    """Times of all operations of a microbatch add up to the stage's parts."""
    cp, ep, sp, zero = case
    family, experts = ("mixtral", EXPERTS) if ep > 1 else ("gpt", "")
    plan = RICH.format(cp=cp, ep=ep, sp=sp, zero=zero)
    path = write(tmp_path, plan, family, experts)
    network, priced, traffics = priced_traffic(path)
    pace = priced.iteration_time / priced.plan.num_microbatches
    spent = {part: [0.0, 0.0] for part in PART_OF_GROUP.values()}
    for one in traffics:
        if one.kind not in PART_OF_GROUP:
            continue
        rates = np.array(
            collective_rates(network, one.operation, one.groups, one.algorithm)
        )
        for stage in set(one.stage.tolist()):
            unit = int(np.flatnonzero(one.stage == stage)[0])
            rate = rates[one.stage == stage].max(axis=0)
            time = float(rate[0] + one.num_bytes[unit] * rate[1])
            spent[PART_OF_GROUP[one.kind]][stage] += pace / one.period[unit] * time
    expected = {part: [stage.parts[part] for stage in priced.stages] for part in spent}
    assert any(sum(times) for times in expected.values())
    for part, times in spent.items():
        assert times == pytest.approx(expected[part], rel=1e-9), part


@failures.over("zero", [0, 1, 2, 3])
def test_zero_decides_what_happens_in_every_microbatch(
    zero: int, tmp_path: Path
) -> None:
    path = write(tmp_path, RICH.format(cp=1, ep=1, sp="false", zero=zero))
    _, _, traffics = priced_traffic(path)
    data = {one.operation: one for one in traffics if one.kind == "data"}
    steady = {name for name, one in data.items() if np.isfinite(one.period).all()}
    expected = [
        ({"all_reduce"}, set()),
        ({"reduce_scatter", "all_gather"}, set()),
        ({"reduce_scatter", "all_gather"}, {"reduce_scatter"}),
        ({"reduce_scatter", "all_gather"}, {"reduce_scatter", "all_gather"}),
    ]
    assert (set(data), steady) == expected[zero]


def test_groups_cover_all_devices_and_lie_in_their_stages(tmp_path: Path) -> None:
    path = write(tmp_path, RICH.format(cp=2, ep=1, sp="false", zero=1))
    _, priced, traffics = priced_traffic(path)
    devices = [np.ravel(stage.devices) for stage in priced.plan.stages]
    kinds = {one.kind for one in traffics}
    assert {"tensor", "context", "pipeline", "data", "embedding"} <= kinds
    for one in traffics:
        if one.kind in {"tensor", "context", "data"}:
            assert set(one.groups.ravel()) <= set(range(16))
            for groups, stage in zip(one.groups, one.stage, strict=True):
                assert np.isin(groups, devices[stage]).all()
        if one.kind in {"pipeline", "embedding"}:
            assert np.isin(one.groups[..., 0], devices[0]).all()
            assert np.isin(one.groups[..., 1], devices[1]).all()


def test_words_of_the_picture_do_not_run_into_each_other(tmp_path: Path) -> None:
    file = str(write(tmp_path, experts=EXPERTS, family="mixtral"))
    command = ["collectives", file, "-b", "1KiB", "-e", "1GiB", "-f", "4", "-q"]
    drawn = draw(lambda _: main([*command, "-o", str(tmp_path / "out")]), tmp_path)
    assert not drawn.cut_off
    assert not drawn.overlapping
    assert {"1 KiB", "1 GiB"} <= set(drawn.words)
    assert {"alone", "together", "busy", "bus bandwidth [GB/s]"} <= set(drawn.words)
    assert any(word.startswith("Cheapest: ") for word in drawn.words)
    axes = drawn.figure.axes[0]
    gaps = {b / a for a, b in itertools.pairwise(axes.get_xticks())}
    assert len(gaps) == 1
