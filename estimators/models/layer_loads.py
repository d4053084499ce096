"""How many tokens each expert of each layer got, from a file of counts.

The file is CSV with a row for each expert of each block that has any::

    layer,expert,tokens
    3,0,40211
    3,1,38954
    ..

Blocks and experts count from 0. Tokens are in any unit, layer by layer; those of an
expert that got none are 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from topologies.csv_file import CsvLine, csv_lines
from topologies.errors import InputError, located
from topologies.input_file import read_text

COLUMNS = ("layer", "expert", "tokens")
"""What the file says of each expert."""

EXPECTED = "CSV with the columns layer, expert and tokens"
"""What the file is."""

MAX_FILE = 30_000_000
"""Longest file that is read [byte]."""

_MAX_NUMBER = 1_000_000
_MAX_TOKENS = 1e15

_SETTING = "moe_routing_file"


@dataclass(frozen=True, slots=True)
class LayerLoads:
    """Tokens of experts, layer by layer."""

    layers: tuple[int, ...]
    """Numbers of the blocks, from 0, in order."""

    tokens: tuple[tuple[float, ...], ...]
    """Tokens of each expert, of each of them, shape ``(layers, E)``."""

    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Architectures are keys of caches: some 15,000 numbers are hashed once.
        object.__setattr__(self, "_hash", hash((self.layers, self.tokens)))

    def __hash__(self) -> int:
        return self._hash

    def check_blocks(self, blocks: Sequence[int]) -> None:
        """Refuse other layers than the blocks that have experts.

        Raises
        ------
        InputError
            If there is one that has no experts, or one of those is not there.
        """
        if self.layers == tuple(blocks):
            return
        odd = min({*self.layers} ^ {*blocks})
        raise InputError(
            f"layer {odd} has no experts"
            if odd in self.layers
            else f"layer {odd} has experts, and no loads",
            where=_SETTING,
            got=f"{len(self.layers)} layers, {self.layers[0]} to {self.layers[-1]}",
            expected=f"the {len(blocks)} blocks with experts, counted from 0",
        )


def layer_loads(folder: Path, name: str | None) -> LayerLoads | None:
    """Return what a file of loads says; None without one.

    Parameters
    ----------
    folder
        Where the file's name starts.
    name
        The file.

    Raises
    ------
    InputError
        If it is no such file, or does not say all of it once.
    """
    if name is None:
        return None
    with located(_SETTING, ": "), located(name, ": "):
        text = read_text(folder / name, expected=EXPECTED, most_bytes=MAX_FILE)
        return _loads(_counts(csv_lines(text, COLUMNS, EXPECTED)))


def _counts(lines: Iterable[CsvLine]) -> dict[tuple[int, int], float]:
    """Return tokens by layer and expert."""
    counts: dict[tuple[int, int], float] = {}
    for line in lines:
        with located(line.where):
            layer, expert, tokens = (line.values[column] for column in COLUMNS)
            key = _number("layer", layer), _number("expert", expert)
            if key in counts:
                raise InputError(
                    "is there twice",
                    got=f"expert {expert} of layer {layer}",
                    expected="a row for each expert of each layer",
                )
            counts[key] = _tokens(tokens)
    return counts


def _number(where: str, text: str) -> int:
    if text.isascii() and text.isdigit() and int(text[:10]) <= _MAX_NUMBER:
        return int(text[:10])
    expected = f"a whole number from 0, at most {_MAX_NUMBER:,}"
    raise InputError("is no number of one", where=where, got=text, expected=expected)


def _tokens(text: str) -> float:
    try:
        tokens = float(text)
    except ValueError:
        tokens = math.nan
    if 0.0 <= tokens <= _MAX_TOKENS:
        return tokens
    expected = f"a number from 0 to {_MAX_TOKENS:g}"
    raise InputError("cannot be", where="tokens", got=text, expected=expected)


def _loads(counts: dict[tuple[int, int], float]) -> LayerLoads:
    """Return the loads; refuse layers that lack an expert that another has."""
    if not counts:
        raise InputError("has no loads", expected="a row for each expert of each layer")
    layers = sorted({layer for layer, _ in counts})
    experts = sorted({expert for _, expert in counts})
    if len(counts) != len(layers) * len(experts) or experts[-1] >= len(experts):
        lacks = next(
            (layer, expert)
            for layer in layers
            for expert in range(experts[-1] + 1)
            if (layer, expert) not in counts
        )
        raise InputError(
            f"expert {lacks[1]} of layer {lacks[0]} is missing",
            got=f"{len(counts):,} rows",
            expected="a row for each expert of each layer, 0 tokens where it got none",
        )
    rows = (tuple(counts[layer, expert] for expert in experts) for layer in layers)
    return LayerLoads(tuple(layers), tuple(rows))
