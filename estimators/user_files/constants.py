"""Constants that were fitted to a user's own runs, in a file that scenarios name.

The file has the tables of ``constants.toml``, ``[accelerator.NAME]`` and so on, with
only what differs from the shipped constants. A constant is a number, or a table with
``value`` and whatever else whoever wrote it wants to say::

    format = "nestsim constants 1"
    date = "2026-03-31"
    source = "12 runs of my_runs.csv"

    [accelerator.h100]
    matmul = { value = 0.63, deviation = 0.02, shipped = 0.6052 }
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from estimators.collectives.transports import Scope
from estimators.constants import (
    AcceleratorConstants,
    AllocatorConstants,
    Constants,
    SoftwareConstants,
    load_constants,
)
from estimators.user_files.tables import number_in, quoted, read_table, text_of
from topologies.errors import MIN_EFFICIENCY, InputError, Problems
from topologies.input_file import Value

FORMAT = "nestsim constants 1"
"""First value of every file; changes when old files can no longer be read."""

_HEAD = ("format", "date", "source")

LINK_EFFICIENCIES: Mapping[Scope, str] = MappingProxyType(
    {"node": "links.node.efficiency", "fabric": "links.fabric.efficiency"}
)
"""Kind of link -> dotted name of the fraction of its bandwidth that collectives reach.
No shipped constant: networks and published transports say it."""

_SECTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        group: tuple(field.name for field in fields(kind))
        for group, kind in (
            ("accelerator", AcceleratorConstants),
            ("software", SoftwareConstants),
            ("allocator", AllocatorConstants),
        )
    }
    | {"links": ("efficiency",)}
)
"""Group of constants -> the names in each of its tables."""

FRACTIONS = frozenset(
    {
        *("matmul", "matmul_8bit", "matmul_4bit", "wave_quantisation"),
        *("flash_attention", "fused_attention", "memory", "fragmentation"),
        *("full_fragmentation", "grouped_rate", "efficiency"),
    }
)
"""Constants that are parts of a whole: at most 1."""

_LEAST: Mapping[str, float] = MappingProxyType(
    {"accelerator": 1e-6, "links": MIN_EFFICIENCY}
)
"""Group -> its smallest value; rates are divided by."""

_RATES = frozenset({"grouped_rate"})
"""Constants of other groups that are divided by."""

_LARGEST = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConstants:
    """Constants of a user, which hold in place of those that are shipped."""

    name: str
    """Name of the file, without its folder."""

    date: str
    """Date on which the constants were fitted."""

    source: str
    """What the constants were fitted to."""

    values: tuple[tuple[str, float], ...]
    """Dotted name and value of each constant."""

    def efficiency(self, scope: Scope) -> float | None:
        """Return what collectives reach of links, None if nothing is said of it."""
        return dict(self.values).get(LINK_EFFICIENCIES[scope])

    def constants(self) -> Constants:
        """Return all constants, these in place of the shipped ones."""
        return load_constants().replaced(dict(self.values))


def constants_with(fitted: UserConstants | None) -> Constants:
    """Return the shipped constants, or those of a user in their place."""
    return load_constants() if fitted is None else fitted.constants()


def read_user_constants(path: Path) -> UserConstants:
    """Read a file of constants.

    Raises
    ------
    InputError
        If there is none, or it names a constant or a value that cannot be.
    """
    return read_table(
        path,
        FORMAT,
        "nestsim calibrate",
        lambda tables: _build_constants(path.name, tables),
    )


def _build_constants(name: str, tables: Value) -> UserConstants:
    problems = Problems()
    values: dict[str, float] = {}
    for group, sections in tables.items():
        if group in _HEAD:
            continue
        with problems.noted():
            if group not in _SECTIONS:
                known = ", ".join(f"[{section}.NAME]" for section in _SECTIONS)
                raise sections.error("unknown table", f"one of {known}")
            for section, entries in sections.items():
                if group == "links" and section not in LINK_EFFICIENCIES:
                    raise entries.error("unknown table", "[links.node], [links.fabric]")
                for constant, entry in entries.items():
                    with problems.noted():
                        dotted = f"{group}.{section}.{constant}"
                        values[dotted] = _value(group, constant, entry)
    problems.refuse()
    if not values:
        raise InputError(
            "has no constants",
            where="accelerator",
            expected="a table such as [accelerator.h100] with matmul = 0.6",
        )
    return UserConstants(
        name=name,
        date=tables.get("date", "no date").text(),
        source=tables.get("source", "the user").text(),
        values=tuple(sorted(values.items())),
    )


def _value(group: str, constant: str, entry: Value) -> float:
    """Read one constant."""
    known = _SECTIONS[group]
    if constant not in known:
        raise entry.error("no such constant", "one of " + ", ".join(known))
    value = entry["value"] if isinstance(entry.raw, dict) else entry
    most = 1.0 if constant in FRACTIONS else _LARGEST
    whose = "accelerator" if constant in _RATES else group
    return number_in(value, _LEAST.get(whose, 0.0), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEntry:
    """What a file says of one constant."""

    name: str
    """Dotted name of the constant."""

    value: float
    """Value that was fitted."""

    shipped: float
    """Value that the fitted one replaces."""

    deviation: float
    """Standard deviation of the value's logarithm."""


def user_constants_toml(
    entries: Sequence[FittedEntry], *, date: str, source: str
) -> str:
    """Return the text of a file of constants."""
    lines = [
        "# Written by nestsim calibrate. A scenario beside it names it:",
        "#   [software]",
        '#   constants = "the name of this file"',
        "# deviation: standard deviation of the logarithm, about that of the value as",
        "# a part of it; shipped: the value that nestsim comes with.",
        f"format = {quoted(FORMAT)}",
        f"date = {quoted(date)}",
        f"source = {quoted(source)}",
    ]
    sections: dict[str, list[str]] = {}
    for entry in entries:
        section, name = entry.name.rsplit(".", 1)
        sections.setdefault(section, []).append(
            f"{name} = {{ value = {text_of(entry.value)}, deviation = "
            f"{text_of(entry.deviation)}, shipped = {text_of(entry.shipped)} }}"
        )
    for section, rows in sorted(sections.items()):
        lines += ["", f"[{section}]", *rows]
    return "\n".join(lines) + "\n"


def is_user_constants(ends: bytes) -> bool:
    """Return whether a file of this beginning and end is one of ours."""
    text = ends.decode("utf-8", errors="replace")
    return f"\nformat = {quoted(FORMAT)}\n" in text
