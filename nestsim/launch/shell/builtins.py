"""Commands of Bash's own, and programs whose output is known, followed.

After the GNU Bash manual, chapter 4. What is not followed in them is told.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from nestsim.launch.shell.declaring import getopts, read, unset
from nestsim.launch.shell.marks import (
    CLOSE,
    HERE,
    MARK,
    OPEN,
    first_unknown,
    readable,
    unknown,
)
from nestsim.launch.shell.patterns import unescaped
from nestsim.launch.shell.state import Ended, Jumped, Returned, Status
from nestsim.launch.shell.tree import MOST_LETTERS, parse
from topologies.errors import InputError
from topologies.input_file import decode, read_file

if TYPE_CHECKING:
    from nestsim.launch.shell.interpreter import Interpreter

_MOST_NUMBERS = 50_000
_FORMAT = re.compile(r"%(?:%|([-0 +#]*)(\d*)(?:\.(\d+))?([sdiuxXbc]))")
_OPTIONS = """
expand_aliases lastpipe nullglob failglob extglob nocasematch nocaseglob globstar
dotglob xpg_echo inherit_errexit
"""
_CHANGING = frozenset(_OPTIONS.split())
_PATH = re.compile(rf"(?:(.*)/)?((?:{MARK.pattern}|[^/{OPEN}{CLOSE}])+)/*", re.DOTALL)
_DOING_NOTHING = (":", "true", "wait", "sleep", "umask", "hash")
_ASKING = ("pushd", "popd", "command", "type", "ulimit", "kill", "alias")
_SIGNALS = frozenset({"ERR", "DEBUG", "RETURN"})


def _number(words: list[str], default: int) -> int:
    named = len(words) > 1 and re.fullmatch(r"-?\d{1,18}", words[1])
    return int(words[1]) if named else default


def _maybe(shell: "Interpreter", words: list[str]) -> Status:
    shell.emit(unknown(f"$({' '.join(words)})"))
    return None


def _echo(shell: "Interpreter", words: list[str]) -> Status:
    end, escapes, rest = "\n", False, words[1:]
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        option = rest.pop(0)
        end = "" if "n" in option else end
        escapes = "e" in option or (escapes and "E" not in option)
    text = " ".join(rest)
    shell.emit((unescaped(text) if escapes else text) + end)
    return 0


def _printf(shell: "Interpreter", words: list[str]) -> Status:
    rest, target = words[1:], None
    if rest[:1] == ["-v"]:
        target, rest = rest[1], rest[2:]
    if rest[:1] == ["--"]:
        rest = rest[1:]
    text = _formatted(rest[0], rest[1:]) if rest else ""
    if text is None:
        text = unknown(f"$({readable(' '.join(words))})")
    if target is None:
        shell.emit(text)
    else:
        shell.variables.assign(target, text)
    return 0


def _formatted(pattern: str, given: list[str]) -> str | None:
    """Return what ``printf`` prints, its format used until all words are; or None."""
    if "%" in _FORMAT.sub("", pattern) or any("\\c" in word for word in given):
        return None
    text, rest = "", list(given)
    while True:
        count = len(rest)
        try:
            text += _FORMAT.sub(lambda part: _format(part, rest), unescaped(pattern))
        except ValueError:
            return None
        if not rest or len(rest) == count or len(text) > _MOST_NUMBERS:
            return text


def _format(part: re.Match[str], rest: list[str]) -> str:
    """Return what stands for one ``%..``: Python's is C's but for ``b`` and ``c``."""
    if part[0] == "%%":
        return "%"
    word, (flags, width, precision, kind) = rest.pop(0) if rest else "", part.groups()
    width = str(min(int(width or 0), 1000) or "")
    if kind in "diuxX":
        if not re.fullmatch(r"\s*[-+]?(0|[1-9]\d{0,17})?", word):
            raise ValueError(word)
        number = int(word or 0)
        if number < 0 and kind in "uxX":
            raise ValueError(word)
        return f"%{flags}{width}{kind}" % number
    if first_unknown(word) is not None and (width or precision):
        raise ValueError(word)
    word = unescaped(word) if kind == "b" else word[:1] if kind == "c" else word
    return (
        f"%{flags.replace('0', '')}{width}{(precision and '.' + precision) or ''}s"
        % word
    )


def _set(shell: "Interpreter", words: list[str]) -> Status:
    rest, options = words[1:], shell.flow.options
    while rest and re.match(r"[-+].", rest[0]) and rest[0] != "--":
        word = rest.pop(0)
        on = word[0] == "-"
        names = list(word[1:])
        if "o" in names:
            names.remove("o")
            names += [rest.pop(0)] if rest else []
        for name in names:
            short = {"errexit": "e", "nounset": "u"}.get(name, name)
            options.add(short) if on else options.discard(short)
            if short in ("a", "allexport"):
                shell.variables.exports_all = on
            if short in ("n", "noexec", "f", "noglob", "k", "keyword") and on:
                shell.note(f"set -{short} in line {{line}} is not followed.")
    if rest and rest != ["-"]:
        shell.expander.arguments = rest[1:] if rest[0] in ("--", "-") else rest
        shell.expander.knows_arguments = shell.flow.sets_arguments = True
    return 0


def _shift(shell: "Interpreter", words: list[str]) -> Status:
    by, given = _number(words, 1), shell.expander.arguments
    if not 0 <= by <= len(given):
        return 1
    shell.expander.arguments = given[by:]
    return 0


def _eval(shell: "Interpreter", words: list[str]) -> Status:
    text = " ".join(words[1:])
    if "$(" in (first_unknown(text) or ""):
        shell.note(f"{text[:60]} in line {{line}} of the script is not followed.")
    return shell.follow([parse(text, shell.flow.line)])


def _source(shell: "Interpreter", words: list[str]) -> Status:
    name = words[1] if len(words) > 1 else ""
    text = shell.state.file(name)
    name = shell.placed(name) if text is None else name
    file = shell.state.beside(name if text is None else "")
    if file is not None and file.is_file():
        text = decode(read_file(file, expected="a script", most_bytes=MOST_LETTERS))
        if not name.startswith(HERE):
            shell.note(f"{name} is the one beside the script.")
    if text is None:
        shell.note(f"{name} is not read.")
        return 0
    try:
        return shell.source(text, name, words[2:])
    except InputError as error:
        raise error if file is None else error.at(readable(name), ": ") from None


def _cd(shell: "Interpreter", words: list[str]) -> Status:
    """Follow ``cd`` to where the script lies, or from there; others succeed."""
    name = shell.placed("/".join(words[1:][-1:]))
    shell.flow.folder = name if name.startswith(HERE) else ""
    return 0 if shell.flow.folder else _maybe(shell, words)


def _pwd(shell: "Interpreter", words: list[str]) -> Status:
    if not shell.flow.folder:
        return _maybe(shell, words)
    shell.emit(shell.flow.folder + "\n")
    return 0


def _part_of_path(shell: "Interpreter", words: list[str]) -> Status:
    """Follow ``dirname`` and ``basename`` of one path whose parts are known."""
    rest = [word for word in words[1:] if word != "--"]
    parts = _PATH.fullmatch(rest[0]) if rest and rest[0][:1] != "-" else None
    if parts is None or len(rest) > 1 + (words[0] == "basename"):
        return shell.program(words)
    folder, name = parts[1] or ("." if parts[1] is None else "/"), parts[2]
    if rest[0].startswith(HERE) and (parts[1] is None or name == ".."):
        folder = rest[0] + "/.."
    name = name.removesuffix("".join(rest[1:]))
    shell.emit((folder if words[0] == "dirname" else name) + "\n")
    return 0


def _exit(shell: "Interpreter", words: list[str]) -> Status:
    status = shell.flow.status if len(words) == 1 else _number(words, 2) % 256
    raise Ended(status)


def _return(shell: "Interpreter", words: list[str]) -> Status:
    if not shell.flow.scopes and not shell.flow.sourced:
        return 2
    raise Returned(shell.flow.status if len(words) == 1 else _number(words, 2) % 256)


def _exec(shell: "Interpreter", words: list[str]) -> Status:
    if len(words) == 1:
        return 0
    raise Ended(shell.start(words[1:]))


def _jump(shell: "Interpreter", words: list[str]) -> Status:
    if shell.flow.loops == 0:
        return 0
    levels = min(_number(words, 1), shell.flow.loops)
    raise Jumped(max(levels, 1), is_break=words[0] == "break")


def _trap(shell: "Interpreter", words: list[str]) -> Status:
    rest = [word for word in words[1:] if word != "--"]
    if {"EXIT", "0"} & set(rest[1:]):
        shell.flow.exit_trap = "" if rest[0] == "-" else rest[0]
    for name in sorted(_SIGNALS & set(rest[1:])):
        shell.note(f"The trap for {name} in line {{line}} is not followed.")
    return 0


def _let(shell: "Interpreter", words: list[str]) -> Status:
    value: int | None = 0
    for word in words[1:]:
        value = shell.bare_sum(word)
    return None if value is None else int(value == 0)


def _mapfile(shell: "Interpreter", words: list[str]) -> Status:
    names = [word for word in words[1:] if word != "-t"]
    text = shell.rest_of_input()
    name = names[-1] if names else "MAPFILE"
    if text is None or first_unknown(text) is not None or len(names) > 1:
        shell.variables.assign(name, [unknown(f"$({' '.join(words)})")])
        return None
    shell.variables.assign(name, text.splitlines(keepends="-t" not in words))
    return 0


def _shopt(shell: "Interpreter", words: list[str]) -> Status:
    for name in sorted(_CHANGING & set(words)):
        if "-s" in words:
            shell.note(f"shopt -s {name} in line {{line}} is not followed.")
    return 0


def _cat(shell: "Interpreter", words: list[str]) -> Status:
    for name in words[1:] or ["-"]:
        text = shell.rest_of_input() if name == "-" else shell.state.file(name)
        if text is None:
            shell.emit(unknown(f"$(cat {name})"))
            return None
        shell.emit(text)
    return 0


def _tee(shell: "Interpreter", words: list[str]) -> Status:
    text = shell.rest_of_input()
    text = unknown(f"$({' '.join(words)})") if text is None else text
    for name in words[1:]:
        if not name.startswith("-"):
            shell.write(name, "-a" in words, text)
    shell.emit(text)
    return 0


def _seq(shell: "Interpreter", words: list[str]) -> Status:
    if not 1 < len(words) < 5 or not all(
        re.fullmatch(r"-?\d{1,9}", w) for w in words[1:]
    ):
        return _maybe(shell, words)
    *begin, last = map(int, words[1:])
    first, step = [*begin, 1, 1][:2] if begin else (1, 1)
    numbers = range(first, last + (1 if step > 0 else -1), step or 1)
    shell.emit("".join(f"{number}\n" for number in numbers[:_MOST_NUMBERS] if step))
    return 0


_PRINTING = (_echo, _printf, _cat, _tee, _seq, _pwd)
_LEADING = (_eval, _source, _exit, _return, _exec, _trap, _cd)
_CHANGING_STATE = (_set, _shift, _let, _mapfile, _shopt, getopts, read, unset)
BUILTINS: Mapping[str, Callable[["Interpreter", list[str]], Status]] = MappingProxyType(
    {
        function.__name__.strip("_"): function
        for function in (*_PRINTING, *_LEADING, *_CHANGING_STATE)
    }
    | dict.fromkeys(("break", "continue"), _jump)
    | dict.fromkeys(("dirname", "basename"), _part_of_path)
    | dict.fromkeys(_DOING_NOTHING, lambda _shell, _words: 0)
    | dict.fromkeys(_ASKING, _maybe)
    | {".": _source, "readarray": _mapfile, "false": lambda _shell, _words: 1}
)
"""Name -> what follows the command; returns None for a status that is not known."""
