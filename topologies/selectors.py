"""Naming links and switches of a network by text.

===========================  ====================================================
``leaf 0 -> spine 1``        the links from one vertex to another
``leaf 0 <-> spine 1``       those of both directions
``leaf 0 -> spine 1 #2``     of several cables between the same two the third one
``leaf * <-> spine 1``       ``*`` stands for any text in a name
``level spine``              all links of a level, both directions
===========================  ====================================================

Names are those of `Network.vertex_names` and `Network.levels`. Blanks may be left out:
a name is first looked for as it is written, then without its blanks.
"""

import difflib
import re
from collections.abc import Sequence

import numpy as np

from topologies.arrays import BoolArray, IntArray
from topologies.errors import InputError
from topologies.network import Network

_ARROW = re.compile(
    r"(?P<here>.+?)(?P<both><)?->(?P<there>.+?)(#(?P<cable>[0-9]{1,9}))?"
)

_EXPECTED = '"leaf 0 -> spine 1", "leaf 0 <-> spine *" or "level spine"'


def select_links(network: Network, selector: str) -> BoolArray:
    """Return which links a text names, shape ``(E,)``.

    Raises
    ------
    InputError
        If it names none.
    """
    text = selector.strip()
    arrow = _ARROW.fullmatch(text)
    if arrow:
        return _links_between(network, arrow)
    if text.startswith("level "):
        return _links_of_level(network, text.removeprefix("level "))
    raise InputError("does not name links", got=selector, expected=_EXPECTED)


def select_switches(network: Network, selector: str) -> IntArray:
    """Return the vertices of the switches that a text names.

    Raises
    ------
    InputError
        If there is none of that name, or it is the name of a device.
    """
    vertices = _find_names(network.vertex_names, selector, "switch")
    if vertices[0] < network.num_devices:
        raise InputError(
            "is a device, which cannot be removed",
            got=selector,
            expected="the name of a switch",
        )
    return vertices


def _links_of_level(network: Network, name: str) -> BoolArray:
    names = [level.name for level in network.levels]
    chosen = np.isin(network.links.level, _find_names(names, name, "level"))
    if not chosen.any():
        raise InputError(
            "no links on this level", got=name, expected="a level that joins devices"
        )
    return chosen


def _links_between(network: Network, arrow: re.Match[str]) -> BoolArray:
    here, there, cable = arrow["here"], arrow["there"], arrow["cable"]
    whole = f"{there}#{cable}".strip()
    if whole in network.vertex_names:
        there, cable = whole, None
    directions = [(here, there), (there, here)] if arrow["both"] else [(here, there)]
    chosen = np.zeros(len(network.links), dtype=np.bool_)
    for start, end in directions:
        chosen |= _links_from(network, start, end)
    if cable is not None:
        chosen &= _cable_number(network) == int(cable)
    if not chosen.any():
        raise InputError(
            "no such link",
            got=arrow.string,
            expected="two names of neighbours in the network, and a cable that exists",
        )
    return chosen


def _links_from(network: Network, start: str, end: str) -> BoolArray:
    links, names = network.links, network.vertex_names
    leaves = np.isin(links.source, _find_names(names, start, "vertex"))
    enters = np.isin(links.target, _find_names(names, end, "vertex"))
    return np.asarray(leaves & enters)


def _cable_number(network: Network) -> IntArray:
    """Return each link's place among those that join the same two the same way."""
    links = network.links
    ends = links.source * len(network.vertex_names) + links.target
    order = np.argsort(ends, kind="stable")
    ordered = ends[order]
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return place


def _find_names(names: Sequence[str], name: str, what: str) -> IntArray:
    """Return the places of the names that a name with or without ``*`` stands for."""
    pattern = name.strip()
    places = _match_names(names, pattern) or _match_names(
        ["".join(entry.split()) for entry in names], "".join(pattern.split())
    )
    if not places:
        close = difflib.get_close_matches(pattern, names, n=1)
        raise InputError(
            f"no such {what}",
            got=pattern,
            expected=f'{names[0]!r} to {names[-1]!r}; "*" stands for any text',
            hint=f'did you mean "{close[0]}"?' if close else "",
        )
    return np.array(places)


def _match_names(names: Sequence[str], pattern: str) -> list[int]:
    if "*" not in pattern:
        return [place for place, name in enumerate(names) if name == pattern]
    first, *inner, last = pattern.split("*")
    parts = [part for part in inner if part]
    return [
        place
        for place, name in enumerate(names)
        if _has_parts(name, first, parts, last)
    ]


def _has_parts(name: str, first: str, inner: Sequence[str], last: str) -> bool:
    """Tell whether a name is made of parts in this order, with any text between them.

    Each inner part is taken where it comes first: if the rest can be found behind a
    later place, it can be found behind this one. So no choice is ever taken back, and
    the time is that of reading the name once for each part.
    """
    if len(name) < len(first) + len(last):
        return False
    if not (name.startswith(first) and name.endswith(last)):
        return False
    position, end = len(first), len(name) - len(last)
    for part in inner:
        start = name.find(part, position, end)
        if start < 0:
            return False
        position = start + len(part)
    return True
