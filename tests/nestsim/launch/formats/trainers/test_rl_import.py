"""Configurations of trainers of reinforcement learning, read as scenarios with [rl].

What is expected of a recipe of NeMo RL is the scenario that is shipped for it, written
by hand from the same sources; of the others what anybody can compute from the file.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import nestsim
from estimators.generation.lengths import DISTRIBUTIONS
from nestsim.scenario.load import Scenario, load_scenario
from topologies.errors import InputError

SCENARIOS = Path(__file__).parents[5] / "scenarios" / "rl"

BASE: dict[str, Any] = {
    "grpo": {
        "num_prompts_per_step": 32,
        "num_generations_per_prompt": 16,
        "async_grpo": {"enabled": False, "max_trajectory_age_steps": 1},
        "max_rollout_turns": 1,
    },
    "loss_fn": {"reference_policy_kl_penalty": 0.01, "ratio_clip_min": 0.2},
    "policy": {
        "model_name": "Qwen/Qwen2.5-1.5B",
        "train_global_batch_size": 512,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 512,
        "precision": "bfloat16",
        "dtensor_cfg": {"enabled": True, "tensor_parallel_size": 1},
        "megatron_cfg": {
            "enabled": False,
            "activation_checkpointing": False,
            "tensor_model_parallel_size": 1,
            "expert_tensor_parallel_size": 1,
            "expert_model_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1,
            "sequence_parallel": False,
            "optimizer": {"optimizer": "adam", "use_distributed_optimizer": True},
            "distributed_data_parallel_config": {
                "grad_reduce_in_fp32": False,
                "overlap_grad_reduce": True,
                "overlap_param_gather": True,
            },
        },
        "sequence_packing": {
            "train_mb_tokens": "${mul:${policy.max_total_sequence_length}, "
            "${policy.train_micro_batch_size}}",
        },
        "generation": {
            "backend": "vllm",
            "max_new_tokens": "${policy.max_total_sequence_length}",
            "vllm_cfg": {
                "precision": "${policy.precision}",
                "tensor_parallel_size": 1,
                "expert_parallel_size": 1,
                "gpu_memory_utilization": 0.6,
            },
            "colocated": {
                "enabled": True,
                "resources": {"gpus_per_node": None, "num_nodes": None},
            },
        },
    },
    "cluster": {"gpus_per_node": 1, "num_nodes": 1},
}
"""What matters of ``examples/configs/grpo_math_1B.yaml`` of NVIDIA-NeMo/RL at
06beed91ba: its values, on which all recipes build."""

BATCH = {"num_prompts_per_step": 64, "num_generations_per_prompt": 32}
AHEAD = {"async_grpo": {"enabled": True, "max_trajectory_age_steps": 1}}


def recipe(nodes: int, model: str, megatron: Mapping[str, Any], **policy: Any) -> Any:
    """Return what recipes of Megatron have in common."""
    return {
        "defaults": "base.yaml",
        "grpo": BATCH,
        "policy": {
            "model_name": model,
            "train_micro_batch_size": 1,
            "max_total_sequence_length": 4096,
            "dtensor_cfg": {"enabled": False},
            "megatron_cfg": {"enabled": True, **megatron},
            **policy,
        },
        "cluster": {"gpus_per_node": 8, "num_nodes": nodes},
    }


def ahead(base: str, nodes: int, rollout: int) -> Any:
    """Return what makes a recipe one step off, with nodes for the rollout."""
    resources = {"num_nodes": rollout, "gpus_per_node": 8}
    return {
        "defaults": [base],
        "grpo": AHEAD,
        "policy": {
            "generation": {
                "colocated": {"enabled": False, "resources": resources},
                "vllm_cfg": {"async_engine": True, "gpu_memory_utilization": 0.8},
            }
        },
        "cluster": {"gpus_per_node": 8, "num_nodes": nodes},
    }


def engine(tp: int, memory: float = 0.6) -> dict[str, Any]:
    """Return engines of a size."""
    sizes = {"tensor_parallel_size": tp, "gpu_memory_utilization": memory}
    return {"generation": {"vllm_cfg": sizes}}


LLAMA8B, LLAMA70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B"
TP4 = {"tensor_model_parallel_size": 4, "sequence_parallel": True}
RECIPES: dict[str, tuple[str, Any]] = {
    # recipes/llm/performance of 06beed91ba (release 0.4), whole.
    "nemo_rl_llama3_8b_16_h100": (
        "grpo-llama3.1-8b-instruct-2n8g",
        recipe(
            2,
            LLAMA8B,
            {"pipeline_model_parallel_size": 2, "activation_checkpointing": True},
        ),
    ),
    "nemo_rl_llama3_8b_16_h100_off": (
        "grpo-llama3.1-8b-instruct-2n8g-async-1off",
        ahead("grpo-llama3.1-8b-instruct-2n8g.yaml", 2, 1),
    ),
    "nemo_rl_qwen3_32b_32_h100": (
        "grpo-qwen3-32b-4n8g",
        recipe(
            4, "Qwen/Qwen3-32B", {**TP4, "pipeline_model_parallel_size": 4}, **engine(4)
        ),
    ),
    "nemo_rl_qwen3_32b_64_h100_off": (
        "grpo-qwen3-32b-8n8g-async-1off",
        ahead("grpo-qwen3-32b-4n8g.yaml", 8, 4),
    ),
    # examples/configs of 5924d1c5f (release 0.3), with the sizes that the article has.
    "nemo_rl_llama3_8b_8_h100": ("grpo_math_8B_megatron", recipe(1, LLAMA8B, {})),
    "nemo_rl_llama3_70b_64_h100": (
        "grpo_math_70B_megatron",
        recipe(
            8,
            LLAMA70B,
            {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4},
            **engine(4),
        ),
    ),
    "nemo_rl_qwen3_32b_64_h100": (
        "grpo_math_70B_megatron-qwen3",
        recipe(
            8,
            "Qwen/Qwen3-32B",
            {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2},
            **engine(4),
        ),
    ),
    "nemo_rl_qwen3_30b_a3b_64_h100": (
        "grpo_math_qwen30ba3b_megatron",
        recipe(
            8,
            "Qwen/Qwen3-30B-A3B",
            {
                "tensor_model_parallel_size": 2,
                "expert_model_parallel_size": 8,
                "sequence_parallel": True,
            },
            **engine(4, 0.7),
        ),
    ),
}
"""Shipped scenario -> the recipe behind it, and what that sets for itself."""


def written(tree: Any) -> str:
    """Return a tree as YAML."""
    return str(yaml.safe_dump(tree, sort_keys=False))


def measured(scenario: Scenario) -> dict[str, str]:
    """Return what no configuration says of a step, as ``--set`` takes it."""
    step = scenario.rl
    assert step is not None
    assert step.response_lengths == DISTRIBUTIONS[1]
    return {
        "prompt_length": str(step.prompt_length),
        "response_length": str(step.response_length),
        "response_length_sigma": str(step.response_length_sigma),
        "reward_time": f"{step.reward_time} s",
        "step_overhead": f"{step.engine.step_overhead} s",
    }


def read(path: Path, **given: Any) -> nestsim.ImportReport:
    """Read a file."""
    return nestsim.import_launch(path, given=given)


def test_recipes_are_the_scenarios_that_are_shipped_for_them(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(written(BASE))
    for name, content in RECIPES.values():
        (tmp_path / f"{name}.yaml").write_text(written(content))
    failures = []
    for shipped, (name, _) in RECIPES.items():
        expected = load_scenario(SCENARIOS / f"{shipped}.toml")
        path = tmp_path / f"{name}.yaml"
        scenario = read(path, variables=measured(expected)).scenario
        devices = scenario.document()["cluster"]["num_devices"]
        if devices != expected.document()["cluster"]["num_devices"]:
            failures.append(f"{shipped}: {devices} devices")
        for table in ("rl", "plan", "spec", "training"):
            ours, theirs = (
                asdict(getattr(side, table)) for side in (scenario, expected)
            )
            if table == "plan":
                # What is left follows from the devices; one rank splits no sequence.
                ours["data_parallel_size"] = None
                if ours["tensor_model_parallel_size"] == 1:
                    ours["sequence_parallel"] = theirs["sequence_parallel"]
            failures += [
                f"{shipped}: {table}.{key} = {ours[key]}, shipped {theirs[key]}"
                for key in ours
                if ours[key] != theirs[key]
            ]
    assert not failures


VERL = """
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/train.parquet data.train_batch_size=128 \\
    data.max_prompt_length=1024 data.max_response_length=3072 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096 \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 MORE $@
"""
POOLS = "rollout.nnodes=1 rollout.n_gpus_per_node=8"
ROUNDS = """async_training.trigger_parameter_sync_step=2 \\
    async_training.require_batches=2 async_training.staleness_threshold=3"""

SLIME = """
MODEL_ARGS=(--num-layers 8 --hidden-size 1024 --num-attention-heads 16
  --ffn-hidden-size 4096 --swiglu --normalization RMSNorm --disable-bias-linear
  --vocab-size 32000 --untie-embeddings-and-output-weights)
ROLLOUT_ARGS=(--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-temperature 1
  --rollout-max-prompt-len 1024 --rollout-max-response-len 7168
  --global-batch-size 128 --advantage-estimator gspo --use-rollout-logprobs
  --rollout-num-gpus-per-engine 8 --sglang-enable-dp-attention --sglang-dp-size 4
  --sglang-mem-fraction-static 0.7 --sglang-max-running-requests 512)
PERF_ARGS=(--tensor-model-parallel-size 2 --sequence-parallel
  --context-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 8192)
python3 PROGRAM --actor-num-nodes 2 --actor-num-gpus-per-node 8 POOLS \\
  --attention-dropout 0.0 --hidden-dropout 0.0 \\
  ${MODEL_ARGS[@]} ${ROLLOUT_ARGS[@]} ${PERF_ARGS[@]} ${EVAL_ARGS[@]}
"""

OF_VERL = {
    "prompts": 128,
    "samples": 4,
    "prompt_length": 1024,
    "response_length": 3072,
    "mini_batches": 4,
    "reference": True,
    "old_log_probs": True,
}
OF_SLIME = {
    "prompts": 32,
    "samples": 8,
    "prompt_length": 1024,
    "response_length": 7168,
    "mini_batches": 2,
    "reference": False,
    "old_log_probs": False,
}
SPLIT = {"placement": "split", "rollout_devices": 8}
STEPS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "verl, shared devices": (
        VERL.replace("MORE", ""),
        16,
        {**OF_VERL, "placement": "colocated", "offload": "always"},
    ),
    "verl, PPO": (
        VERL.replace("grpo", "gae")
        .replace("param_offload=True", "param_offload=False")
        .replace("MORE", "critic.model.path=Qwen/Qwen3-4B"),
        16,
        {**OF_VERL, "algorithm": "ppo", "critic": "qwen3-4b", "offload": "never"},
    ),
    "verl, one step off": (
        VERL.replace("verl.trainer", "verl.experimental.one_step_off_policy").replace(
            "MORE", POOLS
        ),
        24,
        {**OF_VERL, **SPLIT, "schedule": "one-step-off", "old_log_probs": False},
    ),
    "verl, asynchronous": (
        VERL.replace(
            "verl.trainer.main_ppo",
            "verl.experimental.fully_async_policy.fully_async_main",
        ).replace("MORE", f"{POOLS} {ROUNDS}"),
        24,
        {
            **OF_VERL,
            **SPLIT,
            "schedule": "asynchronous",
            "staleness": 3,
            "old_log_probs": False,
        },
    ),
    "slime, shared devices": (
        SLIME.replace("PROGRAM", "train.py").replace("POOLS", "--colocate"),
        16,
        {**OF_SLIME, "placement": "colocated", "offload": "always"},
    ),
    "slime, one step off": (
        SLIME.replace("PROGRAM", "train_async.py").replace(
            "POOLS", "--rollout-num-gpus 8"
        ),
        24,
        {**OF_SLIME, **SPLIT, "schedule": "one-step-off"},
    ),
    "slime, pools in turn": (
        SLIME.replace("PROGRAM", "train.py").replace("POOLS", "--rollout-num-gpus 8"),
        24,
        {**OF_SLIME, **SPLIT, "schedule": "synchronous"},
    ),
}
"""Script -> its devices, and what of [rl] it says."""

ENGINES = {
    "verl": {"tensor_parallel_size": 2, "memory_utilisation": 0.6},
    # Attention of 8 devices in 4 groups: two share a layer, four the experts.
    "slime": {
        "tensor_parallel_size": 2,
        "expert_parallel_size": 4,
        "memory_utilisation": 0.7,
        "max_sequences": 512,
    },
}
PLANS = {
    # 4,096 tokens on each of two ranks: two rows of 4,096. The actor has 16 devices.
    "verl": {
        "context_parallel_size": 2,
        "cp_comm_type": "a2a",
        "micro_batch_size": 2,
        "data_parallel_size": 8,
        "zero_stage": 3,
        "recompute": "full",
    },
    # 8,192 on each of two ranks: two rows of 8,192.
    "slime": {
        "context_parallel_size": 2,
        "tensor_model_parallel_size": 2,
        "data_parallel_size": 4,
        "zero_stage": 1,
        "micro_batch_size": 2,
    },
}


@pytest.mark.parametrize("kind", STEPS)
def test_scripts_say_what_a_step_is(kind: str, tmp_path: Path) -> None:
    text, devices, expected = STEPS[kind]
    path = tmp_path / "run.sh"
    path.write_text(text)
    scenario = read(path).scenario
    trainer = kind.split(",", maxsplit=1)[0]
    assert scenario.rl is not None
    assert scenario.plan is not None
    step, plan = asdict(scenario.rl), asdict(scenario.plan)
    assert {name: step[name] for name in expected} == expected
    assert step["engine"] | ENGINES[trainer] == step["engine"]
    assert plan | PLANS[trainer] == plan
    assert scenario.document()["cluster"]["num_devices"] == devices
    length = expected["prompt_length"] + expected["response_length"]
    assert scenario.spec.sequence_length == length
    update = expected["prompts"] * expected["samples"] // expected["mini_batches"]
    assert scenario.training.global_batch_size == update


def test_a_yaml_of_verl_is_read_as_its_overrides(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(STEPS["verl, shared devices"][0])
    tree = {
        "hydra": {"searchpath": ["file://verl/trainer/config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "algorithm": {"adv_estimator": "grpo"},
        "data": {
            "train_batch_size": 128,
            "max_prompt_length": 1024,
            "max_response_length": "${mul:3,1024}",
        },
        "actor_rollout_ref": {
            "model": {"path": "Qwen/Qwen3-8B"},
            "actor": {
                "ppo_mini_batch_size": 32,
                "use_dynamic_bsz": True,
                "ppo_max_token_len_per_gpu": 4096,
                "ulysses_sequence_parallel_size": 2,
                "use_kl_loss": True,
                "fsdp_config": {"param_offload": True},
            },
            "rollout": {
                "n": "${oc.select:custom.answers,4}",
                "tensor_model_parallel_size": 2,
                "gpu_memory_utilization": 0.6,
            },
        },
        "trainer": {"n_gpus_per_node": 8, "nnodes": 2},
    }
    document = tmp_path / "run.yaml"
    document.write_text(written(tree))
    first, second = (read(path).scenario.document() for path in (script, document))
    assert first == {**second, "name": first["name"]}


def test_what_matters_and_cannot_be_said_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    more = (
        "algorithm.filter_groups.enable=True actor_rollout_ref.actor.ppo_epochs=2 "
        "actor_rollout_ref.actor.our_own_trick=7 trainer.project_name=x "
        "actor_rollout_ref.rollout.max_num_batched_tokens=16384 our.table.key=1"
    )
    path.write_text(VERL.replace("MORE", more))
    report = read(path)
    listed = "\n".join(report.imported.assumptions)
    for words in (
        "algorithm.filter_groups.enable: No prompt is drawn again.",
        "A batch is trained on once, not 2 times.",
        "actor_rollout_ref.rollout.max_num_batched_tokens: A forward step",
        "Nothing here stands for actor_rollout_ref.actor.our_own_trick, our.table.key",
        "all responses 3,072, as many as they may have",
    ):
        assert words in listed
    assert "project_name" not in listed
    # Microbatches of 8 responses of 4,096 tokens are 8 rows; of 1,536 tokens 3.
    path.write_text(
        VERL.replace("MORE", "").replace(
            "use_dynamic_bsz=True",
            "use_dynamic_bsz=False "
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        )
    )
    for length, rows in ((3072, 8), (512, 3)):
        plan = read(path, variables={"response_length": str(length)}).scenario.plan
        assert plan is not None
        assert plan.micro_batch_size == rows
    # What was measured stands for what is assumed.
    given = {"response_length": "900", "response_length_sigma": "0.8"}
    step = read(path, variables=given).scenario.rl
    assert step is not None
    assert (step.response_length, step.response_lengths) == (900, "log-normal")


def broken(path: str, value: Any) -> dict[str, Any]:
    """Return a recipe with another value at a path."""
    content = deepcopy(BASE)
    table, names = content, path.split(".")
    for name in names[:-1]:
        table = table[name]
    table[names[-1]] = value
    return dict(content)


WRONG: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a base that is not there": (
        "x.yaml",
        written(recipe(1, LLAMA8B, {}) | {"defaults": "nowhere.yaml"}),
        ("nowhere.yaml", "no such file"),
    ),
    "no policy": ("x.yaml", "grpo: {}\ncluster: {}", ("policy", "NeMo RL")),
    "a number that is none": (
        "x.yaml",
        written(broken("grpo.num_prompts_per_step", "many")),
        ("grpo.num_prompts_per_step", "whole number"),
    ),
    "nothing that rolls out": (
        "x.yaml",
        written(broken("grpo", {"max_num_steps": 1})),
        ("grpo.num_prompts_per_step", "GRPO or PPO"),
    ),
    "a pool without a size": (
        "x.yaml",
        written(broken("policy.generation.colocated.enabled", False)),
        ("nothing says how many devices the rollout has", "gpus_per_node"),
    ),
    "a script that fine-tunes": (
        "x.sh",
        "torchrun -m verl.trainer.fsdp_sft_trainer data.train_batch_size=8",
        ("trains no actor",),
    ),
    "a variable that nothing sets": (
        "x.sh",
        VERL.replace("MORE", "").replace("train_batch_size=128", "train_batch_size=$B"),
        ("data.train_batch_size", "--set B=VALUE"),
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_files_end_in_a_sentence(kind: str, tmp_path: Path) -> None:
    name, text, words = WRONG[kind]
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        nestsim.import_launch(
            path, format="nemo-rl" if name.endswith("yaml") else "verl"
        )
    message = str(caught.value)
    assert all(text in message for text in (name, *words)), message


def test_recipes_that_build_on_each_other_end(tmp_path: Path) -> None:
    for name, other in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        content = recipe(1, LLAMA8B, {}) | {"defaults": other}
        (tmp_path / name).write_text(written(content))
    assert read(tmp_path / "a.yaml").scenario.rl is not None
