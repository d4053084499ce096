"""What a configuration of torchtitan says: options by their names of 0.2.2.

TOML files of all versions, and command lines of 0.3 as people write them into shell
scripts: with line continuations, comments, and variables.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nestsim.launch.carried import TableOptions, leaves, stored_words
from nestsim.launch.formats.torchtitan import names as titan
from nestsim.launch.read import LaunchSource
from nestsim.launch.shell.marks import known_word
from nestsim.launch.training import find_training
from nestsim.scenario.errors import nearest
from topologies.errors import InputError
from topologies.input_file import Value, parse_toml

_START = re.compile(r"torchtitan[./]train|run_train\.sh|--module[ =]")
_CONFIG = re.compile(r"--config\b|\bCONFIG=")
_STARTS = re.compile(
    r"\S*torchtitan[./]train\S*|(?:\S*/)?run_train\.sh|--module(=\S*)?"
)
"""A word of a command that starts torchtitan."""
_CHECKPOINT = "activation_checkpoint:"
_BEGINS = ("--", _CHECKPOINT)
"""What options begin with; one of them is a choice by its name."""
PRINTS = "Running with configs:"
"""What stands before the configuration in a log (``maybe_log`` of
``config/job_config.py``, 0.2.2, with ``job.print_config``)."""
_RANK = re.compile(r"^\[\w+\]: ?", re.MULTILINE)
"""What torchrun puts before each line."""


@dataclass(slots=True, kw_only=True)
class TitanOptions(TableOptions):
    """What a configuration says; the defaults are a registered function's."""

    function: str | None = None
    """Function of the registry that a command line names; None for a TOML file."""

    num_devices: int | None = None
    """Processes that the command line starts; None if it does not say."""

    devices_per_node: int | None = None
    """Processes of a node that it starts; None if it does not say."""

    @property
    def is_command(self) -> bool:
        """Whether it is of 0.3 or later."""
        return self.function is not None

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, which older files write as one with commas."""
        value = self.value(name)
        if isinstance(value.raw, str):
            value = Value([part for part in value.raw.split(",") if part], value.where)
        return value.each(Value.text, most=100_000)


def is_toml(source: LaunchSource) -> bool:
    """Whether a file looks like torchtitan's TOML, or a log that has it."""
    if PRINTS in source.text:
        return True
    try:
        document = _document(source.text)
    except InputError:
        return False
    tables = {name for name, value in document.items() if isinstance(value, dict)}
    typical = {"parallelism", "activation_checkpoint", "lr_scheduler", "metrics", "job"}
    return "training" in tables and bool(typical & tables) and "cluster" not in tables


def _document(text: str) -> dict[str, Any]:
    """Return what a TOML file says, or a log what it printed; nothing that is unset."""
    document = _RANK.sub("", text.rpartition(PRINTS)[2]).strip()
    if not document.startswith("{"):
        return parse_toml(text.encode())
    try:
        return dict(json.JSONDecoder().raw_decode(document)[0])
    except (ValueError, RecursionError):
        raise InputError(
            "prints no whole configuration", expected="a log of torchtitan, to its end"
        ) from None


def is_command(source: LaunchSource) -> bool:
    """Whether a file looks like a command line of torchtitan 0.3."""
    return bool(_START.search(source.text)) and bool(_CONFIG.search(source.text))


def read_toml(source: LaunchSource) -> TitanOptions:
    """Read a TOML file, or what a log printed, which is all options there are.

    Raises
    ------
    InputError
        If it is none, or a file has an option that is not known and may matter.
    """
    is_toml_file = not (PRINTS in source.text or source.text.lstrip().startswith("{"))
    known = titan.toml_names()
    values: dict[str, Value] = {}
    ignored: dict[str, Any] = {}
    for name, value in leaves(_document(source.text), known):
        if value is None:
            continue
        if name in known:
            _put(values, known[name], Value(value, name))
        else:
            if is_toml_file:
                _check_ignored(name, list(known))
            ignored[name] = value
    unknown = [name for name in ignored if ignored[name] and not titan.is_silent(name)]
    note = f"Nothing here stands for {', '.join(unknown)}: taken to change nothing."
    return TitanOptions(
        table=titan.TABLE,
        values=values,
        ignored=ignored,
        replaced=set(unknown),
        assumptions=[note] if unknown else [],
    )


def _put(values: dict[str, Value], name: str, value: Value) -> None:
    if name in values:
        raise Value(value.raw, value.where).error(
            f"is set as {values[name].where}, too", "one of the two names"
        )
    values[name] = value


def _check_ignored(name: str, known: list[str]) -> None:
    """Refuse an option that is not known and may matter."""
    if titan.is_silent(name):
        return
    raise InputError(
        "is no option of torchtitan that is known",
        where=name,
        expected="an option of torchtitan 0.0.2 to 0.3.0",
        hint=nearest(name, known),
    )


def read_command(source: LaunchSource) -> TitanOptions:
    """Read a command line, or the script that holds one.

    Raises
    ------
    InputError
        If there is none, or it has an option that is not known and may matter.
    """
    start = find_training(source, lambda words: any(map(_STARTS.fullmatch, words)))
    if start is None:
        raise InputError(
            "starts nothing that is known",
            expected="torchrun .. -m torchtitan.train --module ..",
        )
    known = {_plain(name): ours for ours, name in titan.command_names().items()}
    values: dict[str, Value] = {}
    ignored: dict[str, Any] = {}
    named: list[str] = []
    behind = {word.partition("=")[0] for word in start.options}
    function = start.environment.get("CONFIG", "")  # run_train.sh reads it
    for name, words in _options(start.words):
        value = " ".join(words)
        if name in ("config", "module"):
            function = value if name == "config" else function
            named.append(f"--{name}")
        elif "." not in name and name != _CHECKPOINT:
            if f"--{name}" in behind:  # else of a launcher
                ignored[name] = stored_words(words)
        elif not _read_option(name, value, known, values):
            _check_ignored(_plain(name), list(known))
            ignored[name] = stored_words(words)
    if not function:
        raise InputError(
            "no command line of torchtitan 0.3",
            expected="--module and --config, and options such as "
            "--parallelism.tensor_parallel_degree 8",
        )
    function = known_word(function, "--config")
    return TitanOptions(
        table=titan.TABLE,
        dashes="--",
        values=values,
        ignored=ignored,
        named=tuple(named),
        function=function,
        num_devices=start.num_devices,
        devices_per_node=start.devices_per_node,
        assumptions=[*start.assumptions],
        defaults=titan.REGISTRY[function][1] if function in titan.REGISTRY else {},
    )


def _options(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the options of a command with what stands behind each."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word.startswith(_CHECKPOINT):
            mode = word.removeprefix(_CHECKPOINT).replace("-", "_")
            yield _CHECKPOINT, [mode]
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            end = position
            while not equals and end < len(words) and not _begins(words[end]):
                end += 1
            yield name, [value] if equals else words[position:end]
            position = end


def _begins(word: str) -> bool:
    """Whether a word of a command begins an option."""
    return word.startswith(_BEGINS)


def _read_option(
    name: str, value: str, known: Mapping[str, str], values: dict[str, Value]
) -> bool:
    """Keep the value of an option; return whether it is known."""
    if name == _CHECKPOINT:
        mode = Value(known_word(value, name), "activation_checkpoint")
        values["activation_checkpoint.mode"] = mode
        return True
    plain = _plain(name)
    key = plain if plain in known else re.sub(r"\.no_", ".", plain)
    if key in known:
        shown = "false" if key != plain else known_word(value, f"--{name}")
        values[known[key]] = _typed(known[key], shown, f"--{name}")
    return key in known


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _typed(name: str, text: str, where: str) -> Value:
    """Return the value of a word as the option has it."""
    default = titan.OPTIONS[name].default
    if isinstance(default, bool):
        raw: Any = {"": True, "true": True, "false": False}.get(text.lower(), text)
    elif ".module_fqns_per_model_" in name:
        raw = [part.split(",") for part in text.split()]
    elif isinstance(default, list):
        raw = re.split(r"[ ,]+", text)
    elif re.fullmatch(r"-?\d{1,12}", text):
        raw = int(text)
    else:
        raw = None if text == "None" else text
    return Value(raw, where)
