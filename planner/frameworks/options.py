"""What frameworks call the settings: one table of options each, read both ways.

``option_tables/NAME.toml`` has the options of one framework: under ``[options]`` those
that a plan depends on, with the setting that says the same here, default, words and
releases, in parts that have names of their own where there are several; under
``[[assumed]]`` those that make some difference that is not modelled; in ``silent``
those that make none; under ``[refused]`` those that no plan goes with; under ``[gaps]``
why what a plan says cannot be said. What else a file has are facts of its framework
alone. Importers walk over a table from the option to the setting, exporters from the
setting to the option.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib import resources
from types import MappingProxyType
from typing import Any

import tomli


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOption:
    """One option of a framework."""

    name: str
    """What it is called, in a command without its dashes."""

    part: str = ""
    """Options that it stands with; empty where a table has no parts."""

    setting: str
    """Settings that say the same, ``table.name`` and several with commas; empty if the
    option has no effect on them."""

    default: Any = None
    """What the framework takes where it is silent; None for what follows from other
    options."""

    words: Mapping[str, Any] = field(default_factory=dict)
    """Value there -> value of the setting; of several for one the first is written. Of
    an option with nothing behind it the empty word."""

    choices: tuple[str, ...] = ()
    """Values that it takes, where these are few texts; those of `words` by default."""

    plain: bool = False
    """Whether the setting is the option's value, by its words, and nothing else."""

    older: tuple[str, ...] = ()
    """Names in earlier releases."""

    newer: str | None = None
    """Name in the newest release; None for the same one, empty if it is gone."""

    since: str = ""
    """First release that has it; empty for the oldest that is known."""

    attribute: str = ""
    """Field of the framework's own classes, if that is not called like the option."""

    always: bool = False
    """Whether it is written even where it is the framework's default."""

    @property
    def key(self) -> str:
        """Name of the setting in its table."""
        return self.setting.rpartition(".")[2]

    @property
    def table(self) -> str:
        """Table of the setting."""
        return self.setting.partition(".")[0]

    @property
    def usual(self) -> Any:
        """Value of the setting where the framework is silent; None as in `default`."""
        default = self.default
        return self.words.get(default, default) if isinstance(default, str) else default

    @property
    def is_flag(self) -> bool:
        """Whether nothing stands behind it."""
        return set(self.words) == {""}

    def word(self, value: Any) -> Any:
        """Return what a value of the setting is called, the default if it has no name.

        Without words it is called as here.
        """
        if not self.words:
            return value
        named = (word for word, meaning in self.words.items() if meaning == value)
        return next(named, self.default)

    def written(self, value: Any) -> tuple[str, ...] | None:
        """Return what a command has behind the option; None if it cannot say a value.

        A number of 0 is nothing to ask for, unless the framework has a default.
        """
        if self.words and value not in self.words.values():
            return None
        if self.is_flag:
            return ()
        is_said = value or self.words or self.default is not None
        return (f"{self.word(value)}",) if is_said else None


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """The options of one framework."""

    name: str
    """Name of the framework's preset."""

    options: Mapping[str, LaunchOption]
    """Name -> option that a plan depends on."""

    assumed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Option that makes some difference that is not modelled -> the value that makes
    none, None if all do, and what is taken instead of others."""

    silent: frozenset[str] = frozenset()
    """Options that make no difference, each with all that begins with it and a dot; of
    a name that ends in ``*`` all that begins so."""

    refused: Mapping[str, str] = field(default_factory=dict)
    """Option that changes what is trained in a way that no plan has -> what of it."""

    finer: frozenset[str] = frozenset()
    """Options that say more than the settings that they are read into."""

    harmless: frozenset[str] = frozenset()
    """Words in names of options that no table has and no plan depends on."""

    gaps: Mapping[str, str] = field(default_factory=dict)
    """Setting, behind a colon in which case -> why it cannot be said, in a sentence."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the file has."""

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all options that are read, assumed about or refused."""
        older = (name for option in self.options.values() for name in option.older)
        return frozenset((*self.options, *older, *self.assumed, *self.refused))

    def is_silent(self, name: str) -> bool:
        """Whether an option makes no difference to a plan."""
        parts = name.split(".")
        outer = (".".join(parts[: count + 1]) for count in range(len(parts)))
        return name.startswith(self._beginnings) or any(
            part in self.silent for part in outer
        )

    def is_harmless(self, name: str) -> bool:
        """Whether an option that no table has is, by its name, about files or logs."""
        return not self.harmless.isdisjoint(re.split(r"[-_]", name))

    def part(self, name: str) -> tuple[LaunchOption, ...]:
        """Return the options of a part, in the order of the table."""
        return tuple(option for option in self.options.values() if option.part == name)

    def saying(self, setting: str, value: Any) -> dict[str, tuple[str, ...]]:
        """Return the option that says a value of a setting, and the words behind it.

        The first one in the table; nothing if none does.
        """
        for option in self.options.values():
            words = option.written(value) if option.setting == setting else None
            if words is not None:
                return {option.name: words}
        return {}

    def plain(self, table: str) -> Mapping[str, LaunchOption]:
        """Return the options that are nothing but one setting of a table each."""
        return {
            name: option
            for name, option in self.options.items()
            if option.plain and option.setting.startswith(f"{table}.")
        }

    @cached_property
    def _beginnings(self) -> tuple[str, ...]:
        return tuple(name[:-1] for name in self.silent if name.endswith("*"))


@cache
def option_table(framework: str, inner: str = "") -> OptionTable:
    """Return the options of a framework that has a table of them.

    Parameters
    ----------
    framework
        Name of its preset.
    inner
        Table of the same shape inside of the file, for what has options of its own.
    """
    folder = resources.files("planner") / "frameworks" / "option_tables"
    facts = tomli.loads((folder / f"{framework}.toml").read_text(encoding="utf-8"))
    facts = facts[inner] if inner else facts
    return OptionTable(
        name=framework,
        options={option.name: option for option in _options(facts.pop("options"), "")},
        assumed={
            name: (group.get("usual", {}).get(name), group["taken"])
            for group in facts.pop("assumed", [])
            for name in (*group.get("usual", {}), *group.get("options", "").split())
        },
        refused=_by_name(facts.pop("refused", {})),
        gaps=_by_name(facts.pop("gaps", {})),
        facts=MappingProxyType(facts),
        **{
            name: frozenset(facts.pop(name, "").split())
            for name in ("silent", "finer", "harmless")
        },
    )


def _by_name(sentences: Mapping[str, str]) -> Mapping[str, str]:
    """Return sentences of a table that has several names in front of one."""
    return {
        name: sentence
        for names, sentence in sentences.items()
        for name in names.split(", ")
    }


def _options(entries: Mapping[str, Any], part: str) -> list[LaunchOption]:
    """Return options as their table has them: choices are those of its words."""
    options: list[LaunchOption] = []
    for names, entry in entries.items():
        if "setting" not in entry:
            options += _options(entry, names)
            continue
        values = {"choices": tuple(entry.get("words", ())), **entry, "part": part}
        values |= {name: tuple(values[name]) for name in _LISTS & values.keys()}
        options += [LaunchOption(name=name, **values) for name in names.split()]
    return options


_LISTS = frozenset(
    option.name for option in fields(LaunchOption) if option.type == tuple[str, ...]
)
"""Fields of options that are lists."""
