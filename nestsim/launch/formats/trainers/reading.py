"""Configurations of trainers that stand on Megatron, each made a tree of settings.

NeMo and Megatron Bridge, GPT-NeoX, Primus, slime and verl; `renaming` does the rest.
And the arguments that Megatron-LM prints when it starts, or stores in a checkpoint: all
values are resolved, so no shell is to be followed. A log has them line by line
(``_print_args`` of ``megatron/training/arguments.py``); a checkpoint has the
``argparse.Namespace`` under ``args`` (``megatron/training/checkpointing.py``), which
people also dump as text, JSON or YAML.
"""

import ast
import io
import json
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
from nestsim.launch.read import ImportedJob, LaunchSource
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
    tree: dict[str, Any] = {}
    for kind, key in (("modules", "config"), ("models", "model")):
        name = f"primus/configs/{kind}/{framework}/{module.get(key)}"
        places = (above / name for above in source.path.resolve().parents)
        path = next(filter(Path.is_file, places), None)
        if path is not None:
            tree = overlaid(tree, _extended(path, expected, set()))
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


def _extended(path: Path, expected: str, read: set[Path]) -> dict[str, Any]:
    """Return what a preset says, over those that it extends, each once."""
    try:
        text = read_text(path, expected=expected, most_bytes=MOST_BYTES)
        table = parsed_table(text, expected)
    except InputError as error:
        raise error.at(path.name, ": ") from None
    tree: dict[str, Any] = {}
    for name in Value(table.pop("extends", None) or [], "extends").each(Value.text):
        place = (path.parent / name).resolve()
        if place not in read:
            read.add(place)
            tree = overlaid(tree, _extended(place, expected, read))
    return overlaid(tree, table)


def _start(source: LaunchSource, trainer: str) -> TrainingStart:
    """Return the command that starts a trainer."""
    (mark,) = RENAMINGS[trainer].marks
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
    tree = {
        name: plain_value(words[0]) if len(words) == 1 else list(words) or True
        for name, words in option_words(start.options).items()
    }
    return tree_job(source, tree, "slime", notes=start.assumptions)


def _read_verl(source: LaunchSource) -> ImportedJob:
    start = _start(source, "verl")
    words = filter(None, map(_WORD.fullmatch, start.options))
    tree = nested((word[1], plain_value(word[2])) for word in words)
    notes = start.assumptions
    return tree_job(source, tree, "verl", notes=notes, complete=_complete_verl)


def _complete_verl(_: LaunchSource, values: Values, notes: list[str]) -> None:
    """Add what verl computes: the length of sequences, the batch of a step."""
    size = partial(_size, values)
    length = size("max_prompt_length") + size("max_response_length")
    values["seq_length"] = values.get("seq_length", length)
    values["global_batch_size"] = size("global_batch_size") * size("answers")
    notes.append("All sequences are as long as the longest prompt and answer.")


TRAINERS: Mapping[str, Callable[[LaunchSource], ImportedJob]] = {
    "nemo": _read_nemo,
    "neox": _read_neox,
    "primus": _read_primus,
    "slime": _read_slime,
    "verl": _read_verl,
}
"""Name of a trainer -> what reads its configurations."""
