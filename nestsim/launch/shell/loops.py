"""Loops and cases of a shell script: round by round until they end, or a limit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nestsim.launch.shell.marks import MARK, first_unknown
from nestsim.launch.shell.nodes import CountingLoop, ForLoop, Node, Switch, WhileLoop
from nestsim.launch.shell.patterns import matches
from nestsim.launch.shell.state import MOST_STEPS, Jumped, Status
from topologies.errors import InputError

if TYPE_CHECKING:
    from nestsim.launch.shell.state import Interpreter


def follow_for(shell: "Interpreter", node: ForLoop) -> Status:
    """Follow a loop over words."""
    if node.words is None:
        words = list(shell.expander.arguments)
    else:
        words = [word for raw in node.words for word in shell.expander.fields(raw)]
    shell.note_patterns()
    for word in words:
        if MARK.fullmatch(word):
            shell.note(f"The loop in line {{line}} goes over {word} once.")
    status: Status = 0
    with shell.flow.looping():
        for word in words:
            shell.variables.assign(node.name, word)
            status, goes_on = _round(shell, node.body)
            if not goes_on:
                break
    return status


def _round(shell: "Interpreter", body: Sequence[Node]) -> tuple[Status, bool]:
    """Follow the body of a loop; return its status, and whether it goes on."""
    shell.state.steps += 1
    if shell.state.steps > MOST_STEPS:
        raise InputError(
            f"the script does not come to an end, in line {shell.flow.line}",
            expected="a launch script",
        )
    depth, tested = shell.flow.depth, shell.flow.tested
    try:
        return shell.nodes(body), True
    except Jumped as jump:
        shell.flow.depth, shell.flow.tested = depth, tested
        if jump.levels > 1:
            raise Jumped(jump.levels - 1, is_break=jump.is_break) from None
        return 0, not jump.is_break


def follow_counting(shell: "Interpreter", node: CountingLoop) -> Status:
    """Follow C's loop."""
    status: Status = 0
    shell.bare_sum(node.first)
    with shell.flow.looping():
        while _counts_on(shell, node):
            status, goes_on = _round(shell, node.body)
            if not goes_on:
                break
            shell.bare_sum(node.step)
    return status


def _counts_on(shell: "Interpreter", node: CountingLoop) -> bool:
    if not node.test.strip():
        return True
    value = shell.bare_sum(node.test)
    if value is None:
        shell.flow.line = node.line
        shell.note("The loop in line {line} of the script has no further round.")
    return bool(value)


def follow_while(shell: "Interpreter", node: WhileLoop) -> Status:
    """Follow a loop with a condition."""
    status: Status = 0
    with shell.flow.looping():
        while _goes_on(shell, node):
            status, goes_on = _round(shell, node.body)
            if not goes_on:
                break
    return status


def _goes_on(shell: "Interpreter", node: WhileLoop) -> bool:
    depth, tested = shell.flow.depth, shell.flow.tested
    while True:
        try:
            status = shell.tested(node.condition)
        except Jumped as jump:
            shell.flow.depth, shell.flow.tested = depth, tested
            if jump.levels > 1:
                raise Jumped(jump.levels - 1, is_break=jump.is_break) from None
            if jump.is_break:
                return False
        else:
            break
    if status is None:
        shell.flow.line = node.line
        shell.note("The loop in line {line} of the script has no further round.")
        return False
    return (status == 0) != node.is_until


def follow_case(shell: "Interpreter", node: Switch) -> Status:
    """Follow the branch, or branches, whose patterns a word fits."""
    word = shell.expander.bare(node.word)
    status: Status = 0
    falls = False
    for branch in node.branches:
        if not falls and not any(_fits(shell, word, one) for one in branch.patterns):
            continue
        status = shell.nodes(branch.body)
        if branch.end == ";;":
            return status
        falls = branch.end == ";&"
    return status


def _fits(shell: "Interpreter", word: str, raw: str) -> bool:
    pattern = shell.expander.pattern(raw)
    if pattern == "*":
        return True
    found = None
    if first_unknown(word + pattern) is None:
        found = matches(word, pattern)
    if found is None:
        shell.note(f"{word} is not {raw} in line {{line}} of the script.")
    return bool(found)
