"""What frameworks call the settings: one table of options each, read both ways.

``option_tables/NAME.toml`` has the options of one framework: under ``[options]`` those
that a plan depends on, with the setting that says the same here, default, words and
releases; under ``[[assumed]]`` those that make some difference that is not modelled;
in ``silent`` those that make none; under ``[gaps]`` why what a plan says cannot be
said. What else a file has are facts of its framework alone. Importers walk over a table
from the option to the setting, exporters from the setting to the option.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import tomli


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOption:
    """One option of a framework."""

    setting: str
    """Settings that say the same, ``table.name`` and several with commas; empty if the
    option has no effect on them."""

    default: Any = None
    """What the framework takes where it is silent."""

    words: Mapping[str, Any] = field(default_factory=dict)
    """Value there -> value of the setting; of several for one the first is written."""

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

    def word(self, value: Any) -> Any:
        """Return what a value of the setting is called, the default if it has no name.

        Without words it is called as here.
        """
        if not self.words:
            return value
        named = (word for word, meaning in self.words.items() if meaning == value)
        return next(named, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """The options of one framework."""

    name: str
    """Name of the framework's preset."""

    options: Mapping[str, LaunchOption]
    """Name -> option that a plan depends on."""

    assumed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Option that makes some difference that is not modelled -> the value that makes
    none, and what is taken instead of others."""

    silent: frozenset[str] = frozenset()
    """Options that make no difference, each with all that begins with it and a dot."""

    finer: frozenset[str] = frozenset()
    """Options that say more than the settings that they are read into."""

    gaps: Mapping[str, str] = field(default_factory=dict)
    """Setting, behind a colon in which case -> why it cannot be said, in a sentence."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the file has."""

    def is_silent(self, name: str) -> bool:
        """Whether an option makes no difference to a plan."""
        parts = name.split(".")
        return any(
            ".".join(parts[: count + 1]) in self.silent for count in range(len(parts))
        )

    def plain(self, table: str) -> Mapping[str, LaunchOption]:
        """Return the options that are nothing but one setting of a table each."""
        return {
            name: option
            for name, option in self.options.items()
            if option.plain and option.setting.startswith(f"{table}.")
        }


@cache
def option_table(framework: str) -> OptionTable:
    """Return the options of a framework that has a table of them."""
    folder = resources.files("planner") / "frameworks" / "option_tables"
    facts = tomli.loads((folder / f"{framework}.toml").read_text(encoding="utf-8"))
    assumed = facts.pop("assumed", [])
    return OptionTable(
        name=framework,
        options={
            name: _option(entry)
            for names, entry in facts.pop("options").items()
            for name in names.split()
        },
        assumed={
            name: (value, group["taken"])
            for group in assumed
            for name, value in group["usual"].items()
        },
        silent=frozenset(facts.pop("silent", "").split()),
        finer=frozenset(facts.pop("finer", "").split()),
        gaps={
            name: reason
            for names, reason in facts.pop("gaps", {}).items()
            for name in names.split(", ")
        },
        facts=MappingProxyType(facts),
    )


def _option(entry: Mapping[str, Any]) -> LaunchOption:
    """Return an option as its table has it: choices are those of its words."""
    listed = {
        one.name: tuple(entry[one.name])
        for one in fields(LaunchOption)
        if one.name in ("choices", "older") and one.name in entry
    }
    return LaunchOption(**{"choices": tuple(entry.get("words", ())), **entry, **listed})
