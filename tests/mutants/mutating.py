"""Single wrong operators and numbers, drawn from the code that everything rests on."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[2]

AREAS = {
    "kernels": (
        "planner/kernels/**/*.py",
        "estimators/collectives/**/*.py",
        "nestsim/simulator/kernels/*.py",
    ),
    "ledger": ("planner/step/*.py", "planner/cost/*.py", "estimators/layers/*.py"),
    "replay": ("nestsim/simulator/*.py", "nestsim/lowering/*.py"),
    "search": ("planner/search/**/*.py",),
    "store": ("nestsim/running/*.py",),
    "parsers": (
        "nestsim/launch/**/*.py",
        "topologies/readers/*.py",
        "topologies/units.py",
    ),
}
"""Part of the code -> its files; as many mutants are drawn of each."""

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
"""Node of an operator -> how it is written, and what stands there in a mutant."""

NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
"""Function -> the one that a mutant calls."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One change of one file."""

    path: str
    """File, from the root."""

    line: int
    """Line of the change, from 1."""

    start: int
    """Characters of the file before the change."""

    before: str
    """What the file says."""

    after: str
    """What the mutant says."""

    def applied(self, text: str) -> str:
        """Return the mutant's text of the file."""
        end = self.start + len(self.before)
        assert text[self.start : end] == self.before
        return text[: self.start] + self.after + text[end:]

    def __str__(self) -> str:
        """Return place and change, as a line of a list."""
        return f"{self.path}:{self.line}: {self.before} -> {self.after}"


def drawn_mutants(number: int, seed: int, area: str | None = None) -> list[Mutant]:
    """Return mutants drawn with a seed, evenly from each part of the code."""
    random_numbers = random.Random(seed)
    areas = [area] if area else list(AREAS)
    pools = {name: [*_of_area(name)] for name in areas}
    mutants = []
    for place in range(number):
        pool = pools[areas[place % len(areas)]]
        mutants.append(pool.pop(random_numbers.randrange(len(pool))))
    return mutants


@cache
def _of_area(area: str) -> tuple[Mutant, ...]:
    mutants: list[Mutant] = []
    for pattern in AREAS[area]:
        for file in ROOT.glob(pattern):
            path = file.relative_to(ROOT).as_posix()
            mutants += mutants_of(path, file.read_text("utf-8"))
    return tuple(sorted(mutants))


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant of a file: operators, calls and numbers of what it computes.

    Annotations, messages of errors and constants of modules are left alone: what they
    say is no computation, or is held by a test of its own.
    """
    source = _Source(path, text)
    for node in _computing(ast.parse(text)):
        for left, operator, right in _operators(node):
            if type(operator) in OPERATORS:
                yield from source.between(left, right, *OPERATORS[type(operator)])
        if isinstance(node, ast.Name) and node.id in NAMES:
            yield source.at(node, NAMES[node.id])
        elif isinstance(node, ast.Constant) and type(node.value) in {int, float}:
            yield source.at(node, f"({ast.unparse(node)} + 1)")


class _Source:
    """A file's text, by the places that a syntax tree names."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        rows = text.splitlines(keepends=True)
        self.rows = [row.encode() for row in rows]
        self.offsets = [0, *accumulate(map(len, rows))]

    def place(self, line: int | None, column: int | None) -> int:
        """Return the characters before a place; columns count bytes."""
        number = (line or 1) - 1
        return self.offsets[number] + len(self.rows[number][:column].decode())

    def at(self, node: ast.expr, after: str) -> Mutant:
        """Return the mutant that has something else for a name or a number."""
        start = self.place(node.lineno, node.col_offset)
        end = self.place(node.end_lineno, node.end_col_offset)
        return Mutant(self.path, node.lineno, start, self.text[start:end], after)

    def between(
        self, left: ast.expr, right: ast.expr, before: str, after: str
    ) -> Iterator[Mutant]:
        """Yield the mutant with another operator between two expressions."""
        begin = self.place(left.end_lineno, left.end_col_offset)
        end = self.place(right.lineno, right.col_offset)
        start = self.text.find(before, begin, end)
        if start >= 0:
            line = self.text.count("\n", 0, start) + 1
            yield Mutant(self.path, line, start, before, after)


def _operators(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST, ast.expr]]:
    """Yield the operators of an expression, each between what it joins."""
    if isinstance(node, ast.BinOp):
        yield node.left, node.op, node.right
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield left, node.op, right
    elif isinstance(node, ast.Compare):
        lefts = [node.left, *node.comparators]
        for left, operator, right in zip(
            lefts, node.ops, node.comparators, strict=False
        ):
            yield left, operator, right


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside of functions that compute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.Assert | ast.FunctionDef | ast.JoinedStr):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)
