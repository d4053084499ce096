"""The table [cost]: what devices, networks and electricity cost, and what they draw.

Nothing here has a default that is a price: what a scenario leaves out is left out of
the cost, and reports say so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Annotated

from annotated_types import Ge, Gt, Le

from topologies.accelerators import Accelerator
from topologies.errors import InputError
from topologies.settings import (
    Bandwidth,
    Count,
    Derived,
    Distinct,
    Examples,
    Listed,
    Power,
    Quantity,
    Spec,
    Text,
)
from topologies.units import currency

YEAR = 365.0 * 24.0 * 3600.0
"""Length of a year [s]."""

MOST_ENTRIES = 100
"""Entries of the lists of links and switches, at most."""


class Price(float):
    """An amount of money, or of money for a time or an energy [currency]."""

    currency: str
    """Three letters, such as ``"USD"``."""


@dataclass(frozen=True, slots=True)
class Priced(Quantity):
    """Marks a `Price` that is written as a number with a currency, and what it is for.

    Parameters
    ----------
    dimension, examples, may_be_zero
        As of a quantity.
    """

    def parse(self, value: object) -> Price:
        """Return the amount with its currency."""
        price = Price(Quantity.parse(self, value))
        price.currency = currency(value)
        return price


Money = Annotated[float, Priced("price", ("1200 USD", "0 USD"), may_be_zero=True)]
"""0 or more [currency]."""

MoneyPerTime = Annotated[float, Priced("price of time", ("2.50 USD/h",))]
"""More than 0 [currency/s]."""

MoneyPerEnergy = Annotated[float, Priced("price of energy", ("0.08 USD/kWh",))]
"""More than 0 [currency/J]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPrice(Spec):
    """What links of one speed cost and draw: NICs, ports of switches, cables."""

    bandwidth: Annotated[Bandwidth, Examples("400 Gbit/s")]
    """What one cable and its ports carry per direction: links of more bandwidth are
    several cables side by side [byte/s]."""

    levels: Annotated[Distinct[Text], Examples(["leaf", "spine"], default=None)] = ()
    """Levels of the network that these are the links of: those of their children into
    them. Left out, all levels outside nodes that no other entry names."""

    nic: Money | None = None
    """Price of one end at a device or a node, its adapter [currency]."""

    nic_power: Annotated[Power | None, Examples("25 W")] = None
    """Power of one end at a device or a node [W]."""

    switch_port: Money | None = None
    """Price of one end at a switch: a switch's price over its ports, if switches are
    not priced whole [currency]."""

    switch_port_power: Annotated[Power | None, Examples("20 W")] = None
    """Power of one end at a switch [W]."""

    cable: Money | None = None
    """Price of one cable, or of one cable with its transceivers [currency]."""

    transceiver: Money | None = None
    """Price of the transceiver at either end of each cable [currency]."""

    transceiver_power: Annotated[Power | None, Examples("8 W")] = None
    """Power of the transceiver at either end of each cable [W]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPrice(Spec):
    """What a switch costs and draws."""

    bandwidth: Annotated[Bandwidth, Examples("25.6 Tbit/s")]
    """What all ports of one switch carry together, per direction: where the network
    draws a larger one it is several side by side [byte/s]."""

    levels: Annotated[Distinct[Text], Examples(["leaf", "spine"], default=None)] = ()
    """Levels of the network that these are the switches of; "switches" in a network
    that is listed link by link. Left out, all levels outside nodes that no other entry
    names."""

    price: Annotated[Money | None, Examples("30000 USD")] = None
    """Price of one switch [currency]."""

    power: Annotated[Power | None, Examples("1.2 kW")] = None
    """Power of one switch [W]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSpec(Spec):
    """What the cluster costs and draws; left out, reports say nothing of money.

    Either the price of a device's hour, which all else may be part of, or what things
    cost to buy and to run, or both together: everything that is given adds up, and what
    is not is named in the report. Money is in one currency, three capital letters.
    """

    device_hour: MoneyPerTime | None = None
    """Rent of one device, idle or not [currency/s]."""

    device: Annotated[Money | None, Examples("25000 USD")] = None
    """Price of one device [currency]."""

    node: Annotated[Money | None, Examples("80000 USD")] = None
    """Price of one node beside its devices: host, chassis, links inside [currency]."""

    devices_per_node: Annotated[Count | None, Examples(8)] = None
    """Devices of one node. Left out, as the network says, and 8 in networks that do not
    say."""

    years: Annotated[Annotated[float, Gt(0), Le(100)] | None, Examples(4)] = None
    """Years over which prices are written off, each second alike and without interest;
    needed with any price of a thing."""

    electricity: MoneyPerEnergy | None = None
    """Price of energy [currency/J]."""

    power_usage_effectiveness: Annotated[float, Ge(1), Le(10), Examples(1.2)] = 1.0
    """Power of the whole site over the power of its machines (PUE)."""

    device_power: Annotated[Power | None, Examples("700 W")] = None
    """Power of one device when it works. Left out, the catalogue's thermal design power
    [W]."""

    power_factor: Annotated[float, Gt(0), Le(2), Examples(0.8)] = 1.0
    """Average power of a device over a training step, over `device_power`: devices that
    wait are not told from those that work."""

    node_power: Annotated[Power | None, Examples("2.5 kW")] = None
    """Power of one node beside its devices: processors, memory, fans [W]."""

    links: Annotated[
        tuple[LinkPrice, ...],
        Listed(most=MOST_ENTRIES),
        Examples([{"bandwidth": "400 Gbit/s", "cable": "900 USD"}]),
    ] = ()
    """Links by speed. Of several entries for a level the slowest that carries one of
    the network's cables counts, or else the fastest."""

    switches: Annotated[
        tuple[SwitchPrice, ...],
        Listed(most=MOST_ENTRIES),
        Examples([{"bandwidth": "25.6 Tbit/s", "price": "30000 USD"}]),
    ] = ()
    """Switches, if they are priced whole. Of several entries for a level the smallest
    with the ports that the level needs counts, or else the largest."""

    tokens: Annotated[Annotated[float, Gt(0), Le(1e20)] | None, Examples(15e12)] = None
    """Tokens that the whole run trains on: reports say what it costs and how long it
    takes."""

    currency: Annotated[str, Derived()] = ""
    """Currency of all prices; empty without any."""

    device_power_source: Annotated[str, Derived()] = ""
    """Where the power of a device was published; empty where the scenario says it."""

    def settled(self, accelerator: Accelerator) -> "CostSpec":
        """Return it with what follows from its prices and from the device.

        Parameters
        ----------
        accelerator
            Whose thermal design power holds where no power is given.

        Raises
        ------
        InputError
            If currencies differ, prices are not written off, or a power is not known.
        """
        lists: dict[str, Sequence[LinkPrice | SwitchPrice]] = {
            "links": self.links,
            "switches": self.switches,
        }
        for name, entries in lists.items():
            for index, entry in enumerate(entries):
                _check_said(entry, f"{name}[{index}].bandwidth")
            _check_alike(name, entries)
        spec = replace(self, currency=_currency(self))
        if spec.device_power is None:
            source = accelerator.sources.get("tdp", "")
            spec = replace(
                spec, device_power=accelerator.tdp, device_power_source=source
            )
        _check_years(spec)
        _check_power(spec, accelerator)
        return spec


def _check_said(entry: LinkPrice | SwitchPrice, where: str) -> None:
    """Refuse an entry without any price and power."""
    parts = [field.name for field in fields(entry)][2:]
    if all(getattr(entry, name) is None for name in parts):
        price = "price" if isinstance(entry, SwitchPrice) else "cable"
        example = {"price": "30000 USD", "cable": "900 USD"}[price]
        raise InputError(
            "says neither a price nor a power",
            where=where,
            expected=f'at least one of both, such as {price} = "{example}"',
        )


def _currency(spec: CostSpec) -> str:
    """Return the one currency of all prices, empty without any."""
    first, known = "", ""
    for where, price in _prices(spec):
        if known and price.currency != known:
            raise InputError(
                "is in another currency than the first price",
                where=where,
                got=price.currency,
                expected=f"{known}, as in {first}",
            )
        if not known:
            first, known = where, price.currency
    return known


def _prices(
    table: CostSpec | LinkPrice | SwitchPrice, where: str = ""
) -> Iterator[tuple[str, Price]]:
    """Yield all prices of a table and of those in it, with the settings."""
    for field in fields(table):
        value = getattr(table, field.name)
        if isinstance(value, Price):
            yield f"{where}{field.name}", value
        elif field.name in {"links", "switches"}:
            for index, entry in enumerate(value):
                yield from _prices(entry, f"{where}{field.name}[{index}].")


def _check_alike(name: str, entries: Sequence[LinkPrice | SwitchPrice]) -> None:
    """Refuse two entries of which nobody can say which one holds."""
    for (i, one), (j, other) in combinations(enumerate(entries), 2):
        shared = set(one.levels) & set(other.levels) or one.levels == other.levels
        if shared and one.bandwidth == other.bandwidth:
            raise InputError(
                "is priced twice",
                where=f"{name}[{j}].bandwidth",
                expected=f"another bandwidth or other levels than {name}[{i}]",
            )


def _check_years(spec: CostSpec) -> None:
    """Refuse prices of things that are never written off, and years of nothing."""
    bought = (
        spec.device,
        spec.node,
        *(p for link in spec.links for p in (link.nic, link.switch_port, link.cable)),
        *(link.transceiver for link in spec.links),
        *(switch.price for switch in spec.switches),
    )
    has_prices = any(price is not None for price in bought)
    if has_prices and spec.years is None:
        raise InputError(
            "setting is missing",
            where="years",
            expected="the years over which prices are written off, e.g. 4",
        )
    if spec.years is not None and not has_prices:
        raise InputError(
            "writes off nothing",
            where="years",
            got=spec.years,
            expected='the price of something, such as device = "25000 USD"',
        )


def _check_power(spec: CostSpec, accelerator: Accelerator) -> None:
    """Refuse electricity of devices whose power nobody knows."""
    if spec.electricity is not None and spec.device_power is None:
        raise InputError(
            f"the catalogue knows no thermal design power of {accelerator.name}",
            where="device_power",
            expected='the power of one device, e.g. "700 W"',
        )
