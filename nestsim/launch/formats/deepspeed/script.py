"""Options that a script is started with, sorted by what they stand for.

They have hyphens here; scripts may write underscores.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nestsim.launch.carried import stored_words
from nestsim.launch.read import OptionEffects
from nestsim.launch.shell.marks import known_word, readable, without_unknown
from nestsim.scenario.errors import nearest
from planner.frameworks.options import LaunchOption, option_table
from topologies.errors import InputError

FORMAT = "deepspeed"
"""Name of the format that the options are of."""

TABLE = option_table("deepspeed")
"""Options of Megatron-DeepSpeed."""

TRAINERS = option_table("deepspeed", "trainer")
"""Options of other trainers."""

_YES = frozenset({"", "true", "True", "1", "yes"})
_NO = frozenset({"false", "False", "0", "no"})
_CONFIG = "--deepspeed-config"
_MOST = 1_000_000_000_000


@dataclass(slots=True)
class TrainerOptions:
    """What the options of a training script say, under the names of a scenario."""

    is_megatron: bool = False
    """Whether it is a script of Megatron-DeepSpeed."""
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of [model]."""
    training: dict[str, Any] = field(default_factory=dict)
    """Settings of [training]."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Settings of [plan]."""
    launch: dict[str, Any] = field(default_factory=dict)
    """What several settings follow from."""
    ignored: list[str] = field(default_factory=list)
    """Options that make no difference to a plan."""
    replaced: dict[str, str] = field(default_factory=dict)
    """Options in whose place something else is assumed, and what."""
    given: list[str] = field(default_factory=list)
    """All options."""
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Words behind each option, without its dashes."""

    @property
    def effects(self) -> OptionEffects:
        """What became of each option."""
        others = {*self.ignored, *self.replaced}
        read = [name for name in self.given if name not in others]
        return OptionEffects.of(self.given, read=read, assumed=self.replaced)

    def kept(self) -> dict[str, Any]:
        """Return the options that no setting holds, as a scenario has them."""
        others = {*self.ignored, *self.replaced}
        return {
            name: stored_words(words)
            for name, words in self.words.items()
            if f"--{name}" in others or (self.is_megatron and name in TABLE.finer)
        }


Words = Mapping[str, Sequence[str]]
"""Name of an option, with hyphens and without dashes before it -> its values."""


def option_words(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options among the words of a command and their values.

    The last of several of one name counts, as `argparse` has it.
    """
    found: dict[str, tuple[str, ...]] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            found[name] = (value,) if equals else ()
        elif name is not None:
            found[name] = (*found[name], word)
    return found


def read_options(words: Words) -> TrainerOptions:
    """Sort the options of a script.

    Raises
    ------
    InputError
        If one has no value or another type, or changes the work of a step in a way that
        plans here do not have.
    """
    is_megatron = "num-layers" in words and "hidden-size" in words
    read = TrainerOptions(is_megatron=is_megatron)
    read.words = words
    read.given = [f"--{name}" for name in words]
    for name, values in words.items():
        where = f"--{name}"
        if is_megatron:
            _read_megatron(read, name, where, values)
        else:
            _read_trainer(read, name, where, values)
    return read


def _read_megatron(
    read: TrainerOptions, name: str, where: str, values: Sequence[str]
) -> None:
    if name in TABLE.refused:
        raise InputError(
            f"is about {TABLE.refused[name]}, which plans here do not have",
            where=where,
            expected="a script without it",
        )
    option = TABLE.options.get(name)
    if option is not None and option.part != "tokens":
        value = option.words[""] if option.is_flag else _value(option, where, values)
        getattr(read, option.table)[option.key] = value
    elif option is not None and values:
        read.launch[name] = readable(values[0])
    elif name in TABLE.assumed:
        read.replaced[where] = f"{where}: {TABLE.assumed[name][1]}"
    elif option is not None or TABLE.is_silent(name):
        read.ignored.append(where)
    else:
        known = sorted(TABLE.options.keys() | TABLE.silent)
        raise InputError(
            "is no option of Megatron-DeepSpeed that is known here",
            where=where,
            expected="an option of its megatron/arguments.py",
            hint=nearest(where, [f"--{name}" for name in known if name[-1] != "*"]),
        )


def _read_trainer(
    read: TrainerOptions, name: str, where: str, values: Sequence[str]
) -> None:
    option = TRAINERS.options.get(name)
    if option is None:
        _leave_out(read, name, where, values)
        return
    table = getattr(read, option.table)
    if option.default is not False:
        if values or option.key != "config":
            table[option.key] = _value(option, where, values)
        return
    is_on = _yes(where, values)
    if not option.words:
        table[option.key] = is_on
    elif is_on:
        table[option.key] = option.words["yes"]


def _leave_out(
    read: TrainerOptions, name: str, where: str, values: Sequence[str]
) -> None:
    """Note an option that nothing here stands for, and what is taken instead."""
    for words, sentence in TRAINERS.facts["instead"].items():
        if re.search(words, name) and not {*values[:1]} & _NO:
            read.replaced[where] = f"{where}: {sentence}"
            return
    read.ignored.append(where)


def _yes(where: str, values: Sequence[str]) -> bool:
    text = known_word(values[0], where) if values else ""
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise InputError("is neither on nor off", where=where, got=text, expected="True")


def _value(option: LaunchOption, where: str, values: Sequence[str]) -> Any:
    """Return the value of an option; all of several must be the same."""
    texts = {text.strip() for text in values} - {""}
    if len(texts) > 1:  # a variable that nothing sets is no word for a shell
        texts = {text for text in texts if without_unknown(text)}
    if len(texts) != 1:
        raise InputError(
            "has no value" if not texts else "has several values",
            where=where,
            got=readable(" ".join(values))[:60] or None,
            expected="one value",
        )
    (text,) = texts
    # A file may be called by a name that only the running shell knows.
    if where != _CONFIG:
        text = known_word(text, where)
    if isinstance(option.default, str):
        return text
    try:
        is_whole = not isinstance(option.default, float)
        number = int(text.replace("_", "")) if is_whole else float(text)
    except ValueError:
        raise InputError(
            "is no number", where=where, got=text[:60], expected="a number"
        ) from None
    if not 0 <= number <= _MOST:  # also NaN
        raise InputError(
            "is out of range", where=where, got=text[:60], expected=f"0 to {_MOST:,}"
        )
    return number
