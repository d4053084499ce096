"""A row that is being turned into a scenario, and the words that rows are written in.

``words.toml`` has what descriptions mean: patterns of software, accelerators, models,
sharding, and flags. Nothing is filled in silently: what a row does not say is taken
from the preset of its framework and noted, and what decides the result must be there.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import TypeVar

import tomli
from pydantic import TypeAdapter

from nestsim.features.validation.columns import LONGEST, Row, RowRefusedError
from nestsim.features.validation.recipes import followed_recipe
from planner.frameworks.framework import PRESETS, Preset
from topologies.errors import readable
from topologies.records import Nic

T = TypeVar("T")

Value = str | int | float | bool | Sequence["Value"] | Mapping[str, "Value"]
"""Value of a setting of a scenario, as TOML has it."""

Table = dict[str, Value]
"""Table of a scenario."""

COUNT = r"(?<![0-9])([1-9][0-9]{0,8})"
"""Pattern of a number of something that is described in words."""

RATE = r"(?<![0-9.])([0-9]{1,9}(?:\.[0-9]{1,9})?)"
"""Pattern of a number with or without a fraction."""

PCIE_4 = 31.5e9
"""PCIe 4.0 x16, one direction: 16 GT/s x 16 lanes x 128/130 [byte/s]."""

_UNSTATED = re.compile(
    r"(not|none) (stated|set|given|said|in (the )?(table|config))\b"
    r"|(config|recipe|script|source) does not (set|say|state)|unknown\b"
)


def is_unstated(written: str) -> bool:
    """Tell whether a description says nothing: it is empty, or begins with that."""
    return not written or _UNSTATED.match(written) is not None


@dataclass(frozen=True, slots=True)
class Uplink:
    """How a node is joined to the others."""

    nic: Nic
    """Whether the devices of a node share the bandwidth or have it each."""

    bandwidth: float
    """Bandwidth to other nodes, of a device or of a whole node [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFamily:
    """What the links of an accelerator are known by."""

    family: str
    """Accelerator without its variant."""

    device: str
    """Accelerator of the catalogue that has such links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What the source of some rows says of all of them, and no column."""

    where: Mapping[str, str | int]
    """Column -> pattern of its text, or its number, where 1 may be left out."""

    software: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Setting of [software] -> value."""

    plan: Mapping[str, str | int | bool | list[int]] = field(default_factory=dict)
    """Setting of [plan] -> value."""

    model: Mapping[str, int] = field(default_factory=dict)
    """Setting of [model] -> value, also where a column says otherwise."""

    training: Mapping[str, str | int | bool | list[str]] = field(default_factory=dict)
    """Setting of [training] -> value."""


Patterns = Sequence[tuple[str, T]]
"""Patterns of a description, and what they mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What ``words.toml`` says, which has the sources."""

    software: Patterns[str]
    """Software -> preset."""

    of_megatron_core: Mapping[str, str]
    """Column -> pattern of what only Megatron Core has."""

    accelerators: Patterns[dict[str, str]]
    """Accelerator that the catalogue lacks -> cluster.accelerator of a scenario."""

    usual_links: Patterns[bool]
    """Links inside a node that are an accelerator's by itself."""

    uplinks: Patterns[Uplink]
    """Accelerator of the catalogue -> links out of a node of its usual machine."""

    pods: Patterns[int]
    """Accelerator of the catalogue -> devices that a torus joins at most."""

    published: Patterns[str]
    """Model -> its name in the library, where it is written otherwise."""

    shared_experts: Patterns[int]
    """Model -> experts of each layer that all tokens go to."""

    zero_stages: Patterns[int]
    """Sharding -> ZeRO stage."""

    link_families: Patterns[LinkFamily]
    """Accelerator of a collective -> what its links are known by."""

    transports: Patterns[str]
    """Link of a collective -> transport between nodes."""

    adapters: Patterns[float]
    """Transport and family -> usual adapter of a device between nodes [byte/s]."""

    latent_widths: Mapping[str, int]
    """Setting of [model] -> width of latent attention."""

    recipes: tuple[Habit, ...]
    """What rows of some sources have, the first that fits."""

    run: Mapping[str, Patterns[dict[str, str | int | float | bool]]]
    """Column about what ran -> words in it -> ``table.setting`` -> value."""


@cache
def vocabulary() -> Vocabulary:
    """Return what words in rows mean."""
    file = resources.files("nestsim.features.validation") / "words.toml"
    words = tomli.loads(file.read_text(encoding="utf-8"))
    return TypeAdapter(Vocabulary).validate_python(words)


def meaning(patterns: Patterns[T], written: str) -> T | None:
    """Return what the first pattern means that is in a description; None for none."""
    return next((what for words, what in patterns if re.search(words, written)), None)


def name_pattern(name: str) -> str:
    """Return the pattern of a name as people write it, in small letters.

    With or without separators between words, letters and digits; nothing may follow
    that would make another name of it.
    """
    runs = re.findall(r"[a-z]+|[0-9]+(?:\.[0-9]+)*", name.lower())
    return rf"(?<![a-z0-9]){'[ _-]*'.join(map(re.escape, runs))}(?![a-z0-9]|\.[0-9])"


def find_preset(software: str) -> tuple[Preset, str]:
    """Return the preset of a framework, and what was assumed to find it."""
    written = re.sub(r"[ _]+", "-", software.lower())
    name = meaning(vocabulary().software, written)
    if name is not None:
        return PRESETS[name], ""
    what = f"software {software} as" if software else "software ="
    return PRESETS["megatron-lm"], f"{what} megatron-lm"


class Reading:
    """A row that is being read, and the assumptions made on the way."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.assumed: list[str] = []
        self.assumes_layout = False
        """Whether a size that decides the time is not the row's."""

    def words(self, column: str) -> str:
        """Return the text of a column in small letters."""
        return self.row.words(column).lower()

    def says(self, column: str, pattern: str) -> bool:
        """Return whether a pattern is in the text of a column, in small letters."""
        return re.search(pattern, self.words(column)) is not None

    def needed(self, column: str) -> int:
        """Return a whole number that decides the result.

        Raises
        ------
        RowRefusedError
            If it is not stated.
        """
        value = self.row.whole(column)
        if value is None:
            raise RowRefusedError("missing-column", f"{column} is empty")
        return value

    def given(self, column: str, default: int) -> int:
        """Return a whole number, or the default, which is noted."""
        value = self.row.whole(column)
        if value is None:
            self.assume(f"{column} = {default}")
            return default
        return value

    def assume(self, sentence: str) -> None:
        """Note what the row does not say, once."""
        sentence = readable(sentence, LONGEST)
        if sentence not in self.assumed:
            self.assumed.append(sentence)


class JobReading(Reading):
    """A row about a training job."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.preset: Preset
        self.preset, sentence = self._find_preset()
        if sentence:
            self.assume(sentence)

    def _find_preset(self) -> tuple[Preset, str]:
        """Return the preset of a row's framework, and what was assumed to find it."""
        row, stated = self.row, self.row.words("software")
        written = stated or " ".join((row.words("source"), row.words("zero_or_fsdp")))
        if self.says("accelerator", r"\btpu\b|trillium"):
            # Whatever runs there goes through XLA.
            written += " xla"
        marks = vocabulary().of_megatron_core
        is_core = any(self.says(column, words) for column, words in marks.items())
        if is_core:
            written = written.replace("Megatron-LM", "Megatron-Core")
        preset, sentence = find_preset(written)
        if sentence and is_core:
            preset = PRESETS["megatron-core"]
            sentence = f"software {stated} as {preset.name}"
        if not stated:
            known = "" if sentence else ", by the source"
            sentence = f"software = {preset.name}{known}"
        return preset, sentence

    @cached_property
    def recipe(self) -> Mapping[str, str]:
        """Columns that the published recipe sets which the row follows, if any."""
        return followed_recipe(self.row, self.preset.name)

    def ran(self, column: str) -> str:
        """Return what a column about the run says, or the recipe where it is silent."""
        written = self.words(column)
        if not is_unstated(written):
            return written
        by_recipe = self.recipe.get(column, "")
        if by_recipe:
            self.assume(f"{column} {by_recipe}, by recipe")
        return by_recipe

    @property
    def habit(self) -> Habit:
        """What the row's source says of it beside columns."""
        fitting = (habit for habit in vocabulary().recipes if self._has(habit.where))
        return next(fitting, Habit(where={}))

    def by_source(self, table: str) -> Table:
        """Return the settings of a table that the source says, which are noted."""
        settings: Table = {**getattr(self.habit, table)}
        for name, value in settings.items():
            self.assume(f"{name} = {value}, by the source")
        return settings

    def _has(self, where: Mapping[str, str | int]) -> bool:
        return all(
            self.says(column, known)
            if isinstance(known, str)
            else (self.row.whole(column) or 1) == known
            for column, known in where.items()
        )

    def leave_out(self, column: str, word: str) -> None:
        """Note something that ran and that is not modelled."""
        self.assume(f"not modelled: {column} {word}")

    @property
    def leaves_recompute_open(self) -> bool:
        """Whether neither the row nor a recipe says what is recomputed."""
        is_open = is_unstated(self.words("recompute"))
        return is_open and not self.ran("recompute_modules")

    @property
    def is_fsdp(self) -> bool:
        """Whether PyTorch's FSDP shards, or Meta's own."""
        return self.preset.weights_in_fp32 or (
            self.says("software", "fsdp") and not self.says("software", "megatron")
        )


Converter = Callable[[JobReading, Table], Value | None]
"""What makes the value of a setting of a row and of the settings before it; None where
the scenario leaves it out."""


def fill_table(reading: JobReading, columns: Mapping[str, Converter]) -> Table:
    """Return a table of a scenario: each setting by its converter, in this order."""
    table: Table = {}
    for setting, convert in columns.items():
        value = convert(reading, table)
        if value is not None:
            table[setting] = value
    return table
