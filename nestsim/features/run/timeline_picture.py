"""The printed timeline: bars of compute above, of communication below, by stage."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nestsim.document.canvas import HEIGHT, figure_with_headline, save_figure
from nestsim.document.lettering import DPI
from nestsim.document.paints import PAINTS
from nestsim.document.wording import plan_label, time_unit
from nestsim.features.run.timeline import (
    BAR_KINDS,
    BAR_NAMES,
    COMPUTE_LANE,
    NETWORK_LANE,
    Bars,
    Window,
    timeline_bars,
    timeline_title,
    timeline_windows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    from nestsim.evaluate.results import Candidate

_PASSES = ("forward", "backward", "weight")
_POINTS = 72
"""In an inch; letters are measured in them."""
_NUMBER_COLOUR = ".15"
"""As of all other words of a figure."""
_PALEST = 0.4
"""Share of colour in the first of several chunks; the rest is white."""


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
    with figure_with_headline(timeline_title(replay), subtitle, height) as (figure, _):
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
        draw_bars(figure.add_subplot(grid[0, :]), bars, windows[0])
        for column, window in enumerate(zooms):
            axes = figure.add_subplot(grid[1, column])
            draw_bars(axes, bars, window)
            axes.tick_params(axis="y", labelleft=column == 0)
        draw_legend(figure, bars)
        save_figure(figure, path)


def _shades(colour: Any, num_chunks: int) -> list[Any]:
    """Return the colours of passes by chunk: the last one's is the colour itself."""
    shares = np.linspace(_PALEST, 1.0, num_chunks) if num_chunks > 1 else (1.0,)
    return [tuple(1 - share * (1 - part) for part in colour) for share in shares]


def draw_bars(axes: "Axes", bars: Bars, window: Window) -> None:
    """Draw the part of the bars that a window shows; waiting stays blank."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    scale, unit = time_unit(float(bars.end.max()))
    num_stages, num_chunks = int(bars.stage.max(initial=0)) + 1, bars.num_chunks
    axes.set_xlim(window.start / scale, window.end / scale)
    axes.set_ylim(num_stages - 0.5, -0.5)
    pixels = axes.get_window_extent().width / (window.end - window.start)
    seen = (bars.end > window.start) & (bars.start < window.end)
    for index, kind in enumerate(BAR_KINDS):
        own = Bars(*(column[seen & (bars.kind == index)] for column in bars))
        if not own.kind.size:
            continue
        width = pixels * float((own.end - own.start).mean())
        if kind == "send" and width < 1.0:
            continue  # hairlines that only blur what is above and below them
        computes = index < BAR_KINDS.index("send")
        lane = COMPUTE_LANE if computes else NETWORK_LANE
        corners: Any = _corners(own, lane, scale)
        facecolors = [to_rgb(PAINTS[kind].colour)]
        if kind in _PASSES and num_chunks > 1:
            shades = _shades(facecolors[0], num_chunks)
            facecolors = [shades[chunk] for chunk in own.chunk]
        collection = PolyCollection(
            corners,  # as one array: a list of arrays takes five times as long
            facecolors=facecolors,
            edgecolors="white",
            linewidths=0.6 if computes and width > 6 else 0.0,
        )
        axes.add_collection(collection, autolim=False)
        if kind in _PASSES:
            _number_bars(axes, own, window, scale)
    axes.set_title(window.title, loc="left", size=13)
    axes.set_xlabel(f"time [{unit}]", size=12)
    every = range(0, num_stages, -(-num_stages // 16))
    axes.set_yticks(list(every), [f"stage {stage}" for stage in every], size=11)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _corners(
    bars: Bars, lane: tuple[float, float], scale: float
) -> NDArray[np.float64]:
    """Return the corners of the bars, shape ``(n, 4, 2)``."""
    left, right = bars.start / scale, bars.end / scale
    top, bottom = bars.stage + lane[0], bars.stage + lane[1]
    across = np.stack((left, right, right, left), axis=1)
    down = np.stack((top, top, bottom, bottom), axis=1)
    return np.stack((across, down), axis=2)


def _number_bars(axes: "Axes", bars: Bars, window: Window, scale: float) -> None:
    """Write the microbatch into every bar if there is room for it."""
    box = axes.get_window_extent()
    pixels = box.width / (window.end - window.start)
    bottom, top = axes.get_ylim()
    height = (COMPUTE_LANE[1] - COMPUTE_LANE[0]) * box.height / (bottom - top)
    digits = len(str(int(bars.microbatch.max())))
    width = float(np.median(bars.end - bars.start)) * pixels
    # A digit is about 0.62 of the font size wide; a pixel at 100 dpi is 0.72 points.
    size = min(0.72 * (width - 3) / (0.62 * digits), 0.72 * 0.8 * height, 12.0)
    if size < 6.0:
        return
    middle = (bars.start + bars.end) / 2
    inside = (middle > window.start) & (middle < window.end)
    places = np.stack(
        (middle[inside] / scale, bars.stage[inside] + sum(COMPUTE_LANE) / 2), axis=1
    )
    numbers = bars.microbatch[inside].tolist()
    axes.add_collection(_number_outlines(axes, numbers, places, size), autolim=False)


def _number_outlines(
    axes: "Axes", numbers: list[int], places: NDArray[np.float64], size: float
) -> "PathCollection":
    """Return numbers, each in the middle of its place, as outlines of their digits.

    Several times as fast as so many texts, which matplotlib lays out one by one.
    """
    from matplotlib.collections import PathCollection
    from matplotlib.font_manager import FontProperties
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    font = FontProperties()
    outlines: dict[int, Path] = {}
    for number in sorted(set(numbers)):
        text = TextPath((0, 0), str(number), size=size, prop=font)
        box = text.get_extents()
        middle = (box.x0 + box.width / 2, box.y0 + box.height / 2)
        outlines[number] = Path(text.vertices - middle, text.codes)
    collection = PathCollection(
        [outlines[number] for number in numbers],
        offsets=places,
        offset_transform=axes.transData,
        facecolors=_NUMBER_COLOUR,
        linewidths=0.0,
        zorder=3,
    )
    collection.set_transform(Affine2D().scale(DPI / _POINTS))
    return collection


def draw_legend(figure: "Figure", bars: Bars) -> None:
    """Name the colours of the kinds of bars that occur, below the panels."""
    from matplotlib.colors import to_rgb
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    present = [BAR_KINDS[index] for index in np.unique(bars.kind)]
    handles: list[Any] = []
    for kind in present:
        colour = to_rgb(PAINTS[kind].colour)
        handle: Any = Patch(color=colour)
        if kind in _PASSES and bars.num_chunks > 1:
            shades = _shades(colour, bars.num_chunks)
            handle = tuple(Patch(color=shade) for shade in shades)
        handles.append(handle)
    figure.legend(
        handles,
        [BAR_NAMES.get(kind, kind) for kind in present],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
        loc="lower center",
        ncols=len(present),
        columnspacing=2.0 if len(present) < len(BAR_KINDS) else 1.2,
        frameon=False,
        fontsize=12,
        borderaxespad=0.3,
    )
