"""The folder of a sweep: its store, and everything that is made of it at the end.

Beside ``sweep.sqlite``, which grows point by point: ``scenario.toml`` (a copy of the
input), ``points.csv``, ``points.parquet``, ``result.json``, a picture of
sweeps over one or two settings (``sweep.png``), and ``manifest.json`` with the hash of
each. None of these depends on the number of workers, or on interruptions.
"""

import hashlib
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from nestsim.report.folder import MANIFEST
from nestsim.report.json import dump_json
from nestsim.report.sweep import sweep_json
from nestsim.report.sweep_figure import draw_sweep, is_drawn
from nestsim.sweep.job import STORE, ScenarioSweepResult
from nestsim.sweep.table import write_csv, write_parquet
from topologies.errors import InputError


def check_sweep_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder that a sweep may not be written into, before hours of work.

    Raises
    ------
    InputError
        If it is not a folder, or holds files and no store of a sweep among them.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError("is not a folder", got=str(folder), expected="a folder")
    if force or not folder.exists() or (folder / STORE).exists():
        return
    if foreign := sorted(path.name for path in folder.iterdir()):
        raise InputError(
            "holds files that are not of a sweep",
            got=f"{folder}: {', '.join(foreign[:3])}",
            expected="a new or empty folder, or one with a sweep to be taken up",
            hint="choose another folder, or add --force to write into this one",
        )


def write_sweep(
    result: ScenarioSweepResult,
    scenario_bytes: bytes,
    folder: Path,
    *,
    figures: bool = True,
) -> None:
    """Write everything that is made of the points, the manifest last.

    Without ``figures``, no picture is drawn, and an earlier one is removed.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    writers: dict[str, Callable[[Path], object]] = {
        "scenario.toml": lambda path: path.write_bytes(scenario_bytes),
        "points.csv": lambda path: write_csv(result.outcomes, path),
        "points.parquet": lambda path: write_parquet(result.outcomes, path),
        "result.json": lambda path: path.write_text(
            dump_json(sweep_json(result)), encoding="utf-8"
        ),
    }
    if figures and is_drawn(result):
        writers["sweep.png"] = lambda path: draw_sweep(result, path)
    else:
        (folder / "sweep.png").unlink(missing_ok=True)
    hashes = {}
    for name, write in writers.items():
        _replace(folder / name, write)
        hashes[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    manifest = {
        "nestsim": version("nestsim"),
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "store": STORE,
        "files": hashes,
    }
    text = dump_json(manifest)
    _replace(folder / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file in one step, so that it is whole or as it was."""
    partial = path.with_stem(f".{path.stem}.{os.getpid()}.partial")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
