"""The folder of a comparison: what it found, and until then what it has so far.

Holds a copy of each scenario, ``comparison.csv``, ``comparison.json``,
``comparison.png``, ``report.txt``, ``search_times.csv`` and ``manifest.json`` with the
hash of each file that is the same on every run. While a comparison is under way, and
after it was killed, it holds the store of finished points that the same comparison goes
on from.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from nestsim.compare.record import Comparison
from nestsim.report.compare_data import (
    comparison_csv,
    comparison_json,
    search_times_csv,
)
from nestsim.report.compare_text import print_comparison
from nestsim.report.folder import MANIFEST, _listed_files, check_target
from nestsim.report.json import dump_json
from nestsim.scenario.settings import Scenario
from nestsim.sweep.store import Store

STORE = "sweep.sqlite"
"""Finished points of a comparison that is not finished."""

_PARTS = (STORE, f"{STORE}-journal")
"""What SQLite may leave behind when it is killed."""

_TIMES = "search_times.csv"
_TEXT_WIDTH = 100


def open_store(
    folder: Path, facts: Mapping[str, str], *, force: bool, restart: bool
) -> Store:
    """Make the folder ours and open its store of finished points.

    Parameters
    ----------
    folder
        Where to; parents are made.
    facts
        What tells this comparison from others, see `Store`.
    force
        Use a folder that holds files of other origin.
    restart
        Forget what is there of a comparison that was interrupted.

    Returns
    -------
    Store
        To be closed before the results are written.

    Raises
    ------
    InputError
        If the folder or the store is of other origin.
    OSError
        If the folder cannot be written.
    """
    check_target(folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = _listed_files(folder) - {MANIFEST}
    if not earlier.issuperset(_PARTS):
        _write_manifest(folder, dict.fromkeys(sorted({*earlier, *_PARTS})), {})
    return Store(folder / STORE, facts, restart=restart)


def write_comparison(
    comparison: Comparison,
    scenarios: Sequence[Scenario],
    folder: Path,
    *,
    figures: bool = True,
) -> None:
    """Write the files, the manifest last, and remove the store and what is outdated.

    Without ``figures``, no picture is drawn, and an earlier one is outdated.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    contents = {
        **scenario_copies(scenarios),
        "comparison.csv": comparison_csv(comparison).encode(),
        "comparison.json": dump_json(
            comparison_json(comparison, with_times=False)
        ).encode(),
        "report.txt": _report(comparison).encode(),
        _TIMES: search_times_csv(comparison).encode(),
    }
    if figures:
        contents["comparison.png"] = _picture(comparison, folder)
    earlier = _listed_files(folder) - {MANIFEST}
    hashes: dict[str, str | None] = {}
    for name, content in contents.items():
        _replace(folder / name, content)
        hashes[name] = hashlib.sha256(content).hexdigest()
    hashes[_TIMES] = None
    names = {
        name: one.name
        for name, one in zip(scenario_copies(scenarios), scenarios, strict=True)
    }
    _write_manifest(folder, hashes, names)
    for name in sorted(earlier - contents.keys()):
        (folder / name).unlink(missing_ok=True)


def scenario_copies(scenarios: Sequence[Scenario]) -> dict[str, bytes]:
    """Return the scenario files under different names, as the user wrote them."""
    copies: dict[str, bytes] = {}
    for scenario in scenarios:
        name, number = f"{scenario.path.stem}.toml", 1
        while name in copies:
            number += 1
            name = f"{scenario.path.stem}_{number}.toml"
        copies[name] = scenario.text
    return copies


def _report(comparison: Comparison) -> str:
    """Return the text report as a terminal without colours would show it."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=_TEXT_WIDTH,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    )
    print_comparison(comparison, console, with_times=False)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def _picture(comparison: Comparison, folder: Path) -> bytes:
    from nestsim.report.compare_figure import draw_comparison

    path = folder / ".comparison.partial"
    try:
        draw_comparison(comparison, path)
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def _write_manifest(
    folder: Path, files: Mapping[str, str | None], scenarios: Mapping[str, str]
) -> None:
    manifest = {
        "nestsim": version("nestsim"),
        "scenarios": dict(scenarios),
        "files": dict(files),
    }
    _replace(folder / MANIFEST, dump_json(manifest).encode())


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
