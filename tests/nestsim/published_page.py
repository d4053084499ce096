"""The table of docs/published.md, from the folder that `make published` writes.

``python -m tests.nestsim.published_page results/published`` prints it.
"""

import csv
import re
import sys
from pathlib import Path

from nestsim.evaluate.job import simulate_job
from nestsim.scenario.load import load_scenario

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios" / "published").glob("*.toml"))
PLANNERS = ("manual", "nest")
_SHORT = (
    ("virtual_pipeline_model_parallel_size", "vpp"),
    ("context_parallel_size", "cp"),
    ("expert_model_parallel_size", "ep"),
)


def words(path: Path) -> str:
    """Return the comment at the top of a scenario as one line."""
    head = path.read_text(encoding="utf-8").split("\nname = ")[0]
    return " ".join(head.replace("#", " ").split())


def measured(path: Path) -> float:
    """Return the published time of a step, the first one that is given [s]."""
    found = re.search(r"([0-9.]+) s for a step", words(path))
    assert found is not None
    return float(found[1])


def plan_words(row: dict[str, str]) -> str:
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
    """Return what a row says of the published plan: measured, predicted, the error."""
    candidate = simulate_job(load_scenario(path)).candidate
    time = candidate.simulated.iteration_time
    mark = "*" if candidate.verdict.kind == "infeasible" else ""
    error = time / measured(path) - 1.0
    return [f"{measured(path):.4g}", f"{time:.4g}{mark}", f"{100.0 * error:+.1f} %"]


def print_table(folder: Path) -> None:
    """Print the rows of the page's table."""
    with (folder / "comparison.csv").open(encoding="utf-8") as stream:
        rows = {
            (row["scenario"], row["planner"]): row for row in csv.DictReader(stream)
        }
    for path in FILES:
        cells = [f"`{path.stem}`", *published_cells(path)]
        for planner in PLANNERS:
            row = rows[load_scenario(path).name, planner]
            time = row["simulated_iteration_time_s"]
            cells += [f"{float(time):.4g}", plan_words(row)] if time else ["-", "-"]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    print_table(Path(sys.argv[1]))
