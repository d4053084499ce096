"""Read the file that lists a custom network's devices and links.

The file is TOML::

    devices = 4  # named "0" to "3"; or a list of names, ["a", "b"]

    [[links]]
    source = 0  # a device's number or name; any other name is a switch
    target = "switch"
    bandwidth = "50 GB/s"  # per direction
    latency = "2 us"
    bidirectional = true  # the default: a second link back, with the same values
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from topologies.errors import InputError, Problems, located
from topologies.input_file import parse_toml, read_file
from topologies.units import parse_quantity

MAX_CUSTOM_DEVICES = 2048
"""Largest custom network, in devices: routes between all pairs are kept."""

MAX_CUSTOM_VERTICES = 8192
"""Largest custom network, in devices and switches."""

MAX_FILE = 2_000_000
"""Longest file of links, room for 20,000 of them [byte]."""

MAX_NAME = 100
"""Characters of a vertex's name, which reports and figures write out."""

_NEEDED_EXAMPLES = MappingProxyType(
    {
        "source": "a device's number or name, or a switch's name, e.g. 0",
        "target": "a device's number or name, or a switch's name, e.g. 0",
        "bandwidth": 'a number with a unit, e.g. "50 GB/s"',
        "latency": 'a number with a unit, e.g. "2 us"',
    }
)

_LINK_KEYS = ("source", "target", "bandwidth", "latency", "bidirectional")


class ListedLink(NamedTuple):
    """One directed link as listed."""

    source: int
    """Vertex where the link starts."""

    target: int
    """Vertex where the link ends."""

    bandwidth: float
    """Bandwidth of the link [byte/s]."""

    latency: float
    """Latency of the link [s]."""


class LinkList(NamedTuple):
    """What the file says: vertices by name, devices first, and directed links."""

    num_devices: int
    """Number of devices, the first of the vertices."""

    vertex_names: tuple[str, ...]
    """Name of each vertex."""

    links: tuple[ListedLink, ...]
    """Directed links in the order of the file."""


def read_link_file(path: Path) -> LinkList:
    """Read and check the file.

    Raises
    ------
    InputError
        If it cannot be read, is not TOML, or a setting is wrong; with file and
        setting.
    """
    with located(str(path), ": "):
        table = parse_toml(_content(path))
        return _LinkFile(table).read()


def link_file_bytes(path: Path) -> bytes:
    """Return the file as it is, for hashes of all that a job depends on.

    Raises
    ------
    InputError
        If it cannot be read, with the file.
    """
    with located(str(path), ": "):
        return _content(path)


def _content(path: Path) -> bytes:
    return read_file(path, expected="a list of links in TOML", most_bytes=MAX_FILE)


class _LinkFile:
    """Turns the file's table into lists, giving switches numbers as they appear."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table
        self.numbers: dict[str, int] = {}
        self.num_devices = 0
        self.quantities: dict[tuple[str, str], float] = {}

    def read(self) -> LinkList:
        problems = Problems()
        with problems.noted():
            _refuse_unknown(self.table, ("devices", "links"))
        with problems.noted():
            names = self._device_names()
            self.num_devices = len(names)
            self.numbers = {name: number for number, name in enumerate(names)}
        problems.refuse()  # whatever links say is about these devices
        links = self._links(problems)
        problems.refuse()
        if len(self.numbers) > MAX_CUSTOM_VERTICES:
            expected = f"at most {MAX_CUSTOM_VERTICES} devices and switches"
            raise InputError(
                "too many", where="links", got=len(self.numbers), expected=expected
            )
        return LinkList(
            num_devices=self.num_devices,
            vertex_names=tuple(self.numbers),
            links=links,
        )

    def _links(self, problems: Problems) -> tuple[ListedLink, ...]:
        """Return the links of all rows; what is wrong with a row is noted."""
        rows = self.table.get("links", [])
        if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
            with problems.noted():
                raise InputError(
                    "is not a list of tables",
                    where="links",
                    got=rows,
                    expected="[[links]], once for each link",
                )
            return ()
        links: dict[tuple[int, int], tuple[str, ListedLink]] = {}
        for index, row in enumerate(rows):
            where = f"links[{index}]"
            with problems.noted(where):
                for link in self._links_of(row):
                    _refuse_twice(row, links.get((link.source, link.target)))
                    links[link.source, link.target] = (where, link)
        return tuple(link for _, link in links.values())

    def _device_names(self) -> list[str]:
        expected = 'a number such as 4, or names such as ["a", "b"]'
        devices = self.table.get("devices")
        if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0:
            _refuse_too_many(devices)
            return [str(number) for number in range(devices)]
        if not isinstance(devices, list) or not devices:
            problem = "is missing" if devices is None else "names no devices"
            raise InputError(problem, where="devices", got=devices, expected=expected)
        _refuse_too_many(len(devices))
        for index, name in enumerate(devices):
            where = f"devices[{index}]"
            _check_name(where, name, expected)
            if name in devices[:index]:
                raise InputError(
                    "is there twice",
                    where=where,
                    got=name,
                    expected="another name for every device",
                )
        return devices

    def _links_of(self, row: Mapping[str, Any]) -> tuple[ListedLink, ...]:
        """Return the one or two directed links of a table of the file."""
        _refuse_unknown(row, _LINK_KEYS)
        for key in _LINK_KEYS[:-1]:
            if key not in row:
                raise InputError(
                    "is missing", where=key, expected=_NEEDED_EXAMPLES[key]
                )
        both = row.get("bidirectional", True)
        if not isinstance(both, bool):
            expected = "true or false"
            raise InputError(
                "not a yes or no", where="bidirectional", got=both, expected=expected
            )
        source, target = self._vertex(row, "source"), self._vertex(row, "target")
        if source == target:
            raise InputError(
                "joins a vertex to itself",
                where="target",
                got=row["target"],
                expected="another vertex than the source",
            )
        bandwidth = self._quantity(row, "bandwidth", "bandwidth")
        if not bandwidth > 0:
            raise InputError(
                "must be more than 0",
                where="bandwidth",
                got=row["bandwidth"],
                expected=_NEEDED_EXAMPLES["bandwidth"],
            )
        latency = self._quantity(row, "latency", "duration")
        there = ListedLink(source, target, bandwidth, latency)
        back = ListedLink(target, source, bandwidth, latency)
        return (there, back) if both else (there,)

    def _vertex(self, row: Mapping[str, Any], key: str) -> int:
        """Return a vertex's number; a name that is new becomes a switch."""
        value = row[key]
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < self.num_devices:
                expected = f"device numbers 0 to {self.num_devices - 1}"
                raise InputError(
                    "no such device", where=key, got=value, expected=expected
                )
            return value
        _check_name(key, value, _NEEDED_EXAMPLES[key])
        return self.numbers.setdefault(value, len(self.numbers))

    def _quantity(self, row: Mapping[str, Any], key: str, dimension: str) -> float:
        """Parse a quantity; equal texts once, as parsing is slow."""
        text = row[key]
        known = (str(text), dimension) if isinstance(text, str) else None
        if known in self.quantities:
            return self.quantities[known]
        with located(key):
            value = parse_quantity(text, dimension)
        if known:
            self.quantities[known] = value
        return value


def _refuse_twice(
    row: Mapping[str, Any], before: tuple[str, ListedLink] | None
) -> None:
    """Refuse a link between two that are joined already."""
    if before is not None:
        raise InputError(
            f"joins the same two as {before[0]}",
            got=f"{row['source']} to {row['target']}",
            expected="one link per pair and direction",
            hint="give one link the bandwidth of all of them together",
        )


def _check_name(where: str, name: object, expected: str) -> None:
    """Refuse what reports cannot write out: control characters, long texts."""
    if not isinstance(name, str) or not name.strip():
        raise InputError("not a name", where=where, got=name, expected=expected)
    if not name.isprintable() or len(name) > MAX_NAME:
        raise InputError(
            "not a name that can be written out",
            where=where,
            got=name,
            expected=f"one line of at most {MAX_NAME} readable characters, "
            'e.g. "leaf 0"',
        )


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise InputError(
                "unknown setting",
                where=key,
                expected="one of " + ", ".join(known),
                hint=f'did you mean "{close[0]}"?' if close else "",
            )


def _refuse_too_many(count: int) -> None:
    if count > MAX_CUSTOM_DEVICES:
        expected = f"at most {MAX_CUSTOM_DEVICES} devices in a custom network"
        raise InputError(
            "too many devices", where="devices", got=count, expected=expected
        )
