"""``python -m tests.regret``: how far the answers are from the fastest replay."""

import argparse
import csv
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nestsim.features.sweep.command import EXECUTORS, chosen_executor
from nestsim.features.sweep.executors.processes import Processes
from nestsim.features.sweep.executors.protocol import Evaluate
from tests.docs.made import markdown_table
from tests.regret.bounds import hunt
from tests.regret.measuring import RegretTask, Row, rows_of
from tests.regret.scenarios import MOST_DEVICES, draw
from topologies.errors import InputError

NEEDS_A_LOOK = 0.01
"""Regrets above this are listed."""

LONG = 60.0
"""And searches that take longer [s]."""


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.regret",
        description="Search random realistic scenarios for the plan that replays "
        "fastest, replay other plans of each, and compare.",
    )
    parser.add_argument("--scenarios", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--workers", type=int, metavar="N", help="default: 1")
    parser.add_argument("--executor", choices=EXECUTORS, default=EXECUTORS[0])
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of --executor dask")
    parser.add_argument("--others", type=int, default=300, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="of CPU, for the other plans"
    )
    parser.add_argument("--most-devices", type=int, default=MOST_DEVICES, metavar="N")
    parser.add_argument(
        "--show", action="store_true", help="print the scenario of the seed, and end"
    )
    parser.add_argument(
        "--bounds",
        type=int,
        default=0,
        metavar="N",
        help="hold the bounds of N random plans of small jobs against their replays",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the rows that DIR has"
    )
    parser.add_argument(
        *("--output", "-o"), type=Path, default=Path("results/regret"), metavar="DIR"
    )
    return parser.parse_args()


def main() -> int:
    """Measure scenarios, and return 1 if anything is as it must never be."""
    asked = _asked()
    if asked.show:
        sys.stdout.write(draw(asked.seed, most_devices=asked.most_devices).text)
        return 0
    if asked.bounds:
        hunted = hunt(asked.bounds, asked.seed)
        sys.stdout.write("\n".join([*hunted.lines(), ""]))
        return 1 if hunted.above else 0
    asked.output.mkdir(parents=True, exist_ok=True)
    table = asked.output / "regret.csv"
    rows = rows_of(table) if asked.resume else []
    left = wanted(asked.seed, asked.scenarios, rows)
    with table.open("a" if rows else "w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in _rows(asked, left):
            values = row.values()
            if writer is None:
                writer = csv.DictWriter(file, list(values))
                if not rows:
                    writer.writeheader()
            writer.writerow(values)
            file.flush()
            sys.stdout.write(f"{line(row)}\n")
            sys.stdout.flush()
            rows.append(row)
    text = summary(sorted(rows, key=lambda row: row.seed))
    (asked.output / "summary.txt").write_text(text, encoding="utf-8")
    page = asked.output / "regret.md"
    page.write_text(f"{page_table(rows)}\n", encoding="utf-8")
    sys.stdout.write(f"\n{text}\n{page} is the table of docs/search.md\n")
    return 1 if any(row.faults for row in rows) else 0


def wanted(seed: int, scenarios: int, rows: list[Row]) -> list[int]:
    """Return the seeds that are asked for and that no row is of yet."""
    done = {row.seed for row in rows}
    return [number for number in range(seed, seed + scenarios) if number not in done]


def _rows(asked: argparse.Namespace, seeds: list[int]) -> Iterator[Row]:
    """Yield what comes of each scenario, as it comes."""
    task = RegretTask(asked.most_devices, asked.others, asked.seconds)
    jobs = [(seed, {"seed": seed}) for seed in seeds]
    chosen = (asked.executor, asked.scheduler, asked.workers)
    with chosen_executor(*chosen, quiet=False) as given:
        executor: Any = given["executor"] or Processes(asked.workers or 1)
        for answer in executor.answers(jobs, Evaluate(task, None)):
            if answer.row is None:
                raise InputError(answer.reason, where=f"seed {answer.number}")
            yield Row(**answer.row)


def line(row: Row) -> str:
    """Return a scenario's line of the table."""
    stopped = ", stopped" if row.stopped else ""
    note = f" FAULT: {'; '.join(row.faults)}" if row.faults else ""
    return (
        f"{row.scenario:38.38} {row.preset:13} {row.network:26.26} "
        f"{row.answer:9.4g} s, other {row.best_other:9.4g} s {row.best_source:7} "
        f"regret {row.regret:6.2%} gap {row.proven_gap:6.2%} "
        f"bound/replay {row.tightness:.3f} {row.cpu_seconds:5.1f} s "
        f"{row.replays:4} replays, {row.others:3} others{stopped}{note}"
    )


def summary(rows: list[Row]) -> str:
    """Return regrets by preset, and the scenarios that somebody should look at."""
    lines = [
        f"{'preset':15} scenarios median regret   p90 worst | proven median gap worst"
        " | CPU s: median worst"
    ]
    presets = dict.fromkeys(row.preset for row in rows)
    for preset in (*sorted(presets), "all"):
        some = [row for row in rows if preset in (row.preset, "all")]
        lines.append(_preset_line(preset, some))
    for what, chosen in (
        ("faults", [row for row in rows if row.faults]),
        (
            f"regret above {NEEDS_A_LOOK:.0%}",
            [row for row in rows if row.regret > NEEDS_A_LOOK],
        ),
        (
            f"longer than {LONG:g} s of CPU",
            [row for row in rows if row.cpu_seconds > LONG],
        ),
        ("stopped", [row for row in rows if row.stopped]),
        ("no plan", [row for row in rows if not row.answer_plan]),
    ):
        lines += ["", f"{what}: {len(chosen)}", *(_details(row) for row in chosen)]
    return "\n".join(lines) + "\n"


HEAD = (
    *("preset", "scenarios", "regret: median", "p90", "worst", "gap: median", "worst"),
    *("replays: median", "most", "CPU s: median", "most"),
)
"""What the columns of the page's table are."""


def page_table(rows: list[Row]) -> str:
    """Return regrets by preset as docs/search.md shows them."""
    cells = []
    for preset in (*sorted({row.preset for row in rows}), "all"):
        some = [row for row in rows if preset in (row.preset, "all")]
        planned = [row for row in some if row.answer_plan]
        if not planned:
            continue
        regrets = sorted(row.regret for row in planned)
        gaps = [row.proven_gap for row in planned]
        replays = [row.replays for row in some]
        times = [row.cpu_seconds for row in some]
        p90 = regrets[int(0.9 * (len(regrets) - 1))]
        cells.append(
            [
                preset if preset == "all" else f"`{preset}`",
                f"{len(some)}",
                *map(_share, (statistics.median(regrets), p90, regrets[-1])),
                *map(_share, (statistics.median(gaps), max(gaps))),
                *(f"{statistics.median(replays):,.0f}", f"{max(replays):,}"),
                *(f"{statistics.median(times):.1f}", f"{max(times):.0f}"),
            ]
        )
    return markdown_table(HEAD, cells)


def _share(number: float) -> str:
    return "0" if number < 5e-4 else f"{100.0 * number:.1f} %"


def _preset_line(preset: str, rows: list[Row]) -> str:
    regrets = sorted(row.regret for row in rows if row.answer_plan)
    gaps = sorted(row.proven_gap for row in rows if row.answer_plan)
    times = sorted(row.cpu_seconds for row in rows)
    if not regrets:
        return f"{preset:15} {len(rows):9} no plan"
    proven = sum(not row.stopped for row in rows)
    return (
        f"{preset:15} {len(rows):9} {statistics.median(regrets):13.2%} "
        f"{regrets[int(0.9 * (len(regrets) - 1))]:5.2%} {regrets[-1]:5.2%} | "
        f"{proven:6} {statistics.median(gaps):10.2%} {gaps[-1]:5.1%} | "
        f"{statistics.median(times):13.1f} {times[-1]:5.1f}"
    )


def _details(row: Row) -> str:
    found = [f"  {line(row)}", f"      answer: {row.answer_plan or 'none'}"]
    if row.regret > 0.0 or row.faults:
        found.append(f"      other: {row.other_plan}")
    if row.worst_bound > 1.0:
        found.append(f"      bound {row.worst_bound:.6f} of: {row.worst_plan}")
    return "\n".join(found)


if __name__ == "__main__":
    sys.exit(main())
