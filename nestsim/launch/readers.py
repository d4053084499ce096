"""Formats of launch configurations that are read, by name and by what files look like.

Apart from those that are written: whoever asks what a plan's framework can launch, as
searches do, needs none of what reads shell scripts.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nestsim.launch.formats.deepspeed.reading import is_deepspeed, read_deepspeed
from nestsim.launch.formats.maxtext.reading import read_maxtext
from nestsim.launch.formats.maxtext.sources import is_maxtext
from nestsim.launch.formats.megatron.reading import is_megatron, read_megatron
from nestsim.launch.formats.torchtitan.reading import is_torchtitan, read_torchtitan
from nestsim.launch.formats.trainers.reading import TRAINERS, read_dump
from nestsim.launch.formats.trainers.renaming import CORE, RENAMINGS
from nestsim.launch.read import ImportedJob, LaunchSource
from nestsim.launch.registry import unknown_format
from topologies.errors import InputError

ASSUMED_BATCH = 512
"""Sequences of an optimizer step that are assumed."""


def is_huggingface(source: LaunchSource) -> bool:
    """Whether a file looks like the configuration of a model of the hub."""
    try:
        content = json.loads(source.text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "model_type" in content


def read_huggingface(source: LaunchSource) -> ImportedJob:
    """Read a model; the job and its plan are left to the user and the search."""
    return ImportedJob(
        name=source.path.resolve().parent.name or source.path.stem,
        tables={
            "model": {"config": str(source.path.resolve())},
            "training": {"global_batch_size": ASSUMED_BATCH},
            "software": {"preset": "megatron-core"},
        },
        num_devices=source.num_devices,
        assumptions=(
            f"A step takes {ASSUMED_BATCH} sequences of the longest length that the "
            "model allows.",
            "The framework is Megatron Core.",
            "There is no plan: `nestsim run` searches one.",
        ),
    )


@dataclass(frozen=True, slots=True)
class LaunchReader:
    """How configurations of one format are known and read."""

    title: str
    """What the format is called in sentences."""

    recognizes: Callable[[LaunchSource], bool]
    """Whether a file is likely of this format."""

    read: Callable[[LaunchSource], ImportedJob]
    """Reads one."""


READERS: Mapping[str, LaunchReader] = MappingProxyType(
    {
        # In front of scripts: a log may begin with one.
        **{
            name: LaunchReader(RENAMINGS[name].title, RENAMINGS[name].recognizes, read)
            for name, read in {CORE: read_dump, **TRAINERS}.items()
        },
        # In front of Megatron-LM, whose options Megatron-DeepSpeed shares.
        "deepspeed": LaunchReader(
            "a DeepSpeed JSON or a script that starts DeepSpeed",
            is_deepspeed,
            read_deepspeed,
        ),
        "huggingface": LaunchReader(
            "a Hugging Face config.json", is_huggingface, read_huggingface
        ),
        "torchtitan": LaunchReader(
            "a TOML file, command line or log of torchtitan",
            is_torchtitan,
            read_torchtitan,
        ),
        "maxtext": LaunchReader(
            "a YAML file, script or log of MaxText", is_maxtext, read_maxtext
        ),
        "megatron": LaunchReader(
            "a launch script or command line of Megatron-LM", is_megatron, read_megatron
        ),
    }
)
"""Name of a format -> what reads it, in the order in which files are tried."""


def find_reader(
    source: LaunchSource, name: str | None = None, option: str = "--from"
) -> LaunchReader:
    """Return what reads a file: by the format's name, or by what the file looks like.

    ``option`` is what messages call the name.

    Raises
    ------
    InputError
        If there is none of that name, or the file looks like none.
    """
    if name is not None:
        if name not in READERS:
            raise unknown_format(name, READERS, option)
        return READERS[name]
    for reader in READERS.values():
        if reader.recognizes(source):
            return reader
    raise InputError(
        "is no launch configuration that is known",
        expected=", ".join(reader.title for reader in READERS.values()),
        hint=f"{option} says which it is: {', '.join(READERS)}",
    )
