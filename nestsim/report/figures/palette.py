"""Which colour stands for what: the same one in every figure of every run."""

from collections.abc import Mapping, Sequence
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

_OTHER_PART = INK

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


def part_colour(part: str) -> str:
    """Return the colour of a part of a device's memory."""
    return MEMORY_PARTS.get(part, _OTHER_PART)


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
