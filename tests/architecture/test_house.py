"""The house keeps its shape: small folders, whole modules, one meaning a name."""

import ast
from collections import Counter
from pathlib import Path

from tests import failures
from tests.architecture.budget import ROOT, modules
from tests.conftest import COSTLY

TREES = {module.path: module.tree for module in modules()}
FOLDERS = sorted({(ROOT / name).parent for name in TREES})

MOST_FILES = 25
"""Modules in one folder, its ``__init__`` included."""

MOST_LINES = 650
"""Lines of a module: 600 is the guide, what is a little over is one idea still."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@failures.over("folder", FOLDERS, ids=named)
def test_a_folder_is_small_and_says_what_it_is(folder: Path) -> None:
    files = list(folder.glob("*.py"))
    assert len(files) <= MOST_FILES
    init = folder / "__init__.py"
    assert init in files
    assert ast.get_docstring(TREES[named(init)])


def test_no_module_is_too_long() -> None:
    sizes = {module.path: module.text.count("\n") for module in modules()}
    assert {name: size for name, size in sizes.items() if size > MOST_LINES} == {}


def test_one_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_array_types_are_defined_once() -> None:
    rooms = [
        name
        for name, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript)
        and ast.unparse(node.value.value) == "NDArray"
    ]
    assert set(rooms) == {"topologies/arrays.py"}


@failures.over("folder", FOLDERS, ids=named)
def test_the_page_on_the_code_has_every_room(folder: Path) -> None:
    tree = TREES[f"{named(folder)}/__init__.py"]
    says = str(ast.get_docstring(tree)).splitlines()[0]
    page = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    assert f"| `{named(folder)}` | {says} |" in page


def test_every_costly_test_is_there() -> None:
    gone = []
    for begin in COSTLY:
        file, _, name = begin.partition("::")
        path = ROOT / file
        there = (
            path.exists()
            if not name
            else f"\ndef {name.partition('[')[0]}" in path.read_text("utf-8")
        )
        gone += [] if there else [begin]
    assert gone == []
