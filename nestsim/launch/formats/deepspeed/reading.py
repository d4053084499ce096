"""Read a launch of DeepSpeed: its JSON, or the script that starts it.

A script may write the JSON itself, in a here-document, or name one beside it; a host
file and a rank map beside it are read, too. Nothing is run.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nestsim.launch.formats.deepspeed.ranks import parsed_rank_map
from nestsim.launch.formats.deepspeed.script import (
    TrainerOptions,
    option_words,
    read_options,
)
from nestsim.launch.formats.deepspeed.shell import ReadScript, read_script
from nestsim.launch.formats.deepspeed.tables import DeepSpeedLaunch, launch_tables
from nestsim.launch.read import ImportedJob, LaunchSource
from topologies.errors import InputError
from topologies.input_file import parse_json, read_text

MAX_FILE = 64 * 2**20
"""Longest file beside a script that is read [byte]: a rank map of 8 million devices."""

MOST_DEVICES = 16_000_000
"""Most devices that a job may be started on."""

RANK_MAP = "rank_map"
"""Name of the file with the rank of each device."""

_EXPECTED = "a JSON of DeepSpeed's, or a script that starts a job with it"
_NODES = ("num-nodes", "nnodes", "nodes")
_NODE_DEVICES = ("num-gpus", "num-accelerators", "nproc-per-node", "gpus-per-node")
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
            config=_at(source.path, source.text),
            num_devices=source.num_devices,
            model=beside,
            folder=folder,
        )
        return _job(source, launch, _node(None, source.num_devices), ())
    script = read_script(source.text, {**_scheduled(source.text), **source.variables})
    started = _started(script)
    options = read_options(option_words(started.options))
    launch = DeepSpeedLaunch(
        options=options,
        config=_config(options, script, folder),
        num_devices=source.num_devices or started.num_devices,
        environment={
            name: value[0] for name, value in script.variables.items() if value
        },
        model=beside,
        folder=folder,
    )
    ranks = _rank_map(started, script, folder)
    if ranks is not None:
        lines = len(ranks.split())
        launch = replace(launch, devices=parsed_rank_map(ranks))
        launch = replace(launch, num_devices=launch.num_devices or lines)
    node = _node(started.devices_per_node, launch.num_devices)
    return _job(source, launch, node, script.assumptions)


def _job(
    source: LaunchSource,
    launch: DeepSpeedLaunch,
    node: int | None,
    assumptions: Sequence[str],
) -> ImportedJob:
    tables = launch_tables(launch)
    return ImportedJob(
        name=source.path.stem,
        tables=tables.by_name(),
        num_devices=tables.num_devices,
        devices_per_node=node,
        assumptions=(*assumptions, *tables.assumptions),
        ignored=tuple(dict.fromkeys(tables.ignored)),
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
    return found


def _at(path: Path | str, text: str) -> object:
    try:
        return parse_json(text, expected="a JSON of DeepSpeed's")
    except InputError as error:
        raise error.at(str(path), ": ") from None


def _node(said: int | None, num_devices: int | None) -> int | None:
    if said is None or num_devices is None or num_devices % said:
        return None
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartCommand:
    """The command that starts a job."""

    options: tuple[str, ...]
    """Words behind the script's name."""
    num_devices: int | None
    """Devices that it is started on."""
    devices_per_node: int | None
    """Devices of a node."""
    is_mapped: bool
    """Whether ranks are told by a rank map."""


def _started(script: ReadScript) -> _StartCommand:
    """Return the command of a script that starts DeepSpeed, its last one."""
    for command in reversed(script.commands):
        words = tuple(part for word in command for part in _parts(word))
        bare = {word.partition("=")[0].replace("_", "-") for word in words}
        names = {PurePosixPath(word).name for word in words}
        if not bare & {"--deepspeed", "--deepspeed-config"} and not (
            names & {"deepspeed", "deepspeed.exe"}
        ):
            continue
        if not any(word.startswith("--") for word in words):
            continue
        return _read_command(words, script)
    raise InputError("starts nothing with DeepSpeed", expected=_EXPECTED)


def _scheduled(text: str) -> dict[str, str]:
    """Return variables that Slurm sets of a script's first lines."""
    found = re.search(
        r"^#SBATCH\s+(?:--nodes[= ]|-N\s*)(\d{1,8})\b", text, re.MULTILINE
    )
    if found is None:
        return {}
    return dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), found[1])


def _parts(word: str) -> list[str]:
    """Return a word; a command that is handed on as one text, word by word."""
    if " --" not in word:
        return [word]
    try:
        return shlex.split(word)
    except ValueError:  # a quote that is left open
        return word.split()


def _read_command(words: tuple[str, ...], script: ReadScript) -> _StartCommand:
    begin = next(
        (place for place, word in enumerate(words) if word.endswith(".py")), None
    )
    if begin is None:
        begin = next(
            (
                place + 1
                for place, word in enumerate(words)
                if word in {"--module", "-m"}
                and "torch.distributed" not in words[place + 1]
            ),
            0,
        )
    launcher = option_words(words[:begin])
    per_node = _count(launcher, _NODE_DEVICES)
    nodes = _count(launcher, _NODES)
    slots = _slots(launcher, script)
    if slots is not None:
        nodes = nodes or slots[0]
        per_node = per_node or slots[1]
    if nodes is None and per_node is not None and "hostfile" not in launcher:
        nodes = 1
    total = None if nodes is None or per_node is None else nodes * per_node
    if total is not None and total > MOST_DEVICES:
        raise InputError(
            "are more devices than any cluster has",
            got=total,
            expected=f"at most {MOST_DEVICES:,}",
        )
    return _StartCommand(
        options=words[begin + 1 :] if begin else words,
        num_devices=total,
        devices_per_node=per_node,
        is_mapped="no-python" in launcher,
    )


def _count(options: Mapping[str, Sequence[str]], names: Sequence[str]) -> int | None:
    for name in names:
        values = options.get(name, ())
        if values and values[0].isdecimal() and len(values[0]) < 9 and int(values[0]):
            return int(values[0])
    return None


def _slots(
    launcher: Mapping[str, Sequence[str]], script: ReadScript
) -> tuple[int, int] | None:
    """Return the hosts of a host file that the script writes, and slots of each."""
    named = launcher.get("hostfile", ())
    text = script.files.get(named[0]) if named else None
    if text is None:
        return None
    counts = [
        int(part.removeprefix("slots="))
        for line in text.splitlines()
        for part in line.split()[1:2]
        if re.fullmatch(r"slots=\d{1,8}", part)
    ]
    return (len(counts), counts[0]) if counts and len(set(counts)) == 1 else None


def _config(options: TrainerOptions, script: ReadScript, folder: Path) -> object | None:
    """Return the JSON that a script names: written by itself, or a file beside it."""
    name = options.launch.get("config")
    if name is None:
        return None
    written = script.files.get(name)
    if written is not None:
        return _at(name, written)
    text = _beside(name, folder)
    if text is None:
        raise InputError(
            "is not beside the script",
            where="--deepspeed_config",
            got=name,
            expected=f"the file {PurePosixPath(name).name} in the script's folder",
        )
    return _at(name, text)


def _rank_map(started: _StartCommand, script: ReadScript, folder: Path) -> str | None:
    if not started.is_mapped:
        return None
    return script.files.get(RANK_MAP) or _beside(RANK_MAP, folder)


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
