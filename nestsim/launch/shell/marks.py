"""Marks in words: what nothing in a script sets, and what only a run would tell.

Most such words are paths that no plan depends on; whoever needs the value refuses the
mark.
"""

import re

from topologies.errors import InputError

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Marks around the name of what is not known: no characters of any script."""

_UNBROKEN = "\u00a0"
_LONGEST = 80

MARK = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")

_MACHINE = (
    "BASH BASHPID BASH_SOURCE BASH_VERSION DIRSTACK EUID EPOCHSECONDS FUNCNAME GROUPS "
    "HOME HOSTNAME HOSTTYPE LANG LINENO LOGNAME MACHTYPE OLDPWD OSTYPE PATH PIPESTATUS "
    "PPID PWD RANDOM SECONDS SHELL SHELLOPTS SHLVL SRANDOM TERM TMPDIR UID USER "
    "BASH_VERSINFO BASH_LINENO BASH_ARGV BASH_COMMAND EPOCHREALTIME REPLY"
)
_SET_BY_MACHINE = frozenset(_MACHINE.split())
"""Variables that Bash or the login sets, nobody knows to what."""

_UNSET = re.compile(r"\$([A-Za-z_]\w*|[0-9]+)")


def unknown(name: str) -> str:
    """Return the mark of something whose value nobody knows."""
    plain = name.replace(OPEN, "").replace(CLOSE, "")
    # Not to be split where it stands without quotes.
    unbroken = re.sub(r"\s+", _UNBROKEN, plain[:_LONGEST])
    return f"{OPEN}{unbroken}{CLOSE}"


HERE = unknown('$(dirname "$0")')
"""Where a script lies, in the paths that it makes of that."""


def is_set_by_machine(name: str) -> bool:
    """Whether a variable has a value that Bash or the login gives it."""
    return name in _SET_BY_MACHINE


def _is_unset(name: str) -> bool:
    variable = _UNSET.fullmatch(name)
    return variable is not None and not is_set_by_machine(variable[1])


def without_unset(word: str) -> str:
    """Return a word with nothing in place of variables that nothing sets."""
    return MARK.sub(lambda mark: "" if _is_unset(mark[1]) else mark[0], word)


def first_unknown(word: str) -> str | None:
    """Return what is not known in a word, as the script writes it; None if all is."""
    mark = MARK.search(word)
    return None if mark is None else mark[1].replace(_UNBROKEN, " ")


def known_word(word: str, where: str) -> str:
    """Return a word in which every variable is set.

    Raises
    ------
    InputError
        If one is not: with its name, and how its value is given.
    """
    name = first_unknown(word)
    if name is None:
        return word
    plain = name.strip("${}")
    raise InputError(
        "takes its value from a variable that nothing sets",
        where=where,
        got=name,
        expected="a value in the script",
        hint=f"--set {plain}=VALUE gives one"
        if plain.isidentifier() or plain.isdecimal()
        else "",
    )


def without_unknown(word: str) -> str:
    """Return a word with nothing in place of what is not known, as if it were unset."""
    return MARK.sub("", word)


def readable(word: str) -> str:
    """Return a word with names in place of what is not known."""
    return MARK.sub(lambda mark: mark[1].replace(_UNBROKEN, " "), word)
