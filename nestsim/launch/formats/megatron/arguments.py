"""The command of a launch script that trains: its program, options and devices."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.given import GivenOptions
from nestsim.launch.read import LaunchSource
from nestsim.launch.shell.follow import ScriptRun, Started, follow_script
from nestsim.launch.shell.words import first_unknown, words_of
from topologies.errors import InputError

_FEWEST = 3
_PROGRAM = re.compile(r"(?:.*/)?(pretrain_\w+\.py)")
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_NODES = ("nnodes", "nodes", "N", "num_nodes", "num-nodes")
_PER_NODE = (
    "nproc_per_node",
    "nproc-per-node",
    "ntasks-per-node",
    "gpus-per-node",
    "num_gpus",
    "gres",
)
_RANKS = ("ntasks", "n", "np", "world-size")
_VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "nodes": ("NNODES", "NUM_NODES", "NODES", "N_NODES"),
        "per node": ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS", "GPUS"),
    }
)
_STARTERS = frozenset(
    {"torchrun", "srun", "sbatch", "deepspeed", "mpirun", "mpiexec", "salloc"}
)


_LAUNCHERS = frozenset(
    {
        "nproc_per_node",
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
        "max_restarts",
        "rdzv_id",
        "rdzv_backend",
        "rdzv_endpoint",
        "standalone",
        "tee",
        "log_dir",
        "role",
    }
)
"""Options of torchrun, where no program tells them from those behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """The command that trains."""

    given: GivenOptions
    """Its options."""

    script: str
    """The program, without its folder."""

    nodes: int | None
    """Nodes that it runs on; None if nothing says how many."""

    devices_per_node: int | None
    """Devices of a node; None if nothing says how many."""

    world: int | None = None
    """Ranks, where the script counts them itself."""


def find_command(source: LaunchSource) -> TrainingCommand:
    """Return the command of a script, or the options of a plain file, that trains.

    Raises
    ------
    InputError
        If there is none, or the script is not understood.
    """
    variables = dict(source.variables)
    for name, value in _slurm(source.text).items():
        variables.setdefault(name, value)
    run = follow_script(source.text, variables)
    commands = [one for one in run.commands if _trains(one.words)]
    if not commands:
        return _plain_options(source)
    assumptions = list(run.assumptions)
    first = commands[0]
    others = {one.words for one in commands} - {first.words}
    if others:
        assumptions.append(
            f"The script trains {len(others) + 1} times; the first, in line "
            f"{first.line}, is read."
        )
    given = GivenOptions(values=_options(first.words), assumptions=assumptions)
    started = _Devices(run, source.text)
    return TrainingCommand(
        given=given,
        script=_program(first.words),
        nodes=started.nodes(first),
        devices_per_node=started.per_node(first),
        world=started.world(first),
    )


def _plain_options(source: LaunchSource) -> TrainingCommand:
    """Read a file that has options and no command."""
    words = tuple(words_of(source.text))
    if not _trains(words):
        raise InputError(
            "has no command that trains with Megatron-LM",
            expected="torchrun .. pretrain_gpt.py --num-layers .., or its options",
        )
    return TrainingCommand(
        given=GivenOptions(values=_options(words)),
        script=_program(words),
        nodes=None,
        devices_per_node=None,
    )


def _trains(words: Sequence[str]) -> bool:
    """Whether a command has options that only training has."""
    names = set(_options(words)) if any("--" in word for word in words) else set()
    sizes = {"num-layers", "encoder-num-layers", "hidden-size", "micro-batch-size"}
    return len(names & set(known.by_name())) >= _FEWEST and bool(names & sizes)


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
    program = _program_index(words)
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


def _program_index(words: Sequence[str]) -> int | None:
    """Return where the program stands in a command; None if there is none."""
    known_ones = [n for n, word in enumerate(words) if _PROGRAM.fullmatch(word)]
    others = [n for n, word in enumerate(words) if word.endswith(".py")]
    return next(iter((*known_ones, *others)), None)


def _slurm(text: str) -> dict[str, str]:
    """Return the variables that Slurm sets by the directives of a script."""
    words = [word for line in _DIRECTIVE.findall(text) for word in line.split()]
    nodes = _launcher_value(words, _NODES)
    if nodes is None:
        return {}
    return {"SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes)}


def _launcher_value(words: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the largest number behind one of some options of a launcher.

    One task a node beside eight GPUs of a node are eight.
    """
    numbers = []
    for index, word in enumerate(words):
        plain, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or plain not in names:
            continue
        if not equals:
            value = words[index + 1] if index + 1 < len(words) else ""
        # "gpu:8", "gpu:a100:8(S:0-1)", "1:4" (elastic: from, to)
        found = re.fullmatch(r"(?:gpu:)?(?:\w+:)?(\d{1,7})(?:\(.*)?", value)
        if found is not None:
            numbers.append(int(found[1]))
    return max(numbers, default=0) or None


@dataclass(slots=True)
class _Devices:
    """How many nodes and devices a script asks for, wherever it says so."""

    run: ScriptRun
    text: str
    directives: list[str] = field(init=False)

    def __post_init__(self) -> None:
        lines = _DIRECTIVE.findall(self.text)
        self.directives = [word for line in lines for word in line.split()]

    def nodes(self, command: Started) -> int | None:
        """Return the nodes of a command."""
        return self._first(command, _NODES, "nodes")

    def world(self, command: Started) -> int | None:
        """Return the ranks where no launcher counts them: what the script says."""
        if self._launched(command, _PER_NODE) is not None:
            return None
        size = self.run.variables.get("WORLD_SIZE")
        if isinstance(size, str) and size.isdecimal() and 0 < len(size) < 9:
            return int(size) or None
        return None

    def per_node(self, command: Started) -> int | None:
        """Return the devices of a node."""
        found = self._first(command, _PER_NODE, "per node")
        if found is not None and found > 1:
            return found
        ranks, nodes = self._launched(command, _RANKS), self.nodes(command)
        if ranks and nodes and ranks % nodes == 0:
            return ranks // nodes
        return found

    def _first(self, command: Started, names: Sequence[str], kind: str) -> int | None:
        found = self._launched(command, names)
        if found is None:
            found = _launcher_value(self.directives, names)
        for name in _VARIABLES[kind] if found is None else ():
            value = self.run.variables.get(name)
            if isinstance(value, str) and value.isdecimal() and 0 < len(value) < 8:
                return int(value) or None
        return found

    def _launched(self, command: Started, names: Sequence[str]) -> int | None:
        """Return what launchers say: that of the command first, then others."""
        starters = [
            one.words
            for one in self.run.commands
            if one.words and one.words[0].rpartition("/")[2] in _STARTERS
        ]
        for words in (command.words, *starters):
            end = _program_index(words)
            plain = [word for word in words[:end] if first_unknown(word) is None]
            found = _launcher_value(plain, names)
            if found is not None:
                return found
        return None
