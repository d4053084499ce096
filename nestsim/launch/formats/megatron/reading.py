"""Launch scripts and command lines of Megatron-LM, read into a job.

What is not in a script is Megatron-LM's default, which is no assumption: dropout 0.1,
LayerNorm, tied embeddings, biases, gradients in fp32 beside bf16 (``arguments.py``).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nestsim.launch.carried import launch_table
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.composed import Launched, read_tables
from nestsim.launch.formats.megatron.options import GivenOptions
from nestsim.launch.formats.megatron.settings import model_options, script_of
from nestsim.launch.read import ImportedJob, LaunchSource
from nestsim.launch.shell.follow import words_of
from nestsim.launch.training import TrainingStart, find_training, program_place
from topologies.errors import InputError

_SIZES = ("tensor_model", "pipeline_model", "context")
_OF_TRAINING = ("seq-length", "mtp-num-layers", "max-position-embeddings")
_NAMED = ("sequence_length", "attention", "mtp_num_layers")
"""Of a model that is named, not spelled out: what a job says for itself."""
_LOOKS = re.compile(r"--(num-layers|hidden-size|tensor-model-parallel-size)\b")


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
        program = _PROGRAM.fullmatch(word)
        if program is not None:
            return program[1]
    return known.GPT_SCRIPT


def _options(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options of a command; of one given twice the last.

    Those behind the program, where there is one: a launcher has options of its own.
    """
    program = program_place(words)
    options: dict[str, list[str]] = {}
    name = None
    for word in words[0 if program is None else program + 1 :]:
        if re.match(r"--[A-Za-z]", word):
            name, equals, value = word[2:].partition("=")
            options[name] = [value] if equals else []
        elif name is not None:
            options[name].append(word)
    return {
        name: tuple(values)
        for name, values in options.items()
        if program is not None or name.replace("-", "_") not in _LAUNCHERS
    }


def is_megatron(source: LaunchSource) -> bool:
    """Whether a file looks like a command line of Megatron-LM."""
    return len(set(_LOOKS.findall(source.text))) > 1


def read_megatron(source: LaunchSource) -> ImportedJob:
    """Read a shell script, a command line, or a file of options.

    Raises
    ------
    InputError
        If it is not understood where that matters to the plan.
    """
    command = find_command(source)
    num_devices, node = _devices(source, command)
    launched = Launched(script=command.script, num_devices=num_devices)
    return options_job(source, command.given, launched, node)


def options_job(
    source: LaunchSource, given: GivenOptions, launched: Launched, node: int | None
) -> ImportedJob:
    """Return the job that options make.

    Parameters
    ----------
    source
        What is read.
    given
        The options.
    launched
        How they are started.
    node
        Devices of a node; None if nothing says how many.

    Raises
    ------
    InputError
        If an option is not understood where that matters to the plan.
    """
    vocabulary = source.variables.get("VOCAB_SIZE")
    if vocabulary is not None:
        size = given.whole_number("vocab-size", vocabulary)
        launched = replace(launched, vocab_size=size)
    spec = None
    if "num-layers" not in given.values:
        spec = source.model_spec(given.whole("seq-length") or 1)
    if spec is not None:
        options = model_options(spec)
        kept = {name: options[name] for name in options if name not in _OF_TRAINING}
        given.values = {**kept, **given.values}
        launched = replace(launched, script=script_of(spec))
    given.check()
    spec_words = given.given_words("spec") or ()
    if spec_words and list(spec_words) != known.TABLE.facts["mamba_spec"]:
        given.assume("--spec: Layers are those that the options spell out.")
    tables = read_tables(given, launched)
    if spec is not None:
        model = {"mtp_num_layers": 0} if spec.mtp_num_layers else {}
        model |= {
            name: tables["model"][name] for name in _NAMED if name in tables["model"]
        }
        tables["model"] = {**(source.model_table() or {}), **model}
    tables |= launch_table(known.FORMAT, given.kept(), given.assumptions)
    return ImportedJob(
        name=source.path.stem,
        tables=tables,
        num_devices=launched.num_devices,
        devices_per_node=node,
        assumptions=tuple(given.assumptions),
        options=given.effects(),
    )


def _devices(
    source: LaunchSource, command: TrainingCommand
) -> tuple[int | None, int | None]:
    """Return the devices of the job and of a node.

    Examples of Megatron-LM start one node, "change for multinode config": where the
    parallel sizes need more devices than the script starts, the job has those.
    """
    given, start = command.given, command.start
    node = None if start is None else start.devices_per_node
    count = source.num_devices
    if count is not None:
        return count, None if node is None or count % node else node
    if start is None or node is None:
        return None, None
    count = start.num_devices or node
    if start.nodes is None:
        given.assume("The job runs on one node.")
    count = enough_devices(given, count, "script")
    return count, node if count % node == 0 else None


def enough_devices(given: GivenOptions, count: int, starter: str) -> int:
    """Return the devices that are started, or as many as the parallel sizes need."""
    needed = 1
    for name in _SIZES:
        needed *= given.whole(f"{name.replace('_', '-')}-parallel-size") or 1
    if not count % max(needed, 1):
        return count
    larger = -(-count // needed) * needed
    given.assume(
        f"The job has {larger:,} devices, which its parallel sizes need; the {starter} "
        f"starts {count:,}."
    )
    return larger
