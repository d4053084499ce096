"""Steps of reinforcement learning as launches of verl: keys, and the way back."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.cli import main
from nestsim.scenario.load import Scenario, load_scenario
from tests.nestsim.features.rl.small import SPLIT, small
from topologies.errors import InputError

SCENARIOS = Path(__file__).parents[5] / "scenarios" / "rl"
KEYS = Path(__file__).with_name("verl_keys.txt")

AHEAD = {
    "rl.placement": "split",
    "rl.rollout_devices": 32,
    "rl.schedule": "asynchronous",
    "rl.staleness": 3,
}
QWEN32B, MOE = "nemo_rl_qwen3_32b_64_h100", "nemo_rl_qwen3_30b_a3b_64_h100"
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    **{path.stem: (path.stem, {}) for path in sorted(SCENARIOS.glob("*.toml"))},
    "asynchronous": (QWEN32B, AHEAD),
    "asynchronous, log-probs of the engine": (
        QWEN32B,
        {**AHEAD, "rl.old_log_probs": False},
    ),
    "log-probs of the engine, no reference": (
        QWEN32B,
        {"rl.old_log_probs": False, "rl.reference": False, "rl.offload": "never"},
    ),
    "PPO": (QWEN32B, {"rl.algorithm": "ppo", "plan.recompute": "full"}),
    "FSDP": (
        "nemo_rl_llama3_8b_8_h100",
        {
            "plan.zero_stage": 3,
            "plan.recompute": "full",
            "plan.context_parallel_size": 2,
            "plan.cp_comm_type": "a2a",
            "training.gradient_precision": "fp32",
        },
    ),
    "FSDP without resharding, in groups, PPO": (
        "nemo_rl_llama3_8b_8_h100",
        {
            "rl.algorithm": "ppo",
            "plan.zero_stage": 2,
            "plan.sharding_group_size": 4,
            "training.gradient_precision": "fp32",
        },
    ),
    "engines that share experts": (
        MOE,
        {"rl.engine.expert_parallel_size": 4, "rl.engine.precision": "fp8"},
    ),
    "chunks": (QWEN32B, {"plan.virtual_pipeline_model_parallel_size": 4}),
    "ring attention": (
        QWEN32B,
        {"plan.context_parallel_size": 2, "plan.micro_batch_size": 2},
    ),
    "other blocks in the first stage": (
        QWEN32B,
        {"plan.num_layers_in_first_pipeline_stage": 31},
    ),
    "a layout": (
        "nemo_rl_qwen3_32b_32_h100",
        {"plan.pipeline_model_parallel_layout": [17, 16, 15, 16]},
    ),
    "selective recompute": (QWEN32B, {"plan.recompute": "selective"}),
}
"""Step -> the shipped scenario, and what of it is another."""


def given(name: str, values: Mapping[str, Any]) -> Scenario:
    """Return a shipped scenario with other settings."""
    return load_scenario(SCENARIOS / f"{name}.toml").replace(values)


def read_again(scenario: Scenario, text: str, folder: Path) -> Scenario:
    """Return the scenario that a launch is read as, with what runs have measured."""
    step = scenario.rl
    assert step is not None
    path = folder / "verl.sh"
    path.write_text(text)
    measured = {
        "response_length": str(step.response_length),
        "response_length_sigma": str(step.response_length_sigma),
        "reward_time": f"{step.reward_time} s",
        "step_overhead": f"{step.engine.step_overhead} s",
    }
    report = nestsim.import_launch(path, given={"variables": measured})
    unknown = [
        words for words in report.imported.assumptions if "Nothing here" in words
    ]
    assert not unknown
    return report.scenario


def keys_of(text: str) -> dict[str, str]:
    """Return the overrides of a launch."""
    return dict(re.findall(r"^ +(\+?[a-z][\w.]+\.\w+)=(\S*)", text, re.MULTILINE))


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read_as_the_same_scenario(
    case: str, tmp_path: Path
) -> None:
    scenario = given(*CASES[case])
    report = nestsim.export(scenario, "verl")
    text = report.main_text
    assert not report.launch.gaps
    again = read_again(scenario, text, tmp_path)
    assert asdict(again)["rl"] == {
        **asdict(scenario)["rl"],
        "offload": again.rl.offload,
    }
    if scenario.rl.placement == "colocated":
        assert again.rl.offload == scenario.rl.offload
    assert scenario.plan is not None
    assert again.plan is not None
    ours, theirs = asdict(scenario.plan), asdict(again.plan)
    left_open = [name for name in ours if ours[name] is None]
    different = {
        name
        for name in ours.keys() - left_open
        if ours[name] != theirs[name]
        # One rank splits no sequence.
        and (name != "sequence_parallel" or ours["tensor_model_parallel_size"] > 1)
    }
    assert not different
    assert again.spec == scenario.spec
    assert again.training.gradient_precision == scenario.training.gradient_precision
    devices = [side.document()["cluster"]["num_devices"] for side in (scenario, again)]
    assert devices[0] == devices[1]


@pytest.mark.parametrize("case", CASES)
def test_keys_are_those_of_verl(case: str) -> None:
    known = set(KEYS.read_text().split("\n\n", maxsplit=1)[1].split())
    text = nestsim.export(given(*CASES[case]), "verl").main_text
    keys = keys_of(text)
    assert {"trainer.nnodes", "actor_rollout_ref.rollout.n"} <= keys.keys()
    # With "+" keys are added to a table that Megatron's classes take whole.
    added = {key for key in keys if key.startswith("+")}
    megatron = "actor_rollout_ref.actor.megatron"
    tables = {
        f"{megatron}.override_transformer_config",
        f"{megatron}.override_ddp_config",
        "critic.megatron.override_transformer_config",
    }
    assert {key[1:].rpartition(".")[0] for key in added} <= tables <= known
    assert keys.keys() - added <= known


def test_pools_of_their_own_are_started_where_verl_has_them() -> None:
    scenario = given("nemo_rl_qwen3_32b_64_h100_off", {})
    text = nestsim.export(scenario, "verl").main_text
    assert "verl.experimental.one_step_off_policy.main_ppo" in text
    keys = keys_of(text)
    pools = [
        int(keys[f"{pool}.nnodes"]) * int(keys[f"{pool}.n_gpus_per_node"])
        for pool in ("trainer", "rollout")
    ]
    assert pools == [32, 32]
    # In turn on pools of their own: verl's synchronous trainer has none.
    report = nestsim.export(scenario.replace({"rl.schedule": "synchronous"}), "verl")
    assert "verl.trainer.main_ppo" in report.main_text
    gaps = {gap.setting: gap for gap in report.launch.gaps}
    assert "all phases on all devices" in gaps["rl.placement"].reason
    assert f"Not expressed: {gaps['rl.placement']}"[:60] in report.main_text


def test_what_verl_has_no_words_for_is_named() -> None:
    values = {
        "plan.zero_stage": 3,
        "plan.order": "tp-pp-dp",
        "rl.engine.precision": "mxfp8",
        "rl.mini_batches": 3,
    }
    report = nestsim.export(given(QWEN32B, values), "verl")
    named = {gap.setting for gap in report.launch.gaps}
    # 64 prompts in 3 parts are 22, 22 and 20: three updates as well.
    assert named == {"plan.zero_stage", "plan.order"}, report.launch.gaps


def test_open_pools_and_no_step_are_refused() -> None:
    for values, setting in (
        ({"rl.engine.tensor_parallel_size": None}, "rl.engine.tensor_parallel_size"),
        ({**AHEAD, "rl.rollout_devices": None}, "rl.rollout_devices"),
        ({"rl": None}, "rl"),
    ):
        with pytest.raises(InputError) as caught:
            nestsim.export(given(QWEN32B, values), "verl")
        assert str(caught.value.where).endswith(setting)


@pytest.mark.parametrize("split", [False, True])
def test_the_chosen_pools_are_launched(split: bool, tmp_path: Path) -> None:
    """`nestsim rl --output` writes them beside its report."""
    pools = {**SPLIT, "rl.schedule": "one-step-off"} if split else {}
    scenario = small(pools)
    file = tmp_path / "step.toml"
    file.write_bytes(scenario.text)
    folder = tmp_path / "results"
    assert main(["rl", str(file), "--output", str(folder), "--no-figures"]) == 0
    text = (folder / "verl.sh").read_text()
    assert "Not expressed" not in text
    result = nestsim.rl(scenario).result
    assert result.step is not None
    keys = keys_of(text)
    trained = result.step.trainer.plan.parallel
    assert int(keys["trainer.n_gpus_per_node"]) == result.step.trainer.devices.size
    megatron = "actor_rollout_ref.actor.megatron"
    assert int(keys[f"{megatron}.tensor_model_parallel_size"]) == (
        trained.tensor_model_parallel_size
    )
    engine = keys["actor_rollout_ref.rollout.tensor_model_parallel_size"]
    assert int(engine) == result.step.choice.engine
    assert ("rollout.n_gpus_per_node" in keys) is split
