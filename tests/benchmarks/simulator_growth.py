"""Measure the replay: the simulator's named figures, and how time and memory grow.

    python -m tests.benchmarks.simulator_growth --output results/bench-simulator

Each run is a process of its own, since peak memory is that of a process, and nothing
that one replay keeps can speed up the next. It imports everything, replays a small job
of the same kind on both engines so that all kernels are compiled and loaded, builds
and prices the plan, and only then takes the time: from the priced plan to the finished
`Replay`, placing the work, flows, folding, the run and the collection of everything
that happened included, and the trace where a case has one written. Seconds are medians
of the runs, megabytes (1e6 bytes) their largest peak, imports and kernels included.
Replays of more than 20 s run once. Events and passes skipped are counted in classes.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.measured import (
    ROOT,
    Row,
    markdown,
    peak_bytes,
    run_apart,
    tell,
)
from tests.benchmarks.simulator_cases import FIGURES, Case, all_cases, warm_up

GRACE = 90.0
"""A process may outlive its limit by this much [s]: imports, compilation, the plan."""

LONG = 20.0
"""A replay that takes longer is not repeated [s]."""

COLUMNS = {
    "case": "case",
    "devices": "devices",
    "pp": "pp",
    "dp": "dp",
    "microbatches": "microbatches",
    "oversubscription": "oversub.",
    "seconds": "seconds",
    "cpu_seconds": "CPU s",
    "most_seconds": "at most",
    "peak_mb": "peak MB",
    "idle_mb": "MB before",
    "most_mb": "at most",
    "runs": "runs",
    "actors": "actors",
    "classes": "classes",
    "events": "events",
    "skipped": "passes skipped",
    "iteration_time": "step [s]",
    "note": "note",
}
FORMATS = {
    "oversubscription": "g",
    "seconds": ".3f",
    "cpu_seconds": ".3f",
    "most_seconds": "g",
    "peak_mb": ",.0f",
    "idle_mb": ",.0f",
    "iteration_time": ".4f",
}
WORDS = {"case", "note"}


def main() -> None:
    """Measure one run in this process, or every case in others."""
    arguments = _arguments()
    if arguments.measure:
        case = all_cases()[arguments.measure]
        replay_warm_up(case)
        if not arguments.compile:
            sys.stdout.write(json.dumps(measure(case)))
        return
    chosen = [case for name, case in all_cases().items() if arguments.only in name]
    if not chosen:
        sys.exit(f"no case has {arguments.only!r} in its name")
    # Compiled in a process that is not measured: compiling takes memory as well.
    subprocess.run([*_command(chosen[0]), "--compile"], cwd=ROOT, check=True)
    rows = []
    for case in chosen:
        is_figure = case.group == FIGURES
        limit = arguments.figure_limit if is_figure else arguments.growth_limit
        rows.append(row(case, limit, arguments.repeats))
        tell(f"{case.name}: {rows[-1]['seconds']:.3f} s {rows[-1]['note']}")
    _write(rows, arguments.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulator_growth", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/bench-simulator"))
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--figure-limit", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--growth-limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def replay_warm_up(case: Case) -> None:
    """Load every kernel of both engines, compiled if need be."""
    small = warm_up(case)
    for engine in ("simpy", "compiled"):
        settings = replace(small.settings, engine=engine)
        measure(replace(small, settings=settings))


def measure(case: Case) -> Row:
    """Replay once in this process, everything warm."""
    from nestsim.lowering.lower import lower_plan
    from nestsim.simulator.replay import replay
    from nestsim.simulator.trace import write_chrome_trace

    network, workload, priced = case.problem()
    idle = peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        work = lower_plan(network, workload, priced, case.settings)
        result = replay(network, work, case.settings)
        if case.with_trace:
            write_chrome_trace(result, Path(folder) / "trace.json")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "peak_mb": peak_bytes() / 1e6,
        "idle_mb": idle / 1e6,
        "actors": result.num_actors,
        "classes": result.num_classes,
        "events": result.num_events,
        "skipped": result.num_skipped,
        "iteration_time": result.iteration_time,
        "planned_time": priced.iteration_time,
    }


def row(case: Case, time_limit: float, repeats: int) -> Row:
    """Measure a case in fresh processes, and sum up what they say."""
    limits = case.limits
    facts: Row = {
        "case": case.name,
        "group": case.group,
        "size": case.size,
        "devices": case.num_devices,
        "pp": case.pp,
        "dp": case.dp,
        "microbatches": case.num_microbatches,
        "oversubscription": case.network.oversubscription,
        "most_seconds": limits.seconds if limits else None,
        "most_mb": limits.megabytes if limits else None,
    }
    runs: list[Row] = []
    while len(runs) < repeats and not (runs and runs[-1]["seconds"] > LONG):
        run = run_apart(_command(case), time_limit + GRACE)
        if isinstance(run, str):
            return {**facts, "seconds": math.nan, "runs": len(runs), "note": run}
        runs.append(run)
    assert len({run["iteration_time"] for run in runs}) == 1, "runs differ"
    medians = {
        key: statistics.median(run[key] for run in runs)
        for key in ("seconds", "cpu_seconds")
    }
    peaks = {key: max(run[key] for run in runs) for key in ("peak_mb", "idle_mb")}
    summary = {**runs[0], **facts, **medians, **peaks, "runs": len(runs)}
    return {**summary, "note": ", ".join(_missed(summary))}


def _missed(summary: Row) -> list[str]:
    """Return the figures that a case does not meet."""
    pairs = (("seconds", "most_seconds"), ("peak_mb", "most_mb"))
    return [
        f"more than {summary[most]:g} {unit}"
        for (key, most), unit in zip(pairs, ("s", "MB"), strict=True)
        if summary[most] is not None and summary[key] > summary[most]
    ]


def _command(case: Case) -> list[str]:
    module = "tests.benchmarks.simulator_growth"
    return [sys.executable, "-m", module, "--measure", case.name]


def _write(rows: list[Row], output: Path) -> None:
    """Write the table to a file and to standard output, and draw the growth."""
    import pandas as pd

    from tests.benchmarks.simulator_plot import draw

    output.mkdir(parents=True, exist_ok=True)
    columns = ["group", "size", *COLUMNS, "planned_time"]
    table = pd.DataFrame(rows).reindex(columns=columns)
    table.to_csv(output / "simulator.csv", index=False)
    text = markdown(rows, COLUMNS, FORMATS, WORDS)
    (output / "simulator.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    growth = table[table["group"] != FIGURES].dropna(subset=["seconds"])
    if not growth.empty:
        draw(growth, output / "simulator_growth.png")


if __name__ == "__main__":
    main()
