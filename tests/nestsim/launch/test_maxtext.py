"""Plans for MaxText and back, and its published scripts as people read them."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.models.library import load_model
from nestsim.launch.formats.maxtext.reading import read_maxtext
from nestsim.launch.formats.maxtext.sources import MODELS, OPTIONS, TABLE
from nestsim.launch.formats.maxtext.writing import SCRIPT_FILE, YAML_FILE, write_maxtext
from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.launch.read import ImportedJob, LaunchSource, imported_scenario
from nestsim.launch.readers import find_reader
from planner.plans.spec import PlanSpec
from tests import failures
from tests.nestsim.launch.test_torchtitan_round_trip import OTHERS
from tests.nestsim.launch.torchtitan_jobs import (
    DENSE,
    EXPERTS,
    PATH,
    small_job,
    text_of,
)
from topologies.errors import InputError


def read_text(
    text: str, *, num_devices: int | None = None, path: Path = PATH
) -> ImportedJob:
    return read_maxtext(LaunchSource(path=path, text=text, num_devices=num_devices))


def read_back(job: LaunchJob, files: LaunchFiles) -> LaunchJob:
    imported = read_text(text_of(files, YAML_FILE))
    read = imported_scenario(imported, PATH, origin=YAML_FILE, cluster=job.scenario)
    return LaunchJob.of(read.scenario)


def maxtext_job(plan: Mapping[str, Any], **more: Any) -> LaunchJob:
    return small_job({"recompute": "full", **plan}, preset="maxtext", **more)


PLANS: tuple[Mapping[str, Any], ...] = (
    {},
    {"zero_stage": 0},
    {"zero_stage": 1},
    {"sharding_group_size": 8},
    {"recompute": "none"},
    {"recompute": "selective"},
    {"tensor_model_parallel_size": 4},
    {"tensor_model_parallel_size": 4, "sequence_parallel": True},
    {"context_parallel_size": 2, "cp_comm_type": "all_gather"},
    {"context_parallel_size": 2, "cp_comm_type": "p2p"},
    {"pipeline_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 2, "zero_stage": 2},
    {"pipeline_model_parallel_size": 4, "tensor_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 4},
    {"micro_batch_size": 2},
    {"offload_weights": 1.0, "offload_optimizer": 1.0},
    {"offload_activations": 1.0},
)


@failures.over("plan", PLANS, ids=str)
def test_a_plan_comes_back_as_it_was(plan: Mapping[str, Any]) -> None:
    job = maxtext_job(plan)
    files = write_maxtext(job)
    assert files.gaps == ()
    again = read_back(job, files)
    assert again.plan == job.plan
    assert again.training == job.training
    assert again.model == job.model


@failures.over(
    "training",
    [
        {"precision": "fp32", "gradient_precision": "fp32"},
        {"gradient_precision": "fp32"},
        {"matmul_precision": "fp8"},
        {"matmul_precision": "int8"},
        {"optimizer": "sgd"},
        {"optimizer": "muon"},
        {"optimizer": "adam-bf16", "weights_in_fp32": False},
    ],
    ids=str,
)
def test_training_comes_back_as_it_was(training: dict[str, Any]) -> None:
    job = maxtext_job({}, training=training, accelerator="mi300x")
    files = write_maxtext(job)
    # "FP8 quantization is not compatible with gradient accumulation" (types.py).
    refused = ["training.matmul_precision"] * ("fp8" in training.values())
    assert [gap.setting for gap in files.gaps] == refused
    assert read_back(job, files).training == job.training


def test_experts_come_back_as_they_were() -> None:
    job = maxtext_job({"expert_model_parallel_size": 8}, model=EXPERTS)
    files = write_maxtext(job)
    assert files.gaps == ()
    again = read_back(job, files)
    assert again.plan == job.plan
    assert again.model == job.model


def test_layers_of_gemma_2_are_pairs_of_blocks() -> None:
    """``base_num_decoder_layers`` is 21 of 42, and a pipeline is made of these."""
    model = {"name": "gemma2-9b", "sequence_length": 4096}
    for pp, layers in ((3, 7), (7, 3), (2, None)):
        plan = {"pipeline_model_parallel_size": pp, "data_parallel_size": 1}
        job = maxtext_job(plan, model=model, training={"global_batch_size": 42})
        files = write_maxtext(job)
        named = {gap.setting for gap in files.gaps}
        assert ("pipeline_model_parallel_size" in named) == (layers is None)
        options = yaml.safe_load(text_of(files, YAML_FILE))
        if layers is not None:
            # types.py: stages x repeats x layers of a stage are the model's layers.
            assert options["num_layers_per_pipeline_stage"] == layers
            assert options["num_pipeline_repeats"] == 1
            read = read_text(text_of(files, YAML_FILE)).tables["plan"]
            assert read["virtual_pipeline_model_parallel_size"] == 1


@failures.over(
    # Its pipelines take all microbatches in turn: groups of them are refused.
    "field",
    [name for name in OTHERS if name != "microbatch_group_size_per_vp_stage"],
)
def test_no_setting_of_a_plan_is_dropped_silently(field: str) -> None:
    model = EXPERTS if "expert" in field else DENSE
    mode = {"recompute": "none"} if field.startswith("overlap") else {}
    job = maxtext_job({**mode, **OTHERS[field]}, model=model)
    files = write_maxtext(job)
    told = {gap.setting for gap in files.gaps}
    try:
        again = read_back(job, files)
    except InputError:
        assert told
        return
    differing = {
        one.name
        for one in dataclasses.fields(PlanSpec)
        if getattr(again.settings, one.name) != getattr(job.settings, one.name)
    }
    assert differing <= told | ({"placement", "order"} if told else set())
    assert again.plan == job.plan or told


def test_what_is_written_is_plain_yaml_with_names_of_base_yml() -> None:
    job = maxtext_job({"pipeline_model_parallel_size": 2, "recompute": "none"})
    document = yaml.safe_load(text_of(write_maxtext(job), YAML_FILE))
    assert set(document) <= {*OPTIONS, *TABLE.silent, *TABLE.assumed}
    for name, value in document.items():
        if name in OPTIONS:
            default = OPTIONS[name].default
            wanted = (int, float) if isinstance(default, float) else type(default)
            assert isinstance(value, wanted), name
            assert not OPTIONS[name].choices or value in OPTIONS[name].choices


def test_the_script_starts_the_trainer_of_the_package() -> None:
    """`python -m tests.frameworks maxtext` looks for the module in MaxText 0.2.5."""
    files = write_maxtext(maxtext_job({}))
    script = text_of(files, SCRIPT_FILE)
    assert "python3 -m maxtext.trainers.pre_train.train maxtext.yml" in script
    source = LaunchSource(path=Path(SCRIPT_FILE), text=script)
    assert find_reader(source).title.endswith("MaxText")


def test_devices_that_fill_no_mesh_in_order_are_a_gap() -> None:
    files = write_maxtext(maxtext_job({**OTHERS["order"]}))
    # Stages inside a node, replicas in and among nodes.
    assert {gap.setting for gap in files.gaps} == {"order"}


def test_tpus_are_one_slice() -> None:
    job = maxtext_job({"tensor_model_parallel_size": 2}, accelerator="tpu-v5p")
    files = write_maxtext(job)
    document = yaml.safe_load(text_of(files, YAML_FILE))
    assert document["hardware"] == "tpu"
    assert document["ici_fsdp_parallelism"] == 8
    assert document["dcn_data_parallelism"] == 1
    assert read_back(job, files).plan == job.plan


def test_every_model_of_the_table_is_in_the_library() -> None:
    for name in MODELS.values():
        assert load_model(name).num_layers


# Facts of MaxText's own scripts at 2025: src/MaxText/configs/v5p/llama2_70b.sh,
# a3/llama_3.1_405b/128vm.sh, experimental/128b.sh, models/gpu/mixtral_8x7b.yml.
LLAMA2_70B = """
set -e
export EXECUTABLE="train" # or train_compile
export DATASET_TYPE="synthetic"
python3 -m MaxText.$EXECUTABLE "${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}}/"\
configs/base.yml model_name=llama2-70b\\
  base_output_directory=$OUTPUT_PATH dataset_path=${DATASET_PATH}\\
  remat_policy=save_dot_except_mlpwi per_device_batch_size=4\\
  steps=30 enable_checkpointing=false use_iota_embed=true max_target_length=4096\\
  dataset_type=$DATASET_TYPE reuse_example_batch=1
"""
LLAMA3_405B = """
export RUN_NAME="llama-31-128vm-$(date +%Y-%m-%d-%H-%M)"
export XLA_FLAGS="--xla_dump_to=$OUTPUT_PATH/
--xla_gpu_enable_latency_hiding_scheduler=true"
# 128 nodes
python3 -m MaxText.train configs/models/llama3.1_405b.yml run_name=$RUN_NAME \\
    base_config=base.yml hardware=gpu steps=10 model_name=llama3.1-405b \\
    enable_checkpointing: False attention=cudnn_flash_te remat_policy=full \\
    scan_layers=True per_device_batch_size=1.0 max_target_length=8192 \\
    dcn_fsdp_parallelism=128 ici_fsdp_parallelism=8 dcn_data_parallelism=1
"""
WIDE_128B = """
python3 -m MaxText.train configs/base.yml run_name=$RUN_NAME\\
    steps=30 per_device_batch_size=2 remat_policy=minimal global_parameter_scale=128\\
    ici_fsdp_parallelism=-1 ici_tensor_parallelism=8\\
    max_target_length=2048 attention='flash' quantization=""
"""
MIXTRAL = """
base_config: "base.yml"
model_name: "mixtral-8x7b"
hardware: "gpu"
per_device_batch_size: 12
max_target_length: 4096
attention: "cudnn_flash_te"
remat_policy: "minimal_with_context"
megablox: False
capacity_factor: 1.0
"""


def test_llama_2_70b_of_the_repository_is_fsdp_of_4_sequences_a_chip() -> None:
    job = read_text(LLAMA2_70B, num_devices=256)
    assert job.tables["model"] == {"name": "llama2-70b", "sequence_length": 4096}
    plan = job.tables["plan"]
    assert (plan["data_parallel_size"], plan["zero_stage"]) == (256, 3)
    assert (plan["micro_batch_size"], plan["recompute"]) == (4, "selective")
    # 4 M tokens, as the script says.
    assert job.tables["training"]["global_batch_size"] * 4096 == 2**22
    assert any("mlpwi" in one for one in job.assumptions)


def test_llama_3_405b_of_the_repository_is_fsdp_over_128_nodes() -> None:
    job = read_text(LLAMA3_405B)
    plan = job.tables["plan"]
    assert (job.num_devices, job.devices_per_node) == (1024, 8)
    assert (plan["data_parallel_size"], plan["recompute"]) == (1024, "full")
    assert "sharding_group_size" not in plan
    assert job.tables["training"]["global_batch_size"] == 1024
    assert job.tables["software"]["attention_kernel"] == "fused"
    assert any("llama3.1_405b.yml" in one for one in job.assumptions)


def test_128b_of_the_repository_is_a_llama_scaled_by_128() -> None:
    job = read_text(WIDE_128B, num_devices=256)
    model, plan = job.tables["model"], job.tables["plan"]
    assert (model["hidden_size"], model["num_layers"]) == (8192, 64)
    assert (model["num_attention_heads"], model["ffn_hidden_size"]) == (128, 57344)
    assert (plan["tensor_model_parallel_size"], plan["data_parallel_size"]) == (8, 32)
    assert plan["micro_batch_size"] == 16
    scenario = imported_scenario(job, PATH, origin="128b.sh").scenario
    blocks = model["num_layers"] * (4 * 8192 * 128 * 128 + 3 * 8192 * 57344)
    assert blocks == pytest.approx(125e9, rel=0.01)
    assert scenario.spec.kv_channels == 128


def test_the_command_is_found_where_another_hands_it_on() -> None:
    """As xpk, ssh and containers are given it; other programs do not train."""
    script = (
        "python3 MaxText/convert.py in out\nBATCH=4\n"
        'xpk workload create --command "echo start; python3 -m MaxText.train '
        "MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=${BATCH} "
        'ici_fsdp_parallelism=${FSDP} run_name=$NAME"\n'
    )
    source = LaunchSource(path=PATH, text=script, num_devices=8)
    with pytest.raises(InputError, match="--set FSDP=VALUE"):
        read_maxtext(source)
    told = dataclasses.replace(source, variables={"FSDP": "8", "BATCH": "2"})
    plan = read_maxtext(told).tables["plan"]
    assert (plan["data_parallel_size"], plan["micro_batch_size"]) == (8, 2)


def test_mixtral_of_the_repository_is_a_yaml_file() -> None:
    assert find_reader(LaunchSource(path=PATH, text=MIXTRAL)).title.endswith("MaxText")
    job = read_text(MIXTRAL, num_devices=16)
    assert job.tables["model"]["name"] == "mixtral-8x7b"
    assert job.tables["training"]["global_batch_size"] == 12 * 16
    plan = job.tables["plan"]
    # Two nodes of eight: replicas among them, shards inside.
    assert (plan["zero_stage"], plan["sharding_group_size"]) == (3, 8)
    assert "A node has 8 devices." in job.assumptions
    assert job.options.without_effect == ("base_config",)
    assert job.options.assumed == ("megablox", "capacity_factor")


def test_a_file_is_built_on_another(tmp_path: Path) -> None:
    (tmp_path / "parent.yml").write_text(MIXTRAL)
    text = 'base_config: "parent.yml"\nper_device_batch_size: 3\n'
    job = read_text(text, num_devices=8, path=tmp_path / "child.yml")
    assert job.tables["training"]["global_batch_size"] == 24
    (tmp_path / "self.yml").write_text('base_config: "self.yml"')
    with pytest.raises(InputError, match="too many files"):
        read_text('base_config: "self.yml"', path=tmp_path / "self.yml")


def test_a_slice_to_compile_for_says_how_many_devices_there_are() -> None:
    text = "model_name: llama2-7b\nremat_policy: full\ncompile_topology: "
    job = read_text(text + "v5p-512\ncompile_topology_num_slices: 2")
    assert job.num_devices == 512
    assert job.tables["plan"]["sharding_group_size"] == 256
    assert read_text(text + "v5e-256").num_devices == 256


REFUSED = [
    ("remat_polcy: full", "remat_policy"),
    ("remat_policy: most", "minimal"),
    ("per_device_batch_size: many", "a number"),
    ("per_device_batch_size: 0.3", "multiple"),
    ("model_name: gpt5", "--model"),
    ("ici_tensor_parallelism: 0", "one -1"),
    ("ici_sequence_parallelism: 2", "no plan has"),
    ("ici_tensor_parallelism: 3", "multiple"),
    ("ici_pipeline_parallelism: 2\nnum_pipeline_microbatches: 3", "multiple of 2"),
    ("ici_pipeline_parallelism: 8\nnum_layers_per_pipeline_stage: 3", "product"),
    ("ici_pipeline_parallelism: 2\npipeline_parallel_layers: 30", "-1"),
    ("dtype: float8", "bfloat16"),
    ("quantization: int2", "int8"),
    ("global_parameter_scale: 3\nmodel_name: default", "1, 2, 4"),
    ("compile_topology: v9-8", "v5p-512"),
    ("- a\n- b", "YAML"),
]


@failures.over(("text", "word"), REFUSED, ids=str)
def test_what_is_not_understood_is_refused(text: str, word: str) -> None:
    usual = {"model_name": "llama2-7b", "per_device_batch_size": 1}
    if not text.startswith("-"):
        names = {line.partition(":")[0] for line in text.splitlines()}
        rest = {name: value for name, value in usual.items() if name not in names}
        text = "\n".join([text, *(f"{k}: {json.dumps(v)}" for k, v in rest.items())])
    with pytest.raises(InputError) as caught:
        read_text(text, num_devices=8)
    assert word in str(caught.value)


@given(
    text=st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            [
                *("python3 -m MaxText.train", "base.yml", "x.yml", "=", '"', "$A"),
                *("model_name=llama2-7b", "per_device_batch_size=1e9", "steps=3"),
                *("ici_tensor_parallelism=-1", "remat_policy=custom", "context=x"),
                *("dcn_data_parallelism=0", "base_config: x", "&a", "*a", "{", "\n"),
            ]
        ),
        max_size=10,
    ).map(" ".join)
)
@settings(max_examples=300)
def test_any_text_ends_in_a_job_or_in_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        read_text(text, num_devices=8)
