"""Figures of a replay: memory, use of links, times by cause, replayed plans.

Each is a figure block: page and picture draw it, its table stands in the full report.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nestsim.document.figures import (
    BarGroups,
    BarsOfGroup,
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    GroupedBar,
    StackedBar,
    StackPart,
    Stacks,
    Strip,
    Strips,
)
from nestsim.document.paints import MEMORY_PARTS, Swatch, part_paint
from nestsim.document.parts import Cell, DataTable, FigureBlock, cell
from nestsim.document.wording import (
    difference,
    gap_cause,
    percent,
    plural,
    signed_duration,
    signed_percent,
    size_of_limit,
    time_unit,
    without_rounding,
)
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.features.run.statistics import (
    hottest_first,
    link_name,
    link_utilisation,
)
from nestsim.simulator.outcome import MemoryTimeline, Replay
from topologies.arrays import FloatArray
from topologies.network import Network
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

GIB = 2.0**30
"""[byte]"""

_FEW_STAGES = 8
"""So many lines can be told apart, each by its colour and its dashes."""

_MOST_CANDIDATES = 12
"""Rows of the replayed plans that stay legible in a figure."""

_CHANGES_PER_MICROBATCH = 5
"""At most four allocations and releases, so that an interval holds a whole period."""


class LinkRows(NamedTuple):
    """Utilisation of some links over time."""

    names: tuple[str, ...]
    """The link, and behind it how many are alike; or the level."""
    levels: tuple[str, ...]
    """Name of each row's level."""
    numbers: tuple[int, ...]
    """Position of each row's level in the network, from the inside out."""
    bin_edges: FloatArray
    """Shape ``(K + 1,)`` [s]."""
    utilisation: FloatArray
    """Of the capacity, shape ``(rows, K)``."""


def memory_steps(
    timeline: MemoryTimeline, total: float, most: int = 800
) -> tuple[FloatArray, FloatArray]:
    """Return the corners of a step function of the memory held.

    With more than ``most`` changes the result has equal intervals, about one a
    microbatch, each with the highest value that was held in it: peaks are never lost.

    Parameters
    ----------
    timeline
        Memory of one device.
    total
        End of the step; the last value is held until then [s].
    most
        Changes that can be told apart in a figure.

    Returns
    -------
    tuple[FloatArray, FloatArray]
        Moments [s], shape ``(n,)``, and the bytes held from each on, shape ``(n,)``;
        the last moment is ``total``.
    """
    times, values = np.array(timeline.times), np.array(timeline.total)
    if times.size <= most:
        return np.append(times, total), np.append(values, values[-1])
    num_intervals = times.size // _CHANGES_PER_MICROBATCH
    edges = np.linspace(times[0], total, num_intervals + 1)
    # What is held when an interval begins counts in it, hence the value before it.
    before = np.searchsorted(times, edges[:-1], side="right") - 1
    after = np.maximum(np.searchsorted(times, edges[1:], side="left"), before + 1)
    highest = np.array([values[a:b].max() for a, b in zip(before, after, strict=True)])
    return edges, np.append(highest, highest[-1])


def fullest_stage(replay: Replay) -> int:
    """Return the stage with the highest peak, the first one of equals."""
    peaks = [timeline.peak for timeline in replay.memory]
    return peaks.index(max(peaks))


def memory_parts(replay: Replay) -> dict[str, FloatArray]:
    """Return what each stage's peak is made of: part -> shape ``(p,)`` [byte].

    In the order of `nestsim.document.paints.MEMORY_PARTS`, others behind. Parts
    that are nowhere more than 0 are left out.
    """
    present = {name for t in replay.memory for name in t.peak_parts}
    names = [name for name in MEMORY_PARTS if name in present]
    names += sorted(present.difference(names))
    parts = {
        name: np.array([t.peak_parts.get(name, 0.0) for t in replay.memory])
        for name in names
    }
    return {name: values for name, values in parts.items() if values.max() > 0}


def memory_title(candidate: "Candidate", usable_memory: float) -> str:
    """Say which stage is the fullest and whether it fits.

    Parameters
    ----------
    candidate
        The plan and its replay.
    usable_memory
        What tensors may take of a device [byte].
    """
    replay = candidate.replay
    stage = fullest_stage(replay)
    peak = replay.memory[stage].peak
    fits = candidate.verdict.kind not in NO_ROOM
    if not fits and peak <= usable_memory:
        # A stage on devices with less memory, or a host.
        reason = candidate.verdict.reason
        return reason[:1].upper() + reason[1:]
    finding = "is the fullest" if fits else "does not fit"
    return f"Stage {stage} {finding}: {size_of_limit(peak, usable_memory)} usable"


def memory_lines(
    candidate: "Candidate", memory: float, usable_memory: float
) -> FigureBlock:
    """Return what a device of each stage holds over the step.

    Parameters
    ----------
    candidate
        The plan and its replay.
    memory
        Of one device [byte].
    usable_memory
        What tensors may take of it [byte].
    """
    replay = candidate.replay
    count = len(replay.memory)
    few = count <= _FEW_STAGES
    fullest = fullest_stage(replay)
    named = range(count) if few else {0, fullest, count // 2, count - 1}
    scale, unit = time_unit(replay.iteration_time)

    def curve(stage: int) -> DrawnCurve:
        times, held = memory_steps(
            replay.memory[stage], replay.iteration_time, 400 if few else 160
        )
        name = f"stage {stage}" + ", the fullest" * (stage == fullest and count > 1)
        points = zip((times / scale).tolist(), (held / GIB).tolist(), strict=True)
        return DrawnCurve(
            name if stage in named else "", tuple(CurvePoint(x, y) for x, y in points)
        )

    limits = _limits(memory, usable_memory)
    others = [stage for stage in range(count) if stage not in named]
    rest = f"Thin and grey: {plural(len(others), 'other stage')}." if others else ""
    return FigureBlock(
        name="memory",
        title=memory_title(candidate, usable_memory),
        about="Lines of the memory that a device of each stage holds over the step, "
        "below the limit of what tensors may take.",
        drawing=Curves(
            # Named stages first: they have the first colours.
            curves=tuple(curve(stage) for stage in (*sorted(named), *others)),
            across=f"time [{unit}]",
            up="memory held [GiB]",
            marks=CurveMarks(
                level=tuple(limits.values()),
                names=tuple(f"{name}: {at:.4g} GiB" for name, at in limits.items()),
            ),
            stepped=True,
        ),
        table=DataTable.of(
            "Highest memory of a device of each stage",
            enumerate(replay.memory),
            {
                "Stage": lambda row: cell(row[0], str),
                "Peak": lambda row: cell(row[1].peak, format_size),
                "At": lambda row: cell(row[1].peak_time, format_duration),
            },
        ),
        follows_window=True,
        note=rest,
    )


def memory_bars(
    candidate: "Candidate", memory: float, usable_memory: float
) -> FigureBlock:
    """Return what each stage's peak is made of; parameters as `memory_lines`."""
    replay = candidate.replay
    parts = {name: sizes.tolist() for name, sizes in memory_parts(replay).items()}
    largest = max(parts, key=lambda name: max(parts[name]), default="nothing")
    limits = _limits(memory, usable_memory)

    def part(name: str, stage: int) -> StackPart:
        size = parts[name][stage]
        tip = f"stage {stage}, {name}: {format_size(size)}"
        return StackPart(name, size / GIB, part_paint(name), tip)

    columns: dict[str, Callable[[int], Cell | str]] = {
        "Stage": lambda stage: cell(stage, str),
        **{name: _size_at(sizes) for name, sizes in parts.items()},
        "total": lambda stage: cell(replay.memory[stage].peak, format_size),
    }
    return FigureBlock(
        name="memory-parts",
        title=f"The largest part of a peak is {largest}",
        about="Bars of what the memory of each stage consists of at its peak.",
        drawing=Stacks(
            bars=tuple(
                StackedBar(
                    f"stage {stage}",
                    tuple(part(name, stage) for name in parts),
                    f"{timeline.peak / GIB:.1f}",
                )
                for stage, timeline in enumerate(replay.memory)
            ),
            across="held at the stage's peak [GiB]",
            limits=tuple(limits.values()),
        ),
        table=DataTable.of(
            "What the peak of each stage is made of", range(len(replay.memory)), columns
        ),
        hint="Dashed: "
        + ", ".join(f"{name} {limit:.4g} GiB" for name, limit in limits.items())
        + ".",
    )


def _size_at(sizes: Sequence[float]) -> Callable[[int], Cell | str]:
    return lambda stage: cell(sizes[stage], format_size)


def _limits(memory: float, usable_memory: float) -> dict[str, float]:
    """Return the limits of a device's memory, by name [GiB]."""
    limits = {"usable": usable_memory / GIB}
    if usable_memory != memory:
        limits["device"] = memory / GIB
    return limits


def link_rows(replay: Replay, network: Network, most: int = 20) -> LinkRows:
    """Return the hottest links of each level over time, outermost level first.

    Links that carry the same at all times share a row. Every level that carried
    anything gets an equal share of the rows; what a level with few links leaves over
    goes to the hottest of the others.
    """
    links = replay.links
    mean = link_utilisation(replay, network)[links.link_ids]
    level = network.links.level[links.link_ids]
    order = hottest_first(mean)
    used = np.unique(level)
    share = most // used.size if used.size else 0
    first = [row for n in used for row in order[level[order] == n][:share]]
    rest = order[~np.isin(order, first)].tolist()
    rows = np.array(sorted(first + rest[: most - len(first)]), dtype=np.int64)
    rows = rows[hottest_first(mean[rows])]
    rows = rows[np.argsort(-level[rows], kind="stable")]
    ids = links.link_ids[rows]
    return LinkRows(
        names=tuple(
            link_name(network, link) + (f" (x{count:,})" if count > 1 else "")
            for link, count in zip(
                ids.tolist(), links.num_alike[rows].tolist(), strict=True
            )
        ),
        levels=tuple(network.level_name(int(n)) for n in network.links.level[ids]),
        numbers=tuple(network.links.level[ids].tolist()),
        bin_edges=links.bin_edges,
        utilisation=links.rates[rows] / network.links.bandwidth[ids][:, None],
    )


def hottest_link_use(
    replay: Replay, network: Network, most: int = 8
) -> dict[str, FloatArray]:
    """Return the rows of `link_rows` by name, for the counters of a trace."""
    rows = link_rows(replay, network, most)
    return dict(zip(rows.names, np.minimum(rows.utilisation, 1.0), strict=True))


def level_rows(replay: Replay, network: Network) -> LinkRows:
    """Return each level's mean over the links in use, outermost level first."""
    links = replay.links
    level = network.links.level[links.link_ids]
    capacity = network.links.bandwidth[links.link_ids] * links.num_alike
    loads = links.rates * links.num_alike[:, None]
    used = np.unique(level)[::-1]
    means = [loads[level == n].sum(axis=0) / capacity[level == n].sum() for n in used]
    names = tuple(network.level_name(int(n)) for n in used)
    shape = (len(used), links.bin_edges.size - 1)
    return LinkRows(
        names=names,
        levels=names,
        numbers=tuple(used.tolist()),
        bin_edges=links.bin_edges,
        utilisation=np.array(means).reshape(shape),
    )


def links_title(replay: Replay, network: Network) -> str:
    """Say which link is the hottest, and how hot."""
    utilisation = link_utilisation(replay, network)
    if not utilisation.size or not utilisation.max() > 0:
        return "No link carried anything"
    hottest = int(hottest_first(utilisation)[0])
    row = replay.links.row[hottest]
    highest = replay.links.rates[row].max() / network.links.bandwidth[hottest]
    return (
        f"The hottest link, {link_name(network, hottest)}, is used to "
        f"{percent(float(utilisation[hottest]))} over the step, "
        f"at its busiest to {percent(min(float(highest), 1.0))}"
    )


def link_figures(replay: Replay, network: Network) -> tuple[FigureBlock, ...]:
    """Return the figures of the use of links; none if nothing was sent."""
    rows, levels = link_rows(replay, network), level_rows(replay, network)
    if not rows.names:
        return ()
    scale, unit = time_unit(float(rows.bin_edges[-1]))
    edges = (rows.bin_edges / scale).tolist()
    shares = np.minimum(levels.utilisation, 1.0)
    mean = shares.mean(axis=1)
    hottest = int(np.argmax(mean))
    return (
        FigureBlock(
            name="links",
            title=links_title(replay, network),
            about="Rows of links, the outermost level on top; the stronger the colour, "
            "the more of a link is in use.",
            drawing=Strips(
                rows=tuple(
                    Strip(
                        f"{name}, mean {percent(float(use.mean()))}", level, tuple(use)
                    )
                    for name, level, use in zip(
                        rows.names,
                        rows.levels,
                        np.minimum(rows.utilisation, 1.0),
                        strict=True,
                    )
                ),
                edges=tuple(edges),
                across=f"time [{unit}]",
                unit=unit,
            ),
            table=_use_table(rows, "Link"),
            follows_window=True,
            hint="The stronger the colour, the more of a link is in use; (x8): so many "
            "links carry the same.",
        ),
        FigureBlock(
            name="levels",
            title=f"Links of level {levels.names[hottest]} are used most: to "
            f"{percent(float(mean[hottest]))} on average",
            about="Lines of the mean use of each level's links over the step.",
            drawing=Curves(
                curves=tuple(
                    DrawnCurve(
                        f"level {name}",
                        tuple(
                            CurvePoint(edge, 100.0 * use)
                            for edge, use in zip(edges, (*uses, uses[-1]), strict=True)
                        ),
                    )
                    for name, uses in zip(levels.names, shares.tolist(), strict=True)
                ),
                across=f"time [{unit}]",
                up="mean use [%]",
                stepped=True,
            ),
            table=_use_table(levels, "Level"),
            follows_window=True,
        ),
    )


def _use_table(rows: LinkRows, heading: str) -> DataTable:
    return DataTable.of(
        f"Use of each {heading.lower()} over the step",
        zip(rows.names, rows.utilisation, strict=True),
        {
            heading: lambda row: row[0],
            "Mean use": lambda row: cell(float(row[1].mean()), percent),
            "Highest use": lambda row: cell(min(float(row[1].max()), 1.0), percent),
        },
    )


def planned_figure(candidate: "Candidate") -> FigureBlock:
    """Return the planned time by cause, with the simulated time below it."""
    planned = candidate.planned.iteration_time
    simulated = candidate.simulated.iteration_time
    causes = planned_causes(candidate)
    largest = max(causes, key=lambda name: causes[name])
    totals = {"planned": (planned, "planned"), "simulated": (simulated, "simulated")}
    return FigureBlock(
        name="planned",
        title=f"Planned: {format_duration(planned)}, most of it {largest}",
        about="Bars of the causes of the planned time, one after the other, and below "
        "them the planned and the simulated time.",
        drawing=_waterfall(
            {name: (seconds, "cause") for name, seconds in causes.items()},
            totals,
            format_duration,
        ),
        table=causes_table("Planned time, by cause", causes, planned),
        legend=(
            Swatch(name="a cause", paint="cause"),
            Swatch(name="planned", paint="planned"),
            Swatch(name="simulated", paint="simulated"),
        ),
    )


def planned_causes(candidate: "Candidate") -> dict[str, float]:
    """Return the planned time by cause, without causes that take none [s].

    What the causes leave unexplained, beyond rounding, is ``"other"``.
    """
    planned = candidate.priced.iteration_time
    terms = dict(candidate.priced.terms)
    other = planned - math.fsum(terms.values())
    if abs(other) > 1e-6 * planned:
        terms["other"] = other
    return {name: seconds for name, seconds in terms.items() if seconds}


def gap_causes(candidate: "Candidate") -> dict[str, float]:
    """Return simulated minus planned time by cause, without rounding [s]."""
    planned = candidate.planned.iteration_time
    terms = {
        name: without_rounding(seconds, planned)
        for name, seconds in candidate.verdict.gap.terms.items()
    }
    return {name: seconds for name, seconds in terms.items() if seconds}


def gap_figure(candidate: "Candidate") -> FigureBlock | None:
    """Return simulated minus planned time by cause; None where they do not differ."""
    causes = gap_causes(candidate)
    if not causes:
        return None
    painted = {
        name: (seconds, "longer" if seconds > 0 else "shorter")
        for name, seconds in (*causes.items(), ("difference", sum(causes.values())))
    }
    total = {"difference": painted.pop("difference")}
    planned = candidate.planned.iteration_time
    return FigureBlock(
        name="gap",
        title=gap_title(candidate),
        about="Bars of what makes the replay longer or shorter than the plan.",
        drawing=_waterfall(painted, total, signed_duration, planned),
        table=gap_table(candidate),
        legend=(
            Swatch(name="longer", paint="longer"),
            Swatch(name="shorter", paint="shorter"),
        ),
    )


def gap_table(candidate: "Candidate") -> DataTable:
    """Return the difference between plan and replay by cause."""
    planned, gap = candidate.planned.iteration_time, candidate.verdict.gap
    rows = [
        (name, without_rounding(seconds, planned))
        for name, seconds in (*gap.terms.items(), ("total", gap.total))
    ]
    return DataTable.of(
        "Simulated minus planned, by cause",
        rows,
        {
            "Cause": lambda row: row[0],
            "Time": lambda row: cell(row[1], signed_duration),
            "Of planned": lambda row: signed_percent(
                row[1] / planned if planned else math.nan
            ),
        },
        numbers=("Of planned",),
    )


def causes_table(caption: str, causes: Mapping[str, float], total: float) -> DataTable:
    """Return a time by cause, without the causes that take none."""
    exact = {name: without_rounding(time, total) for name, time in causes.items()}
    rows = [*((name, time) for name, time in exact.items() if time), ("total", total)]
    return DataTable.of(
        caption,
        rows,
        {
            "Cause": lambda row: row[0],
            "Time": lambda row: cell(row[1], format_duration),
            "Share": lambda row: percent(row[1] / total if total else math.nan),
        },
        numbers=("Share",),
    )


def _waterfall(
    causes: Mapping[str, tuple[float, str]],
    totals: Mapping[str, tuple[float, str]],
    words: Callable[[float], str],
    whole: float = 0.0,
) -> Stacks:
    """Return bars from top to bottom, each of ``causes`` where the last one ends.

    Parameters
    ----------
    causes, totals
        Name -> time [s] and paint; totals begin at 0.
    words
        What writes a time.
    whole
        Time that all are a part of: a gap of 0.07 % of it is a short bar [s].
    """
    bars, reached = [], 0.0
    steps = [
        (name, *step, name in totals) for name, step in {**causes, **totals}.items()
    ]
    starts: list[float] = []
    for _, seconds, _, is_total in steps:
        starts.append(0.0 if is_total else reached)
        reached += seconds
    ends = [
        end
        for start, (_, seconds, _, _) in zip(starts, steps, strict=True)
        for end in (start, start + seconds)
    ]
    scale, unit = time_unit(max(max(ends) - min(ends), 0.01 * whole) or 1e-9)
    for start, (name, seconds, paint, _) in zip(starts, steps, strict=True):
        text = words(seconds)
        part = StackPart(name, seconds / scale, paint, f"{name}: {text}")
        bars.append(StackedBar(name, (part,), text, start=start / scale))
    return Stacks(bars=tuple(bars), across=f"time [{unit}]", whole=whole / scale)


def gap_title(candidate: "Candidate") -> str:
    """Say how far the replay is from the plan, and the largest cause."""
    planned = candidate.planned.iteration_time
    gap = candidate.verdict.gap
    share = gap.total / planned if planned else math.nan
    if abs(share) < 5e-4:
        return "The replay takes as long as planned, within 0.1 %"
    how = f"{percent(abs(share))} {'longer' if gap.total > 0 else 'shorter'}"
    cause = gap_cause(gap)
    if not cause:
        return f"The replay is {how} than planned"
    part = signed_percent(gap.terms[cause] / planned)
    return f"The replay is {how} than planned; the largest cause is {cause} ({part})"


Row = Mapping[str, Any]
"""A row of ``candidates`` of ``result.json``."""

_DEGREES = {
    "TP": "tensor_model_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "CP": "context_parallel_size",
    "EP": "expert_model_parallel_size",
    "DP": "data_parallel_size",
}
"""Heading -> setting, under Megatron's names."""

_ALWAYS = ("TP", "PP", "DP")
"""Degrees that stand there even if they are 1 everywhere."""


def plans_figure(rows: Sequence[Row], reported_rank: int) -> FigureBlock:
    """Return the replayed plans, fastest first, planned beside simulated.

    Parameters
    ----------
    rows
        At least one, as ``result.json`` has them.
    reported_rank
        Planner's rank of the plan that is reported.
    """
    drawn = rows[:_MOST_CANDIDATES]
    scale, unit = time_unit(max(map(_longest, drawn)))
    ranks = [row["planner_rank"] for row in rows]

    def bar(row: Row) -> GroupedBar:
        simulated = row["simulated_iteration_time_s"]
        words = f"{format_duration(simulated)}, {row['verdict']}"
        size = format_size(row["simulated_peak_memory_bytes"])
        return GroupedBar(
            name="* " * (row["planner_rank"] == reported_rank) + _degrees(row),
            length=simulated / scale,
            words=words,
            paint="simulated" if row["verdict"] == "confirmed" else "idle",
            mark=row["planned_iteration_time_s"] / scale,
            tip=f"{_degrees(row)}: {words}, {size}",
        )

    return FigureBlock(
        name="plans",
        title=f"{plural(len(rows), 'plan')} replayed, fastest first",
        about="Bars of the simulated time of each replayed plan, with a line at the "
        "planned time.",
        drawing=BarGroups(
            groups=(BarsOfGroup("", tuple(map(bar, drawn))),),
            across=f"iteration time, simulated, with a line where planned [{unit}]",
        ),
        table=DataTable.of(
            "Replayed plans, fastest first; * is the one that is reported",
            rows,
            _plan_columns(rows, reported_rank),
            sortable=True,
            shown=ranks.index(reported_rank) if reported_rank in ranks else None,
            first=5,
        ),
        legend=(
            Swatch(name="simulated, confirmed", paint="simulated"),
            Swatch(name="simulated, not confirmed", paint="idle"),
        ),
        note="*: the plan that is reported.",
        opened=True,
    )


def _longest(row: Row) -> float:
    times: tuple[float, float] = (
        row["planned_iteration_time_s"],
        row["simulated_iteration_time_s"],
    )
    return max(times)


def _plan_columns(
    rows: Sequence[Row], reported_rank: int
) -> dict[str, Callable[[Row], Cell | str]]:
    degrees = [
        heading
        for heading in _DEGREES
        if heading in _ALWAYS or any(_degree(row, heading) != 1 for row in rows)
    ]
    return {
        "Rank": lambda row: cell(row["planner_rank"], _count),
        **{heading: _degree_cell(heading) for heading in degrees},
        "b": lambda row: cell(row["micro_batch_size"], _count),
        **({"Saving": lambda row: row["saving"]} if "saving" in rows[0] else {}),
        "Planned": lambda row: cell(row["planned_iteration_time_s"], format_duration),
        "Simulated": lambda row: cell(
            row["simulated_iteration_time_s"], format_duration
        ),
        "Differs": _differs,
        "Memory": lambda row: cell(row["simulated_peak_memory_bytes"], format_size),
        "Verdict": lambda row: (
            row["verdict"] + " *" * (row["planner_rank"] == reported_rank)
        ),
        "Placement": lambda row: row["placement"],
    }


def _degree(row: Row, heading: str) -> int:
    name = _DEGREES[heading]
    degree: int = row["parallel"].get(name, row.get(name, 1))
    return degree


def _degree_cell(heading: str) -> Callable[[Row], Cell | str]:
    return lambda row: cell(_degree(row, heading), _count)


def _degrees(row: Row) -> str:
    """Write the degrees of a plan in short: ``tp2 pp4 dp8 b1``."""
    shown = [
        f"{heading.lower()}{_degree(row, heading)}"
        for heading in _DEGREES
        if heading in _ALWAYS or _degree(row, heading) != 1
    ]
    return " ".join([*shown, f"b{row['micro_batch_size']}"])


def _count(value: float) -> str:
    return f"{value:,}"


def _differs(row: Row) -> Cell:
    share = difference(
        row["planned_iteration_time_s"], row["simulated_iteration_time_s"]
    )
    return Cell(signed_percent(share), share if math.isfinite(share) else 0.0)
