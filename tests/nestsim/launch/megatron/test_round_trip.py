"""Plans written for Megatron-LM and read again."""

import csv
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from nestsim.launch.formats.megatron.read import read_megatron
from nestsim.launch.formats.megatron.write import RANK_MAP, SCRIPT, write_megatron
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import ImportedJob, LaunchSource
from nestsim.launch.written import LaunchFiles
from nestsim.scenario.load import Scenario
from planner.plans.spec import PlanSpec

SCENARIOS = Path("scenarios")
FAST = (
    "published/bloom_176b_384_a100",
    "published/megatron_mixtral_8x7b_64_h100",
    "published/sc21_gpt_530b_2520_a100",
)
SLOW = sorted(
    f"published/{path.stem}"
    for path in (SCENARIOS / "published").glob("*.toml")
    if f"published/{path.stem}" not in FAST
)


def _written(scenario: Scenario) -> tuple[LaunchJob, LaunchFiles]:
    job = LaunchJob.of(scenario)
    return job, write_megatron(job)


def _read(files: LaunchFiles) -> ImportedJob:
    text = files.files[SCRIPT]
    assert isinstance(text, str)
    return read_megatron(LaunchSource(path=Path(SCRIPT), text=text))


def _again(scenario: Scenario, imported: ImportedJob) -> LaunchJob:
    """Return the job that was read, on the cluster of the one that was written."""
    document = {
        "name": "again",
        **imported.tables,
        "cluster": scenario.document()["cluster"],
    }
    return LaunchJob.of(Scenario.from_dict(document, path=scenario.path))


def _check(name: str) -> None:
    scenario = Scenario.from_file(SCENARIOS / f"{name}.toml")
    job, files = _written(scenario)
    assert files.gaps == ()
    imported = _read(files)
    assert imported.assumptions == ()
    assert imported.num_devices == job.plan.parallel.num_devices
    again = _again(scenario, imported)
    assert again.plan == job.plan
    family = scenario.spec.family
    assert replace(again.scenario.spec, family=family) == scenario.spec


@pytest.mark.parametrize("name", FAST)
def test_a_published_plan_comes_back(name: str) -> None:
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_published_plan_comes_back(name: str) -> None:
    _check(name)


MODEL = {
    "family": "mixtral",
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 1024,
    "sequence_length": 256,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
}
CLUSTER = {
    "accelerator": "h100-sxm",
    "num_devices": 16,
    "network": {
        "kind": "fat-tree",
        "nic": "device",
        "levels": [
            {
                "name": "node",
                "fan_out": 8,
                "bandwidth": "450 GB/s",
                "latency": "500 ns",
                "efficiency": 0.8,
            },
            {
                "name": "fabric",
                "fan_out": 2,
                "bandwidth": "400 Gbit/s",
                "latency": "1 us",
                "efficiency": 0.9,
            },
        ],
    },
}
PLAN = {
    "micro_batch_size": 1,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "sequence_parallel": True,
    "zero_stage": 1,
    "recompute": "none",
}


def _scenario(plan: dict[str, Any], **tables: dict[str, Any]) -> Scenario:
    return Scenario.from_dict(
        {
            "name": "small",
            "model": MODEL | tables.get("model", {}),
            "training": {"global_batch_size": 64} | tables.get("training", {}),
            "software": {"preset": "megatron-core"} | tables.get("software", {}),
            "cluster": CLUSTER,
            "plan": PLAN | plan,
        }
    )


CHANGED: dict[str, dict[str, Any]] = {
    "micro_batch_size": {"micro_batch_size": 2},
    "tensor_model_parallel_size": {"tensor_model_parallel_size": 4},
    "pipeline_model_parallel_size": {"pipeline_model_parallel_size": 4},
    "virtual_pipeline_model_parallel_size": {"virtual_pipeline_model_parallel_size": 2},
    "data_parallel_size": {"data_parallel_size": 2},
    "num_microbatches": {"num_microbatches": 6, "micro_batch_size": 3},
    "context_parallel_size": {"context_parallel_size": 2},
    "expert_model_parallel_size": {"expert_model_parallel_size": 4},
    "expert_tensor_parallel_size": {
        "expert_tensor_parallel_size": 1,
        "expert_model_parallel_size": 4,
    },
    "cp_comm_type": {"context_parallel_size": 2, "cp_comm_type": "all_gather"},
    "hierarchical_context_parallel_sizes": {
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 4,
        "cp_comm_type": "a2a+p2p",
        "hierarchical_context_parallel_sizes": [2, 2],
    },
    "sequence_parallel": {"sequence_parallel": False},
    "schedule": {"schedule": "gpipe"},
    "overlap_moe_expert_parallel_comm": {
        "overlap_moe_expert_parallel_comm": True,
        "expert_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 2,
    },
    "recompute": {"recompute": ["full", "none"]},
    "zero_stage": {"zero_stage": [1, 0]},
    "sharding_group_size": {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "sharding_group_size": 8,
    },
    "recompute_num_layers": {"recompute": "full", "recompute_num_layers": 2},
    "offload_weights": {"offload_weights": 0.5},
    "offload_gradients": {"offload_gradients": 0.5},
    "offload_optimizer": {"offload_optimizer": 0.25},
    "offload_activations": {"offload_activations": 0.5},
    "num_layers_in_first_pipeline_stage": {"num_layers_in_first_pipeline_stage": 3},
    "num_layers_in_last_pipeline_stage": {"num_layers_in_last_pipeline_stage": 3},
    "num_layers_per_pipeline_stage": {
        "pipeline_model_parallel_size": 4,
        "num_layers_per_pipeline_stage": [1, 3, 2, 2],
    },
    "pipeline_model_parallel_layout": {
        "virtual_pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": [1, 3, 3, 1],
    },
    "account_for_embedding_in_pipeline_split": {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    },
    "account_for_loss_in_pipeline_split": {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
        "pipeline_model_parallel_size": 1,
    },
    "order": {"order": "tp-cp-pp-ep-dp", "expert_model_parallel_size": 2},
    "placement": {"placement": "tp2 pp2 ep2 dp2", "expert_model_parallel_size": 2},
    "gradient_algorithm": {"gradient_algorithm": "double-binary-tree"},
    "tensor_algorithm": {"tensor_algorithm": "double-binary-tree"},
}
"""Field of a plan -> settings in which it is not its default."""

MADE_OF = {
    "order": "placement",
    "num_layers_per_pipeline_stage": "layout",
    "pipeline_model_parallel_layout": "layout",
}
"""Field -> what a gap of it is called."""


def test_all_fields_of_a_plan_are_tried() -> None:
    assert {one.name for one in fields(PlanSpec)} == set(CHANGED)


@pytest.mark.parametrize("field", sorted(CHANGED))
def test_nothing_of_a_plan_is_dropped_silently(field: str) -> None:
    scenario = _scenario(CHANGED[field])
    job, files = _written(scenario)
    told = {gap.setting for gap in files.gaps}
    assert all(gap.reason.endswith(".") for gap in files.gaps)
    if field in told or MADE_OF.get(field) in told:
        return
    again = _again(scenario, _read(files))
    assert again.plan == job.plan


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("virtual_pipeline_model_parallel_size", True),
        ("sharding_group_size", True),
        ("offload_optimizer", True),
        ("pipeline_model_parallel_layout", True),
        ("expert_tensor_parallel_size", True),
        ("hierarchical_context_parallel_sizes", True),
        ("overlap_moe_expert_parallel_comm", True),
        ("num_layers_in_last_pipeline_stage", True),
        ("schedule", False),
        ("placement", False),
        ("num_microbatches", False),
        ("recompute", False),
        ("offload_gradients", False),
        ("gradient_algorithm", False),
    ],
)
def test_what_megatron_has_options_for_is_no_gap(field: str, expected: bool) -> None:
    _, files = _written(_scenario(CHANGED[field]))
    assert (files.gaps == ()) == expected


def test_ranks_out_of_order_have_a_map_to_devices() -> None:
    job, files = _written(_scenario(CHANGED["placement"]))
    table = files.files[RANK_MAP]
    assert isinstance(table, str)
    rows = [list(map(int, row)) for row in list(csv.reader(table.splitlines()))[1:]]
    devices = [8 * node + device for _, node, device in rows]
    assert [rank for rank, _, _ in rows] == list(range(16))
    # Megatron's rank: tp fastest, then dp, then the stage.
    for rank, device in enumerate(devices):
        tp, dp, pp = rank % 2, rank // 2 % 4, rank // 8
        assert job.plan.stages[pp].devices[dp][tp] == device
    assert _read(files).num_devices == 16


def test_the_other_order_of_ranks_is_an_option() -> None:
    scenario = _scenario({"order": "tp-cp-ep-pp-dp"})
    job, files = _written(scenario)
    assert "--use-tp-pp-dp-mapping" in str(files.files[SCRIPT])
    assert set(files.files) == {SCRIPT}
    assert _again(scenario, _read(files)).plan == job.plan


def test_zero_2_and_3_are_megatron_fsdp() -> None:
    for stage, word in ((2, "optim_grads"), (3, "optim_grads_params")):
        scenario = _scenario({"zero_stage": stage, "pipeline_model_parallel_size": 1})
        job, files = _written(scenario)
        text = str(files.files[SCRIPT])
        assert f"--data-parallel-sharding-strategy {word}\n" in text
        assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in text
        assert _again(scenario, _read(files)).plan == job.plan


@pytest.mark.parametrize(
    ("model", "gap"),
    [
        ({"norm_placement": "sandwich"}, "norm_placement"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type"),
        ({"embedding_layernorm": True}, "embedding_layernorm"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ({"activation_func": "gelu"}, "activation_func"),
        ({"window_size": 64, "window_attn_skip_freq": 2}, None),
        ({"moe_layer_freq": "[0]*3+[1]*5"}, None),
        ({"moe_shared_expert_intermediate_size": 128}, None),
        ({"qk_layernorm": True, "add_qkv_bias": True}, None),
        ({"mtp_num_layers": 1}, None),
        (
            {
                "kv_lora_rank": 64,
                "q_lora_rank": 96,
                "qk_pos_emb_head_dim": 32,
                "v_head_dim": 64,
                "kv_channels": 64,
            },
            None,
        ),
    ],
)
def test_a_model_comes_back_or_is_a_gap(model: dict[str, Any], gap: str | None) -> None:
    scenario = _scenario({}, model=model)
    _, files = _written(scenario)
    assert [one.setting for one in files.gaps] == ([gap] if gap else [])
    if gap is None:
        again = _again(scenario, _read(files))
        assert again.scenario.spec == scenario.spec


@pytest.mark.parametrize(
    ("training", "gaps"),
    [
        ({"matmul_precision": "fp8", "fp8_param_gather": True}, []),
        ({"matmul_precision": "fp8-blockwise", "exp_avg_dtype": "bf16"}, []),
        ({"gradient_precision": "bf16"}, []),
        ({"precision": "fp16"}, []),
        ({"optimizer": "muon"}, ["overlap_param_gather"]),
        ({"optimizer": "adam8bit"}, ["optimizer"]),
        ({"moe_dispatch_precision": "fp8"}, ["moe_dispatch_precision"]),
        ({"reduce_precision": "bf16"}, ["reduce_precision"]),
    ],
)
def test_training_comes_back_or_is_a_gap(
    training: dict[str, Any], gaps: list[str]
) -> None:
    scenario = _scenario({}, training=training)
    job, files = _written(scenario)
    assert [one.setting for one in files.gaps] == gaps
    if not gaps:
        again = _again(scenario, _read(files))
        assert again.scenario.training == scenario.training
        assert again.plan == job.plan
