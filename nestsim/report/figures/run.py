"""Figures of a replay: timeline, memory, links, and planned beside simulated."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.report.figures.canvas import HEIGHT, figure_with_headline, save_figure
from nestsim.report.figures.data import (
    gap_steps,
    gap_title,
    level_rows,
    link_rows,
    links_title,
    memory_title,
    timeline_bars,
    timeline_title,
    timeline_windows,
    waterfall,
)
from nestsim.report.figures.palette import INK
from nestsim.report.figures.panels import (
    GIB,
    draw_candidates,
    draw_causes,
    draw_heat,
    draw_level_means,
    draw_memory_lines,
    draw_memory_parts,
    draw_planned,
)
from nestsim.report.figures.timeline import draw_bars, draw_legend
from nestsim.report.wording import plan_label
from topologies.network import Network
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate


_LIMIT_LINES = ((0, (5, 3)), (0, (1, 2)))
"""How the usable and the whole memory of a device are drawn."""

_SHARES_OF_LINK = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Marks on the scale of colours of links."""


def draw_timeline(candidate: "Candidate", path: Path) -> None:
    """Draw what the first replica does: one row a stage, the first stage on top.

    A step too dense to read gets a second row of panels with its two ends enlarged.
    """
    replay = candidate.replay
    bars, windows = timeline_bars(replay), timeline_windows(replay)
    num_stages = len(replay.memory)
    zooms = windows[1:]
    # Inches: headline and legend 2.55, between the rows of panels 1.1, a stage 0.9.
    rest = 3.65 if zooms else 2.55
    panels = min(max(0.9 * num_stages * (2 if zooms else 1), 1.4), HEIGHT - rest)
    height = rest + panels
    plan = candidate.priced.plan
    subtitle = f"{plan_label(plan)}: replica 0; numbers: microbatches"
    if plan.virtual_pipeline_model_parallel_size > 1:
        subtitle += "; the later the chunk of a stage, the darker"
    with figure_with_headline(timeline_title(replay), subtitle, height) as (
        figure,
        colours,
    ):
        grid = figure.add_gridspec(
            2 if zooms else 1,
            max(len(zooms), 1),
            left=0.055,
            right=0.985,
            top=1 - 1.3 / height,
            bottom=1.25 / height,
            hspace=1.1 / (panels / 2),
            wspace=0.04,
            height_ratios=(1, 1.3) if zooms else None,
        )
        draw_bars(figure.add_subplot(grid[0, :]), bars, windows[0], colours)
        for column, window in enumerate(zooms):
            axes = figure.add_subplot(grid[1, column])
            draw_bars(axes, bars, window, colours)
            axes.tick_params(axis="y", labelleft=column == 0)
        draw_legend(figure, bars, colours)
        save_figure(figure, path)


def draw_memory(
    candidate: "Candidate", memory: float, usable_memory: float, path: Path
) -> None:
    """Draw each stage's memory over the step, and what its peak is made of.

    Parameters
    ----------
    candidate
        The plan and its replay.
    memory
        Of one device [byte].
    usable_memory
        What tensors may take of it: the limit of a plan [byte].
    path
        The file.
    """
    replay = candidate.replay
    subtitle = f"{plan_label(candidate.priced.plan)}: one device of each stage"
    with figure_with_headline(memory_title(candidate, usable_memory), subtitle) as (
        figure,
        colours,
    ):
        grid = figure.add_gridspec(
            1,
            2,
            left=0.055,
            right=0.955,
            top=0.84,
            bottom=0.2,
            wspace=0.16,
            width_ratios=(1.7, 1),
        )
        over_time = figure.add_subplot(grid[0])
        peaks = figure.add_subplot(grid[1])
        limits = {"usable": usable_memory / GIB}
        if usable_memory != memory:
            limits["device"] = memory / GIB
        for (name, limit), dashes in zip(limits.items(), _LIMIT_LINES, strict=False):
            style: dict[str, Any] = {"color": INK, "linestyle": dashes, "zorder": 4}
            over_time.axhline(limit, label=f"{name}: {limit:.4g} GiB", **style)
            peaks.axvline(limit, **style)
        draw_memory_lines(over_time, replay, colours)
        draw_memory_parts(peaks, replay)
        highest = max(
            *limits.values(), *(timeline.peak / GIB for timeline in replay.memory)
        )
        over_time.set_ylim(0, 1.05 * highest)
        peaks.set_xlim(0, 1.05 * highest)
        save_figure(figure, path)


def draw_links(candidate: "Candidate", network: Network, path: Path) -> None:
    """Draw the hottest links' utilisation over the step, and each level's mean."""
    replay = candidate.replay
    rows, levels = link_rows(replay, network), level_rows(replay, network)
    subtitle = (
        f"{plan_label(candidate.priced.plan)}: hottest links of each level above, "
        "means of levels below"
    )
    with figure_with_headline(links_title(replay, network), subtitle) as (
        figure,
        colours,
    ):
        if not rows.names:
            words = "Nothing was sent over the network in this step."
            figure.text(0.5, 0.45, words, size=16, ha="center", color=INK)
            save_figure(figure, path)
            return
        # At this size a letter is about half a percent of the width.
        left = 0.03 + 0.0049 * max(len(name) for name in rows.names)
        grid = figure.add_gridspec(
            2,
            2,
            left=min(left, 0.35),
            right=0.925,
            top=0.87,
            bottom=0.085,
            height_ratios=(2.2, 1),
            width_ratios=(60, 1),
            hspace=0.2,
            wspace=0.03,
        )
        heat = figure.add_subplot(grid[0, 0])
        mesh = draw_heat(heat, rows, colours)
        scale = figure.colorbar(
            mesh,
            cax=figure.add_subplot(grid[0, 1]),
            ticks=_SHARES_OF_LINK,
            format=lambda share, _: f"{100 * share:.0f}",
        )
        scale.set_label("share of capacity in use [%]", size=12)
        means = figure.add_subplot(grid[1, 0], sharex=heat)
        draw_level_means(means, levels)
        save_figure(figure, path)


def draw_gap(
    candidate: "Candidate", candidates: Sequence["Candidate"], path: Path
) -> None:
    """Draw the planned time by cause, the gap by cause, and all replayed plans."""
    subtitle = (
        f"{plan_label(candidate.priced.plan)}: planned "
        f"{format_duration(candidate.planned.iteration_time)}, simulated "
        f"{format_duration(candidate.simulated.iteration_time)}"
    )
    with figure_with_headline(gap_title(candidate), subtitle) as (figure, _):
        steps, causes = waterfall(candidate), gap_steps(candidate)
        longest = max(len(step.name) for step in (*steps, *causes))
        grid = figure.add_gridspec(
            2,
            2,
            left=max(0.115, 0.012 + 0.0054 * longest),
            right=0.985,
            top=0.84,
            bottom=0.13,
            wspace=0.62,
            hspace=0.36,
            height_ratios=(len(steps) + 2, len(causes) + 1),
        )
        draw_planned(figure.add_subplot(grid[0, 0]), candidate, steps)
        planned = candidate.planned.iteration_time
        draw_causes(figure.add_subplot(grid[1, 0]), causes, planned)
        draw_candidates(figure.add_subplot(grid[:, 1]), candidate, candidates)
        save_figure(figure, path)
