"""What a configuration says beside its plan comes back on export, or is named.

Of torchtitan, MaxText and DeepSpeed; scripts of Megatron-LM have more to them
(`megatron/test_script_options`).
"""

import json
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nestsim.launch.formats.deepspeed import config as deepspeed
from nestsim.launch.formats.deepspeed.script import TABLE
from nestsim.launch.formats.maxtext import sources as maxtext
from nestsim.launch.formats.torchtitan import names as titan
from nestsim.launch.formats.torchtitan.writing import SCRIPT_FILE, TOML_FILE
from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.launch.read import ImportedJob, LaunchSource, imported_scenario
from nestsim.launch.readers import READERS
from nestsim.launch.registry import WRITERS
from nestsim.scenario.editing import toml_text
from nestsim.scenario.load import Scenario
from tests import failures

FEW = settings(max_examples=12, phases=[Phase.generate])
VALUES = st.sampled_from(
    [True, False, 7, 0.25, "7", "0.1", "a b", 'it\'s "q"', "$(touch x)", ["a", "b c"]]
)
SHELL_WORDS = st.sampled_from(
    ["1", "1e-6", "a b", "it's", "$DATA/a", "é", "x;y", "`z`"]
)


def read(name: str, text: str, file: Path, **more: Any) -> tuple[ImportedJob, Scenario]:
    """Return what is read of a configuration, and its scenario."""
    job = READERS[name].read(LaunchSource(path=file, text=text, **more))
    found = imported_scenario(job, file.parent / "job.toml", origin=file.name)
    return job, found.scenario


def options_of(job: ImportedJob) -> dict[str, Any]:
    """Return the options that come along."""
    return dict(job.tables.get("launch", {}).get("options", {}))


def check(first: ImportedJob, files: LaunchFiles, again: ImportedJob) -> set[str]:
    """Check that an import is read again, and return what is lost of its options."""
    for table in ("training", "software", "plan"):
        before = first.tables[table].items()
        assert before <= again.tables[table].items(), table
    back = options_of(again)
    return {name for name, one in options_of(first).items() if back.get(name) != one}


TITAN = {
    "model": {"name": "llama3", "flavor": "8B"},
    "training": {"seq_len": 512, "local_batch_size": 2},
    "parallelism": {"tensor_parallel_degree": 2},
}


@given(
    others=st.dictionaries(
        st.sampled_from(sorted(titan.TOML_NAMES)), VALUES, max_size=12
    ),
    finer=st.fixed_dictionaries(
        {},
        optional={
            "optimizer.name": st.just("Adam"),
            "compile.enable": st.booleans(),
            "compile.components": st.just(["loss"]),
            "activation_checkpoint.selective_ac_option": st.sampled_from(["op", "2"]),
            "checkpoint.enable_checkpoint": st.booleans(),  # of 0.1
        },
    ),
)
@FEW
def test_options_of_torchtitan_come_back_or_are_named(
    others: Mapping[str, Any], finer: Mapping[str, Any]
) -> None:
    document: dict[str, Any] = json.loads(json.dumps(TITAN))
    for name, value in {**others, **finer}.items():
        table = document
        *outer, key = name.split(".")
        for part in outer:
            table = table.setdefault(part, {})
        table[key] = value
    file = Path(TOML_FILE)
    first, scenario = read("torchtitan", toml_text(document), file, num_devices=16)
    files = WRITERS["torchtitan"](LaunchJob.of(scenario))
    text = str(files.files[TOML_FILE])
    again, _ = read("torchtitan", text, file)
    lost = check(first, files, again)
    assert lost == set(finer) & {"checkpoint.enable_checkpoint"}
    named = {gap.setting: gap.value for gap in files.gaps}
    assert lost <= named.keys()
    # The other version is not told of them.
    assert named.get("launch.options", "") == ", ".join(options_of(first))
    for name, value in others.items():
        found: Any = tomllib.loads(text)
        for part in name.split("."):
            found = found[part]
        assert found == value


@given(
    others=st.dictionaries(
        st.sampled_from(
            [
                *(
                    "metrics.log_freq",
                    "optimizer.lr",
                    "checkpoint.folder",
                    "dump_folder",
                ),
                *("debug.seed", "activation_checkpoint.preserve_rng_state"),
            ]
        ),
        st.lists(SHELL_WORDS, max_size=2),
    ),
    mode=st.sampled_from(["selective", "full"]),
)
@FEW
def test_options_of_a_command_of_torchtitan_come_back(
    others: Mapping[str, list[str]], mode: str
) -> None:
    given_words = [
        " ".join(
            [
                f"--{name}",
                *(f'"{one}"' if "$" in one else shlex.quote(one) for one in values),
            ]
        )
        for name, values in others.items()
    ]
    text = " ".join(
        [
            "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3",
            "--config llama3_8b --training.seq_len 512",
            *(one for one in given_words if "activation" not in one),
            f"activation_checkpoint:{mode}",
            *(one for one in given_words if "activation" in one),
        ]
    )
    file = Path(SCRIPT_FILE)
    first, scenario = read("torchtitan", text, file)
    files = WRITERS["torchtitan"](LaunchJob.of(scenario))
    again, _ = read("torchtitan", str(files.files[SCRIPT_FILE]), file)
    assert check(first, files, again) == set()
    assert options_of(first).keys() == others.keys()


MAXTEXT = {
    "model_name": "llama2-7b",
    "max_target_length": 512,
    "per_device_batch_size": 2,
    "ici_fsdp_parallelism": 8,
}


@given(
    others=st.dictionaries(
        st.sampled_from(
            sorted(
                (maxtext.TABLE.silent | maxtext.TABLE.assumed.keys()) - {"base_config"}
            )
        ),
        VALUES,
        max_size=12,
    ),
    finer=st.fixed_dictionaries(
        {},
        optional={
            "model_name": st.sampled_from(["llama3-8b", "llama3.1-8b"]),
            "quantization": st.sampled_from(["fp8", "fp8_full", "nanoo_fp8"]),
            "opt_type": st.sampled_from(["adamw", "adam_pax", "sgd"]),
            "attention": st.sampled_from(["flash", "cudnn_flash_te", "dot_product"]),
            "hardware": st.sampled_from(["gpu", "gpu_multiprocess"]),
            "remat_policy": st.sampled_from(["save_qkv_proj", "minimal", "full"]),
            "gradient_accumulation_steps": st.sampled_from([1, 2]),
        },
    ),
)
@FEW
def test_options_of_maxtext_come_back(
    others: Mapping[str, Any], finer: Mapping[str, Any]
) -> None:
    document = {**MAXTEXT, **others, **finer}
    text = "".join(f"{name}: {json.dumps(one)}\n" for name, one in document.items())
    first, scenario = read("maxtext", text, Path("a.yml"), num_devices=8)
    files = WRITERS["maxtext"](LaunchJob.of(scenario))
    again, _ = read("maxtext", str(files.files["maxtext.yml"]), Path("b.yml"))
    assert check(first, files, again) == set()
    assert options_of(first).keys() == others.keys() | (
        document.keys() & maxtext.TABLE.finer
    )


def test_words_of_a_script_of_maxtext_stay_words(tmp_path: Path) -> None:
    """Bash is told to print what the script that is written would start."""
    text = (
        "python3 -m MaxText.train base.yml model_name=llama2-7b hardware=gpu "
        "ici_fsdp_parallelism=8 per_device_batch_size=1 max_target_length=512 "
        "run_name=$NAME-1 'dataset_path=a;b $(touch x)' base_output_directory=\"$OUT\""
        " learning_rate=3e-4 enable_checkpointing=false"
    )
    first, scenario = read("maxtext", text, Path("run.sh"))
    files = WRITERS["maxtext"](LaunchJob.of(scenario))
    script = str(files.files["maxtext.sh"])
    stub = tmp_path / "python3"
    stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    printed = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "NAME": "n", "OUT": "o p"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert printed[3:] == ["run_name=n-1", "base_output_directory=o p"]
    assert not (tmp_path / "x").exists()
    (tmp_path / "maxtext.yml").write_text(str(files.files["maxtext.yml"]))
    again, _ = read("maxtext", str(files.files["maxtext.yml"]), tmp_path / "b.yml")
    lost = check(first, files, again)
    assert lost == {"run_name", "base_output_directory"}  # those of the command
    assert options_of(again)["learning_rate"] == 3e-4


DEEPSPEED = {
    "num-layers": "8",
    "hidden-size": "512",
    "num-attention-heads": "8",
    "seq-length": "256",
    "max-position-embeddings": "256",
    "micro-batch-size": "1",
    "global-batch-size": "64",
    "tensor-model-parallel-size": "2",
    "no-pipeline-parallel": "",
    "bf16": "",
    "deepspeed": "",
    "deepspeed_config": "ds.json",
}
KEYS = sorted(deepspeed.TABLE.silent - {"compile"})
WORDS = sorted(
    {name for name in TABLE.silent if name[-1] != "*"} | TABLE.assumed.keys()
)


@given(
    others=st.dictionaries(
        st.sampled_from(WORDS),
        st.just("") | SHELL_WORDS,
        max_size=12,
    ),
    tokens=st.sampled_from(["GPT2BPETokenizer", "GPTSentencePieceTokenizer", ""]),
    keys=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8),
    optimizer=st.sampled_from(["Adam", "FusedAdam", "OneBitAdam"]),
    device=st.sampled_from(["none", "cpu", "nvme"]),
)
@FEW
def test_options_of_deepspeed_come_back_or_are_named(
    tmp_path_factory: pytest.TempPathFactory,
    others: Mapping[str, str],
    tokens: str,
    keys: Mapping[str, Any],
    optimizer: str,
    device: str,
) -> None:
    folder = tmp_path_factory.mktemp("deepspeed")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": optimizer, "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": device}},
    }
    for name, value in keys.items():
        inner = config["zero_optimization"] if "." in name else config
        inner[name.removeprefix("zero_optimization.")] = value
    (folder / "ds.json").write_text(json.dumps(config))
    options = DEEPSPEED | dict(others) | ({"tokenizer-type": tokens} if tokens else {})
    if "tokenizer-type" in options and "SentencePiece" not in options["tokenizer-type"]:
        options["tokenizer-type"] = "GPT2BPETokenizer"
    text = " ".join(
        [
            "deepspeed --num_gpus 8 pretrain_gpt.py",
            *(
                f'--{name} "{one}"'
                if "$" in one
                else f"--{name} {shlex.quote(one)}"
                if one
                else f"--{name}"
                for name, one in options.items()
            ),
        ]
    )
    first, scenario = read("deepspeed", text, folder / "run.sh")
    files = WRITERS["deepspeed"](LaunchJob.of(scenario))
    for name, content in files.files.items():
        (folder / name).write_text(str(content))
    again, _ = read("deepspeed", str(files.files["launch.sh"]), folder / "launch.sh")
    lost = check(first, files, again)
    named = {gap.setting for gap in files.gaps}
    assert {one.removeprefix("json.") for one in lost if "json." in one} | {
        f"--{one}" for one in lost if "json." not in one
    } <= named
    assert not lost - {"transformer-impl"}
    kept = {f"json.{name}" for name in keys}
    assert kept | others.keys() <= options_of(first).keys()


def test_options_of_other_trainers_are_named(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": 2,
                "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
                "bf16": {"enabled": True},
                "gradient_clipping": 0.5,
                "comet": {},
            }
        )
    )
    text = (
        "deepspeed --num_gpus 8 train.py --deepspeed ds.json --max_seq_length 512 "
        "--learning_rate 1e-4 --per_device_train_batch_size 1 --use_lora True "
        "--lora_r 8 --torch_compile False"
    )
    file = tmp_path / "run.sh"
    first, scenario = read("deepspeed", text, file, model="llama2-7b")
    assert any("json.comet" in one for one in first.assumptions)
    assert {"--use-lora", "--lora-r"} <= set(first.options.assumed)
    assert "--torch-compile" in first.options.without_effect
    files = WRITERS["deepspeed"](LaunchJob.of(scenario))
    named = {gap.setting for gap in files.gaps}
    assert {"--learning-rate", "zero_optimization.reduce_bucket_size"} <= named
    config = json.loads(str(files.files["ds_config.json"]))
    assert config["gradient_clipping"] == 0.5
    assert "steps_per_print" not in config


def test_a_plan_that_asks_for_another_value_names_the_change() -> None:
    text = "".join(f"{name}: {json.dumps(one)}\n" for name, one in MAXTEXT.items())
    text += "quantization: fp8_full\nremat_policy: save_qkv_proj\nsteps: 5\n"
    _, scenario = read("maxtext", text, Path("a.yml"), num_devices=8)
    other = scenario.replace(
        {"training.matmul_precision": "fp8-blockwise", "plan.recompute": "none"}
    )
    files = WRITERS["maxtext"](LaunchJob.of(other))
    named = {gap.setting: gap.reason for gap in files.gaps}
    assert "quantization is empty" in named["quantization"]
    assert "is custom" in named["remat_policy"]
    assert "steps: 5\n" in str(files.files["maxtext.yml"])


ODD = {
    "json.train_batch_size.x": 5,
    "json.zero_optimization": 3,
    "json.no_such_key": 1,
    "no-such-option": "1",
    "lr": "$(touch x)",
    "base_config": "other.yml",
    "optimizer.name": 5,
    "activation_checkpoint.mode": "none at all",
    "checkpoint.folder": '"\n[model]\nname = "other"',
    "model_name": ["llama2-7b"],
    "steps": "1\nmodel_name: other",
}


@failures.over(
    "name", ["torchtitan", "torchtitan-command", "maxtext", "deepspeed", "megatron"]
)
def test_options_that_somebody_made_up_break_nothing(name: str) -> None:
    """What does not come back is named, and what does is read as it was."""
    form = name.removesuffix("-command")
    text = "".join(f"{key}: {json.dumps(one)}\n" for key, one in MAXTEXT.items())
    _, plain = read("maxtext", text, Path("a.yml"), num_devices=8)
    document = plain.document()
    document["launch"] = {"format": name, "options": ODD}
    scenario = Scenario.from_toml(toml_text(document), Path("job.toml"))
    files = WRITERS[form](LaunchJob.of(scenario))
    named = {gap.setting.removeprefix("--") for gap in files.gaps}
    where = {"torchtitan-command": SCRIPT_FILE}.get(name, next(iter(files.files)))
    if form == "deepspeed":
        config = json.loads(str(files.files["ds_config.json"]))
        assert isinstance(config["train_batch_size"], int)
        assert {"no_such_key", "no-such-option"} <= named
        return
    job, _ = read(form, str(files.files[where]), Path(where))
    back = options_of(job)
    for key, value in ODD.items():
        shown = value if name in ("torchtitan", "maxtext") else str(value)
        assert back.get(key) == shown or key in named or name == "megatron", key
