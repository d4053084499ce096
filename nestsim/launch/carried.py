"""Options of an imported configuration that no setting stands for: out, and back again.

What makes no difference to a plan may make one to the model that is trained: the base
of rotary positions, learning rates, data, checkpoints. A scenario keeps such options in
its table [launch], and an export to the same format has them as they were; one that
cannot come back is a gap. What is one of a format's options, and what a file of it
says, the formats know.

Who asks a framework's table for the value of an option has read it; what nobody read,
and what nothing here stands for, is kept.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any, TypeVar

from nestsim.launch.job import LaunchGap, LaunchJob
from nestsim.launch.read import OptionEffects
from nestsim.launch.shell.marks import readable
from planner.frameworks.options import OptionTable
from topologies.errors import InputError
from topologies.input_file import Value

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options that belong together."""

    name: str
    """Name of the shell variable that holds them."""

    comment: str
    """What they are, in a line."""

    options: Mapping[str, Any]
    """The options."""


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Names of options that a scenario has."""

_LISTED = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def launch_table(
    format_name: str, options: Mapping[str, Any], assumed: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the table ``launch`` by its name; nothing if there are no options.

    Parameters
    ----------
    format_name
        Name of the format that the options are of.
    options
        Option -> its value.
    assumed
        Sentences on what is assumed; one is added where values are none that a scenario
        has.
    """
    kept = {name: value for name, value in options.items() if _is_kept(name, value)}
    if lost := sorted(set(options) - set(kept)):
        assumed.append(
            f"{', '.join(lost)}: no export brings back what is empty or a table."
        )
    if not kept:
        return {}
    return {"launch": {"format": format_name, "options": kept}}


def _is_kept(name: str, value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    plain = all(isinstance(part, str | int | float) for part in values)
    return plain and NAME.fullmatch(name) is not None


def carried_options(job: LaunchJob, format_name: str) -> Mapping[str, Any] | None:
    """Return the options that a job has of a format; None if it was of another."""
    launch = job.scenario.launch
    if launch is None or launch.format != format_name:
        return None
    return launch.options


def with_imported(
    groups: Iterable[OptionGroup], back: Mapping[str, Any], *, name: str, file: str
) -> tuple[OptionGroup, ...]:
    """Return groups of options with those of an import, where they stand or behind.

    Parameters
    ----------
    groups
        What is written for a plan.
    back
        What comes back.
    name, file
        Name of the group behind, and what was imported, in a word.
    """
    rest = dict(back)
    kept = [
        replace(
            group, options={key: rest.pop(key, v) for key, v in group.options.items()}
        )
        for group in groups
    ]
    comment = f"As the {file} had them that was imported."
    return (*kept, OptionGroup(name, comment, rest))


def option_text(name: str, words: Sequence[str]) -> str:
    """Return an option as it stands in a command."""
    return " ".join((f"--{name}", *map(quoted, words)))


def array_text(group: OptionGroup) -> str:
    """Return a group as an array of a shell, with its comment."""
    lines = [f"    {option_text(*option)}" for option in group.options.items()]
    return "\n".join([f"# {group.comment}", f"{group.name}=(", *lines, ")"]) + "\n"


def joined(groups: Iterable[OptionGroup]) -> dict[str, Any]:
    """Return the options of all groups."""
    return {name: value for group in groups for name, value in group.options.items()}


def brought_back(
    written: Mapping[str, V],
    carried: Mapping[str, V],
    *,
    reads: Callable[[dict[str, V]], Any],
    matter: Collection[str],
    refusal: Callable[[str], str] = lambda _: "",
    shown: Callable[[str, V], tuple[str, Any]] = lambda name, value: (name, value),
) -> tuple[dict[str, V], list[LaunchGap]]:
    """Return the options of an import that come back, and what is changed of them.

    Parameters
    ----------
    own
        Options that are written for the plan.
    carried
        Those that a scenario has of its import.
    reads
        What options are read as, or an `InputError` of those that cannot be read: one
        comes back if that stays what it is without.
    matter
        Options that may be read; all others come back whatever they say.
    refusal
        Why an option does not come back, whatever it says; empty if it may.
    shown
        How an option and its value are called in gaps.
    """
    refused = {name: refusal(name) for name in carried}
    other = {
        name: value
        for name, value in carried.items()
        if name not in written or written[name] != value
    }
    may = {name: value for name, value in other.items() if not refused[name]}
    back = _unnoticed(written, may, reads, matter)
    gaps = []
    for name, value in other.items():
        if name not in back:
            reason = "The job has another value there now, which other options say."
            if name in written:
                label, now = shown(name, written[name])
                now = "empty" if now == "" else now
                reason = f"The plan asks for another value: {label} is {now}."
            label, was = shown(name, value)
            reason = refused[name] or reason
            gaps.append(LaunchGap(label, was, reason))
    return back, gaps


def _unnoticed(
    written: Mapping[str, V],
    others: Mapping[str, V],
    reads: Callable[[dict[str, V]], Any],
    matter: Collection[str],
) -> dict[str, V]:
    """Return those of some options with which a launch is read as without."""

    def read(options: dict[str, V]) -> Any:
        try:
            return reads(options)
        except InputError:
            return None

    asked = {name: value for name, value in others.items() if name in matter}
    if not asked or read({**written, **asked}) == (plain := read(dict(written))):
        return dict(others)
    lost, so_far = set(), dict(written)
    for name, value in asked.items():
        tried = {**so_far, name: value}
        if read(tried) == plain:
            so_far = tried
        else:
            lost.add(name)
    return {name: value for name, value in others.items() if name not in lost}


def leaves(
    table: Mapping[str, Any], whole: Collection[str] = (), outer: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the values of a table of tables under their dotted names.

    A table whose name is in `whole` is a value itself.
    """
    for key, value in table.items():
        name = f"{outer}{key}"
        if isinstance(value, dict) and name not in whole:
            yield from leaves(value, whole, f"{name}.")
        else:
            yield name, value


def nested(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the table of tables that values under dotted names make.

    Of a value and a table of one name the later stays.
    """
    tree: dict[str, Any] = {}
    for name, value in values:
        table = tree
        *outer, key = name.split(".")
        for part in outer:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[key] = value
    return tree


def overlaid(below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of tables with another one laid over it."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        both = isinstance(under, dict) and isinstance(value, dict)
        merged[name] = overlaid(under, value) if both else value
    return merged


def stored_words(words: Sequence[str]) -> str | bool | list[str]:
    """Return the words behind an option of a command as a scenario has them."""
    stored = [with_variables(word) for word in words]
    if not stored:
        return True
    return stored[0] if len(stored) == 1 else stored


def words_of_option(value: Any) -> tuple[str, ...]:
    """Return the words behind an option of a command that a scenario has."""
    if value is True:
        return ()
    return tuple(map(str, value if isinstance(value, list | tuple) else [value]))


def with_variables(word: str) -> str:
    """Return a word of a script as a scenario has it: its variables in braces."""
    return _LISTED.sub(r"${\1}", readable(word))


def variables_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the variables that words take from outside, each once."""
    names = (name for word in words for name in _VARIABLE.findall(word))
    return tuple(dict.fromkeys(names))


def taken_outside(words: Iterable[str]) -> Iterator[str]:
    """Yield a note on the variables that words take from outside, if they do."""
    if names := variables_of(list(words)):
        yield f"The script takes {', '.join(names)} from outside, as the imported did."


def quoted(word: str) -> str:
    """Return a word as a shell reads it; variables alone are left to be read."""
    parts = _VARIABLE.split(word)
    return "".join(
        f'"${{{part}}}"' if index % 2 else quote(part)
        for index, part in enumerate(parts)
        if part or len(parts) == 1
    )


@dataclass(slots=True, kw_only=True)
class TableOptions:
    """What a configuration says."""

    table: OptionTable
    """The framework's options."""

    values: Mapping[str, Value]
    """Value of each option that it sets and that matters, by its name in the table."""

    ignored: Mapping[str, Any] = field(default_factory=dict)
    """Value of each of those that no setting stands for, by its name as written, a
    command's without dashes."""

    ticked: set[str] = field(default_factory=set)
    """Options that somebody read."""

    replaced: set[str] = field(default_factory=set)
    """Options in whose place something else is assumed."""

    named: tuple[str, ...] = ()
    """Options of a command line that name what is trained."""

    dashes: str = ""
    """What stands before names of options."""

    assumptions: list[str] = field(default_factory=list)
    """What was taken where it does not tell, a sentence each."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a named configuration of the framework sets."""

    @property
    def effects(self) -> OptionEffects:
        """What became of each option, after all were read."""
        written = {name: value.where for name, value in self.values.items()}
        written |= {name: f"{self.dashes}{name}" for name in self.ignored}
        return OptionEffects.of(
            [*self.named, *written.values()],
            read=[*self.named, *_some(written, self.ticked)],
            assumed=_some(written, self.replaced),
        )

    def assume(self, sentence: str, *replaced: str) -> None:
        """Note what is taken, and in place of which options."""
        self.assumptions.append(sentence)
        self.replaced.update(replaced)

    def kept(self) -> dict[str, Any]:
        """Return what no setting holds: what nobody read, and some that say more."""
        held = self.ticked - self.replaced - self.table.finer
        more = {
            name: value.raw for name, value in self.values.items() if name not in held
        }
        return more | dict(self.ignored)

    def value(self, name: str) -> Value:
        """Return the value of an option, or what the framework takes without it."""
        self.ticked.add(name)
        if name in self.values:
            return self.values[name]
        default = self.table.options[name].default
        return Value(self.defaults.get(name, default), name)

    def whole(self, name: str, *, least: int = 1) -> int:
        """Return a number of things."""
        return self.value(name).whole(least=least, most=10**9)

    def flag(self, name: str) -> bool:
        """Return whether something is on."""
        return self.value(name).flag()

    def choice(self, name: str) -> str:
        """Return one of the texts that an option takes."""
        return self.value(name).choice(self.table.options[name].choices)

    def meaning(self, name: str) -> Any:
        """Return the value of the setting that one of the option's words means."""
        return self.table.options[name].words[self.choice(name)]

    def settings(self, table: str) -> dict[str, Any]:
        """Return the settings of a table that are options and nothing else.

        Those that are empty are left out.
        """
        named = {
            option.setting.rpartition(".")[2]: self._plain(name)
            for name, option in self.table.plain(table).items()
        }
        return {name: value for name, value in named.items() if value != ""}

    def _plain(self, name: str) -> Any:
        """Return the value of a setting that is an option and nothing else."""
        option = self.table.options[name]
        if option.words:
            return self.meaning(name)
        if isinstance(option.default, bool):
            return self.flag(name)
        return self.whole(name, least=min(option.default, 1))


def _some(written: Mapping[str, str], names: Collection[str]) -> list[str]:
    return [text for name, text in written.items() if name in names]
