"""How numeric kernels are declared; `topologies.machine_code` compiles them.

A kernel is compiled once, for the types that its annotations declare, when it is first
called; `topologies.arrays` has the aliases that say how many dimensions an array has.
A function that only other kernels of its folder call is a `subkernel`: it is compiled
into them, and in Python it is a plain function. What many kernels read and write goes
from one to the other in named tuples of arrays; their classes stand beside the kernels.

numba is imported with the first call: commands that call no kernel do without.
"""

import os
from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that Python calls, for its declared types.

    Parameters
    ----------
    function
        With annotated parameters: ``int``, ``float``, ``bool``, arrays with their
        dimensions from `topologies.arrays`, and tuples and named tuples of these.
    """
    return _declared(Kernel, function)


def writing_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel that makes no arrays, but writes to those it is given.

    Then who refers to an array need not be counted, in it and in all that it calls. It
    is needed where functions hand on named tuples of many arrays at every event.
    """
    return _declared(Kernel, function, _nrt=False)


def subkernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function into kernels of its folder; for Python it stays as it is."""
    return _declared(Subkernel, function)


def check_once(
    function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> Callable[P, R]:
    """Return a kernel that takes arguments as they are, after checking these once.

    For calls at every event with named tuples of arrays: finding the type of 40 arrays
    takes 8 us, a call of what is returned here 1 us. All later arguments must have the
    types of these; numbers are converted.
    """
    if not isinstance(function, Kernel):
        return function
    assert not kwargs, "kernels are called by position"
    return cast("Callable[P, R]", function.dispatcher.entry_point_for(args))


def _declared(
    kind: "type[Kernel]", function: Callable[P, R], **options: bool
) -> Callable[P, R]:
    if int(os.environ.get("NUMBA_DISABLE_JIT") or 0):
        return function
    return cast("Callable[P, R]", kind(function, options))


class Kernel:
    """A function that has one compiled form.

    Parameters
    ----------
    function
        What is compiled.
    options
        Of numba, besides those that all kernels have.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, bool]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.options = options

    @cached_property
    def dispatcher(self) -> Any:
        """What numba calls it by."""
        from topologies.machine_code import KernelDispatcher, let_kernels_name

        let_kernels_name(Kernel)
        return KernelDispatcher(self.py_func, self.options)

    @cached_property
    def subkernel(self) -> Any:
        """What numba calls it by inside of other kernels.

        Never the kernel itself: of one that was kept there is nothing to compile into
        another, whose code would name what only this process has.
        """
        from topologies.machine_code import SubkernelDispatcher

        return SubkernelDispatcher(self.py_func, self.options)

    def __call__(self, *args: Any) -> Any:
        """Call the compiled form."""
        return self.dispatcher(*args)

    def __reduce__(self) -> str:
        """Say where processes find it."""
        return self.py_func.__qualname__


class Subkernel(Kernel):
    """A function that is compiled into those that call it."""

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.py_func(*args)
