"""What all formats share: where plans come from, clusters, assumptions, errors."""

import json
from pathlib import Path

import numpy as np
import pytest

import nestsim
from nestsim.cli import main
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import ImportedJob, imported_scenario
from nestsim.launch.registry import WRITERS
from nestsim.scenario.load import Scenario, load_scenario
from planner.plans.build import build_plan
from tests import failures
from topologies.errors import InputError

SCENARIOS = Path(__file__).parents[3] / "scenarios"
JOB = SCENARIOS / "gpt_76b_1024_a100.toml"
HUB = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}

SMALL = """
name = "small"

[model]
name = "llama2-7b"
sequence_length = 512

[training]
global_batch_size = 32

[software]
preset = "megatron-core"

[cluster]
accelerator = "h100-sxm"

[cluster.network]
kind = "fat-tree"
nic = "device"
levels = [
    { name = "node", fan_out = 8, bandwidth = "450 GB/s", latency = "1 us" },
    { name = "leaf", fan_out = 2, bandwidth = "50 GB/s", latency = "1 us" },
]

[plan]
micro_batch_size = 1
zero_stage = 1
"""
FAMILIES = {
    "dense": ("llama3-8b", "sequence_length = 512"),
    "experts": ("mixtral-8x7b", "sequence_length = 512"),
    "encoder": ("bert-large", ""),
    "encoder and decoder": ("t5-base", ""),
    "mamba": ("nemotron-h-8b", "sequence_length = 512"),
    "vision": ("vit-b-32", ""),
}


@pytest.fixture(scope="module")
def job() -> LaunchJob:
    return LaunchJob.of(load_scenario(JOB))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "hub" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(HUB))
    return path


def test_a_plan_is_built_again_of_its_settings(job: LaunchJob) -> None:
    assert build_plan(job.network, job.workload, job.settings) == job.plan


def test_ranks_in_the_plans_own_order_are_their_devices(job: LaunchJob) -> None:
    assert job.is_in_order("tp-cp-ep-dp-pp")
    assert not job.is_in_order("tp-cp-ep-pp-dp")


def test_another_order_of_ranks_names_the_same_groups(job: LaunchJob) -> None:
    # tp 8, pp 4, dp 32: rank r of order tp-pp-dp is (tp, pp, dp) = (r % 8, r // 8 % 4,
    # r // 32), whose device in order tp-dp-pp is tp + 8 dp + 256 pp.
    ranks = np.arange(1024)
    expected = ranks % 8 + 8 * (ranks // 32) + 256 * (ranks // 8 % 4)
    assert job.devices_of_ranks("tp-cp-ep-pp-dp").tolist() == expected.tolist()


def test_blocks_of_virtual_stages_add_up_to_the_model(job: LaunchJob) -> None:
    assert sum(job.blocks_by_virtual_stage()) == job.num_blocks == 60
    assert len(job.blocks_by_virtual_stage()) == 4 * 3


def test_an_export_of_the_plan_is_simulated_as_the_same_plan(
    tmp_path: Path, job: LaunchJob
) -> None:
    report = nestsim.export(JOB, "plan")
    report.save(tmp_path / "out")
    table = Scenario.from_toml(
        job.scenario.text.decode().partition("[plan]")[0]
        + (tmp_path / "out" / "plan.toml").read_text(),
        JOB,
    )
    assert LaunchJob.of(table).plan == job.plan
    again = nestsim.export(JOB, "plan", plan=tmp_path / "out" / "plan.json")
    assert again.launch.files == report.launch.files


def test_a_folder_of_results_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: LaunchJob
) -> None:
    (tmp_path / "scenario.toml").write_bytes(JOB.read_bytes())
    written = nestsim.export(JOB, "plan").launch.files
    (tmp_path / "plan.json").write_text(str(written["plan.json"]))
    for source in (tmp_path, tmp_path / "plan.json"):
        assert main(["export", str(source), "--to", "plan", "-q"]) == 0
        assert capsys.readouterr().out == written["plan.toml"]
    assert main(["export", str(tmp_path), "--to", "plan", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == written


def test_a_scenario_without_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    main_scenario = SCENARIOS / "llama2_7b_64_h100.toml"
    assert main(["export", str(main_scenario), "--to", "plan", "-q"]) == 2
    assert "there is no plan" in capsys.readouterr().err


def test_an_unknown_format_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(JOB), "--to", "plam"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("--to: no such format")
    assert 'did you mean "plan"?' in error


def test_a_model_of_the_hub_is_imported(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "job.toml"
    command = ["import", str(config), "--num-devices", "16", "-o", str(place)]
    assert main(command) == 0
    said = capsys.readouterr()
    assert said.out == ""
    scenario = load_scenario(place)
    assert scenario.spec.num_layers == HUB["num_hidden_layers"]
    assert scenario.network_spec.num_devices == 16
    text = place.read_text()
    for line in said.err.splitlines():
        if line.startswith("Assumed: "):
            words = line.removeprefix("Assumed: ")
            plain = " ".join(text.replace("\n#  ", "").split())
            assert words in plain.replace("# - ", "").replace(" # ", " ")
    assert said.err.count("Assumed: ") == 5
    assert main(command) == 0, "it is ours, and replaced"
    place.write_text("# mine\n")
    assert main(command) == 2
    assert place.read_text() == "# mine\n"


def test_the_cluster_of_another_scenario_is_taken(config: Path) -> None:
    report = nestsim.import_launch(config, cluster=JOB)
    assert report.scenario.network_spec == load_scenario(JOB).network_spec
    assert report.scenario.accelerator.name == "a100-80gb"


def test_a_system_is_a_cluster_and_the_usual_one_of_a_device_is_assumed(
    config: Path,
) -> None:
    given = {"num_devices": 16}
    named = nestsim.import_launch(config, given=given, cluster="aws-p4d").scenario
    assert named.accelerator.name == "a100-40gb"
    assert named.network_spec.num_devices == 16
    assumed = nestsim.import_launch(config, given=given, accelerator="b200")
    assert assumed.scenario.document()["cluster"]["system"] == "dgx-b200"
    assert any('system "dgx-b200"' in text for text in assumed.notices)
    # No system has these: links of the data sheet, and a usual adapter for each.
    other = nestsim.import_launch(config, given=given, accelerator="a800").scenario
    inside, outside = other.document()["cluster"]["network"]["levels"]
    assert (inside["fan_out"], inside["bandwidth"]) == (8, "200000000000.0 B/s")
    assert (outside["fan_out"], outside["bandwidth"]) == (2, "50000000000.0 B/s")
    with pytest.raises(InputError, match=r"(?s)--cluster: unknown system.*dgx-h100"):
        nestsim.import_launch(config, given=given, cluster="dgx-h10")
    with pytest.raises(InputError, match="multiple of 8"):
        nestsim.import_launch(config, given={"num_devices": 12}, cluster="dgx-h100")


def test_a_cluster_without_network_is_taken_for_answers_about_memory(
    config: Path,
) -> None:
    alone = SCENARIOS / "memory" / "llama2_7b_8_a100.toml"
    report = nestsim.import_launch(config, cluster=alone)
    assert report.scenario.document()["cluster"] == {
        "accelerator": "a100-80gb",
        "num_devices": 8,
    }


def test_files_of_another_scenarios_cluster_are_found(config: Path) -> None:
    custom = SCENARIOS / "custom_network.toml"
    report = nestsim.import_launch(config, cluster=custom)
    expected = load_scenario(custom).network_spec.num_devices
    assert report.scenario.network_spec.num_devices == expected


@failures.over(
    ("given", "words"),
    [
        ({}, "nothing says how many devices"),
        ({"num_devices": 12}, "do not fill whole nodes"),
    ],
)
def test_a_cluster_that_nothing_tells_is_refused(
    config: Path, given: dict[str, int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        nestsim.import_launch(config, given=given)


def test_a_file_of_no_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "poem.txt"
    file.write_text("O my Luve's like a red, red rose\n")
    assert main(["import", str(file), "--num-devices", "8"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{file}: is no launch configuration that is known")
    assert "Traceback" not in error


@failures.over(
    ("name", "text"),
    [
        ("typo.sh", "torchrun pretrain_gpt.py --num-layers 2 --hiden-size 8\n"),
        ("ds.json", '{"zero_optimization": {"stage": 7}}'),
        ("broken.json", '{"zero_optimization": '),
        ("titan.toml", '[model]\nname = "llama3"\n[parallelism]\nno_such = 1\n'),
        ("max.yml", "base_config: base.yml\nici_no_parallelism: 4\n"),
    ],
)
def test_a_refusal_names_the_file_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert main(["import", str(file), "--num-devices", "8"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{file}: ")
    assert error.splitlines()[0].count(str(file)) == 1
    assert "expected:" in error


@failures.over("value", ["NNODES", "=8", "A B=1"])
def test_a_variable_without_name_or_value_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert main(["import", str(config), "--set", value]) == 2
    assert capsys.readouterr().err.startswith("--set: is not the value of a variable")


def test_what_is_imported_cannot_break_out_of_the_heading() -> None:
    job = ImportedJob(
        name='a" [plan]',
        tables={
            "model": {"name": "llama2-7b"},
            "training": {"global_batch_size": 8},
        },
        num_devices=8,
        devices_per_node=8,
        assumptions=("one\n[search]\nkeep_best = 1",),
    )
    made = imported_scenario(job, Path("x.toml"), origin="a\nb")
    assert made.scenario.plan is None
    assert made.scenario.search.keep_best != 1


def test_sums_in_switches_are_told_to_those_who_launch(job: LaunchJob) -> None:
    text = SMALL.replace('nic = "device"', 'nic = "device"\nsharp = true')
    plan = text + '\ngradient_algorithm = "sharp"\n'
    told = nestsim.export(Scenario.from_toml(plan), "megatron").notices
    assert any("NCCL_COLLNET_ENABLE=1" in one for one in told)
    silent = nestsim.export(Scenario.from_toml(SMALL), "megatron").notices
    assert not any("NCCL_COLLNET" in one for one in silent)


@failures.over("model", FAMILIES)
@failures.over("to", sorted({*WRITERS} - {"chakra", "verl"}))
def test_every_family_is_written_or_refused_in_a_sentence(model: str, to: str) -> None:
    name, length = FAMILIES[model]
    table = f'[model]\nname = "{name}"\n{length}'
    text = SMALL.replace('[model]\nname = "llama2-7b"\nsequence_length = 512', table)
    report = nestsim.export(Scenario.from_toml(text), to)
    assert report.launch.files
    assert all(gap.reason.endswith(".") for gap in report.launch.gaps)


UNPLANNED, _, _ = SMALL.partition("[plan]")
MIXED = f"""{UNPLANNED.replace('accelerator = "h100-sxm"', "")}
[[cluster.groups]]
accelerator = "h100-sxm"
num_devices = 8

[[cluster.groups]]
accelerator = "a100-80gb"
num_devices = 8

[plan]
micro_batch_size = 1
pipeline_model_parallel_size = 2
placement = "tp1 dp8 pp2, slow first"
"""


@failures.over("to", sorted({*WRITERS} - {"plan", "chakra", "verl"}))
def test_nodes_in_another_order_are_told_or_mapped(to: str) -> None:
    report = nestsim.export(Scenario.from_toml(MIXED), to)
    (gap,) = (one for one in report.launch.gaps if one.setting == "placement")
    assert gap.value == "tp1 dp8 pp2, slow first"
    if to == "maxtext":
        assert "rank_map.csv" not in report.launch.files
        assert "order of their numbers" in gap.reason
    else:
        lines = str(report.launch.files["rank_map.csv"]).splitlines()
        assert [lines[1], lines[9]] == ["0,1,0", "8,0,0"]
        assert "rank_map.csv" in gap.reason


def test_a_plan_with_nodes_in_another_order_is_exported_and_built_again() -> None:
    job = LaunchJob.of(Scenario.from_toml(MIXED))
    assert job.plan.stages[0].devices[0] == (8,)
    assert job.settings.placement == "tp1 dp8 pp2, slow first"
    assert build_plan(job.network, job.workload, job.settings) == job.plan
