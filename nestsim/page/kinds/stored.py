"""Results other than runs from their folders: the JSON that the page is made of.

Nothing is computed anew: the folder's own file holds all that the page shows. Its hash
in the manifest says that it is the one that was written.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nestsim.page.kinds.comparison import comparison_page
from nestsim.page.kinds.goodput import goodput_page
from nestsim.page.kinds.jitter import jitter_page
from nestsim.page.kinds.jobs import jobs_page
from nestsim.page.kinds.networks import networks_page
from nestsim.page.kinds.stress import stress_page
from nestsim.page.kinds.sweep import sweep_page
from nestsim.page.parts import Page
from nestsim.report.destination import MANIFEST
from topologies.errors import InputError
from topologies.input_file import Value, decode, parse_json, read_file

_EXPECTED = "a folder of results that nestsim wrote"

_LONGEST = 1 << 28
"""No file of a folder of results is longer [byte]."""


def _compared_page(data: Any) -> Page:
    """Return the page of a comparison, of planners or of networks."""
    return networks_page(data) if "networks" in data else comparison_page(data)


_KINDS: Mapping[str, tuple[str, Callable[[Any], Page]]] = MappingProxyType(
    {
        "comparison.csv": ("comparison.json", _compared_page),
        "jobs.csv": ("jobs.json", jobs_page),
        "goodput.csv": ("goodput.json", goodput_page),
        "stress.csv": ("stress.json", stress_page),
        "jitter.csv": ("jitter.json", jitter_page),
        "points.csv": ("result.json", sweep_page),
    }
)
"""File that only this kind of results has -> its JSON, and what makes a page of it."""


def stored_page(folder: Path) -> Page | None:
    """Return the page of a folder of results; None if they may be a run's.

    Raises
    ------
    InputError
        If the folder has no manifest, or its results are not as they were written.
    """
    hashes = _read(folder / MANIFEST).get("files", {}).table()
    for marker, (name, page_of) in _KINDS.items():
        if marker in hashes:
            return _page(folder / name, hashes.get(name), page_of)
    return None


def _page(file: Path, digest: object, page_of: Callable[[Any], Page]) -> Page:
    try:
        content = read_file(file, expected=_EXPECTED, most_bytes=_LONGEST)
    except InputError as error:
        raise error.at(str(file), ": ") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(
            "is not as it was written",
            where=str(file),
            expected=f"the file whose hash {MANIFEST} has",
            hint="run the command again",
        )
    try:
        return page_of(parse_json(decode(content), expected=_EXPECTED))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(
            "was written by another version of nestsim",
            where=str(file),
            got=f"{type(error).__name__}: {error}",
            expected="results of this version",
            hint="run the command again",
        ) from None


def _read(file: Path) -> Value:
    try:
        content = read_file(file, expected=_EXPECTED, most_bytes=_LONGEST)
        return Value(parse_json(decode(content), expected=_EXPECTED))
    except InputError as error:
        raise error.at(str(file), ": ") from None
