"""The tables of docs/published.md: replays, searches of `make published`, and errors.

``python -m tests.nestsim.published_page results/published`` writes them; without a
folder what searches found stays as the page has it.
"""

import csv
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

from nestsim.evaluate.job import simulate_job
from nestsim.scenario.load import load_scenario

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "published.md"
SCENARIOS = ROOT / "scenarios"
BESIDE = ("deepseek_v3_2048_h800",)
"""Published runs among the scenarios that show what can be described."""

FILES = sorted(
    (
        *(SCENARIOS / "published").glob("*.toml"),
        *(SCENARIOS / f"{stem}.toml" for stem in BESIDE),
    ),
    key=lambda path: path.stem,
)
PLANNERS = ("manual", "nest")
_SHORT = (
    ("virtual_pipeline_model_parallel_size", "vpp"),
    ("context_parallel_size", "cp"),
    ("expert_model_parallel_size", "ep"),
)
REPLAYED = 5
"""Cells of a row that are of the replay of the published plan."""
NOT_SEARCHED = "-"
GROUPS = (
    ("those that were searched, to 2025", (True,)),
    ("set-ups of 2024 to 2026, and PaLM's", (False,)),
    ("all", (True, False)),
)
"""Words of a row of the table of errors, and whether its runs were searched."""


def words(path: Path) -> str:
    """Return the comment at the top of a scenario as one line."""
    _, _, text = path.read_text(encoding="utf-8").partition("\n")  # behind #:schema
    head = text.split("\nname = ")[0]
    return " ".join(head.replace("#", " ").split())


def measured(path: Path) -> float:
    """Return the published time of a step, the first one that is given [s]."""
    time = re.search(r"([0-9.]+) s for a step", words(path))
    assert time is not None
    return float(time[1])


def plan_words(row: Mapping[str, str]) -> str:
    """Write a plan of ``comparison.csv`` in one cell."""
    sizes = [
        f"tp{row['tensor_model_parallel_size']}",
        f"pp{row['pipeline_model_parallel_size']}",
        *(f"{name}{row[field]}" for field, name in _SHORT if row[field] != "1"),
        f"dp{row['data_parallel_size']}",
        f"b{row['micro_batch_size']}",
    ]
    recompute = "" if row["recompute"] == "none" else f", {row['recompute']}"
    return " ".join(sizes) + recompute


def published_cells(path: Path) -> list[str]:
    """Return the cells about the published plan.

    Returns
    -------
    list[str]
        Measured time, predicted time, the error, the 80 % band that a report prints,
        and whether the measured time is in it.
    """
    result = simulate_job(load_scenario(path))
    (candidate,) = result.candidates
    assert result.band is not None
    time, published = candidate.simulated.iteration_time, measured(path)
    low, high = (factor * time for factor in result.band)
    mark = "*" if candidate.verdict.kind == "infeasible" else ""
    return [
        f"{published:.4g}",
        f"{time:.4g}{mark}",
        f"{100.0 * (time / published - 1.0):+.1f} %",
        f"{low:.4g} to {high:.4g}",
        "yes" if low <= published <= high else "no",
    ]


def rows() -> dict[str, list[str]]:
    """Return the cells of the page's table by scenario."""
    lines = re.findall(r"^\| `([^`]+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.M)
    return {stem: cells.split(" | ") for stem, cells in lines}


def searched_cells(folder: Path) -> dict[str, list[str]]:
    """Return time and plan of each planner, by the stem of a scenario's file."""
    with (folder / "comparison.csv").open(encoding="utf-8") as stream:
        compared = {
            (row["scenario"], row["planner"]): row for row in csv.DictReader(stream)
        }
    cells: dict[str, list[str]] = {}
    for path in FILES:
        cells[path.stem] = []
        for planner in PLANNERS:
            row = compared.get((load_scenario(path).name, planner), {})
            time = row.get("simulated_iteration_time_s")
            both = (
                [f"{float(time):.4g}", plan_words(row)] if time else [NOT_SEARCHED] * 2
            )
            cells[path.stem] += both
    return cells


def table_rows(searched: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the cells of the table, with the published plans replayed anew."""
    nothing = [NOT_SEARCHED] * 2 * len(PLANNERS)
    return {
        path.stem: [*published_cells(path), *searched.get(path.stem, nothing)]
        for path in FILES
    }


def error_lines(table: Mapping[str, list[str]]) -> str:
    """Return the lines that say how far off the rows of the table are."""
    lines = []
    for name, kinds in GROUPS:
        of = [row for row in table.values() if (row[REPLAYED] != NOT_SEARCHED) in kinds]
        errors = [abs(float(row[2].removesuffix(" %"))) for row in of]
        figures = [f"{f(errors):.1f} %" for f in (median, fmean, max)]
        inside = sum(row[4] == "yes" for row in of)
        lines.append(f"| {name} | {len(of)} | {' | '.join(figures)} | {inside} |\n")
    return "".join(lines)


def with_tables(page: str, table: Mapping[str, list[str]]) -> str:
    """Return the page with the rows of both tables."""
    plans = "".join(f"| `{key}` | {' | '.join(row)} |\n" for key, row in table.items())
    for marker, lines in (("published", plans), ("errors", error_lines(table))):
        pattern = rf"(<!-- {marker} -->\n\|.*\n\|.*\n)[^<]*(<!-- end -->)"
        page, count = re.subn(pattern, rf"\g<1>{lines}\g<2>", page)
        assert count == 1, marker
    return page


if __name__ == "__main__":
    known = (
        searched_cells(Path(sys.argv[1]))
        if sys.argv[1:]
        else {stem: cells[REPLAYED:] for stem, cells in rows().items()}
    )
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), table_rows(known)), "utf-8")
