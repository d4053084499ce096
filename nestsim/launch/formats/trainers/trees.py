"""Configurations that are trees.

Values that name others, files that build on others, the model that a name stands for.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from estimators.models.library import model_names
from topologies.errors import InputError
from topologies.input_file import Value, parse_yaml

MOST_BYTES = 1_000_000
"""Longest file that another one builds on [byte]."""

_DEEPEST = 8
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_ALIKE: tuple[tuple[str, str], ...] = (
    *(("llama31", "llama3"), ("llama33", "llama3"), ("gpt1", "gpt31")),
    *((f"qwen2{size}b", f"qwen25{size}b") for size in ("05", "15", "7", "72")),
    *(("glmz1", "glm4"), ("deepseekmath", "deepseekllm")),
)
"""Beginnings of names of models -> those of models of the same architecture."""
_PLAIN = {"true": True, "false": False, "null": None, "none": None}
_LETTERS = re.compile(r"[^a-z0-9]")
_VARIANTS = re.compile(
    r"meta-|-instruct|-chat|-base$|-hf$|-it$|-v0\.\d|-\d{4}$|-fp8|-bf16|-pretrain|"
    r"config|modelprovider|provider|\.yaml$"
)


def parsed_table(text: str, expected: str) -> dict[str, Any]:
    """Return the table that a YAML text is.

    Raises
    ------
    InputError
        If it is none.
    """
    document = Value(parse_yaml(text, expected=expected))
    return {str(name): value for name, value in document.table().items()}


def inner(tree: Any, path: str) -> Any:
    """Return a part of a tree by its dotted path; None if it is not there."""
    for name in path.split(".") if path else ():
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def overlaid(below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with another one laid over it."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        both = isinstance(under, dict) and isinstance(value, dict)
        merged[name] = overlaid(under, value) if both else value
    return merged


def with_references(root: Mapping[str, Any], given: Mapping[str, str]) -> Any:
    """Return a tree whose values that name others are those.

    ``${a.b}`` is a value from the top, ``${.b}`` one beside, ``${multiply:x, y}`` a
    product (NeMo); ``${NAME:value}`` a variable and its value where nothing sets it
    (Primus).
    """

    def walk(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {key: walk(part, (*path, str(key))) for key, part in value.items()}
        for _ in range(_DEEPEST):
            reference = _REFERENCE.search(value) if isinstance(value, str) else None
            named = reference and _named(root, given, reference[1], path)
            if reference is None or named is None or isinstance(named, dict):
                break
            if len(str(named)) * len(value) > MOST_BYTES:
                raise InputError("has too long values", got=reference[0])
            whole = reference[0] == value
            value = named if whole else value.replace(reference[0], str(named))
        return value

    return walk(root, ())


def _named(
    root: Any, given: Mapping[str, str], words: str, path: tuple[str, ...]
) -> Any:
    """Return the value that a reference at some path names, if it is there."""
    name, colon, rest = words.partition(":")
    if name == "multiply":
        parts = [plain_value(part) for part in rest.split(",")]
        return math.prod(parts) if all(isinstance(p, int) for p in parts) else None
    if colon:
        return plain_value(given.get(name, rest))
    beside = ".".join((*path[:-1], words[1:])) if words.startswith(".") else words
    return inner(root, beside) or inner(root, words.partition(".")[2] or words)


def plain_value(word: Any) -> Any:
    """Return what a word is: a number, yes or no, nothing, or a text."""
    if not isinstance(word, str):
        return word
    plain = word.strip()
    if re.fullmatch(r"-?\d{1,15}", plain):
        return int(plain)
    return _PLAIN.get(plain.lower(), plain)


def needed_model(name: str) -> str:
    """Return the model of the library that a name stands for.

    Parameters
    ----------
    name
        Of a repository of the Hugging Face hub, a class or a file.

    Raises
    ------
    InputError
        If there is none.
    """
    last = name.rstrip("/").rpartition("/")[2].lower()
    models = {_LETTERS.sub("", model): model for model in model_names()}
    for plain in (_LETTERS.sub("", last), _LETTERS.sub("", _VARIANTS.sub("", last))):
        for old, new in (("", ""), *_ALIKE):
            alike = new + plain.removeprefix(old)
            if plain.startswith(old) and alike in models:
                return models[alike]
    raise InputError(
        "nothing says what the model is",
        where="--model",
        got=name or None,
        expected="a name that `nestsim models` lists, or a config.json",
    )
