"""Simple commands: assignments, redirections, conditions, functions, programs.

Conditions are ``[ .. ]`` and ``[[ .. ]]``, after POSIX, "test", and the GNU Bash
manual, section 6.4: variables that nothing sets are empty; files are taken to exist,
and a note says so.
"""

import operator
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar

from nestsim.launch.shell.builtins import (
    BUILTINS,
    DECLARING,
    assign,
    changed_by_env,
    declare,
    surrounded,
)
from nestsim.launch.shell.expressions import matches
from nestsim.launch.shell.interpreter import Interpreter
from nestsim.launch.shell.marks import first_unknown, unknown
from nestsim.launch.shell.state import (
    ConditionError,
    Ended,
    Jumped,
    Returned,
    Started,
    Status,
    Stdin,
    Variable,
)
from nestsim.launch.shell.tree import Code, Span, Token, parse
from topologies.input_file import Value

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
        begin = next(
            (n for n, setting in enumerate(settings) if setting is None), len(written)
        )
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
            raise Value(name).error(
                f"is not followed, in line {self.flow.line}", "a command"
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


_Word = TypeVar("_Word", str, Span)
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {f"-{name}": getattr(operator, name) for name in _COMPARED}
)
_TEXTS: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
    | {"<": operator.lt, ">": operator.gt}
)
_TWO_FILES = frozenset({"-nt", "-ot", "-ef"})
_BINARY = frozenset({*_NUMBERS, *_TEXTS, *_TWO_FILES, "=~"})
_FILES = frozenset(f"-{letter}" for letter in "fderwxsLha")
_NOT_KNOWN = frozenset(f"-{letter}" for letter in "bcgkpuGNOStoR")
_WHOLE = re.compile(r"\s*[-+]?\d{1,18}\s*")
_CONDITION = re.compile(r"&&|\|\||[()<>]|(?:(?!&&|\|\|)[^\s()<>])+")
_EXPRESSION = re.compile(r"(?:[^\s()]|\([^()]*(?:\([^()]*\)[^()]*)*\))+")
_REPEATED = re.compile(r"\)[*+{]")
_LONGEST_SEARCHED = 500

Holds = bool | None
"""Whether a condition holds; None if only the machine could tell."""


def brackets_hold(shell: Interpreter, words: Sequence[str]) -> Holds:
    """Return whether ``[ .. ]`` holds, of words that were expanded already.

    Raises
    ------
    ConditionError
        If it is no condition.
    """

    def part(words: Sequence[str]) -> Holds:
        if len(words) == 3:
            return _compared(*words)
        return _unary(shell, *words) if len(words) == 2 else _filled(words[0])

    return bool(words) and _joined(words, ("-o", "-a"), part)


def double_brackets_hold(shell: Interpreter, span: Span) -> Holds:
    """Return whether ``[[ .. ]]`` holds, of words as written.

    Raises
    ------
    ConditionError
        If it is no condition.
    """
    words = list[Span]()
    outline, pattern, end = span.outline(), _CONDITION, 0
    while token := pattern.search(outline, end):
        end = token.end()
        words.append(span.part(*token.span()))
        pattern = _EXPRESSION if token[0] == "=~" else _CONDITION

    def part(words: Sequence[Span]) -> Holds:
        if len(words) == 3:
            return _matched(shell, words[0], words[1].text, words[2])
        text = shell.expander.bare(words[-1])
        return _unary(shell, words[0].text, text) if len(words) == 2 else _filled(text)

    return _joined(words, ("||", "&&"), part)


def _joined(
    words: Sequence[_Word],
    joints: tuple[str, str],
    part: Callable[[Sequence[_Word]], Holds],
) -> Holds:
    """Return whether conditions in brackets, or joined by "or" and "and", hold.

    Parameters
    ----------
    words
        All words.
    joints
        The words for "or" and "and"; letters are options, and test both sides.
    part
        Whether a condition of one to three words holds.
    """
    texts = [str(word) for word in words]
    if len(words) == 1 or (len(words) == 3 and texts[1] in _BINARY):
        return part(words)
    for joint, decides in zip(joints, (True, False), strict=True):
        place = _place(texts, joint)
        if place is not None:
            holds = [_joined(words[:place], joints, part)]
            if holds != [decides] or joint[0] == "-":
                holds.append(_joined(words[place + 1 :], joints, part))
            return (
                decides if decides in holds else None if None in holds else not decides
            )
    if texts[:1] == ["!"]:
        return _not(_joined(words[1:], joints, part))
    if texts[:1] == ["("] and texts[-1] == ")":
        return _joined(words[1:-1], joints, part)
    if len(words) != 2:
        raise ConditionError
    return part(words)


def _place(texts: Sequence[str], joint: str) -> int | None:
    """Return where the first of some joints outside of brackets is."""
    inside = 0
    for place, (before, text) in enumerate(pairwise(texts[:-1]), start=1):
        inside += (before == "(") - (before == ")")
        if inside == 0 and text == joint and before not in _BINARY:
            return place
    return None


def _compared(left: str, sign: str, right: str) -> Holds:
    if first_unknown(left + right) is not None or sign in _TWO_FILES:
        return None
    if sign in _TEXTS:
        return _TEXTS[sign](left, right)
    if sign not in _NUMBERS or not all(map(_WHOLE.fullmatch, (left, right))):
        raise ConditionError
    return _NUMBERS[sign](int(left), int(right))


def _matched(shell: Interpreter, left: Span, sign: str, right: Span) -> Holds:
    """Return whether two words are as a sign in double brackets says."""
    words = shell.expander
    text = words.bare(left)
    if sign in _NUMBERS:
        first, second = words.sum(text), words.sum(words.bare(right))
        if first is None or second is None:
            return None
        return _NUMBERS[sign](first, second)
    if sign in ("=", "==", "!="):
        pattern = words.pattern(right)
        if first_unknown(text + pattern) is not None:
            return None
        fits = matches(text, pattern)
        return _not(fits) if sign == "!=" else fits
    if sign == "=~":
        return _searched(shell, text, words.pattern(right, re.escape))
    return _compared(text, sign, words.bare(right))


def _searched(shell: Interpreter, text: str, pattern: str) -> Holds:
    """Return whether a regular expression is in a text; keep what it found."""
    pattern = pattern.replace("[:digit:]", "0-9")
    odd = _REPEATED.search(pattern) or "[:" in pattern
    if (
        odd
        or first_unknown(text + pattern) is not None
        or len(text) > _LONGEST_SEARCHED
    ):
        return None
    try:
        match = re.search(pattern, text)
    except re.error:
        return None
    groups = [] if match is None else [match[0], *(g or "" for g in match.groups())]
    shell.variables.assign("BASH_REMATCH", groups)
    return match is not None


def _unary(shell: Interpreter, sign: str, word: str) -> Holds:
    """Return whether a word is as an operator says."""
    if sign in ("-n", "-z"):
        filled = _filled(word)
        return filled if sign == "-n" else _not(filled)
    if sign == "-v":
        return shell.is_set(word)
    if sign in _FILES:
        return shell.has_file(word, sign) if word else False
    if sign in _NOT_KNOWN:
        return None
    raise ConditionError


def _filled(word: str) -> Holds:
    """Return whether a word is not empty; what a command prints may be."""
    name = first_unknown(word)
    if name is None:
        return word != ""
    return None if "$(" in name else True


def _not(holds: Holds) -> Holds:
    return None if holds is None else not holds
