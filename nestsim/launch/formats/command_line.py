"""The command of a shell script that starts a framework, word by word.

Line continuations, comments, quotes and variables are followed as far as launch scripts
of frameworks without a configuration language of their own need it.
"""

import re
import shlex
from collections.abc import Mapping

from nestsim.launch.read import LaunchSource
from topologies.errors import InputError

_VARIABLE = re.compile(
    r"\$\{([A-Za-z_]\w*)(?::-([^${}]*))?\}|\$([A-Za-z_]\w*)",
)
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_MOST_WORDS = 10_000
_MOST_DEPTH = 8


def started_words(
    source: LaunchSource, start: re.Pattern[str], expected: str
) -> list[str]:
    """Return the words of the command that starts a framework, variables filled in.

    Parameters
    ----------
    source
        The script.
    start
        What the command's line contains, and no other.
    expected
        What a command looks like, for messages.

    Raises
    ------
    InputError
        If there is no such command.
    """
    variables = dict(source.variables)
    text = re.sub(r"\\\r?\n", " ", source.text)
    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            continue
        if start.search(line):
            return _split(_filled(line, variables))
        assigned = _ASSIGNMENT.fullmatch(line)
        if assigned:
            words = _split(_filled(assigned[2], variables), lenient=True)
            variables.setdefault(assigned[1], words[0] if words else "")
    raise InputError("starts nothing that is known", expected=expected)


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Put variables in; those without a value stay: most of them are of no matter."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        usual = f"${name}" if match[2] is None else match[2]
        return variables.get(name, usual)

    # Values that stand for others' are inside of each other.
    for _ in range(_MOST_DEPTH):
        filled = _VARIABLE.sub(value, text)
        if filled == text or len(filled) > 1_000_000:
            break
        text = filled
    return text


def _split(text: str, *, lenient: bool = False) -> list[str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        if lenient:  # a value of several lines
            return [text]
        raise InputError(
            f"is no command line: {error}", expected="quotes in pairs"
        ) from None
    if len(words) > _MOST_WORDS:
        raise InputError(
            "is too long a command line", expected=f"at most {_MOST_WORDS:,} words"
        )
    return words
