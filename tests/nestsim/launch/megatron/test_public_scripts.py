"""Public launch scripts: the plan that a person reads from them.

Their options and values are facts, in a layout of our own (`scripts/`, each with its
source). What is expected here was read from the scripts by eye.
"""

from pathlib import Path
from typing import Any

import pytest

from nestsim.evaluate.cluster import build_job
from nestsim.launch.formats.deepspeed.reading import read_deepspeed
from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.read import ImportedJob, LaunchSource, imported_scenario
from nestsim.launch.readers import find_reader
from planner.plans.build import outline_plan
from planner.plans.spec import PlanSpec
from tests import failures

SCRIPTS = Path(__file__).parent / "scripts"

Plan = dict[str, Any]

EXPECTED: dict[str, tuple[int | None, Plan]] = {
    "gpt3_175b.sh": (
        128,
        {
            "micro_batch_size": 1,
            "tensor_model_parallel_size": 8,
            "pipeline_model_parallel_size": 16,
            "data_parallel_size": 1,
        },
    ),
    "mixtral_8x7b.sh": (
        64,
        {
            "micro_batch_size": 1,
            "pipeline_model_parallel_size": 4,
            "expert_model_parallel_size": 8,
            "data_parallel_size": 16,
            "sequence_parallel": True,
            "zero_stage": 1,
        },
    ),
    "llama3_8b_fp8.sh": (
        8,
        {
            "micro_batch_size": 1,
            "data_parallel_size": 8,
            "sequence_parallel": True,
            "zero_stage": 1,
        },
    ),
    "sc21_table_1.sh": (
        2520,
        {
            "micro_batch_size": 1,
            "tensor_model_parallel_size": 8,
            "pipeline_model_parallel_size": 35,
            "virtual_pipeline_model_parallel_size": 3,
            "data_parallel_size": 9,
            "recompute": "full",
        },
    ),
    "bert_340m.sh": (
        128,
        {
            "micro_batch_size": 4,
            "tensor_model_parallel_size": 8,
            "pipeline_model_parallel_size": 16,
            "data_parallel_size": 1,
        },
    ),
    "t5_220m.sh": (8, {"micro_batch_size": 64, "data_parallel_size": 8}),
    "bloom_176b.slurm": (
        384,
        {
            "micro_batch_size": 2,
            "tensor_model_parallel_size": 4,
            "pipeline_model_parallel_size": 12,
            "data_parallel_size": 8,
            "recompute": "full",
            "zero_stage": 1,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
    ),
    "deepseek_v3.sh": (
        1024,
        {
            "micro_batch_size": 1,
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 8,
            "virtual_pipeline_model_parallel_size": 4,
            "pipeline_model_parallel_layout": (1, *(2,) * 30, 0),
            "expert_model_parallel_size": 64,
            "expert_tensor_parallel_size": 1,
            "data_parallel_size": 64,
            "sequence_parallel": True,
            "overlap_moe_expert_parallel_comm": True,
            "zero_stage": 1,
            "recompute": "selective",
        },
    ),
    "qwen3_30b_a3b.sh": (
        32,
        {
            "micro_batch_size": 4,
            "expert_model_parallel_size": 8,
            "data_parallel_size": 32,
            "sequence_parallel": True,
            "zero_stage": 1,
            "recompute": "full",
        },
    ),
    "deepseek_v3_fsdp.sh": (
        None,
        {
            "micro_batch_size": 4,
            "expert_model_parallel_size": 8,
            "sequence_parallel": True,
            "zero_stage": 3,
            "recompute": "selective",
        },
    ),
}
"""Script -> devices, and the settings that are not a plan's defaults."""


def read(name: str, **said: Any) -> ImportedJob:
    path = SCRIPTS / name
    return read_megatron(LaunchSource(path=path, text=path.read_text(), **said))


def test_ten_scripts_are_read() -> None:
    assert {path.name for path in SCRIPTS.iterdir()} == set(EXPECTED)
    assert len(EXPECTED) == 10


@failures.over("name", sorted(EXPECTED))
def test_the_plan_is_the_one_that_a_person_reads(name: str) -> None:
    devices, settings = EXPECTED[name]
    job = read(name, num_devices=None if devices else 512)
    assert job.num_devices == (devices or 512)
    accelerator = "h100-sxm"
    made = imported_scenario(
        job, Path("made.toml"), origin=name, accelerator=accelerator
    )
    expected = PlanSpec(**({"data_parallel_size": 512} | settings))
    assert made.scenario.plan == expected


@failures.over("name", sorted(EXPECTED))
def test_scripts_are_known_by_their_looks(name: str) -> None:
    path = SCRIPTS / name
    source = LaunchSource(path=path, text=path.read_text())
    # BLOOM's starts DeepSpeed, whose reader reads Megatron-DeepSpeed's options.
    expected = read_deepspeed if name == "bloom_176b.slurm" else read_megatron
    assert find_reader(source).read is expected


def test_the_two_readers_of_blooms_script_find_the_same_devices_and_sizes() -> None:
    path = SCRIPTS / "bloom_176b.slurm"
    source = LaunchSource(path=path, text=path.read_text())
    one, other = read_megatron(source), read_deepspeed(source)
    assert one.num_devices == other.num_devices == 384
    for name in (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "data_parallel_size",
        "micro_batch_size",
        "zero_stage",
        "recompute",
    ):
        assert one.tables["plan"][name] == other.tables["plan"][name]


def test_models_are_those_of_the_scripts() -> None:
    gpt = read("gpt3_175b.sh").tables["model"]
    assert (gpt["num_layers"], gpt["hidden_size"], gpt["vocab_size"]) == (
        96,
        12288,
        50257,
    )
    assert gpt["hidden_dropout"] == 0.1  # Megatron-LM's default
    bloom = read("bloom_176b.slurm").tables["model"]
    assert bloom["position_embedding_type"] == "alibi"
    assert bloom["embedding_layernorm"] is True
    assert bloom["vocab_size"] == 250880
    deep = read("deepseek_v3.sh").tables["model"]
    assert deep["moe_layer_freq"] == "[0]*3+[1]*58"
    assert (deep["kv_lora_rank"], deep["q_lora_rank"]) == (512, 1536)
    assert deep["vocab_size"] == 129280
    assert deep["mtp_num_layers"] == 1
    t5 = read("t5_220m.sh").tables["model"]
    assert (t5["encoder_num_layers"], t5["decoder_num_layers"]) == (12, 12)
    assert t5["decoder_sequence_length"] == 128


def test_software_and_formats_are_those_of_the_scripts() -> None:
    assert read("sc21_table_1.sh").tables["software"]["preset"] == "megatron-lm"
    assert read("bloom_176b.slurm").tables["software"]["preset"] == "deepspeed"
    llama = read("llama3_8b_fp8.sh")
    assert llama.tables["software"]["attention_kernel"] == "fused"
    assert llama.tables["training"] == {
        "global_batch_size": 128,
        "matmul_precision": "fp8",
        "fp8_param_gather": True,
        "gradient_precision": "bf16",
    }
    deep = read("deepseek_v3.sh").tables
    assert deep["training"]["matmul_precision"] == "fp8-blockwise"
    assert deep["software"]["recompute_modules"] == ["mla_up_proj", "mlp"]


def test_what_is_assumed_is_told() -> None:
    told = read("gpt3_175b.sh").assumptions
    assert (
        "The job has 128 devices, which its parallel sizes need; the script starts 8."
        in told
    )
    text = (SCRIPTS / "gpt3_175b.sh").read_text()
    ramp = "--rampup-batch-size 16 16 5859375"
    text = text.replace(ramp, f"{ramp} --decrease-batch-size-if-needed")
    job = read_megatron(LaunchSource(path=SCRIPTS / "gpt3_175b.sh", text=text))
    assert "The batch is that after its ramp." in job.assumptions
    assert "rampup_batch_size" not in job.tables["training"]


def test_batches_that_grow_are_read() -> None:
    for name, ramp in (
        ("gpt3_175b.sh", [16, 16, 5_859_375]),
        ("bloom_176b.slurm", [192, 16, 9_765_625]),
    ):
        assert read(name).tables["training"]["rampup_batch_size"] == ramp


def test_variables_can_be_given_beside_a_script() -> None:
    job = read("sc21_table_1.sh", variables={"MODEL_SIZE": "1T"})
    assert job.num_devices == 3072
    assert job.tables["plan"]["pipeline_model_parallel_size"] == 64
    job = read("gpt3_175b.sh", variables={"NUM_NODES": "192", "VOCAB_SIZE": "51200"})
    assert job.num_devices == 1536
    assert job.tables["plan"]["data_parallel_size"] == 12
    assert job.tables["model"]["vocab_size"] == 51200


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "t5_220m.sh" else pytest.mark.slow)
        for name in sorted(EXPECTED)
        if name
        != "bert_340m.sh"  # 16 stages for 24 blocks: Megatron-LM refuses it, too
    ],
)
def test_the_plan_fits_its_model(name: str) -> None:
    devices = EXPECTED[name][0] or 512
    made = imported_scenario(
        read(name, num_devices=devices),
        Path("made.toml"),
        origin=name,
        accelerator="h200",
    )
    network, workload = build_job(made.scenario, None)
    assert made.scenario.plan is not None
    plan = outline_plan(workload, made.scenario.plan, network.num_devices)
    assert plan.parallel.num_devices == devices
