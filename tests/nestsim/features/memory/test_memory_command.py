"""``nestsim memory``: what it prints and writes, its errors, and a measured run."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.sheet import draw_document
from nestsim.evaluate.cluster import build_workload
from nestsim.features.memory.document import memory_document
from nestsim.features.memory.job import memory_job
from nestsim.features.validation.case import read_case
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.runner import measured_memory, published_measurements
from nestsim.scenario import load_scenario
from planner.memory.account import MemoryJob, MemoryLimits
from planner.step.memory import memory_of_stage
from tests import failures
from tests.docs.pages import DOCS, ROOT, read
from tests.nestsim.document.pictures import draw

WRONG_INPUT = 2

DOCUMENT: dict[str, Any] = {
    "name": "small",
    "model": {
        "family": "llama",
        "num_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "vocab_size": 32000,
        "sequence_length": 1024,
    },
    "training": {"global_batch_size": 32},
    "cluster": {"accelerator": "a100-80gb", "num_devices": 8},
    "software": {"preset": "megatron-core"},
    "plan": {"micro_batch_size": 2, "pipeline_model_parallel_size": 2},
}


def scenario(**tables: Any) -> nestsim.Scenario:
    return nestsim.Scenario.from_dict({**DOCUMENT, **tables})


def tight(memory: str) -> nestsim.Scenario:
    """Return the scenario on devices of which as much is left."""
    reserve = {"memory_reserve": memory}
    return scenario(cluster={**DOCUMENT["cluster"], **reserve})


def test_stages_hold_what_the_account_of_the_plan_says() -> None:
    found = memory_job(scenario())
    assert found.memory is not None
    workload = build_workload(scenario(), scenario().software, None)
    plan = found.memory.plan
    table = workload.table(plan.degrees)
    for index, stage in enumerate(found.stages):
        account = memory_of_stage(workload, table, plan, index).device
        merged = dict(stage.parts)
        merged["activations"] += merged.pop("logits", 0.0)
        assert merged == pytest.approx(account)
        assert stage.needed == pytest.approx(workload.allocator.needed(stage.peak))
    assert "logits" not in found.stages[0].parts
    assert found.stages[1].parts["logits"] > 0.0


def test_what_is_needed_of_the_device_decides_as_tensors_do() -> None:
    found = memory_job(scenario())
    assert found.memory is not None
    for peak in (found.limits.device, 1.01 * found.limits.device):
        workload = build_workload(scenario(), scenario().software, None)
        fits = workload.allocator.needed(peak) <= found.device_memory * (1 + 1e-12)
        assert fits is (peak <= found.limits.device)


def test_a_tensor_list_adds_up_to_what_layers_keep() -> None:
    for preset in ("megatron-core", "deepspeed", "maxtext", "ideal"):
        for mode in ("none", "selective", "full"):
            plan = {**DOCUMENT["plan"], "recompute": mode}
            asked = scenario(software={"preset": preset}, plan=plan)
            for kept in memory_job(asked, explain=True).kept:
                listed = sum(tensor.num_bytes for tensor in kept.tensors)
                sizes = [tensor.num_bytes for tensor in kept.tensors]
                assert sizes == sorted(sizes, reverse=True)
                assert kept.rest or listed == pytest.approx(kept.total)
                assert listed <= kept.total + 0.5


def test_without_a_plan_the_thriftiest_configuration_is_taken() -> None:
    tables = {name: one for name, one in DOCUMENT.items() if name != "plan"}
    report = nestsim.memory(tables)
    assert not report.result.is_given
    narrow = nestsim.memory(tables, "tp=2,pp=1,b=2,zero=0,recompute=none")
    assert report.plan is not None
    assert narrow.plan is not None
    sizes = narrow.plan.parallel.sizes()
    assert (sizes.tp, sizes.pp, narrow.plan.micro_batch_size) == (2, 1, 2)
    assert narrow.plan.stages[0].recompute == "none"
    assert report.result.memory.needed < narrow.result.memory.needed  # type: ignore[union-attr]
    nothing = nestsim.memory(tables, "tp=3")
    assert not nothing.succeeded
    assert nothing.plan is None
    assert "launches no plan" in str(nothing)


@pytest.mark.parametrize("reserve", ["79 GiB", "79.9 GiB"])
def test_what_does_not_fit_is_told_with_what_would(reserve: str) -> None:
    report = nestsim.memory(tight(reserve))
    assert not report.succeeded
    text = str(report)
    assert "DOES NOT FIT" in text
    assert "too much" in text
    assert report.result.changes
    assert report.result.micro_batch is None


def test_a_network_makes_no_difference() -> None:
    path = ROOT / "scenarios" / "gpt3_175b_1024_h100.toml"
    whole = load_scenario(path)
    document = whole.document()
    cluster = {**document["cluster"], "num_devices": 1024}
    del cluster["network"]
    alone = nestsim.Scenario.from_dict({**document, "cluster": cluster}, path)
    ours, theirs = memory_job(alone), memory_job(whole)
    assert ours.stages == theirs.stages
    assert ours.limits == theirs.limits


@failures.over(
    "words", [["plan"], ["simulate"], ["topology"], ["stress"], ["collectives"]]
)
def test_other_commands_refuse_a_scenario_without_a_network(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(ROOT / "scenarios" / "memory" / "llama2_7b_8_a100.toml")
    assert main([*words, file, "--json", "--quiet"]) == WRONG_INPUT
    said = capsys.readouterr().err
    assert f"{file}: cluster.network: there is no network" in said
    assert "nestsim memory" in said


def test_devices_must_be_counted_somewhere() -> None:
    with pytest.raises(nestsim.InputError, match=r"cluster\.network: setting is miss"):
        scenario(cluster={"accelerator": "a100-80gb"})


@failures.over(
    ("words", "said"),
    [
        (["--tp", "0"], "--tp"),
        (["--micro-batch", "-1"], "--micro-batch"),
        (["--zero", "4"], "--zero"),
        (["--recompute", "all"], "--recompute"),
        (["--recompute", "full,tp=2"], "--recompute"),
        (["--tp", "3"], "plan.tensor_model_parallel_size"),
    ],
)
def test_wrong_sizes_are_refused_by_name(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(ROOT / "scenarios" / "memory" / "llama2_7b_8_a100.toml")
    assert main(["memory", file, "--quiet", *words]) == WRONG_INPUT
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_the_folder_has_record_and_figure(tmp_path: Path) -> None:
    report = nestsim.memory(scenario(), explain=True)
    report.save(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"memory.json", "memory.png", "manifest.json"}
    record = json.loads((tmp_path / "out" / "memory.json").read_text())
    assert record["fits"] is True
    assert [one["tensors_bytes"] for one in record["stages"]] == pytest.approx(
        [sum(one["parts_bytes"].values()) for one in record["stages"]]
    )
    assert sum(one["num_bytes"] for one in record["bytes_per_parameter"]) == 18
    frame = report.to_frame()
    peak = frame[(frame["stage"] == 0) & (frame["place"] == "device")]["num_bytes"]
    assert peak.sum() == pytest.approx(record["stages"][0]["needed_bytes"])


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_words_in_the_figure_can_be_read(tmp_path: Path, stages: int) -> None:
    plan = {**DOCUMENT["plan"], "pipeline_model_parallel_size": stages}
    result = memory_job(scenario(plan=plan))
    picture = draw(lambda path: draw_document(memory_document(result), path), tmp_path)
    assert picture.cut_off == []
    assert {"weights", "gradients", "optimizer"} <= {*picture.words}
    assert f"stage {stages - 1}" in picture.words


def test_a_measured_peak_of_megatron_is_what_is_counted() -> None:
    """GPT 7B on 8 H100, tp 4, the last rank: 53.2 GiB allocated."""
    name = "megatron-7b-tp4-h100-peak"
    rows = [row for table in published_measurements() for row in table.rows]
    (row,) = (row for row in rows if row.words("row_id") == name)
    predictor = Predictor()
    case = predictor.settled(read_case(row))
    workload = predictor.workload(case)
    rules = scenario().search.rules
    assert rules is not None
    job = MemoryJob(
        workload=workload,
        rules=rules,
        num_devices=case.num_devices,
        limits=MemoryLimits(workload.tensor_memory(), 0.0),
    )
    counted = workload.allocator.allocated(job.memory(case.plan).peaks[-1])
    assert counted == pytest.approx(measured_memory(row).value, rel=0.1)


BLOCK = re.compile(
    r"^```console\n(nestsim memory [^\n]*)\n```\n(.*?)^```text\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = BLOCK.findall(read(DOCS / "memory.md"))
    assert len(found) == 2
    for line, _, shown in found:
        capsys.readouterr()
        status = main([*shlex.split(line)[1:], "--quiet"])
        printed = capsys.readouterr().out
        assert status == (1 if "DOES NOT FIT" in printed else 0)
        lines = {one.rstrip() for one in printed.split("\n")}
        assert [one for one in shown.split("\n") if one not in lines] == []
