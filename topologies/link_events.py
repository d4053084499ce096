"""Links that fail, slow down or come back in the middle of a step.

From the moment of an event on its links carry nothing, or what they carry is divided.
Routes know of links that went down or came up when the time to reroute has passed:
until then what would cross a dead link waits for it. `LinkMoment` is what all links
carry, and where routes go, from one moment to the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from topologies.arrays import BoolArray, FloatArray
from topologies.degrade import select_links, without_links
from topologies.errors import InputError, located
from topologies.network import Network
from topologies.records import MAX_SLOWDOWN
from topologies.settings import Examples, Quantity, Spec, Text

REROUTE_TIME = 0.05
"""Until routes go round a dead link where nobody says, an assumption [s]."""

Moment = Annotated[float, Quantity("duration", ("1.5 s", "0 s"), may_be_zero=True)]
"""0 or more [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvent(Spec):
    """What happens to some links at a moment of the step."""

    time: Annotated[Moment, Examples("1.5 s")]
    """When, from the beginning of the step on [s]."""

    links: Annotated[Text, Examples("leaf 0 <-> spine 1", "level spine")]
    """Links that it happens to, named as in `slow_links` of [cluster.degraded]."""

    is_down: bool = False
    """Whether they carry nothing from then on. Otherwise they are there, or there
    again."""

    factor: Annotated[float, Ge(1), Le(MAX_SLOWDOWN), Examples(2.0)] = 1.0
    """What their bandwidth is divided by from then on; 1 for as built."""

    reroute_time: Annotated[Moment, Examples("200 ms", default="50 ms")] = REROUTE_TIME
    """Time from there until routes go round links that are down, or use again those
    that are up; an assumption [s]."""

    def __post_init__(self) -> None:
        if self.is_down and self.factor != 1.0:
            raise InputError(
                "divides the bandwidth of links that are down",
                where="factor",
                got=self.factor,
                expected="left out beside is_down = true",
            )


class LinkMoment(NamedTuple):
    """The links from a moment on, until the next one."""

    time: float
    """When it begins [s]."""

    network: Network
    """With the routes that are in use."""

    capacity: FloatArray
    """What each link carries if it is there, shape ``(E,)`` [byte/s]."""

    is_dead: BoolArray
    """Whether it is down, whatever routes know, shape ``(E,)``."""


def link_moments(
    network: Network, events: Sequence[LinkEvent]
) -> tuple[LinkMoment, ...]:
    """Return the moments at which links or routes change, the first one at 0.

    Raises
    ------
    InputError
        If a name is wrong, or devices are cut off from others.
    """
    # Host links, behind all others, are each device's: nothing goes round them.
    fabric, chosen = network.without_host(), []
    for place, event in enumerate(events):
        with located(f"cluster.link_events[{place}].links"):
            chosen.append(np.flatnonzero(select_links(fabric, event.links)))
    known = [event.time + event.reroute_time for event in events]
    begins = sorted({0.0, *known, *(event.time for event in events)})
    by_time = sorted(range(len(events)), key=lambda at: events[at].time)
    by_knowledge = sorted(range(len(events)), key=known.__getitem__)
    networks: dict[bytes, Network] = {}
    moments = []
    for begin in begins:
        dead, avoided = np.zeros((2, len(network.links)), dtype=np.bool_)
        factor = np.ones(len(network.links))
        for at in by_time:
            if events[at].time <= begin:
                dead[chosen[at]] = events[at].is_down
                factor[chosen[at]] = events[at].factor
        for at in by_knowledge:
            if known[at] <= begin:
                avoided[chosen[at]] = events[at].is_down
        key = avoided.tobytes()
        if key not in networks:
            with located("cluster.link_events"):
                routed = without_links(fabric, avoided[: len(fabric.links)])
            host = network.host
            networks[key] = routed if host is None else routed.with_host(host)
        routed = networks[key]
        moments.append(LinkMoment(begin, routed, routed.links.bandwidth / factor, dead))
    return tuple(moments)
