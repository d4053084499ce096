"""Plans go out as DeepSpeed's files and come back: equal, or with the gap said."""

from dataclasses import fields

from hypothesis import HealthCheck, event, given, settings

from nestsim.launch.formats.deepspeed.writing import write_deepspeed
from nestsim.launch.job import LaunchJob
from nestsim.scenario.defaults import checked_plan
from nestsim.scenario.load import load_scenario
from planner.frameworks.framework import PRESETS
from planner.plans.spec import PlanSpec
from tests import failures
from tests.nestsim.ideal import SCENARIOS
from tests.nestsim.launch.jobs import (
    jobs,
    planned,
    read_back,
    rebuilt,
    small_job,
    specs,
)
from topologies import InputError


def test_the_shipped_scenario_comes_back_as_it_was(tmp_path):
    job = LaunchJob.of(load_scenario(SCENARIOS / "published/bloom_176b_384_a100.toml"))
    files = write_deepspeed(job)
    assert files.gaps == ()
    read = read_back(files, tmp_path)
    assert rebuilt(job, read) == job.plan
    assert read.tables["training"]["gradient_precision"] == "fp32"
    assert (read.num_devices, read.devices_per_node) == (384, 8)


@given(job=jobs())
@settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_is_written_comes_back_or_is_a_gap(job, tmp_path_factory):
    """No setting of a plan is dropped silently, whichever it is."""
    files = write_deepspeed(job)
    read = read_back(files, tmp_path_factory.mktemp("launch"))
    found = checked_plan(read.tables["plan"], PRESETS["deepspeed"])
    said = {gap.setting for gap in files.gaps}
    for field in fields(PlanSpec):
        wanted, has = getattr(job.settings, field.name), getattr(found, field.name)
        assert (wanted == has) != (field.name in said), field.name
    event("with gaps" if said else "without gaps")
    if not said:
        assert rebuilt(job, read) == job.plan
    assert all(gap.reason for gap in files.gaps)


ODD = {
    "virtual_pipeline_model_parallel_size": {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
    },
    "num_microbatches": {"micro_batch_size": 3, "num_microbatches": 1},
    "cp_comm_type": {"context_parallel_size": 2, "cp_comm_type": "all_gather"},
    "schedule": {"pipeline_model_parallel_size": 2, "schedule": "gpipe"},
    "zero_stage": {"pipeline_model_parallel_size": 2, "zero_stage": 2},
    "sharding_group_size": {"zero_stage": 3, "sharding_group_size": 4},
    "zero_hpz_partition_size": {
        "pipeline_model_parallel_size": 2,
        "zero_stage": 3,
        "zero_hpz_partition_size": 2,
    },
    "offload_gradients": {"zero_stage": 2, "offload_gradients": 1.0},
    "offload_optimizer": {"zero_stage": 2, "offload_optimizer": 0.5},
    "offload_weights": {"zero_stage": 1, "offload_weights": 1.0},
    "offload_activations": {"offload_activations": 1.0},
    "recompute": {"recompute": "stage"},
    "recompute_num_layers": {"recompute": "selective", "recompute_num_layers": 2},
    "gradient_algorithm": {"gradient_algorithm": "hierarchical"},
    "pipeline_model_parallel_layout": {
        "pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": (2, 6),
    },
}


@failures.over("setting", ODD)
def test_what_deepspeed_lacks_is_said(setting):
    job = planned(small_job(), PlanSpec(**{"micro_batch_size": 1, **ODD[setting]}))
    gaps = {gap.setting: gap for gap in write_deepspeed(job).gaps}
    assert setting in gaps
    assert "the launch has" in str(gaps[setting])


HAS = [
    {"zero_stage": 3},
    {"zero_stage": 3, "zero_hpz_partition_size": 8},
    {"zero_stage": 3, "zero_hpz_partition_size": 4, "context_parallel_size": 2}
    | {"cp_comm_type": "a2a"},
    {"zero_stage": 3, "offload_optimizer": 0.5, "offload_weights": 1.0},
    {"zero_stage": 2, "offload_optimizer": 1.0},
    {"zero_stage": 1, "recompute": "full", "offload_activations": 1.0},
    {"recompute": "full", "recompute_num_layers": 3},
    {"recompute": "selective", "tensor_model_parallel_size": 2},
    {"context_parallel_size": 2, "cp_comm_type": "a2a"},
    {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    {"gradient_algorithm": "ring", "tensor_algorithm": "ring"},
    {
        "pipeline_model_parallel_size": 4,
        "zero_stage": 1,
        "schedule": "zb-h1",
    },
    {
        "pipeline_model_parallel_size": 4,
        "tensor_model_parallel_size": 2,
        "zero_stage": 1,
        "order": "tp-cp-ep-pp-dp",
    },
    {
        "pipeline_model_parallel_size": 2,
        "data_parallel_size": 8,
        "zero_stage": 1,
        "placement": "tp1 dp4 pp2 dp2",
    },
    {"pipeline_model_parallel_size": 3, "data_parallel_size": 4, "zero_stage": 1}
    | {"pipeline_model_parallel_layout": (3, 3, 2)},
    {"pipeline_model_parallel_size": 5, "data_parallel_size": 2, "zero_stage": 1}
    | {"pipeline_model_parallel_layout": (1, 2, 2, 2, 1)},
]


@failures.over("given", HAS, ids=" ".join)
def test_what_deepspeed_has_comes_back(given, tmp_path):
    job = planned(small_job(), PlanSpec(**{"micro_batch_size": 1, **given}))
    files = write_deepspeed(job)
    assert [gap for gap in files.gaps if "." not in gap.setting] == []
    assert rebuilt(job, read_back(files, tmp_path)) == job.plan


def test_experts_come_back(tmp_path):
    spec = PlanSpec(
        micro_batch_size=1,
        tensor_model_parallel_size=2,
        expert_model_parallel_size=4,
        zero_stage=1,
    )
    job = planned(small_job("mixtral"), spec)
    files = write_deepspeed(job)
    assert {gap.setting for gap in files.gaps} == set()
    read = read_back(files, tmp_path)
    assert rebuilt(job, read) == job.plan
    assert read.tables["model"]["num_moe_experts"] == 4


@given(spec=specs())
@settings(max_examples=60)
def test_the_same_plan_gives_the_same_bytes(spec):
    try:
        job = planned(small_job(), spec)
    except InputError:
        return
    assert write_deepspeed(job).files == write_deepspeed(job).files


def test_a_plan_of_another_framework_says_what_changes():
    job = small_job(preset="nemo")
    said = {gap.setting for gap in write_deepspeed(job).gaps}
    assert "software.tp_comm_overlap" in said
