"""InfraGraph: devices of components, instances of devices, and edges between them.

A file (JSON or YAML, schema 3 [1]_) lists devices with components (``xpu``, ``nic``,
``switch`` ..) and edges inside them, instances of devices, and edges between these.
Ends of edges are slices, ``host[0:4]`` and ``nic[0]``; an edge joins its ends one to
one, or all with all. Each component of each instance is a vertex, as in the package of
that name, under the same names: ``host.0.nic.1``.

Of such a graph a list of links is made: vertices that lead nowhere are left out, equal
switches beside each other act as one, and what merely passes on (ports, adapters, PCIe
slots) becomes part of its link, whose bandwidth is the least on the way and whose
latency the sum.

References
----------
.. [1] InfraGraph 3.1, https://infragraph.dev: OpenAPI schema, service ``set_graph``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from topologies.errors import InputError, located
from topologies.input_file import Value, decode, parse_json, parse_yaml, read_file
from topologies.link_file import LinkList
from topologies.readers.link_collector import (
    LinkCollector,
    PathRate,
    leave_out_ends,
    reduce_graph,
)

MAX_FILE = 500_000
"""Longest file that is read [byte]."""

MAX_VERTICES = 50_000
"""Most components of all instances together."""

MAX_EDGES = 200_000
"""Most edges between components."""

_EXPECTED = "an infrastructure of InfraGraph in JSON or YAML"

_UNITS = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
"""Unit of a bandwidth -> [byte/s]; of gigatransfers the lanes are not told."""

_TIMES = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_DEEPEST = 8
"""Most devices inside each other."""

_PART = re.compile(r"^([^\[\].]+)(?:\[([-\d:]{0,40})\])?$")


_INDEX = re.compile(r"^(-?\d{1,9})?$")


class InfraEdge(NamedTuple):
    """An edge between two vertices."""

    one: str
    """Name of a vertex."""

    other: str
    """Name of the other vertex."""

    link: str
    """Name of the link that the edge is."""

    scope: str
    """Device whose link it is; empty for one of the infrastructure."""


class InfraVertices(NamedTuple):
    """A graph as InfraGraph expands it."""

    kinds: Mapping[str, str]
    """Name of a vertex -> kind of component."""

    edges: tuple[InfraEdge, ...]
    """Edges, each pair of vertices once."""

    rates: Mapping[tuple[str, str], "InfraRate"]
    """Scope and name of a link -> what the file says of it."""


class InfraRate(NamedTuple):
    """What is said of a link; None what is not."""

    bandwidth: float | None
    """Bandwidth in one direction [byte/s]."""

    latency: float | None
    """Latency [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraOptions:
    """What users say of links that their file does not."""

    bandwidths: Mapping[str, float] = field(default_factory=dict)
    """Name of a link -> its bandwidth in one direction [byte/s]."""

    latencies: Mapping[str, float] = field(default_factory=dict)
    """Name of a link -> its latency [s]."""

    latency: float | None = None
    """Latency of all links of which none is said [s]."""


def read_infragraph(
    path: Path, options: InfraOptions
) -> tuple[LinkList, tuple[str, ...]]:
    """Return the links of a file, and sentences on what was assumed.

    Raises
    ------
    InputError
        If it cannot be read or something in it is wrong. The message starts with the
        file.
    """
    with located(str(path), ": "):
        graph = expand_infragraph(_root(path))
        return _Reduced(graph, options).listed()


def _root(path: Path) -> Value:
    """Return the infrastructure of a file."""
    text = decode(read_file(path, expected=_EXPECTED, most_bytes=MAX_FILE))
    if text.lstrip()[:1] in {"{", "["}:
        document = parse_json(text, expected=_EXPECTED)
    else:
        document = parse_yaml(text, expected=_EXPECTED)
    root = Value(document)
    # A graph that the service returned has its annotations beside it.
    return root["infrastructure"] if "infrastructure" in root.table() else root


def expand_infragraph(root: Value) -> InfraVertices:
    """Return all vertices and edges of an infrastructure.

    Raises
    ------
    InputError
        If something in it is wrong, with its place.
    """
    return _Expansion(root).graph()


class _Component(NamedTuple):
    """A component of a device."""

    number: int
    kind: str


def _named(values: Sequence[Value]) -> dict[str, Value]:
    """Return the items of a list by their names."""
    found: dict[str, Value] = {}
    for item in values:
        name = item["name"].text()
        if name in found:
            raise item.error("has a name that is there twice", "every name once")
        found[name] = item
    return found


class _Expansion:
    """Turns devices and instances into vertices and edges."""

    def __init__(self, root: Value) -> None:
        self.root = root
        self.devices = _named(root["devices"].array(least=1, most=1000))
        self.components = {
            name: {
                part: _Component(
                    item["count"].whole(least=1, most=MAX_VERTICES),
                    item["custom"].get("type", "custom").text()
                    if item["choice"].raw == "custom" and "custom" in item.table()
                    else item["choice"].text(),
                )
                for part, item in _named(device["components"].array(most=1000)).items()
            }
            for name, device in self.devices.items()
        }
        self.kinds: dict[str, str] = {}
        self.edges: dict[tuple[str, str], InfraEdge] = {}
        self.rates: dict[tuple[str, str], InfraRate] = {}

    def graph(self) -> InfraVertices:
        """Return vertices and edges."""
        for name, device in self.devices.items():
            self._read_links(device, name)
        self._read_links(self.root, "")
        instances = _named(self.root["instances"].array(least=1, most=10_000))
        counts: dict[str, tuple[int, str]] = {}
        for name, item in instances.items():
            whose = item["device"].text()
            self._known(whose, item["device"])
            count = item["count"].whole(least=1, most=MAX_VERTICES)
            counts[name] = count, whose
            for number in range(count):
                self._add_device(f"{name}.{number}", whose, _DEEPEST, item)
        for edge in self.root.get("edges", []).array(most=MAX_EDGES):
            ends = [self._instance_ends(edge[end], counts) for end in ("ep1", "ep2")]
            self._join(edge, ends, "", "")
        return InfraVertices(self.kinds, tuple(self.edges.values()), self.rates)

    def _known(self, device: str, place: Value) -> None:
        if device not in self.devices:
            known = ", ".join(list(self.devices)[:20])
            raise place.error("is no device", f"one of {known}")

    def _read_links(self, owner: Value, scope: str) -> None:
        for name, item in _named(owner.get("links", []).array(most=10_000)).items():
            physical = item.get("physical", {})
            bandwidth = _physical(physical.get("bandwidth", {}), _UNITS)
            latency = _physical(physical.get("latency", {}), _TIMES)
            self.rates[scope, name] = InfraRate(bandwidth or None, latency)

    def _add_device(self, prefix: str, device: str, depth: int, place: Value) -> None:
        """Add the vertices and edges of one device."""
        if not depth:
            raise place.error(
                f"has more than {_DEEPEST} devices inside each other", "fewer"
            )
        for part, (count, kind) in self.components[device].items():
            if len(self.kinds) + count > MAX_VERTICES:
                raise place.error(
                    "has too many components", f"at most {MAX_VERTICES:,} altogether"
                )
            for number in range(count):
                name = f"{prefix}.{part}.{number}"
                if kind == "device":
                    self._known(part, place)
                    self._add_device(name, part, depth - 1, place)
                else:
                    self.kinds[name] = kind
        for edge in self.devices[device].get("edges", []).array(most=MAX_EDGES):
            ends = [self._device_ends(edge[end], device) for end in ("ep1", "ep2")]
            self._join(edge, ends, f"{prefix}.", device)

    def _device_ends(self, end: Value, device: str) -> list[str]:
        """Return the components of a device that an end names."""
        path = end["component"].text()
        if end.get("device", None).raw:
            path = f"{end['device'].text()}.{path}"
        return self._components(path, device, end)

    def _instance_ends(
        self, end: Value, counts: Mapping[str, tuple[int, str]]
    ) -> list[str]:
        """Return the components of instances that an end names."""
        name, chosen = _sliced(end["instance"].text().split(".", 1)[0], end)
        if name not in counts:
            known = ", ".join(list(counts)[:20])
            raise end["instance"].error("is no instance", f"one of {known}")
        count, device = counts[name]
        parts = self._components(end["component"].text(), device, end)
        numbers = _numbers(chosen, count, end)
        _check_product(len(numbers), len(parts), end)
        return [f"{name}.{number}.{part}" for number in numbers for part in parts]

    def _components(self, path: str, device: str, place: Value) -> list[str]:
        names = [""]
        for element in path.split("."):
            name, chosen = _sliced(element, place)
            known = self.components.get(device, {})
            if name not in known:
                listed = ", ".join(list(known)[:20]) or "none"
                raise place["component"].error(
                    f"is no component of {device}", f"one of {listed}"
                )
            numbers = _numbers(chosen, known[name].number, place)
            _check_product(len(names), len(numbers), place)
            names = [f"{one}.{name}.{number}" for one in names for number in numbers]
            device = name
        return [name[1:] for name in names]

    def _join(
        self, edge: Value, ends: Sequence[Sequence[str]], prefix: str, scope: str
    ) -> None:
        """Add the edges that one of the file stands for."""
        scheme, link = edge["scheme"].raw, edge["link"].text()
        one, other = ends
        if scheme == "many2many":
            _check_product(len(one), len(other), edge)
            pairs = [(a, b) for a in one for b in other]
        elif scheme == "one2one":
            pairs = list(zip(one, other, strict=False))
        else:
            raise edge["scheme"].error("is no scheme", "one2one or many2many")
        for a, b in pairs:
            if a == b:
                continue
            first, second = f"{prefix}{a}", f"{prefix}{b}"
            for name in (first, second):
                if name not in self.kinds:
                    raise edge.error(f"has an end without a component: {name}", "one")
            key = min(first, second), max(first, second)
            self.edges[key] = InfraEdge(*key, link, scope)
            if len(self.edges) > MAX_EDGES:
                raise edge.error("makes too many edges", f"at most {MAX_EDGES:,}")


def _physical(value: Value, units: Mapping[str, float]) -> float | None:
    """Return a quantity that stands under the name of its unit."""
    if value.raw is None:
        return None
    for name, unit in units.items():
        if value.get(name, None).raw is not None:
            return value[name].number() * unit
    return None


def _sliced(text: str, place: Value) -> tuple[str, str]:
    """Return the name of an end, and what is in its brackets."""
    found = _PART.match(text)
    if found is None:
        raise place.error("has an end that cannot be read", "names like nic[0:2]")
    return found[1], found[2] or ""


def _numbers(chosen: str, count: int, place: Value) -> range:
    """Return the numbers that brackets choose, as Python's slices do."""
    words = chosen.split(":")
    if not all(_INDEX.match(word) for word in words):
        raise place.error("has a slice that cannot be read", "e.g. [0:4]")
    parts = [int(word) if word else None for word in words]
    if len(parts) > 3 or (len(parts) == 3 and parts[2] == 0):
        raise place.error("has a slice that cannot be read", "e.g. [0:4]")
    if len(parts) == 1:
        if parts[0] is None:
            return range(count)
        number = parts[0] + count if parts[0] < 0 else parts[0]
        if not 0 <= number < count:
            raise place.error(
                f"names number {parts[0]} of {count}", f"0 to {count - 1}"
            )
        return range(number, number + 1)
    return range(count)[slice(*parts)]


def _check_product(one: int, other: int, place: Value) -> None:
    if one * other > MAX_EDGES:
        raise place.error("stands for too many", f"at most {MAX_EDGES:,} edges")


class _Reduced:
    """Makes a list of links of a graph.

    Parameters
    ----------
    graph
        As the file has it.
    options
        What it does not say.
    """

    def __init__(self, graph: InfraVertices, options: InfraOptions) -> None:
        self.graph, self.options = graph, options
        self.devices = [name for name, kind in graph.kinds.items() if kind == "xpu"]
        if not self.devices:
            raise InputError("has no devices", expected="components of choice xpu")
        self.around: dict[str, dict[str, InfraEdge]] = {
            name: {} for name in self.devices
        }
        for edge in graph.edges:
            self.around.setdefault(edge.one, {})[edge.other] = edge
            self.around.setdefault(edge.other, {})[edge.one] = edge

    def listed(self) -> tuple[LinkList, tuple[str, ...]]:
        """Return the links, and what was assumed."""
        kept = frozenset(self.devices)
        leave_out_ends(self.around, kept)
        around = self._rated()
        before = len(around)
        merged = reduce_graph(around, kept)
        joined = LinkCollector(self.devices)
        for name, others in around.items():
            for other, rate in others.items():
                if name < other:
                    joined.join(name, other, rate.bandwidth, rate.latency)
        said = [
            f"InfraGraph of {len(self.graph.kinds):,} components: those that lead "
            f"nowhere are left out, of {before - len(kept):,} others "
            f"{len(around) - len(kept):,} switches remain"
        ]
        if merged:
            said.append("switches beside each other that join the same act as one")
        return joined.listed(), tuple(said)

    def _rated(self) -> dict[str, dict[str, PathRate]]:
        """Return the graph with how fast its links are."""
        self._refuse_unknown()
        used = {
            (edge.scope, edge.link)
            for others in self.around.values()
            for edge in others.values()
        }
        said = {key: self._said(key) for key in sorted(used)}
        slow = sorted({key[1] for key, one in said.items() if one.bandwidth is None})
        if slow:
            raise InputError(
                "does not tell the bandwidth of links",
                where=f"links {', '.join(slow[:10])}",
                expected=f'bandwidths = {{ "{slow[0]}" = "50 GB/s" }} beside the file',
            )
        late = sorted({key[1] for key, one in said.items() if one.latency is None})
        if late:
            raise InputError(
                "does not tell the latency of links",
                where=f"links {', '.join(late[:10])}",
                expected='latency = "1 us" beside the file, or latencies by link',
            )
        rates = {
            key: PathRate(one.bandwidth or 0.0, one.latency or 0.0, False)
            for key, one in said.items()
        }
        return {
            name: {other: rates[edge.scope, edge.link] for other, edge in ends.items()}
            for name, ends in self.around.items()
        }

    def _said(self, key: tuple[str, str]) -> InfraRate:
        """Return what the settings say of a link, or else the file."""
        given, link = self.options, key[1]
        of_file = self.graph.rates.get(key, InfraRate(None, None))
        latency = given.latencies.get(link, of_file.latency)
        return InfraRate(
            given.bandwidths.get(link, of_file.bandwidth),
            given.latency if latency is None else latency,
        )

    def _refuse_unknown(self) -> None:
        known = {link for _, link in self.graph.rates}
        for setting in ("bandwidths", "latencies"):
            unknown = sorted(set(getattr(self.options, setting)) - known)
            if unknown:
                raise InputError(
                    "has no such link",
                    where=setting,
                    got=", ".join(unknown[:10]),
                    expected="some of " + ", ".join(sorted(known)[:20]),
                )
