"""Commands of Bash's own, and programs whose output is known, followed.

After the GNU Bash manual, chapter 4. What is not followed in them is told.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from nestsim.launch.shell.declaring import getopts, read, unset
from nestsim.launch.shell.marks import first_unknown, readable, unknown
from nestsim.launch.shell.state import Ended, Jumped, Returned, Status
from nestsim.launch.shell.syntax import parse

if TYPE_CHECKING:
    from nestsim.launch.shell.state import Interpreter

_MOST_NUMBERS = 50_000
_LETTERS = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "\\": "\\",
    "e": "\x1b",
}
_FORMAT = re.compile(r"%(?:%|([-0 +#]*)(\d*)(?:\.(\d+))?([sdiuxXbc]))")
_CHANGING = frozenset({"expand_aliases", "lastpipe", "nullglob", "failglob", "extglob"})
_CHANGING |= {"nocasematch", "nocaseglob", "globstar", "dotglob", "xpg_echo"}
_CHANGING |= {"inherit_errexit"}
_SIGNALS = frozenset({"ERR", "DEBUG", "RETURN"})


def _number(words: list[str], default: int) -> int:
    named = len(words) > 1 and re.fullmatch(r"-?\d{1,18}", words[1])
    return int(words[1]) if named else default


def _unescaped(text: str) -> str:
    """Return a text with its backslashes, as ``echo -e`` and ``printf`` have them."""

    def letter(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "x":
            return chr(int(code[1:], 16))
        if code[0].isdigit():
            return chr(int(code, 8) % 256)
        return _LETTERS.get(code, "\\" + code)

    return re.sub(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,4}|.)", letter, text, flags=re.DOTALL)


def _echo(shell: "Interpreter", words: list[str]) -> Status:
    end, escapes, rest = "\n", False, words[1:]
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        option = rest.pop(0)
        end = "" if "n" in option else end
        escapes = "e" in option or (escapes and "E" not in option)
    text = " ".join(rest)
    shell.emit((_unescaped(text) if escapes else text) + end)
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
    if "%" in _FORMAT.sub("", pattern) or any("\\c" in one for one in given):
        return None
    found, rest = "", list(given)
    while True:
        count = len(rest)
        at = 0
        for part in _FORMAT.finditer(pattern):
            found += _unescaped(pattern[at : part.start()])
            at = part.end()
            text = "%" if part[0] == "%%" else _one_format(part, rest)
            if text is None:
                return None
            found += text
        found += _unescaped(pattern[at:])
        if not rest or len(rest) == count or len(found) > _MOST_NUMBERS:
            return found


def _one_format(part: re.Match[str], rest: list[str]) -> str | None:
    word = rest.pop(0) if rest else ""
    width = min(int(part[2] or 0), 1000)
    kind = part[4]
    if kind in "diuxX":
        if not re.fullmatch(r"\s*[-+]?(0|[1-9]\d{0,17})?", word):
            return None
        number = int(word or 0)
        if number < 0 and kind in "uxX":
            return None
        sign = "+" if "+" in part[1] else " " if " " in part[1] else ""
        text = format(number, sign + ("d" if kind in "diu" else kind))
    else:
        text = _unescaped(word) if kind == "b" else word[:1] if kind == "c" else word
        text = text if part[3] is None else text[: int(part[3])]
    if first_unknown(text) is not None and (width or part[3]):
        return None
    if "-" in part[1]:
        return text.ljust(width)
    return (
        text.zfill(width) if "0" in part[1] and kind in "diuxX" else text.rjust(width)
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
    return shell.nodes(parse(text, shell.flow.line))


def _source(shell: "Interpreter", words: list[str]) -> Status:
    name = words[1] if len(words) > 1 else ""
    text = shell.state.file(name)
    if text is None:
        shell.note(f"{name} is not read.")
        return 0
    return shell.source(text, words[2:])


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
    if len(rest) > 1:
        if {"EXIT", "0"} & set(rest[1:]):
            shell.flow.exit_trap = "" if rest[0] == "-" else rest[0]
        for name in sorted(_SIGNALS & set(rest[1:])):
            shell.note(f"The trap for {name} in line {{line}} is not followed.")
    return 0


def _let(shell: "Interpreter", words: list[str]) -> Status:
    value: int | None = 0
    shell.expander.is_bare = True
    for word in words[1:]:
        value = shell.expander.sum(word)
    shell.expander.is_bare = False
    return None if value is None else int(value == 0)


def _mapfile(shell: "Interpreter", words: list[str]) -> Status:
    names = [word for word in words[1:] if word not in ("-t",)]
    text = None if shell.flow.stdin is None else shell.flow.stdin.rest()
    name = names[-1] if names else "MAPFILE"
    if text is None or first_unknown(text) is not None or len(names) > 1:
        shell.variables.assign(name, [unknown(f"$({' '.join(words)})")])
        return None
    lines = text.splitlines(keepends=True)
    cut = "-t" in words
    shell.variables.assign(name, [one.rstrip("\n") if cut else one for one in lines])
    return 0


def _shopt(shell: "Interpreter", words: list[str]) -> Status:
    for name in sorted(_CHANGING & set(words)):
        if "-s" in words:
            shell.note(f"shopt -s {name} in line {{line}} is not followed.")
    return 0


def _cat(shell: "Interpreter", words: list[str]) -> Status:
    stdin = shell.flow.stdin
    for name in words[1:] or ["-"]:
        text = shell.state.file(name)
        if name == "-":
            text = None if stdin is None else stdin.rest()
        if text is None:
            shell.emit(unknown(f"$(cat {name})"))
            return None
        shell.emit(text)
    return 0


def _tee(shell: "Interpreter", words: list[str]) -> Status:
    stdin = shell.flow.stdin
    text = None if stdin is None else stdin.rest()
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
        shell.emit(unknown(f"$({' '.join(words)})"))
        return None
    numbers = [int(word) for word in words[1:]]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) > 2 else 1
    last = numbers[-1] + (1 if step > 0 else -1)
    found = range(first, last, step)[:_MOST_NUMBERS] if step else range(0)
    shell.emit("".join(f"{number}\n" for number in found))
    return 0


def _yes(_shell: "Interpreter", _words: list[str]) -> Status:
    return 0


def _no(_shell: "Interpreter", _words: list[str]) -> Status:
    return 1


def _maybe(shell: "Interpreter", words: list[str]) -> Status:
    shell.emit(unknown(f"$({' '.join(words)})"))
    return None


BUILTINS: Mapping[str, Callable[["Interpreter", list[str]], Status]] = MappingProxyType(
    {
        "echo": _echo,
        "printf": _printf,
        "set": _set,
        "shift": _shift,
        "unset": unset,
        "eval": _eval,
        "source": _source,
        ".": _source,
        "exit": _exit,
        "return": _return,
        "exec": _exec,
        "break": _jump,
        "continue": _jump,
        "trap": _trap,
        "let": _let,
        "read": read,
        "mapfile": _mapfile,
        "readarray": _mapfile,
        "getopts": getopts,
        "shopt": _shopt,
        "cat": _cat,
        "tee": _tee,
        "seq": _seq,
        ":": _yes,
        "true": _yes,
        "wait": _yes,
        "sleep": _yes,
        "umask": _yes,
        "hash": _yes,
        "false": _no,
        "cd": _maybe,
        "pushd": _maybe,
        "popd": _maybe,
        "pwd": _maybe,
        "command": _maybe,
        "type": _maybe,
        "ulimit": _maybe,
        "kill": _maybe,
        "alias": _maybe,
    }
)
"""Name -> what follows the command; returns None for a status that is not known."""
