"""The command of a launch script that trains: its program, options and devices."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.options import GivenOptions
from nestsim.launch.read import LaunchSource
from nestsim.launch.shell.follow import words_of
from nestsim.launch.training import TrainingStart, find_training, program_place
from topologies.errors import InputError

_FEWEST = 3
_PROGRAM = re.compile(r"(?:.*/)?(pretrain_\w+\.py)")

_LAUNCHED = """
nproc_per_node nnodes node_rank master_addr master_port max_restarts rdzv_id
rdzv_backend rdzv_endpoint standalone tee log_dir role
"""

_LAUNCHERS = frozenset(_LAUNCHED.split())
"""Options of torchrun, where no program tells them from those behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """The command that trains."""

    given: GivenOptions
    """Its options."""

    script: str
    """The program, without its folder."""

    start: TrainingStart | None
    """How the script starts it; None for a file that has options and no command."""


def find_command(source: LaunchSource) -> TrainingCommand:
    """Return the command of a script, or the options of a plain file, that trains.

    Raises
    ------
    InputError
        If there is none, or the script is not understood.
    """
    start = find_training(source, _trains)
    words = _plain_words(source.text) if start is None else start.words
    if not _trains(words):
        raise InputError(
            "has no command that trains with Megatron-LM",
            expected="torchrun .. pretrain_gpt.py --num-layers .., or its options",
        )
    assumptions = [] if start is None else list(start.assumptions)
    return TrainingCommand(
        given=GivenOptions(values=_options(words), assumptions=assumptions),
        script=_program(words),
        start=start,
    )


def _plain_words(text: str) -> tuple[str, ...]:
    """Return the words of a file of options; none of what is no such file."""
    try:
        return tuple(words_of(text))
    except InputError:
        return ()


def _trains(words: Sequence[str]) -> bool:
    """Whether a command has options that only training has."""
    names = set(_options(words)) if any("--" in word for word in words) else set()
    sizes = {"num-layers", "encoder-num-layers", "hidden-size", "micro-batch-size"}
    return len(names & known.BY_NAME.keys()) >= _FEWEST and bool(names & sizes)


def _program(words: Iterable[str]) -> str:
    for word in words:
        found = _PROGRAM.fullmatch(word)
        if found is not None:
            return found[1]
    return known.GPT_SCRIPT


def _options(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options of a command; of one given twice the last.

    Those behind the program, where there is one: a launcher has options of its own.
    """
    program = program_place(words)
    found: dict[str, list[str]] = {}
    name = None
    for word in words[0 if program is None else program + 1 :]:
        if re.match(r"--[A-Za-z]", word):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif name is not None:
            found[name].append(word)
    return {
        name: tuple(values)
        for name, values in found.items()
        if program is not None or name.replace("-", "_") not in _LAUNCHERS
    }
