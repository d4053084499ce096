"""How kernels are compiled, and where their machine code is kept.

The machine code is kept among the user's caches, in a file named by all that it
depends on: the contents of every file of the kernel's folder, of this module and of
those that declare kernels, the versions of Python, numpy, numba and LLVM, and the
processor. Numba's own cache does not notice when a kernel reads a constant of another
file that has changed, and its index loses or mixes up entries when several processes
write at once.

A wheel for one Python brings kernels along (`SHIPPED`), compiled for any processor of
level x86-64-v3 as the wheel was built. They are named likewise, so that those of other
sources, versions or processors are not there.
"""

import gc
import hashlib
import inspect
import pickle
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import llvmlite.binding
import numba
import numpy as np
from numba import types
from numba.core import compiler, serialize, targetconfig
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import _rebuild_env
from numba.core.registry import CPUDispatcher
from numba.core.runtime import _nrt_python
from numba.core.typing.typeof import typeof_impl

from topologies.arrays import Dimensions
from topologies.notices import notices
from topologies.user_cache import cache_folder, read_sealed, write_sealed

_OPTIONS = {"nopython": True, "error_model": "numpy", "no_cfunc_wrapper": True}

SHIPPED = Path(__file__).with_name("shipped")
"""Folder of the kernels that came with the package; a repository has none."""

GENERIC = (
    "x86-64-v3",
    "+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,"
    "+popcnt,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
)
"""Processor and features, in LLVM's names, that shipped kernels are compiled for: level
x86-64-v3 of the System V ABI (AMD64 supplement, table of micro-architecture levels)."""

_SCALARS = {
    int: types.int64,
    float: types.float64,
    bool: types.boolean,
    np.uint64: types.uint64,
}


class KernelDispatcher(CPUDispatcher):  # type: ignore[misc]  # numba has no types
    """A function that has one compiled form, as numba calls it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, bool]) -> None:
        super().__init__(
            py_func=function,
            targetoptions=_OPTIONS | options,
            pipeline_class=_KernelCompiler,
        )
        self._compiling = ExitStack()
        self._cache = _KernelCache(function, options, self._compiling)

    def compile(self, sig: Any) -> Any:
        """Return the compiled form; ``sig``, of some arguments, must convert to it."""
        declared = declared_types(self.py_func)
        self._check(sig, declared)
        if not self.overloads:
            try:
                super().compile(declared)
            finally:
                self._compiling.close()
            self.disable_compile()
        return self.overloads[declared].entry_point

    def entry_point_for(self, arguments: tuple[Any, ...]) -> Any:
        """Return the compiled form without its checks, after checking arguments."""
        return self.compile(tuple(map(numba.typeof, arguments)))

    def _check(self, sig: Any, declared: tuple[Any, ...]) -> None:
        for name, given, wanted in zip(
            inspect.signature(self.py_func).parameters, sig, declared, strict=True
        ):
            if self.typingctx.can_convert(given, wanted) is None:
                raise TypeError(
                    f"{self.py_func.__qualname__}: {name} is declared as {wanted}, "
                    f"got {given}"
                )

    def _compilation_chain_init_hook(self) -> None:
        """Leave out what other packages add to numba: no kernel uses it."""


class SubkernelDispatcher(KernelDispatcher):
    """A function that is compiled into those that call it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, bool]) -> None:
        super().__init__(function, options | {"no_cpython_wrapper": True})
        self._cache = NullCache()
        self._compiler.pipeline_class = _SubkernelCompiler


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}


def _values(options: Any) -> dict[str, Any]:
    """Return all options of a compilation, by name.

    Numba compares them some 200,000 times for a report, each time by a property of
    every option.
    """
    kind: Any = type(options)
    values: dict[str, Any] = _defaults(kind) | options._values  # noqa: SLF001
    return values


targetconfig.TargetConfig.values = _values


@cache
def let_kernels_name(kind: type) -> None:
    """Tell numba that kernels may call objects that have a ``subkernel``.

    Parameters
    ----------
    kind
        Class of the objects.
    """
    typeof_impl.register(kind)(lambda value, _: types.Dispatcher(value.subkernel))


class _KernelCode(JITCodeLibrary):  # type: ignore[misc]  # as above
    """Code that is optimised once, as a whole.

    Numba would first optimise each function by itself, and again with those it calls.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout  # noqa: SLF001

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes]]:
        """Return the machine code, without what others would be compiled with.

        Kernels are called from Python alone. Reading the code between source and
        machine code of 44 kernels takes a report 0.3 s.
        """
        self._ensure_finalized()
        nothing = llvmlite.binding.parse_assembly("").as_bitcode()
        return self.name, "object", (self._get_compiled_object(), nothing)


class _SubkernelCode(_KernelCode):
    """Code that is linked into that of callers, and optimised there alone.

    Numba would optimise it and generate machine code that nobody calls, once for each
    level of calls. Leaving that out saves a fifth of the time of compilation.
    """

    @property
    def codegen(self) -> Any:
        """Stand for the code generator, which has no symbols of this code."""
        return _NoSymbols

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return the null pointer: there is no machine code of its own."""
        del name
        return 0


@contextmanager
def _compiling_for(codegen: Any) -> Iterator[None]:
    """Compile what a kernel uses of numba itself, such as `numpy.empty`, into it alone.

    For a report these are 140 functions. Others who use numba keep its own ways. The
    search for circular references waits: it would take a sixth of the time.
    """
    with global_compiler_lock:
        usual, collects = codegen._library_class, gc.isenabled()  # noqa: SLF001
        codegen._library_class = _SubkernelCode  # noqa: SLF001
        gc.disable()
        try:
            yield
        finally:
            codegen._library_class = usual  # noqa: SLF001
            if collects:
                gc.enable()


class _NoSymbols:
    @staticmethod
    def set_env(*_: Any) -> None:
        """Do nothing: the environment belongs to the caller."""


class _KernelCompiler(compiler.Compiler):  # type: ignore[misc]  # as above
    """The usual steps, into a library of our own."""

    library_class: type[_KernelCode] = _KernelCode

    def __init__(self, typing: Any, target: Any, library: Any, *args: Any) -> None:
        assert library is None
        library = self.library_class(target.codegen(), "kernel")
        library.enable_object_caching()
        super().__init__(typing, target, library, *args)


class _SubkernelCompiler(_KernelCompiler):
    library_class = _SubkernelCode


@cache
def declared_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the compiled types of a function's parameters, from its annotations."""
    hints = inspect.get_annotations(function, eval_str=True)
    return tuple(
        _compiled_type(hints[p]) for p in inspect.signature(function).parameters
    )


def _compiled_type(hint: Any) -> Any:
    if hint in _SCALARS:
        return _SCALARS[hint]
    if get_origin(hint) is Annotated:
        array, *notes = get_args(hint)
        (dimensions,) = (note for note in notes if isinstance(note, Dimensions))
        # numpy 2.5 keeps its alias by name, which has the scalar in place of the dtype.
        last = get_args(array)[-1]
        scalar = numba.from_dtype(np.dtype((*get_args(last), last)[0]))
        return types.Array(scalar, dimensions.count, "C", readonly=dimensions.is_frozen)
    if get_origin(hint) is tuple:
        return types.BaseTuple.from_types(tuple(map(_compiled_type, get_args(hint))))
    if isinstance(hint, type) and issubclass(hint, tuple):
        fields = inspect.get_annotations(hint, eval_str=True).values()
        # What numba infers of values: one class for fields of one type, another else.
        return types.BaseTuple.from_types(tuple(map(_compiled_type, fields)), hint)
    raise TypeError(f"a kernel's parameter cannot be declared as {hint}")


def _reduced(compiled: Any) -> tuple[Any, ...]:
    """Return what is kept of a kernel that has been compiled: no listing of types."""
    bare = compiled._replace(type_annotation="")
    *kept, environments = bare._reduce()  # noqa: SLF001
    return *kept, [(known.env_name, known.consts) for known in environments]


def _loaded(target_context: Any, kept: tuple[Any, ...]) -> Any:
    """Return what was kept as numba returns what it compiles.

    An environment has the constants of a function that was compiled into the kernel.
    Numba would import the module of each, such as its own of linear algebra.
    """
    code, described, *rest, environments = kept
    _name_runtime()
    engine = target_context.codegen()._engine  # noqa: SLF001
    engine._defined_symbols.add(described.llvm_cpython_wrapper_name)  # noqa: SLF001
    referenced = [
        _rebuild_env(described.modname, constants, name)
        for name, constants in environments
    ]
    return compiler.CompileResult._rebuild(  # noqa: SLF001
        target_context, code, described, *rest, referenced
    )


@cache
def _name_runtime() -> None:
    """Tell LLVM where what counts references is: kept machine code calls it by name.

    Numba does so as it imports all that it can compile and compiles its runtime
    anew, which takes 0.5 s; the code that is kept holds what it needs of these.
    """
    for name, address in _nrt_python.c_helpers.items():
        symbol = name if name.startswith("_") else f"NRT_{name}"
        llvmlite.binding.add_symbol(symbol, address)


class _KernelCache(NullCache):  # type: ignore[misc]  # as above
    """Machine code in files of the package or the user; see the module."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, bool],
        compiling: ExitStack,
    ) -> None:
        self._function = function
        self._options = sorted(options.items())
        self._compiling = compiling

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was kept for this kernel, or None: then it is compiled."""
        target = target_context.codegen().magic_tuple()
        contents = self._shipped(sig, *target)
        folder = None if contents is not None else cache_folder("kernels")
        if folder is not None:
            contents = read_sealed(folder / self._name(sig, target))
        if contents is not None:
            return _loaded(target_context, pickle.loads(contents))
        target_context.refresh()
        self._compiling.enter_context(notices().once("compiling kernels"))
        self._compiling.enter_context(_compiling_for(target_context.codegen()))
        return None

    def _shipped(
        self, sig: Any, triple: str, _processor: str, features: str
    ) -> bytes | None:
        if not {*GENERIC[1].split(",")} <= {*features.split(",")}:
            return None
        # Whoever may write there may write the package's sources.
        file = SHIPPED / self._name(sig, (triple, *GENERIC))
        return read_sealed(file, is_private=False)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if there is a place for it."""
        folder = cache_folder("kernels")
        if folder is None:
            notices().cannot_keep("compiled kernels", "there is no home folder")
            return
        target = data.target_context.codegen().magic_tuple()
        try:
            write_sealed(
                folder / self._name(sig, target), serialize.dumps(_reduced(data))
            )
        except OSError as error:
            why = f"{folder}: {error.strerror or error}"
            notices().cannot_keep("compiled kernels", why)

    def _name(self, sig: Any, target: tuple[str, ...]) -> str:
        function = self._function
        key = "\n".join(
            (
                _digest(Path(inspect.getfile(function)).parent),
                _versions(),
                str(target),
                f"{function.__module__}.{function.__qualname__}",
                f"{sig} {self._options}",
            )
        )
        return f"{function.__name__}-{hashlib.sha256(key.encode()).hexdigest()}"


@cache
def _digest(folder: Path) -> str:
    """Return a hash of all that kernels of a folder are made from."""
    digest = hashlib.sha256()
    here = Path(__file__)
    shared = (here, here.with_name("compiling.py"), here.with_name("arrays.py"))
    for file in (*shared, *sorted(folder.glob("*.py"))):
        contents = file.read_bytes()
        digest.update(f"{file.name} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()


@cache
def _versions() -> str:
    """Say what machine code depends on of others.

    It calls Python by names that stay within a minor version; what numba compiles of
    its own depends on its version and on numpy's minor version.
    """
    return " ".join(
        (
            f"{sys.implementation.cache_tag}{sys.abiflags}",
            sys.platform,
            platform.machine(),
            ".".join(np.__version__.split(".")[:2]),
            numba.__version__,
            llvmlite.__version__,
        )
    )
