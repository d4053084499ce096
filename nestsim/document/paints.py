"""Which colour and texture stand for what: the same ones in every figure.

The texture says the same as the colour: figures can be read in grey, in print and by
those who do not tell the colours apart. The page defines each paint as an SVG pattern,
whose colours follow the reader's choice of light or dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

INK = "#333333"
"""Of lines and words that are not data."""

DISTINCT = (
    "#0173b2",
    "#de8f05",
    "#029e73",
    "#d55e00",
    "#cc78bc",
    "#ca9161",
    "#fbafe4",
    "#949494",
    "#ece133",
    "#56b4e9",
)
"""seaborn's palette "colorblind"."""

_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _BROWN, _PINK, _GREY, _YELLOW, _SKY = DISTINCT

MEMORY_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "weights": _BLUE,
        "second copy of weights": "#5e9bd1",
        "frozen weights": "#9fb8d9",
        "gradients": _SKY,
        "optimizer": _GREEN,
        "activations": _ORANGE,
        "logits": _YELLOW,
        "working": _RED,
        "recomputed": _BROWN,
        "gathered layers": _PURPLE,
        "buffers": "#8f7fc4",
        "gradient bucket": _PINK,
        "copies of gradients": _GREY,
        "staging": "#4b2e83",
    }
)
"""Part of a device's memory -> its colour, in the order in which parts are stacked."""

PLANNERS: Mapping[str, str] = MappingProxyType(
    {
        "nest": _BLUE,
        "manual": _ORANGE,
        "mcmc": _GREEN,
        "phaze": _RED,
        "alpa": _SKY,
        "mist": _PINK,
        "exhaustive": _PURPLE,
        "fixed": _BROWN,
    }
)
"""Planner -> its colour."""

_OTHER_PLANNERS = (_GREY, _YELLOW)

_LEVELS = (_GREEN, _BLUE, _ORANGE, _PURPLE, _BROWN, _GREY)
"""Colours of the levels of a network, the innermost first."""

PLANNED, SIMULATED = _BLUE, _ORANGE
"""Colours of what was planned and of what the replay found."""

LONGER, SHORTER = _RED, _GREEN
"""Colours of causes that make the replay longer or shorter than planned."""


def planner_colours(planners: Sequence[str]) -> tuple[str, ...]:
    """Return the colour of each planner; unknown ones get those that are left."""
    others = [name for name in planners if name not in PLANNERS]
    spare = {
        name: _OTHER_PLANNERS[number % len(_OTHER_PLANNERS)]
        for number, name in enumerate(others)
    }
    return tuple(PLANNERS.get(name) or spare[name] for name in planners)


def level_colour(number: int) -> str:
    """Return the colour of a level; 0 is the innermost one."""
    return _LEVELS[number % len(_LEVELS)]


def ink_on(colour: Sequence[float] | str) -> str:
    """Return the colour of words that can be read on a coloured ground."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)  # type: ignore[arg-type]  # a colour
    return "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else INK


TEXTURES = (
    *("plain", "rising", "falling", "dots", "lying", "standing"),
    *("grid", "net", "wide", "checks"),
)
"""Drawn by the template."""


@dataclass(frozen=True, slots=True)
class Paint:
    """A colour and a texture."""

    colour: str
    texture: str = "plain"


PAINTS: Mapping[str, Paint] = MappingProxyType(
    {
        "forward": Paint(_SKY),
        "backward": Paint(_ORANGE, "rising"),
        "weight": Paint(_YELLOW, "dots"),
        "optimizer": Paint("#4d4d4d", "grid"),
        "send": Paint("#9a9a9a", "wide"),
        "reduce": Paint(_GREEN, "falling"),
        "gather": Paint(_PURPLE, "standing"),
        "tied": Paint(_RED, "checks"),
        "mixed": Paint(_GREY, "lying"),
        "planned": Paint(PLANNED),
        "simulated": Paint(SIMULATED, "rising"),
        "cause": Paint(_SKY),
        "longer": Paint(LONGER, "falling"),
        "shorter": Paint(SHORTER, "dots"),
        "use": Paint(_BLUE),
        "idle": Paint("#8a8a8a", "wide"),
        **{
            f"part-{name.replace(' ', '-')}": Paint(
                colour, TEXTURES[number % len(TEXTURES)]
            )
            for number, (name, colour) in enumerate(MEMORY_PARTS.items())
        },
        "part-other": Paint("#6b6b6b", "net"),
        **{
            f"series-{number}": Paint(colour, TEXTURES[number])
            for number, colour in enumerate(DISTINCT)
        },
    }
)
"""Name -> paint. Kinds of bars, parts of memory, causes; ``series-0`` to ``series-9``
are for anything else that is told apart."""

DASHES: tuple[tuple[int, ...], ...] = (
    (1, 0),
    *((7, 3), (2, 2), (9, 3, 2, 3), (4, 4), (12, 4), (2, 5), (6, 2, 2, 2, 2, 2)),
)
"""Dashes of lines: the k-th line has the colour of ``series-k``, and these."""


def fill(name: str) -> str:
    """Return what a specification names as ``fill`` to get a paint."""
    return f"url(#paint-{name})"


def part_paint(part: str) -> str:
    """Return the name of the paint of a part of a device's memory."""
    return f"part-{part.replace(' ', '-')}" if part in MEMORY_PARTS else "part-other"


def line_colour(number: int) -> str:
    """Return the colour of the k-th line of a figure."""
    return f"var(--series-{number % len(DISTINCT)})"


def line_dash(number: int) -> list[int]:
    """Return the dashes of the k-th line of a figure."""
    return list(DASHES[number % len(DASHES)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Swatch:
    """An entry of a legend."""

    name: str
    """What the mark stands for."""

    paint: str
    """One of `nestsim.document.paints.PAINTS`, or of its strokes."""

    line: bool = False
    """Whether the mark is a line."""

    dash: int | None = None
    """Number of a line's dashes; None for that of its paint."""

    @property
    def dashes(self) -> int:
        """Return the number of a line's dashes."""
        return int(self.paint) if self.dash is None else self.dash


def swatches(paints: Mapping[str, str]) -> tuple[Swatch, ...]:
    """Return the legend of names and their paints."""
    return tuple(Swatch(name=name, paint=paint) for name, paint in paints.items())


def series_paints(names: Iterable[str]) -> dict[str, str]:
    """Return a paint for each name, in their order."""
    numbered = enumerate(dict.fromkeys(names))
    return {name: f"series-{place % len(DISTINCT)}" for place, name in numbered}


def planner_series(planners: Iterable[str]) -> dict[str, int]:
    """Return the number of each planner's colour: the same one in every figure."""
    names = list(dict.fromkeys(planners))
    colours = map(DISTINCT.index, planner_colours(names))
    return dict(zip(names, colours, strict=True))
