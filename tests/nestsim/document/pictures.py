"""What stands in a drawn figure: its words, and whether they can be read."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from matplotlib.axis import Axis, Tick
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox


class Picture(NamedTuple):
    """A figure as it was saved."""

    figure: Figure
    boxes: list[tuple[str, Bbox]]
    """Each text that can be seen, and where it stands [pixel]."""

    @property
    def words(self) -> list[str]:
        """What the texts say."""
        return [text for text, _ in self.boxes]

    @property
    def cut_off(self) -> list[str]:
        """The texts that reach beyond the figure."""
        width, height = self.figure.canvas.get_width_height()
        return [
            text
            for text, box in self.boxes
            if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
        ]

    @property
    def overlapping(self) -> list[tuple[str, str]]:
        """The pairs of texts that lie over each other by more than two pixels."""
        found = []
        for (one, a), (other, b) in itertools.combinations(self.boxes, 2):
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            down = min(a.y1, b.y1) - max(a.y0, b.y0)
            if across > 2 and down > 2:
                found.append((one, other))
        return found


def draw(function: Callable[[Path], object], folder: Path) -> Picture:
    """Return the one figure that a function draws into a file."""
    pictures: list[Picture] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: object, **options: object) -> None:
        save(figure, *arguments, **options)  # type: ignore[arg-type]
        # Now: the style that ticks are laid out in ends with the drawing.
        pictures.append(Picture(figure, _boxes(figure)))

    with patch.object(Figure, "savefig", keep):
        function(folder / "figure.png")
    (picture,) = pictures
    return picture


def _texts(figure: Figure) -> list[Text]:
    """Return the texts that can be seen, of ticks only those within the view."""
    ticks = figure.findobj(Tick)
    labels = {id(one) for tick in ticks for one in tick.findobj(Text)}
    found = [one for one in figure.findobj(Text) if id(one) not in labels]
    for axis in figure.findobj(Axis):
        if axis.axes.axison:
            for tick in axis._update_ticks():
                found += [
                    one for one in (tick.label1, tick.label2) if one.get_visible()
                ]
    return [one for one in found if one.get_visible() and one.get_text().strip()]


def _boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    assert isinstance(figure.canvas, FigureCanvasAgg)
    renderer = figure.canvas.get_renderer()
    # The box behind a text is wider than its letters, which are what must not touch.
    return [
        (text.get_text(), Text.get_window_extent(text, renderer))
        for text in _texts(figure)
    ]


def legend_colours(picture: Picture) -> dict[str, object]:
    """Return the colour of each line or patch that a legend names."""
    colours: dict[str, object] = {}
    for legend in picture.figure.findobj(Legend):
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            for ask in ("get_facecolor", "get_color"):
                if hasattr(handle, ask):
                    colours[text.get_text()] = getattr(handle, ask)()
                    break
    return colours
