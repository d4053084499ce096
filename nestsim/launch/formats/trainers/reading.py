"""Configurations of trainers that stand on Megatron, each made a tree of settings.

NeMo and Megatron Bridge, NeMo RL, GPT-NeoX, Primus, slime and verl; `renaming` and `rl`
do the rest.
And the arguments that Megatron-LM prints when it starts, or stores in a checkpoint: all
values are resolved, so no shell is to be followed. A log has them line by line
(``_print_args`` of ``megatron/training/arguments.py``); a checkpoint has the
``argparse.Namespace`` under ``args`` (``megatron/training/checkpointing.py``), which
people also dump as text, JSON or YAML.
"""

import ast
import io
import json
import math
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nestsim.launch.carried import nested, overlaid
from nestsim.launch.formats.deepspeed.script import option_words
from nestsim.launch.formats.torchtitan.reading import read_torchtitan
from nestsim.launch.formats.torchtitan.sources import PRINTS
from nestsim.launch.formats.trainers.recipes import RecipeFile
from nestsim.launch.formats.trainers.renaming import (
    CORE,
    MOST_BYTES,
    RENAMINGS,
    Values,
    inner,
    needed_model,
    parsed_table,
    plain_value,
    tree_job,
    with_references,
)
from nestsim.launch.formats.trainers.rl import rl_job
from nestsim.launch.read import ImportedJob, LaunchSource, Settings
from nestsim.launch.shell.marks import without_unset
from nestsim.launch.training import TrainingStart, find_training
from topologies.errors import InputError
from topologies.input_file import Value, read_text

_PRINTED = re.compile(
    r"-{10,} (?:\w+ )?arguments -{10,}.*?(?:(-{10,} end of) (?:\w+ )?arguments|\Z)"
    r"|\b(?:Simple)?Namespace\(.*?(?:(\))\s*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""All of it, and what is there if it is whole."""
_LINE = re.compile(
    r"\b([A-Za-z]\w+) (?:\.{1,48} |(?<=\w{48} ) ?)(.*)$"
    r"|(?:(?<=\()|(?<=, ))(\w+)=(.*?)(?=, \w+=|\)\s*$)",
    re.MULTILINE,
)
"""A line of a log, or a word of a namespace."""
_OBJECT = re.compile(r"<([\w.]+)(?:: [^<>]*)?>")
_EXPECTED = "the arguments that Megatron-LM prints when it starts, to their end"
_MOST_PICKLED = 64_000_000
_BROKEN = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError),
    *(RecursionError, StopIteration, TypeError, ValueError),
    *(pickle.UnpicklingError, zipfile.BadZipFile),
)
_BACKENDS = ("", "flash", "fused", "unfused", "local", "auto")
"""``AttnBackend`` of ``megatron/core/transformer/enums.py``."""


def read_dump(source: LaunchSource) -> ImportedJob:
    """Read a log, or a namespace as text, JSON or YAML.

    Raises
    ------
    InputError
        If the arguments are not all there.
    """
    printed = _PRINTED.search(source.text)
    if printed is None:
        document = parsed_table(source.text, _EXPECTED)
        attributes = document.get("args", document)
    elif not (printed[1] or printed[2]):
        raise InputError("ends in the middle of the arguments", expected=_EXPECTED)
    else:
        lines = _LINE.findall(printed[0])
        attributes = {a or c: _value(b or d) for a, b, c, d in lines}
    return tree_job(source, attributes, CORE)


def _value(text: str) -> Any:
    """Return what a printed value is; the text itself if it is no literal."""
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _OBJECT.sub(r"\1", text.strip())
    return text.strip() if isinstance(value, tuple | set | dict) else value


def stored_arguments(path: Path) -> str | None:
    """Return the arguments in a checkpoint of Megatron-LM, as Python shows them.

    Only the index of the checkpoint is read (``model_optim_rng.pt``, or ``common.pt``
    of a distributed one), no tensor of it. Nothing is imported or called: whatever is
    no plain value is an empty object.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    str or None
        None if the file is no checkpoint.

    Raises
    ------
    InputError
        If it is a broken one, or has no arguments.
    """
    if not path.is_file() or not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(
                name for name in archive.namelist() if name.endswith("data.pkl")
            )
            with archive.open(name) as stored:
                content = stored.read(_MOST_PICKLED)
            document = _PlainUnpickler(io.BytesIO(content)).load()
        values = vars(document["args"]).items()
        return repr(Namespace(**{k: v for k, v in values if _is_plain(v)}))
    except _BROKEN:
        raise InputError(
            "is no whole checkpoint with arguments", expected="one of Megatron-LM"
        ) from None


def _is_plain(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, str | int | float) for part in parts)


class _Empty(dict[Any, Any]):
    """What stands for an object that is no plain value: nothing happens to it."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def append(self, *_: Any) -> None:
        """Take no value."""

    __setstate__ = append


_STAND_INS: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): Namespace,
    ("megatron.core.transformer.enums", "AttnBackend"): _BACKENDS.__getitem__,
    **{("torch", name): f"torch.{name}" for name in ("float32", "float16", "bfloat16")},
}
"""Module and name of what a checkpoint has -> what it is here."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain values, dictionaries and namespaces, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or a constant."""
        return _STAND_INS.get((module, name), _Empty)

    def persistent_load(self, pid: Any) -> Any:
        """Return nothing for the values of a tensor."""


_SIZED = re.compile(r"_(\d{1,6})gpu_")
_WORD = re.compile(r"\+*((?:\w+\.){0,20}\w+)=(.*)", re.DOTALL)
_UNSET = re.compile(r"-z \"?\$\{?(\w+)")
_CONFIG = re.compile(r"--config-name[= ]'?\"?(\w+)")
_ENGINE_LOG_PROBS = (
    "algorithm.rollout_correction.bypass_mode",
    "async_training.use_rollout_log_probs",
)
"""Whether trainers with pools of their own train on the engine's log-probabilities."""
_TENSOR = "megatron_cfg.tensor_model_parallel_size"


def _read_nemo(source: LaunchSource) -> ImportedJob:
    """Read a recipe (``--set RECIPE=name`` where there are several) or a YAML."""
    expected = "a recipe or a YAML of NeMo or Megatron Bridge"
    notes: list[str] = []
    if source.path.suffix == ".py":
        given = {key: plain_value(text) for key, text in source.variables.items()}
        try:
            file = RecipeFile.parsed(
                source.path, source.text, RENAMINGS["nemo"].functions
            )
            name = file.recipe(source.variables.get("RECIPE"))
            tree = file.call(name, (), given)
        except RecursionError:
            raise InputError("is nested too deep", expected=expected) from None
        notes += dict.fromkeys(file.notes)
        if source.num_devices is None and (sized := _SIZED.search(name)):
            notes.append(f"The job has {sized[1]} devices, as the recipe's name says.")
            source = replace(source, num_devices=int(sized[1]))
    else:
        tree = with_references(parsed_table(source.text, expected), source.variables)
    if not isinstance(inner(tree, "model"), dict):
        raise InputError("has no model", where="model", expected=expected)
    return tree_job(source, tree, "nemo", notes=notes)


def _read_neox(source: LaunchSource) -> ImportedJob:
    table = parsed_table(source.text, "a YAML of GPT-NeoX")
    plain = {name.replace("-", "_"): value for name, value in table.items()}
    return tree_job(source, plain, "neox", complete=_complete_neox)


def _size(values: Values, name: str, default: int | None = None) -> int:
    return Value(values.get(name) or default, name).whole(least=1, most=10**9)


def _complete_neox(source: LaunchSource, values: Values, _: list[str]) -> None:
    """Add sizes that NeoX computes: batch and feed-forward width."""
    size = partial(_size, values)
    factor = Value(values.get("expansion_factor") or 4, "expansion_factor").number()
    width = int(size("intermediate_size", int(factor * size("hidden_size"))))
    if values.get("swiglu") or values.get("quick_geglu"):
        width = int(width * 2 / 3) // 2
    multiple = size("mlp_multiple_of", 1)
    values["ffn_hidden_size"] = -(-width // multiple) * multiple
    values["use_flash_attn"] = "flash" in str(values.get("attention_config"))
    batches = values.get("micro_batch_size"), values.get("global_batch_size")
    needs = ["--num-devices N"] * (not source.num_devices)
    if not any(batches):
        raise InputError(
            "nothing says what a batch is",
            expected=" and ".join(["--set train_micro_batch_size_per_gpu=1", *needs]),
        )
    if all(batches):
        return
    if needs:
        raise InputError(
            "nothing says how many devices the job runs on",
            expected=f"{needs[0]}, or both sizes of batches in the file",
        )
    model_ranks = size("tensor_model_parallel_size") * size(
        "pipeline_model_parallel_size"
    )
    replicas = max(int(source.num_devices or 0) // model_ranks, 1)
    times = replicas * size("gradient_accumulation_steps", 1)
    if batches[1]:
        values["micro_batch_size"] = max(size("global_batch_size") // times, 1)
    else:
        values["global_batch_size"] = times * size("micro_batch_size")


def _read_primus(source: LaunchSource) -> ImportedJob:
    """Read an experiment, with the presets of Primus where it lies among them."""
    expected = "an experiment of Primus with a pre_trainer"
    document = with_references(parsed_table(source.text, expected), source.variables)
    modules = inner(document, "modules")
    module = next(iter(modules.values()), None) if isinstance(modules, dict) else None
    if not isinstance(module, dict):
        raise InputError("has no module", where="modules", expected=expected)
    framework = Value(module.get("framework"), "framework").choice(
        ["megatron", "torchtitan"]
    )
    tree: Settings = {}
    for kind, key in (("modules", "config"), ("models", "model")):
        name = f"primus/configs/{kind}/{framework}/{module.get(key)}"
        places = (above / name for above in source.path.resolve().parents)
        path = next(filter(Path.is_file, places), None)
        if path is not None:
            tree = overlaid(tree, _extended(path, "extends", expected, set()))
        elif key == "model" and source.model is None:
            source = replace(source, model=needed_model(str(module.get(key))))
    overrides = module.get("overrides") or {}
    tree = overlaid(tree, Value(overrides, "overrides").table())
    tree = with_references(tree, source.variables)
    if framework == "torchtitan":
        converters = inner(tree, "model.converters")
        if isinstance(converters, list) and "primus_turbo" in converters:
            converters.remove("primus_turbo")  # kernels
        text = f"{PRINTS} {json.dumps(tree, default=str)}"
        return read_torchtitan(replace(source, text=text))
    return tree_job(source, tree, "primus")


def _extended(
    path: Path, key: str, expected: str, read: set[Path], text: str | None = None
) -> Settings:
    """Return what a file says, over those that it builds on, each once.

    ``key`` names them, from its folder; ``text`` is its content, if that was read.
    """
    try:
        if text is None:
            text = read_text(path, expected=expected, most_bytes=MOST_BYTES)
        table = parsed_table(text, expected)
    except InputError as error:
        raise error.at(path.name, ": ") from None
    tree: Settings = {}
    below = table.pop(key, None) or []
    for name in Value([below] if isinstance(below, str) else below, key).each(
        Value.text
    ):
        place = (path.parent / name).resolve()
        if place not in read:
            read.add(place)
            tree = overlaid(tree, _extended(place, key, expected, read))
    return overlaid(tree, table)


def _start(source: LaunchSource, trainer: str) -> TrainingStart:
    """Return the command that starts a trainer."""
    mark = RENAMINGS[trainer].marks[0]
    start = find_training(
        source, lambda words: any(re.match(mark, word) for word in words)
    )
    if start is None:
        unset = dict.fromkeys(_UNSET.findall(source.text))
        needs = " ".join(f"--set {name}=.." for name in unset)
        raise InputError(f"starts no {trainer}", expected=needs or "it, on Megatron")
    return start


def _read_slime(source: LaunchSource) -> ImportedJob:
    start = _start(source, "slime")
    tree: Settings = {}
    for name, given in option_words(start.options).items():
        words = [*given[:1], *filter(without_unset, given[1:])]
        value = plain_value(words[0]) if len(words) == 1 else words or True
        tree[name.replace("-", "_")] = value
    step: Settings = {}
    notes = list(start.assumptions)
    if "async" in (start.program or ""):
        step["lag"] = 1
    if tree.get("debug_train_only") or tree.get("loss_type") == "sft_loss":
        step["prompts"] = None
        notes.append("Nothing is rolled out; sequences are as long as the longest.")
    return rl_job(source, tree, "slime", notes=notes, program=step)


def _read_verl(source: LaunchSource) -> ImportedJob:
    """Read a script with overrides, or a YAML of the trainer's settings."""
    program, notes = "", list[str]()
    if re.search(r"^actor_rollout_ref:", source.text, re.MULTILINE):
        table = parsed_table(source.text, "a YAML of verl")
        program = str(table.get("defaults"))
        tree = with_references(table, source.variables)
    else:
        start = _start(source, "verl")
        words = filter(None, map(_WORD.fullmatch, start.options))
        tree = nested((word[1], plain_value(word[2].strip("'\""))) for word in words)
        program = " ".join((*start.launcher, str(start.program), *start.options[:4]))
        notes += start.assumptions
        named = _CONFIG.search(" ".join(start.options))
        if named and not named[1].endswith("_trainer"):
            notes.append(f"What {named[1]}.yaml says beside the script is not read.")
    actor = inner(tree, "actor_rollout_ref.actor")
    if not isinstance(actor, dict):
        raise InputError(
            "trains no actor",
            where="actor_rollout_ref.actor",
            expected="a script or YAML of verl's reinforcement learning",
        )
    on_megatron = "megatron" in actor or "megatron" in program
    actor.setdefault("strategy", "megatron" if on_megatron else "fsdp")
    pools = _verl_pools(tree, program)
    return rl_job(
        source, tree, "verl", notes=notes, program=pools, complete=_complete_verl
    )


def _verl_pools(tree: Settings, program: str) -> Settings:
    """Return what the trainers with pools of their own say of a step."""
    size = partial(inner, tree)
    takes = not any(size(path) is False for path in _ENGINE_LOG_PROBS)
    if "one_step_off" in program:
        return {"colocated": False, "lag": 1, "engine_log_probs": takes}
    if "fully_async" not in program:
        return {}
    rounds = [
        Value(size(path) or usual, path).whole(least=1, most=10**6)
        for path, usual in (
            ("async_training.trigger_parameter_sync_step", 4),
            ("async_training.require_batches", 1),
            ("actor_rollout_ref.actor.ppo_mini_batch_size", 256),
        )
    ]
    return {
        "colocated": False,
        "is_asynchronous": True,
        "engine_log_probs": takes,
        "updates": rounds[0] * rounds[1],
        "prompts": math.prod(rounds),
    }


def _complete_verl(source: LaunchSource, values: Values, _: list[str]) -> None:
    """Add what FSDP means to Megatron: sharding, recompute, context."""
    checkpoints = values.pop("gradient_checkpointing", True)
    size = values.pop("sharding_size", -1)
    if not values.get("use_torch_fsdp2"):
        return
    if checkpoints:
        values["recompute_granularity"] = "full"
    if _size(values, "context_parallel_size", 1) > 1:
        values["cp_comm_type"] = "a2a"  # Ulysses
    counted = [values.get(name, 1) for name in ("num_nodes", "devices_per_node")]
    is_known = all(isinstance(count, int) for count in counted)
    count = source.num_devices or (math.prod(counted) if is_known else 0)
    if isinstance(size, int) and 0 < size < count:
        values["num_distributed_optimizer_instances"] = count // size


def _nemo_policy(tree: Settings, expected: str) -> Settings:
    """Return what is trained, without the settings of the backend that is off."""
    policy = inner(tree, "policy")
    if not isinstance(policy, dict):
        raise InputError("trains no policy", where="policy", expected=expected)
    if not any(inner(tree, f"{name}.num_prompts_per_step") for name in ("grpo", "ppo")):
        raise InputError(
            "rolls nothing out",
            where="grpo.num_prompts_per_step",
            expected=f"{expected} for GRPO or PPO",
        )
    on_megatron = inner(policy, "megatron_cfg.enabled") is True
    policy.pop("dtensor_cfg" if on_megatron else "megatron_cfg", None)
    return policy


def _read_nemo_rl(source: LaunchSource) -> ImportedJob:
    """Read a recipe, with those that it builds on beside it."""
    expected = "a configuration of NeMo RL"
    read = {source.path.resolve()}
    tree = _extended(source.path, "defaults", expected, read, source.text)
    tree = with_references(tree, source.variables)
    policy = _nemo_policy(tree, expected)
    node, nodes = (
        Value(inner(tree, f"cluster.{name}") or 1, f"cluster.{name}").whole(
            least=1, most=10**6
        )
        for name in ("gpus_per_node", "num_nodes")
    )
    pools: Settings = {}
    if nodes > 1:
        pools["node"] = node
    backend = inner(policy, "generation.backend") or "vllm"
    notes = []
    if backend == "megatron":
        pools["engine_devices"] = inner(policy, _TENSOR) or 1
    elif backend != "vllm":
        notes.append(f"Engines of {backend} are set up as those of vLLM.")

    def complete(given: LaunchSource, values: Values, _: list[str]) -> None:
        # Of all devices of the cluster the policy has those without the rollout.
        values.pop("num_nodes", None)
        values["num_devices"] = given.num_devices
        if (
            values.get("use_torch_fsdp2")
            and _size(values, "tensor_model_parallel_size", 1) > 1
        ):
            values["preset"] = "torchtitan"  # FSDP2 with tensor parallelism

    if source.num_devices is None:
        source = replace(source, num_devices=node * nodes)
    return rl_job(
        source, tree, "nemo-rl", notes=notes, program=pools, complete=complete
    )


TRAINERS: Mapping[str, Callable[[LaunchSource], ImportedJob]] = {
    "nemo-rl": _read_nemo_rl,
    "verl": _read_verl,
    "nemo": _read_nemo,
    "neox": _read_neox,
    "primus": _read_primus,
    "slime": _read_slime,
}
"""Name of a trainer -> what reads its configurations."""
