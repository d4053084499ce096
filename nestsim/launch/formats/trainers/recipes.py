"""Recipes in Python: what a function that returns a configuration puts into it.

Nothing is run. The file is parsed (`ast`), and followed are assignments of values,
attributes and parts of a configuration, calls of functions of the same file and of
recipes beside it that it imports, and conditions whose values are there. A call of
anything else is a part of the configuration: what is called, and what it is given by
name.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestsim.launch.formats.trainers.renaming import MOST_BYTES, Unread
from topologies.errors import InputError
from topologies.input_file import read_text

CALLED, GIVEN = "_target_", "_args_"
"""Keys of a part of a configuration: what is called for it, what it is given without a
name."""

MOST_STEPS = 100_000
"""Most statements and expressions that are followed."""

_DEEPEST = 12
_TRAINS = (re.compile(r"pretrain(?!.*optimi)"), re.compile(r"recipe|config$"))
_OTHER = (ast.IsNot, ast.NotEq)
_WRAPPERS = ("Config", "Partial", "partial")
_EXPECTED = "a Python file with a function that returns a recipe"

Scope = dict[str, Any]


class _Returned(Exception):  # noqa: N818 - the way out of a function, no error
    pass


@dataclass(slots=True)
class RecipeFile:
    """A file with recipes."""

    functions: Mapping[str, ast.FunctionDef]
    """Functions by name."""
    known: Mapping[str, Any]
    """What some functions of other files return, by their names."""
    modules: Mapping[str, Path]
    """Recipes beside it that it imports, by the names that it has for them."""
    files: dict[Path, "RecipeFile"] = field(default_factory=dict)
    """Those that were read, for all files alike."""
    scope: Scope = field(default_factory=dict)
    """Values that the file gives names to."""
    notes: list[str] = field(default_factory=list)
    """What was taken where only a run would tell."""
    steps: int = 0
    """Expressions that were followed."""
    depth: int = 0
    """Functions that are in each other now."""

    @classmethod
    def parsed(cls, path: Path, text: str, known: Mapping[str, Any]) -> "RecipeFile":
        """Parse a file.

        Parameters
        ----------
        path
            Where it lies.
        text
            What it says.
        known
            What some functions of other files return, by their names.

        Raises
        ------
        InputError
            If it is no Python.
        """
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f" in line {line}" if line else ""
            raise InputError(f"is not Python{where}", expected=_EXPECTED) from None
        functions = {f.name: f for f in body if isinstance(f, ast.FunctionDef)}
        imported = (
            (name.asname or name.name, path.parent / f"{name.name}.py")
            for node in body
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        )
        modules = {name: beside for name, beside in imported if beside.is_file()}
        file = cls(functions=functions, known=known, modules=modules)
        file._run([node for node in body if isinstance(node, ast.Assign)], file.scope)
        return file

    def recipe(self, name: str | None) -> str:
        """Return the recipe of a name, or the one that pre-trains.

        Raises
        ------
        InputError
            If there is none, or more than one.
        """
        plain = [name for name in self.functions if not name.startswith("_")]
        likely = ([name for name in plain if mark.search(name)] for mark in _TRAINS)
        names = next(filter(None, likely), plain)
        chosen = name or "".join(names[:1]) if len(names) < 2 else name  # the only one
        if chosen is None or chosen not in self.functions:
            raise InputError(
                "has no such recipe" if name else f"has {len(names)} recipes",
                got=name or ", ".join(names)[:100] or None,
                expected=f"the name of one: --set RECIPE={(names or ['NAME'])[0]}",
            )
        return chosen

    def call(self, name: str, words: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """Return what a function returns.

        Parameters
        ----------
        name
            The function.
        words
            What it is given by place.
        given
            Parameter -> its value, where it is not the default.
        """
        function = self.functions[name]
        spec = function.args
        names = [arg.arg for arg in (*spec.args, *spec.kwonlyargs)]
        scope = self.scope | {name: Unread(name) for name in names}
        defaults = [*spec.defaults, *spec.kw_defaults][::-1]
        for parameter, default in zip(names[::-1], defaults, strict=False):
            scope[parameter] = default and self._value(default, self.scope)
        scope |= dict(zip(names, words, strict=False))
        scope |= {key: value for key, value in given.items() if key in names}
        if spec.kwarg is not None:
            scope[spec.kwarg.arg] = {k: v for k, v in given.items() if k not in names}
        self.depth += 1
        try:
            if self.depth < _DEEPEST:
                self._run(function.body, scope)
        except _Returned as returned:
            return returned.args[0]
        finally:
            self.depth -= 1
        return None

    def _run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for node in body:
            match node:
                case ast.Return(value=value):
                    raise _Returned(value and self._value(value, scope))
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, self._value(value, scope), scope)
                case ast.Expr(value=value):
                    self._value(value, scope)
                case ast.If(test=test):
                    holds = self._value(test, scope)
                    if isinstance(holds, Unread):
                        self.notes.append(f"Taken not to hold: {holds}.")
                    self._run(node.body if holds else node.orelse, scope)
                case ast.For() | ast.While():
                    self.notes.append(f"Line {node.lineno}: the loop changes nothing.")

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case (
                ast.Attribute(value=whole, attr=key)
                | ast.Subscript(value=whole, slice=ast.Constant(value=key))
            ):
                table = self._value(whole, scope)
                if not isinstance(table, dict) and isinstance(whole, ast.Attribute):
                    self._assign(whole, table := {}, scope)
                if isinstance(table, dict):
                    table[key] = value

    def _value(  # noqa: C901, PLR0911, PLR0912 - a case for each kind of expression
        self, node: ast.expr, scope: Scope
    ) -> Any:
        """Return the value of an expression; `Unread` if only a run would tell."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise InputError("takes too long to follow", expected=_EXPECTED)
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                values = [self._value(part, scope) for part in (left, right)]
                equal = isinstance(op, ast.Is | ast.Eq)
                known = not any(isinstance(value, Unread) for value in values)
                if known and (equal or isinstance(op, _OTHER)):
                    return (values[0] == values[1]) == equal
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self._value(operand, scope)
                if not isinstance(value, Unread):
                    return not value
            case ast.Name(id=name) if name in scope:
                return scope[name]
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._value(part, scope) for part in parts]
            case ast.Dict(keys=keys, values=parts):
                names = [getattr(key, "value", None) for key in keys]
                return {k: self._value(v, scope) for k, v in zip(names, parts)}  # noqa: B905
            case ast.Attribute(value=whole, attr=key):
                value = self._value(whole, scope)
                if isinstance(value, dict) and key in value:
                    return value[key]
            case ast.Call():
                return self._called(node, scope)
            case ast.IfExp(test=test, body=body, orelse=other):
                value = self._value(test, scope)
                if not isinstance(value, Unread):
                    return self._value(body if value else other, scope)
        return Unread(ast.unparse(node))

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        """Return what a function of the file returns, or the part that a call makes."""
        words = [self._value(arg, scope) for arg in node.args]
        values = {word.arg: self._value(word.value, scope) for word in node.keywords}
        outer = values.pop(None, None)
        named = {**(outer if isinstance(outer, dict) else {}), **values}
        name = ast.unparse(node.func).rpartition(".")[2]
        if isinstance(node.func, ast.Attribute) and name not in _WRAPPERS:
            file = self._module(ast.unparse(node.func.value))
            if file is not None and name in file.functions:
                return file.call(name, words, named)
            whole = self._value(node.func.value, scope)
            if isinstance(whole, list) and name in ("append", "extend"):
                whole += words if name == "append" else words[0]
            if isinstance(whole, dict | list):
                return whole  # a method that makes a part ready
        if name in _WRAPPERS and words:
            name, words = ast.unparse(node.args[0]).rpartition(".")[2], words[1:]
        if name in self.functions:
            return self.call(name, words, named)
        usual = deepcopy(self.known.get(name, {}))
        return {CALLED: name, GIVEN: words, **usual, **named}

    def _module(self, name: str) -> "RecipeFile | None":
        """Return the recipes that a name stands for; None if it stands for others."""
        path = self.modules.get(name)
        if path is None:
            return None
        if path not in self.files:
            text = read_text(path, expected=_EXPECTED, most_bytes=MOST_BYTES)
            file = self.files[path] = RecipeFile.parsed(path, text, self.known)
            file.files, file.notes = self.files, self.notes
        return self.files[path]
