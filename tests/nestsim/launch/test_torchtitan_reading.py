"""Configurations of torchtitan as people have them, and as nobody should."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.launch.formats.torchtitan.names import (
    blocks_of_modules,
    module_names,
    shared_blocks,
    weights_of,
)
from nestsim.launch.read import LaunchSource, imported_scenario
from nestsim.launch.readers import find_reader
from tests import failures
from tests.nestsim.launch.torchtitan_jobs import PATH, read_text
from topologies.errors import InputError


def toml(**tables: dict[str, Any]) -> str:
    """Return a TOML file with the usual tables and some options."""
    document: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": "./outputs"},
        "model": {"name": "llama3", "flavor": "8B"},
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "training": {"seq_len": 8192, "steps": 1000, "dataset": "c4"},
        "parallelism": {},
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    }
    for name, entries in tables.items():
        document.setdefault(name, {}).update(entries)
    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {_written(v)}" for key, v in table.items())
        for name, table in document.items()
    )


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


# Facts of the repository's own configurations: torchtitan 0.1.0,
# torchtitan/models/llama3/train_configs/llama3_8b.toml, llama3_405b.toml (the latter
# before local_batch_size was called so), 0.2,
# torchtitan/models/deepseek_v3/train_configs/deepseek_v3_671b.toml.
LLAMA3_8B = toml(
    training={"batch_size": 1, "compile": False, "max_norm": 1.0},
    parallelism={
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": -1,
        "tensor_parallel_degree": 1,
        "pipeline_parallel_degree": 1,
        "context_parallel_degree": 1,
    },
    float8={"enable_fsdp_float8_all_gather": False, "filter_fqns": "output"},
)
LLAMA3_405B = toml(
    model={"flavor": "405B", "converters": "float8"},
    training={"batch_size": 2, "compile": True},
    parallelism={
        "data_parallel_shard_degree": -1,
        "tensor_parallel_degree": 8,
        "enable_async_tensor_parallel": True,
    },
    activation_checkpoint={"mode": "full"},
    float8={
        "enable_fsdp_float8_all_gather": True,
        "precompute_float8_dynamic_scale_for_fsdp": True,
    },
)
DEEPSEEK_V3 = toml(
    model={"name": "deepseek_v3", "flavor": "671B"},
    training={"local_batch_size": 4, "seq_len": 4096},
    parallelism={
        "data_parallel_shard_degree": -1,
        "fsdp_reshard_after_forward": "default",
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "expert_parallel_degree": 1,
        "expert_tensor_parallel_degree": 1,
    },
    compile={"enable": True},
)


def test_llama_3_8b_of_the_repository_is_fsdp_on_64_devices() -> None:
    job = read_text(LLAMA3_8B, num_devices=64)
    assert job.tables["model"] == {"name": "llama3-8b", "sequence_length": 8192}
    assert job.tables["training"]["global_batch_size"] == 64
    plan = job.tables["plan"]
    assert plan["data_parallel_size"] == 64
    assert (plan["zero_stage"], plan["recompute"]) == (3, "selective")
    assert plan["micro_batch_size"] == plan["tensor_model_parallel_size"] == 1
    assert "optimizer.lr" in job.options.without_effect
    scenario = imported_scenario(job, PATH, origin="llama3_8b.toml").scenario
    assert scenario.software_preset == "torchtitan"
    assert scenario.training.weights_in_fp32


def test_llama_3_405b_of_the_repository_is_fsdp_times_8_way_tp_in_fp8() -> None:
    job = read_text(LLAMA3_405B, num_devices=128)
    plan, training = job.tables["plan"], job.tables["training"]
    assert (plan["data_parallel_size"], plan["tensor_model_parallel_size"]) == (16, 8)
    assert plan["sequence_parallel"]
    assert (plan["micro_batch_size"], plan["recompute"]) == (2, "full")
    assert training["global_batch_size"] == 32
    assert (training["matmul_precision"], training["gather_precision"]) == ("fp8",) * 2
    assert job.tables["software"]["tp_comm_overlap"]
    assert any("torch.compile" in one for one in job.assumptions)


def test_deepseek_v3_of_the_repository_trains_without_second_tokens() -> None:
    job = read_text(DEEPSEEK_V3, num_devices=512)
    assert job.tables["model"]["mtp_num_layers"] == 0
    assert job.tables["plan"]["data_parallel_size"] == 512
    assert "expert_model_parallel_size" not in job.tables["plan"]


def test_a_command_line_of_0_3_takes_what_its_registry_says() -> None:
    script = (
        "#!/bin/bash\n"
        "# torchtitan/models/llama3/config_registry.py: 405B in fp8, 8-way TP\n"
        "NGPU=${NGPU:-8}\n"
        "export NNODES=16\n"
        "torchrun --nproc_per_node=${NGPU} --nnodes=$NNODES --rdzv_id 1 \\\n"
        "  --rdzv_endpoint=$HEAD:29500 -m torchtitan.train --module llama3 \\\n"
        "  --config llama3_405b --training.steps=10 \\\n"
        "  --parallelism.pipeline-parallel-degree 2 --training.disable_cuda_graphs\n"
    )
    job = read_text(script, "train.sh")
    plan = job.tables["plan"]
    assert (job.num_devices, job.devices_per_node) == (128, 8)
    assert plan["tensor_model_parallel_size"] == 8
    assert plan["pipeline_model_parallel_size"] == 2
    assert (plan["data_parallel_size"], plan["zero_stage"]) == (8, 2)
    # 126 blocks and two ends, over two stages.
    assert "pipeline_model_parallel_layout" not in plan
    assert job.tables["training"]["matmul_precision"] == "fp8"
    assert job.tables["software"]["tp_comm_overlap"]
    assert job.options.without_effect == ("--training.steps",)


RUN_TRAIN = """
#!/usr/bin/bash
set -ex
NGPU=${NGPU:-"8"}
MODULE=${MODULE:-"llama3"}
CONFIG=${CONFIG:-"llama3_8b"}
TRAIN_FILE=${TRAIN_FILE:-"torchtitan.train"}
COMM_MODE=${COMM_MODE:-""}
if [ -n "$COMM_MODE" ]; then
    NGPU="${NGPU}" python3 -m "${TRAIN_FILE}" --module $MODULE --config $CONFIG "$@" \\
        --comm.mode=${COMM_MODE}
else
    PYTORCH_ALLOC_CONF="expandable_segments:True" \\
    torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --local-ranks-filter 0 \\
        -m ${TRAIN_FILE} --module ${MODULE} --config ${CONFIG} "$@"
fi
"""
"""What torchtitan 0.3's ``run_train.sh`` does."""


def test_the_script_of_torchtitan_is_read_with_variables_of_its_surroundings() -> None:
    source = LaunchSource(path=Path("run_train.sh"), text=RUN_TRAIN)
    job = find_reader(source).read(source)
    assert (job.num_devices, job.devices_per_node) == (8, 8)
    assert job.tables["model"]["name"] == "llama3-8b"
    told = replace(source, variables={"NGPU": "16", "CONFIG": "llama3_70b"})
    job = find_reader(told).read(told)
    assert (job.num_devices, job.tables["model"]["name"]) == (16, "llama3-70b")


def test_what_starts_the_script_of_torchtitan_is_read() -> None:
    source = LaunchSource(
        path=Path("start.sh"),
        text="#SBATCH --nodes=2\nfor TP in 2 4; do\n  NGPU=8 MODULE=llama3 "
        "CONFIG=llama3_8b ./run_train.sh "
        "--parallelism.tensor_parallel_degree $TP\ndone\n",
    )
    job = find_reader(source).read(source)
    assert (job.num_devices, job.devices_per_node) == (16, 8)
    assert job.tables["plan"]["tensor_model_parallel_size"] == 2
    assert any("trains 2 times" in one for one in job.assumptions)


def test_a_variable_that_nothing_sets_is_named_with_what_sets_it() -> None:
    text = "torchrun -m torchtitan.train --config llama3_8b --training.seq_len ${LEN}"
    with pytest.raises(InputError, match=r"(?s)\$LEN.*--set LEN=VALUE") as caught:
        read_text(text, "train.sh")
    assert "--training.seq_len" in str(caught.value)


def test_a_file_is_known_by_what_is_in_it() -> None:
    source = LaunchSource(path=PATH, text=LLAMA3_8B)
    assert find_reader(source).title.endswith("torchtitan")


def test_every_second_block_that_is_computed_again_is_an_assumption() -> None:
    text = toml(
        training={"local_batch_size": 1},
        parallelism={"data_parallel_shard_degree": 8},
        activation_checkpoint={"selective_ac_option": "2"},
    )
    job = read_text(text)
    assert job.tables["plan"]["recompute"] == "full"
    assert job.tables["plan"]["recompute_num_layers"] == 16
    assert "every 2th block" in job.assumptions[0]


def test_every_block_that_is_computed_again_is_full_recompute() -> None:
    text = toml(
        training={"local_batch_size": 1},
        parallelism={"data_parallel_shard_degree": 8},
        activation_checkpoint={"selective_ac_option": "1"},
    )
    assert read_text(text).tables["plan"]["recompute"] == "full"


def test_split_points_of_0_1_are_a_layout() -> None:
    text = toml(
        training={"local_batch_size": 4},
        parallelism={
            "data_parallel_shard_degree": 1,
            "pipeline_parallel_degree": 4,
            "pipeline_parallel_split_points": ["layers.7", "layers.16", "layers.25"],
        },
    )
    plan = read_text(text).tables["plan"]
    assert plan["pipeline_model_parallel_layout"] == [7, 9, 9, 7]
    assert plan["virtual_pipeline_model_parallel_size"] == 1


def test_rounds_of_accumulation_in_a_pipeline_are_an_assumption() -> None:
    text = toml(
        training={"local_batch_size": 4, "global_batch_size": 32},
        parallelism={
            "data_parallel_shard_degree": 4,
            "pipeline_parallel_degree": 2,
            "pipeline_parallel_microbatch_size": 2,
        },
    )
    job = read_text(text)
    assert job.tables["plan"]["micro_batch_size"] == 2
    assert "2 rounds" in job.assumptions[0]


# As `llama3_torchft_debugmodel` of torchtitan's experiments/torchft has it (main,
# 2026), with three replica groups.
DILOCO = {
    "enable": True,
    "semi_sync_method": "diloco",
    "process_group": "nccl",
    "group_size": 3,
    "sync_steps": 10,
    "num_fragments": 2,
}
LISTED = [["tok_embeddings", "layers.0"], ["layers.1"], ["norm", "output"]]


def read_sites(dtype: str = "float32", **given: Any) -> dict[str, Any]:
    job = read_text(
        toml(
            training={"local_batch_size": 2, "global_batch_size": 96, "dtype": dtype},
            parallelism={"data_parallel_shard_degree": 8},
            fault_tolerance={**DILOCO, **given},
        )
    )
    # An instance has a third of the batch, and the options come back.
    assert job.tables["training"]["global_batch_size"] == 32
    assert job.tables["launch"]["options"]["fault_tolerance.group_size"] == 3
    assert imported_scenario(job, PATH, origin="a file").scenario.sites is not None
    table = dict(job.tables["sites"])
    assert [table.pop(key) for key in ("count", "bandwidth", "latency")] == [
        3,
        "10 Gbit/s",
        "30 ms",
    ]
    return table


def test_replica_groups_of_torchft_are_sites() -> None:
    usual = {"sync_every": 10, "compression": 32, "fragments": 2, "delay": 0}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, usual),
        ({"dtype": "bfloat16"}, usual | {"compression": 16}),
        ({"should_quantize": True}, usual | {"compression": 8}),
        ({"fragment_sync_delay": 4}, usual | {"delay": 4}),
        (
            {"module_fqns_per_model_fragment": LISTED, "sync_steps": 30},
            usual | {"sync_every": 30, "fragments": 3},
        ),
        (
            {"semi_sync_method": "local_sgd", "should_quantize": True},
            {"sync_every": 10, "compression": 32, "outer_optimizer": "average"},
        ),
        ({"semi_sync_method": ""}, {"synchronous": True}),
    ]
    with failures.collected() as case:
        for given, expected in cases:
            with case(given):
                assert read_sites(**given) == expected


def test_a_command_line_says_the_same_of_torchft() -> None:
    words = (
        "torchrun --nproc_per_node=8 -m torchtitan.train --module torchft.llama3 "
        "--config llama3_8b --parallelism.data_parallel_shard_degree 8 "
        "--fault_tolerance.enable --fault_tolerance.group_size 2 "
        "--fault_tolerance.semi_sync_method diloco --fault_tolerance.sync_steps 20 "
        "--fault_tolerance.num_fragments 4 --fault_tolerance.fragment_sync_delay 1"
    )
    table = read_text(words, "train.sh").tables["sites"]
    assert (table["count"], table["sync_every"]) == (2, 20)
    assert (table["fragments"], table["delay"]) == (4, 1)


REFUSED = [
    ({"parallelism": {"tensor_paralel_degree": 8}}, "tensor_parallel_degree"),
    ({"parallelism": {"tensor_parallel_degree": "8"}}, "a whole number"),
    ({"parallelism": {"tensor_parallel_degree": -8}}, "a whole number"),
    ({"parallelism": {"data_parallel_shard_degree": -1}}, "--num-devices"),
    ({"parallelism": {"data_parallel_shard_degree": 0}}, "-1"),
    ({"model": {"flavor": "9B"}}, "--model"),
    ({"model": {"converters": ["float7"]}}, "float8"),
    ({"training": {"mixed_precision_param": "float16"}}, "bfloat16"),
    ({"training": {"global_batch_size": 3}}, "multiple"),
    ({"activation_checkpoint": {"mode": "memory_budget"}}, "selective"),
    ({"activation_checkpoint": {"selective_ac_option": "some"}}, "op"),
    ({"activation_checkpoint": {"selective_ac_option": "0"}}, "op"),
    ({"optimizer": {"name": "Lion"}}, "AdamW"),
    ({"fault_tolerance": {"enable": True}}, "2 or more"),
    ({"fault_tolerance": DILOCO | {"semi_sync_method": "heloco"}}, "local_sgd"),
    ({"fault_tolerance": DILOCO | {"num_fragments": 3}}, "less delay"),
    ({"fault_tolerance": DILOCO | {"fragment_sync_delay": 5}}, "less delay"),
    ({"fault_tolerance": DILOCO, "training": {"global_batch_size": 8}}, "8 x 24"),
    ({"quantized": {"enable": True}}, "torchtitan"),
    (
        {
            "parallelism": {
                "pipeline_parallel_degree": 2,
                "pipeline_parallel_schedule": "InterleavedZeroBubble",
            }
        },
        "ZBVZeroBubble",
    ),
    (
        {
            "parallelism": {
                "pipeline_parallel_degree": 2,
                "pipeline_parallel_split_points": ["layers.7", "norm"],
            }
        },
        "layers.8",
    ),
]


@failures.over(("tables", "word"), REFUSED, ids=str)
def test_what_is_not_understood_is_refused(
    tables: dict[str, dict[str, Any]], word: str
) -> None:
    usual = {"data_parallel_shard_degree": 8}
    tables = {**tables, "parallelism": usual | tables.get("parallelism", {})}
    with pytest.raises(InputError) as caught:
        read_text(toml(**tables))
    assert word in str(caught.value)


@given(
    text=st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            [
                *("torchtitan.train", "--config", "llama3_8b", "--module", "x", "="),
                *("--parallelism.tensor_parallel_degree", "8", "$X", '"', "\\\n"),
                *("activation_checkpoint:full", "--nnodes", "-1", "[model]", "{"),
                *("''", "#", "}"),
            ]
        ),
        max_size=12,
    ).map(" ".join)
)
@settings(max_examples=300)
def test_any_text_ends_in_a_job_or_in_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        read_text(text, num_devices=8)


@given(
    num_layers=st.integers(1, 60),
    num_stages=st.integers(1, 12),
    first=st.integers(0, 3),
    last=st.integers(0, 3),
)
def test_shared_blocks_add_up_and_differ_by_one_with_the_ends(
    num_layers: int, num_stages: int, first: int, last: int
) -> None:
    try:
        counts = shared_blocks(num_layers, num_stages, first=first, last=last)
    except InputError:
        return
    assert sum(counts) == num_layers
    assert min(counts) >= 0
    if num_stages > 1:
        full = [counts[0] + first, *counts[1:-1], counts[-1] + last]
        assert max(full) - min(full) <= 1
        assert full == sorted(full, reverse=True)


@given(blocks=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_listed_modules_are_read_back(blocks: list[int]) -> None:
    assert blocks_of_modules(module_names(blocks, "output"), sum(blocks)) == blocks


@given(blocks=st.lists(st.integers(1, 4), min_size=2, max_size=6))
def test_weights_make_the_blocks_that_they_were_found_for(blocks: list[int]) -> None:
    weights = weights_of(blocks)
    if weights is not None:
        _, first, last = weights
        shared = shared_blocks(sum(blocks), len(blocks), first=first, last=last)
        assert list(shared) == blocks
    else:
        assert len(set(blocks)) > 1
