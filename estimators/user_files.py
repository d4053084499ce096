"""What users measured on their own machines, in files that scenarios name.

A sweep over collectives that `estimators.measuring.links` measured is plain data here,
which needs no torch.

Constants that were fitted to a user's own runs, in a file that scenarios name.

The file has the tables of ``constants.toml``, ``[accelerator.NAME]`` and so on, with
only what differs from the shipped constants. A constant is a number, or a table with
``value`` and whatever else whoever wrote it wants to say::

    format = "nestsim constants 1"
    date = "2026-03-31"
    source = "12 runs of my_runs.csv"

    [accelerator.h100]
    matmul = { value = 0.63, deviation = 0.02, shipped = 0.6052 }

What collectives reach on a user's own links, in a file that scenarios name.

The file has a table for links inside a node, one for those between nodes, or both,
each with the constants of `estimators.collectives.transports`, in SI units::

    format = "nestsim links 1"
    date = "2026-03-31"
    device = "NVIDIA H100 80GB HBM3"
    backend = "nccl"

    [node]
    num_ranks = 8
    num_nodes = 1
    bandwidth = 450e9
    launch = 9.1e-6
    ..
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from estimators.collectives.transports import WIRE_FRACTIONS, Scope, Transport
from estimators.constants import (
    AcceleratorConstants,
    AllocatorConstants,
    Constants,
    SoftwareConstants,
    load_constants,
)
from estimators.operators.profile import OperatorTiming
from topologies.errors import MIN_EFFICIENCY, InputError, Problems, located
from topologies.input_file import Value, parse_toml, read_file

MAX_FILE = 1_000_000
"""Longest file that is read; one has some dozen constants [byte]."""

T = TypeVar("T")


def read_table(
    path: Path, format_name: str, writer: str, build: Callable[[Value], T]
) -> T:
    """Return what a file says.

    Parameters
    ----------
    path
        The file.
    format_name
        What its key ``format`` has to be.
    writer
        The command that writes such files.
    build
        Makes something of the tables.

    Raises
    ------
    InputError
        If the file cannot be read or something in it is wrong. The message starts
        with the file and the setting.
    """
    expected = f"a TOML file that {writer} wrote"
    with located(str(path), ": "):
        text = read_file(path, expected=expected, most_bytes=MAX_FILE)
        document = parse_toml(text)
        if document.get("format") != format_name:
            raise InputError(
                "is not a file that this version reads",
                where="format",
                got=document.get("format"),
                expected=f'"{format_name}", which {writer} writes',
            )
        return build(Value(document))


def number_in(value: Value, least: float, most: float) -> float:
    """Return a number of a range.

    Raises
    ------
    InputError
        If it is none, or outside.
    """
    number = value.number()
    if not least <= number <= most:
        raise value.error("is out of range", f"a number from {least:g} to {most:g}")
    return number


def refuse_unknown(value: Value, known: Mapping[str, object]) -> None:
    """Refuse keys of a table that nothing reads.

    Raises
    ------
    InputError
        For the first of them.
    """
    for name, inner in value.items():
        if name not in known:
            raise inner.error("unknown setting", "one of " + ", ".join(known))


def text_of(value: float) -> str:
    """Return a number as TOML has it, with four digits that count."""
    assert math.isfinite(value)
    short = float(f"{value:.4g}")
    return repr(short)


def quoted(text: str) -> str:
    """Return a text as TOML has it."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """One collective of one size in one group."""

    operation: str
    """Name of the collective, a key of
    `estimators.collectives.transports.WIRE_FRACTIONS`."""

    num_ranks: int
    """Members of the group."""

    num_nodes: int
    """Nodes that the members are on, each with as many of them."""

    num_bytes: int
    """Size of the full tensor: of the result of an all-gather, of the input of a
    reduce-scatter and an all-to-all, of each message of send/receive [byte]."""

    timing: OperatorTiming
    """Median and spread over trains of launches of the mean over the ranks."""

    @property
    def scope(self) -> Scope:
        """Whether its ranks share a node's links, or send between nodes."""
        return "node" if self.num_nodes == 1 else "fabric"

    @property
    def bus_bandwidth(self) -> float:
        """Bytes through each rank's port over the time [byte/s]."""
        wire = WIRE_FRACTIONS[self.operation](self.num_ranks) * self.num_bytes
        return wire / self.timing.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSweep:
    """What was measured among some processes."""

    backend: str
    """Backend of torch.distributed, ``"gloo"`` or ``"nccl"``; library and program where
    torch measured nothing."""

    device: str
    """Name of the first rank's device, as the driver or the operating system has it."""

    torch_version: str
    """Version of torch, whose collectives were measured; empty where another program
    measured."""

    num_ranks: int
    """Number of processes."""

    num_nodes: int
    """Number of nodes that processes ran on."""

    points: tuple[LinkPoint, ...] = field(repr=False)
    """Measured points in the order in which they were measured."""

    num_skipped: int = 0
    """Points that are left out."""

    skipped_because: str = "the time or the memory did not suffice"
    """Reason why points are left out."""

    @property
    def library(self) -> str:
        """Name of what was measured, for people."""
        if not self.torch_version:
            return self.backend
        return f"{self.backend} of torch {self.torch_version}"


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
        *("memory", "fragmentation", "full_fragmentation"),
        "efficiency",
    }
)
"""Constants that are parts of a whole: at most 1."""

_MOST_SUSTAINED = 1.5
"""Largest rate of products and attention over that of isolated kernels: above it a
number is in another unit, such as percent."""

_LEAST: Mapping[str, float] = MappingProxyType(
    {"accelerator": 1e-6, "links": MIN_EFFICIENCY}
)
"""Group -> its smallest value; rates are divided by."""

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
    most = _MOST_SUSTAINED if group == "accelerator" else _LARGEST
    most = 1.0 if constant in FRACTIONS else most
    return number_in(value, _LEAST.get(group, 0.0), most)


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


LINKS_FORMAT = "nestsim links 1"
"""First value of every file; changes when old files can no longer be read."""

_TIME, _FRACTION = (0.0, 10.0), (1e-6, 1.0)

CONSTANTS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "launch": _TIME,
        "per_rank": _TIME,
        "per_doubling": _TIME,
        "ramp": _TIME,
        "efficiency": _FRACTION,
        "multicast_efficiency": (0.0, 1.0),
        "send_launch": _TIME,
        "send_efficiency": _FRACTION,
    }
)
"""Constant of a transport -> its least and its largest value."""

SCOPES: tuple[Scope, ...] = ("node", "fabric")

_LINKS_HEAD = ("format", "date", "device", "backend", "torch_version")
_MEASURED = ("num_ranks", "num_nodes", "bandwidth", "bandwidth_is", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLink:
    """One kind of link of a user."""

    transport: Transport
    """Constants of what collectives reach on the link."""

    num_ranks: int
    """Members of the largest group that was measured."""

    num_nodes: int
    """Nodes that the largest group was spread over."""

    bandwidth: float
    """Bandwidth that efficiencies are fractions of: of a device inside a node, of all
    adapters of a node between nodes, one direction [byte/s]."""

    bandwidth_is: str
    """Source of the bandwidth, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLinks:
    """What was measured of a user's links."""

    name: str
    """Name of the file, without its folder."""

    date: str
    """Date of the measurement."""

    device: str
    """Name of the device, as the driver or the operating system has it."""

    backend: str
    """Backend of torch.distributed; library and program where torch measured
    nothing."""

    torch_version: str
    """Version of torch, whose collectives were measured; empty where another program
    measured."""

    node: UserLink | None = None
    """Link inside a node; None if not measured."""

    fabric: UserLink | None = None
    """Link between nodes; None if not measured."""

    def transport(self, *, inside_node: bool) -> Transport | None:
        """Return what collectives reach, None where it was not measured."""
        link = self.node if inside_node else self.fabric
        return None if link is None else link.transport

    def toml(self) -> str:
        """Return the text of a file of links."""
        lines = [
            "# Written by nestsim profile. A scenario beside it names it:",
            "#   [software]",
            '#   links = "the name of this file"',
            "# Times in seconds, bandwidth in bytes a second and direction.",
            f"format = {quoted(LINKS_FORMAT)}",
            *(f"{name} = {quoted(value)}" for name, value in self._facts() if value),
        ]
        for scope in SCOPES:
            link = getattr(self, scope)
            if link is not None:
                lines += ["", f"[{scope}]", *_link_lines(link)]
        return "\n".join(lines) + "\n"

    def _facts(self) -> list[tuple[str, str]]:
        return [(name, getattr(self, name)) for name in _LINKS_HEAD[1:]]


def measured_efficiencies(
    links: UserLinks | None, constants: UserConstants | None
) -> dict[Scope, float]:
    """Return what collectives reach of links, where a user's files say it.

    What was measured of the links themselves counts before what was fitted to runs.
    """
    efficiencies: dict[Scope, float] = {}
    for scope in SCOPES:
        fitted = None if constants is None else constants.efficiency(scope)
        if fitted is not None:
            efficiencies[scope] = fitted
        link = links.transport(inside_node=scope == "node") if links else None
        if link is not None:
            efficiencies[scope] = link.efficiency
    return efficiencies


def _link_lines(link: UserLink) -> list[str]:
    constants = {name: getattr(link.transport, name) for name in CONSTANTS}
    return [
        f"num_ranks = {link.num_ranks}",
        f"num_nodes = {link.num_nodes}",
        f"bandwidth = {text_of(link.bandwidth)}",
        f"bandwidth_is = {quoted(link.bandwidth_is)}",
        *(f"{name} = {text_of(value)}" for name, value in constants.items()),
        f"source = {quoted(link.transport.source)}",
    ]


def read_user_links(path: Path) -> UserLinks:
    """Read a file of links.

    Raises
    ------
    InputError
        If there is none, or something in it cannot have been measured.
    """
    writer = "nestsim profile-links"
    return read_table(
        path, LINKS_FORMAT, writer, lambda tables: _build_links(path.name, tables)
    )


def _build_links(name: str, tables: Value) -> UserLinks:
    refuse_unknown(tables, dict.fromkeys((*_LINKS_HEAD, *SCOPES)))
    links: dict[str, UserLink] = {}
    problems = Problems()
    for scope in SCOPES:
        if scope in tables.table():
            with problems.noted():
                links[scope] = _link(scope, tables[scope])
    problems.refuse()
    if not links:
        raise InputError(
            "has no links", where="node", expected="a table [node] or [fabric]"
        )
    facts = {fact: tables.get(fact, "unknown").text() for fact in _LINKS_HEAD[1:]}
    return UserLinks(
        name=name,
        node=links.get("node"),
        fabric=links.get("fabric"),
        **facts,
    )


def _link(scope: Scope, table: Value) -> UserLink:
    refuse_unknown(table, dict.fromkeys((*_MEASURED, *CONSTANTS)))
    constants: dict[str, Any] = {
        name: number_in(table[name], *bounds) for name, bounds in CONSTANTS.items()
    }
    return UserLink(
        transport=Transport(
            name=f"user-{scope}",
            scope=scope,
            source=table.get("source", "the user").text(),
            **constants,
        ),
        num_ranks=table["num_ranks"].whole(least=2, most=2**20),
        num_nodes=table["num_nodes"].whole(least=1, most=2**20),
        bandwidth=number_in(table["bandwidth"], 1.0, 1e18),
        bandwidth_is=table.get("bandwidth_is", "stated").text(),
    )


def is_user_links(ends: bytes) -> bool:
    """Return whether a file of this beginning and end is one of ours."""
    text = ends.decode("utf-8", errors="replace")
    return f"\nformat = {quoted(LINKS_FORMAT)}\n" in text
