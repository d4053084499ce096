"""The commands as descriptions: data beside the code that they call.

What a command is called, says, takes and writes stands in a TOML file beside the
module that does it. The command line, the reference in the documentation and the tests
of the surface read these files; the module is imported when its command runs, so that
`nestsim --help` is instant. A feature is one folder, and one word of `FEATURES`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli

FEATURES = (
    *("advise", "memory", "compare", "stress", "goodput", "jitter", "rl", "sites"),
    *("sweep", "jobs", "collectives", "validation", "certificate", "profile", "serve"),
)
"""Folders of `nestsim.features` that have commands, in the order in which help lists
them."""

MODULES = (
    "nestsim.features.run.command",
    *(f"nestsim.features.{feature}.command" for feature in FEATURES),
    "nestsim.launch.command",
    "nestsim.features.run.pages",
    "nestsim.features.run.diff_page",
    "nestsim.cli.topology",
    "nestsim.cli.check",
    "nestsim.cli.catalog",
)
"""Modules of commands; the description of each stands beside it."""

KINDS: Mapping[str, type] = MappingProxyType(
    {"text": str, "int": int, "float": float, "path": Path, "switch": bool}
)
"""Kinds of values, as descriptions name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a command, or one of its arguments."""

    name: str
    """Name with its dashes, ``"--seeds"``; that of an argument has none."""

    words: str
    """Help text."""

    kind: str = "text"
    """One of `KINDS`."""

    metavar: str = ""
    """Stand-in for the value in help; empty for that of the kind."""

    short: str = ""
    """Short name, ``"-o"``; empty without one."""

    default: Any = None
    """Value where the option is absent."""

    required: bool = False
    """Whether it must be given."""

    is_list: bool = False
    """Whether it may be given several times; an argument, several in a row."""

    takes_words: bool = False
    """Whether all words up to the next option are values of it."""

    choices: tuple[str, ...] = ()
    """Values that it may have; empty for any of the kind."""

    least: float | None = None
    """Smallest value; None for any."""

    key: str = ""
    """Dotted setting of the scenario that it replaces, and whose table checks it."""

    absent: str = ""
    """Value that takes the setting away; empty if none does."""

    read: str = ""
    """Function of the module that makes the value of what is typed, and refuses what is
    wrong; empty for what is typed."""

    form: str = ""
    """Function of the module that makes the text which a switch has printed in place of
    tables and JSON; empty for switches that do something else."""

    parameter: str = ""
    """Name of the parameter that takes the value; empty for the option's own."""

    @property
    def is_argument(self) -> bool:
        """Whether its place says what it is."""
        return not self.name.startswith("-")

    @property
    def target(self) -> str:
        """Name under which its value is handed on."""
        return self.parameter or self.name.strip("-").replace("-", "_").lower()

    @property
    def help(self) -> str:
        """What help says, the setting that it replaces included."""
        return f"{self.words} Replaces {self.key}." if self.key else self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How a folder of results is read again."""

    marker: str
    """File that only this command writes."""

    record: str
    """File that holds all that the document says."""

    document: str
    """Function of the module that makes the document of that file's content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, as the command line, the docs and the tests read it."""

    name: str
    """Name that users type."""

    module: str
    """Module that does it; functions are named without their module."""

    words: str
    """Help text."""

    options: tuple[Option, ...]
    """Arguments, then options, in the order of help."""

    call: str = ""
    """Function of the scenario and of the options that it names."""

    arguments: str = ""
    """Function that makes arguments of the call of options that the call does not take
    as they are; empty if there are none."""

    within: str = ""
    """Context in which the call is made, which gives more of its arguments; empty for
    none."""

    load: str = ""
    """Function that loads the scenario; empty for that of scenarios of one job."""

    task: str = ""
    """Function that makes tasks of the options that it names, where that is more than
    to load the scenario and to call; empty where it is not."""

    files: tuple[str, ...] = ()
    """Files that it may write into a folder of results."""

    suffix: str = ""
    """End of the name of the folder that is written without ``--output``; empty for no
    folder."""

    always_writes: bool = False
    """Whether that folder is written with ``--json``, too."""

    moved: Mapping[str, str] = field(default_factory=dict)
    """Option that it had -> what users call now."""

    stored: Stored | None = None
    """How its folders are read again; None if they are not, or hold a run."""

    def has(self, option: str) -> bool:
        """Return whether it has an option of this name."""
        return any(known.name == option for known in self.options)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the module, which is imported."""
        function: Callable[..., Any] = getattr(import_module(self.module), name)
        return function

    def apply(self, name: str, given: Mapping[str, Any]) -> Any:
        """Call a function of the module with the values that its parameters name."""
        function = self.function(name)
        return function(**chosen(function, given))


def chosen(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a function takes, by the names of its parameters."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in names}


def read_commands(modules: Iterable[str]) -> tuple[Command, ...]:
    """Return the commands of modules, in the order of their descriptions."""
    shared = _tables("nestsim.commands", "shared")
    commands = []
    for module in modules:
        package, _, name = module.rpartition(".")
        for command, table in _tables(package, name).items():
            commands.append(_command(command, module, table, shared))
    return tuple(commands)


def _tables(package: str, name: str) -> dict[str, Any]:
    """Return the tables of a description."""
    return tomli.loads((files(package) / f"{name}.toml").read_text("utf-8"))


def _command(
    name: str, module: str, table: dict[str, Any], shared: Mapping[str, Any]
) -> Command:
    """Return a command, those of its options that several have filled in."""
    tables = {
        **table.pop("options", {}),
        **{option: {} for option in table.pop("common", ())},
    }
    options = [
        Option(name=option, **_plain({**shared.get(option, {}), **given}))
        for option, given in tables.items()
    ]
    stored = table.pop("stored", None)
    return Command(
        name=name,
        module=module,
        options=tuple(sorted(options, key=lambda option: not option.is_argument)),
        stored=None if stored is None else Stored(**stored),
        **_plain(table),
    )


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
    }


COMMANDS = read_commands(MODULES)
"""All commands."""
