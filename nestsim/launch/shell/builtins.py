"""Commands of Bash's own, and programs whose output is known, followed.

Among them those that set, declare, hide and unset variables, read them, take them from
options. After the GNU Bash manual, chapter 4. What is not followed has a note.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from nestsim.launch.shell.expressions import unescaped
from nestsim.launch.shell.marks import (
    CLOSE,
    HERE,
    MARK,
    OPEN,
    first_unknown,
    is_set_by_machine,
    readable,
    unknown,
)
from nestsim.launch.shell.state import (
    Ended,
    Jumped,
    Returned,
    Status,
    Variable,
    separators,
)
from nestsim.launch.shell.tree import MOST_LETTERS, Assignment, Span, parse
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


DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})
"""Commands whose arguments set variables."""

_ELEMENT = re.compile(r"\[([^\]]*)\](\+?)=")
_SETS = re.compile(r"([A-Za-z_]\w*)(?:(?:\[([^\]\n]*)\])?(\+?)=(.*))?", re.DOTALL)


def assign(shell: "Interpreter", setting: Assignment) -> None:
    """Set a variable as a script writes it."""
    variables, expander = shell.variables, shell.expander
    name, written = setting.name, setting.value
    if setting.items is not None:
        _assign_items(shell, name, setting.items, adds=setting.adds)
        shell.note_patterns()
        return
    text = written.text if isinstance(written, Span) else ""
    is_new = name not in variables.table and not is_set_by_machine(name)
    if is_new and text.strip('"{}$') != name and re.search(rf"\b{name}\b", text):
        # `N=$((N + 1))` begins with nothing.
        variables.table[name] = Variable(is_exported=name in variables.exported)
    value = expander.one(written or "")
    key = None if setting.index is None else expander.key(name, setting.index)
    held = variables.table.get(name)
    before = unknown("$" + name) if held is None and is_set_by_machine(name) else ""
    if held is not None:
        before = (held.text if key is None else held.items.get(key)) or ""
    if held is not None and held.is_integer:
        number = expander.sum(f"({before or 0})+({value})" if setting.adds else value)
        value = unknown(f"$(({value}))") if number is None else str(number)
    elif setting.adds:
        value = before + value
    if held is not None and held.case:
        value = value.upper() if held.case == "u" else value.lower()
    variables.assign(name, value, key)


def _assign_items(
    shell: "Interpreter", name: str, items: Sequence[Span], *, adds: bool
) -> None:
    """Set an array."""
    variables, expander = shell.variables, shell.expander
    held = variables.changed(name)
    if held is None:
        return
    elements: dict[int | str, str] = dict(held.items) if adds else {}
    following = held.following if adds and not held.is_map else 0
    pending: list[str] = []
    for item in items:
        element = _ELEMENT.match(item.text)
        if element is not None:
            key = expander.key(name, item.part(*element.span(1)))
            value = expander.one(item.part(element.end(), item.end - item.start))
            elements[key] = elements.get(key, "") + value if element[2] else value
            following = key + 1 if isinstance(key, int) else 0
        elif held.is_map:
            pending += expander.fields(item)
        else:
            for word in expander.fields(item):
                elements[following] = word
                following += 1
    elements |= dict(zip(pending[::2], [*pending[1::2], ""], strict=False))
    variables.grow(sum(map(len, elements.values())) + len(elements))
    held.value = elements


def declare(
    shell: "Interpreter", command: str, words: Sequence[Span | str]
) -> "Status":
    """Follow ``declare``, ``local``, ``export``, ``readonly`` or ``typeset``."""
    options, targets = _targets(shell, words)
    if command == "local" and not shell.flow.scopes:
        return 1
    if {"f", "F"} & set(options):
        if command == "export":
            shell.flow.exported_functions |= {target.name for target in targets}
        return 0
    if "p" in options or not targets:
        shell.emit(unknown(f"$({command} {options})"))
        return 0
    failures = sum(not _declare_one(shell, command, options, t) for t in targets)
    return int(failures > 0)


def _targets(
    shell: "Interpreter", words: Sequence[Span | str]
) -> tuple[str, list[Assignment]]:
    """Return options, and variables with what they are set to.

    All words are expanded before any variable is set or hidden.
    """
    options, targets = "", list[Assignment]()
    for word in words:
        setting = word.assignment() if isinstance(word, Span) else None
        if setting is not None:
            if setting.items is None:
                value = shell.expander.one(setting.value or "")
                setting = replace(setting, value=value)
            targets.append(setting)
            continue
        for text in [word] if isinstance(word, str) else shell.expander.fields(word):
            named = _SETS.fullmatch(text)
            if re.fullmatch(r"[-+][A-Za-z]+", text) and not targets:
                options += text if text[0] == "-" else ""
            elif named is not None:
                name, index, adds, value = named.groups()
                targets.append(Assignment(name, index, value, adds=bool(adds)))
    return options, targets


def _declare_one(
    shell: "Interpreter", command: str, options: str, target: Assignment
) -> bool:
    """Set one variable, and what it is; return whether that may be."""
    variables, flow, name = shell.variables, shell.flow, target.name
    if "n" in options and command != "export":
        shell.note(f"The reference {name} in line {{line}} is not followed.")
    is_local = command == "local" or (
        command in ("declare", "typeset") and bool(flow.scopes) and "g" not in options
    )
    hides = is_local and name not in flow.scopes[-1]
    sets = target.value is not None
    held = variables.table.get(name)
    if held is not None and held.is_readonly and (sets or hides):
        held.is_exported = held.is_exported or command == "export"
        return False
    if name in variables.fixed:
        return True
    if hides:
        flow.scopes[-1][name] = held
        held = Variable(is_exported=held is not None and held.is_exported)
        variables.table[name] = held
    if not sets and command == "export" and held is None:
        variables.exported.add(name)  # its value comes from outside
        return True
    held = variables.table.setdefault(name, Variable())
    exports = command == "export" or "x" in options
    held.is_exported = (held.is_exported or exports) and "n" not in options
    held.is_integer = held.is_integer or "i" in options
    held.is_map = held.is_map or "A" in options
    held.case = next((letter for letter in "ul" if letter in options), held.case)
    if {"a", "A"} & set(options) and held.value is None:
        held.value = {}
    if sets:
        assign(shell, target)
    held.is_readonly = held.is_readonly or command == "readonly" or "r" in options
    return True


def unset(shell: "Interpreter", words: list[str]) -> "Status":
    """Follow ``unset``."""
    for word in words[1:]:
        name, bracket, index = word.partition("[")
        held = shell.variables.table.get(name)
        if words[1] == "-f" or (held is None and word in shell.functions):
            shell.functions.pop(word, None)
        elif bracket and held is not None and isinstance(held.value, dict):
            held.value.pop(shell.expander.key(name, index.removesuffix("]")), None)
        elif not word.startswith("-"):
            if held is not None and held.is_readonly:
                return 1
            shell.variables.unset(word)
    return 0


def read(shell: "Interpreter", words: list[str]) -> "Status":
    """Follow ``read``: what it reads is known if the script says it."""
    names, options = _options(words[1:], "adinNptu")
    array, variables, blanks = (
        options.get("a"),
        shell.variables,
        shell.expander.blanks(),
    )
    line = _line(shell, options)
    if line is None or first_unknown(line[0]) is not None:
        for name in [array] if array else names or ["REPLY"]:
            variables.assign(name, unknown("$(read)"))
        if line is None:
            return None
        shell.note("read in line {line} of the script finds one line.")
        return int(not line[1])
    text = line[0] if "r" in options else re.sub(r"\\(.)", r"\1", line[0])
    if array:
        variables.assign(array, _read_fields(text, blanks, 0))
    elif names:
        fields = [*_read_fields(text, blanks, len(names)), *[""] * len(names)]
        for name, value in zip(names, fields, strict=False):
            variables.assign(name, value)
    else:
        variables.assign("REPLY", text)
    return int(not line[1])


def _line(shell: "Interpreter", options: Mapping[str, str]) -> tuple[str, bool] | None:
    """Read a line; return it, and whether it has an end. None if nobody knows."""
    if shell.flow.stdin is None or {"n", "N", "u"} & set(options):
        return None
    return shell.flow.stdin.line(options["d"][:1] if "d" in options else "\n")


def _options(words: Sequence[str], valued: str) -> tuple[list[str], dict[str, str]]:
    """Return names, and options with what stands behind those that take a value."""
    rest, options = list(words), dict[str, str]()
    while rest and re.fullmatch(r"-[A-Za-z].*", rest[0], re.DOTALL):
        word = rest.pop(0)[1:]
        plain = re.match(f"[^{valued}]*", word)[0]  # type: ignore[index]
        options |= dict.fromkeys(plain, "")
        if word != plain:
            value = word[len(plain) + 1 :] or (rest.pop(0) if rest else "")
            options[word[len(plain)]] = value
    return rest, options


def _read_fields(text: str, blanks: str, most: int) -> list[str]:
    """Return the fields of a line; the last of ``most`` has all that is left."""
    text = text.strip("".join(letter for letter in blanks if letter in " \t\n"))
    between, other = separators(blanks)
    fields = re.split(between, text, maxsplit=max(most - 1, 0)) if most != 1 else [text]
    last = fields[-1]
    if most and re.search(other, last[-1:]) and last.count(last[-1]) == 1:
        fields[-1] = last[:-1]  # one that ends the last field
    return fields if fields[-1] else fields[:-1]


def getopts(shell: "Interpreter", words: list[str]) -> "Status":  # noqa: C901 - as Bash does
    """Follow one round of ``getopts``."""
    if len(words) < 3:
        return 2
    letters, name = words[1], words[2]
    given = words[3:] or shell.expander.arguments
    variables, flow = shell.variables, shell.flow
    place = variables.text("OPTIND") or "1"
    number = int(place) if place.isdecimal() and place != "0" else 1
    if place == "1" and flow.letter > len((given or [""])[0]):
        flow.letter = 1
    word = given[number - 1] if number <= len(given) else ""
    if flow.letter == 1 and (not re.match(r"-.", word) or word == "--"):
        variables.assign("OPTIND", str(number + (word == "--")))
        variables.assign(name, "?")
        return 1
    letter, rest = word[flow.letter : flow.letter + 1], word[flow.letter + 1 :]
    flow.letter += 1
    option = re.search(re.escape(letter) + "(:?)", letters.lstrip(":"))
    result = letter if option and letter != ":" else "?"
    variables.unset("OPTARG")
    if option and option[1]:
        number, flow.letter = number + 1, 1
        if not rest and number <= len(given):
            rest, number = given[number - 1], number + 1
        elif not rest:
            result = ":" if letters.startswith(":") else "?"
        if result == letter:
            variables.assign("OPTARG", rest)
    elif not rest:
        number, flow.letter = number + 1, 1
    if result in "?:" and letters.startswith(":"):
        variables.assign("OPTARG", letter)
    variables.assign("OPTIND", str(number))
    variables.assign(name, result)
    return 0


def changed_by_env(
    environment: Mapping[str, str], words: Sequence[str]
) -> dict[str, str]:
    """Return what a command sees behind ``env`` and its options."""
    seen, rest = dict(environment), list(words)
    while rest:
        word = rest.pop(0)
        variable, equals, value = word.partition("=")
        if word in ("-i", "-", "--ignore-environment"):
            seen = {}
        elif word in ("-u", "--unset") and rest:
            seen.pop(rest.pop(0), None)
        elif variable == "--unset":
            seen.pop(value, None)
        elif equals and variable.isidentifier():
            seen[variable] = value
        elif not word.startswith("-"):
            break
    return seen


@contextmanager
def surrounded(
    shell: "Interpreter", assignments: Sequence[Assignment]
) -> Iterator[None]:
    """Set variables in front of a command, which it alone sees."""
    table, before = shell.variables.table, dict[str, Variable | None]()
    for setting in assignments:
        held = table.get(setting.name)
        before.setdefault(setting.name, held)
        value = shell.expander.one(setting.value or "")
        if setting.adds and held is not None:
            value = (held.text or "") + value
        if setting.name not in shell.variables.fixed:
            table[setting.name] = Variable(value=value, is_exported=True)
    try:
        yield
    finally:
        shell.variables.restore(before)


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
