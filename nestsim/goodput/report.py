"""Goodput as text: what a day gives, what took the rest, and what to change."""

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.goodput.failures import GIVEN
from nestsim.goodput.results import (
    DAY,
    GoodputFindings,
    GoodputResult,
    SeedBand,
)
from nestsim.report.tables import add_row, facts, new_table, print_line, print_section
from nestsim.report.wording import amount, long_time, number, percent, plural
from topologies.units import format_bandwidth, format_duration, format_size

NAMES: Mapping[str, str] = {
    "device": "devices",
    "node": "rest of nodes",
    "switch": "switches",
    "link": "cables",
    "fabric": "fabric, per device",
    "job": "the job, whatever its size",
    "software": "software, per device",
}
"""Component -> what reports call it."""


def print_goodput(result: GoodputResult, console: Console) -> None:
    """Print the answer, what fails, where the time goes, and the intervals."""
    found = result.found
    if found is None:
        print_line(
            console, Text("NO PLAN", style="bold red"), f"{result.scenario_name}"
        )
        console.print(Text(f"  {result.shortfall}"), highlight=False)
        return
    print_line(console, Text(headline(found), style="bold green"), result.scenario_name)
    for sentence in sentences(found):
        console.print(Text(f"  {sentence}"), highlight=False)
    console.print()
    console.print(facts(job_facts(result)))
    print_section(console, "What fails", _failure_table(found))
    for source in sources(found):
        console.print(Text(f"Published: {source}."), highlight=False)
    print_section(console, "Where the time goes", _cause_table(found))
    print_section(console, "How often to write checkpoints", _interval_table(found))


def headline(found: GoodputFindings) -> str:
    """Say what the job trains, of what it would without failures."""
    return f"GOODPUT {percent(found.goodput.p50)}"


def sentences(found: GoodputFindings) -> list[str]:
    """Say what a day gives, what failures do, and what would help."""
    day, share = found.tokens_per_day, found.goodput
    said = [
        f"{amount(day.p50)} tokens a day ({amount(day.p5)} to {amount(day.p95)} in 90 "
        f"of 100 runs), {percent(share.p50)} ({percent(share.p5)} to "
        f"{percent(share.p95)}) of {amount(found.healthy.tokens_per_day)} without "
        "failures."
    ]
    if math.isinf(found.mtti):
        said.append("No failure interrupts the job.")
    else:
        said.append(
            f"The job is interrupted every {long_time(found.mtti)} on average; "
            f"{_main_cause(found)}"
        )
    said += [interval_sentence(found), *_spares_sentences(found)]
    if any(kind.shape != 1.0 for kind in found.kinds):
        said.append("Closed forms take rates as constant; the runs do not.")
    return [one for one in said if one]


def _main_cause(found: GoodputFindings) -> str:
    shares = {name: band.mean for name, band in found.shares().items()}
    del shares["training"]
    cause = max(shares, key=lambda name: shares[name])
    name = "throughput of missing replicas" if cause == "degraded" else cause
    return f"the largest loss is {name}, {percent(shares[cause])} of the time."


def interval_sentence(found: GoodputFindings) -> str:
    """Say whether another interval between checkpoints would give more."""
    if math.isinf(found.best):
        return ""
    interval = found.habits.interval
    used = f"{long_time(interval)} ({_written(found)})"
    if found.interval_is_given:
        expected = percent(found.cycle.goodput(interval))
        best = percent(found.cycle.goodput(found.best))
        return (
            f"Checkpoints every {used}; every {long_time(found.best)} would be best: "
            f"{best} in place of {expected} by the closed form."
        )
    others = f"Young {long_time(found.young)}, Daly {long_time(found.daly)}"
    if interval > found.best and interval == found.least_interval:
        return (
            f"Checkpoints every {used}, the least that goodput.checkpoint."
            f"least_interval allows; the closed form would have one every "
            f"{long_time(found.best)} ({others})."
        )
    why = "which is best by the closed form"
    if found.best <= found.healthy.step_time:
        why = "after each step; closed forms would have more"
    return f"Checkpoints every {used}, {why} ({others})."


def _written(found: GoodputFindings) -> str:
    return f"{format_size(found.checkpoint_bytes_per_day)} a day"


def _spares_sentences(found: GoodputFindings) -> list[str]:
    if not any(kind.breaks_node for kind in found.kinds):
        return []
    needed = _enough(found.spares_needed)
    repair = long_time(found.habits.repair)
    if found.habits.spares is None:
        return [
            f"Always a spare node is taken to be there; {needed} for 99.9 % of the "
            f"time if a repair takes {repair}."
        ]
    return [
        f"{_enough(found.habits.spares)} for {100.0 * found.enough_nodes:.2f} % of the "
        f"time if a repair takes {repair}; {found.spares_needed:,} for 99.9 %."
    ]


def _enough(spares: int) -> str:
    is_or_are = "is" if spares == 1 else "are"
    return f"{plural(spares, 'spare node')} {is_or_are} enough"


def job_facts(result: GoodputResult) -> dict[str, str]:
    """Return what the job is and does, by name."""
    found = result.found
    assert found is not None
    habits, checkpoint = found.habits, found.checkpoint
    runs = f"{plural(len(found.seeds), 'run')} of {long_time(found.runs.duration)}"
    each = checkpoint.bytes_per_parameter
    size = format_size(checkpoint.size)
    if each is not None:
        size += f" ({each:.4g} bytes per parameter)"
    upload = checkpoint.upload
    rate = format_bandwidth(checkpoint.size / upload) if upload else "at once"
    how = (
        f"beside the training after a copy of {format_duration(checkpoint.copy)}"
        if habits.is_asynchronous
        else "while the job waits"
    )
    rows = {
        "job": f"{result.num_devices:,} {result.device_name} in "
        f"{plural(habits.num_nodes, 'node')}; {runs}",
        "healthy step": f"{format_duration(found.healthy.step_time)}, "
        f"{found.healthy.source}",
        "checkpoint": f"{size}, written in {format_duration(habits.write)} "
        f"({rate}, limited by the {checkpoint.write_limit}), {how}",
        "after a failure": "noticed in "
        f"{format_duration(habits.detection - found.diagnosis)} "
        f"({percent(habits.hang_share)} are hangs: "
        f"{format_duration(habits.hang_detection - found.diagnosis)}), diagnosed in "
        f"{format_duration(found.diagnosis)}, training again "
        f"{format_duration(habits.restart)} later",
    }
    if habits.is_elastic:
        rows["too few nodes"] = "the job goes on without the replicas that lack them"
    if math.isfinite(habits.maintenance_every):
        rows["planned stops"] = (
            f"every {long_time(habits.maintenance_every)} for "
            f"{format_duration(habits.maintenance)} and a restart"
        )
    return rows


def sources(found: GoodputFindings) -> list[str]:
    """Return where rates were published, each once."""
    return list(dict.fromkeys(k.source for k in found.kinds if k.source != GIVEN))


def _failure_table(found: GoodputFindings) -> Table:
    columns = ("component", "number", "MTBF of one", "MTBF of all", "in a run")
    table = new_table(*columns, "rate", numbers=columns[1:])
    counts = found.failures()
    for kind in found.kinds:
        origin = "given" if kind.source == GIVEN else "published"
        shape = "" if kind.shape == 1.0 else f", Weibull {kind.shape:g}"
        add_row(
            table,
            NAMES[kind.name],
            f"{kind.count:,}",
            long_time(1.0 / kind.rate),
            long_time(1.0 / kind.total_rate),
            number(counts[kind.name].mean),
            f"{origin}{shape}",
        )
    return table


def _cause_table(found: GoodputFindings) -> Table:
    table = new_table("", "mean", "p5", "p95", "a day", numbers=("mean", "p5", "p95"))
    table.columns[-1].justify = "right"
    for name, band in found.shares().items():
        if name == "training" or band.mean:
            add_row(table, name, *_share_cells(band), long_time(band.mean * DAY))
    add_row(table, "effective training time", *_share_cells(found.effective_time), "")
    return table


def _share_cells(band: SeedBand) -> tuple[str, str, str]:
    return tuple(f"{100.0 * one:.2f} %" for one in (band.mean, band.p5, band.p95))  # type: ignore[return-value]  # three of them


def interval_rows(found: GoodputFindings) -> list[tuple[str, float, float]]:
    """Return names of intervals, the intervals [s], and goodput by the closed form."""
    if math.isinf(found.best):
        return []
    rows = [
        ("Young 1974", found.young),
        ("Daly 2006", found.daly),
        ("best", found.best),
    ]
    if found.interval_is_given:
        rows.append(("this job's", found.habits.interval))
    return [
        (name, interval, found.cycle.goodput(interval))
        for name, interval in rows
        if interval
    ]


def _interval_table(found: GoodputFindings) -> Table:
    table = new_table(
        "", "training between", "closed form", numbers=("training between",)
    )
    table.columns[-1].justify = "right"
    for name, interval, expected in interval_rows(found):
        add_row(table, name, long_time(interval), f"{100.0 * expected:.2f} %")
    add_row(
        table,
        "simulated, nodes and all",
        long_time(found.habits.interval),
        f"{100.0 * found.goodput.mean:.2f} %",
    )
    return table
