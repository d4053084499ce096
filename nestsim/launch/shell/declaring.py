"""Variables set, declared, hidden and unset, read, taken from options."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from nestsim.launch.shell.marks import first_unknown, is_set_by_machine, unknown
from nestsim.launch.shell.state import Variable, separators
from nestsim.launch.shell.tree import Assignment, Span

if TYPE_CHECKING:
    from nestsim.launch.shell.interpreter import Interpreter
    from nestsim.launch.shell.state import Status

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
