"""What a configuration of MaxText says: options by name, and the mesh of its axes.

A YAML file with the files that it builds on, or a script that starts
``MaxText.train`` with ``name=value`` words.

The mesh has axes inside a slice and among slices, and a slice is what fast links join:
a slice of TPUs, or the GPUs of a node. ``ici_..`` are the sizes of axes inside,
``dcn_..`` among slices, which are outside of them; each in the order data, fsdp,
context, tensor, expert, the last innermost, with the stages of a pipeline outermost
[1]_. Of the ranks that share a sequence those that exchange heads are inside the rings
(``context_usp_ulysses``, 0.2.5).

References
----------
.. [1] AI-Hypercomputer/maxtext, ``MaxText/pyconfig.py`` at 0045bf83:
   ``create_parallelisms_list``, ``pipeline_first_axis``;
   ``jax.experimental.mesh_utils.create_hybrid_device_mesh``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestsim.launch.carried import TableOptions, with_variables
from nestsim.launch.read import LaunchSource, Settings
from nestsim.launch.shell.marks import known_word
from nestsim.launch.training import find_training
from nestsim.scenario.errors import nearest
from planner.frameworks.options import option_table
from topologies.errors import InputError
from topologies.input_file import Value, parse_yaml, read_text

_INNER_FIRST = (
    ("expert", "ep"),
    ("tensor_sequence", "tp"),
    ("tensor", "tp"),
    ("context_usp_ulysses", "cp"),
    ("context", "cp"),
    ("fsdp", "dp"),
    ("data", "dp"),
    ("pipeline", "pp"),
)
"""Axis -> dimension of ours; ``dp`` are the replicas of each expert."""

_FACTOR = re.compile(r"([a-z]+)(\d+)")

Factors = tuple[tuple[str, int], ...]
"""Dimensions and sizes, innermost first, as placements nest them."""


@dataclass(frozen=True, slots=True)
class AxisMesh:
    """Sizes of all axes."""

    inside: Mapping[str, int]
    """Axis -> size inside a slice; those that are missing have 1."""

    among: Mapping[str, int]
    """Axis -> size among slices; those that are missing have 1."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        return self.inside.get(axis, 1) * self.among.get(axis, 1)

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.inside.values()) * math.prod(self.among.values())

    @property
    def factors(self) -> Factors:
        """How its ranks nest the dimensions."""
        factors = [
            (dimension, sizes.get(axis, 1))
            for sizes in (self.inside, self.among)
            for axis, dimension in _INNER_FIRST
        ]
        return merged(factors)


def merged(factors: list[tuple[str, int]]) -> Factors:
    """Join neighbours of one dimension, and leave out those of size 1."""
    joined: list[tuple[str, int]] = []
    for dimension, size in factors:
        if size == 1:
            continue
        if joined and joined[-1][0] == dimension:
            joined[-1] = (dimension, joined[-1][1] * size)
        else:
            joined.append((dimension, size))
    return tuple(joined)


def placed_factors(placement: str) -> Factors:
    """Return the factors of a placement's name."""
    return merged([(name, int(size)) for name, size in _FACTOR.findall(placement)])


def mesh_of(factors: Factors, axes: Mapping[str, int], per_slice: int) -> AxisMesh:
    """Return the mesh whose slices are filled with the innermost factors.

    Parameters
    ----------
    factors
        How ranks shall nest the dimensions.
    axes
        Size of each axis.
    per_slice
        Devices of a slice.
    """
    inside: dict[str, int] = {}
    among: dict[str, int] = {}
    left, room = dict(axes), per_slice
    for dimension, whole in factors:
        size = whole
        for axis, of in _INNER_FIRST:
            if of != dimension:
                continue
            part = math.gcd(size, left.get(axis, 1))
            fitting = math.gcd(part, room)
            inside[axis] = inside.get(axis, 1) * fitting
            among[axis] = among.get(axis, 1) * (part // fitting)
            left[axis] = left.get(axis, 1) // part
            size, room = size // part, room // fitting
    return AxisMesh(inside, among)


_START = re.compile(r"\bpython3?\b.*MaxText[./]", re.IGNORECASE)
_TRAINS = re.compile(r"(?:\S*/)?MaxText[./]\S*(?:train|\$)\S*", re.IGNORECASE)
"""The program of a command that trains, or one that a variable names."""
_EXPECTED = "a configuration of MaxText in YAML"
_WORD = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BASE = "base.yml"
_MOST_BYTES = 1_000_000
_MOST_PARENTS = 8
_PRINTED = re.compile(r"\bConfig param (\w+): (.*)")
"""A line of a log (``configs/pyconfig.py``)."""
_MEMBER = re.compile(r"[A-Z]\w+\.([A-Z][A-Z0-9_]*)")
_OWN = frozenset({"per_device_batch_size", "max_target_length", "remat_policy"})


FORMAT = "maxtext"
"""Name of the format that the options are of."""

BUILT = "base_config"
"""Names the file that a file builds on."""

TABLE = option_table("maxtext")
"""Its options."""

OPTIONS = TABLE.options
"""Name -> option."""

VERSION: str = TABLE.facts["release"]
"""What the names were taken from."""

AXES: tuple[str, ...] = tuple(TABLE.facts["axes"])
"""Axes of the mesh, each with a size among the devices of a slice (``ici_..``) and one
among slices (``dcn_..``)."""

OTHER_AXES: tuple[str, ...] = tuple(TABLE.facts["other_axes"])
"""Axes that no plan has."""

REMAT_TENSORS = tuple(
    name for name, option in OPTIONS.items() if option.default == "remat"
)
"""Results of a block that ``remat_policy: custom`` tells apart."""

MODELS: Mapping[str, str] = TABLE.facts["models"]
"""``model_name`` -> name in the model library."""


def blocks_of_layer(name: str | None) -> int:
    """Return how many blocks a layer of one of MaxText's models is."""
    sizes: Mapping[str, int] = TABLE.facts["blocks_of_layer"]
    named = (size for start, size in sizes.items() if (name or "").startswith(start))
    return next(named, 1)


def is_maxtext(source: LaunchSource) -> bool:
    """Whether a file looks like a configuration of MaxText, or has one in it."""
    if _PRINTED.search(source.text) or _START.search(source.text):
        return True
    try:
        document = parse_yaml(source.text, expected=_EXPECTED)
    except InputError:
        return False
    return isinstance(document, dict) and (
        BUILT in document or bool(_OWN & set(map(str, document)))
    )


def read_settings(source: LaunchSource) -> TableOptions:
    """Read a YAML file, a script or a log.

    Raises
    ------
    InputError
        If it is neither, or has an option that MaxText does not have.
    """
    assumed: list[str] = []
    if _PRINTED.search(source.text):
        given = _printed(source.text)
    elif _START.search(source.text):
        given = _command(source, assumed)
    else:
        given = _document(source.text, source.path.parent, _MOST_PARENTS)
    values: dict[str, Value] = {}
    ignored: Settings = {}
    replaced: set[str] = set()
    for name, raw in given.items():
        if name in OPTIONS:
            values[name] = Value(_typed(name, raw), name)
        elif name in TABLE.assumed:
            ignored[name] = raw
            usual, sentence = TABLE.assumed[name]
            if raw != usual:
                replaced.add(name)
                assumed.append(f"{name}: {sentence}")
        elif name in TABLE.silent:
            ignored[name] = raw
        else:
            raise InputError(
                "is no option of MaxText's training that is known",
                where=name,
                got=raw,
                expected="a name of base.yml that training reads",
                hint=nearest(name, [*OPTIONS, *TABLE.assumed, *sorted(TABLE.silent)]),
            )
    return TableOptions(
        table=TABLE,
        values=values,
        ignored=ignored,
        replaced=replaced,
        assumptions=assumed,
    )


def _document(text: str, folder: Path, parents: int) -> Settings:
    """Return what a YAML file and those that it builds on say, itself last."""
    document = parse_yaml(text, expected=_EXPECTED)
    if not isinstance(document, dict) or not all(isinstance(k, str) for k in document):
        raise InputError("is not a table of names and values", expected=_EXPECTED)
    parent = document.get(BUILT, _BASE)
    if not isinstance(parent, str):
        raise Value(parent, BUILT).error("has the wrong type", "a file's name")
    if Path(parent).name == _BASE:
        return document
    if not parents:
        raise InputError("is built on too many files", where=BUILT, got=parent)
    try:
        inner = read_text(folder / parent, expected=_EXPECTED, most_bytes=_MOST_BYTES)
    except InputError as error:
        raise error.at(BUILT) from None
    return _document(inner, (folder / parent).parent, parents - 1) | document


def _printed(text: str) -> Settings:
    """Return what a log printed, which is all options there are, the first time."""
    given: Settings = {}
    for name, value in _PRINTED.findall(text):
        if name in given:
            break
        word = value.strip().removesuffix('\\n",').rstrip('",')
        if member := _MEMBER.fullmatch(word):
            word = "" if member[1] == "NONE" else member[1].lower()
        given[name] = word if name in OPTIONS else _scalar(word)
    return {name: given[name] for name in given if name in {*OPTIONS, *TABLE.assumed}}


def _command(source: LaunchSource, assumed: list[str]) -> Settings:
    """Return what a script's command sets."""
    start = find_training(source, lambda words: any(map(_TRAINS.fullmatch, words)))
    if start is None:
        raise InputError(
            "starts nothing that is known",
            expected="python3 -m maxtext.trainers.pre_train.train base.yml name=value",
        )
    assumed += start.assumptions
    given: Settings = {}
    for word in start.words:
        pair = _WORD.fullmatch(word)
        if pair:
            name, value = pair[1], pair[2]
            given[name] = (
                known_word(value, name)
                if name in OPTIONS
                else _scalar(with_variables(value))
            )
        elif word.endswith((".yml", ".yaml")) and Path(word).name != _BASE:
            assumed.append(
                f"{Path(word).name} sets nothing that the command does not set."
            )
    return given


def _scalar(text: str) -> Any:
    """Return a value of the command line that ``base.yml`` has of any type."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return _number(text, fractions=True)


def _typed(name: str, raw: Any) -> Any:
    """Return a value of the command line as ``base.yml`` has it [2 of names]."""
    default = OPTIONS[name].default
    if not isinstance(raw, str) or isinstance(default, str):
        return raw
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(raw.lower(), raw)
    return _number(raw, fractions=isinstance(default, float))


def _number(raw: str, *, fractions: bool) -> Any:
    """Return the number that a word is; the word itself if it is none."""
    text = raw.replace("_", "")
    if re.fullmatch(r"-?\d{1,12}", text):
        return int(text)
    if fractions and re.fullmatch(r"-?\d{0,12}\.?\d{0,12}(e-?\d{1,2})?", text):
        try:
            return float(text)
        except ValueError:
            return raw
    return raw
