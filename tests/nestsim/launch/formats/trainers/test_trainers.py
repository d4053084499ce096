"""What trainers on Megatron, and logs, are started with, as people have it.

Each file has the form of the program's own, with sizes of a run that anybody can
compute by hand: what is expected stands beside it.
"""

import argparse
import enum
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

import nestsim
from tests import failures
from topologies.errors import InputError

ARGUMENTS: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_query_groups": 4,
    "group_query_attention": True,
    "ffn_hidden_size": 4096,
    "seq_length": 2048,
    "max_position_embeddings": 2048,
    "add_bias_linear": False,
    "swiglu": True,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "micro_batch_size": 2,
    "global_batch_size": 64,
    "bf16": True,
    "fp8": None,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": 2,
    "context_parallel_size": 1,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "recompute_granularity": None,
    "padded_vocab_size": 32000,
    "world_size": 16,
    "data_parallel_size": 4,
    "consumed_train_samples": 0,
    "no_save_optim": None,
    "adam_beta1": 0.9,
    "window_size": None,
}
"""Attributes as Megatron-LM has them after its own checks."""

RESOLVED = {
    "model": {
        "family": "llama",
        "num_layers": 8,
        "num_query_groups": 4,
        "add_bias_linear": False,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "training": {"global_batch_size": 64, "gradient_precision": "fp32"},
    "software": {"preset": "megatron-core", "overlap_grad_reduce": True},
    "plan": {
        "micro_batch_size": 2,
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "data_parallel_size": 4,
        "sequence_parallel": True,
        "zero_stage": 1,
        "recompute": "none",
    },
}


def printed(arguments: Mapping[str, Any]) -> str:
    """Return a log: names are followed by dots up to the 48th letter."""
    lines = [
        f"  {name} {'.' * (48 - len(name))} {value}"
        for name, value in sorted(arguments.items(), key=lambda one: one[0].lower())
    ]
    rule = "-" * 24
    body = "\n".join([f"{rule} arguments {rule}", *lines])
    end = f"{'-' * 20} end of arguments {'-' * 21}"
    return f"using world size: 16\n{body}\n{end}\n> building tokenizer ...\n"


class Launch(NamedTuple):
    """A file, what stands beside it, and what it must be read as."""

    name: str
    text: str
    expected: Mapping[str, Mapping[str, Any]]
    num_devices: int | None = None
    variables: Mapping[str, str] = {}


NEOX = """{
  "pipe-parallel-size": 2, "model_parallel_size": 2,
  "num_layers": 12, "hidden-size": 768, "num_attention_heads": 12,
  "seq_length": 2048, "max_position_embeddings": 2048,
  "pos-emb": "rotary", "rotary_pct": 0.25, "no_weight_tying": true,
  "gpt_j_residual": true, "norm": "rmsnorm", "activation": "swiglu",
  "mlp_multiple_of": 128, "attention_config": [[["flash"], 12]],
  "optimizer": {"type": "Adam", "params": {"lr": 0.0006}},
  "zero_optimization": {"stage": 1, "overlap_comm": true},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "checkpoint_activations": true, "hidden_dropout": 0, "attention_dropout": 0,
  "fp16": {"enabled": true, "loss_scale": 0}, "tokenizer_type": "HFTokenizer"
}"""

NEMO_YAML = """
trainer: {devices: 8, num_nodes: 4, precision: bf16}
model:
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  micro_batch_size: 1
  global_batch_size: 128
  activation: fast-swiglu
  normalization: rmsnorm
  bias: false
  share_embeddings_and_output_weights: false
  activations_checkpoint_granularity: null
  activations_checkpoint_method: block
  fp8: false
  fp8_hybrid: true
  optim: {name: distributed_fused_adam, overlap_grad_sync: true}
"""

NEMO_RECIPE = """
import nemo_run as run
from nemo.collections import llm

def trainer(tensor=1, num_nodes=1, callbacks=None):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=2,
        sequence_parallel=tensor != 1,
        ddp=run.Config(DDPConfig, grad_reduce_in_fp32=False, overlap_grad_reduce=True),
    )
    return run.Config(
        nl.Trainer, devices=8, num_nodes=num_nodes, strategy=strategy,
        plugins=bf16_mixed(), callbacks=callbacks,
    )

def pretrain_recipe(dir=None, num_nodes: int = 2, fn=pretrain):
    recipe = run.Partial(
        fn,
        model=run.Config(llm.LlamaModel, config=run.Config(llm.Llama3Config8B)),
        trainer=trainer(tensor=4, num_nodes=num_nodes),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=64,
                        micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
    if recipe.trainer.callbacks is None:
        recipe.trainer.callbacks = []
    recipe.trainer.callbacks.append(
        run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))
    return recipe
"""

BRIDGE = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common

def llama3_8b_pretrain_16gpu_h100_fp8_config():
    cfg = _pretrain_common()
    bridge = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B")
    cfg.model = bridge.to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.seq_length = cfg.dataset.seq_length
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    name = "bf16_with_fp8_current_scaling_mixed"
    cfg.mixed_precision = get_mixed_precision_config(name)
    return cfg
"""

PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:llama3_8B}.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 64
      seq_length: ${PRIMUS_SEQ:4096}
      tensor_model_parallel_size: ${PRIMUS_TP:2}
      overlap_grad_reduce: true
      enable_primus_turbo: true
"""

SLIME = """
MODEL_ARGS=(--num-layers 8 --hidden-size 1024 --num-attention-heads 16
  --ffn-hidden-size 4096 --swiglu --normalization RMSNorm --disable-bias-linear
  --vocab-size 32000 --untie-embeddings-and-output-weights)
PERF_ARGS=(--tensor-model-parallel-size 2 --sequence-parallel
  --context-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 4608
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
ray job submit --address="http://127.0.0.1:8265" \\
  --runtime-env-json='{"env_vars": {"A": "1"}}' \\
  -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 \\
  --rollout-num-gpus 4 --rollout-max-response-len 8192 --global-batch-size 256 \\
  --attention-dropout 0.0 --hidden-dropout 0.0 ${MODEL_ARGS[@]} ${PERF_ARGS[@]}
"""

VERL = """
actor=actor_rollout_ref.actor
python3 -m verl.trainer.main_ppo --config-path=config \\
    --config-name='ppo_megatron_trainer.yaml' \\
    data.train_batch_size=256 data.max_prompt_length=1024 \\
    data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    $actor.ppo_mini_batch_size=64 $actor.ppo_micro_batch_size_per_gpu=2 \\
    $actor.megatron.tensor_model_parallel_size=2 \\
    $actor.megatron.pipeline_model_parallel_size=2 \\
    +$actor.megatron.override_transformer_config.recompute_granularity=full \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=8 \\
    actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
"""

TITAN = "[rank0]:[titan] 2026 - root - INFO - Running with configs: " + json.dumps(
    {
        "job": {"config_file": None, "print_config": True},
        "model": {"name": "llama3", "flavor": "8B", "converters": []},
        "training": {"local_batch_size": 4, "seq_len": 8192, "global_batch_size": -1},
        "parallelism": {
            "data_parallel_replicate_degree": 1,
            "data_parallel_shard_degree": 8,
            "tensor_parallel_degree": 2,
            "module_fqns_per_model_part": None,
        },
        "activation_checkpoint": {"mode": "full"},
        "a_fork": {"of_its_own": True},
    },
    indent=2,
)

MAXTEXT = "\n".join(
    f"INFO:maxtext.configs.pyconfig:Config param {line}"
    for line in (
        "activation_function_for_audio: gelu",
        "model_name: llama3-8b",
        "decoder_block: DecoderBlockType.LLAMA2",
        "opt_type: OptimizerType.ADAMW",
        "quantization: QuantizationType.NONE",
        "ici_fsdp_parallelism: -1",
        "ici_tensor_parallelism: 2",
        "per_device_batch_size: 2.0",
        "max_target_length: 4096",
        "remat_policy: full",
        # What is printed behind it, the second time, is of another run.
        "model_name: llama3-70b",
    )
)


def plan_of(tp: int, dp: int, **others: Any) -> dict[str, Any]:
    """Return a table [plan] of two sizes and other settings."""
    return {"tensor_model_parallel_size": tp, "data_parallel_size": dp, **others}


def llama3(length: int) -> dict[str, Any]:
    """Return a table [model] of Llama 3 8B on sequences of a length."""
    return {"name": "llama3-8b", "sequence_length": length}


LAUNCHES: dict[str, Launch] = {
    "printed arguments": Launch("log.out", printed(ARGUMENTS), RESOLVED),
    "a namespace": Launch("args.txt", f"{argparse.Namespace(**ARGUMENTS)}", RESOLVED),
    "arguments as JSON": Launch("args.json", json.dumps({"args": ARGUMENTS}), RESOLVED),
    "GPT-NeoX": Launch(
        "neox.yml",
        NEOX,
        {
            "model": {
                "rotary_percent": 0.25,
                "tie_word_embeddings": False,
                "parallel_residual": True,
                "normalization": "rmsnorm",
                # int(3072 * 2 / 3) // 2, in steps of 128.
                "ffn_hidden_size": 1024,
                "vocab_size": 50277,
            },
            "training": {"precision": "fp16", "global_batch_size": 4 * 8 * 4},
            "software": {"preset": "deepspeed", "attention_kernel": "flash"},
            "plan": plan_of(
                2, 4, pipeline_model_parallel_size=2, zero_stage=1, recompute="full"
            ),
        },
        num_devices=16,
    ),
    "NeMo 1": Launch(
        "conf.yaml",
        NEMO_YAML,
        {
            "model": {
                "ffn_hidden_size": 8192,
                "sequence_length": 4096,
                "gated_linear_unit": True,
                "add_bias_linear": False,
                "tie_word_embeddings": False,
            },
            "training": {"gradient_precision": "fp32", "matmul_precision": ""},
            "software": {"preset": "nemo", "overlap_grad_reduce": True},
            "plan": {"data_parallel_size": 4, "zero_stage": 1, "recompute": "none"},
        },
    ),
    "NeMo 2": Launch(
        "recipe.py",
        NEMO_RECIPE,
        {
            "model": llama3(8192),
            "training": {"global_batch_size": 64, "gradient_precision": "bf16"},
            "software": {"tp_comm_overlap": True, "overlap_grad_reduce": True},
            "plan": plan_of(4, 4, pipeline_model_parallel_size=2, zero_stage=1),
        },
        variables={"num_nodes": "4", "sequence_parallel": "true"},
    ),
    "Megatron Bridge": Launch(
        "llama3.py",
        BRIDGE,
        {
            "model": llama3(4096),
            "training": {"global_batch_size": 128, "matmul_precision": "fp8"},
            "plan": plan_of(2, 8, zero_stage=1),
        },
    ),
    "Primus": Launch(
        "exp.yaml",
        PRIMUS,
        {
            "model": llama3(4096),
            "training": {"global_batch_size": 64, "gradient_precision": "fp32"},
            "plan": plan_of(4, 4, micro_batch_size=2, zero_stage=1),
        },
        num_devices=16,
        variables={"PRIMUS_TP": "4"},
    ),
    "slime": Launch(
        "run.sh",
        SLIME,
        {
            "model": {"num_layers": 8, "sequence_length": 8192, "vocab_size": 32000},
            "training": {"global_batch_size": 256, "gradient_precision": "fp32"},
            "plan": plan_of(
                2, 4, context_parallel_size=2, zero_stage=1, recompute="full"
            ),
        },
    ),
    "verl": Launch(
        "grpo.sh",
        VERL,
        {
            "model": {"name": "qwen2.5-7b", "sequence_length": 4096},
            "training": {"global_batch_size": 256, "gradient_precision": "fp32"},
            "plan": plan_of(
                2,
                4,
                micro_batch_size=2,
                pipeline_model_parallel_size=2,
                sequence_parallel=True,
                recompute="full",
            ),
        },
    ),
    "a log of torchtitan": Launch(
        "titan.log",
        TITAN.replace("\n", "\n[rank0]:"),
        {
            "model": llama3(8192),
            "training": {"global_batch_size": 32},
            "plan": plan_of(2, 8, zero_stage=3, recompute="full"),
        },
    ),
    "a log of MaxText": Launch(
        "maxtext.log",
        MAXTEXT,
        {
            "model": llama3(4096),
            "training": {"global_batch_size": 32, "optimizer": "adam"},
            "plan": plan_of(2, 8, zero_stage=3),
        },
        num_devices=16,
    ),
}


def imported(path: Path, launch: Launch) -> nestsim.ImportReport:
    path.write_text(launch.text)
    given = {"num_devices": launch.num_devices, "variables": launch.variables}
    return nestsim.import_launch(path, given=given)


def differences(document: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return where a scenario is another one than expected."""
    return [
        f"{table}.{name}: {document[table].get(name)}, expected {value}"
        for table, settings in expected.items()
        for name, value in settings.items()
        if document[table].get(name, "" if value == "" else None) != value
    ]


def test_what_people_start_is_read(tmp_path: Path) -> None:
    failures, assumed = [], set()
    for kind, launch in LAUNCHES.items():
        report = imported(tmp_path / launch.name, launch)
        wrong = differences(report.scenario.document(), launch.expected)
        failures += [f"{kind}: {text}" for text in wrong]
        assumed |= {*report.imported.options.assumed}
    assert not failures
    # All other settings that change nothing are known to change nothing.
    assert assumed == {"enable_primus_turbo", "a_fork.of_its_own"}


def test_devices_are_those_that_a_file_says(tmp_path: Path) -> None:
    counts = {
        "NeMo 1": 32,
        "NeMo 2": 32,
        "Megatron Bridge": 16,
        "slime": 16,
        "verl": 16,
    }
    found = {
        kind: imported(
            tmp_path / LAUNCHES[kind].name, LAUNCHES[kind]
        ).scenario.document()["cluster"]["num_devices"]
        for kind in counts
    }
    assert found == counts


def test_what_stands_for_nothing_is_told_by_the_names_of_the_file(
    tmp_path: Path,
) -> None:
    text = printed({**ARGUMENTS, "our_new_kernel": True, "moe_deepep_num_sms": 20})
    report = imported(tmp_path / "log.out", Launch("log.out", text, {}))
    assert any("our_new_kernel" in one for one in report.imported.assumptions)
    assert "our_new_kernel" in report.imported.options.assumed
    assert "tensor_model_parallel_size" in report.imported.options.read
    assert "adam_beta1" in report.imported.options.without_effect
    assert not any("moe_deepep" in one for one in report.imported.assumptions)
    titan = imported(tmp_path / "titan.log", LAUNCHES["a log of torchtitan"])
    assert any("a_fork.of_its_own" in one for one in titan.imported.assumptions)


def test_presets_of_primus_lie_above_an_experiment(tmp_path: Path) -> None:
    configs = tmp_path / "primus" / "configs"
    models, modules = configs / "models" / "megatron", configs / "modules" / "megatron"
    for folder in (models, modules, tmp_path / "examples"):
        folder.mkdir(parents=True)
    (models / "base.yaml").write_text("num_layers: 4\nswiglu: true\nhidden_size: 512\n")
    (models / "llama3_8B.yaml").write_text(
        "extends: [base.yaml]\nnum_layers: 6\nnum_attention_heads: 8\nvocab_size: 99\n"
    )
    (modules / "pre_trainer.yaml").write_text("overlap_param_gather: true\n")
    launch = Launch("exp.yaml", PRIMUS, {}, num_devices=16)
    document = imported(tmp_path / "examples" / "exp.yaml", launch).scenario.document()
    expected = {
        "model": {"num_layers": 6, "hidden_size": 512, "gated_linear_unit": True},
        "software": {"overlap_param_gather": True},
    }
    assert not differences(document, expected)


def test_a_recipe_builds_on_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "llama3_8b.py").write_text(NEMO_RECIPE)
    text = """
import nemo_run as run
from nemo.collections.llm.recipes import llama3_8b as base, self

def model():
    return base.pretrain_recipe().model

def pretrain_recipe(num_nodes=4):
    recipe = base.pretrain_recipe(num_nodes=num_nodes)
    recipe.trainer = base.trainer(tensor=8, num_nodes=num_nodes)
    recipe.model.config.seq_length = 16384
    recipe.data.seq_length = recipe.model.config.seq_length
    return recipe
"""
    launch = Launch("llama3_8b_16k.py", text, {})
    document = imported(tmp_path / launch.name, launch).scenario.document()
    expected = {
        "model": {"name": "llama3-8b", "sequence_length": 16384},
        "training": {"global_batch_size": 64},
        "plan": {"tensor_model_parallel_size": 8, "data_parallel_size": 2},
    }
    assert not differences(document, expected)


def test_recipes_that_build_on_each_other_in_a_circle_are_refused(
    tmp_path: Path,
) -> None:
    for name, other in (("first", "second"), ("second", "first")):
        (tmp_path / f"{name}.py").write_text(
            f"import nemo_run as run\nfrom recipes import {other}\n"
            f"def pretrain():\n    return {other}.pretrain()\n"
        )
    with pytest.raises(InputError, match="has no model"):
        nestsim.import_launch(tmp_path / "first.py")


@failures.over(
    ("marks", "every"),
    [([1, 0, 1, 0], 2), ([1, 1, 0, 1, 1], 3), ([0, 0, 0], 1), ([1, 1], None)],
)
def test_windows_may_be_lists(
    marks: list[int], every: int | None, tmp_path: Path
) -> None:
    windows = f"  window_size: [127, 0]\n  window_attn_skip_freq: {marks}\n"
    launch = Launch("conf.yaml", NEMO_YAML.replace("  optim", f"{windows}  optim"), {})
    document = imported(tmp_path / launch.name, launch).scenario.document()
    model = document["model"]
    assert model["window_size"] == 128
    assert model.get("window_attn_skip_freq") == every


def test_sizes_of_batches_may_stand_beside_a_file_of_neox(tmp_path: Path) -> None:
    micro = '"train_micro_batch_size_per_gpu": 4, '
    given = {"train_micro_batch_size_per_gpu": "2"}
    launch = Launch("neox.yml", NEOX.replace(micro, ""), {}, 16, given)
    document = imported(tmp_path / launch.name, launch).scenario.document()
    expected = {
        "training": {"global_batch_size": 4 * 8 * 2},
        "plan": {"micro_batch_size": 2},
    }
    assert not differences(document, expected)
    # What DeepSpeed computes where the whole batch is there: 256 / 8 / 4 replicas.
    whole = NEOX.replace(micro, '"train_batch_size": 256, ')
    document = imported(
        tmp_path / "neox.yml", launch._replace(text=whole, variables={})
    ).scenario.document()
    expected = {
        "training": {"global_batch_size": 256},
        "plan": {"micro_batch_size": 8},
    }
    assert not differences(document, expected)


def test_a_checkpoint_is_read_without_running_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = enum.Enum("AttnBackend", ["flash", "fused", "unfused"], start=1)
    backend.__module__ = "megatron.core.transformer.enums"
    enums = ModuleType(backend.__module__)
    enums.AttnBackend = backend  # type: ignore[attr-defined]
    for name in ("megatron", "megatron.core", "megatron.core.transformer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, backend.__module__, enums)

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    arguments = argparse.Namespace(
        **ARGUMENTS,
        attention_backend=backend.flash,
        main_params_dtype=torch.float32,
        exp_avg_dtype=torch.bfloat16,
        activation_func=Payload(),
    )
    path = tmp_path / "model_optim_rng.pt"
    torch.save({"args": arguments, "model": {"w": torch.ones(3)}, "x": Payload()}, path)
    document = nestsim.import_launch(path).scenario.document()
    expected = {
        **RESOLVED,
        "training": {**RESOLVED["training"], "exp_avg_dtype": "bf16"},
        "software": {"attention_kernel": "flash"},
    }
    assert not differences(document, expected)
    assert not (tmp_path / "executed").exists()


REFUSED: dict[str, tuple[str, str, str]] = {
    "a log that ends": (
        "log.out",
        printed(ARGUMENTS).partition("padded_vocab")[0],
        "ends in the middle",
    ),
    "arguments without sizes": (
        "log.out",
        printed({k: v for k, v in ARGUMENTS.items() if k != "hidden_size"}),
        "hidden-size: is missing",
    ),
    "a size that is none": (
        "log.out",
        printed({**ARGUMENTS, "tensor_model_parallel_size": "many"}),
        "tensor_model_parallel_size: is no whole number",
    ),
    "NeoX without devices": ("neox.yml", NEOX, "--num-devices"),
    "NeoX without batches": (
        "neox.yml",
        NEOX.replace('"train_micro_batch_size_per_gpu": 4, ', ""),
        "--set train_micro_batch_size_per_gpu=1 and --num-devices N",
    ),
    "NeoX without commas": ("neox.yml", NEOX.replace("2, ", "2 "), "is not YAML"),
    "NeoX with a name misspelt": (
        "neox.yml",
        NEOX.replace('"no_weight_tying"', '"train_batch_size": 64, "no_weight_tieing"'),
        "no_weight_tieing: is no setting that is known",
    ),
    "NeoX without width": (
        "neox.yml",
        NEOX.replace('"hidden-size"', '"x"'),
        "hidden_size",
    ),
    "a recipe that is no Python": ("recipe.py", NEMO_RECIPE + "def (", "is not Python"),
    "several recipes": (
        "llama3.py",
        BRIDGE + BRIDGE.replace("8b_pretrain", "70b_pretrain"),
        "--set RECIPE=llama3_8b_pretrain_16gpu_h100_fp8_config",
    ),
    "a size that only a run would tell": (
        "llama3.py",
        BRIDGE.replace("parallel_size = 2", "parallel_size = sizes()['tp']"),
        "tensor_model_parallel_size: takes its value from",
    ),
    "several recipes that fine-tune": (
        "llama3.py",
        NEMO_RECIPE.replace("pretrain_recipe", "finetune_recipe")
        + "\ndef other_recipe():\n    return finetune_recipe()\n",
        "--set RECIPE=finetune_recipe",
    ),
    "a recipe without model": (
        "llama3.py",
        BRIDGE.replace("Meta-Llama-3-8B", "Our-Own"),
        "--model",
    ),
    "a recipe that calls itself": (
        "llama3.py",
        BRIDGE.replace(
            "_pretrain_common()", "llama3_8b_pretrain_16gpu_h100_fp8_config()"
        ),
        "",
    ),
    "Primus of another framework": (
        "exp.yaml",
        PRIMUS.replace("framework: megatron", "framework: jax"),
        "framework",
    ),
    "Primus without module": ("exp.yaml", "modules: \n  framework: x\n", "modules"),
    "slime without start": ("run.sh", "# --actor-num-gpus-per-node\nls\n", "starts no"),
    "slime with a variable that nothing sets": (
        "run.sh",
        SLIME.replace(
            "--tensor-model-parallel-size 2", "--tensor-model-parallel-size $TP"
        ),
        "--set TP=VALUE",
    ),
    "verl without Megatron": (
        "grpo.sh",
        VERL.replace("max_prompt_length=1024", "max_prompt_length=$X"),
        "max_prompt_length",
    ),
    "torchtitan's log that ends": ("titan.log", TITAN[:300], "no whole configuration"),
    "MaxText's log without devices": ("maxtext.log", MAXTEXT, "--num-devices"),
}


def test_what_cannot_be_read_is_refused_with_one_error(tmp_path: Path) -> None:
    failures = []
    for kind, (name, text, words) in REFUSED.items():
        try:
            imported(tmp_path / name, Launch(name, text, {}))
        except InputError as error:
            if words not in str(error) or not str(error).startswith(str(tmp_path)):
                failures.append(f"{kind}: {error}")
        else:
            failures.append(f"{kind}: read")
    assert not failures, "\n".join(failures)


def test_a_broken_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model_optim_rng.pt"
    torch.save({"model": {}}, path)
    with pytest.raises(InputError, match="no whole checkpoint"):
        nestsim.import_launch(path)


def test_the_command_line_leaves_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nestsim.cli import main

    path = tmp_path / "log.out"
    path.write_text(REFUSED["a log that ends"][1])
    assert main(["import", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("error") <= 1
    assert str(path) in err
