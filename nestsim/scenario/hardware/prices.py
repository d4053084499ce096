"""What a device's hour costs by published lists, for scenarios that are made of words.

No scenario has a price that does not stand in it: a price of a list is written into the
scenario, with the day on which it was read.
"""

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli

from nestsim.scenario.errors import checked, nearest
from nestsim.scenario.hardware.cost import MoneyPerTime
from topologies.errors import InputError, located
from topologies.input_file import parse_toml, read_file
from topologies.settings import Spec, Text

PUBLISHED = "published"
"""The word for the list that comes with nestsim."""

MOST_BYTES = 1_000_000
"""Longest file of prices [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice(Spec):
    """The price of a system in a list, and where it comes from."""

    device_hour: MoneyPerTime
    """Rent of one device [currency/s]."""

    offer: Text = ""
    """Who offers what."""

    read: Text = ""
    """The day on which it was read."""

    source: Text = ""
    """Where it was read."""

    written: Text = ""
    """`device_hour` as the list has it, with its unit."""

    def comment(self) -> str:
        """Return the line of a scenario that says where its price comes from."""
        parts = [self.offer, self.read and f"read on {self.read}", self.source]
        return "# Price: " + ("; ".join(filter(None, parts)) or "of a file")


def price_of(system: str, prices: str | os.PathLike[str]) -> ListPrice:
    """Return what a list says that an hour of a system's device costs.

    Parameters
    ----------
    system
        Name of the system.
    prices
        ``"published"`` for the list that comes with nestsim, or the path of another: a
        TOML file with a table for each system.

    Raises
    ------
    InputError
        If there is no such list, or the system is not in it.
    """
    if prices == PUBLISHED:
        known = published_prices()
    else:
        text = read_file(
            Path(prices),
            expected=f'"{PUBLISHED}", or a file of prices (TOML)',
            most_bytes=MOST_BYTES,
        )
        with located(str(prices), ": "):
            known = _read(parse_toml(text))
    if system not in known:
        raise InputError(
            "no price of the system is known",
            got=system,
            expected="one of " + ", ".join(sorted(known)),
            hint=nearest(system, list(known))
            or 'a price of your own: [cost] device_hour = ".. USD/h", or a file',
        )
    return known[system]


@cache
def published_prices() -> Mapping[str, ListPrice]:
    """Return all of ``prices.toml`` by the system's name."""
    text = files("nestsim.scenario.hardware").joinpath("prices.toml")
    return _read(tomli.loads(text.read_text(encoding="utf-8")))


def _read(tables: Mapping[str, Any]) -> dict[str, ListPrice]:
    """Return the prices of a list by the system's name."""
    known: dict[str, ListPrice] = {}
    for name, table in tables.items():
        with located(name):
            if not isinstance(table, Mapping):
                raise InputError("is no table", got=table, expected=f"[{name}]")
            row = dict(table)
            if isinstance(row.get("read"), dt.date):
                row["read"] = row["read"].isoformat()
            known[name] = checked(
                ListPrice, {**row, "written": str(row.get("device_hour", ""))}
            )
    return known
