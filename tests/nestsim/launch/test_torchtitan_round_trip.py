"""Plans that go out to torchtitan come back as they were, or gaps say what does not."""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.launch.formats.torchtitan.writing import (
    SCRIPT_FILE,
    TOML_FILE,
    write_torchtitan,
)
from nestsim.launch.job import RANK_MAP, LaunchFiles, LaunchJob
from nestsim.launch.read import imported_scenario
from nestsim.scenario.editing import toml_text
from nestsim.scenario.load import Scenario
from planner.plans.spec import PlanSpec
from tests import failures
from tests.nestsim.launch.torchtitan_jobs import (
    DENSE,
    EXPERTS,
    PATH,
    read_back,
    read_text,
    small_job,
    text_of,
)
from topologies.errors import InputError

FILES = (TOML_FILE, SCRIPT_FILE)

PLANS: tuple[Mapping[str, Any], ...] = (
    {},
    {"zero_stage": 2},
    {"zero_stage": 0},
    {"sharding_group_size": 8},
    {"zero_stage": 2, "sharding_group_size": 8},
    {"tensor_model_parallel_size": 8, "recompute": "full"},
    {"tensor_model_parallel_size": 2, "recompute": "selective"},
    {"context_parallel_size": 2, "cp_comm_type": "all_gather"},
    {"pipeline_model_parallel_size": 2, "zero_stage": 2},
    {"pipeline_model_parallel_size": 4, "micro_batch_size": 2},
    {"pipeline_model_parallel_size": 4, "schedule": "gpipe"},
    {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 4},
    {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": [1, 3, 3, 1],
    },
    {
        "pipeline_model_parallel_size": 4,
        "pipeline_model_parallel_layout": [2, 3, 2, 1],
    },
    {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "schedule": "zb-v",
    },
    {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "schedule": "dualpipe-v",
    },
    {
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 4,
        "zero_stage": 3,
    },
    {"offload_weights": 1.0, "offload_gradients": 1.0, "offload_optimizer": 1.0},
)
"""Plans that both versions have words for."""


@failures.over("file", FILES)
@failures.over("plan", PLANS, ids=str)
def test_a_plan_comes_back_as_it_was(plan: Mapping[str, Any], file: str) -> None:
    job = small_job(plan)
    files = write_torchtitan(job)
    assert files.gaps == ()
    again = read_back(job, files, file)
    assert again.plan == job.plan
    assert again.training == job.training
    assert again.workload.execution == job.workload.execution
    assert again.model == job.model


@failures.over("file", FILES)
def test_experts_come_back_as_they_were(file: str) -> None:
    plan = {
        "tensor_model_parallel_size": 2,
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": True,
    }
    job = small_job(plan, model=EXPERTS)
    files = write_torchtitan(job)
    assert files.gaps == ()
    again = read_back(job, files, file)
    assert again.plan == job.plan
    assert again.model == job.model


@failures.over("file", FILES)
@failures.over(
    ("training", "software"),
    [
        ({"matmul_precision": "fp8"}, {}),
        ({"matmul_precision": "mxfp8"}, {}),
        ({"precision": "fp32"}, {}),
        ({"optimizer": "adam-bf16", "weights_in_fp32": False,
          "gradient_precision": "bf16"}, {}),
        ({}, {"tp_comm_overlap": True}),
    ],
    ids=str,
)  # fmt: skip
def test_training_comes_back_as_it_was(
    training: dict[str, Any], software: dict[str, Any], file: str
) -> None:
    plan = {"tensor_model_parallel_size": 2}
    job = small_job(plan, training=training, software=software, accelerator="b200")
    files = write_torchtitan(job)
    assert files.gaps == ()
    again = read_back(job, files, file)
    assert again.training == job.training
    assert again.workload.execution == job.workload.execution


OTHERS: Mapping[str, Mapping[str, Any]] = {
    "micro_batch_size": {"micro_batch_size": 2},
    "tensor_model_parallel_size": {"tensor_model_parallel_size": 2},
    "pipeline_model_parallel_size": {"pipeline_model_parallel_size": 2},
    "virtual_pipeline_model_parallel_size": {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
    },
    "data_parallel_size": {"data_parallel_size": 16},
    "num_microbatches": {"num_microbatches": 2, "micro_batch_size": 3},
    "context_parallel_size": {"context_parallel_size": 2},
    "expert_model_parallel_size": {"expert_model_parallel_size": 8},
    "expert_tensor_parallel_size": {
        "tensor_model_parallel_size": 4,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 2,
        "sequence_parallel": True,
    },
    "cp_comm_type": {"context_parallel_size": 2, "cp_comm_type": "a2a"},
    "hierarchical_context_parallel_sizes": {
        "context_parallel_size": 4,
        "cp_comm_type": "a2a+p2p",
        "hierarchical_context_parallel_sizes": [2, 2],
    },
    "sequence_parallel": {"tensor_model_parallel_size": 2, "sequence_parallel": False},
    "schedule": {"pipeline_model_parallel_size": 2, "schedule": "zb-h1"},
    "overlap_moe_expert_parallel_comm": {
        "expert_model_parallel_size": 8,
        "overlap_moe_expert_parallel_comm": True,
    },
    "recompute": {"pipeline_model_parallel_size": 2, "recompute": ["full", "none"]},
    "recompute_modules": {
        "recompute": "selective",
        "recompute_modules": ["layernorm"],
    },
    "zero_stage": {"zero_stage": 1},
    "sharding_group_size": {"sharding_group_size": 8},
    "zero_hpz_partition_size": {"zero_stage": 3, "zero_hpz_partition_size": 8},
    "reshard_after_forward": {"zero_stage": 3, "reshard_after_forward": 8},
    "microbatch_group_size_per_vp_stage": {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "microbatch_group_size_per_vp_stage": 4,
    },
    "recompute_num_layers": {"recompute": "full", "recompute_num_layers": 3},
    "offload_weights": {"offload_weights": 0.5},
    "offload_gradients": {"offload_gradients": 1.0},
    "offload_optimizer": {"offload_optimizer": 1.0},
    "offload_activations": {"offload_activations": 0.5},
    "num_layers_in_first_pipeline_stage": {
        "pipeline_model_parallel_size": 2,
        "num_layers_in_first_pipeline_stage": 3,
    },
    "num_layers_in_last_pipeline_stage": {
        "pipeline_model_parallel_size": 2,
        "num_layers_in_last_pipeline_stage": 3,
    },
    "num_layers_per_pipeline_stage": {
        "pipeline_model_parallel_size": 2,
        "num_layers_per_pipeline_stage": [3, 5],
    },
    "pipeline_model_parallel_layout": {
        "pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": [3, 5],
    },
    "account_for_embedding_in_pipeline_split": {
        "pipeline_model_parallel_size": 2,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    },
    "account_for_loss_in_pipeline_split": {
        "pipeline_model_parallel_size": 2,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    },
    "order": {"pipeline_model_parallel_size": 2, "order": "tp-cp-ep-pp-dp"},
    "placement": {
        "pipeline_model_parallel_size": 2,
        "placement": "tp1 pp2 dp8",
    },
    "gradient_algorithm": {"gradient_algorithm": "halving-doubling"},
    "tensor_algorithm": {
        "tensor_model_parallel_size": 2,
        "tensor_algorithm": "halving-doubling",
    },
}
"""Field of a plan -> a plan in which it is not what it usually is."""


def test_every_field_of_a_plan_is_tried() -> None:
    assert set(OTHERS) == {field.name for field in dataclasses.fields(PlanSpec)}


@failures.over("field", OTHERS)
def test_no_setting_of_a_plan_is_dropped_silently(field: str) -> None:
    model = EXPERTS if "expert" in field else DENSE
    job = small_job(OTHERS[field], model=model)
    files = write_torchtitan(job)
    for file in FILES:
        lacking = named(files, file)
        try:
            again = read_back(job, files, file)
        except InputError:
            assert lacking
            continue
        differing = {
            one.name
            for one in dataclasses.fields(PlanSpec)
            if getattr(again.settings, one.name) != getattr(job.settings, one.name)
        }
        if again.training.global_batch_size != job.training.global_batch_size:
            differing.add("training.global_batch_size")
        assert differing <= lacking | {"num_microbatches"} & lacking
        assert again.plan == job.plan or lacking


def named(files: LaunchFiles, file: str) -> set[str]:
    """Return the settings that a file is said not to have."""
    less = [note for note in files.notes if note.startswith(f"{file} is not quite")]
    gaps = {gap.setting for gap in files.gaps}
    return gaps | {name for note in less for name in re.findall(r"(\w+) = ", note)}


@st.composite
def _plans(draw: st.DrawFn) -> dict[str, Any]:
    """Draw plans for sixteen devices that torchtitan can start."""
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 2] if tp * pp < 16 else [1]))
    plan: dict[str, Any] = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "cp_comm_type": draw(st.sampled_from(["p2p", "all_gather"])),
        "micro_batch_size": draw(st.sampled_from([1, 2])),
        "zero_stage": draw(st.sampled_from([0, 2, 3])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
    }
    if pp > 1:
        chunks = draw(st.sampled_from([1, 2]))
        plan["virtual_pipeline_model_parallel_size"] = chunks
        parts = pp * chunks
        counts = [1] * parts
        for _ in range(8 - parts):
            counts[draw(st.integers(0, parts - 1))] += 1
        plan["pipeline_model_parallel_layout"] = counts
        if chunks == 2:
            names = ["interleaved-1f1b", "zb-v", "dualpipe-v"]
            plan["schedule"] = draw(st.sampled_from(names))
        else:
            plan["schedule"] = draw(st.sampled_from(["1f1b", "gpipe"]))
    return plan


@given(plan=_plans())
@settings(max_examples=60)
def test_plans_drawn_at_random_come_back(plan: dict[str, Any]) -> None:
    job = small_job(plan)
    files = write_torchtitan(job)
    for file in FILES:
        lacking = named(files, file)
        try:
            again = read_back(job, files, file)
        except InputError:
            # A group of the ranks of one sequence is none of this network's.
            assert "zero_stage" in lacking
            continue
        if not lacking:
            assert again.plan == job.plan
        differing = {
            one.name
            for one in dataclasses.fields(PlanSpec)
            if getattr(again.settings, one.name) != getattr(job.settings, one.name)
        }
        # Where nothing is shared, there is no group either.
        assert differing <= lacking | ({"sharding_group_size"} if lacking else set())


def test_files_are_the_same_each_time() -> None:
    plan = {"pipeline_model_parallel_size": 4, "order": "tp-cp-ep-pp-dp"}
    first, second = write_torchtitan(small_job(plan)), write_torchtitan(small_job(plan))
    assert first == second


def test_a_model_without_a_flavor_says_what_one_needs() -> None:
    job = small_job({}, model={"name": "gpt3-1.3b", "sequence_length": 128})
    files = write_torchtitan(job)
    (gap,) = (one for one in files.gaps if one.setting == "model")
    assert "num_layers 24" in gap.reason
    assert "hidden_size 2048" in gap.reason
    # Nor is it taken for a Llama of these sizes when it is read.
    with pytest.raises(InputError, match="my_gpt"):
        read_back(job, files, TOML_FILE)


@failures.over("name", ["gpt_76b_1024_a100", "deepseek_v3_2048_h800"])
def test_plans_of_other_frameworks_are_written_with_what_they_lose(name: str) -> None:
    path = Path(__file__).parents[3] / "scenarios" / f"{name}.toml"
    job = LaunchJob.of(Scenario.from_toml(path.read_text(), path))
    files = write_torchtitan(job)
    assert {"zero_stage", "training.weights_in_fp32"} <= {g.setting for g in files.gaps}
    assert set(files.files) == set(FILES)


def test_a_plan_of_another_framework_says_what_torchtitan_does_otherwise() -> None:
    job = small_job({"zero_stage": 1}, preset="megatron-core")
    lacking = {gap.setting for gap in write_torchtitan(job).gaps}
    assert {
        "zero_stage",
        "training.weights_in_fp32",
        "training.casts_gradients",
    } <= lacking


def test_ranks_out_of_order_are_listed_with_their_devices() -> None:
    plan = {"pipeline_model_parallel_size": 2, "order": "tp-cp-ep-pp-dp"}
    files = write_torchtitan(small_job(plan))
    # Rank 1 is the second replica of the first stage: device 2, behind the second
    # stage of the first replica.
    assert "\n1,0,2\n" in text_of(files, RANK_MAP)


@failures.over(
    ("changes", "written"),
    [
        ({}, {}),
        ({"sites.count": 4}, {"group_size": 4}),
        ({"sites.outer_optimizer": "average"}, {"semi_sync_method": "local_sgd"}),
    ],
)
def test_replica_groups_come_back_as_sites_have_them(changes, written) -> None:
    """With the batch of all groups, of which a site has its share."""
    groups = {"enable": True, "group_size": 3, "semi_sync_method": "diloco"}
    groups |= {"sync_steps": 10, "num_fragments": 2}
    document = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"seq_len": 8192, "global_batch_size": 192},
        "parallelism": {"data_parallel_shard_degree": 8},
        "fault_tolerance": groups,
    }
    imported = read_text(toml_text(document))
    scenario = imported_scenario(imported, PATH, origin="a file").scenario
    if "sites.outer_optimizer" in changes:
        changes |= {"sites.fragments": 1}
    scenario = scenario.replace(changes)
    files = write_torchtitan(LaunchJob.of(scenario))
    # What was changed since is a gap, and nothing else.
    gaps = [gap.setting for gap in files.gaps if "fault_tolerance" in gap.setting]
    assert gaps == [f"fault_tolerance.{name}" for name in written]
    options = tomllib.loads(text_of(files, TOML_FILE))
    assert options["fault_tolerance"].items() >= {"enable": True, **written}.items()
    assert options["training"]["global_batch_size"] == 64 * scenario.sites.count
    assert read_text(text_of(files, TOML_FILE)).tables["sites"].items() <= (
        scenario.document()["sites"].items()
    )
