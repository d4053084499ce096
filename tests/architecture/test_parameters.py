"""No function takes more parameters than a reader can keep apart, but for a reason."""

import ast
from collections.abc import Iterator

from tests.architecture.budget import modules

MOST = 8
"""Parameters of a function, without ``self`` and ``cls``."""

OPTIONS = "Each is an option of the command, as its description names it: {}."

EXCEPTIONS = {
    "nestsim/features/advise/command.py:advise_task": OPTIONS.format(9),
    "nestsim/launch/command.py:export_task": OPTIONS.format(9),
    "nestsim/launch/command.py:import_task": OPTIONS.format(9),
    "nestsim/features/compare/command.py:compare": "The questions of Python: 10.",
    "nestsim/features/compare/command.py:compare_networks": "The questions: 9.",
    "nestsim/features/serve/command.py:serve_task": OPTIONS.format(12),
    "nestsim/features/compare/command.py:compare_task": OPTIONS.format(10),
    "estimators/generation/rollout.py:rollout": "What is asked, and of whom: 10.",
}
"""Function -> why it has more, with the figure. A kernel would need one that was
measured: named tuples cost a call from Python up to 9 us, and below 1 us through
`topologies.compiling.check_once`."""


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the name of each function and how many parameters it has."""
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{node.name}"
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            own = every[1:] if every and every[0].arg in {"self", "cls"} else every
            yield name, len(own)
        elif isinstance(node, ast.ClassDef):
            name = f"{prefix}{node.name}"
        yield from functions(node, f"{name}." if name != prefix else prefix)


def counted() -> dict[str, int]:
    """Return the parameters of every function of the packages."""
    return {
        f"{module.path}:{name}": number
        for module in modules()
        for name, number in functions(module.tree)
    }


def test_only_named_exceptions_take_more_than_eight_parameters() -> None:
    found = {name: number for name, number in counted().items() if number > MOST}
    assert found.keys() == EXCEPTIONS.keys()
    for name, number in found.items():
        assert str(number) in EXCEPTIONS[name]


def test_parameters_are_counted_without_self_and_with_keywords() -> None:
    source = (
        "class A:\n def f(self, a, /, b, *, c): pass\ndef g(a):\n def h(b, c): pass\n"
    )
    assert dict(functions(ast.parse(source))) == {"A.f": 3, "g": 1, "g.h": 2}
