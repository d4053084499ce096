"""Read the TOML files that nestsim wrote for a user, and say what is wrong with one.

A sweep over collectives that `estimators.measuring.links` measured is plain data here,
which needs no torch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from estimators.collectives.transports import WIRE_FRACTIONS, Scope
from estimators.operators.profile import OperatorTiming
from topologies.errors import InputError
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
    try:
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
    except InputError as error:
        raise error.at(str(path), ": ") from None


def number_in(value: Value, least: float, most: float) -> float:
    """Return a number of a range.

    Raises
    ------
    InputError
        If it is none, or outside.
    """
    found = value.number()
    if not least <= found <= most:
        raise value.error("is out of range", f"a number from {least:g} to {most:g}")
    return found


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
