"""Two small languages of Megatron-LM: lists of blocks, and layouts of pipelines.

Lists such as ``([0]*3+[1]*58)`` say which blocks have experts or windows
(``moe_freq_type`` of ``megatron/training/arguments.py``). Layouts such as
``Et*3|(tt|)*29m|L`` say what each virtual stage holds: ``E`` the embedding, ``t`` a
block, ``m`` a layer of multi-token prediction, ``L`` the loss
(``PipelineParallelLayerLayout`` of
``megatron/core/transformer/pipeline_parallel_layer_layout.py``). Nothing is executed.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from estimators.models.limits import MAX_LAYERS
from topologies.errors import InputError
from topologies.input_file import Value

_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d{1,5}))?")
_REPEATED = re.compile(r"(.)\*(\d{1,5})")
_MOST_LETTERS = 4 * MAX_LAYERS
_MOST_LENGTH = 20_000
_LIST_EXAMPLE = 'a number, or a list such as "([0]*3+[1]*58)"'
_LAYOUT_EXAMPLE = 'letters E, t, m and L with | between stages, "Ettt|(tt|)*29m|L"'


def read_list(text: str, where: str) -> int | list[int]:
    """Return the number, or the list, that a text stands for.

    Raises
    ------
    InputError
        If it is neither.
    """
    plain = re.sub(r"\s", "", text)
    if plain.isdecimal() and len(plain) < 10:
        return int(plain)
    found, end = _sum(plain, 0, where, 0)
    if end != len(plain):
        raise _no_list(text, where)
    return found


def _sum(text: str, start: int, where: str, depth: int) -> tuple[list[int], int]:
    """Read terms joined by plus signs, from a position on."""
    whole, position = _term(text, start, where, depth)
    while text[position : position + 1] == "+":
        more, position = _term(text, position + 1, where, depth)
        whole = whole + more
        if len(whole) > _MOST_LETTERS:
            raise _no_list(text, where)
    return whole, position


def _term(text: str, start: int, where: str, depth: int) -> tuple[list[int], int]:
    """Read a list or a sum in parentheses, and how often it is repeated."""
    if depth > 16:
        raise _no_list(text, where)
    opening = text[start : start + 1]
    if opening == "(":
        part, position = _sum(text, start + 1, where, depth + 1)
        if text[position : position + 1] != ")":
            raise _no_list(text, where)
        position += 1
    else:
        found = re.compile(r"\[(\d(?:,\d)*,?)\]").match(text, start)
        if found is None:
            raise _no_list(text, where)
        part = [int(digit) for digit in found[1].strip(",").split(",")]
        position = found.end()
    while (times := re.compile(r"\*(\d{1,5})").match(text, position)) is not None:
        if len(part) * int(times[1]) > _MOST_LETTERS:
            raise _no_list(text, where)
        part, position = part * int(times[1]), times.end()
    return part, position


def _no_list(text: str, where: str) -> InputError:
    return Value(text, where).error("is no list of blocks", _LIST_EXAMPLE)


def write_list(marks: Sequence[int]) -> str:
    """Write a list of 0 and 1, equal neighbours together.

    Examples
    --------
    >>> write_list([0, 0, 0, 1, 1])
    '[0]*3+[1]*2'
    """
    runs = [(mark, len(list(group))) for mark, group in groupby(marks)]
    return "+".join(f"[{mark}]*{length}" for mark, length in runs)


def hybrid_letters(num_layers: int, attention: float, mlp: float) -> str:
    """Return the letters of a hybrid of Mamba-2 that is given by its shares.

    Attention is spread evenly with Mamba-2 at both ends; feed-forward layers evenly
    over what is left, so that they come late (``megatron/core/ssm/
    mamba_hybrid_layer_allocation.py``).

    Parameters
    ----------
    num_layers
        Blocks.
    attention, mlp
        Shares of attention and of feed-forward layers.

    Examples
    --------
    >>> hybrid_letters(9, 0.12, 0.5)
    'M-M-*M-M-'
    """
    letters = ["M"] * num_layers
    count = round(num_layers * attention)
    for index in _spaced(range(num_layers), (num_layers - count) / (count + 1)):
        letters[index] = "*"
    free = [index for index, letter in enumerate(letters) if letter == "M"]
    count = round(num_layers * mlp)
    if count:
        for index in _spaced(free, (len(free) - count) / count):
            letters[index] = "-"
    return "".join(letters)


def _spaced(places: Sequence[int], between: float) -> Iterator[int]:
    """Yield places that have as many others between them on average."""
    left = between
    for place in places:
        if left < 0.5:
            yield place
            left += between
        else:
            left -= 1.0


def write_layout(blocks: Sequence[int], num_mtp: int = 0) -> str:
    """Write the layout of virtual stages that hold numbers of blocks.

    Parameters
    ----------
    blocks
        Of each virtual stage, in the order of the chain.
    num_mtp
        Layers of multi-token prediction, which stand with the loss.

    Examples
    --------
    >>> write_layout([1, 2, 2, 2, 0], 1)
    'Et|(tt|)*3mL'
    """
    if len(blocks) == 1:
        return "E" + "t" * blocks[0] + "m" * num_mtp + "L"
    parts = ["E" + _letters(blocks[0]) + "|"]
    for count, group in groupby(blocks[1:-1]):
        times = len(list(group))
        one = _letters(count) + "|"
        parts.append(f"({one})*{times}" if times > 1 else one)
    return "".join(parts) + _letters(blocks[-1]) + "m" * num_mtp + "L"


def _letters(count: int) -> str:
    """Write a number of blocks; short ones letter by letter, as people do."""
    return "t" * count if count < 5 else f"t*{count}"


def read_layout(text: str, num_stages: int) -> tuple[tuple[int, ...], int]:
    """Return the blocks of each virtual stage of a layout, and its layers of MTP.

    Parameters
    ----------
    text
        The layout.
    num_stages
        Pipeline stages.

    Raises
    ------
    InputError
        If it is no layout, or one of another number of stages; or if layers of
        multi-token prediction do not stand with the loss.
    """
    letters = _unrolled(text)
    parts = letters.split("|")
    whole = letters.replace("|", "")
    if set(whole) - set("EtmL") or not re.fullmatch(r"Et*m*L", whole):
        raise _no_layout(text, _LAYOUT_EXAMPLE)
    if num_stages < 1 or len(parts) % num_stages:
        raise _no_layout(text, f"a multiple of {num_stages} parts, not {len(parts)}")
    if any("m" in part for part in parts[:-1]):
        raise Value(text, "--pipeline-model-parallel-layout").error(
            "has multi-token prediction elsewhere than with the loss",
            'its layers in the last part: ".. |mL"',
        )
    if any("E" in part for part in parts[1:]) or "L" in "".join(parts[:-1]):
        raise _no_layout(text, "E in the first part and L in the last one")
    return tuple(part.count("t") for part in parts), whole.count("m")


def _unrolled(text: str) -> str:
    """Write out what is repeated, as Megatron does: brackets, then single letters."""
    letters = re.sub(r"[\s,]", "", text)
    if len(letters) > _MOST_LENGTH:
        raise _no_layout(text, _LAYOUT_EXAMPLE)
    for pattern in (_GROUP, _REPEATED):
        length = len(letters) + sum(
            len(found[1]) * int(found[2] or 1) for found in pattern.finditer(letters)
        )
        if length > 2 * _MOST_LETTERS:
            raise _no_layout(text, _LAYOUT_EXAMPLE)
        letters = pattern.sub(lambda found: found[1] * int(found[2] or 1), letters)
    return letters


def _no_layout(text: str, expected: str) -> InputError:
    return Value(
        text if len(text) < 200 else text[:200] + "..",
        "--pipeline-model-parallel-layout",
    ).error("is no layout of a pipeline", expected)
