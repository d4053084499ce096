"""The command of a launch script that trains, and the devices that it starts.

Launchers are torchrun, DeepSpeed's, Slurm's and MPI's; where none of them says how many
devices there are, the script's variables do, by the names that people give them.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from textwrap import indent
from types import MappingProxyType

from nestsim.launch.read import MOST_DEVICES, LaunchSource
from nestsim.launch.shell.follow import ScriptRun, follow_script
from nestsim.launch.shell.marks import first_unknown
from nestsim.launch.shell.state import Started
from topologies.errors import InputError
from topologies.input_file import Value

_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_NODES = ("nnodes", "nodes", "N", "num-nodes")
_PER_NODE = (
    "nproc-per-node",
    "ntasks-per-node",
    "gpus-per-node",
    "num-gpus",
    "num-accelerators",
    "gres",
)
_RANKS = ("ntasks", "n", "np", "world-size")
_VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "nodes": ("NNODES", "NUM_NODES", "NODES", "N_NODES"),
        "per node": ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS", "GPUS", "NGPU"),
    }
)
_PRETRAINS = re.compile(r"(?:.*/)?pretrain_\w+\.py")
CHECK = "check_launch.py"
"""Name of the script that compares a launch with what was priced, before it."""

_CHECK_LINES = re.compile(
    rf'^ *HERE=[^\n]*\n *if \[ -f "\$HERE/{CHECK}" \]; then\n.*?^ *fi$',
    re.DOTALL | re.MULTILINE,
)

CHECK_COMMAND = f'"$HERE/{CHECK}" "$HERE/groups.json"'
"""How it is called, where ``HERE`` is its folder."""

_STARTERS = frozenset(
    {"torchrun", "srun", "sbatch", "deepspeed", "mpirun", "mpiexec", "salloc"}
)
_DEEPEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStart:
    """A command that trains, in its script."""

    launcher: tuple[str, ...]
    """Words in front of the program; empty if no program is named."""

    program: str | None
    """Python file or module that it starts; None if none is named."""

    options: tuple[str, ...]
    """Words behind the program; all where none is named."""

    environment: Mapping[str, str]
    """Variables of the script where it starts, and those of this command alone."""

    files: Mapping[str, str]
    """Files that the script writes."""

    nodes: int | None
    """Nodes that it runs on; None if nothing says how many."""

    devices_per_node: int | None
    """Devices of a node; None if nothing says how many."""

    world: int | None
    """Ranks, where the script counts them itself."""

    assumptions: tuple[str, ...]
    """What was taken where only running the script would tell."""

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the command."""
        named = () if self.program is None else (self.program,)
        return (*self.launcher, *named, *self.options)

    @property
    def num_devices(self) -> int | None:
        """Devices that it starts, on one node if nothing says how many; or None.

        Raises
        ------
        InputError
            If there are more than in any cluster.
        """
        if self.devices_per_node is None:
            return None
        count = self.world or (self.nodes or 1) * self.devices_per_node
        if count > MOST_DEVICES:
            raise Value(count).error(
                "are more devices than any cluster has", f"at most {MOST_DEVICES:,}"
            )
        return count


def find_training(
    source: LaunchSource, trains: Callable[[Sequence[str]], bool]
) -> TrainingStart | None:
    """Return the first command of a script that trains; None if there is none.

    Parameters
    ----------
    source
        The script, and the variables that its surroundings set.
    trains
        Whether the words of a command are of one that trains.

    Raises
    ------
    InputError
        If the script is not understood.
    """
    directives = [
        word for line in _DIRECTIVE.findall(source.text) for word in line.split()
    ]
    text = _CHECK_LINES.sub(lambda block: "\n" * block[0].count("\n"), source.text)
    variables = {**_slurm(directives), **source.variables}
    run = follow_script(text, variables, path=source.path)
    commands = [command for command in run.commands if not _checks(command.words)]
    training = [command for command in commands if trains(command.words)] or [
        command for command in _handed_on(commands) if trains(command.words)
    ]
    if not training:
        return None
    first = training[0]
    assumptions = list(run.assumptions)
    others = {command.words for command in training} - {first.words}
    if others:
        assumptions.append(
            f"The script trains {len(others) + 1} times; the first, in line "
            f"{first.line}, is read."
        )
    place = program_place(first.words)
    begin = 0 if place is None else place + 1
    environment = {**first.variables, **first.environment, **_sent(first.words)}
    devices = _Devices(run, environment, directives)
    return TrainingStart(
        launcher=first.words[:place] if begin else (),
        program=first.words[begin - 1] if begin else None,
        options=first.words[begin:],
        environment=environment,
        files=run.files,
        nodes=devices.nodes(first),
        devices_per_node=devices.per_node(first),
        world=devices.world(first),
        assumptions=tuple(assumptions),
    )


def check_text(command: str, stop: str = "") -> str:
    """Return what checks a launch, and stops it, where the check is beside it."""
    return (
        "# Nothing starts unless ranks are grouped as the plan was priced.\n"
        f'HERE=$(dirname "$0")\nif [ -f "$HERE/{CHECK}" ]; then\n'
        f"{indent(command + stop, '    ')}\nfi"
    )


def _checks(words: Sequence[str]) -> bool:
    """Whether a command only checks a launch."""
    return any(word.endswith(f"/{CHECK}") for word in words)


def program_place(words: Sequence[str]) -> int | None:
    """Return where the program stands in a command; None if there is none.

    A Python file, or what a launcher or Python starts as a module.
    """
    begin = words.index("--") if "--" in words and words[0] == "ray" else 0
    files = [n for n, word in enumerate(words) if n >= begin and word.endswith(".py")]
    if files:
        named = [place for place in files if _PRETRAINS.fullmatch(words[place])]
        return (named or files)[0]
    for place, word in enumerate(words[:-1]):
        following = words[place + 1]
        if word in ("-m", "--module") and not following.startswith(
            ("-", "torch.distributed")
        ):
            return place + 1
    return None


def _sent(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that ``ray job submit`` gives what it starts.

    ``env_vars`` of ``--runtime-env-json``; what is started stands behind ``--``
    (ray-project/ray 0235225, ``dashboard/modules/job/cli.py``, ``submit``).
    """
    for word, following in pairwise((*words, "")):
        option, equals, text = word.partition("=")
        if words[0] == "ray" and option == "--runtime-env-json":
            with suppress(ValueError, LookupError, AttributeError):
                given = json.loads(text if equals else following)["env_vars"]
                return {name: str(value) for name, value in given.items()}
    return {}


def _handed_on(commands: Sequence[Started], depth: int = 0) -> Iterator[Started]:
    """Yield commands that others are given as one word: ``ssh host "torchrun .."``."""
    for outer in commands:
        for word in outer.words if depth < _DEEPEST else ():
            if " " not in word:
                continue
            try:
                inner = follow_script(word, {}).commands
            except InputError:  # a sentence is no script
                continue
            here = [
                replace(
                    command,
                    line=outer.line,
                    environment={**outer.environment, **command.environment},
                    variables=outer.variables,
                )
                for command in inner
                if command.words != outer.words
            ]
            yield from here
            yield from _handed_on(here, depth + 1)


def _slurm(directives: Sequence[str]) -> dict[str, str]:
    """Return the variables that Slurm sets by the directives of a script."""
    nodes = _launcher_value(directives, _NODES)
    if nodes is None:
        return {}
    return dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes))


def _launcher_value(words: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the largest number behind one of some options of a launcher.

    One task a node beside eight GPUs of a node are eight.
    """
    numbers = []
    for index, word in enumerate(words):
        plain, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or plain.replace("_", "-") not in names:
            continue
        if not equals:
            value = words[index + 1] if index + 1 < len(words) else ""
        # "gpu:8", "gpu:a100:8(S:0-1)", "1:4" (elastic: from, to)
        number = re.fullmatch(r"(?:gpu:)?(?:\w+:)?(\d{1,7})(?:\(.*)?", value)
        if number is not None:
            numbers.append(int(number[1]))
    return max(numbers, default=0) or None


@dataclass(frozen=True, slots=True)
class _Devices:
    """How many nodes and devices a script asks for, wherever it says so."""

    run: ScriptRun
    environment: Mapping[str, str]
    directives: Sequence[str]

    def nodes(self, command: Started) -> int | None:
        """Return the nodes of a command."""
        return self._first(command, _NODES, "nodes")

    def world(self, command: Started) -> int | None:
        """Return the ranks where no launcher counts them: what the script says."""
        if self._launched(command, _PER_NODE) is not None:
            return None
        return self._variable("WORLD_SIZE")

    def per_node(self, command: Started) -> int | None:
        """Return the devices of a node."""
        count = self._first(command, _PER_NODE, "per node")
        if count is not None and count > 1:
            return count
        ranks, nodes = self._launched(command, _RANKS), self.nodes(command)
        if ranks and nodes and ranks % nodes == 0:
            return ranks // nodes
        return count

    def _first(self, command: Started, names: Sequence[str], kind: str) -> int | None:
        count = self._launched(command, names)
        if count is None:
            count = _launcher_value(self.directives, names)
        if count is not None:
            return count
        values = map(self._variable, _VARIABLES[kind])
        return next((value for value in values if value is not None), None)

    def _variable(self, name: str) -> int | None:
        value = self.environment.get(name, "")
        return int(value) or None if re.fullmatch(r"[0-9]{1,7}", value) else None

    def _launched(self, command: Started, names: Sequence[str]) -> int | None:
        """Return what launchers say: that of the command first, then others."""
        starters = [
            command.words
            for command in self.run.commands
            if command.words[0].rpartition("/")[2] in _STARTERS
        ]
        for words in (command.words, *starters):
            plain = [
                word
                for word in words[: program_place(words)]
                if first_unknown(word) is None
            ]
            count = _launcher_value(plain, names)
            if count is not None:
                return count
        return None
