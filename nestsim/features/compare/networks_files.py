"""Files that hold a network, and the scenario that each makes of a base scenario.

A file says its network in one of three ways: a table ``[cluster.network]``, as in a
scenario; a whole scenario, of which the network alone is taken; or the settings of that
table alone, with ``kind`` at the top. In the first and in the last one ``name`` may say
what reports call it; without that it is the file's own name.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestsim.scenario.editing import toml_text
from nestsim.scenario.hardware.described import with_whole_paths
from nestsim.scenario.load import Scenario, scenario_of
from topologies.errors import InputError
from topologies.input_file import parse_toml, read_file
from topologies.short_repr import short_repr

MAX_FILE = 1_000_000
"""Longest file of a network [byte]."""

_EXPECTED = (
    'a table [cluster.network], a whole scenario, or its settings with kind = ".." at '
    "the top"
)
_TABLE = "cluster.network"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFile:
    """A file that holds a network, as the user wrote it."""

    path: Path
    """The file."""

    text: bytes
    """What it says."""

    label: str
    """What reports call the network."""

    network: Mapping[str, Any]
    """Its table [cluster.network]; a file that it names is written with its folder."""

    is_bare: bool
    """Whether the settings of the table stand at the top."""

    __repr__ = short_repr


def read_network_file(path: Path) -> NetworkFile:
    """Read a file that holds a network; its settings are not checked yet.

    Raises
    ------
    InputError
        If it cannot be read, or holds none.
    """
    try:
        text = read_file(path, expected=f"a file with {_EXPECTED}", most_bytes=MAX_FILE)
        return _network_file(path, text, parse_toml(text))
    except InputError as error:
        raise error.at(str(path), ": ") from None


def _network_file(path: Path, text: bytes, document: Mapping[str, Any]) -> NetworkFile:
    is_bare = "kind" in document
    is_scenario = "model" in document
    network: Mapping[str, Any]
    if is_bare:
        network = {key: one for key, one in document.items() if key != "name"}
    else:
        network = _inner_table(document)
        if not is_scenario:
            _refuse_more(document)
    name = path.stem if is_scenario else document.get("name", path.stem)
    if not isinstance(name, str) or not name.strip():
        expected = 'what reports call the network, e.g. "rail, 1:1"'
        raise InputError("is no name", where="name", got=name, expected=expected)
    listed = network.get("path")
    if isinstance(listed, str):
        network = {**network, "path": str(path.parent.absolute() / listed)}
    return NetworkFile(
        path=path, text=text, label=name.strip(), network=network, is_bare=is_bare
    )


def _inner_table(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table [cluster.network] of a file."""
    cluster = document.get("cluster")
    network = cluster.get("network") if isinstance(cluster, dict) else None
    if not isinstance(network, dict):
        listed = ", ".join(sorted(document)) or "nothing"
        raise InputError("holds no network", got=listed, expected=_EXPECTED)
    assert isinstance(cluster, dict)
    if "degraded" in cluster:
        raise InputError(
            "networks are compared as they were built",
            where="cluster.degraded",
            expected="left out",
            hint="nestsim stress compares plans on worse networks",
        )
    return network


def _refuse_more(document: Mapping[str, Any]) -> None:
    """Refuse settings beside the network, which would have no effect."""
    others = [key for key in document if key not in {"name", "cluster"}]
    others += [f"cluster.{key}" for key in document["cluster"] if key != "network"]
    if others:
        raise InputError(
            "is no part of a network, which alone is taken from this file",
            where=others[0],
            expected=f"name and [{_TABLE}] alone, or a whole scenario",
        )


def read_network_files(paths: Sequence[Path]) -> tuple[NetworkFile, ...]:
    """Read files that hold networks, at least two, each with another label.

    Raises
    ------
    InputError
        If one is wrong, or two cannot be told apart.
    """
    if len(paths) < 2:
        raise InputError(
            "there is nothing to compare",
            where="--networks",
            got=" ".join(map(str, paths)) or None,
            expected="two or more files, e.g. --networks rail.toml torus.toml",
        )
    files = tuple(read_network_file(path) for path in paths)
    label, times = Counter(file.label for file in files).most_common(1)[0]
    if times > 1:
        raise InputError(
            "networks cannot be told apart",
            where="--networks",
            got=label,
            expected='files of different names, or another name = ".." in each',
        )
    return files


def on_network(base: Scenario, file: NetworkFile) -> Scenario:
    """Return a scenario with another network, all else the same.

    Raises
    ------
    InputError
        If the network is wrong, or does not join as many devices.
    """
    document = base.document()
    cluster = dict(document["cluster"])
    if "degraded" in cluster:
        raise InputError(
            "networks are compared as they were built",
            where=f"{base.path}: cluster.degraded",
            expected="left out: its names are those of one network's links",
        )
    # The scenario's own number would be checked against the network: here, below.
    cluster.pop("num_devices", None)
    document |= {
        "cluster": {
            **cluster,
            "network": with_whole_paths(file.network, file.path.parent),
        }
    }
    try:
        scenario = scenario_of(document, base.path, toml_text(document).encode())
    except InputError as error:
        raise _in_file(error, file) from None
    found = scenario.network_spec.num_devices
    asked = base.network_spec.num_devices
    if found != asked:
        raise InputError(
            "does not join as many devices as the scenario has",
            where=f"{file.path}: {'kind' if file.is_bare else _TABLE}",
            got=f"{found} devices",
            expected=f"{asked}, those of {base.path}",
        )
    return scenario


def _in_file(error: InputError, file: NetworkFile) -> InputError:
    """Return a mistake in a network with the file and the setting as it is there."""
    where = error.where
    if file.is_bare and where.startswith(f"{_TABLE}."):
        where = where.removeprefix(f"{_TABLE}.")
    named = InputError(
        error.problem,
        got=error.got,
        expected=error.expected,
        hint=error.hint,
        others=error.others,
        num_unlisted=error.num_unlisted,
        where=where,
    )
    return named.at(str(file.path), ": ")
