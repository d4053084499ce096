"""The table [cost]: what devices, networks and electricity cost, and what they draw.

Nothing here has a default that is a price: what a scenario leaves out is left out of
the cost, and reports say so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from pydantic_core import CoreSchema, core_schema

from nestsim.scenario.base import (
    Bandwidth,
    Count,
    Distinct,
    Power,
    Quantity,
    Table,
    Text,
)
from topologies.accelerators import Accelerator
from topologies.errors import InputError
from topologies.units import currency

YEAR = 365.0 * 24.0 * 3600.0
"""Length of a year [s]."""

MOST_ENTRIES = 100
"""Entries of the lists of links and switches, at most."""


class Price(NamedTuple):
    """An amount of money, or of money for a time or an energy."""

    value: float
    """In base units: [currency], [currency/s] or [currency/J]."""

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

    def __get_pydantic_core_schema__(
        self, source: object, handler: object
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.price)

    def price(self, value: object) -> Price:
        """Return the amount with its currency."""
        return Price(self.parse(value), currency(value))


Money = Annotated[Price, Priced("price", ("1200 USD", "0 USD"), may_be_zero=True)]
"""0 or more [currency]."""

MoneyPerTime = Annotated[Price, Priced("price of time", ("2.50 USD/h",))]
"""More than 0 [currency/s]."""

MoneyPerEnergy = Annotated[Price, Priced("price of energy", ("0.08 USD/kWh",))]
"""More than 0 [currency/J]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPrice:
    """Prices and powers of links of one speed; None for what is not said."""

    bandwidth: float
    """Of one cable and its ports, per direction [byte/s]."""

    levels: tuple[str, ...] = ()
    """Levels that it holds for; empty for all outside nodes that no other names."""

    nic: float | None = None
    """Price of an end at a device or a node [currency]."""

    nic_power: float | None = None
    """Power of an end at a device or a node [W]."""

    switch_port: float | None = None
    """Price of an end at a switch [currency]."""

    switch_port_power: float | None = None
    """Power of an end at a switch [W]."""

    cable: float | None = None
    """Price of a cable [currency]."""

    transceiver: float | None = None
    """Price of the transceiver at either end of a cable [currency]."""

    transceiver_power: float | None = None
    """Power of the transceiver at either end of a cable [W]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPrice:
    """Price and power of whole switches; None for what is not said."""

    bandwidth: float
    """Of all ports of one switch together, per direction [byte/s]."""

    levels: tuple[str, ...] = ()
    """Levels that it holds for; empty for all outside nodes that no other names."""

    price: float | None = None
    """Price of one switch [currency]."""

    power: float | None = None
    """Power of one switch [W]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSpec:
    """What a cluster costs and draws; None for what is not said."""

    currency: str = ""
    """Of all prices; empty without any."""

    device_hour: float | None = None
    """Rent of one device [currency/s]."""

    device: float | None = None
    """Price of one device [currency]."""

    node: float | None = None
    """Price of one node beside its devices [currency]."""

    devices_per_node: int | None = None
    """Devices of one node; None for what the network says."""

    years: float | None = None
    """Over which prices are written off; None without prices [s]."""

    electricity: float | None = None
    """Price of energy [currency/J]."""

    power_usage_effectiveness: float = 1.0
    """Power of the whole site over that of its machines."""

    device_power: float | None = None
    """Power of one device when it works [W]."""

    device_power_source: str = ""
    """Where it was published; empty where the scenario says it."""

    power_factor: float = 1.0
    """Average power of a device over a step, waiting included, over
    `device_power`."""

    node_power: float | None = None
    """Power of one node beside its devices [W]."""

    links: tuple[LinkPrice, ...] = ()
    """Links by speed."""

    switches: tuple[SwitchPrice, ...] = ()
    """Switches by bandwidth."""

    tokens: float | None = None
    """Tokens of the whole run; None if nobody asks."""


class LinkCostTable(Table):
    """What links of one speed cost and draw: NICs, ports of switches, cables."""

    bandwidth: Bandwidth = Field(examples=["400 Gbit/s"])
    """What one cable and its ports carry per direction: links of more bandwidth are
    several cables side by side [byte/s]."""

    levels: Distinct[Text] | None = Field(None, examples=[["leaf", "spine"]])
    """Levels of the network that these are the links of: those of their children into
    them. Left out, all levels outside nodes that no other entry names."""

    nic: Money | None = None
    """Price of one end at a device or a node, its adapter [currency]."""

    nic_power: Power | None = Field(None, examples=["25 W"])
    """Power of one end at a device or a node [W]."""

    switch_port: Money | None = None
    """Price of one end at a switch: a switch's price over its ports, if switches are
    not priced whole [currency]."""

    switch_port_power: Power | None = Field(None, examples=["20 W"])
    """Power of one end at a switch [W]."""

    cable: Money | None = None
    """Price of one cable, or of one cable with its transceivers [currency]."""

    transceiver: Money | None = None
    """Price of the transceiver at either end of each cable [currency]."""

    transceiver_power: Power | None = Field(None, examples=["8 W"])
    """Power of the transceiver at either end of each cable [W]."""

    def build(self) -> LinkPrice:
        """Return the record for the cost of a cluster."""
        said = _amounts(self, ("bandwidth", "levels"))
        if not said:
            raise InputError(
                "says neither a price nor a power",
                where="bandwidth",
                expected='at least one of both, such as cable = "900 USD"',
            )
        return LinkPrice(
            bandwidth=self.bandwidth, levels=tuple(self.levels or ()), **said
        )


class SwitchCostTable(Table):
    """What a switch costs and draws."""

    bandwidth: Bandwidth = Field(examples=["25.6 Tbit/s"])
    """What all ports of one switch carry together, per direction: where the network
    draws a larger one it is several side by side [byte/s]."""

    levels: Distinct[Text] | None = Field(None, examples=[["leaf", "spine"]])
    """Levels of the network that these are the switches of; "switches" in a network
    that is listed link by link. Left out, all levels outside nodes that no other entry
    names."""

    price: Money | None = Field(None, examples=["30000 USD"])
    """Price of one switch [currency]."""

    power: Power | None = Field(None, examples=["1.2 kW"])
    """Power of one switch [W]."""

    def build(self) -> SwitchPrice:
        """Return the record for the cost of a cluster."""
        said = _amounts(self, ("bandwidth", "levels"))
        if not said:
            raise InputError(
                "says neither a price nor a power",
                where="bandwidth",
                expected='at least one of both, such as price = "30000 USD"',
            )
        return SwitchPrice(
            bandwidth=self.bandwidth, levels=tuple(self.levels or ()), **said
        )


class CostTable(Table):
    """What the cluster costs and draws; left out, reports say nothing of money.

    Either the price of a device's hour, which all else may be part of, or what things
    cost to buy and to run, or both together: everything that is given adds up, and what
    is not is named in the report. Money is in one currency, three capital letters.
    """

    device_hour: MoneyPerTime | None = None
    """Rent of one device, idle or not [currency/s]."""

    device: Money | None = Field(None, examples=["25000 USD"])
    """Price of one device [currency]."""

    node: Money | None = Field(None, examples=["80000 USD"])
    """Price of one node beside its devices: host, chassis, links inside [currency]."""

    devices_per_node: Count | None = Field(None, examples=[8])
    """Devices of one node. Left out, as the network says, and 8 in networks that do not
    say."""

    years: float | None = Field(None, gt=0, le=100, examples=[4])
    """Years over which prices are written off, each second alike and without interest;
    needed with any price of a thing."""

    electricity: MoneyPerEnergy | None = None
    """Price of energy [currency/J]."""

    power_usage_effectiveness: float = Field(1.0, ge=1, le=10, examples=[1.2])
    """Power of the whole site over the power of its machines (PUE)."""

    device_power: Power | None = Field(None, examples=["700 W"])
    """Power of one device when it works. Left out, the catalogue's thermal design power
    [W]."""

    power_factor: float = Field(1.0, gt=0, le=2, examples=[0.8])
    """Average power of a device over a training step, over `device_power`: devices that
    wait are not told from those that work."""

    node_power: Power | None = Field(None, examples=["2.5 kW"])
    """Power of one node beside its devices: processors, memory, fans [W]."""

    links: Annotated[list[LinkCostTable], Field(max_length=MOST_ENTRIES)] = Field(
        [], examples=[[{"bandwidth": "400 Gbit/s", "cable": "900 USD"}]]
    )
    """Links by speed. Of several entries for a level the slowest that carries one of
    the network's cables counts, or else the fastest."""

    switches: Annotated[list[SwitchCostTable], Field(max_length=MOST_ENTRIES)] = Field(
        [], examples=[[{"bandwidth": "25.6 Tbit/s", "price": "30000 USD"}]]
    )
    """Switches, if they are priced whole. Of several entries for a level the smallest
    with the ports that the level needs counts, or else the largest."""

    tokens: float | None = Field(None, gt=0, le=1e20, examples=[15e12])
    """Tokens that the whole run trains on: reports say what it costs and how long it
    takes."""

    def build(self, accelerator: Accelerator) -> CostSpec:
        """Return the record for the cost of a cluster.

        Parameters
        ----------
        accelerator
            Whose thermal design power holds where no power is given.

        Raises
        ------
        InputError
            If currencies differ, prices are not written off, or a power is not known.
        """
        skipped = ("years", "links", "switches", "devices_per_node", "tokens")
        links = tuple(_built("links", self.links))
        switches = tuple(_built("switches", self.switches))
        _check_alike("links", links)
        _check_alike("switches", switches)
        spec = CostSpec(
            currency=self._currency(),
            devices_per_node=self.devices_per_node,
            years=None if self.years is None else self.years * YEAR,
            links=links,
            switches=switches,
            tokens=self.tokens,
            **{
                "device_power": accelerator.tdp,
                "device_power_source": ""
                if self.device_power is not None
                else accelerator.sources.get("tdp", ""),
                **_amounts(self, skipped),
            },
        )
        _check_years(spec)
        _check_power(spec, accelerator)
        return spec

    def _currency(self) -> str:
        """Return the one currency of all prices, empty without any."""
        first, known = "", ""
        for where, price in _prices(self):
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


def _amounts(table: Table, skipped: Sequence[str]) -> dict[str, Any]:
    """Return what a table says in base units, prices without their currency."""
    written = {
        name: getattr(table, name)
        for name in type(table).model_fields
        if name not in skipped and getattr(table, name) is not None
    }
    return {
        name: one.value if isinstance(one, Price) else one
        for name, one in written.items()
    }


def _prices(table: Table, where: str = "") -> Iterator[tuple[str, Price]]:
    """Yield all prices of a table and of those in it, with the settings."""
    for name in type(table).model_fields:
        value = getattr(table, name)
        if isinstance(value, Price):
            yield f"{where}{name}", value
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                if isinstance(entry, Table):
                    yield from _prices(entry, f"{where}{name}[{index}].")


def _built(name: str, entries: Sequence[Any]) -> Iterator[Any]:
    for index, entry in enumerate(entries):
        try:
            yield entry.build()
        except InputError as error:
            raise error.at(f"{name}[{index}]") from None


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
        *(p for one in spec.links for p in (one.nic, one.switch_port, one.cable)),
        *(one.transceiver for one in spec.links),
        *(one.price for one in spec.switches),
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
            got=spec.years / YEAR,
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
