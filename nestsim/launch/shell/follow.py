"""A shell script as the commands that it would start. Nothing is executed.

Assignments, arrays, defaults, ``if``, ``case``, ``for``, functions and ``bash -c`` are
followed as Bash follows them; a condition that only the machine could tell (what a
command returns) is taken not to hold, files are taken to exist, variables that nothing
sets to be empty there. Loops whose rounds nobody can count are followed once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nestsim.launch.shell.conditions import holds
from nestsim.launch.shell.syntax import (
    Assignment,
    Branches,
    ForLoop,
    Grouped,
    Joined,
    Node,
    ShellFunction,
    SimpleCommand,
    Switch,
    WhileLoop,
    parse,
)
from nestsim.launch.shell.words import (
    Surroundings,
    readable,
    without_unknown,
)
from topologies.errors import InputError

_MOST_STEPS = 50_000
_MOST_ROUNDS = 1_000
_DEEPEST = 20
_DECLARE = frozenset({"export", "declare", "typeset", "local", "readonly"})
_SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh"})
_NAME = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One command that a script starts."""

    words: tuple[str, ...]
    """Its words, expanded."""

    line: int
    """Line of the script, from 1."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set for it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What following a script gave."""

    commands: tuple[Started, ...]
    """The commands, in order."""

    variables: Mapping[str, str | list[str]]
    """Variables at the end."""

    files: Mapping[str, str]
    """Files that it writes, by their names there: here-documents, and what it echoes.
    """

    assumptions: tuple[str, ...]
    """What was taken where only running it would tell."""


def follow_script(text: str, variables: Mapping[str, str]) -> ScriptRun:
    """Follow a script.

    Parameters
    ----------
    text
        The script.
    variables
        What its surroundings set; the script does not change them.

    Raises
    ------
    InputError
        If it is no script, or one without end.
    """
    shell = _Shell(Surroundings(variables=dict(variables), fixed=frozenset(variables)))
    shell.run(parse(text))
    return ScriptRun(
        commands=tuple(shell.commands),
        variables=shell.surroundings.variables,
        files=shell.files,
        assumptions=tuple(dict.fromkeys(shell.assumptions)),
    )


class _End(Exception):  # noqa: N818 - the end of the script, not an error
    """The script ends here."""


@dataclass(slots=True)
class _Shell:
    """A script on its way."""

    surroundings: Surroundings
    commands: list[Started] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    functions: dict[str, Sequence[Node]] = field(default_factory=dict)
    steps: int = 0

    def run(self, nodes: Sequence[Node]) -> None:
        """Follow a script to its end."""
        try:
            self._list(nodes, 0)
        except _End:
            return

    def _list(self, nodes: Sequence[Node], depth: int) -> bool | None:
        """Follow nodes in turn; return whether the last one succeeded."""
        result: bool | None = True
        for node in nodes:
            result = self._node(node, depth)
        return result

    def _node(self, node: Node, depth: int) -> bool | None:
        self.steps += 1
        if self.steps > _MOST_STEPS or depth > _DEEPEST:
            raise InputError(
                "the script does not come to an end", expected="a launch script"
            )
        if isinstance(node, ShellFunction):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, Grouped | WhileLoop):
            return self._list(node.body, depth + 1)
        if isinstance(node, Branches | ForLoop | Switch):
            return self._compound(node, depth)
        if isinstance(node, Joined):
            return self._chain(node, depth)
        return self._command(node, depth)

    def _compound(self, node: Branches | ForLoop | Switch, depth: int) -> bool | None:
        if isinstance(node, Branches):
            return self._if(node, depth)
        if isinstance(node, ForLoop):
            return self._for(node, depth)
        return self._case(node, depth)

    def _chain(self, node: Joined, depth: int) -> bool | None:
        """Follow ``a && b || c``; what a command returns is not known, and taken."""
        result = self._node(node.first, depth)
        for op, following in node.others:
            if op == "|" or (op == "&&") == (result is not False):
                result = self._node(following, depth)
        return result

    def _if(self, node: Branches, depth: int) -> bool | None:
        for condition, body in node.branches:
            if self._condition(condition, depth):
                return self._list(body, depth + 1)
        return self._list(node.otherwise, depth + 1)

    def _condition(self, nodes: Sequence[Node], depth: int) -> bool:
        result = self._list(nodes, depth + 1)
        if result is None:
            line = next(
                (one.line for one in nodes if isinstance(one, SimpleCommand)), 0
            )
            self.assumptions.append(
                f"The condition in line {line} of the script does not hold."
            )
        return bool(result)

    def _case(self, node: Switch, depth: int) -> bool | None:
        word = without_unknown(self.surroundings.one(node.word))
        for patterns, body in node.branches:
            if any(holds([word, "==", self.surroundings.one(one)]) for one in patterns):
                return self._list(body, depth + 1)
        return True

    def _for(self, node: ForLoop, depth: int) -> bool | None:
        words = [word for raw in node.words for word in self.surroundings.fields(raw)]
        for word in words[:_MOST_ROUNDS]:
            self.surroundings.assign(node.name, word)
            self._list(node.body, depth + 1)
        return True

    def _command(self, node: SimpleCommand, depth: int) -> bool | None:
        if node.is_condition:
            return holds([self.surroundings.one(raw) for raw in node.words])
        if node.is_arithmetic:
            value = self.surroundings.sum(node.words[0])
            return None if value is None else value != 0
        words = [word for raw in node.words for word in self.surroundings.fields(raw)]
        if not words:
            for one in node.assignments:
                self._assign(one)
            return True
        return self._start(node, words, depth)

    def _assign(self, one: Assignment) -> None:
        shell = self.surroundings
        value: str | list[str]
        if one.items is None:
            value = shell.one(one.word)
        else:
            value = [word for raw in one.items for word in shell.fields(raw)]
        shell.assign(one.name, value, adds=one.adds)

    def _start(self, node: SimpleCommand, words: list[str], depth: int) -> bool | None:
        name = words[0]
        if name in ("exit", "return", "exec") and len(words) < 3:
            raise _End
        if name in ("[", "test"):
            return holds([one for one in words[1:] if one != "]"])
        if name in ("true", ":", "false"):
            return name != "false"
        if name in self.functions:
            self._call(name, words[1:], depth)
        elif not self._is_done(node, words):
            return self._other(node, words, depth)
        return True

    def _is_done(self, node: SimpleCommand, words: list[str]) -> bool:
        """Do what changes variables, or reads other files; return whether it is so."""
        name = words[0]
        if name in _DECLARE:
            self._declare(node, words)
        elif name == "shift":
            self._shift(words)
        elif name == "unset":
            for one in words[1:]:
                self.surroundings.variables.pop(one, None)
        elif name in (".", "source"):
            self.assumptions.append(f"{readable(' '.join(words[1:2]))} is not read.")
        else:
            return False
        return True

    def _declare(self, node: SimpleCommand, words: list[str]) -> None:
        for one in node.assignments:
            self._assign(one)
        for word in words[1:]:
            found = _NAME.fullmatch(word)
            if found is not None:
                self.surroundings.assign(found[1], found[3], adds=bool(found[2]))

    def _call(self, name: str, arguments: list[str], depth: int) -> None:
        """Follow a function with its own positional parameters."""
        shell = self.surroundings
        before = dict(shell.variables)
        for number, word in enumerate(arguments[:9], start=1):
            shell.variables[str(number)] = word
        shell.variables["@"] = list(arguments)
        self._list(self.functions[name], depth + 1)
        for key in ("@", *map(str, range(1, 10))):
            shell.variables.pop(key, None)
            if key in before:
                shell.variables[key] = before[key]

    def _shift(self, words: list[str]) -> None:
        """Move positional parameters down."""
        variables = self.surroundings.variables
        given = variables.get("@")
        by = int(words[1]) if words[1:] and words[1].isdecimal() else 1
        if isinstance(given, list):
            left = given[min(by, len(given)) :]
            variables["@"] = left
            for number in range(1, 10):
                variables.pop(str(number), None)
            for number, word in enumerate(left[:9], start=1):
                variables[str(number)] = word

    def _other(self, node: SimpleCommand, words: list[str], depth: int) -> bool | None:
        """Note a command, and follow what it hands to another shell."""
        if words[0] == "eval":
            self._list(parse(" ".join(words[1:])), depth + 1)
            return True
        document = node.heredoc
        if document and node.heredoc_expands:
            document = self.surroundings.within(document)
        self._write(node, words, document)
        if words[0] in ("echo", "printf"):
            return True
        self.commands.append(
            Started(
                words=tuple(words),
                line=node.line,
                environment={
                    one.name: self.surroundings.one(one.word)
                    for one in node.assignments
                },
            )
        )
        runs = words[0] in _SHELLS or words[0] in ("sbatch", "srun", "salloc")
        if document and runs:
            self._list(parse(document), depth + 1)
        for index, word in enumerate(words[:-1]):
            if word in _SHELLS:
                script = _handed_over(words[index + 1 :])
                if script is not None:
                    self._list(parse(script), depth + 1)
        return None

    def _write(self, node: SimpleCommand, words: list[str], document: str) -> None:
        """Keep the text of a file that ``cat``, ``tee`` or ``echo`` writes."""
        names = [self.surroundings.one(node.target)] if node.target else []
        text = document
        if words[0] == "tee":
            names += [word for word in words[1:] if not word.startswith("-")]
        elif words[0] == "echo":
            text = " ".join(word for word in words[1:] if word not in ("-e", "-n"))
        elif words[0] != "cat":
            return
        for name in names if text else ():
            before = self.files.get(name, "") if node.adds else ""
            self.files[name] = f"{before}{text}\n"
            self.surroundings.grow(len(self.files[name]))


def _handed_over(words: Sequence[str]) -> str | None:
    """Return the text behind ``-c``, options of the shell before it."""
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            return words[index + 1]
        if not word.startswith("-"):
            return None
    return None
