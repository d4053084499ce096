"""What collectives reach on a user's own links, in a file that scenarios name.

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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from estimators.collectives.transports import Scope, Transport
from estimators.user_files.constants import UserConstants
from estimators.user_files.tables import (
    number_in,
    quoted,
    read_table,
    refuse_unknown,
    text_of,
)
from topologies.errors import InputError, Problems
from topologies.input_file import Value

FORMAT = "nestsim links 1"
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

_HEAD = ("format", "date", "device", "backend", "torch_version")
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
            f"format = {quoted(FORMAT)}",
            *(f"{name} = {quoted(value)}" for name, value in self._facts() if value),
        ]
        for scope in SCOPES:
            link = getattr(self, scope)
            if link is not None:
                lines += ["", f"[{scope}]", *_link_lines(link)]
        return "\n".join(lines) + "\n"

    def _facts(self) -> list[tuple[str, str]]:
        return [(name, getattr(self, name)) for name in _HEAD[1:]]


def measured_efficiencies(
    links: UserLinks | None, constants: UserConstants | None
) -> dict[Scope, float]:
    """Return what collectives reach of links, where a user's files say it.

    What was measured of the links themselves counts before what was fitted to runs.
    """
    found: dict[Scope, float] = {}
    for scope in SCOPES:
        fitted = None if constants is None else constants.efficiency(scope)
        if fitted is not None:
            found[scope] = fitted
        link = links.transport(inside_node=scope == "node") if links else None
        if link is not None:
            found[scope] = link.efficiency
    return found


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
        path, FORMAT, writer, lambda tables: _build_links(path.name, tables)
    )


def _build_links(name: str, tables: Value) -> UserLinks:
    refuse_unknown(tables, dict.fromkeys((*_HEAD, *SCOPES)))
    found: dict[str, UserLink] = {}
    problems = Problems()
    for scope in SCOPES:
        if scope in tables.table():
            with problems.noted():
                found[scope] = _link(scope, tables[scope])
    problems.refuse()
    if not found:
        raise InputError(
            "has no links", where="node", expected="a table [node] or [fabric]"
        )
    facts = {fact: tables.get(fact, "unknown").text() for fact in _HEAD[1:]}
    return UserLinks(
        name=name,
        node=found.get("node"),
        fabric=found.get("fabric"),
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
    return f"\nformat = {quoted(FORMAT)}\n" in text
