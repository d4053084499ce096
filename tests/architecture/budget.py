"""What the house may weigh: counts of its code, held against ``budget.toml``.

``python -m tests.architecture.budget`` lowers the numbers of the file to today's;
``--raise NAME "WHY"`` lets one grow, with who buys it and what left in exchange.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import tomli

ROOT = Path(__file__).parents[2]
PACKAGES = ("nestsim", "planner", "estimators", "topologies")
BUDGET = Path(__file__).with_name("budget.toml")
SLACK = 100
"""How far a number may be above what it counts, before the file must be lowered."""

EMPTY_NAMES = {"one", "found", "told", "said", "own", "each"}
"""Names that do not say what they hold."""

_LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_ALIKE = 8
_WINDOW = 6


@dataclass(frozen=True)
class Module:
    """A file of the code."""

    path: str
    """From the root."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The room that it is in: two folders at most, three for a feature."""
        folders = self.path.split("/")[:-1]
        return "/".join(folders[: 3 if "features" in folders else 2])

    @cached_property
    def code_lines(self) -> list[int]:
        """Numbers of the lines with code: no blanks, comments, docstrings."""
        prose = {
            number
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        code = {
            number
            for token in tokens
            if token.type not in _LAYOUT
            for number in range(token.start[0], token.end[0] + 1)
        }
        return sorted(code - prose)


@cache
def modules() -> tuple[Module, ...]:
    """Return the files of all packages."""
    paths = (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))
    return tuple(
        Module(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
        for path in paths
    )


def code_by_room() -> dict[str, int]:
    """Return the lines of code of each room, and of all."""
    rooms: Counter[str] = Counter()
    for module in modules():
        rooms[module.room] += len(module.code_lines)
    return {**dict(sorted(rooms.items())), "all": rooms.total()}


def ratchets() -> dict[str, int]:
    """Return what may only become fewer, by name."""
    trees = [module.tree for module in modules()]
    return {
        "modules": len(trees),
        "Any": sum(name == "Any" for tree in trees for name in _read_names(tree)),
        "empty names": sum(
            name in EMPTY_NAMES for tree in trees for name in _bound_names(tree)
        ),
        "twin classes": twin_classes(),
        "repeated lines": repeated_lines(),
    }


def _read_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield names of variables and parameters where they get their value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def twin_classes() -> int:
    """Return how many pairs of classes share `_ALIKE` fields or more."""
    fields = [
        {
            field.target.id
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    large = [names for names in fields if len(names) >= _ALIKE]
    return sum(len(one & other) >= _ALIKE for one, other in combinations(large, 2))


def repeated_lines() -> int:
    """Return how many lines of code begin `_WINDOW` lines that stand elsewhere, too."""
    windows: Counter[tuple[str, ...]] = Counter()
    for module in modules():
        lines = module.text.splitlines()
        code = [lines[number - 1].strip() for number in module.code_lines]
        imports = ("from ", "import ", ")")
        code = [line for line in code if not line.startswith(imports)]
        windows.update(zip(*(code[start:] for start in range(_WINDOW)), strict=False))
    return sum(count - 1 for count in windows.values() if count > 1)


@cache
def counts() -> "Tables":
    """Return what the file has numbers for."""
    return {"lines": code_by_room(), "ratchets": ratchets()}


Tables = dict[str, dict[str, int]]
"""Title -> name -> number."""


def read_budget() -> dict[str, dict[str, Any]]:
    """Return the file: numbers, and why some rose."""
    return tomli.loads(BUDGET.read_text("utf-8")) if BUDGET.is_file() else {}


def lowered(now: Tables, budget: Mapping[str, Mapping[str, int]], name: str) -> Tables:
    """Return a budget that nothing is far below; what has a name may rise, and all.

    What the budget does not know has nothing in it, unless there is no budget.
    """
    tables = {}
    for title, rows in now.items():
        known = budget.get(title, {})
        most = {
            key: known.get(key, 0) if budget else value for key, value in rows.items()
        }
        if name in rows:
            most |= {key: rows[key] for key in (name, "all") if key in rows}
        tables[title] = {key: min(value, most[key]) for key, value in rows.items()}
    return tables


def over(now: Tables, budget: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return what is above its number, a line each."""
    return [
        f"{name}: {value:,}, of {budget.get(title, {}).get(name, 0):,}"
        for title, rows in now.items()
        for name, value in rows.items()
        if value > budget.get(title, {}).get(name, 0)
    ]


def budget_text(tables: Tables, reasons: Mapping[str, str]) -> str:
    """Return the file's text."""
    parts = [
        "# What the code may weigh; `python -m tests.architecture.budget` writes it.\n"
        "# Numbers fall by themselves. One rises with a reason, by --raise.\n"
    ]
    for title, rows in tables.items():
        lines = (f'"{name}" = {value}\n' for name, value in rows.items())
        parts.append("".join([f"\n[{title}]\n", *lines]))
    bought = (f'"{name}" = """{why}"""\n' for name, why in reasons.items())
    return "".join(
        [
            *parts,
            "\n# What rose last, for what, and what left for it.\n[bought]\n",
            *bought,
        ]
    )


def main() -> int:
    """Lower the numbers, raise one, and list what is above its number."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.architecture.budget",
        description="Lower the numbers of budget.toml to what the code weighs.",
    )
    parser.add_argument(
        "--raise",
        dest="raised",
        nargs=2,
        metavar=("NAME", "WHY"),
        help="let one rise: who buys it, and what left in exchange",
    )
    name, why = parser.parse_args().raised or ("", "")
    now, budget = counts(), read_budget()
    tables = lowered(now, budget, name)
    reasons = budget.get("bought", {}) | ({name: why} if name else {})
    BUDGET.write_text(budget_text(tables, reasons), "utf-8")
    lines = over(now, tables)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
