"""Steps of reinforcement learning as launches of verl: overrides for its Hydra.

Keys are those of verl 0.9.1 (``verl/trainer/config/_generated_ppo_trainer.yaml`` and
``_generated_ppo_megatron_trainer.yaml``; of pools of their own
``verl/experimental/one_step_off_policy/config`` and ``fully_async_policy/config``).
What a launch does not say is found by reading it back: so nothing is dropped silently.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import Any

from nestsim.launch.formats.megatron.settings import job_options
from nestsim.launch.formats.trainers.reading import TRAINERS
from nestsim.launch.formats.trainers.renaming import CORE, RENAMINGS
from nestsim.launch.formats.usual import strongest
from nestsim.launch.job import LaunchFiles, LaunchGap, LaunchJob
from nestsim.launch.read import LaunchSource, imported_scenario
from nestsim.scenario.load import Scenario
from nestsim.scenario.rl import RlSpec
from topologies.errors import InputError

VERSION = "verl 0.9.1"
"""Release whose keys are written."""

SCRIPT = "verl.sh"
"""Name of the script."""

Overrides = dict[str, Any]
"""Key of verl -> its value."""

_ACTOR = "actor_rollout_ref.actor"
_MEGATRON = f"{_ACTOR}.megatron"
_ROLLOUT = "actor_rollout_ref.rollout"
_PROGRAMS: Mapping[str, tuple[str, str]] = {
    "synchronous": ("verl.trainer.main_ppo", ""),
    "one-step-off": ("verl.experimental.one_step_off_policy.main_ppo", "one_step_off_"),
    "asynchronous": (
        "verl.experimental.fully_async_policy.fully_async_main",
        "fully_async_",
    ),
}
"""Schedule -> the program, and how the names of its configurations begin."""

_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
_OVERRIDDEN = ("MEMORY_ARGS", "PARALLEL_ARGS")
"""Groups of Megatron's options that ``override_transformer_config`` may have."""

_KEPT = (
    "recompute",
    "num-layers-in",
    "decoder-first-pipeline",
    "decoder-last-pipeline",
    "pipeline-model-parallel-layout",
    "account-for",
    "microbatch-group",
    "cp-comm-type",
)
"""How those of them begin that are fields of ``TransformerConfig``."""

_FIELDS: Mapping[str, str] = {
    "decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "microbatch-group-size-per-virtual-pipeline-stage": (
        "microbatch_group_size_per_vp_stage"
    ),
}
"""Option -> the field, where that is another word (core/model_parallel_config.py)."""

_OF_RUNS = frozenset(
    {
        *("prompt_length", "response_length", "response_lengths", "reward_time"),
        *("response_length_sigma", "response_length_file", "seed", "critic"),
    }
)
"""Settings of [rl] that come of data and software, not of a launch."""

_FOLLOWS = frozenset({"data_parallel_size", "num_microbatches"})
"""Settings of [plan] that follow from devices and batch."""

_OF_CRITIC: Mapping[str, str] = {
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "critic.ppo_max_token_len_per_gpu",
    f"{_ACTOR}.ulysses_sequence_parallel_size": "critic.ulysses_sequence_parallel_size",
    f"{_ACTOR}.fsdp_config.param_offload": "critic.fsdp.param_offload",
    f"{_ACTOR}.fsdp_config.optimizer_offload": "critic.fsdp.optimizer_offload",
    "actor_rollout_ref.model.enable_gradient_checkpointing": (
        "critic.model.enable_gradient_checkpointing"
    ),
}
"""Key of the actor -> that of the critic, where tables differ."""

_STAND_INS = {False: "llama3-8b", True: "mixtral-8x7b"}
"""With experts or without -> a model in whose place any other one is split."""

_REASONS: Mapping[str, str] = {
    "rl.placement": "verl's synchronous trainer has all phases on all devices.",
    "rl.rollout_devices": "They are all devices.",
    "rl.offload": "States leave the devices for each rollout, or never.",
}


def write_verl(job: LaunchJob) -> LaunchFiles:
    """Write the step of a scenario and the plan of its trainer for verl.

    Raises
    ------
    InputError
        If the scenario has no step, or leaves its engines open.
    """
    step = job.scenario.rl
    if step is None:
        raise InputError(
            "there is no step of reinforcement learning",
            where="rl",
            got="no table [rl]",
            expected="a scenario with a table [rl], to be launched by verl",
        )
    split = step.placement == "split" and step.schedule != "synchronous"
    is_open = step.engine.tensor_parallel_size is None
    if is_open or (split and step.rollout_devices is None):
        setting = "engine.tensor_parallel_size" if is_open else "rollout_devices"
        raise InputError(
            "is open, and a launch has one",
            where=f"rl.{setting}",
            expected="a number",
            hint="`nestsim rl SCENARIO --output DIR` finds it, and writes verl.sh",
        )
    launch = _Launch(job, step, split=split)
    gaps = tuple(launch.gaps())
    return LaunchFiles(
        files={SCRIPT: launch.text(gaps)}, gaps=gaps, notes=tuple(launch.notes())
    )


class _Launch:
    """A launch of verl in the making."""

    def __init__(self, job: LaunchJob, step: RlSpec, *, split: bool) -> None:
        self.job, self.step, self.split = job, step, split
        plan = job.settings
        sizes = [getattr(plan, name) for name in _SIZES]
        alone = sizes[0] == sizes[1] == sizes[3] == 1
        self.on_fsdp = alone and min(plan.zero_stage_by_stage()) > 1
        self.rollout_devices = (step.rollout_devices or 0) if split else 0
        self.num_devices = job.network.num_devices

    @property
    def program(self) -> tuple[str, str]:
        """What is started, and the name of its configuration."""
        program, prefix = _PROGRAMS[self.step.schedule if self.split else "synchronous"]
        engine = "" if self.on_fsdp else "megatron_"
        return program, f"{prefix}ppo_{engine}trainer"

    @property
    def model(self) -> str:
        """What the model is called: by its name, or by its file."""
        table = self.job.scenario.document()["model"]
        return str(table.get("name") or table.get("config") or "")

    def groups(self) -> dict[str, tuple[str, Overrides]]:
        """Return overrides by the name of their array, each with what they are."""
        return {
            "DATA": ("What a step is of.", self._data()),
            "ACTOR": ("How the actor is split and trained.", self._actor()),
            "ROLLOUT": ("The engines.", self._rollout()),
            "CRITIC": ("The critic.", self._critic()),
            "TRAINER": ("The devices.", self._devices()),
        }

    def _data(self) -> Overrides:
        step = self.step
        longest = self.job.model.sequence_length - step.prompt_length
        mini = math.ceil(step.prompts / step.mini_batches)
        data: Overrides = {
            "data.train_batch_size": step.prompts,
            "data.max_prompt_length": step.prompt_length,
            "data.max_response_length": step.response_length_cap or longest,
            f"{_ROLLOUT}.n": step.samples,
            f"{_ACTOR}.ppo_mini_batch_size": mini,
            "algorithm.adv_estimator": "grpo" if step.algorithm == "grpo" else "gae",
            f"{_ACTOR}.use_kl_loss": step.reference,
        }
        if self.split and step.schedule == "asynchronous":
            data |= {
                "data.train_batch_size": 0,
                "data.gen_batch_size": 1,
                "async_training.require_batches": 1,
                "async_training.trigger_parameter_sync_step": step.mini_batches,
                "async_training.staleness_threshold": step.staleness,
                "async_training.partial_rollout": False,
            }
        if not step.old_log_probs:
            data |= {
                "algorithm.rollout_correction.bypass_mode": True,
                f"{_ROLLOUT}.calculate_log_probs": True,
            }
        elif self.split:
            data["algorithm.rollout_correction.bypass_mode"] = False
            if step.schedule == "asynchronous":
                data[f"{_ACTOR}.use_rollout_log_probs"] = False
        return data

    def _actor(self) -> Overrides:
        job, plan = self.job, self.job.settings
        rows = plan.micro_batch_size * job.model.sequence_length
        actor: Overrides = {
            f"{_ACTOR}.strategy": "fsdp2" if self.on_fsdp else "megatron",
            f"{_ACTOR}.use_dynamic_bsz": True,
            f"{_ACTOR}.ppo_max_token_len_per_gpu": math.ceil(
                rows / plan.context_parallel_size
            ),
            "actor_rollout_ref.model.use_remove_padding": True,
        }
        leaves = self.step.offload != "never" and not self.rollout_devices
        if self.on_fsdp:
            return actor | self._fsdp(leaves=leaves)
        return actor | self._megatron(leaves=leaves)

    def _fsdp(self, *, leaves: bool) -> Overrides:
        plan = self.job.settings
        again = strongest(plan.recompute_by_stage()) in {"full", "stage"}
        ranks = self.job.plan.parallel.data_parallel_size * plan.context_parallel_size
        group = min(plan.sharding_group_by_stage(ranks))
        config = f"{_ACTOR}.fsdp_config"
        return {
            f"{_ACTOR}.ulysses_sequence_parallel_size": plan.context_parallel_size,
            "actor_rollout_ref.model.enable_gradient_checkpointing": again,
            f"{config}.fsdp_size": group if group < ranks else -1,
            f"{config}.reshard_after_forward": min(plan.zero_stage_by_stage()) > 2,
            f"{config}.param_offload": leaves,
            f"{config}.optimizer_offload": leaves,
        }

    def _megatron(self, *, leaves: bool) -> Overrides:
        job, plan = self.job, self.job.settings
        overrides: Overrides = {
            f"{_MEGATRON}.{name}": getattr(plan, name) for name in _SIZES
        }
        if job.model.num_moe_experts:
            tp = plan.expert_tensor_parallel_size or plan.tensor_model_parallel_size
            overrides[f"{_MEGATRON}.expert_tensor_parallel_size"] = tp
        if (chunks := plan.virtual_pipeline_model_parallel_size) > 1:
            overrides[f"{_MEGATRON}.virtual_pipeline_model_parallel_size"] = chunks
        overrides |= {
            f"{_MEGATRON}.sequence_parallel": bool(plan.sequence_parallel),
            f"{_MEGATRON}.use_distributed_optimizer": max(plan.zero_stage_by_stage())
            > 0,
            f"{_MEGATRON}.param_offload": leaves,
            f"{_MEGATRON}.optimizer_offload": leaves,
        }
        config = f"+{_MEGATRON}.override_transformer_config"
        for name, value in self._kept_options():
            overrides[f"{config}.{name}"] = value
        config = f"+{_MEGATRON}.override_ddp_config"
        execution = job.workload.execution
        wide = job.training.gradient_precision == "fp32"
        for name, is_on in (
            ("grad_reduce_in_fp32", wide),
            ("overlap_grad_reduce", execution.overlap_grad_reduce),
            ("overlap_param_gather", execution.overlap_param_gather),
        ):
            if is_on is not (name == "grad_reduce_in_fp32"):
                overrides[f"{config}.{name}"] = is_on
        return overrides

    def _kept_options(self) -> Iterator[tuple[str, object]]:
        """Yield the fields of Megatron's configuration that no size has."""
        names = {option: name for name, option in RENAMINGS[CORE].names.items()}
        for group in job_options(self.job):
            for option, value in group.options.items():
                if group.name in _OVERRIDDEN and option.startswith(_KEPT):
                    words = list(value)
                    field = _FIELDS.get(option) or names.get(option, option)
                    word = words[0] if len(words) == 1 else words or True
                    yield field.replace("-", "_"), word

    def _rollout(self) -> Overrides:
        engine = self.step.engine
        tp, ep = engine.tensor_parallel_size or 1, engine.expert_parallel_size
        rollout: Overrides = {
            f"{_ROLLOUT}.name": "vllm",
            f"{_ROLLOUT}.tensor_model_parallel_size": tp,
            f"{_ROLLOUT}.gpu_memory_utilization": engine.memory_utilisation,
            f"{_ROLLOUT}.max_num_seqs": engine.max_sequences,
        }
        if ep > 1:
            rollout |= {
                f"{_ROLLOUT}.data_parallel_size": ep,
                f"{_ROLLOUT}.expert_parallel_size": tp * ep,
            }
        if engine.precision == "fp16":
            rollout[f"{_ROLLOUT}.dtype"] = "float16"
        elif engine.precision != "bf16":
            rollout[f"{_ROLLOUT}.quantization"] = engine.precision
        return rollout

    def _critic(self) -> Overrides:
        if self.step.algorithm != "ppo":
            return {}
        actor = self._actor()
        kept = (*_SIZES, "offload", "override_transformer_config")
        alike = {
            _OF_CRITIC.get(key, key.replace(_ACTOR, "critic")): value
            for key, value in actor.items()
            if key in _OF_CRITIC
            or (key.lstrip("+").startswith(_MEGATRON) and any(n in key for n in kept))
        }
        return {
            "critic.strategy": actor[f"{_ACTOR}.strategy"],
            "critic.model.path": self.step.critic or "$MODEL",
            **alike,
        }

    def _devices(self) -> Overrides:
        node = self.job.devices_per_node
        trainer = self.num_devices - self.rollout_devices
        pools = {"trainer": trainer, "rollout": self.rollout_devices}
        overrides: Overrides = {}
        for pool, count in pools.items():
            if count:
                per_node = math.gcd(count, node)
                overrides[f"{pool}.nnodes"] = count // per_node
                overrides[f"{pool}.n_gpus_per_node"] = per_node
        return overrides

    def body(self) -> str:
        """Return the arrays and the command."""
        arrays, named = [], []
        for name, (comment, overrides) in self.groups().items():
            if overrides:
                lines = [
                    f"    {key}={_word(value)}" for key, value in overrides.items()
                ]
                arrays.append("\n".join([f"# {comment}", f"{name}=(", *lines, ")\n"]))
                named.append(f'    "${{{name}[@]}}" \\\n')
        program, config = self.program
        start = f"python3 -m {program} \\\n    --config-name={config}.yaml \\\n"
        return (
            f"MODEL=${{MODEL:-{quote(self.model or 'model')}}}\n"
            'TRAIN_FILES=${TRAIN_FILES:-"$HOME/data/train.parquet"}\n'
            'VAL_FILES=${VAL_FILES:-"$HOME/data/test.parquet"}\n\n'
            + "\n".join(arrays)
            + f"\n{start}"
            + '    actor_rollout_ref.model.path="$MODEL" \\\n'
            + '    data.train_files="$TRAIN_FILES" data.val_files="$VAL_FILES" \\\n'
            + "".join(named)
            + '    "$@"\n'
        )

    def text(self, gaps: tuple[LaunchGap, ...]) -> str:
        """Return the script, with what it does not say in its first lines."""
        sentences = [f"Not expressed: {gap}" for gap in gaps] + [*self.notes()]
        lines = [line for sentence in sentences for line in wrap(sentence, 84)]
        heading = [f"{self.job.title}: a step for {VERSION}.", *lines]
        comments = "".join(f"# {line}\n" for line in heading)
        return f"#!/bin/bash\n{comments}set -e\n\n{self.body()}"

    def notes(self) -> Iterator[str]:
        """Yield what users must know."""
        yield "Data and rewards are yours: TRAIN_FILES, VAL_FILES, and verl's reward.*."
        if not self.model or self.model.endswith(".json"):
            yield "MODEL is the folder of the model's checkpoint."
        yield (
            "How long responses are follows from the data; max_prompt_length keeps "
            f"prompts of at most {self.step.prompt_length:,} tokens."
        )
        if self.step.critic is not None:
            yield "The critic's sizes are the actor's: they are yours to choose."

    def gaps(self) -> Iterator[LaunchGap]:
        """Yield what the launch, read back, does not say of the scenario."""
        read = self._read_back()
        if isinstance(read, LaunchGap):
            yield read
            return
        ours, theirs = self._compared(self.job.scenario), self._compared(read)
        ours["plan"] = asdict(self.job.settings)
        theirs["plan"] = _with_layout(theirs["plan"], self.job.num_blocks)
        if self.rollout_devices:
            del ours["rl"]["offload"]  # of devices that both share
        for table, settings in ours.items():
            for name, value in settings.items():
                other = theirs[table].get(name)
                if value != other and not _is_usual(table, name, value, other):
                    setting = f"{table}.{name}"
                    reason = _REASONS.get(setting, "verl has no setting for it.")
                    yield LaunchGap(setting, value, f"{reason} The launch has {other}.")

    def _read_back(self) -> Scenario | LaunchGap:
        step = self.step
        source = LaunchSource(
            path=Path(SCRIPT),
            text=self.body(),
            model=self.model or _STAND_INS[bool(self.job.model.num_moe_experts)],
            variables={
                "prompt_length": str(step.prompt_length),
                "response_length": str(step.response_length or 1),
                "step_overhead": f"{step.engine.step_overhead} s",
            },
        )
        try:
            job = TRAINERS["verl"](source)
            scenario = self.job.scenario
            read = imported_scenario(job, scenario.path, origin="", cluster=scenario)
        except InputError as error:
            return LaunchGap(
                error.where or "model",
                error.got,
                f"The launch could not be read back to see what it lacks: "
                f"{error.problem}.",
            )
        return read.scenario

    @staticmethod
    def _compared(scenario: Scenario) -> dict[str, Overrides]:
        """Return the settings of a scenario that are compared, by table."""
        assert scenario.rl is not None
        step = asdict(scenario.rl)
        engine = step.pop("engine")
        plan = {} if scenario.plan is None else asdict(scenario.plan)
        kept = {name: step[name] for name in step if name not in _OF_RUNS}
        training = {"gradient_precision": scenario.training.gradient_precision}
        return {"rl": kept, "rl.engine": engine, "plan": plan, "training": training}


def _with_layout(plan: Overrides, num_blocks: int) -> Overrides:
    """Return a plan whose first and last stages are told by a layout of all stages."""
    names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    ends = [plan[name] for name in names]
    given = [count for count in ends if count is not None]
    stages = plan["pipeline_model_parallel_size"]
    if not given or plan["virtual_pipeline_model_parallel_size"] > 1:
        return plan
    middle = (num_blocks - sum(given)) // max(stages - len(given), 1)
    first, last = (middle if count is None else count for count in ends)
    layout = (first, *[middle] * (stages - 2), last)
    left_out = dict.fromkeys(names)
    return {**plan, **left_out, "pipeline_model_parallel_layout": layout}


def _is_usual(table: str, name: str, value: object, other: object) -> bool:
    """Whether two values of a setting come to the same."""
    if table == "plan":
        alike = {None, 1, "auto", False}
        sole = isinstance(value, tuple) and {*value} == {other}
        return name in _FOLLOWS or sole or (value in alike and other in alike)
    return name == "response_length_cap" and other is None


_PLAIN = re.compile(r"[\w./:+-]*")


def _word(value: object) -> str:
    """Return a value as a word of a shell, in quotes of Hydra's where it needs some."""
    if value == "$MODEL":
        return '"$MODEL"'
    if isinstance(value, list):
        return quote(f"[{','.join(map(str, value))}]")
    text = str(value)
    return text if _PLAIN.fullmatch(text) else quote(f'"{text}"')
