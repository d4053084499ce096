"""Plans written for Megatron-LM and read again."""

import csv
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from estimators.models.library import load_model, model_names
from nestsim.launch.formats.megatron.composed import Launched, read_model
from nestsim.launch.formats.megatron.gaps import model_gaps
from nestsim.launch.formats.megatron.options import GivenOptions
from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.formats.megatron.settings import model_options, script_of
from nestsim.launch.formats.megatron.writing import SCRIPT, write_megatron
from nestsim.launch.job import RANK_MAP, LaunchFiles, LaunchJob
from nestsim.launch.read import ImportedJob, LaunchSource
from nestsim.scenario.load import Scenario
from planner.plans.spec import PlanSpec
from tests import failures
from tests.nestsim.launch.megatron.small import CHANGED, small_scenario

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
    told = {"frees_gradients"} if scenario.execution.frees_gradients else set()
    assert {gap.setting for gap in files.gaps} == told
    imported = _read(files)
    assert imported.assumptions == ()
    assert imported.num_devices == job.plan.parallel.num_devices
    again = _again(scenario, imported)
    assert again.plan == job.plan
    family = scenario.spec.family
    assert replace(again.scenario.spec, family=family) == scenario.spec


@failures.over("name", FAST)
def test_a_published_plan_comes_back(name: str) -> None:
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_published_plan_comes_back(name: str) -> None:
    _check(name)


MADE_OF = {
    "order": "placement",
    "num_layers_per_pipeline_stage": "pipeline_model_parallel_layout",
}
"""Field -> what a gap of it is called."""


def test_all_fields_of_a_plan_are_tried() -> None:
    assert {one.name for one in fields(PlanSpec)} == set(CHANGED)


@failures.over("field", sorted(CHANGED))
def test_nothing_of_a_plan_is_dropped_silently(field: str) -> None:
    scenario = small_scenario(CHANGED[field])
    job, files = _written(scenario)
    told = {gap.setting for gap in files.gaps}
    assert all(gap.reason.endswith(".") for gap in files.gaps)
    if field in told or MADE_OF.get(field) in told:
        return
    again = _again(scenario, _read(files))
    assert again.plan == job.plan


@failures.over(
    ("field", "expected"),
    [
        ("virtual_pipeline_model_parallel_size", True),
        ("sharding_group_size", True),
        ("offload_optimizer", True),
        ("pipeline_model_parallel_layout", True),
        ("expert_tensor_parallel_size", True),
        ("hierarchical_context_parallel_sizes", True),
        ("microbatch_group_size_per_vp_stage", True),
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
    _, files = _written(small_scenario(CHANGED[field]))
    assert (files.gaps == ()) == expected


@failures.over(
    "setting",
    ["activation_func_fp8_input_store", "fp8_dot_product_attention", "frees_gradients"],
)
def test_what_saves_and_has_no_option_is_told(setting: str) -> None:
    _, files = _written(small_scenario({}, software={setting: True}))
    assert [gap.setting for gap in files.gaps] == [setting]
    if setting != "frees_gradients":
        # No command line has the field, so that it has its default there.
        config = pytest.importorskip("megatron.core.transformer.transformer_config")
        assert not config.TransformerConfig.__dataclass_fields__[setting].default


def test_biases_of_experts_that_are_split_are_told() -> None:
    """megatron-core: "Bias in Moe is only supported when ETP==1"."""
    for etp, told in ((None, True), (1, False)):
        plan = {"expert_model_parallel_size": 4, "expert_tensor_parallel_size": etp}
        plan = {name: one for name, one in plan.items() if one is not None}
        _, files = _written(small_scenario(plan, model={"add_bias_linear": True}))
        named = {gap.setting for gap in files.gaps}
        assert ("expert_tensor_parallel_size" in named) == told


def test_ranks_out_of_order_have_a_map_to_devices() -> None:
    job, files = _written(small_scenario(CHANGED["placement"]))
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
    scenario = small_scenario({"order": "tp-cp-ep-pp-dp"})
    job, files = _written(scenario)
    assert "--use-tp-pp-dp-mapping" in str(files.files[SCRIPT])
    assert set(files.files) == {SCRIPT}
    assert _again(scenario, _read(files)).plan == job.plan


@failures.over(
    ("setting", "value", "pairs"),
    [
        ("delay_wgrad_compute", True, True),
        ("moe_shared_expert_overlap", True, False),
        ("moe_flex_dispatcher_num_sms", 24, True),
    ],
)
def test_what_goes_on_beside_experts_comes_back(
    setting: str, value: object, pairs: bool
) -> None:
    plan = CHANGED["overlap_moe_expert_parallel_comm"]
    scenario = small_scenario(
        plan | {"overlap_moe_expert_parallel_comm": pairs},
        model={"moe_shared_expert_intermediate_size": 128},
        software={setting: value},
    )
    _, files = _written(scenario)
    assert files.gaps == ()
    imported = _read(files)
    assert imported.assumptions == ()
    assert imported.tables["software"][setting] == value
    if setting != "moe_flex_dispatcher_num_sms":
        # Megatron-LM refuses it where nothing is sent beside anything.
        other = small_scenario(
            plan | {"overlap_moe_expert_parallel_comm": not pairs},
            software={setting: value},
        )
        assert "--delay-wgrad-compute" not in str(_written(other)[1].files[SCRIPT])
        assert "--moe-shared-expert" not in str(_written(other)[1].files[SCRIPT])


def test_experts_do_not_go_with_the_other_order_of_ranks() -> None:
    plan = {"order": "tp-cp-ep-pp-dp", "expert_model_parallel_size": 2}
    _, files = _written(small_scenario(plan))
    assert "--use-tp-pp-dp-mapping" not in str(files.files[SCRIPT])
    assert [gap.setting for gap in files.gaps] == ["placement"]
    assert RANK_MAP in files.files


def test_what_megatron_would_refuse_is_told() -> None:
    """All-to-alls of a pipeline are hidden only where stages have chunks."""
    plan = CHANGED["overlap_moe_expert_parallel_comm"] | {
        "virtual_pipeline_model_parallel_size": 1
    }
    _, files = _written(small_scenario(plan))
    assert [gap.setting for gap in files.gaps] == ["expert_overlap"]
    assert "transformer_config.py" in files.gaps[0].reason


def test_zero_2_and_3_are_megatron_fsdp() -> None:
    for stage, word in ((2, "optim_grads"), (3, "optim_grads_params")):
        scenario = small_scenario(
            {"zero_stage": stage, "pipeline_model_parallel_size": 1}
        )
        job, files = _written(scenario)
        text = str(files.files[SCRIPT])
        assert f"--data-parallel-sharding-strategy {word}\n" in text
        assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in text
        assert _again(scenario, _read(files)).plan == job.plan


@failures.over(
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
        (
            {
                "kv_lora_rank": 64,
                "q_lora_rank": 96,
                "qk_pos_emb_head_dim": 32,
                "dsa_indexer_topk": 128,
                "dsa_indexer_n_heads": 2,
                "dsa_indexer_head_dim": 64,
            },
            None,
        ),
        ({"linear_attention_freq": 4, "linear_num_key_heads": 8}, None),
        (
            {
                "linear_attention_freq": [1, 0, 0, 1, 0, 1, 1, 0],
                "attention_output_gate": True,
            },
            None,
        ),
        (
            {"linear_attention_freq": 1, "linear_attention": "lightning"},
            "block_pattern",
        ),
    ],
)
def test_a_model_comes_back_or_is_a_gap(model: dict[str, Any], gap: str | None) -> None:
    scenario = small_scenario({}, model=model)
    _, files = _written(scenario)
    assert [one.setting for one in files.gaps] == ([gap] if gap else [])
    if gap is None:
        again = _again(scenario, _read(files))
        assert again.scenario.spec == scenario.spec


@failures.over(
    ("training", "gaps"),
    [
        ({"matmul_precision": "fp8", "fp8_param_gather": True}, []),
        ({"matmul_precision": "fp8-blockwise", "exp_avg_dtype": "bf16"}, []),
        ({"gradient_precision": "bf16"}, []),
        ({"precision": "fp16"}, []),
        ({"rampup_batch_size": [16, 16, 1000]}, []),
        ({"optimizer": "muon"}, ["overlap_param_gather"]),
        ({"optimizer": "adam8bit"}, ["optimizer"]),
        ({"moe_dispatch_precision": "fp8"}, ["moe_dispatch_precision"]),
        ({"reduce_precision": "bf16"}, ["reduce_precision"]),
    ],
)
def test_training_comes_back_or_is_a_gap(
    training: dict[str, Any], gaps: list[str]
) -> None:
    scenario = small_scenario({}, training=training)
    job, files = _written(scenario)
    assert [one.setting for one in files.gaps] == gaps
    if not gaps:
        again = _again(scenario, _read(files))
        assert again.scenario.training == scenario.training
        assert again.plan == job.plan


WITHOUT_WORDS = frozenset(
    {
        "activation_func",
        "attention_chunk_size",
        "attn_logit_softcapping",
        "block_pattern",
        "embedding_layernorm",
        "final_logit_softcapping",
        "hyper_connections",
        "layernorm_affine",
        "layernorm_bias",
        "mamba_chunk_size",
        "model",
        "moe_layer_freq",
        "moe_num_zero_experts",
        "ngram_embedding",
        "norm_placement",
        "num_residual_streams",
        "parallel_residual",
        "model.family",
        "position_embedding_type",
        "qk_l2_norm",
        "qk_layernorm_whole",
        "scale_embeddings",
    }
)
"""What published models have, and Megatron-LM has no options for."""


def test_models_of_the_library_come_back_or_are_gaps() -> None:
    whole = 0
    for name in model_names():
        model = load_model(name)
        given = GivenOptions(values=model_options(model))
        table = read_model(given, Launched(script=script_of(model)))
        gaps = list(model_gaps(model, table))
        assert {gap.setting for gap in gaps} <= WITHOUT_WORDS, name
        whole += not gaps
    assert whole >= 70
