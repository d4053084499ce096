"""Networks of which parts have been slowed or removed.

Links keep their numbers, also those that are removed: no route uses them. So what two
states of a network carry can be compared link by link, and routes that avoid what was
removed are the same, link for link.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from topologies.checks import MAX_SLOWDOWN
from topologies.custom import CustomRouting
from topologies.degradation import Degradation
from topologies.degraded_levels import degraded_levels
from topologies.detours import DegradedRouting
from topologies.errors import InputError
from topologies.islands import refuse_islands
from topologies.network import BoolArray, FloatArray, Links, Network
from topologies.selectors import select_links, select_switches


def degrade(network: Network, degradation: Degradation) -> Network:
    """Return the network with parts slowed and removed.

    Parameters
    ----------
    network
        As it was built, or degraded already: what is wrong then adds up.
    degradation
        What to slow and to remove. Slow devices are only checked, as a network does
        not compute; see `slowdowns`.

    Returns
    -------
    Network
        With the same vertices, link numbers and block sizes; the same object if no
        link is touched. Routes: `topologies.detours`. Custom networks get new classes
        of pairs. In others a pair keeps its level, and `topologies.degraded_levels`
        says what becomes of the levels' numbers.

    Raises
    ------
    InputError
        If a name is wrong, or devices are cut off from others, which it names.
    """
    slowdowns(degradation, network.num_devices)
    factor = _link_factors(network, degradation)
    removed = _removed_links(network, degradation)
    if not removed.any() and (factor == 1).all():
        return network
    routing = network.routing
    kept = ~removed
    if isinstance(routing, DegradedRouting | CustomRouting):
        kept &= routing.kept
    links = replace(network.links, bandwidth=network.links.bandwidth / factor)
    refuse_islands(network, links, kept)
    if isinstance(routing, CustomRouting):
        return _degraded_custom(network, links, kept)
    built = routing.built if isinstance(routing, DegradedRouting) else routing
    return replace(
        network,
        links=links,
        levels=degraded_levels(network.levels, built, links, kept),
        routing=DegradedRouting(
            built, links, kept, len(network.vertex_names), network.num_devices
        ),
    )


def _degraded_custom(network: Network, links: Links, kept: BoolArray) -> Network:
    num_vertices = len(network.vertex_names)
    routing = CustomRouting(links, kept, num_vertices, network.num_devices)
    return replace(
        network,
        links=routing.links,
        levels=routing.planner_levels(),
        routing=routing,
    )


def slowdowns(degradation: Degradation, num_devices: int) -> FloatArray:
    """Return what each device's compute times are multiplied by, shape ``(N,)``.

    Raises
    ------
    InputError
        If there is no such device.
    """
    factors = np.ones(num_devices)
    for index, slow in enumerate(degradation.slow_devices):
        if not 0 <= slow.device < num_devices:
            raise InputError(
                "no such device",
                where=f"slow_devices[{index}].device",
                got=slow.device,
                expected=f"device numbers 0 to {num_devices - 1}",
            )
        factors[slow.device] *= slow.factor
        with _located(f"slow_devices[{index}]"):
            _check_slowdown(factors[slow.device])
    return factors


def _check_slowdown(product: float) -> None:
    """Refuse what is slowed so often that next to nothing is left of it."""
    if product > MAX_SLOWDOWN:
        raise InputError(
            "is slowed too much, by all factors together",
            where="factor",
            got=float(product),
            expected=f"a product of at most {MAX_SLOWDOWN:g}",
        )


def _link_factors(network: Network, degradation: Degradation) -> FloatArray:
    factor = np.ones(len(network.links))
    for index, slow in enumerate(degradation.slow_links):
        with _located(f"slow_links[{index}].links"):
            chosen = select_links(network, slow.links)
        factor[chosen] *= slow.factor
        with _located(f"slow_links[{index}]"):
            _check_slowdown(factor[chosen].max())
    return factor


def _removed_links(network: Network, degradation: Degradation) -> BoolArray:
    links = network.links
    removed = np.zeros(len(links), dtype=np.bool_)
    for index, selector in enumerate(degradation.removed_links):
        with _located(f"removed_links[{index}]"):
            removed |= select_links(network, selector)
    for index, selector in enumerate(degradation.removed_switches):
        with _located(f"removed_switches[{index}]"):
            switches = select_switches(network, selector)
            removed |= np.isin(links.source, switches)
            removed |= np.isin(links.target, switches)
    return removed


@contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise error.at(where) from None
