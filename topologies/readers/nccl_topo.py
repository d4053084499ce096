"""The inside of a node as NCCL saw it: the file of ``NCCL_TOPO_DUMP_FILE``.

Declarations of types and entities are refused before anything of them is expanded: some
hundred bytes of them stand for gigabytes, or for other files.

An element ``system`` has processors (``cpu``, one for each NUMA node) with trees of
PCIe (``pci``), in which ``gpu`` and ``nic`` with its ``net`` stand; ``nvlink`` counts a
GPU's links to a switch or to another GPU, ``net`` has its speed in Mbit/s [1]_. What
joins all GPUs of the node are its NVLinks, or else the tree of PCIe, tier by tier.

References
----------
.. [1] NVIDIA, NCCL 2.30, ``src/graph/xml.cc``, ``topo.cc``, ``topo.h``.
.. [2] NVIDIA, data sheets of P100, V100, A100, RTX A6000, H100 and B200: NVLink 1 to 5.
.. [3] PCI-SIG, PCI Express Base 6.0, 4.2: 8b/10b, 128b/130b, and flits of 256 bytes, of
   which 242 are packets.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from xml.parsers import expat

from topologies.errors import InputError, located
from topologies.input_file import MAX_DEPTH, read_file

MAX_ELEMENTS = 20_000
"""Most elements of a document."""


@dataclass(slots=True)
class XmlElement:
    """One element."""

    name: str
    """Name of the element."""

    attributes: dict[str, str]
    """Attributes by name."""

    line: int
    """Line that it begins in, from 1."""

    children: list["XmlElement"] = field(default_factory=list)
    """Elements inside it."""

    def inner(self, name: str) -> Iterator["XmlElement"]:
        """Yield all elements of a name at any depth, in their order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.inner(name)


def parse_xml(content: bytes, *, expected: str) -> XmlElement:
    """Return the outermost element of a document.

    Parameters
    ----------
    content
        The document.
    expected
        What it should be, for messages.

    Raises
    ------
    InputError
        If it is not such XML, with the line. The message does not name the file.
    """
    reader = _XmlReader(expected)
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.EntityDeclHandler = reader.refuse
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    reader.parser = parser
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise InputError(
            f"is not XML: {expat.errors.messages.get(error.code, 'broken')}",
            where=f"line {error.lineno}",
            expected=expected,
        ) from None
    except InputError:
        raise
    except (ValueError, LookupError):  # an encoding that nobody knows
        raise InputError("is not XML in UTF-8", expected=expected) from None
    assert reader.root is not None, "a document has an outermost element"
    return reader.root


class _XmlReader:
    """Takes in elements as they begin and end."""

    parser: expat.XMLParserType

    def __init__(self, expected: str) -> None:
        self.expected = expected
        self.root: XmlElement | None = None
        self.open: list[XmlElement] = []
        self.count = 0

    def refuse(self, *_: object) -> None:
        raise self._error("has declarations of types or entities")

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise self._error(f"has more than {MAX_ELEMENTS:,} elements")
        if len(self.open) >= MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} deep")
        element = XmlElement(name, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, name: str) -> None:
        del name
        self.open.pop()

    def _error(self, problem: str) -> InputError:
        line = f"line {self.parser.CurrentLineNumber}"
        return InputError(problem, where=line, expected=self.expected)


MAX_FILE = 1_000_000
"""Longest file that is read; NCCL's own limit is 256 elements [byte]."""

MAX_GPUS = 1024
"""Most GPUs that NVLink joins; there are 72 in a rack."""

NVLINK_BANDWIDTH: Mapping[int, float] = MappingProxyType(
    {60: 20e9, 70: 25e9, 80: 25e9, 86: 14.0625e9, 90: 25e9, 100: 50e9, 103: 50e9}
)
"""Compute capability, times ten -> one NVLink in one direction [2]_ [byte/s]."""

_EXPECTED = "what NCCL wrote to NCCL_TOPO_DUMP_FILE"

_UNKNOWN_SPEED = 8.0
"""Transfers of a PCIe lane that NCCL takes where the file does not say [1]_ [GT/s]."""

_SPEED = re.compile(r"^\s*(\d{1,3}(?:\.\d{1,3})?)\s*GT/s")


class InsideTier(NamedTuple):
    """One tier of links inside a node."""

    name: str
    """Name of the tier."""

    fan_out: int
    """Children of one block of the tier."""

    bandwidth: float
    """Bandwidth of one child's link, in one direction [byte/s]."""

    is_nvlink: bool
    """Whether the links are NVLinks; PCIe or processors otherwise."""


class NodeNic(NamedTuple):
    """One port of a network adapter."""

    name: str
    """Name of the device, e.g. ``"mlx5_0"``."""

    bandwidth: float
    """Bandwidth of the port or of its PCIe slot, whichever is less, in one direction
    [byte/s]."""

    nearest: tuple[int, ...]
    """Numbers of the GPUs that are nearest to it in the PCIe tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInside:
    """What a node consists of."""

    num_gpus: int
    """Number of GPUs."""

    tiers: tuple[InsideTier, ...]
    """Tiers of links between GPUs, from the inside out."""

    nics: tuple[NodeNic, ...]
    """Ports that are used, in the order of the file."""

    assumed: tuple[str, ...]
    """Sentences on what the file does not say, or says and does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideOptions:
    """What users say of a node in place of the file."""

    link_bandwidth: float | None = None
    """One NVLink or xGMI link in one direction; None for that of the GPU's generation
    [byte/s]."""

    socket_bandwidth: float | None = None
    """Link between two processors in one direction; None for what NCCL takes
    [byte/s]."""

    nics: tuple[str, ...] = ()
    """Names of the ports that are used; empty for the fastest ones."""


@dataclass(slots=True)
class _PciePart:
    """A processor, a bridge or a GPU in the tree of PCIe."""

    name: str
    """Name of the tier that its children make."""

    bandwidth: float
    """Link towards the processor [byte/s]."""

    parts: list["_PciePart"] = field(default_factory=list)
    """What is below it."""


class _Found(NamedTuple):
    """An element and those that it is inside of, the outermost first."""

    element: XmlElement
    above: tuple[XmlElement, ...]


def read_nccl_topo(path: Path, options: InsideOptions) -> NodeInside:
    """Read the file.

    Raises
    ------
    InputError
        If it cannot be read or something in it is wrong. The message starts with the
        file.
    """
    with located(str(path), ": "):
        content = read_file(path, expected=_EXPECTED, most_bytes=MAX_FILE)
        root = parse_xml(content, expected=_EXPECTED)
        if root.name != "system":
            raise _wrong(root, "is not a system", f"<{root.name}>", "<system ..>")
        if root.attributes.get("version", "1") != "1":
            got = root.attributes["version"]
            raise _wrong(root, "is of an unknown version", got, 'version="1"')
        return _Node(root, options).inside()


def _wrong(element: XmlElement, problem: str, got: object, expected: str) -> InputError:
    where = f"line {element.line}: {element.name}"
    return InputError(problem, where=where, got=got, expected=expected)


def _whole(element: XmlElement, name: str, most: int) -> int:
    """Return an attribute that is a whole number from 0."""
    text = element.attributes.get(name)
    if text is None or not text.strip().isdecimal() or int(text[:18]) > most:
        raise _wrong(
            element, f"has no usable {name}", text, f"a whole number up to {most:,}"
        )
    return int(text)


class _Node:
    """Turns the elements of a file into tiers and ports."""

    def __init__(self, root: XmlElement, options: InsideOptions) -> None:
        self.root, self.options = root, options
        self.assumed: list[str] = []
        found = list(_find(root, "gpu", ()))
        if not 1 <= len(found) <= MAX_GPUS:
            raise InputError(
                "has no GPUs" if not found else "has too many GPUs",
                got=len(found),
                expected=f"1 to {MAX_GPUS:,} elements <gpu ..>",
            )
        for gpu in found:
            if not gpu.above or gpu.above[-1].name != "pci":
                raise _wrong(gpu.element, "is in no <pci ..>", None, "a PCIe device")
        if len({id(gpu.above[-1]) for gpu in found}) < len(found):
            raise InputError(
                "has several GPUs in one PCIe device",
                expected="one <gpu ..> in each <pci ..>",
            )
        ranks = [gpu.element.attributes.get("rank", "") for gpu in found]
        if len(set(ranks)) == len(ranks) and all(rank.isdecimal() for rank in ranks):
            found.sort(key=lambda gpu: int(gpu.element.attributes["rank"][:9]))
        self.gpus = found

    def inside(self) -> NodeInside:
        """Return what the node consists of."""
        nics = self._nics()
        tiers = self._tiers()
        assert math.prod(tier.fan_out for tier in tiers) == len(self.gpus)
        return NodeInside(
            num_gpus=len(self.gpus),
            tiers=tiers,
            nics=nics,
            assumed=tuple(self.assumed),
        )

    def _tiers(self) -> tuple[InsideTier, ...]:
        """Return NVLinks where they join all GPUs, else PCIe above them."""
        groups = self._nvlink_groups()
        count, size = len(self.gpus), len(groups[0])
        if any(len(group) != size for group in groups):
            self.assumed.append(
                "NVLinks join groups of unlike sizes and are left out: "
                + ", ".join(str(len(group)) for group in groups[:20])
            )
            size = 1
        if size == count:
            if count == 1:
                return (InsideTier("node", 1, self._pcie_bandwidth(), False),)
            return (InsideTier("node", count, self._nvlink_bandwidth(), True),)
        tiers = self._pcie_tiers()
        if size == 1:
            return tiers
        return self._bridged(groups, tiers)

    def _bridged(
        self, groups: Sequence[Sequence[int]], tiers: tuple[InsideTier, ...]
    ) -> tuple[InsideTier, ...]:
        """Return NVLinks of small groups below what PCIe joins."""
        size, count = len(groups[0]), len(self.gpus)
        if any(group != list(range(group[0], group[0] + size)) for group in groups):
            self.assumed.append(
                f"NVLink joins groups of {size} GPUs, which are numbered in a row here"
            )
        inner = InsideTier("nvlink", size, self._nvlink_bandwidth(), True)
        first, *outer = tiers
        if first.fan_out % size:
            first, outer = InsideTier("node", count, self._pcie_bandwidth(), False), []
        if first.fan_out == size:
            return inner, *outer
        above = first._replace(
            fan_out=first.fan_out // size, bandwidth=size * first.bandwidth
        )
        return inner, above, *outer

    def _nvlink_groups(self) -> list[list[int]]:
        """Return the numbers of the GPUs that NVLinks join, group by group."""
        leader = list(range(len(self.gpus)))

        def top(one: int) -> int:
            while leader[one] != one:
                leader[one] = leader[leader[one]]
                one = leader[one]
            return one

        for one, other in self._joined_pairs():
            leader[top(one)] = top(other)
        groups: dict[int, list[int]] = {}
        for one in range(len(self.gpus)):
            groups.setdefault(top(one), []).append(one)
        return sorted(groups.values())

    def _joined_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield GPUs that links join, directly or through a switch."""
        names = [gpu.above[-1].attributes.get("busid", "").lower() for gpu in self.gpus]
        number = {name: i for i, name in enumerate(names) if name}
        switches: dict[str, int] = {}
        for i, gpu in enumerate(self.gpus):
            for link in _links(gpu.element):
                target = link.attributes.get("target", "").lower()
                if target in number:
                    self._say_once(
                        "links between GPUs without a switch count as one switch with "
                        "all links of a GPU"
                    )
                    yield i, number[target]
                elif link.attributes.get("tclass", "")[:6] != "0x0302":
                    # Of the class of GPUs it is one that the job did not use.
                    yield i, switches.setdefault(target, i)

    def _nvlink_bandwidth(self) -> float:
        """Return the links of the GPU that has the least of them [byte/s]."""
        totals = []
        for gpu in self.gpus:
            count = sum(_whole(link, "count", 10_000) for link in _links(gpu.element))
            if count:
                totals.append(count * self._link_bandwidth(gpu.element))
        least = min(totals)
        if max(totals) > least:
            self.assumed.append("GPUs have unlike numbers of links: the least counts")
        return least

    def _link_bandwidth(self, gpu: XmlElement) -> float:
        if self.options.link_bandwidth is not None:
            return self.options.link_bandwidth
        sm = gpu.attributes.get("sm", "")
        known = (
            NVLINK_BANDWIDTH.get(int(sm)) if sm.isdecimal() and len(sm) < 4 else None
        )
        if known is None:
            raise _wrong(
                gpu,
                "has links whose bandwidth is not known",
                f'sm="{sm}"' if sm else None,
                "sm = " + ", ".join(map(str, NVLINK_BANDWIDTH)),
            )
        return known

    def _pcie_bandwidth(self) -> float:
        """Return the PCIe link of the GPU that has the slowest [byte/s]."""
        return min(self._slot(gpu.above[-1]) for gpu in self.gpus)

    def _slot(self, pci: XmlElement) -> float:
        """Return what a PCIe link carries in one direction [byte/s]."""
        width, speed = pci.attributes.get("link_width", ""), _UNKNOWN_SPEED
        found = _SPEED.match(pci.attributes.get("link_speed", ""))
        if found and float(found[1]) > 0:
            speed = float(found[1])
        else:
            self._say_once("PCIe links without a speed count as of 8 GT/s, as in NCCL")
        lanes = int(width) if width.isdecimal() and len(width) < 3 else 0
        if not lanes:
            self._say_once(
                "PCIe links without a width count as of 16 lanes, as in NCCL"
            )
        code = 0.8 if speed <= 5.0 else 128 / 130 if speed <= 32.0 else 242 / 256
        return speed * 1e9 * (lanes or 16) / 8 * code

    def _say_once(self, sentence: str) -> None:
        if sentence not in self.assumed:
            self.assumed.append(sentence)

    def _pcie_tiers(self) -> tuple[InsideTier, ...]:
        """Return the tiers of the PCIe tree; one where its parts are not alike."""
        system = _PciePart("node", math.inf)
        parts: dict[int, _PciePart] = {id(self.root): system}
        for gpu in self.gpus:
            above = system
            for element in gpu.above[1:]:
                if id(element) not in parts:
                    part = self._part(element, is_gpu=element is gpu.above[-1])
                    parts[id(element)] = part
                    above.parts.append(part)
                above = parts[id(element)]
        tiers: list[InsideTier] = []
        level = [_shortened(system)]
        while any(one.parts for one in level):
            counts = {len(one.parts) for one in level}
            below = [part for one in level for part in one.parts]
            if len(counts) > 1:
                self._say_once("the tree of PCIe is not regular: one switch joins all")
                least = self._pcie_bandwidth()
                return (InsideTier("node", len(self.gpus), least, False),)
            bandwidth = min(part.bandwidth for part in below)
            tiers.append(InsideTier(level[0].name, counts.pop(), bandwidth, False))
            level = [_shortened(part) for part in below]
        tiers[0] = tiers[0]._replace(name="node")
        named = [
            tier._replace(name=f"{tier.name} {i}")
            if tier.name in {tier.name for tier in tiers[:i]}
            else tier
            for i, tier in enumerate(tiers)
        ]
        return tuple(reversed(named))

    def _part(self, element: XmlElement, *, is_gpu: bool) -> _PciePart:
        if element.name == "cpu":
            given = self.options.socket_bandwidth
            if given is None:
                given = _socket_bandwidth(element)
            if self.options.socket_bandwidth is None and self._has_sockets():
                self._say_once(
                    f"processors are joined by {given / 1e9:g} GB/s, which NCCL takes"
                )
            return _PciePart("socket", given)
        return _PciePart("gpu" if is_gpu else "pcie switch", self._slot(element))

    def _has_sockets(self) -> bool:
        """Return whether GPUs are at several processors."""
        return len({id(gpu.above[1]) for gpu in self.gpus}) > 1

    def _nics(self) -> tuple[NodeNic, ...]:
        """Return the ports that are used."""
        found: dict[str, _Found] = {}
        for one in _find(self.root, "net", ()):
            name = one.element.attributes.get("name", "")
            found.setdefault(name, one)  # some stand under every processor
        ports = [
            (name, one, _whole(one.element, "speed", 10**8) * 1e6 / 8)
            for name, one in found.items()
        ]
        chosen = set(self.options.nics)
        if missing := chosen.difference(found):
            raise InputError(
                "does not have these adapters",
                where="nics",
                got=", ".join(sorted(missing)),
                expected="some of " + ", ".join(list(found)[:40]),
            )
        fastest = max((speed for _, _, speed in ports), default=0.0)
        used, left = [], []
        for name, one, speed in ports:
            if speed > 0 and (name in chosen if chosen else speed == fastest):
                used.append(self._nic(name, one, speed))
            else:
                left.append(name)
        if left:
            words = ", ".join(left[:20])
            self.assumed.append(f"adapters that are left out: {words}")
        return tuple(used)

    def _nic(self, name: str, found: _Found, speed: float) -> NodeNic:
        slots = [one for one in found.above if one.name == "pci"]
        slot = self._slot(slots[-1]) if slots else math.inf
        if slot < speed:
            self._say_once("adapters carry what their PCIe slots do, which is less")
        shared = [_common(found.above, gpu.above) for gpu in self.gpus]
        nearest = tuple(i for i, one in enumerate(shared) if one == max(shared))
        return NodeNic(name, min(speed, slot), nearest)


def _find(
    element: XmlElement, name: str, above: tuple[XmlElement, ...]
) -> Iterator[_Found]:
    """Yield elements of a name, each with those that it is inside of."""
    inside = (*above, element)
    for child in element.children:
        if child.name == name:
            yield _Found(child, inside)
        yield from _find(child, name, inside)


def _links(gpu: XmlElement) -> list[XmlElement]:
    """Return NVLinks, or the links that AMD's library lists in their place."""
    return [child for child in gpu.children if child.name in {"nvlink", "xgmi"}]


def _common(one: Sequence[XmlElement], other: Sequence[XmlElement]) -> int:
    """Return how many elements two places share from the outside."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a is not b), len(one))


def _shortened(part: _PciePart) -> _PciePart:
    """Return what branches, behind parts that have one part below them."""
    while len(part.parts) == 1:
        inner = part.parts[0]
        name = part.name if not inner.parts else inner.name
        bandwidth = min(part.bandwidth, inner.bandwidth)
        part = _PciePart(name, bandwidth, inner.parts)
    return part


_SOCKETS: Mapping[str, tuple[tuple[int, float], ...]] = MappingProxyType(
    {
        # By model, of family 6: Granite Rapids, Sapphire Rapids, Skylake, older ones.
        "GenuineIntel": ((173, 40e9), (143, 22e9), (85, 10e9), (0, 6e9)),
        # By family, as it is or as NCCL composes it: Zen 5, 3 and 4, 1 and 2.
        "AuthenticAMD": (
            *((191, 32e9), (175, 24e9), (143, 16e9)),
            *((26, 32e9), (25, 24e9), (0, 16e9)),
        ),
    }
)
"""Vendor -> least model or family, and the link between two processors that NCCL takes
for it [1]_ [byte/s]."""


def _socket_bandwidth(cpu: XmlElement) -> float:
    """Return the link between two processors that NCCL takes [byte/s]."""
    vendor = cpu.attributes.get("vendor", "")
    if cpu.attributes.get("arch") == "ppc64":
        return 32e9
    of = {"GenuineIntel": "modelid", "AuthenticAMD": "familyid"}.get(vendor, "")
    text = cpu.attributes.get(of, "")
    number = int(text) if text.isdecimal() and len(text) < 6 else 0
    rows = _SOCKETS.get(vendor, ((0, 6e9),))
    return next(bandwidth for least, bandwidth in rows if number >= least)
