"""A shell script as the commands that it would start. Nothing is executed.

The commands of its text are followed as Bash follows them: variables, arrays,
arithmetic, loops, functions, shells of their own, what is printed into variables. What
only a run would tell is taken, and told: a command succeeds, a condition that asks for
more than the script does not hold, files are there, variables that nothing sets are
empty in conditions. A script that does not come to an end is refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from nestsim.launch.shell.builtins import DECLARING
from nestsim.launch.shell.commands import CommandShell, double_brackets_hold
from nestsim.launch.shell.expressions import matches
from nestsim.launch.shell.marks import HERE, MARK, first_unknown, unknown, without_unset
from nestsim.launch.shell.state import (
    MOST_STEPS,
    Ended,
    Jumped,
    Started,
    State,
    Status,
    Stdin,
    Variables,
)
from nestsim.launch.shell.tree import Code, Span, parse, statements, word_of
from topologies.errors import InputError

_DEEPEST = 40
_COMMANDS = """
command declaration_command unset_command variable_assignment variable_assignments
file_redirect herestring_redirect
"""
_SIMPLE = frozenset(_COMMANDS.split())
_JOINED = frozenset({"list", "pipeline", "negated_command"})
_AROUND = """
list if_statement case_statement for_statement c_style_for_statement while_statement
function_definition negated_command
"""
_NOT_STOPPING = frozenset(_AROUND.split())
_BRANCHES = ("elif_clause", "else_clause", "fi")
_WHOLE = frozenset({"program", "command_substitution", "process_substitution"})


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


def follow_script(
    text: str, variables: Mapping[str, str], *, path: Path | None = None
) -> ScriptRun:
    """Follow a script.

    Parameters
    ----------
    text
        The script.
    variables
        What its surroundings set; the script does not change them.
    path
        Where it lies: what it reads there is read, too; None for a text alone.

    Raises
    ------
    InputError
        If it is no script, or one without end.
    """
    named = {name: held for name, held in variables.items() if not name.isdecimal()}
    shell = Shell(Variables.of(named), State(folder=path and path.parent))
    if path is not None:
        shell.expander.zero = f"{HERE}/{path.name}"
        shell.variables.assign("BASH_SOURCE", [shell.expander.zero])
    numbers = [int(name) for name in variables if name.isdecimal() and name != "0"]
    shell.expander.arguments = [
        variables.get(str(number), unknown(f"${number}"))
        for number in range(1, min(max(numbers, default=0), 99) + 1)
    ]
    if "\r\n" in text:
        shell.note("Lines end as Windows ends them: that is no part of their words.")
    shell.run([parse(text)])
    state = shell.state
    return ScriptRun(
        commands=tuple(state.commands),
        variables=shell.variables.texts(),
        files=state.files,
        assumptions=tuple(dict.fromkeys(state.assumptions)),
    )


class Shell(CommandShell):
    """A shell that follows commands around others, too."""

    def fork(self, *, is_program: bool = False) -> "Shell":
        """Return a shell of its own that begins as this one, or as a new program."""
        child = Shell(self.variables.copy(exported=is_program), self.state)
        child.flow = self.flow.inner(is_program=is_program)
        kept = self.flow.exported_functions if is_program else self.functions
        child.functions = {
            name: body for name, body in self.functions.items() if name in kept
        }
        child.expander.knows_arguments = is_program or self.expander.knows_arguments
        if not is_program:
            child.expander.arguments = list(self.expander.arguments)
            child.expander.zero = self.expander.zero
        return child

    def apart(self, codes: Sequence[Code], out: list[str] | None) -> Status:
        """Follow commands in a shell of their own, and doubt what it doubts."""
        child = self.fork()
        child.flow.out = out
        status = child.run(codes)
        self.flow.doubt = child.flow.doubt
        return status

    def output_of(self, code: Code, text: str) -> str:
        """Return what commands print; a mark with their text if nobody knows."""
        child = self.fork()
        child.flow.out = out = list[str]()
        child.flow.options.discard("e")
        self.flow.substituted = child.run([code])
        printed = "".join(out).rstrip("\n")
        name = first_unknown(without_unset(printed)) or ""
        if "$" in name and not printed.startswith(HERE):
            return unknown(f"$({text.strip()})")
        return printed

    def follow(self, codes: Sequence[Code]) -> Status:
        """Follow commands in turn; return the status of the last one."""
        status: Status = 0
        for code, is_background in statements(codes):
            if code.kind in _WHOLE:
                status = self.follow(code.children)
            elif is_background:
                status = self.apart([code], self.flow.out) and 0
            else:
                status = self.node(code)
        return status

    def node(self, code: Code) -> Status:
        """Follow one command, and keep its status."""
        flow = self.flow
        flow.line = code.line
        if flow.is_doubtful:
            self.note("Commands succeed (set -e).")
            flow.is_doubtful = False
        flow.depth += 1
        self._count(flow.depth > _DEEPEST)
        status = self._followed(code)
        flow.depth -= 1
        flow.status = status
        if "e" in flow.options and not flow.tested and code.kind not in _NOT_STOPPING:
            if status:
                raise Ended(status)
            flow.is_doubtful = status is None
        return status

    def _count(self, is_too_deep: bool = False) -> None:
        self.state.steps += 1
        if self.state.steps > MOST_STEPS or is_too_deep:
            problem = f"the script does not come to an end, in line {self.flow.line}"
            raise InputError(problem, expected="a launch script")

    def _followed(self, code: Code) -> Status:
        body = code.field("body") if code.kind == "redirected_statement" else None
        is_simple = code.kind in _SIMPLE
        code.check(is_deep=is_simple or code.kind == "test_command")
        if body is not None and body.kind in _SIMPLE:
            code.check(is_deep=True)
        if is_simple or (code.kind == "redirected_statement" and body is None):
            return self._simple(code)
        if body is not None:
            # What stands behind several commands belongs to the last one.
            return self._followed(Code(code.script, code.start, code.end, body.node))
        if code.kind in _JOINED or code.end == code.node.end_byte:
            return self._FOLLOWED[code.kind](self, code)
        behind = Span(code.script, code.node.end_byte, code.end)
        return self._with(
            list(behind.tokens()), lambda: self._FOLLOWED[code.kind](self, code)
        )

    def tested(self, codes: Sequence[Code]) -> Status:
        """Follow commands whose failure stops nothing."""
        self.flow.tested += 1
        status = self.follow(codes)
        self.flow.tested -= 1
        return status

    def _list(self, code: Code) -> Status:
        """Follow commands joined by ``&&`` and ``||``."""
        operators, parts = list[str](), [code.children[-1].until(code.end)]
        while code.kind == "list":
            first, joint, *_ = code.children
            operators.insert(0, joint.kind)
            code = first
            parts.insert(0, first if first.kind != "list" else first.children[-1])
        status = self.tested(parts[:1])
        for number, operator in enumerate(operators, start=1):
            holds = status == 0
            if status is None:
                holds = self.take(in_condition=False)
            if (operator == "&&") == holds:
                is_last = number == len(operators)
                follow = self.follow if is_last else self.tested
                status = follow(parts[number : number + 1])
        return status

    def _negated(self, code: Code) -> Status:
        status = self.tested([code.children[-1].until(code.end)])
        return self._turned(status)

    def _turned(self, status: Status) -> Status:
        self.flow.doubt = (*self.flow.doubt[:2], True)
        return None if status is None else int(not status)

    def _pipeline(self, code: Code) -> Status:
        """Follow commands of which each reads what the one before prints."""
        parts = [part for part in code.children if part.node.is_named]
        parts[-1] = parts[-1].until(code.end)
        is_negated = parts[0].kind == "negated_command"
        if is_negated:
            parts[0] = parts[0].children[-1]
        self.flow.tested += is_negated
        flow, outer = self.flow, (self.flow.out, self.flow.stdin)
        statuses: list[Status] = []
        for part, following in pairwise([*parts, None]):
            out = outer[0] if following is None else []
            statuses.append(self.apart([part] if part else [], out))
            flow.stdin = Stdin("".join(out or []))
        flow.stdin = outer[1]
        self.flow.tested -= is_negated
        status = statuses[-1]
        if "pipefail" in self.flow.options:
            failed = [part for part in statuses if part]
            status = failed[-1] if failed else None if None in statuses else 0
        return self._turned(status) if is_negated else status

    def _if(self, code: Code) -> Status:
        branches = [code, *(c for c in code.children if c.kind == "elif_clause")]
        for branch in branches:
            status = self.tested(branch.between(branch.children[0].kind, "then"))
            if status == 0 or (status is None and self.take(in_condition=True)):
                return self.follow(branch.between("then", *_BRANCHES))
        others = [c for c in code.children if c.kind == "else_clause"]
        return self.follow(others[0].children) if others else 0

    def _group(self, code: Code) -> Status:
        if code.children[0].kind == "((":
            return self._arithmetic(code)
        return self.follow(code.children)

    def _subshell(self, code: Code) -> Status:
        return self.apart(code.children, self.flow.out)

    def _defined(self, code: Code) -> Status:
        name, body = (child for child in code.children if child.node.is_named)
        if name.text in DECLARING:
            self.note(f"The function {name.text} in line {{line}} is not followed.")
        self.functions[name.text] = body.until(code.node.end_byte)
        return 0

    def _arithmetic(self, code: Code) -> Status:
        value = self.bare_sum(code.part(2, len(code.node.text or b"") - 2))
        return self.status_of(lambda: None if value is None else value != 0)

    def _condition(self, code: Code) -> Status:
        if code.children[0].kind == "((":
            return self._arithmetic(code)
        inner = Span(code.script, code.start + 2, code.node.end_byte - 2)
        with self.expander.without_unset():
            return self.status_of(lambda: double_brackets_hold(self, inner))

    def _for(self, code: Code) -> Status:
        """Follow a loop over words."""
        kinds = [child.kind for child in code.children]
        self._check_name(kinds[0])
        name, values = code.children[1].text, list(self.expander.arguments)
        if "in" in kinds:
            between = code.between("in", ";", "do_group", "compound_statement")
            end = between[-1].end if between else code.start
            words = Span(code.script, between[0].start if between else end, end).words()
            values = [text for word in words for text in self.expander.fields(word)]
        self.note_patterns()
        for value in values:
            if MARK.fullmatch(value):
                self.note(f"The loop in line {{line}} goes over {value} once.")

        def goes_on() -> Iterator[bool]:
            for value in values:
                self.variables.assign(name, value)
                yield True

        return self._loop(code, goes_on())

    def _counting(self, code: Code) -> Status:
        """Follow C's loop."""
        places = [child for child in code.children if child.kind in ("((", "))")]
        head = Span(code.script, places[0].end, places[1].start)
        first, test, step = head.split(";")
        self.bare_sum(first)

        def rounds() -> Iterator[bool]:
            while True:
                yield self._further(
                    code, self.bare_sum(test) if test.text.strip() else 1
                )
                self.bare_sum(step)

        return self._loop(code, rounds())

    def _while(self, code: Code) -> Status:
        """Follow a loop with a condition."""
        keyword = code.children[0].kind
        condition = code.between(keyword, "do_group")

        def rounds() -> Iterator[bool]:
            while True:
                status, leads_on = self._round(self.tested, condition)
                if leads_on is None:
                    holds = (status == 0) != (keyword == "until")
                    yield self._further(code, None if status is None else holds)
                elif not leads_on:
                    yield False

        return self._loop(code, rounds())

    def _further(self, code: Code, value: int | None) -> bool:
        if value is None:
            self.flow.line = code.line
            self.note("The loop in line {line} of the script has no further round.")
        return bool(value)

    def _loop(self, code: Code, rounds: Iterator[bool]) -> Status:
        status: Status = 0
        body = code.children[-1]
        self.flow.loops += 1
        try:
            for goes_on in rounds:
                if not goes_on:
                    break
                status, leads_on = self._round(self.follow, body.children)
                if leads_on is False:
                    break
        finally:
            self.flow.loops -= 1
        return status

    def _round(
        self, follow: Callable[[Sequence[Code]], Status], codes: Sequence[Code]
    ) -> tuple[Status, bool | None]:
        """Follow a part of a loop; return where a jump leads, None without."""
        self._count()
        depth, tested = self.flow.depth, self.flow.tested
        try:
            return follow(codes), None
        except Jumped as jump:
            self.flow.depth, self.flow.tested = depth, tested
            if jump.levels > 1:
                raise Jumped(jump.levels - 1, is_break=jump.is_break) from None
            return 0, not jump.is_break

    def _case(self, code: Code) -> Status:
        """Follow the branch, or branches, whose patterns a word fits."""
        value = code.between("case", "in")
        word = self.expander.bare(Span(code.script, value[0].start, value[-1].end))
        status: Status = 0
        falls = False
        for branch in (child for child in code.children if child.kind == "case_item"):
            branch.check(is_deep=False)
            bracket = next(child for child in branch.children if child.kind == ")")
            begin = branch.start + branch.text.startswith("(")
            patterns = Span(code.script, begin, bracket.start).split("|")
            if not falls and not any(self._fits(word, part) for part in patterns):
                continue
            status = self.follow(branch.between(")"))
            end = branch.children[-1].kind
            if end not in (";&", ";;&"):
                return status
            falls = end == ";&"
        return status

    def _fits(self, word: str, written: Span) -> bool:
        (part,) = written.words()
        pattern = self.expander.pattern(part)
        if pattern == "*":
            return True
        fits = None
        if first_unknown(word + pattern) is None:
            fits = matches(word, pattern)
        if fits is None:
            self.note(f"{word} is not {part.text} in line {{line}} of the script.")
        return bool(fits)

    _FOLLOWED: ClassVar[Mapping[str, Callable[["Shell", Code], Status]]] = {
        "list": _list,
        "pipeline": _pipeline,
        "negated_command": _negated,
        "if_statement": _if,
        "case_statement": _case,
        "for_statement": _for,
        "c_style_for_statement": _counting,
        "while_statement": _while,
        "compound_statement": _group,
        "subshell": _subshell,
        "test_command": _condition,
        "function_definition": _defined,
    }
    """Kind of a command -> what follows it."""


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a plain text of options, quotes and comments as in a shell."""
    expander = Shell(Variables(), State()).expander
    for line in text.replace("\\\n", " ").splitlines():
        plain = line.split(" #")[0].strip()
        if not plain.startswith("#"):
            for word in re.findall(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+", plain):
                yield from expander.fields(word_of(word))
