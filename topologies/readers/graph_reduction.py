"""Make a graph of many parts smaller without a difference to those who send through it.

Whoever describes a machine lists ports, adapters and slots one by one. Routes between
devices do not depend on them: vertices that lead nowhere carry nothing, equal switches
beside each other carry what they do together, and what merely passes on is a part of
its link.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_ROUNDS = 100
"""Most rounds; each makes chains of vertices shorter."""


class PathRate(NamedTuple):
    """How fast one link is, or several, one behind the other."""

    bandwidth: float
    """Least bandwidth on the way, in one direction [byte/s]."""

    latency: float
    """Latencies of the way together [s]."""

    is_path: bool
    """Whether it stands for several links."""


Rated = dict[str, dict[str, PathRate]]
"""Vertex -> its neighbours -> the link to each; the same both ways."""


def leave_out_ends(around: dict[str, dict[str, T]], kept: frozenset[str]) -> None:
    """Leave out vertices that no route between kept ones passes, one by one.

    Parameters
    ----------
    around
        Vertex -> its neighbours, both ways; changed.
    kept
        Vertices that stay.
    """
    ends = [one for one, near in around.items() if len(near) < 2 and one not in kept]
    while ends:
        name = ends.pop()
        for other in around.pop(name, {}):
            del around[other][name]
            if len(around[other]) < 2 and other not in kept:
                ends.append(other)


def reduce_graph(around: Rated, kept: frozenset[str]) -> int:
    """Merge equal switches and shorten paths; return how many switches were merged.

    Parameters
    ----------
    around
        The graph; changed.
    kept
        Vertices that stay.
    """
    merged = 0
    for _ in range(_ROUNDS):
        now = _merge_equals(around, kept)
        merged += now
        if not now + _shorten(around, kept):
            break
    return merged


def _merge_equals(around: Rated, kept: frozenset[str]) -> int:
    """Let vertices with the same neighbours act as one; return how many went.

    Those of two neighbours are paths beside each other, see `_shorten`.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, others in around.items():
        if name not in kept and len(others) > 2:
            groups.setdefault(tuple(sorted(others)), []).append(name)
    gone = 0
    for neighbours, names in groups.items():
        # An earlier group may have taken neighbours away.
        if len(names) > 1 and all(other in around for other in neighbours):
            _merge(around, neighbours, names)
            gone += len(names) - 1
    return gone


def _merge(around: Rated, neighbours: Sequence[str], names: Sequence[str]) -> None:
    """Put the links of several vertices with the same neighbours together."""
    first, *rest = names
    for other in neighbours:
        rates = [around[name][other] for name in names]
        rate = PathRate(
            sum(one.bandwidth for one in rates),
            max(one.latency for one in rates),
            any(one.is_path for one in rates),
        )
        for name in rest:
            del around[other][name]
        around[first][other] = around[other][first] = rate
    for name in rest:
        del around[name]


def _shorten(around: Rated, kept: frozenset[str]) -> int:
    """Make vertices with two neighbours a part of the link between these.

    Paths beside each other carry what they do together. Where there is a link already
    that is no such path, routes take it: the vertex stays.
    """
    gone = 0
    for name in [one for one in around if one not in kept]:
        if len(around[name]) != 2:
            continue
        (one, first), (other, second) = around[name].items()
        there = around[one].get(other)
        if there is not None and not there.is_path:
            continue
        bandwidth = min(first.bandwidth, second.bandwidth)
        latency = first.latency + second.latency
        if there is not None:
            bandwidth += there.bandwidth
            latency = max(latency, there.latency)
        del around[one][name], around[other][name], around[name]
        around[one][other] = around[other][one] = PathRate(bandwidth, latency, True)
        gone += 1
    return gone
