"""The sheet that every figure of a result is drawn on: headline, style, colours, file.

matplotlib is imported when a figure is drawn. Figures are drawn with the Agg canvas,
without pyplot and whatever the user's matplotlibrc says, and their files hold no date
and no version: the same result gives the same bytes. Style and colours are seaborn's,
which draws what is statistical: comparisons, heat maps, sweeps, distributions. They are
written down here, because the figures of a run need no more of it, and importing it
loads pandas and scipy's statistics, which takes longer than drawing them.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.document.lettering import DPI, shortened, text_width
from nestsim.document.paints import DISTINCT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

GIB = 2.0**30
"""[byte]"""

_LETTERS, _BESIDE = 12.0, 5.0
"""Size of the words beside bars, and how far from them they stand [point]."""

WIDTH, HEIGHT = 16.0, 9.0
"""Of a figure [inch]."""

_MARGIN = 0.19
"""Of the headline at both sides [inch]."""

_TITLE, _SMALLEST_TITLE, SUBTITLE = 18.0, 12.0, 13.0
"""Sizes of the headline's letters: a long title has smaller ones [point]."""

_FONT_SCALE = 1.1

STYLE: Mapping[Any, Any] = MappingProxyType(
    {
        "axes.axisbelow": True,
        "axes.edgecolor": ".15",
        "axes.labelcolor": ".15",
        "axes.labelsize": 12 * _FONT_SCALE,
        "axes.linewidth": 1.25,
        "axes.titlesize": 12 * _FONT_SCALE,
        "font.size": 12 * _FONT_SCALE,
        "grid.color": ".8",
        "grid.linewidth": 1,
        "legend.fontsize": 11 * _FONT_SCALE,
        "legend.title_fontsize": 12 * _FONT_SCALE,
        "lines.solid_capstyle": "round",
        "patch.edgecolor": "w",
        "patch.force_edgecolor": True,
        "text.color": ".15",
        "xtick.color": ".15",
        "xtick.labelsize": 11 * _FONT_SCALE,
        "xtick.major.size": 6,
        "xtick.major.width": 1.25,
        "xtick.minor.size": 4,
        "xtick.minor.width": 1,
        "ytick.color": ".15",
        "ytick.labelsize": 11 * _FONT_SCALE,
        "ytick.major.size": 6,
        "ytick.major.width": 1.25,
        "ytick.minor.size": 4,
        "ytick.minor.width": 1,
    }
)
"""What seaborn's style "ticks" and context "notebook", with letters 1.1 times as large,
change of matplotlib's defaults. Its list of fonts is left out: matplotlib's own starts
with the font that comes with it, so that figures look alike on every machine."""

_ROCKET_REVERSED = (
    "faebdd f9e3d2 f8dcc7 f8d4bc f7cdb1 f7c6a6 f6be9b f6b691 f6ae87 f6a67e f69e75 "
    "f5966c f58d64 f4845d f47c55 f3734e f26948 f06043 ef5640 ec4c3e e9423e e53940 "
    "e03143 db2946 d5224a ce1d4e c71951 bf1654 b71657 af1759 a6195a 9e1a5b 951c5b "
    "8c1d5b 841e5a 7b1f59 731f58 6b1f56 631f53 5b1e51 531e4d 4b1d4a 431c46 3c1a42 "
    "34193d 2d1738 251433 1e122d 170f28 100b23 08081e 03051a"
)
"""Every fifth of the 256 colours of seaborn's colour map "rocket_r"."""

_COMPRESSION = 3
"""Level of zlib, 1 to 9: half of the time of its default, 6."""


class Colours(NamedTuple):
    """What the panels paint with."""

    distinct: "tuple[Any, ...]"
    """Ten colours that colour-blind people can tell apart."""
    ordered: "Colormap"
    """For many lines in an order."""
    heat: "Colormap"
    """From light (nothing) to dark."""


@contextmanager
def empty_figure(
    width: float, height: float, style: Mapping[Any, Any]
) -> Iterator["Figure"]:
    """Give a figure of a size [inch], in a style and nobody else's."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        figure = Figure(figsize=(width, height), dpi=DPI)
        FigureCanvasAgg(figure)
        yield figure


@contextmanager
def figure_with_headline(
    title: str, subtitle: str, height: float = HEIGHT
) -> Iterator[tuple["Figure", Colours]]:
    """Give an empty figure with a headline, in our style and nobody else's."""
    import matplotlib as mpl

    with empty_figure(WIDTH, height, STYLE) as figure:
        from matplotlib.colors import to_rgb

        head: dict[str, Any] = {"va": "top", "parse_math": False}
        room = WIDTH - 2 * _MARGIN
        size = _TITLE * min(1.0, room / text_width(title, _TITLE, "bold"))
        size = max(size, _SMALLEST_TITLE)
        title = shortened(title, size, room, "bold")
        subtitle = shortened(subtitle, SUBTITLE, room)
        left = _MARGIN / WIDTH
        figure.text(left, 1 - 0.2 / height, title, size=size, weight="bold", **head)
        figure.text(left, 1 - 0.58 / height, subtitle, size=SUBTITLE, color=INK, **head)
        colours = Colours(
            distinct=tuple(to_rgb(colour) for colour in DISTINCT),
            ordered=mpl.colormaps["viridis"],
            heat=heat_colours(),
        )
        yield figure, colours


def heat_colours() -> "Colormap":
    """Return the colour map of heat maps, from light (nothing) to dark."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = [f"#{colour}" for colour in _ROCKET_REVERSED.split()]
    return LinearSegmentedColormap.from_list("heat", colours, N=256)


_DRAWN: ContextVar["list[Figure] | None"] = ContextVar("_DRAWN", default=None)


@contextmanager
def drawn_figures() -> Iterator["list[Figure]"]:
    """Give the figures that are drawn meanwhile, instead of having them written."""
    figures: list[Figure] = []
    token = _DRAWN.set(figures)
    try:
        yield figures
    finally:
        _DRAWN.reset(token)


def save_figure(figure: "Figure", path: Path, **options: Any) -> None:
    """Write a figure as PNG, or hand it to whoever asked for `drawn_figures`.

    Parameters
    ----------
    figure
        Drawn.
    path
        The file.
    options
        Of matplotlib's ``savefig``; a PNG has no date and no version, and of its
        metadata texts alone.
    """
    drawn = _DRAWN.get()
    if drawn is not None:
        # What matplotlib makes when it renders is made in our style, too.
        figure.draw_without_rendering()
        drawn.append(figure)
        return
    if path.suffix.lower() not in {"", ".png"}:
        figure.savefig(path, **options)
        return
    canvas = figure.canvas
    assert hasattr(canvas, "buffer_rgba"), "not of `empty_figure`"
    figure.savefig(BytesIO(), format="rgba")
    pixels = np.asarray(canvas.buffer_rgba())
    path.write_bytes(_png(pixels, options.get("metadata") or {}))


def _png(pixels: NDArray[np.uint8], texts: Mapping[str, str]) -> bytes:
    """Return opaque pixels as PNG [1]_, its lines without a filter.

    Figures are flat: with filters, as encoders choose them line by line, files are a
    fifth longer and take twice the time.

    Parameters
    ----------
    pixels
        Red, green, blue and a byte that is left out, shape ``(height, width, 4)``.
    texts
        What the file says of itself, by key.

    References
    ----------
    .. [1] W3C, "Portable Network Graphics (PNG) Specification", third edition.
    """
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)
    lines[:, 1:] = pixels[:, :, :3].reshape(height, 3 * width)
    per_metre = round(DPI / 0.0254)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        *((b"tEXt", f"{key}\0{text}".encode("latin-1")) for key, text in texts.items()),
        (b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
        (b"IDAT", zlib.compress(lines.tobytes(), _COMPRESSION)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def write_beside(
    axes: "Axes",
    lengths: Sequence[float],
    rows: Sequence[float],
    words: Sequence[str],
    low: float = 0.0,
) -> None:
    """Write at the right of bars, on an axis that is long enough for the words.

    Parameters
    ----------
    axes
        Where the bars are.
    lengths, rows
        Right end and row of each bar, as on the axes.
    words
        What stands beside each bar.
    low
        Where the axis begins.
    """
    whole = axes.get_window_extent().width / DPI
    gap = _BESIDE / 72.0
    texts = [shortened(text, _LETTERS, 0.7 * whole) for text in words]
    end = max(lengths, default=0.0) or 1.0
    for length, text in zip(lengths, texts, strict=True):
        # Bar, gap and text end before the axis does.
        room = whole - gap - text_width(text, _LETTERS)
        end = max(end, low + (length - low) * whole / room)
    axes.set_xlim(low, end + 0.01 * (end - low))
    for length, row, text in zip(lengths, rows, texts, strict=True):
        axes.annotate(
            text,
            (length, row),
            xytext=(_BESIDE, 0),
            textcoords="offset points",
            va="center",
            size=_LETTERS,
            parse_math=False,
        )


def plain_logarithms(axis: "Axis") -> None:
    """Write 1, 2, 5, 10, .. at a logarithmic axis, not powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    steps = (1.0, 2.0, 5.0) if high / low < 2e3 else (1.0,)
    axis.set_major_locator(LogLocator(base=10.0, subs=steps, numticks=99))
    axis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    axis.set_minor_formatter(NullFormatter())
