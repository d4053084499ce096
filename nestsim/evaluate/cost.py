"""Money and power: what a cluster costs, and what a training run on it does.

What a cluster costs and draws: devices, nodes, and the network level by level.

Everything is a count times a price or a power of the scenario. Cables are counted for
ports of the speed that is priced (`topologies.fabrics.inventory`), switches for the
bandwidth of the ports that they need. Prices are written off in a straight line without
interest; energy is power times time times the site's PUE [1]_. A device draws the same
whatever it does: its thermal design power, as model cards count it [2]_, or the share
of it that the scenario says.

What a training step and a whole run cost, from the replayed throughput alone.

References
----------
.. [1] Patterson et al., "Carbon Emissions and Large Neural Network Training", 2021,
   section 2.2: energy = hours x processors x average power of a processor x PUE.
.. [2] Touvron et al., "Llama 2", 2023, table 2: peak power of each GPU times hours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from nestsim.evaluate.ramp import RampUp
from nestsim.scenario.hardware.cost import YEAR, CostSpec, LinkPrice, SwitchPrice
from topologies.arrays import BoolArray, FloatArray
from topologies.errors import InputError
from topologies.fabrics.inventory import (
    Bundles,
    NetworkParts,
    SwitchGroups,
    network_parts,
)
from topologies.network import Network


def pareto_front(costs: FloatArray, gains: FloatArray) -> BoolArray:
    """Tell which points no other dominates.

    A point dominates another that costs no less and gains no more, unless both are
    equal. By sorting: O(n log n).

    Parameters
    ----------
    costs, gains
        Of each point, shape ``(n,)``; NaN for a point that is none.

    Returns
    -------
    BoolArray
        Shape ``(n,)``; points that are equal are on the front together.
    """
    front = np.zeros(len(costs), dtype=np.bool_)
    known = np.flatnonzero(~(np.isnan(costs) | np.isnan(gains)))
    order = known[np.lexsort((-gains[known], costs[known]))]
    best = last_cost = -np.inf
    for point in order.tolist():
        # Of one cost the first gains most; only its equals come with it.
        if gains[point] > best or (gains[point] == best and costs[point] == last_cost):
            front[point] = True
            best, last_cost = gains[point], costs[point]
    return front


USUAL_NODE = 8
"""Devices of one node where neither the scenario nor the network says."""

_SAME = 1e-9
"""Relative difference of bandwidths that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPart:
    """Things of one kind; prices and powers are of all of them together."""

    name: str
    """What they are: ``"devices"``, ``"nodes"``, ``"NICs"``, ``"switch ports"``,
    ``"cables"``, ``"transceivers"``, ``"switches"``."""

    level: str = ""
    """Level of the network that they are of; empty for devices and nodes."""

    count: int
    """How many there are."""

    speed: float | None = None
    """Bandwidth of each of the network's parts, per direction [byte/s]."""

    price: float | None = None
    """To buy them; None if the scenario does not say [currency]."""

    power: float | None = None
    """Their average power; None if the scenario does not say [W]."""

    @property
    def is_network(self) -> bool:
        """Whether they are part of the network."""
        return bool(self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCost:
    """What a cluster costs and draws, term by term.

    Money is None where the scenario has no price, and power where nobody knows that of
    devices: then nothing that is said of the rest would be worth anything.
    """

    spec: CostSpec
    """Prices and powers of the scenario."""

    num_devices: int
    """Devices of the cluster."""

    parts: tuple[CostPart, ...]
    """Everything that the cluster is built of, and its price and power."""

    unpriced_levels: tuple[str, ...] = field(default=())
    """Levels of the network that no entry of the scenario is about."""

    @property
    def currency(self) -> str:
        """Of all money; empty without any."""
        return self.spec.currency

    @property
    def capital(self) -> float | None:
        """Price of everything that is bought [currency]."""
        return _sum(part.price for part in self.parts)

    @property
    def network_capital(self) -> float | None:
        """Price of the network [currency]."""
        return _sum(part.price for part in self.parts if part.is_network)

    @property
    def power(self) -> float | None:
        """Average power of the site, PUE included [W]."""
        if self.spec.device_power is None:
            return None
        return self._site(_sum(part.power for part in self.parts))

    @property
    def network_power(self) -> float | None:
        """Average power of the network, PUE included [W]."""
        return self._site(_sum(part.power for part in self.parts if part.is_network))

    @property
    def rent_rate(self) -> float | None:
        """Rent of all devices [currency/s]."""
        if self.spec.device_hour is None:
            return None
        return self.spec.device_hour * self.num_devices

    @property
    def capital_rate(self) -> float | None:
        """What everything that is bought loses in price [currency/s]."""
        return self._written_off(self.capital)

    @property
    def energy_rate(self) -> float | None:
        """Price of electricity [currency/s]."""
        return self._electricity(self.power)

    @property
    def rate(self) -> float | None:
        """What the cluster costs: rent, capital and electricity [currency/s]."""
        return _sum((self.rent_rate, self.capital_rate, self.energy_rate))

    @property
    def network_rate(self) -> float | None:
        """What the network costs of `rate`, as far as it is priced [currency/s]."""
        return _sum(
            (
                self._written_off(self.network_capital),
                self._electricity(self.network_power),
            )
        )

    def _site(self, power: float | None) -> float | None:
        return None if power is None else power * self.spec.power_usage_effectiveness

    def _written_off(self, price: float | None) -> float | None:
        if price is None or self.spec.years is None:
            return None
        return price / (self.spec.years * YEAR)

    def _electricity(self, power: float | None) -> float | None:
        if power is None or self.spec.electricity is None:
            return None
        return power * self.spec.electricity


def _sum(values: "Iterator[float | None] | Sequence[float | None]") -> float | None:
    """Return the sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def cluster_cost(spec: CostSpec, network: Network) -> ClusterCost:
    """Return what a cluster costs and draws.

    Parameters
    ----------
    spec
        Prices and powers.
    network
        The cluster as it was built.

    Raises
    ------
    InputError
        If an entry names a level that the network does not have.
    """
    parts = network_parts(network)
    _check_levels(spec, parts)
    priced = [*_devices(spec, network)]
    unpriced: dict[str, None] = {}
    cables: list[tuple[int, float]] = []
    for bundles in parts.bundles:
        entry = _link_entry(spec.links, bundles)
        if entry is None:
            cables.append((1, bundles.bandwidth))
            if not bundles.inside_node:
                unpriced[bundles.tier] = None
            continue
        cables.append((bundles.cables_each(entry.bandwidth), entry.bandwidth))
        priced += _link_parts(entry, bundles)
    for group in parts.switches:
        ports = math.fsum(
            ends * cables[number][0] * cables[number][1] for number, ends in group.ends
        )
        chosen = _switch_entry(spec.switches, group, ports)
        if chosen is not None:
            priced.append(_switch_part(chosen, group, ports))
    return ClusterCost(
        spec=spec,
        num_devices=network.num_devices,
        parts=tuple(priced),
        unpriced_levels=tuple(unpriced),
    )


def _devices(spec: CostSpec, network: Network) -> tuple[CostPart, CostPart]:
    count = network.num_devices
    power = spec.device_power
    size = node_size(spec, network)
    return (
        CostPart(
            name="devices",
            count=count,
            price=_times(count, spec.device),
            power=_times(count, None if power is None else power * spec.power_factor),
        ),
        _part("nodes", "", -(-count // size), None, spec.node, spec.node_power),
    )


def node_size(spec: CostSpec, network: Network) -> int:
    """Return the devices of one node."""
    if spec.devices_per_node is not None:
        return spec.devices_per_node
    return USUAL_NODE if network.rules is None else network.rules.node_size


def _times(count: int, times: float | None) -> float | None:
    return None if times is None else count * times


def _part(
    name: str,
    level: str,
    count: int,
    speed: float | None,
    price: float | None,
    power: float | None,
) -> CostPart:
    return CostPart(
        name=name,
        level=level,
        count=count,
        speed=speed,
        price=_times(count, price),
        power=_times(count, power),
    )


def _check_levels(spec: CostSpec, parts: NetworkParts) -> None:
    """Refuse entries for levels that there are not."""
    entries: list[tuple[str, LinkPrice | SwitchPrice]] = [
        *((f"links[{i}]", link) for i, link in enumerate(spec.links)),
        *((f"switches[{i}]", switch) for i, switch in enumerate(spec.switches)),
    ]
    for where, entry in entries:
        for number, level in enumerate(entry.levels):
            if level not in parts.tiers:
                raise InputError(
                    "is no level of the network that joins anything",
                    where=f"cost.{where}.levels[{number}]",
                    got=level,
                    expected=" or ".join(f'"{name}"' for name in parts.tiers),
                )


_Entry = TypeVar("_Entry", LinkPrice, SwitchPrice)


def _entries(
    entries: Sequence[_Entry], level: str, *, inside_node: bool
) -> list[_Entry]:
    """Return what holds for a level, the slowest first: what names it, or else all."""
    named = [entry for entry in entries if level in entry.levels]
    if not named and not inside_node:
        named = [entry for entry in entries if not entry.levels]
    return sorted(named, key=lambda entry: entry.bandwidth)


def _first_enough(entries: Sequence[_Entry], bandwidth: float) -> _Entry | None:
    """Return the first entry of at least a bandwidth, or the last one."""
    for entry in entries:
        if entry.bandwidth >= bandwidth * (1.0 - _SAME):
            return entry
    return entries[-1] if entries else None


def _link_entry(entries: Sequence[LinkPrice], bundles: Bundles) -> LinkPrice | None:
    known = _entries(entries, bundles.tier, inside_node=bundles.inside_node)
    return _first_enough(known, bundles.cable_bandwidth)


def _switch_entry(
    entries: Sequence[SwitchPrice], group: SwitchGroups, ports: float
) -> SwitchPrice | None:
    known = _entries(entries, group.tier, inside_node=group.inside_node)
    return _first_enough(known, ports)


def _link_parts(entry: LinkPrice, bundles: Bundles) -> list[CostPart]:
    """Return the parts of one level's links."""
    count = bundles.count * bundles.cables_each(entry.bandwidth)
    nics, level = bundles.device_ends * count, bundles.tier
    ports, speed = 2 * count - nics, entry.bandwidth
    parts = [
        _part("NICs", level, nics, speed, entry.nic, entry.nic_power),
        _part(
            "switch ports",
            level,
            ports,
            speed,
            entry.switch_port,
            entry.switch_port_power,
        ),
        _part("cables", level, count, speed, entry.cable, None),
        _part(
            "transceivers",
            level,
            2 * count,
            speed,
            entry.transceiver,
            entry.transceiver_power,
        ),
    ]
    return [part for part in parts if part.count]


def _switch_part(entry: SwitchPrice, group: SwitchGroups, ports: float) -> CostPart:
    """Return the switches of one level: as many as the ports of each group need."""
    ports_each = max(1, math.ceil(ports / entry.bandwidth - _SAME))
    return _part(
        "switches",
        group.tier,
        group.count * ports_each,
        entry.bandwidth,
        entry.price,
        entry.power,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What training costs on a cluster; None for what has no price or no power."""

    cluster: ClusterCost
    """What the cluster costs and draws, whoever uses it."""

    iteration_time: float
    """Time of one training step [s]."""

    tokens_per_second: float
    """What the whole cluster trains on [token/s]."""

    ramp: RampUp | None = None
    """Steps of smaller batches at the beginning; None where all are whole."""

    @property
    def step_cost(self) -> float | None:
        """Cost of one training step [currency]."""
        return _product(self.cluster.rate, self.iteration_time)

    @property
    def step_energy(self) -> float | None:
        """Energy of one training step, of the whole site [J]."""
        return _product(self.cluster.power, self.iteration_time)

    @property
    def tokens_per_money(self) -> float | None:
        """Tokens for one unit of the currency [token/currency]."""
        rate = self.cluster.rate
        return self.tokens_per_second / rate if rate else None

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens for one joule of the site [token/J]."""
        power = self.cluster.power
        return self.tokens_per_second / power if power else None

    @property
    def network_share_of_cost(self) -> float | None:
        """What the network costs over the whole, as far as both are priced."""
        return _share(self.cluster.network_rate, self.cluster.rate)

    @property
    def network_share_of_capital(self) -> float | None:
        """Price of the network over that of everything that is bought."""
        return _share(self.cluster.network_capital, self.cluster.capital)

    @property
    def network_share_of_power(self) -> float | None:
        """Power of the network over that of the site."""
        return _share(self.cluster.network_power, self.cluster.power)

    @property
    def run_tokens(self) -> float | None:
        """Tokens of the whole run; None if nobody asks [token]."""
        return self.cluster.spec.tokens

    @property
    def run_time(self) -> float | None:
        """Time of the whole run, each step like the replayed one of its batch [s]."""
        return self._of_run(1.0)

    @property
    def run_cost(self) -> float | None:
        """Cost of the whole run [currency]."""
        return self._of_run(self.cluster.rate)

    @property
    def run_energy(self) -> float | None:
        """Energy of the whole run, of the whole site [J]."""
        return self._of_run(self.cluster.power)

    def _of_run(self, rate: float | None) -> float | None:
        if self.run_tokens is None or rate is None or math.isinf(self._ramp_time):
            return None
        return rate * (self.run_tokens / self.tokens_per_second + self._ramp_time)

    @property
    def _ramp_time(self) -> float:
        """What batches that grow make the run longer by [s]."""
        if self.ramp is None or self.run_tokens is None:
            return 0.0
        tokens = self.tokens_per_second * self.iteration_time
        steps = self.run_tokens / tokens
        return self.ramp.extra_time_of(steps * self.ramp.global_batch_size)


def _product(rate: float | None, time: float) -> float | None:
    return None if rate is None else rate * time


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
