"""Every option that a launch configuration gives stands in one of three lists."""

import json
import random
from pathlib import Path

import pytest

import nestsim
from nestsim.launch.formats.deepspeed.reading import read_deepspeed
from nestsim.launch.formats.deepspeed.script import TABLE as DEEPSPEED
from nestsim.launch.formats.maxtext import sources as maxtext
from nestsim.launch.formats.maxtext.reading import read_maxtext
from nestsim.launch.formats.megatron.options import BY_NAME, TABLE
from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.formats.torchtitan import names as titan
from nestsim.launch.formats.torchtitan.reading import read_torchtitan
from nestsim.launch.read import LaunchSource, OptionEffects
from planner.frameworks.options import LaunchOption
from topologies.errors import InputError

NEEDED = {
    "num-layers": "8",
    "hidden-size": "64",
    "num-attention-heads": "4",
    "seq-length": "64",
    "micro-batch-size": "1",
    "global-batch-size": "64",
}
OWN = ("my-data-path", "log-mine", "wandb-thing", "save-often")
"""Options that users' own versions add."""


def source(text: str, name: str = "launch.sh", **more: object) -> LaunchSource:
    return LaunchSource(path=Path(name), text=text, **more)


def partition(effects: OptionEffects, given: set[str]) -> bool:
    """Whether the lists hold each option once, and nothing else."""
    names = [*effects.read, *effects.assumed, *effects.without_effect]
    return len(names) == len(set(names)) and set(names) == given


def values_of(draw: random.Random, option: LaunchOption | None) -> str:
    if option is None or option.is_flag:
        return ""
    if option.words:
        return draw.choice(sorted(option.words))
    return "0.5" if isinstance(option.default, float) else draw.choice(["1", "2", "4"])


def test_options_of_megatron_stand_in_one_list() -> None:
    draw = random.Random(28)
    names = sorted({*TABLE.names, *TABLE.silent, *OWN} - TABLE.refused.keys())
    jobs = 0
    for _ in range(200):
        given = dict(NEEDED)
        for name in draw.sample(names, 12):
            value = values_of(draw, BY_NAME.get(name))
            given[name] = value if name not in NEEDED else given[name]
        words = " ".join(f"--{name} {value}".strip() for name, value in given.items())
        text = f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {words}"
        try:
            job = read_megatron(source(text))
        except InputError:
            continue
        jobs += 1
        assert partition(job.options, {f"--{name}" for name in given}), words
        silent = {f"--{name}" for name in TABLE.silent}
        assert not silent & set(job.options.read) - {"--tokenizer-name-or-path"}, words
        for name in job.options.assumed:
            assert any(name in one for one in job.assumptions), (name, words)
    assert jobs > 50


def test_an_option_that_nobody_looks_at_is_not_read() -> None:
    """What the tables know, and no line of the reader asks for, is not called read."""
    words = " ".join(f"--{name} {value}" for name, value in NEEDED.items())
    more = "--moe-router-topk 4 --cpu-offloading-num-layers 0 --hybrid-mlp-ratio 0.1"
    job = read_megatron(source(f"torchrun --nproc_per_node 8 a.py {words} {more}"))
    assert set(job.options.without_effect) == {
        "--moe-router-topk",
        "--hybrid-mlp-ratio",
    }


DISPATCHERS = (
    ("", "allgather", False),
    ("--moe-token-dispatcher-type allgather", "allgather", False),
    ("--moe-token-dispatcher-type alltoall", "alltoall", False),
    ("--moe-token-dispatcher-type flex", None, False),
    (
        "--moe-token-dispatcher-type flex --moe-enable-deepep "
        "--moe-flex-dispatcher-backend hybridep",
        None,
        False,
    ),
    ("--moe-token-dispatcher-type alltoall --moe-enable-deepep", "alltoall", True),
)
"""Options, the setting that differs from the preset's, and whether it is assumed."""


def test_the_dispatcher_of_experts_is_read() -> None:
    words = " ".join(f"--{name} {value}" for name, value in NEEDED.items())
    moe = "--num-experts 8 --expert-model-parallel-size 8 --moe-grouped-gemm"
    for options, setting, assumes in DISPATCHERS:
        text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {words} {moe} {options}"
        job = read_megatron(source(text))
        found = job.tables["software"].get("moe_token_dispatcher_type")
        assert found == setting, options
        told = [a for a in job.assumptions if "flex" in a or "allgather" in a]
        assert bool(told) == assumes, (options, job.assumptions)
        given = {word for word in options.split() if word.startswith("--")}
        listed = {*job.options.read, *job.options.assumed}
        assert given - listed <= {"--moe-flex-dispatcher-backend"}, options
    with pytest.raises(InputError, match="smoke"):
        read_megatron(source(f"a.py {words} {moe} --moe-token-dispatcher-type smoke"))


def test_options_of_torchtitan_stand_in_one_list() -> None:
    draw = random.Random(28)
    ignored = [
        name if "." in name else f"{name}.thing" for name in sorted(titan.TABLE.silent)
    ]
    for _ in range(40):
        tables: dict[str, dict[str, object]] = {
            "training": {"seq_len": 2048, "local_batch_size": 2},
            "parallelism": {"pipeline_parallel_degree": draw.choice([1, 2])},
            "metrics": {"log_freq": 1},
        }
        known = [n for n, one in titan.OPTIONS.items() if one.since == titan.TOML]
        for name in [*draw.sample(known, 6), *draw.sample(ignored, 4)]:
            section, _, key = name.rpartition(".")
            option = titan.OPTIONS.get(name)
            if option is not None and option.default is not None:
                tables.setdefault(section, {}).setdefault(key, option.default)
            elif option is None:
                tables.setdefault(section, {})[key] = 1
        text = "\n".join(
            line
            for section, table in tables.items()
            for line in (
                f"[{section}]",
                *(f"{key} = {json.dumps(value)}" for key, value in table.items()),
            )
        )
        job = read_torchtitan(source(text, "job.toml", num_devices=8))
        given = {f"{section}.{key}" for section, t in tables.items() for key in t}
        assert partition(job.options, given), text


def test_the_backend_of_experts_of_torchtitan_is_read() -> None:
    text = (
        '[model]\nname = "deepseek_v3"\nflavor = "16B"\n[training]\nseq_len = 2048\n'
        "[parallelism]\nexpert_parallel_degree = 8\n"
        'expert_parallel_comm_backend = "deepep"\n'
    )
    job = read_torchtitan(source(text, "job.toml", num_devices=8))
    assert job.tables["software"]["moe_token_dispatcher_type"] == "flex"
    assert "parallelism.expert_parallel_comm_backend" in job.options.read


def test_options_of_maxtext_stand_in_one_list() -> None:
    draw = random.Random(28)
    assumed = maxtext.TABLE.assumed
    names = sorted({*maxtext.TABLE.silent, *assumed})
    for _ in range(40):
        given = {"model_name": "llama2-7b", "per_device_batch_size": 1}
        given |= {name: draw.choice([3, True]) for name in draw.sample(names, 8)}
        for name in draw.sample(sorted(maxtext.OPTIONS), 4):
            if maxtext.OPTIONS[name].default is not None:
                given.setdefault(name, maxtext.OPTIONS[name].default)
        text = "".join(f"{name}: {json.dumps(one)}\n" for name, one in given.items())
        try:
            job = read_maxtext(source(text, "job.yml", num_devices=8))
        except InputError:
            continue
        assert partition(job.options, set(given)), text
        assert set(job.options.assumed) == {
            name
            for name in set(given) & set(assumed)
            if given[name] != assumed[name][0]
        }


def test_options_of_deepspeed_stand_in_one_list(tmp_path: Path) -> None:
    draw = random.Random(28)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 5,
            "overlap_comm": True,
        },
        "activation_checkpointing": {"partition_activations": True, "profile": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 1}},
        "steps_per_print": 5,
        "bf16": {"enabled": True},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    keys = {
        *("train_micro_batch_size_per_gpu", "zero_optimization.stage", "bf16.enabled"),
        *("zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm"),
        *("activation_checkpointing.partition_activations", "optimizer.params"),
        *("activation_checkpointing.profile", "optimizer.type", "steps_per_print"),
    }
    names = sorted(
        {name for name in DEEPSPEED.silent if name[-1] != "*"}
        | DEEPSPEED.assumed.keys()
    )
    for _ in range(20):
        given = {name: NEEDED[name] for name in NEEDED if name != "global-batch-size"}
        given |= dict.fromkeys(draw.sample(names, 8), "1")
        given |= {"vocab-size": "1024", "deepspeed": "", "deepspeed-config": "ds.json"}
        words = " ".join(f"--{name} {value}".strip() for name, value in given.items())
        text = f"deepspeed --num_gpus 8 pretrain_gpt.py {words}"
        file = tmp_path / "launch.sh"
        job = read_deepspeed(LaunchSource(path=file, text=text))
        assert partition(job.options, {f"--{name}" for name in given} | keys), words
        assert set(job.options.assumed) >= {
            f"--{name}" for name in set(given) & DEEPSPEED.assumed.keys()
        }
    assert "activation_checkpointing.partition_activations" in job.options.assumed
    assert "activation_checkpointing.profile" in job.options.without_effect
    assert "zero_optimization.stage" in job.options.read


def test_lists_stand_in_text_and_json(tmp_path: Path) -> None:
    file = tmp_path / "launch.sh"
    words = " ".join(f"--{name} {value}" for name, value in NEEDED.items())
    file.write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {words} --lr 1 --use-sharp"
    )
    report = nestsim.import_launch(file)
    lists = report.to_dict()["options"]
    assert lists["without_effect"] == ["--lr"]
    assert lists["assumed"] == ["--use-sharp"]
    assert lists["read"] == [f"--{name}" for name in NEEDED]
    for title in (
        "Options that were read:",
        "Options in whose place something was assumed:\n#   --use-sharp",
        "Options without effect on the answer:\n#   --lr",
    ):
        assert title in report.text


def test_vision_towers_are_told(tmp_path: Path) -> None:
    """Held against the towers that transformers builds of the same configurations."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    siglip = transformers.SiglipVisionConfig(
        hidden_size=1152,
        intermediate_size=4304,
        num_hidden_layers=27,
        num_attention_heads=16,
        image_size=896,
        patch_size=14,
    )  # Gemma 3's
    llama4 = transformers.Llama4VisionConfig()
    towers = {
        "gemma3": (siglip, transformers.SiglipVisionModel),
        "llama4": (llama4, transformers.Llama4VisionModel),
    }
    for kind, (config, model) in towers.items():
        with torch.device("meta"):
            named = list(model(config).named_parameters())
        count = sum(one.numel() for name, one in named if ".layers." in name)
        inner = {"num_local_experts": 4, "num_experts_per_tok": 1}
        sizes = {
            "hidden_size": 512,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 1024,
            "vocab_size": 32000,
            "max_position_embeddings": 8192,
        }
        file = tmp_path / kind / "config.json"
        file.parent.mkdir()
        tower = {
            name: getattr(config, name)
            for name in ("hidden_size", "num_hidden_layers", "intermediate_size")
        }
        file.write_text(
            json.dumps(
                {
                    "model_type": kind,
                    "text_config": sizes | (inner if kind == "llama4" else {}),
                    "vision_config": tower,
                }
            )
        )
        report = nestsim.import_launch(file, given={"num_devices": 8})
        (told,) = [one for one in report.imported.assumptions if "vision" in one]
        said = float(told.split(" blocks, ")[1].split(" million")[0].replace(",", ""))
        assert said * 1e6 == pytest.approx(count, rel=0.01), (kind, told)
