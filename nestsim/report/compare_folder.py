"""The folder of a comparison: what it found, and until then what it has so far.

Holds a copy of each scenario, ``comparison.csv``, ``comparison.json``,
``comparison.png``, ``report.txt``, ``search_times.csv`` and ``manifest.json`` with the
hash of each file that is the same on every run. While a comparison is under way, and
after it was killed, it holds the store of finished points that the same comparison goes
on from.
"""

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from nestsim.compare.record import Comparison
from nestsim.report.compare_data import (
    comparison_csv,
    comparison_json,
    search_times_csv,
)
from nestsim.report.compare_text import print_comparison
from nestsim.report.destination import Writer, writer_of
from nestsim.report.json import dump_json
from nestsim.scenario.settings import Scenario

STORE = "sweep.sqlite"
"""Finished points of a comparison that is not finished."""

TIMES = "search_times.csv"
"""The file that differs from run to run."""

_FILES = ("comparison.csv", "comparison.json", "comparison.png", "report.txt", TIMES)
_TEXT_WIDTH = 100


def comparison_files(scenarios: Sequence[Scenario]) -> list[str]:
    """Return the names of all files of the folder, but the store and the manifest."""
    return [*scenario_copies(scenarios), *_FILES]


def comparison_writers(
    comparison: Comparison, scenarios: Sequence[Scenario]
) -> dict[str, Writer]:
    """Return what writes each file, by name."""
    from nestsim.report.compare_figure import draw_comparison

    data = comparison_json(comparison, with_times=False)
    texts: dict[str, str | bytes] = {
        **scenario_copies(scenarios),
        "comparison.csv": comparison_csv(comparison),
        "comparison.json": dump_json(data),
        "report.txt": _report(comparison),
        TIMES: search_times_csv(comparison),
    }
    return {
        **{name: writer_of(text) for name, text in texts.items()},
        "comparison.png": lambda path: draw_comparison(comparison, path),
    }


def comparison_facts(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """Return what the manifest says beside the hash of each file."""
    copies = scenario_copies(scenarios)
    names = {n: one.name for n, one in zip(copies, scenarios, strict=True)}
    return {"scenarios": names}


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
