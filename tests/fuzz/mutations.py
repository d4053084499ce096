"""Changes to valid inputs: of their trees, and of their bytes.

A change of the tree leaves the syntax right, so that what reads the values is reached;
a change of the bytes tries the parsers.
"""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.formats import Tree

Place = tuple[str | int, ...]
"""Keys and positions from the root of a tree."""

DEEP = 40
"""Levels of nesting of a value that stands where none should be nested."""


def _nested(depth: int, inner: Any, *, as_list: bool) -> Any:
    for _ in range(depth):
        inner = [inner] if as_list else {"a": inner}
    return inner


WHOLE = (
    *(0, -1, 1, 2, 3, 5, 7, 16, 17, 63, 100, 1000, 4097, 10**5, 10**6, 10**6 + 1),
    *(10**9, 2**31 - 1, 2**31, 2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64),
    *(-(2**63), 10**30, 10**400),
)
REAL = (
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-9, 1e-300, 5e-324, 1e9, 1e18, 8e30, 1e200),
    *(1e308, float("inf"), float("-inf"), float("nan"), 0.1 + 0.2, 1 - 1e-16),
)
TEXT = (
    *("", " ", "a", "0", "1", "-1", "1e5", "nan", "inf", "true", "none", "auto"),
    *("450 GB/s", "1e-300 GB/s", "1e400 GB/s", "0 GB/s", "-1 GB/s", "1 Gb/s", "8 bit"),
    *("1 us", "-1 us", "0 s", "1e300 s", "5 min", "80 GiB", "0 B", "1e30 B", "1 GiB/s"),
    *("1 TFLOP/s", "1e40 TFLOP/s", "12 parsec", "1 / s", "1 GB//s", "GB/s", "1 1 GB/s"),
    *("level node", "level *", "* <-> *", "device 0 -> *", "#1", "a -> b #99999999999"),
    *("******.. <-> *", "* * * * * * * * -> x", "leaf 0 <-> spine *", "device 0"),
    *("tp1 dp1", "tp2 pp2 dp2", "dp-pp-tp", "tp-cp-ep-dp-pp", "tp0", "tp1 dp999999"),
    *("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "ring", "hierarchical", "direct"),
    *("fat-tree", "custom", "rail", "torus", "mesh", "llama2-7b", "h100-sxm", "nest"),
    *("..", "/", "/dev/zero", "/dev/null", ".", "scenario.toml", "links.toml", "a\0b"),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "\r\n", "\u202eabc", "é" * 9),
    *(
        "\ufeff",
        "\U0001f680",
        "\uff11\uff12",
        "\u0663",
        "[bold]x[/bold]",
        "[/]",
        "{x}",
        "%s%n",
    ),
    *("$HOME", "<script>", "a" * 300, "x" * 100_000, "9" * 5000, "é\u0301", "\ud800"),
    *("== 1", ">= 0.4", "<= nan", "< 1e999 s", ">= 12 tokens/s", "<=", "> -5 %"),
)
WILD = st.one_of(
    st.sampled_from(WHOLE),
    st.sampled_from(REAL),
    st.sampled_from(TEXT),
    st.booleans(),
    st.none(),
    st.sampled_from([[], {}, [[]], [{}], [None], {"a": 1}, {"": 0}, ["1f1b"], [1, 1]]),
    st.builds(_nested, st.just(DEEP), st.integers(0, 2), as_list=st.booleans()),
    st.text(max_size=12),
    st.integers(-(10**4), 10**4),
    st.floats(width=32),
)
"""Values that do not belong where they are put, most of the time."""

MOST_VALUES = 30_000
"""In a list that is made longer."""

KEYS = (
    *("", "a", "name", "kind", "path", "config", "num_layers", "__class__", "é", "a.b"),
    *("factor", "set", "what", "micro_batch_size", "time_limit", "x" * 300, "\x1b[2J"),
)


def places(tree: Tree, start: Place = ()) -> Iterator[Place]:
    """Yield where every value of a tree stands, the root left out."""
    pairs = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, inner in pairs:
        yield (*start, key)
        yield from places(inner, (*start, key))


def value_at(tree: Tree, place: Place) -> Any:
    """Return the value at a place."""
    for key in place:
        tree = tree[key]
    return tree


def without(tree: Tree, place: Place) -> Tree:
    """Return a copy that lacks what stands at a place."""
    changed = copy.deepcopy(tree)
    del value_at(changed, place[:-1])[place[-1]]
    return changed


@st.composite
def mutated_trees(draw: st.DrawFn, tree: Tree, within: Place = ()) -> Tree:
    """Change one to three things in a tree.

    Parameters
    ----------
    draw
        Of hypothesis.
    tree
        A tree that is valid.
    within
        Change what stands below this place, if it is there.
    """
    changed = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        found = [place for place in places(changed) if place[: len(within)] == within]
        found = found or list(places(changed))
        if not found:
            return copy.deepcopy(draw(WILD))
        place = draw(st.sampled_from(found))
        _change(draw, changed, place)
    return changed


def _change(draw: st.DrawFn, tree: Tree, place: Place) -> None:
    """Change what stands at a place."""
    outer, key = value_at(tree, place[:-1]), place[-1]
    value = outer[key]
    how = draw(
        st.sampled_from(["near", "near", "wild", "wild", "delete", "key", "swap"])
    )
    if how == "near":
        outer[key] = copy.deepcopy(draw(_near(value)))
    elif how == "wild":
        outer[key] = copy.deepcopy(draw(WILD))
    elif how == "delete":
        del outer[key]
    elif how == "swap":
        other = draw(st.sampled_from(list(places(tree))))
        outer[key] = copy.deepcopy(value_at(tree, other))
    elif isinstance(outer, dict):
        outer[draw(st.sampled_from(KEYS))] = outer.pop(key)
    else:
        outer.insert(0, copy.deepcopy(value))


def _near(value: Any) -> st.SearchStrategy[Any]:
    """Return values of the same type, not far away."""
    near = WILD
    if isinstance(value, bool):
        near = st.just(not value)
    elif isinstance(value, int):
        near = st.sampled_from([value + 1, value - 1, 2 * value, value * 1000, -value])
    elif isinstance(value, float):
        near = st.sampled_from([2 * value, value / 3, -value, value * 1e12])
    elif isinstance(value, str):
        near = _near_text(value)
    elif isinstance(value, list):
        turned = value[::-1]
        # Three times 300 of 300 would be more than the machine holds.
        many = value * min(300, MOST_VALUES // (1 + sum(1 for _ in places(value))))
        near = st.sampled_from([value[1:], value * 2, many or [], [value], turned])
    elif isinstance(value, dict):
        near = st.sampled_from([{**value, "unknown": 1}, [value], list(value), {}])
    return near


def _near_text(value: str) -> st.SearchStrategy[str]:
    """Return texts that have another number or another end."""
    number = st.sampled_from(["0", "1", "3", "1e9", "1e-300", "1e300", "0x1F", "7."])
    return st.one_of(
        number.map(lambda new: " ".join([new, *value.split(" ")[1:]])),
        st.sampled_from([value + "x", value[:-1], value.upper(), f" {value} "]),
        st.sampled_from(TEXT).map(lambda new: value + new[:1000]),
    )


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Change the bytes of a file: cut, flipped, doubled, encoded in another way."""
    where = draw(st.integers(0, len(content)))
    how = draw(st.sampled_from(["cut", "flip", "insert", "line", "encode", "whole"]))
    if how == "cut":
        return content[:where]
    if how == "flip":
        flipped = content[where : where + 1].translate(
            bytes(b ^ 0x15 for b in range(256))
        )
        return content[:where] + flipped + content[where + 1 :]
    if how == "insert":
        inserted = draw(st.sampled_from(_INSERTED) | st.binary(min_size=1, max_size=6))
        return content[:where] + inserted + content[where:]
    if how == "line":
        lines = content.splitlines(keepends=True) or [b""]
        line = draw(st.integers(0, len(lines) - 1))
        times = draw(st.sampled_from([0, 2, 2, 50]))
        return b"".join(
            lines[:line] + lines[line : line + 1] * times + lines[line + 1 :]
        )
    if how == "encode":
        encoding = draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig", "latin-1"]))
        text = content.decode("utf-8", errors="replace")
        return text.encode(encoding, errors="replace")
    return draw(st.sampled_from(_WHOLE) | st.binary(max_size=40))


_INSERTED = (b"\0", b"\xff", b"[", b"]", b'"', b"'''", b"#", b"\n[[", b"= ", b"{" * 50)
_INSERTED += (b"[" * 5000, b"\r", b"\x1b[2J", b"\xe2\x80\xae", b",", b"9" * 5000, b"-")
_WHOLE = (b"", b"\n", b"[]", b"{}", b"null", b"0", b'"x"', b"[" * 200_000, b"a=" * 9)
_WHOLE += (
    b"{" * 100_000,
    b'{"a":' * 5000,
    b"\xff\xfe",
    b"NaN",
    b"[1e999]",
    b"[[" * 999,
)
