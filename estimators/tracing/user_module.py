"""A user's own module as a model: run the user's file, and trace what it builds.

The file is run in this process and may do whatever the user may; it is one file beside
installed packages, so that its text tells it from another. A process runs it once: what
was traced is kept in memory by the file's text, the function and its arguments. Nothing
is kept on disk.
"""

import contextlib
import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from estimators.tracing.graph import LayerGraph
from topologies.errors import InputError, import_extra
from topologies.input_file import is_trusted, read_file
from topologies.notices import notices

if TYPE_CHECKING:
    from torch import nn

MAX_FILE = 1_000_000
"""A module's source is written by hand [byte]."""

_MOST_NAMED = 3
_PREFIX = "user_module_"
"""Keeps a file's name apart from those of installed packages."""


class TracedModule(NamedTuple):
    """What a function of a user's file builds."""

    graph: LayerGraph
    """The model as a chain of layers."""

    sha256: str
    """Hash of the file's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModule:
    """A function of a user's file that builds a model."""

    file: Path
    """The file."""

    function: str
    """Name of the function."""

    sequence_length: int
    """Tokens of a training sequence."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    def trace(self) -> TracedModule:
        """Run the file, and return the chain of layers of what it builds.

        Raises
        ------
        InputError
            If torch is not installed, the file cannot be run, the function builds no
            module, or the module is no chain of blocks. The message does not name the
            setting.
        """
        if not is_trusted():
            raise InputError(
                "would run a Python file, which this server does not",
                got=self.file.name,
                expected="another model, or nestsim serve --trust-code",
            )
        import_extra("torch", "trace")
        source = read_file(self.file, expected=_EXPECTED, most_bytes=MAX_FILE)
        notices().remark(f"note: runs {self.file.name}, which [model] module names")
        arguments = json.dumps(self.arguments)
        graph, whole = _traced(
            self.file, self.function, self.sequence_length, arguments, source
        )
        if whole and not graph.spec.whole_because:
            others = f" and {len(whole) - _MOST_NAMED} more" * (
                len(whole) > _MOST_NAMED
            )
            notices().remark(
                f"note: every tensor-parallel rank computes "
                f"{', '.join(whole[:_MOST_NAMED])}"
                f"{others} of {self.file.name} whole"
            )
        if graph.spec.whole_because:
            notices().remark(
                f"note: tensor parallelism does not split {self.file.name}: "
                f"{graph.spec.whole_because}"
            )
        return TracedModule(graph, hashlib.sha256(source).hexdigest())

    def trace_source(self, source: bytes) -> tuple[LayerGraph, tuple[str, ...]]:
        """Return what is traced of the file with this text."""
        from estimators.tracing.module_graph import module_graph, takes_labels
        from estimators.tracing.user_nodes import trace_shapes

        model = self._built(source)
        labels = takes_labels(model)
        with self._running("the model cannot be traced", _TRACEABLE):
            trace = trace_shapes(model, self.sequence_length, labels=labels)
        return module_graph(trace, self.sequence_length)

    def _built(self, source: bytes) -> "nn.Module":
        """Return what the function builds, on the meta device."""
        import torch

        with self._running("the file cannot be run", _EXPECTED):
            code = compile(source, str(self.file), "exec", dont_inherit=True)
        module = ModuleType(f"{_PREFIX}{self.file.stem}")
        module.__file__ = str(self.file)
        with _registered(module), torch.device("meta"):
            with self._running("the file cannot be run", _EXPECTED):
                exec(code, module.__dict__)
            build = self._function(module)
            with self._running(f"{self.function}() fails", _EXPECTED):
                model = build(**self.arguments)
        if not isinstance(model, torch.nn.Module):
            raise InputError(
                f"{self.function}() returns no torch.nn.Module",
                got=type(model).__name__,
                expected="a function that returns a torch.nn.Module",
            )
        return model.to("meta")

    def _function(self, module: ModuleType) -> Callable[..., Any]:
        build = module.__dict__.get(self.function)
        if not callable(build):
            known = sorted(
                name
                for name, member in module.__dict__.items()
                if getattr(member, "__module__", "") == module.__name__
                and callable(member)
            )
            raise InputError(
                "the file has no such function",
                got=self.function,
                expected=f"one of {', '.join(known)}" if known else _EXPECTED,
            )
        return build  # type: ignore[no-any-return]  # whatever the user wrote

    @contextlib.contextmanager
    def _running(self, problem: str, expected: str) -> Iterator[None]:
        """Run what the user wrote, and say what went wrong with it, and where.

        What it prints goes to standard error: standard output is the result's.
        """
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            frames = traceback.extract_tb(error.__traceback__)
            lines = [
                frame.lineno for frame in frames if frame.filename == str(self.file)
            ]
            lines += [getattr(error, "lineno", None)] * isinstance(error, SyntaxError)
            where = f" (line {lines[-1]})" if lines else ""
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(
                f"{problem}{where}", got=message.removesuffix(": "), expected=expected
            ) from None


_EXPECTED = (
    "a Python file and a function of it that returns a torch.nn.Module, "
    '"my_model.py:build"'
)
_TRACEABLE = (
    "code that torch.fx can trace with tensors that have shapes and no numbers: no "
    "branch on a tensor's numbers, no item(), nothing written into a tensor"
)


@lru_cache(maxsize=16)
def _traced(
    file: Path, function: str, sequence_length: int, arguments: str, source: bytes
) -> tuple[LayerGraph, tuple[str, ...]]:
    """Return what was traced of a file's text, with arguments as JSON."""
    module = UserModule(
        file=file,
        function=function,
        sequence_length=sequence_length,
        arguments=json.loads(arguments),
    )
    return module.trace_source(source)


@contextlib.contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """Let a module's classes be found by its name, as dataclasses look for them."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
