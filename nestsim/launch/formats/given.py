"""Options that a configuration gives, read by a framework's table of them.

Who asks for the value of an option has read it. What nobody read, and what nothing here
stands for, is kept for an export to the same format.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from nestsim.launch.read import OptionEffects
from planner.frameworks.options import OptionTable
from topologies.input_file import Value


@dataclass(frozen=True, slots=True, kw_only=True)
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

    assumptions: tuple[str, ...] = ()
    """What was taken where only running it would tell."""

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

    def kept(self) -> dict[str, Any]:
        """Return what no setting holds: what nobody read, and some that say more."""
        held = self.ticked - self.replaced - self.table.finer
        more = {name: one.raw for name, one in self.values.items() if name not in held}
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
