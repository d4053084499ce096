"""Figures of a replay over time: memory, and the use of links.

Each is a figure block: page and picture draw it, its table stands in the full report.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nestsim.document.figures import (
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    StackedBar,
    StackPart,
    Stacks,
    Strip,
    Strips,
)
from nestsim.document.paints import DISTINCT, MEMORY_PARTS, level_colour, part_paint
from nestsim.document.parts import Cell, DataTable, FigureBlock, cell
from nestsim.document.wording import (
    percent,
    plural,
    size_of_limit,
    time_unit,
)
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.features.run.statistics import (
    hottest_first,
    link_name,
    link_utilisation,
)
from nestsim.simulator.system import MemoryTimeline, Replay
from topologies.arrays import FloatArray
from topologies.network import Network
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

GIB = 2.0**30
"""[byte]"""

_FEW_STAGES = 8
"""So many lines can be told apart, each by its colour and its dashes."""


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
                        series=DISTINCT.index(level_colour(number)),
                    )
                    for name, number, uses in zip(
                        levels.names, levels.numbers, shares.tolist(), strict=True
                    )
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
