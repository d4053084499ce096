"""Read a launch of DeepSpeed: its JSON, or the script that starts it.

A script may write the JSON itself, in a here-document, or name one beside it; a host
file and a rank map beside it are read, too. Nothing is run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from nestsim.launch.carried import launch_table
from nestsim.launch.formats.deepspeed.script import (
    FORMAT,
    TrainerOptions,
    option_words,
    read_options,
)
from nestsim.launch.formats.deepspeed.tables import DeepSpeedLaunch, launch_tables
from nestsim.launch.ranks import RANK_MAP, parsed_rank_map
from nestsim.launch.read import ImportedJob, LaunchSource
from nestsim.launch.shell.marks import known_word, readable
from nestsim.launch.training import TrainingStart, find_training, program_place
from topologies.errors import InputError
from topologies.input_file import Value, parse_json, read_text

MAX_FILE = 64 * 2**20
"""Longest file beside a script that is read [byte]: a rank map of 8 million devices."""

_EXPECTED = "a JSON of DeepSpeed's, or a script that starts a job with it"
_LAUNCHER = re.compile(r"(?:.*/)?deepspeed(?:\.exe)?")
_OWN = frozenset({"--deepspeed", "--deepspeed-config"})
_STARTS = re.compile(
    r"^(?!\s*#|pip|import|from).*?"
    r"(?:--deepspeed\b|(?:^|[\s\"/])deepspeed\s+(?:-|\S*\.py))",
    re.MULTILINE,
)
"""A line that starts DeepSpeed."""
_MARKS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")


def is_deepspeed(source: LaunchSource) -> bool:
    """Whether a file looks like a JSON of DeepSpeed's, or a script that starts it."""
    if source.text.lstrip().startswith("{"):
        return any(f'"{mark}"' in source.text for mark in _MARKS)
    return _STARTS.search(source.text) is not None


def read_deepspeed(source: LaunchSource) -> ImportedJob:
    """Read a DeepSpeed JSON plus model, or a script.

    Raises
    ------
    InputError
        With the file and the option or key in the message.
    """
    folder = source.path.parent
    beside = source.model_table()
    if source.text.lstrip().startswith("{"):
        # Sizes that a JSON has no key for may be given as variables.
        words = {
            name.replace("_", "-"): (value,) for name, value in source.variables.items()
        }
        launch = DeepSpeedLaunch(
            options=_sizes_given(words),
            config=_parsed(source.text),
            num_devices=source.num_devices,
            model=beside,
            folder=folder,
        )
        return _job(source, launch, _node(None, source.num_devices), ())
    start = find_training(source, _trains)
    if start is None:
        raise InputError("starts nothing with DeepSpeed", expected=_EXPECTED)
    num_devices, node = _devices(start, folder)
    options = read_options(option_words(start.options))
    launch = DeepSpeedLaunch(
        options=options,
        config=_config(options, start, folder),
        num_devices=source.num_devices or num_devices,
        environment=start.environment,
        model=beside,
        folder=folder,
    )
    ranks = _rank_map(start, folder)
    if ranks is not None:
        if node is None:
            raise InputError(
                "names devices of nodes, and nothing says how many a node has",
                where=RANK_MAP,
                expected="--num_gpus N, or slots in a host file",
            )
        launch = replace(launch, devices=parsed_rank_map(ranks, node))
    return _job(source, launch, _node(node, launch.num_devices), start.assumptions)


def _job(
    source: LaunchSource,
    launch: DeepSpeedLaunch,
    node: int | None,
    assumptions: Sequence[str],
) -> ImportedJob:
    tables = launch_tables(launch)
    assumed = [*assumptions, *tables.assumptions]
    carried = launch_table(FORMAT, tables.kept, assumed)
    return ImportedJob(
        name=source.path.stem,
        tables=tables.tables | carried,
        num_devices=tables.num_devices,
        devices_per_node=node,
        assumptions=tuple(assumed),
        options=tables.effects,
    )


def _sizes_given(words: Mapping[str, tuple[str, ...]]) -> TrainerOptions:
    """Return variables that stand beside a JSON as options, of either kind."""
    found = read_options(words)
    megatron = {
        name: value
        for name, value in words.items()
        if name.endswith("parallel-size") or name in {"sequence-parallel"}
    }
    sizes = read_options({"num-layers": ("1",), "hidden-size": ("1",), **megatron})
    found.plan |= sizes.plan
    found.ignored = [name for name in found.ignored if name[2:] not in megatron]
    found.given, found.words = [], {}  # variables beside the file, no options of it
    return found


def _parsed(text: str) -> object:
    return parse_json(text, expected="a JSON of DeepSpeed's")


def _node(said: int | None, num_devices: int | None) -> int | None:
    if said is None or num_devices is None or num_devices % said:
        return None
    return said


def _trains(words: Sequence[str]) -> bool:
    """Whether a command starts DeepSpeed."""
    bare = {word.partition("=")[0].replace("_", "-") for word in words}
    places = [n for n, word in enumerate(words) if _LAUNCHER.fullmatch(word)]
    is_launcher = 0 in places or (places and program_place(words) is not None)
    return bool(bare & _OWN or is_launcher) and any(
        word.startswith("--") for word in words
    )


def _devices(start: TrainingStart, folder: Path) -> tuple[int | None, int | None]:
    """Return the devices that a command starts, and those of a node."""
    named = option_words(start.launcher).get("hostfile", ())
    if named and None in (start.nodes, start.devices_per_node):
        slots = _slots(start.files.get(named[0]) or _beside(named[0], folder) or "")
        if slots is None:
            return None, start.devices_per_node
        start = replace(
            start,
            nodes=start.nodes or slots[0],
            devices_per_node=start.devices_per_node or slots[1],
        )
    return start.num_devices, start.devices_per_node


def _slots(hosts: str) -> tuple[int, int] | None:
    """Return the hosts of a host file and the slots of each; None if they differ."""
    counts = [
        int(part.removeprefix("slots="))
        for line in hosts.splitlines()
        for part in line.split()[1:2]
        if re.fullmatch(r"slots=[0-9]{1,8}", part)
    ]
    return (len(counts), counts[0]) if counts and len(set(counts)) == 1 else None


def _config(options: TrainerOptions, start: TrainingStart, folder: Path) -> object:
    """Return the JSON that a script names, written by itself or beside it; or None."""
    name = options.launch.get("config")
    if name is None:
        return None
    written = start.files.get(name) or _beside(name, folder)
    if written is None:
        raise Value(readable(name), "--deepspeed_config").error(
            "is not beside the script",
            f"the file {PurePosixPath(readable(name)).name} in the script's folder",
        )
    try:
        return _parsed(readable(written))
    except InputError as error:
        known_word(written, readable(name))
        raise error.at(readable(name), ": ") from None


def _rank_map(start: TrainingStart, folder: Path) -> str | None:
    if "no-python" not in option_words(start.launcher):
        return None
    return start.files.get(RANK_MAP) or _beside(RANK_MAP, folder)


def _beside(name: str, folder: Path) -> str | None:
    """Return the text of a file of the script's folder; None if there is none."""
    if "\0" in name or not PurePosixPath(name).name:
        return None
    for path in (folder / name, folder / PurePosixPath(name).name):
        try:
            found = path.is_file()
        except OSError:
            found = False
        if found:
            return read_text(path, expected="a file of a launch", most_bytes=MAX_FILE)
    return None
