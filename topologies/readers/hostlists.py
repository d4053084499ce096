"""Slurm's short form for many names: ``node[01-16,20]``, ``rack[1-2]n[1-8],login``.

References
----------
.. [1] SchedMD, Slurm, man pages ``topology.conf(5)`` and ``scontrol(1)``: hostlist
   expressions.
"""

import itertools
import re

from topologies.errors import InputError

_EXPECTED = "names as Slurm writes them, e.g. node[01-16,20]"
_PART = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"^(\d{1,12})(?:-(\d{1,12}))?$")
_NAME = re.compile(r"^[\w.:@+-]{1,100}$")


def expand_hostlist(text: str, most: int) -> list[str]:
    """Return the names that an expression stands for, in its order.

    Parameters
    ----------
    text
        The expression.
    most
        Most names.

    Raises
    ------
    InputError
        If it is none, or stands for more.

    Examples
    --------
    >>> expand_hostlist("node[01-03,7]", 100)
    ['node01', 'node02', 'node03', 'node7']
    """
    names: list[str] = []
    for word in _words(text):
        names += _expanded(word, most - len(names))
    return names


def _words(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    words, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in {0, 1}:
            break
        if letter == "," and not depth:
            words.append(text[start:place])
            start = place + 1
    words.append(text[start:])
    if depth or not all(words):
        raise InputError("is no list of names", got=text, expected=_EXPECTED)
    return words


def _expanded(word: str, most: int) -> list[str]:
    """Return the names of one word."""
    choices: list[list[str]] = []
    count, place = 1, 0
    for found in _PART.finditer(word):
        if found.start() != place:
            break
        place = found.end()
        if found[3] is not None:
            choices.append([found[3]])
            continue
        room = max(1, most // count)
        numbers = _numbers(found[2], room, word)
        choices += [[found[1]], numbers]
        count *= len(numbers)
        if count > most:
            raise _too_many(word)
    if place != len(word) or most < 1:
        raise _too_many(word) if most < 1 else _no_list(word)
    names = ["".join(parts) for parts in itertools.product(*choices)]
    for name in names[:1]:
        if not _NAME.match(name):
            raise _no_list(word)
    return names


def _numbers(text: str, most: int, word: str) -> list[str]:
    """Return the numbers of one pair of brackets, with their zeros in front."""
    numbers: list[str] = []
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        if found is None:
            raise _no_list(word)
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise _no_list(word)
        if len(numbers) + last - first + 1 > most:
            raise _too_many(word)
        width = len(found[1])
        numbers += [f"{number:0{width}d}" for number in range(first, last + 1)]
    return numbers


def _no_list(word: str) -> InputError:
    return InputError("is no list of names", got=word, expected=_EXPECTED)


def _too_many(word: str) -> InputError:
    return InputError("stands for too many names", got=word, expected=_EXPECTED)
