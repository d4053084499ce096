"""Variables set, declared, split from what is read, and options of arguments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nestsim.launch.shell.marks import first_unknown, is_set_by_machine, unknown
from nestsim.launch.shell.nodes import Assignment
from nestsim.launch.shell.state import Variable

if TYPE_CHECKING:
    from nestsim.launch.shell.state import Interpreter, Status

_ELEMENT = re.compile(r"\[([^\]]*)\](\+?)=(.*)", re.DOTALL)
_SETS = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]\n]*)\])?(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")


def assign(shell: "Interpreter", one: Assignment) -> None:
    """Set a variable as a script writes it."""
    if one.items is not None:
        _assign_items(shell, one.name, one.items, adds=one.adds)
        shell.note_patterns()
        return
    _begin(shell, one)
    _assign_text(shell, one.name, one.index, shell.expander.one(one.word), one.adds)


def _begin(shell: "Interpreter", one: Assignment) -> None:
    """Begin a variable that is added to itself, ``N=$((N + 1))``, with nothing."""
    table = shell.variables.table
    adds = one.word.strip('"{}$') != one.name and not is_set_by_machine(one.name)
    if adds and one.name not in table and re.search(rf"\b{one.name}\b", one.word):
        table[one.name] = Variable(is_exported=one.name in shell.variables.exported)


def _assign_text(
    shell: "Interpreter",
    name: str,
    index: str | None,
    value: str,
    adds: bool,
) -> None:
    variables, expander = shell.variables, shell.expander
    held = variables.table.get(name)
    key = None if index is None else expander.key(name, index)
    before = _held(held, name, key)
    if held is not None and held.is_integer:
        number = expander.sum(f"({before or 0})+({value})" if adds else value)
        value = unknown(f"$(({value}))") if number is None else str(number)
    elif adds:
        value = before + value
    if held is not None and held.case:
        value = value.upper() if held.case == "u" else value.lower()
    if key is None:
        variables.assign(name, value)
    else:
        variables.assign_at(name, key, value)


def _held(held: Variable | None, name: str, key: int | str | None) -> str:
    """Return what is added to; what the login sets nobody knows."""
    if held is None:
        return unknown("$" + name) if is_set_by_machine(name) else ""
    if key is None:
        return held.text or ""
    return held.items.get(key, "")


def _assign_items(
    shell: "Interpreter", name: str, items: Sequence[str], *, adds: bool
) -> None:
    """Set an array."""
    variables, expander = shell.variables, shell.expander
    held = variables.changed(name)
    if held is None:
        return
    found: dict[int | str, str] = dict(held.items) if adds else {}
    following = (
        max((int(one) for one in found), default=-1) + 1 if not held.is_map else 0
    )
    pending: list[str] = []
    for raw in items:
        element = _ELEMENT.fullmatch(raw)
        if element is not None:
            key = expander.key(name, element[1])
            value = expander.one(element[3])
            found[key] = found.get(key, "") + value if element[2] else value
            following = int(key) + 1 if isinstance(key, int) else 0
            continue
        for word in expander.fields(raw):
            if held.is_map:
                pending.append(word)
            else:
                found[following] = word
                following += 1
    found |= dict(zip(pending[::2], [*pending[1::2], ""], strict=False))
    variables.grow(sum(map(len, found.values())) + len(found))
    held.value = found


def declare(shell: "Interpreter", words: Sequence[str | Assignment]) -> "Status":
    """Follow ``declare``, ``local``, ``export``, ``readonly`` or ``typeset``."""
    command, options, targets = str(words[0]), "", list[Assignment]()
    for word in words[1:]:
        if isinstance(word, Assignment):
            # All words are expanded before any variable is set or hidden.
            text = None if word.items is not None else shell.expander.one(word.word)
            targets.append(word if text is None else _literal(word, text))
            continue
        for text in shell.expander.fields(word):
            if re.fullmatch(r"[-+][A-Za-z]+", text) and not targets:
                options += text if text[0] == "-" else ""
                continue
            found = _SETS.fullmatch(text)
            if found is not None:
                one = Assignment(name=found[1], index=found[2], adds=bool(found[3]))
                targets.append(_literal(one, found[4]))
            elif _NAME.fullmatch(text):
                targets.append(Assignment(name=text, index="", word=""))
    if command == "local" and not shell.flow.scopes:
        return 1
    return _declared(shell, command, options, targets)


def _literal(one: Assignment, text: str) -> Assignment:
    """Return an assignment of a text that is not expanded again."""
    return replace(one, word="'" + text.replace("'", "'\\''") + "'")


def _declared(
    shell: "Interpreter", command: str, options: str, targets: Sequence[Assignment]
) -> "Status":
    if "f" in options or "F" in options:
        if command == "export":
            shell.flow.exported_functions |= {one.name for one in targets}
        return 0
    if "p" in options or not targets:
        shell.emit(unknown(f"$({command} {options})"))
        return 0
    for one in targets if "n" in options and command != "export" else ():
        shell.note(f"The reference {one.name} in line {{line}} is not followed.")
    is_local = command == "local" or (
        command in ("declare", "typeset") and bool(shell.flow.scopes)
    )
    status: Status = 0
    for one in targets:
        held = shell.variables.table.get(one.name)
        sets = one.index != "" or one.items is not None
        hides = (
            is_local and "g" not in options and one.name not in shell.flow.scopes[-1]
        )
        if held is not None and held.is_readonly and (sets or hides):
            held.is_exported = held.is_exported or command == "export"
            status = 1
            continue
        if is_local and "g" not in options:
            _hide(shell, one.name)
        _declare_one(shell, command, options, one)
    return status


def _hide(shell: "Interpreter", name: str) -> None:
    """Give a function a variable of its own."""
    scope = shell.flow.scopes[-1]
    if name in scope or name in shell.variables.fixed:
        return
    table = shell.variables.table
    scope[name] = table.get(name)
    held = table.get(name)
    table[name] = Variable(is_exported=held is not None and held.is_exported)


def _declare_one(
    shell: "Interpreter", command: str, options: str, one: Assignment
) -> None:
    """Set one variable, and what it is."""
    sets = one.index != "" or one.items is not None
    table = shell.variables.table
    if one.name in shell.variables.fixed:
        return
    if not sets and command == "export" and one.name not in table:
        shell.variables.exported.add(one.name)  # its value comes from outside
        return
    held = table.setdefault(one.name, Variable())
    exports = command == "export" or "x" in options
    held.is_exported = (held.is_exported or exports) and "n" not in options
    held.is_integer = held.is_integer or "i" in options
    held.is_map = held.is_map or "A" in options
    held.case = next((letter for letter in "ul" if letter in options), held.case)
    if {"a", "A"} & set(options) and held.value is None:
        held.value = {}
    if sets:
        assign(shell, one)
    if command == "readonly" or "r" in options:
        table[one.name].is_readonly = True


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
    line = None
    if shell.flow.stdin is not None and not {"n", "N", "u"} & set(options):
        line = shell.flow.stdin.line(options["d"][:1] if "d" in options else "\n")
    array = options.get("a")
    if line is None or first_unknown(line[0]) is not None:
        names = [array] if array else names or ["REPLY"]
        return _read_unknown(shell, names, line)
    text, has_end = line
    if "r" not in options:
        text = re.sub(r"\\(.)", r"\1", text)
    if array:
        shell.variables.assign(array, _read_fields(text, shell.expander.blanks(), 0))
    elif not names:
        shell.variables.assign("REPLY", text)
    else:
        fields = _read_fields(text, shell.expander.blanks(), len(names))
        for name, value in zip(names, [*fields, *[""] * len(names)], strict=False):
            shell.variables.assign(name, value)
    return int(not has_end)


def _read_unknown(
    shell: "Interpreter", names: Sequence[str], line: tuple[str, bool] | None
) -> "Status":
    """Read a line that nobody knows; of what a command prints it is the only one."""
    for name in names:
        shell.variables.assign(name, unknown("$(read)"))
    if line is None:
        return None
    shell.note("read in line {line} of the script finds one line.")
    return int(not line[1])


def _options(words: Sequence[str], valued: str) -> tuple[list[str], dict[str, str]]:
    """Return names, and options with what stands behind those that take a value."""
    rest, options = list(words), dict[str, str]()
    while rest and re.fullmatch(r"-[A-Za-z].*", rest[0], re.DOTALL):
        letters = rest.pop(0)[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in valued:
                options[letter] = letters or (rest.pop(0) if rest else "")
                letters = ""
            else:
                options[letter] = ""
    return rest, options


def _read_fields(text: str, blanks: str, most: int) -> list[str]:
    """Return the fields of a line; the last of ``most`` has all that is left."""
    white = "".join(one for one in blanks if one in " \t\n")
    other = "".join(one for one in blanks if one not in " \t\n")
    text = text.strip(white) if white else text
    found: list[str] = []
    parts = [f"[{re.escape(white)}]+"] if white else []
    if other:
        around = f"[{re.escape(white)}]*" if white else ""
        parts.insert(0, f"{around}[{re.escape(other)}]{around}")
    while parts and text and len(found) != most - 1:
        split = re.search("|".join(parts), text)
        if split is None:
            break
        found.append(text[: split.start()])
        text = text[split.end() :]
    if text and most and other and text.count(text[-1]) == 1 and text[-1] in other:
        text = text[:-1]  # one that ends the last field
    return [*found, text] if text else found


def getopts(shell: "Interpreter", words: list[str]) -> "Status":  # noqa: C901 - as Bash does
    """Follow one round of ``getopts``."""
    if len(words) < 3:
        return 2
    letters, name = words[1], words[2]
    given = words[3:] or shell.expander.arguments
    variables, flow = shell.variables, shell.flow
    place = variables.text("OPTIND") or "1"
    number = int(place) if place.isdecimal() and place != "0" else 1
    if place == "1" and number == 1 and flow.letter > len((given or [""])[0]):
        flow.letter = 1
    word = given[number - 1] if number <= len(given) else ""
    if flow.letter == 1 and (not re.match(r"-.", word) or word == "--"):
        variables.assign("OPTIND", str(number + (word == "--")))
        variables.assign(name, "?")
        return 1
    letter, rest = word[flow.letter : flow.letter + 1], word[flow.letter + 1 :]
    flow.letter += 1
    at = letters.lstrip(":").find(letter)
    takes = at >= 0 and letters.lstrip(":")[at + 1 : at + 2] == ":"
    variables.unset("OPTARG")
    found = letter if at >= 0 and letter != ":" else "?"
    if takes:
        number, flow.letter = number + 1, 1
        if not rest and number <= len(given):
            rest, number = given[number - 1], number + 1
        elif not rest:
            found = ":" if letters.startswith(":") else "?"
        if found == letter:
            variables.assign("OPTARG", rest)
    elif not rest:
        number, flow.letter = number + 1, 1
    if found in "?:" and letters.startswith(":"):
        variables.assign("OPTARG", letter)
    variables.assign("OPTIND", str(number))
    variables.assign(name, found)
    return 0


def changed_by_env(
    environment: Mapping[str, str], words: Sequence[str]
) -> dict[str, str]:
    """Return what a command sees behind ``env`` and its options."""
    found, rest = dict(environment), list(words)
    while rest:
        word = rest.pop(0)
        variable, equals, value = word.partition("=")
        if word in ("-i", "-", "--ignore-environment"):
            found = {}
        elif word in ("-u", "--unset") and rest:
            found.pop(rest.pop(0), None)
        elif variable == "--unset":
            found.pop(value, None)
        elif equals and variable.isidentifier():
            found[variable] = value
        elif not word.startswith("-"):
            break
    return found


class Surrounded:
    """Variables in front of a command, which it alone sees."""

    def __init__(self, shell: "Interpreter", assignments: Sequence[Assignment]) -> None:
        self.shell, self.assignments = shell, assignments
        self.before: dict[str, Variable | None] = {}

    def __enter__(self) -> None:
        table = self.shell.variables.table
        for one in self.assignments:
            self.before.setdefault(one.name, table.get(one.name))
            value = self.shell.expander.one(one.word)
            if one.name in self.shell.variables.fixed:
                continue
            held = table.get(one.name)
            if one.adds and held is not None:
                value = (held.text or "") + value
            table[one.name] = Variable(value=value, is_exported=True)

    def __exit__(self, *_: object) -> None:
        for name, held in self.before.items():
            if held is None:
                self.shell.variables.table.pop(name, None)
            else:
                self.shell.variables.table[name] = held
