"""The folder of a sweep: its store, and everything that is made of it at the end.

Beside ``sweep.sqlite``, which grows point by point: ``scenario.toml`` (a copy of the
input), ``points.csv``, ``points.parquet``, ``result.json``, a picture of
sweeps over one or two settings (``sweep.png``), and ``manifest.json`` with the hash of
each. None of these depends on the number of workers, or on interruptions.
"""

import hashlib
from typing import Any

from nestsim.report.destination import Writer
from nestsim.report.json import dump_json
from nestsim.report.sweep import sweep_json
from nestsim.report.sweep_figure import draw_sweep, is_drawn
from nestsim.sweep.job import STORE, ScenarioSweepResult
from nestsim.sweep.table import write_csv, write_parquet

FILES = ("scenario.toml", "points.csv", "points.parquet", "result.json", "sweep.png")
"""Files of the folder, but the store and the manifest."""


def sweep_writers(
    result: ScenarioSweepResult, scenario_bytes: bytes
) -> dict[str, Writer]:
    """Return what writes each file that is made of the points, by name."""
    writers: dict[str, Writer] = {
        "scenario.toml": lambda path: path.write_bytes(scenario_bytes),
        "points.csv": lambda path: write_csv(result.outcomes, path),
        "points.parquet": lambda path: write_parquet(result.outcomes, path),
        "result.json": lambda path: path.write_text(
            dump_json(sweep_json(result)), encoding="utf-8"
        ),
    }
    if is_drawn(result):
        writers["sweep.png"] = lambda path: draw_sweep(result, path)
    return writers


def sweep_facts(result: ScenarioSweepResult, scenario_bytes: bytes) -> dict[str, Any]:
    """Return what the manifest says beside the hash of each file."""
    return {
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "store": STORE,
    }
