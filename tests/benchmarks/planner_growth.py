"""Measure the search: the planner's named figures, and how time and memory grow.

    python -m tests.benchmarks.planner_growth --output results/bench-planner

Each run is a process of its own, since peak memory is that of a process, and nothing
that one search keeps can speed up the next. It imports everything, searches a small
job of the same kind so that all kernels are compiled and loaded, and only then takes
the time of one search. Tracing the model and building the network are not timed
either. Seconds are medians of the runs, megabytes (1e6 bytes) their largest peak,
imports and kernels included. Searches of more than 20 s run once. The search is the one
that `nestsim run` makes: it replays plans, and its gap is what it has not proven of the
replayed time. One that meets its time limit says so in the last column.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replayed_time
from nestsim.simulator.system import ReplaySettings
from planner.cost.objective import PricedPlan
from planner.search.best_first import LEFT
from planner.search.replayed.replays import Replays
from planner.search.replayed.search import ReplayedSearch, search_replayed
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from tests.benchmarks.measured import (
    ROOT,
    Row,
    markdown,
    peak_bytes,
    run_apart,
    tell,
)
from tests.benchmarks.planner_cases import FIGURES, Case, all_cases, warm_up
from topologies import Network

GRACE = 90.0
"""A process may outlive its search's limit by this much [s]: imports, compilation,
one step of the search."""

LONG = 20.0
"""A search that takes longer is not repeated [s]."""

COLUMNS = {
    "case": "case",
    "layers": "layers",
    "devices": "devices",
    "levels": "levels",
    "configurations": "configurations",
    "opened": "opened",
    "replays": "replays",
    "seconds": "seconds",
    "cpu_seconds": "CPU s",
    "work": "million units",
    "runs": "runs",
    "peak_mb": "peak MB",
    "idle_mb": "MB before",
    "gap": "gap %",
    "iteration_time": "best [s]",
    "plan": "best plan",
    "note": "note",
}
FORMATS = {
    "seconds": ".3f",
    "cpu_seconds": ".3f",
    "work": ".2f",
    "peak_mb": ",.0f",
    "idle_mb": ",.0f",
    "gap": ".2f",
    "iteration_time": ".4f",
}
WORDS = {"case", "plan", "note"}


def main() -> None:
    """Measure one run in this process, or every case in others."""
    arguments = _arguments()
    if arguments.measure:
        case = all_cases()[arguments.measure]
        search_warm_up(case)
        if not arguments.compile:
            sys.stdout.write(json.dumps(measure(case, arguments.figure_limit)))
        return
    limits = {FIGURES: arguments.figure_limit}
    chosen = [case for name, case in all_cases().items() if arguments.only in name]
    if not chosen:
        sys.exit(f"no case has {arguments.only!r} in its name")
    # Compiled in processes that are not measured: compiling takes memory as well.
    for case in {case.model.family: case for case in chosen}.values():
        subprocess.run([*_command(case), "--compile"], cwd=ROOT, check=True)
    rows = []
    for case in chosen:
        limit = limits.get(case.group, arguments.growth_limit)
        rows.append(row(case, limit, arguments.repeats))
        tell(f"{case.name}: {rows[-1]['seconds']:.2f} s {rows[-1]['note']}")
    _write(rows, arguments.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="planner_growth", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/bench-planner"))
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--figure-limit", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--growth-limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def search_warm_up(case: Case) -> None:
    """Load every kernel, compiled if need be, and trace the model."""
    replayed_search(*warm_up(case).problem(None))


def replayed_search(
    network: Network, workload: Workload, spec: SearchSpec
) -> ReplayedSearch:
    """Search for the fastest replay."""
    settings = ReplaySettings()

    def judge(priced: PricedPlan, cutoff: float) -> float:
        work = lower_plan(network, workload, priced, settings, memory=False)
        return replayed_time(network, work, settings, cutoff=cutoff)

    return search_replayed(network, workload, spec, Replays(judge=judge))


def measure(case: Case, time_limit: float) -> Row:
    """Search once in this process, everything warm."""
    from nestsim.document.wording import plan_label

    network, workload, spec = case.problem(time_limit)
    idle = peak_bytes()
    wall, cpu = time.perf_counter(), time.process_time()
    result = replayed_search(network, workload, spec)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_bytes()
    best = result.plans[0] if result.plans else None
    iteration_time = best.time if best else math.nan
    gap = iteration_time / result.lower_bound - 1
    left = result.statistics.get(LEFT, 0)
    return {
        "configurations": result.statistics["configurations"],
        "opened": result.statistics.get("configurations opened", 0),
        "replays": result.statistics.get("plans replayed", 0),
        "seconds": wall,
        "cpu_seconds": cpu,
        "work": result.spent.work / 1e6,
        "peak_mb": peak / 1e6,
        "idle_mb": idle / 1e6,
        "gap": 100 * gap,
        "iteration_time": iteration_time,
        "plan": plan_label(best.priced.plan) if best else "",
        "left": left,
        "stopped": result.spent.is_stopped,
    }


def row(case: Case, time_limit: float, repeats: int) -> Row:
    """Measure a case in fresh processes, and sum up what they say."""
    facts = {
        "case": case.name,
        "group": case.group,
        "layers": case.model.num_layers,
        "devices": case.network.num_devices,
        "levels": case.levels,
        "note": "",
    }
    runs: list[Row] = []
    while len(runs) < repeats and not (runs and runs[-1]["seconds"] > LONG):
        run = _run(case, time_limit)
        if isinstance(run, str):
            return {**facts, "seconds": math.nan, "runs": len(runs), "note": run}
        runs.append(run)
    last = max(runs, key=lambda run: bool(run["stopped"]))
    if last["stopped"]:
        facts["note"] = f"stopped at {time_limit:g} s, {last['left']:,} left"
    medians = {
        key: statistics.median(run[key] for run in runs)
        for key in ("seconds", "cpu_seconds")
    }
    peaks = {key: max(run[key] for run in runs) for key in ("peak_mb", "idle_mb")}
    return {**last, **facts, **medians, **peaks, "runs": len(runs)}


def _run(case: Case, time_limit: float) -> Row | str:
    """Measure once in a process of its own; a word on why where there is no result."""
    command = [*_command(case), "--figure-limit", str(time_limit)]
    return run_apart(command, 2 * time_limit + GRACE)


def _command(case: Case) -> list[str]:
    module = "tests.benchmarks.planner_growth"
    return [sys.executable, "-m", module, "--measure", case.name]


def _write(rows: list[Row], output: Path) -> None:
    """Write the table to a file and to standard output, and draw the growth."""
    import pandas as pd

    from tests.benchmarks.planner_plot import draw

    output.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows).reindex(columns=["group", *COLUMNS, "stopped"])
    table.to_csv(output / "planner.csv", index=False)
    text = markdown(rows, COLUMNS, FORMATS, WORDS)
    (output / "planner.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    growth = table[table["group"] != FIGURES]
    if not growth["seconds"].dropna().empty:
        draw(growth, output / "planner_growth.png")


if __name__ == "__main__":
    main()
