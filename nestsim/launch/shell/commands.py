"""Simple commands: assignments, redirections, functions, programs."""

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from nestsim.launch.shell.builtins import BUILTINS
from nestsim.launch.shell.conditions import brackets_hold
from nestsim.launch.shell.declaring import (
    DECLARING,
    assign,
    changed_by_env,
    declare,
    surrounded,
)
from nestsim.launch.shell.interpreter import Interpreter
from nestsim.launch.shell.marks import unknown
from nestsim.launch.shell.state import (
    Ended,
    Jumped,
    Returned,
    Started,
    Status,
    Stdin,
    Variable,
)
from nestsim.launch.shell.tree import Code, Span, Token, parse
from topologies.errors import InputError

_SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
_READ_SCRIPTS = _SHELLS | {"sbatch", "srun", "salloc"}
_NO_COMMANDS = frozenset(
    {"then", "elif", "else", "fi", "do", "done", "esac", "}", "select", "coproc"}
)
_NOT_FOLLOWED = frozenset({"xargs", "parallel", "find"})


class CommandShell(Interpreter):
    """A shell that follows simple commands."""

    @abstractmethod
    def node(self, code: Code) -> Status:
        """Follow one command, and keep its status."""

    @abstractmethod
    def fork(self, *, is_program: bool = False) -> "CommandShell":
        """Return a shell of its own that begins as this one, or as a new program."""

    def _simple(self, span: Span) -> Status:
        lines: list[list[Token]] = [[]]  # the grammar joins `A=1 B=2` with the next one
        for token in span.tokens():
            lines += [[]] if token.is_new_line and lines[-1] else []
            lines[-1].append(token)
        status: Status = 0
        for tokens in lines:
            self.flow.line = tokens[0].word.line if tokens else self.flow.line
            status = self._with(tokens, partial(self._command, tokens))
        return status

    def _with(self, tokens: Sequence[Token], follow: Callable[[], Status]) -> Status:
        """Follow a command that reads or prints elsewhere."""
        flow = self.flow
        out, stdin = flow.out, flow.stdin
        target: tuple[str, bool] | None = None
        for token in tokens:
            sign = token.operator.lstrip("0123456789")
            descriptor = token.operator.removesuffix(sign)
            if sign[:1] == "<" and descriptor in ("", "0"):
                flow.stdin = Stdin(self._read_from(token, sign))
            elif sign and sign[0] in ">&" and descriptor in ("", "1"):
                target = self._target(token, sign, out)
        try:
            return follow()
        finally:
            if target is not None and flow.out is not None:
                self.write(*target, "".join(flow.out))
            flow.out, flow.stdin = out, stdin

    def _target(
        self, token: Token, sign: str, out: list[str] | None
    ) -> tuple[str, bool] | None:
        """Print elsewhere; return the file, and whether it is added to."""
        name = self.expander.one(token.word)
        if sign == ">&" and (name == "-" or name.isdecimal()):
            self.flow.out = out if name == "1" else None
            return None
        if name == "/dev/stdout":
            return None
        self.flow.out = []
        return name, sign in (">>", "&>>")

    def _read_from(self, token: Token, sign: str) -> str | None:
        """Return what a command reads; None if nobody knows."""
        document = token.word.script.documents.get(token.place)
        if document is not None:
            text, expands = document
            line = token.word.line
            return self.expander.document(text, line) if expands else text
        if sign == "<<<":
            return self.expander.one(token.word) + "\n"
        for part in token.word.parts():
            if part.kind == "process_substitution":
                printed = self.output_of(part, part.text)
                return printed + "\n" if printed else ""
        name = self.expander.one(token.word)
        return "" if name == "/dev/null" else self.state.files.get(name)

    def _command(self, tokens: Sequence[Token]) -> Status:
        """Follow assignments, and a command behind them."""
        written = [token.word for token in tokens if not token.operator]
        settings = [word.assignment() for word in written]
        begin = next((n for n, one in enumerate(settings) if one is None), len(written))
        assignments = [setting for setting in settings[:begin] if setting is not None]
        first = written[begin].text if begin < len(written) else ""
        self._check_name(first)
        self.flow.substituted = 0
        if first in DECLARING:
            return declare(self, first, written[begin + 1 :])
        with self.expander.without_unset(is_bare=first in ("[", "test")):
            words = [text for w in written[begin:] for text in self.expander.fields(w)]
        if words:
            with surrounded(self, assignments):
                return self.start(words)
        for setting in assignments:
            assign(self, setting)
        if not assignments and self.flow.stdin is not None:
            self.emit(self.flow.stdin.rest() or "")  # $(< file)
        return self.flow.substituted

    def _check_name(self, name: str) -> None:
        if name in _NO_COMMANDS:
            raise InputError(
                f"is not followed, in line {self.flow.line}",
                got=name,
                expected="a command",
            )

    def start(self, words: list[str]) -> Status:
        """Start a command: a function, one of Bash's own, or a program."""
        name = words[0]
        if name in ("command", "builtin") and words[1:] and words[1][:1] != "-":
            words = words[1:]
        elif name in self.functions:
            return self._call(self.functions[name], words[1:])
        name = words[0]
        if name in ("[", "test"):
            return self._brackets(words)
        if name in DECLARING:
            return declare(self, name, words[1:])
        if name in BUILTINS:
            status = BUILTINS[name](self, words)
            if status is None:
                self.flow.doubt = " ".join(words), self.flow.line, False
            return status
        return self.program(words)

    def _brackets(self, words: list[str]) -> Status:
        if words[0] == "[" and words[-1] != "]":
            return 2
        inner = words[1:-1] if words[0] == "[" else words[1:]
        return self.status_of(lambda: brackets_hold(self, inner))

    def _call(self, body: Code, arguments: list[str]) -> Status:
        """Follow a function with arguments and variables of its own."""
        flow, expander = self.flow, self.expander
        before, expander.arguments = expander.arguments, list(arguments)
        knew, expander.knows_arguments = expander.knows_arguments, True
        loops, flow.loops = flow.loops, 0
        depth, tested = flow.depth, flow.tested
        flow.scopes.append({})
        try:
            return self.node(body)
        except Returned as end:
            return end.status
        finally:
            flow.depth, flow.tested = depth, tested
            self.variables.restore(flow.scopes.pop())
            flow.loops, expander.arguments = loops, before
            expander.knows_arguments = knew

    def source(self, text: str, name: str, arguments: list[str]) -> Status:
        """Follow another file in this shell."""
        expander, flow = self.expander, self.flow
        before = expander.arguments
        expander.arguments = arguments or before
        depth, tested = flow.depth, flow.tested
        flow.sourced += 1
        flow.sets_arguments = False
        hidden = {"BASH_SOURCE": self.variables.table.get("BASH_SOURCE")}
        self.variables.restore({"BASH_SOURCE": Variable(value={0: name})})
        try:
            return self.follow([parse(text)])
        except Returned as end:
            return end.status
        finally:
            flow.sourced -= 1
            self.variables.restore(hidden)
            flow.depth, flow.tested = depth, tested
            if arguments and not flow.sets_arguments:
                expander.arguments = before

    def program(self, words: list[str]) -> Status:
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
        self.flow.doubt = " ".join(words), self.flow.line, False
        status: Status = None
        for index, word in enumerate(words):
            if word not in _SHELLS and (index or word not in _READ_SCRIPTS):
                continue
            inner = self._handed_over(words[index + 1 :])
            if inner is not None:
                status = inner if index == 0 and word in _SHELLS else None
                break
        if status is None:
            self.emit(unknown(f"$({' '.join(words)})"))
        return status

    def _handed_over(self, arguments: list[str]) -> Status:
        """Follow what another shell is given; None if nothing of it is known."""
        text = None
        while arguments and re.match(r"[-+](?!s?\Z)", arguments[0]):
            option = arguments.pop(0)
            if "c" in option and not option.startswith("--"):
                text = arguments.pop(0) if arguments else ""
                break
        else:
            if arguments and arguments[0] not in ("-", "-s"):
                text = self.state.file(arguments[0])
            elif self.flow.stdin is not None:
                text = self.flow.stdin.rest()
        if text is None:
            return None
        child = self.fork(is_program=True)
        child.flow.out = self.flow.out
        child.expander.zero, *child.expander.arguments = arguments or [""]
        status = child.run([parse(text, self.flow.line)])
        self.flow.doubt = child.flow.doubt
        return status

    def run(self, codes: Sequence[Code]) -> Status:
        """Follow a script to its end, and what it left to be done there."""
        status = self.flow.status = self._ended(codes)
        text, self.flow.exit_trap = self.flow.exit_trap, ""
        if text:
            self._ended([parse(text, self.flow.line)])
        return status

    def _ended(self, codes: Sequence[Code]) -> Status:
        try:
            return self.follow(codes)
        except Ended as end:
            return end.status
        except Jumped:
            return 0
