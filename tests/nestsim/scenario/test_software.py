"""[software]: what a framework does holds where the scenario is silent, only there."""

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from estimators.training import TrainingSpec
from nestsim.cli import main
from nestsim.evaluate.cluster import build_job, cluster_network, cluster_software
from nestsim.evaluate.job import plan_job
from nestsim.features.run.assumptions import assumptions_json, assumptions_rows
from nestsim.scenario import Scenario, load_scenario
from nestsim.scenario.base import settings
from nestsim.scenario.software import DEFAULT_PRESET, SoftwareTable, checked_software
from planner.frameworks.framework import FRAMEWORKS, PRESETS
from planner.step.execution import Execution
from tests import failures
from topologies.accelerators import load_accelerator
from topologies.errors import InputError

JOB = """
name = "a job"
[model]
name = "gpt3-125m"
[training]
global_batch_size = 16
{training}
[cluster]
accelerator = "h100-sxm"
[cluster.network]
kind = "fat-tree"
[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "450 GB/s"
latency = "1 us"
[[cluster.network.levels]]
name = "leaf"
fan_out = 2
bandwidth = "200 GB/s"
latency = "2 us"
{tables}
"""

EXECUTED = {
    "overlap_grad_reduce": False,
    "overlap_param_gather": True,
    "frees_gradients": True,
    "overlap_p2p_comm": False,
    "tp_comm_overlap": False,
    "cpu_adam": False,
    "communication_slowdown": 1.25,
    "expert_communication_slowdown": 1.5,
    "delay_wgrad_compute": True,
    "moe_shared_expert_overlap": True,
    "expert_skew": 2.0,
}
"""None of them as `Execution` has it, but for what some presets change."""

MOVED = [
    name
    for name in EXECUTED
    if name
    not in {
        *("cpu_adam", "expert_communication_slowdown", "frees_gradients"),
        *("delay_wgrad_compute", "moe_shared_expert_overlap"),
    }
]
"""Those that stood in [simulation] once."""

PLAN = "[plan]\nmicro_batch_size = 2"


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load_tables(*tables: str, training: str = "") -> Scenario:
        path = tmp_path / "job.toml"
        text = JOB.format(training=training, tables="\n".join(tables))
        path.write_text(text, encoding="utf-8")
        return load_scenario(path)

    return load_tables


def preset(name: str) -> str:
    return f'[software]\npreset = "{name}"'


@failures.over("name", PRESETS)
def test_a_preset_fills_in_what_the_scenario_leaves_out(name: str, load: Any) -> None:
    scenario, known = load(preset(name), PLAN), PRESETS[name]
    assert scenario.software == known.software
    assert scenario.execution == known.execution
    training = scenario.training
    assert training.gradient_precision == known.gradients["bf16"]
    assert training.weights_in_fp32 == known.weights_in_fp32
    assert training.gradient_copies == known.gradient_copies
    assert training.gather_precision == known.gather
    assert training.reduce_precision == known.reduce
    assert scenario.plan.zero_stage == known.zero_stage
    assert scenario.plan.recompute == known.recompute
    assert scenario.plan.sequence_parallel == known.sequence_parallel
    rules = FRAMEWORKS[name].rules
    assert scenario.search.zero_stages == rules.usual_zero_stages
    assert {*rules.usual_zero_stages} <= {*rules.zero_stages}
    assert known.zero_stage in scenario.search.zero_stages


@failures.over("name", PRESETS)
def test_what_the_scenario_says_wins_over_every_preset(name: str, load: Any) -> None:
    software = """
        attention_kernel = "flash"
        compiled = true
        saves_products = true
        collective_library = false"""
    lines = [f"{key} = {json.dumps(value)}" for key, value in EXECUTED.items()]
    scenario = load(
        "\n".join([preset(name) + software, *lines]),
        "[search]\nzero_stages = [2]",
        f'{PLAN}\nzero_stage = 2\nrecompute = "full"\nsequence_parallel = true',
        training="""
            gradient_precision = "bf16"
            weights_in_fp32 = false
            gradient_copies = false
            gather_precision = "fp8"
            reduce_precision = "fp16"
            matmul_precision = "fp8"
        """,
    )
    assert scenario.execution == Execution(**EXECUTED)
    assert scenario.search.zero_stages == (2,)
    plan, training = scenario.plan, scenario.training
    assert (plan.zero_stage, plan.recompute) == (2, "full")
    assert plan.sequence_parallel
    assert training.parameter_bytes[:5] == (2, 2, 12, 1, 2)
    assert training.matmul_precision == "fp8"
    found = scenario.software
    assert (found.attention_kernel, found.compiled) == ("flash", True)
    assert (found.saves_products, found.library) == (True, False)
    assert found.name == PRESETS[name].software.name


def test_without_the_table_a_framework_is_assumed_and_told(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent, named = load(PLAN), load(preset(DEFAULT_PRESET), PLAN)
    assert silent.software_preset == DEFAULT_PRESET == "megatron-core"
    for part in ("software", "execution", "training", "search", "plan"):
        assert getattr(silent, part) == getattr(named, part)
    load(PLAN)
    assert main(["simulate", str(tmp_path / "job.toml")]) == 0
    printed = capsys.readouterr()
    assert "software.preset is left out: megatron-core" in printed.err
    assert "IDEAL" not in printed.out


def test_a_verdict_says_that_it_is_of_nobody_s_software(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ideal = load(preset("ideal"), PLAN)
    assert ideal.execution == Execution()
    assert ideal.training.parameter_bytes[:5] == (2, 4, 12, 2, 4)
    assert main(["simulate", str(tmp_path / "job.toml")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("CONFIRMED, IDEAL SOFTWARE")
    assert "left out" not in printed.err
    assert main(["memory", str(tmp_path / "job.toml")]) == 0
    assert capsys.readouterr().out.startswith("FITS, IDEAL SOFTWARE")


def test_a_habit_gives_way_to_an_optimizer_that_it_does_not_go_with(load: Any) -> None:
    training = 'optimizer = "adam-bf16"'
    assert not load(preset("fsdp"), training=training).training.weights_in_fp32
    with pytest.raises(InputError, match="does not go with weights_in_fp32") as caught:
        load(training=f"{training}\nweights_in_fp32 = true")
    assert caught.value.where.endswith("training.optimizer")


@failures.over(
    ("preset", "written", "expected"),
    [
        ("torchtitan", {"torch_compile": True}, (True, True)),
        ("torchtitan", {"torch_compile": True, "fuses_loss": False}, (True, False)),
        ("torchtitan", {}, (False, False)),
        ("fsdp", {"torch_compile": True}, (True, False)),
        ("fsdp", {"fuses_loss": True}, (False, True)),
    ],
)
def test_torch_compile_makes_blocks_and_torchtitans_loss(
    preset: str, written: dict[str, bool], expected: tuple[bool, bool]
) -> None:
    software = SoftwareTable(preset=preset, **written).build()  # type: ignore[arg-type]
    assert (software.repeats_elementwise, software.fuses_loss) == expected


def test_everything_of_an_execution_can_be_written() -> None:
    names = {field.name for field in fields(Execution)}
    assert set(EXECUTED) == names
    assert names <= set(settings(SoftwareTable))


@failures.over("name", MOVED)
def test_the_old_place_of_a_setting_is_read_with_a_notice(name: str, load: Any) -> None:
    line = f"{name} = {json.dumps(EXECUTED[name])}"
    new = load(f"{preset('megatron-core')}\n{line}")
    assert new.notes == ()
    old = load(preset("megatron-core"), f"[simulation]\n{line}")
    assert old.execution == new.execution
    assert getattr(old.execution, name) == EXECUTED[name]
    assert old.simulation == new.simulation
    (told,) = old.notes
    assert told.startswith(f"{old.path}: simulation.{name} has moved to software.")
    assert f"software.{name};" in told


@failures.over("name", MOVED)
def test_a_setting_at_its_old_and_its_new_place_is_refused(
    name: str, load: Any
) -> None:
    line = f"{name} = {json.dumps(EXECUTED[name])}"
    with pytest.raises(InputError, match="is set in \\[software\\], too") as caught:
        load(f"{preset('fsdp')}\n{line}", f"[simulation]\n{line}")
    assert caught.value.where.endswith(f"simulation.{name}")
    assert f"software.{name}" in caught.value.expected


def test_a_notice_goes_to_standard_error_once_and_not_with_quiet(
    load: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(load(PLAN, "[simulation]\nexpert_skew = 2.0").path)
    for options, expected in (([], 1), (["--quiet"], 0)):
        assert main(["simulate", path, *options]) == 0
        captured = capsys.readouterr()
        assert captured.err.count("has moved to software.expert_skew") == expected
        assert "has moved" not in captured.out


@failures.over(
    ("tables", "training", "where", "words"),
    [
        *(
            (f"[{table}]\n{line}", "", f"{table}.{line.split()[0]}", words)
            for table in ("software", "simulation")
            for line, words in (
                ("communication_slowdown = 0.5", "must be at least 1"),
                ("tp_comm_overlap = 1", "true or false"),
            )
        ),
        (preset("megatron"), "", "software.preset", 'did you mean "megatron-core"'),
        ("[software]\npreset = 3", "", "software.preset", "megatron-core"),
        ('[software]\ncompiled = "yes"', "", "software.compiled", "true or false"),
        ("[software]\noverlap = true", "", "software.overlap", "unknown setting"),
        ("", 'matmul_precision = "fp4"', "training.matmul_precision", '"fp8"'),
        ("", 'matmul_precision = "bf16"', "training.matmul_precision", '"fp4"'),
        ("", 'gather_precision = "int8"', "training.gather_precision", '"fp8"'),
    ],
)
def test_mistakes_are_told_by_the_setting_with_what_is_accepted(
    tables: str, training: str, where: str, words: str, load: Any
) -> None:
    with pytest.raises(InputError) as caught:
        load(tables, training=training)
    assert caught.value.where.endswith(where)
    assert words in str(caught.value)


def test_an_accelerator_without_any_narrow_format_says_so(tmp_path: Path) -> None:
    text = JOB.format(training='matmul_precision = "fp8"', tables="")
    path = tmp_path / "job.toml"
    path.write_text(text.replace("h100-sxm", "a100-80gb"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert caught.value.expected == "none: leave it out"


def test_software_is_told_how_large_the_nodes_are(load: Any) -> None:
    scenario = load(preset("megatron-core"))
    found = cluster_software(scenario, cluster_network(scenario))
    assert found.many_nodes
    assert found.num_ranks == 8
    assert found.ranks_per_node == 4
    assert found.moe_token_dispatcher_type == "flex"
    plain = load(preset("fsdp"))
    found = cluster_software(plain, cluster_network(plain))
    assert found.moe_token_dispatcher_type == "alltoall"
    text = JOB.format(training="", tables="").replace("fan_out = 2", "fan_out = 1")
    scenario.path.write_text(text, encoding="utf-8")
    one = load_scenario(scenario.path)
    assert not cluster_software(one, cluster_network(one)).many_nodes


def test_a_framework_is_slower_than_nothing_but_the_device(load: Any) -> None:
    search = """
[search]
tensor_model_parallel_sizes = [1]
pipeline_model_parallel_sizes = [1]
micro_batch_sizes = [1]
recompute = ["none"]
zero_stages = [0]
keep_best = 1
"""
    times = {}
    captured = f"{preset('megatron-lm')}\ncuda_graphs = true"
    tables = {name: preset(name) for name in ("ideal", "megatron-lm", "maxtext")}
    for name, table in (*tables.items(), ("captured", captured)):
        result = plan_job(load(table, search))
        (candidate,) = result.candidates
        times[name] = candidate.planned.iteration_time
        said = assumptions_json(result.assumptions)
        graphs = "full_iteration" if name == "captured" else "none"
        assert said["cuda_graphs"] == graphs
        assert said["software"] == result.assumptions.preset
        assert (
            name in tables
            or "CUDA graph" in assumptions_rows(result.assumptions)["software"]
        )
    # A small model waits for the host, unless it is launched as a graph.
    assert times["ideal"] < times["maxtext"] < times["megatron-lm"]
    assert times["ideal"] < times["captured"] < times["megatron-lm"]


def test_the_software_reaches_the_workload(load: Any) -> None:
    scenario = load(preset("fsdp"), PLAN)
    network, workload = build_job(scenario, None)
    assert workload.software == cluster_software(scenario, network)
    assert workload.software.name == scenario.software.name
    assert workload.execution == scenario.execution == PRESETS["fsdp"].execution


def test_reports_say_which_software_was_assumed(
    load: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = load(preset("megatron-core"), PLAN, training='matmul_precision = "fp8"').path
    main(["simulate", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)["assumptions"]
    assert found["software"] == "megatron-core"
    assert found["overlap_grad_reduce"]
    assert found["matmul_precision"] == "fp8"
    assert found["bytes_per_parameter"]["reduce"] == 4
    assert found["operator_times"]["measured"] is False
    assert found["operator_times"]["device"] == "h100-sxm"
    main(["simulate", str(path), "-v", "-o", str(tmp_path / "out")])
    text = capsys.readouterr().out
    assert "megatron-core: kernels launched one by one" in text
    assert "products with weights in fp8" in text
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["software"] == "megatron-core"
    assert manifest["operator_times"] == found["operator_times"]


def test_words_follow_what_was_assumed(load: Any) -> None:
    tables = [f"{preset('fsdp')}\noverlap_p2p_comm = false"]
    result = plan_job(load(*tables, "[search]\nkeep_best = 1\nwork_limit = 1_000_000"))
    rows = assumptions_rows(result.assumptions)
    assert rows["overlaps"] == "gradient reduction, parameter gathering"
    assert "weights kept in fp32" in rows["number formats"]
    assert rows["operator times"] == "from the rates of h100-sxm"


def test_a_report_says_what_is_kept_free_beside_tensors() -> None:
    """The allocator's part is stated, and absent where tensors are all there is."""
    stated = {}
    for preset in ("ideal", "megatron-core"):
        assumed = SimpleNamespace(
            network=(),
            preset=preset,
            software=PRESETS[preset].software,
            execution=PRESETS[preset].execution,
            training=TrainingSpec(global_batch_size=8),
            parameter_bytes=TrainingSpec(global_batch_size=8).parameter_bytes,
            constants=None,
            links=None,
            profile=None,
            accelerator=load_accelerator("h100-sxm"),
            accelerator_name="h100-sxm",
            groups=(),
        )
        stated[preset] = assumptions_rows(assumed)
    assert "memory" not in stated["ideal"]
    assert "fragmentation" in stated["megatron-core"]["memory"]


def test_the_search_keeps_to_what_the_framework_launches_unless_told(load: Any) -> None:
    search = load(preset("megatron-core"), PLAN).search
    assert search.rules is FRAMEWORKS["megatron-core"].rules
    assert (search.launchable, search.idle_devices) == (True, False)
    free = "[search]\nlaunchable = false\nidle_devices = true"
    search = load(preset("deepspeed"), free, PLAN).search
    assert search.rules is FRAMEWORKS["deepspeed"].rules
    assert (search.launchable, search.idle_devices) == (False, True)


def test_modules_that_are_not_heeded_are_refused() -> None:
    table = {"preset": "torchtitan", "recompute_modules": ["mlp"]}
    with pytest.raises(InputError, match="is not heeded") as caught:
        checked_software(table).build()
    assert caught.value.where == "software.recompute_modules"
    software = checked_software(table | {"saves_products": False}).build()
    assert software.recompute_modules == ("mlp",)
