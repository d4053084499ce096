"""What of a text fits where it stands: widths, as matplotlib will draw them."""

import math
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

DPI = 100
"""Dots of a figure for each inch: letters are hinted to them."""

_GAP = 0.08
"""Least distance of two names on one line [inch]."""

_HINTED = 1.25
"""Hinting makes no text that many times as wide, or as narrow, as its letters are
designed."""


def _font(weight: str) -> "FT2Font":
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(weight=weight)))


@lru_cache(maxsize=4096)
def text_width(words: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text, of its longest line if it has several [inch]."""
    font = _font(weight)
    font.set_size(size, DPI)
    widest = 0.0
    for line in words.split("\n"):
        font.set_text(line, 0.0)
        widest = max(widest, font.get_width_height()[0] / 64.0)
    return widest / DPI


@cache
def _designed_width(letter: str, weight: str) -> float:
    """Return the width of a letter in those of an em."""
    font = _font(weight)
    font.set_size(72.0, 1)
    return font.load_char(ord(letter)).linearHoriAdvance / 65536.0


def fits(words: str, size: float, room: float, weight: str = "normal") -> bool:
    """Return whether a line is no wider than a room.

    Only what may be as wide is laid out, which takes a letter 0.03 ms.
    """
    designed = sum(_designed_width(letter, weight) for letter in words) * size / 72.0
    if designed * _HINTED < room:
        return True
    return designed <= _HINTED * room and text_width(words, size, weight) <= room


def widest(texts: Sequence[str], size: float) -> float:
    """Return the width of the widest of some texts, 0 if there are none [inch]."""
    return max((text_width(words, size) for words in texts), default=0.0)


def shortened(words: str, size: float, room: float, weight: str = "normal") -> str:
    """Return a text, its end replaced by an ellipsis if it is wider than a room.

    Parameters
    ----------
    words
        The text, on one line.
    size
        Of its letters [point].
    room
        Width that it may take [inch].
    weight
        ``"normal"`` or ``"bold"``.
    """
    if fits(words, size, room, weight):
        return words
    kept = bisect_right(
        range(1, len(words) + 1),
        x=False,
        key=lambda number: not fits(f"{words[:number]}…", size, room, weight),
    )
    return f"{words[:kept].rstrip()}…"


def wrapped(words: str, size: float, room: float, most_lines: int = 3) -> str:
    """Break a text into lines that fit into a room where its words do.

    Parameters
    ----------
    words
        The text; its own line breaks stay.
    size
        Of its letters [point].
    room
        Width that a line may take [inch].
    most_lines
        Of each of its own lines; what is left over is cut off with an ellipsis.
    """
    letters = max(4, int(room / text_width("n", size)))
    return "\n".join(
        part
        for line in words.split("\n")
        for part in textwrap.wrap(
            line, letters, break_long_words=False, max_lines=most_lines, placeholder="…"
        )
    )


def filled(
    words: str, size: float, room: float, most_lines: int, weight: str = "normal"
) -> str:
    """Fill lines with as many words as fit, and shorten the last one.

    Parameters
    ----------
    words
        The text, on one line.
    size, room, weight
        As for `shortened`.
    most_lines
        Lines of the result.
    """
    lines: list[str] = []
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines else word
        is_short = lines and fits(longer, size, room, weight)
        if is_short or len(lines) == most_lines:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(shortened(line, size, room, weight) for line in lines)


def size_that_fits(
    texts: Sequence[str], room: float, *, largest: float, smallest: float
) -> float | None:
    """Return the largest size at which each text fits into a room [point].

    Parameters
    ----------
    texts
        All are written at one size.
    room
        Width that each may take [inch].
    largest, smallest
        Sizes that are tried, in steps of half a point [point].

    Returns
    -------
    float | None
        None if even the smallest one is too large.
    """
    size = largest
    while size >= smallest:
        if all(fits(words, size, room) for words in texts):
            return size
        size -= 0.5
    return None


def spaced(places: Sequence[float], names: Sequence[str], size: float) -> list[int]:
    """Return which names of an axis can be written without touching one another.

    The first and the last one can; between them, as many as fit, from the first on.

    Parameters
    ----------
    places
        Middle of each name along the axis, rising [inch].
    names
        What is written there, on one line each.
    size
        Of the letters [point].
    """
    if not names:
        return []
    halves = [text_width(name, size) / 2 + _GAP / 2 for name in names]
    last = len(names) - 1
    kept, end = [0], places[0] + halves[0]
    limit = places[last] - halves[last] if last else math.inf
    for index in range(1, last):
        if places[index] - halves[index] >= end and (
            places[index] + halves[index] <= limit
        ):
            kept.append(index)
            end = places[index] + halves[index]
    if last and limit >= places[0] + halves[0]:
        kept.append(last)
    return kept
