"""A shell script as the commands that it would start. Nothing is executed.

The commands of its text are followed as Bash follows them: variables, arrays,
arithmetic, loops, functions, shells of their own, what is printed into variables. What
only a run would tell is taken, and told: a command succeeds, a condition that asks for
more than the script does not hold, files are there, variables that nothing sets are
empty in conditions. A script that does not come to an end is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from nestsim.launch.shell.builtins import BUILTINS
from nestsim.launch.shell.conditions import Brackets, ConditionError, DoubleBrackets
from nestsim.launch.shell.declaring import (
    Surrounded,
    assign,
    changed_by_env,
    declare,
)
from nestsim.launch.shell.loops import (
    follow_case,
    follow_counting,
    follow_for,
    follow_while,
)
from nestsim.launch.shell.marks import (
    first_unknown,
    readable,
    unknown,
    without_unset,
)
from nestsim.launch.shell.nodes import (
    Arithmetic,
    Assignment,
    BackgroundCommand,
    Branches,
    Condition,
    CountingLoop,
    ForLoop,
    Grouped,
    Joined,
    Node,
    PipedCommands,
    Redirect,
    Redirected,
    ShellFunction,
    SimpleCommand,
    Switch,
    WhileLoop,
)
from nestsim.launch.shell.state import (
    MOST_STEPS,
    Ended,
    Flow,
    Jumped,
    Returned,
    Started,
    State,
    Status,
    Stdin,
    Variables,
)
from nestsim.launch.shell.syntax import DECLARING, parse
from nestsim.launch.shell.words import Expander
from topologies.errors import InputError

_DEEPEST = 40
_SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
_READ_SCRIPTS = _SHELLS | {"sbatch", "srun", "salloc"}
_STOPPING = (SimpleCommand, PipedCommands, Grouped, Condition, Arithmetic, Redirected)
_NOT_FOLLOWED = frozenset({"xargs", "parallel", "find"})
_WRITES = frozenset({">", ">|", ">>", "&>", "&>>", ">&"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What following a script gave."""

    commands: tuple[Started, ...]
    """The commands, in order."""

    variables: Mapping[str, str]
    """Variables at the end."""

    files: Mapping[str, str]
    """Files that it writes, by their names there."""

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
    named = {name: one for name, one in variables.items() if not name.isdecimal()}
    shell = Shell(Variables.of(named), State())
    numbers = [int(name) for name in variables if name.isdecimal() and name != "0"]
    shell.expander.arguments = [
        variables.get(str(number), unknown(f"${number}"))
        for number in range(1, min(max(numbers, default=0), 99) + 1)
    ]
    if "\r\n" in text:
        shell.note("Lines end as Windows ends them: that is no part of their words.")
    shell.run(parse(text))
    state = shell.state
    return ScriptRun(
        commands=tuple(state.commands),
        variables=shell.variables.texts(),
        files=state.files,
        assumptions=tuple(dict.fromkeys(state.assumptions)),
    )


@dataclass(slots=True)
class Shell:
    """A shell on its way through a script."""

    variables: Variables
    state: State
    functions: dict[str, Node] = field(default_factory=dict)
    flow: Flow = field(default_factory=Flow)
    expander: Expander = field(init=False)

    def __post_init__(self) -> None:
        self.expander = Expander(self.variables, self)

    def run(self, nodes: Sequence[Node]) -> Status:
        """Follow a script to its end, and what it left to be done there."""
        status = self.flow.status = self._ended(lambda: self.nodes(nodes))
        text, self.flow.exit_trap = self.flow.exit_trap, ""
        if text:
            self._ended(lambda: self.nodes(parse(text, self.flow.line)))
        return status

    def _ended(self, follow: Callable[[], Status]) -> Status:
        try:
            return follow()
        except Ended as end:
            return end.status
        except Returned as end:
            return end.status
        except Jumped:
            return 0

    def fork(self, *, exported: bool = False) -> "Shell":
        """Return a shell of its own that begins as this one, or as a new program."""
        child = Shell(self.variables.copy(exported=exported), self.state)
        child.flow = self.flow.inner(is_program=exported)
        kept = self.flow.exported_functions if exported else self.functions
        child.functions = {
            name: body for name, body in self.functions.items() if name in kept
        }
        child.expander.knows_arguments = exported or self.expander.knows_arguments
        if not exported:
            child.expander.arguments = list(self.expander.arguments)
            child.expander.zero = self.expander.zero
        return child

    # What words ask.

    def output_of(self, text: str) -> str:
        """Return what commands print; a mark if nobody knows."""
        child = self.fork()
        child.flow.out = []
        child.flow.options.discard("e")
        self.flow.substituted = child.run(parse(text, self.flow.line))
        printed = "".join(child.flow.out or []).rstrip("\n")
        if "$" in (first_unknown(without_unset(printed)) or ""):
            return unknown(f"$({text.strip()})")
        return printed

    def special(self, name: str) -> str | None:
        """Return ``$?``, ``$#`` and the like, or an argument; None if not set."""
        arguments = self.expander.arguments
        if name.isdecimal() and name != "0":
            number = int(name)
            return arguments[number - 1] if number <= len(arguments) else None
        if name == "#":
            return str(len(arguments))
        if name == "?":
            status = self.flow.status
            if status is None:
                self._take(in_condition=False)
                return "1" if self.flow.doubts_test else "0"
            return str(status)
        if name == "0" and self.expander.zero:
            return self.expander.zero
        return unknown("$" + name)

    def is_set(self, name: str) -> bool | None:
        """Whether a variable is set."""
        plain, _, index = name.partition("[")
        found = self.variables.table.get(plain)
        if found is None:
            return False
        if index:
            return self.expander.key(plain, index.removesuffix("]")) in found.items
        return found.text is not None

    def has_file(self, name: str, operator: str) -> bool | None:
        """Whether a file is there: one that the script writes, or so it is taken."""
        if name in self.state.files:
            return operator not in ("-d", "-L", "-h", "-x")
        if name not in ("/", "/dev/null", "/tmp", "."):
            self.note(f"{name} is there, which the script asks in line {{line}}.")
        return True

    def note(self, sentence: str) -> None:
        """Note what is taken; ``{line}`` is the line that is followed."""
        self.state.assumptions.append(
            readable(sentence.replace("{line}", str(self.flow.line)))
        )

    def note_unset(self) -> None:
        """Note that a variable which nothing sets is set, where it must be."""
        if "u" in self.flow.options:
            self.note("Variables that nothing in the script sets are set (set -u).")

    # What commands do.

    def nodes(self, nodes: Sequence[Node]) -> Status:
        """Follow commands in turn; return the status of the last one."""
        status: Status = 0
        for node in nodes:
            status = self.node(node)
        return status

    def node(self, node: Node) -> Status:
        """Follow one command, and keep its status."""
        flow, state = self.flow, self.state
        flow.line = node.line
        if flow.is_doubtful:
            self.note("Commands succeed (set -e).")
            flow.is_doubtful = False
        state.steps += 1
        flow.depth += 1
        if state.steps > MOST_STEPS or flow.depth > _DEEPEST:
            raise InputError(
                f"the script does not come to an end, in line {node.line}",
                expected="a launch script",
            )
        status = self._FOLLOWED[type(node)](self, node)
        flow.depth -= 1
        flow.status = status
        if isinstance(node, _STOPPING) and "e" in flow.options and not flow.tested:
            self._stop(node, status)
        return status

    def _stop(self, node: Node, status: Status) -> None:
        """End a script that stops where a command fails."""
        if isinstance(node, PipedCommands) and node.is_negated:
            return
        if status is None:
            self.flow.is_doubtful = True
        elif status:
            raise Ended(status)

    def _take(self, *, in_condition: bool) -> bool:
        """Note how a command that nobody knows the status of is taken to end."""
        flow = self.flow
        if in_condition or flow.doubts_test:
            self.state.assumptions.append(
                f"The condition in line {flow.doubt_line} of the script does not hold."
            )
            return False
        self.state.assumptions.append(
            f"{readable(flow.doubt)[:60]} succeeds (line {flow.doubt_line})."
        )
        return True

    def doubt(self, name: str, *, is_test: bool = False) -> None:
        """Keep what it is whose status nobody knows; returns that."""
        flow = self.flow
        flow.doubt, flow.doubt_line, flow.doubts_test = name, flow.line, is_test

    def tested(self, nodes: Sequence[Node]) -> Status:
        """Follow commands whose failure stops nothing."""
        self.flow.tested += 1
        status = self.nodes(nodes)
        self.flow.tested -= 1
        return status

    def _joined(self, node: Joined) -> Status:
        last = len(node.others) - 1
        status = self.tested([node.first])
        for number, (operator, following) in enumerate(node.others):
            holds = status == 0
            if status is None:
                holds = self._take(in_condition=False)
            if (operator == "&&") == holds:
                only = [following]
                status = self.nodes(only) if number == last else self.tested(only)
        return status

    def _pipeline(self, node: PipedCommands) -> Status:
        self.flow.tested += node.is_negated
        alone = len(node.parts) == 1
        status = self.node(node.parts[0]) if alone else self._piped(node)
        self.flow.tested -= node.is_negated
        if not node.is_negated:
            return status
        self.flow.doubts_test = True
        return None if status is None else int(not status)

    def _piped(self, node: PipedCommands) -> Status:
        """Follow commands of which each reads what the one before prints."""
        text: str | None = None
        statuses: list[Status] = []
        for number, part in enumerate(node.parts):
            child = self.fork()
            last = number == len(node.parts) - 1
            child.flow.out = self.flow.out if last else []
            if number:
                child.flow.stdin = Stdin(text)
            statuses.append(child.run([part]))
            if last:
                self.doubt_as(child)
            else:
                text = "".join(child.flow.out or [])
        if "pipefail" not in self.flow.options:
            return statuses[-1]
        failed = [one for one in statuses if one]
        return failed[-1] if failed else None if None in statuses else 0

    def doubt_as(self, child: "Shell") -> None:
        """Doubt what another shell doubts."""
        self.flow.doubt = child.flow.doubt
        self.flow.doubt_line = child.flow.doubt_line
        self.flow.doubts_test = child.flow.doubts_test

    def _background(self, node: BackgroundCommand) -> Status:
        child = self.fork()
        child.flow.out = self.flow.out
        child.run([node.body])
        return 0

    def _if(self, node: Branches) -> Status:
        for condition, body in node.branches:
            status = self.tested(condition)
            if status == 0 or (status is None and self._take(in_condition=True)):
                return self.nodes(body)
        return self.nodes(node.otherwise)

    def note_patterns(self) -> None:
        """Note words with patterns of file names, which stay as they are."""
        for word in self.expander.take_patterns():
            self.note(f"{word[:60]} in line {{line}} of the script stands for itself.")

    def bare_sum(self, text: str) -> int | None:
        """Return the value of arithmetic in which what nothing sets is 0."""
        expander = self.expander
        before, expander.is_bare = expander.is_bare, True
        try:
            return expander.sum(text)
        finally:
            expander.is_bare = before

    def _grouped(self, node: Grouped) -> Status:
        if not node.is_subshell:
            return self.nodes(node.body)
        child = self.fork()
        child.flow.out = self.flow.out
        status = child.run(node.body)
        self.doubt_as(child)
        return status

    def _defined(self, node: ShellFunction) -> Status:
        if node.name in DECLARING:
            self.note(f"The function {node.name} in line {{line}} is not followed.")
        self.functions[node.name] = node.body
        return 0

    def _condition(self, node: Condition) -> Status:
        def keep(found: Sequence[str]) -> None:
            self.variables.assign("BASH_REMATCH", list(found))

        self.expander.is_bare = True
        try:
            holds = DoubleBrackets(node.words, self, self.expander, keep).holds()
        except ConditionError:
            return 2
        finally:
            self.expander.is_bare = False
        return self._status_of(holds)

    def _status_of(self, holds: bool | None) -> Status:
        if holds is None:
            self.doubt("", is_test=True)
            return None
        return int(not holds)

    def _arithmetic(self, node: Arithmetic) -> Status:
        value = self.bare_sum(node.text)
        return self._status_of(None if value is None else value != 0)

    # Simple commands.

    def _redirected(self, node: Redirected) -> Status:
        return self._with(node.redirects, lambda: self.node(node.body))

    def _simple(self, node: SimpleCommand) -> Status:
        return self._with(node.redirects, lambda: self._command(node))

    def _with(
        self, redirects: Sequence[Redirect], follow: Callable[[], Status]
    ) -> Status:
        """Follow a command that reads or prints elsewhere."""
        if not redirects:
            return follow()
        flow = self.flow
        out, stdin = flow.out, flow.stdin
        target: tuple[str, bool] | None = None
        for one in redirects:
            if one.operator in _WRITES and one.descriptor in ("", "1"):
                target = self._target(one, out)
            elif one.operator[0] == "<" and one.descriptor in ("", "0"):
                flow.stdin = Stdin(self._read_from(one))
        try:
            return follow()
        finally:
            if target is not None and flow.out is not None:
                self.write(*target, "".join(flow.out))
            flow.out, flow.stdin = out, stdin

    def _target(self, one: Redirect, out: list[str] | None) -> tuple[str, bool] | None:
        """Print elsewhere; return the file, and whether it is added to."""
        name = self.expander.one(one.word)
        if one.operator == ">&" and (name == "-" or name.isdecimal()):
            self.flow.out = out if name == "1" else None
            return None
        if name == "/dev/stdout":
            return None
        self.flow.out = []
        return name, one.operator in (">>", "&>>")

    def _read_from(self, one: Redirect) -> str | None:
        """Return what a command reads; None if nobody knows."""
        if one.operator == "<<":
            if not one.expands:
                return one.document
            return self.expander.document(one.document)
        if one.operator == "<<<":
            return self.expander.one(one.word) + "\n"
        if one.word.startswith("<("):
            printed = self.output_of(one.word[2:-1])
            return printed + "\n" if printed else ""
        name = self.expander.one(one.word)
        return "" if name == "/dev/null" else self.state.files.get(name)

    def write(self, name: str, adds: bool, text: str) -> None:
        """Keep the text of a file that the script writes."""
        if not name.startswith("/dev/"):
            before = self.state.files.get(name, "") if adds else ""
            self.state.files[name] = before + text
            self.variables.grow(len(before) + len(text))

    def emit(self, text: str) -> None:
        """Print a text."""
        if self.flow.out is not None:
            self.flow.out.append(text)
            self.variables.grow(len(text))

    def _command(self, node: SimpleCommand) -> Status:
        first = node.words[0] if node.words else ""
        self.flow.substituted = 0
        if first in DECLARING:
            return declare(self, node.words)
        self.expander.is_bare = first in ("[", "test")
        words = [
            word
            for raw in node.words
            if not isinstance(raw, Assignment)
            for word in self.expander.fields(raw)
        ]
        self.expander.is_bare = False
        if not words:
            for one in node.assignments:
                assign(self, one)
            if not node.assignments and self.flow.stdin is not None:
                self.emit(self.flow.stdin.rest() or "")  # $(< file)
            return self.flow.substituted
        if not node.assignments:
            return self.start(words)
        with Surrounded(self, node.assignments):
            return self.start(words)

    def start(self, words: list[str]) -> Status:
        """Start a command: a function, one of Bash's own, or a program."""
        name = words[0]
        if name in ("command", "builtin") and words[1:] and words[1][:1] != "-":
            return self._own(words[1:])
        if name in self.functions:
            return self.call(name, words[1:])
        return self._own(words)

    def _own(self, words: list[str]) -> Status:
        name = words[0]
        if name in ("[", "test"):
            return self._brackets(words)
        if name in DECLARING:
            return declare(self, tuple(words))
        if name in BUILTINS:
            status = BUILTINS[name](self, words)
            if status is None:
                self.doubt(" ".join(words))
            return status
        return self._program(words)

    def _brackets(self, words: list[str]) -> Status:
        inner = words[1:]
        if words[0] == "[":
            if inner[-1:] != ["]"]:
                return 2
            inner.pop()
        try:
            return self._status_of(Brackets(self).holds(inner))
        except ConditionError:
            return 2

    def call(self, name: str, arguments: list[str]) -> Status:
        """Follow a function with arguments and variables of its own."""
        flow, expander = self.flow, self.expander
        before, expander.arguments = expander.arguments, list(arguments)
        knew, expander.knows_arguments = expander.knows_arguments, True
        loops, flow.loops = flow.loops, 0
        depth, tested = flow.depth, flow.tested
        flow.scopes.append({})
        try:
            return self.node(self.functions[name])
        except Returned as end:
            return end.status
        finally:
            flow.depth, flow.tested = depth, tested
            for local, held in flow.scopes.pop().items():
                if held is None:
                    self.variables.table.pop(local, None)
                else:
                    self.variables.table[local] = held
            flow.loops, expander.arguments = loops, before
            expander.knows_arguments = knew

    def source(self, text: str, arguments: list[str]) -> Status:
        """Follow another file in this shell."""
        expander = self.expander
        before = expander.arguments
        expander.arguments = arguments or before
        depth, tested = self.flow.depth, self.flow.tested
        self.flow.sourced += 1
        self.flow.sets_arguments = False
        try:
            return self.nodes(parse(text))
        except Returned as end:
            return end.status
        finally:
            self.flow.sourced -= 1
            self.flow.depth, self.flow.tested = depth, tested
            if arguments and not self.flow.sets_arguments:
                expander.arguments = before

    def _program(self, words: list[str]) -> Status:
        """Note a program, and follow what it hands to another shell."""
        self.note_patterns()
        name = words[0].rpartition("/")[2]
        if name in _NOT_FOLLOWED:
            self.note(f"{name} in line {{line}} of the script is not followed.")
        environment = self.variables.environment()
        if name == "env":
            environment = changed_by_env(environment, words[1:])
        self.state.commands.append(
            Started(
                words=tuple(words),
                line=self.flow.line,
                environment=environment,
                variables=self.variables.texts(),
            )
        )
        self.doubt(" ".join(words))
        status: Status = None
        for index, word in enumerate(words):
            if word not in _SHELLS and (index or word not in _READ_SCRIPTS):
                continue
            inner = self._handed_over(words[index:])
            if inner is not None:
                status = inner if index == 0 and word in _SHELLS else None
                break
        if status is None:
            self.emit(unknown(f"$({' '.join(words)})"))
        return status

    def _handed_over(self, words: Sequence[str]) -> Status:
        """Follow what another shell is given; None if nothing of it is known."""
        text, arguments = None, list(words[1:])
        while (
            arguments and arguments[0][:1] in "-+" and arguments[0] not in ("-", "-s")
        ):
            option = arguments.pop(0)
            if "c" in option and not option.startswith("--"):
                text = arguments.pop(0) if arguments else ""
                break
        else:
            text = self._script(arguments)
        zero, arguments = (arguments or [""])[0], arguments[1:]
        if text is None:
            return None
        child = self.fork(exported=True)
        child.flow.out = self.flow.out
        child.expander.arguments, child.expander.zero = arguments, zero
        status = child.run(parse(text, self.flow.line))
        self.doubt_as(child)
        return status

    def _script(self, arguments: Sequence[str]) -> str | None:
        """Return the text of a script that is named, or read; None if not known."""
        if arguments and arguments[0] not in ("-", "-s"):
            return self.state.file(arguments[0])
        return None if self.flow.stdin is None else self.flow.stdin.rest()

    _FOLLOWED: ClassVar[Mapping[type, Callable[..., Status]]] = {
        SimpleCommand: _simple,
        Condition: _condition,
        Arithmetic: _arithmetic,
        Joined: _joined,
        PipedCommands: _pipeline,
        BackgroundCommand: _background,
        Branches: _if,
        Switch: follow_case,
        ForLoop: follow_for,
        CountingLoop: follow_counting,
        WhileLoop: follow_while,
        Grouped: _grouped,
        Redirected: _redirected,
        ShellFunction: _defined,
    }
    """Kind of a command -> what follows it."""
