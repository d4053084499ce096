"""Kernels are compiled once, kept among the user's caches, and follow their source."""

import ast
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import GenericAlias
from typing import Annotated, NamedTuple

import numpy as np
import pytest

from planner.kernels import memory_bound, relaxed, tables
from tests import failures
from topologies.arrays import Dimensions, FloatVector, IntVector
from topologies.compiling import check_once, kernel, writing_kernel
from topologies.machine_code import declared_types
from topologies.notices import gathered_notices

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "planner/kernels",
    "estimators/collectives/kernels",
    "nestsim/simulator/kernels",
)

GATHERING = """
from topologies.notices import gathered_notices
gathering = gathered_notices()
notes = gathering.__enter__()
"""

PARAMETER_COST = """
import numpy as np
from planner.kernels import memory_bound, tables
numbers = dict.fromkeys(memory_bound.InnerTerms._fields, 0.0)
numbers |= {"num_blocks": 1.0, "block_dense": 3.0, "saved": np.zeros(4)}
inner = memory_bound.InnerTerms(**numbers | {"recompute": np.zeros(4)})
rows = 10.0 + np.arange(64.0).reshape(1, 64)
boundary = np.zeros((1, 1, 2))
job = tables.JobConstants(1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0, 7.0, 1e9, 9.0)
one = np.zeros(1, dtype=np.int64)
ledger = np.eye(4, len(tables.ZeroTerms._fields))
ledger[2] = tables.ZeroTerms(1.0, *[0.0] * 10)._replace(reduced_across=1.0)
hosts = {"offload": np.zeros((1, 4)), "host_step": 0.0 * one, "host_once": 0.0 * one}
choices = tables.Choices(one, one + 2, one, one, one - 1, **hosts)
options = memory_bound.ChoiceTerms(choices, 2.0, job, ledger)
arguments = (inner, rows, boundary, options, np.ones(1), 1, 1.0, 1.0)
print(memory_bound.time_bound(*arguments), memory_bound.time_bound.py_func(*arguments))
"""
"""Prints a bound that reads constants of another kernel file, compiled and not."""

COUNTED = GATHERING + PARAMETER_COST + "\nprint(sum(notes.counts.values()))"
"""Prints how many kernels were compiled, too."""


def exchanged(text, first, second):
    """Exchange the names of two fields, or the values of two constants."""
    if "=" not in first:
        return text.replace(first, "\0").replace(second, first).replace("\0", second)
    (one, low), (other, high) = first.split(" = "), second.split(" = ")
    changed = text.replace(first, f"{one} = {high}")
    return changed.replace(second, f"{other} = {low}")


def run(code, source, cache, **environment):
    """Run a program on a copy of the sources; return what it prints."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=source,
        env=os.environ
        | {"PYTHONPATH": str(source), "NESTSIM_CACHE_DIR": str(cache)}
        | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout


def copied(folder, copy):
    """Copy sources without what Python has kept of them; return the copy."""
    return shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))


class Ran(NamedTuple):
    """A copy of the sources that has run once."""

    source: Path
    cache: Path
    printed: list[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Copy what kernels of the planner are made from, and run it."""
    folder = tmp_path_factory.mktemp("compiled")
    source, cache = folder / "source", folder / "cache"
    for name in ("planner/kernels", "topologies"):
        copied(ROOT / name, source / name)
    (source / "planner" / "__init__.py").touch()
    return Ran(source, cache, run(COUNTED, source, cache).split())


@failures.over(
    "names",
    [("SHARD_PASS = 20", "SHARD_ACROSS = 22"), ("reduced_each:", "gathered_each:")],
    ids=["constants", "fields"],
)
def test_an_answer_follows_what_changes_in_another_file(ran, tmp_path, names):
    compiled, plain, _ = ran.printed
    assert compiled == plain
    source = copied(ran.source, tmp_path / "source")
    file = source / "planner" / "kernels" / "tables.py"
    text = file.read_text()
    status = file.stat()
    swapped = exchanged(text, *names)
    assert len(swapped) == len(text)
    file.write_text(swapped)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    again, plain_again = run(PARAMETER_COST, source, ran.cache).split()
    assert again == plain_again
    assert plain_again != plain


def test_a_second_copy_of_the_source_compiles_nothing(ran, tmp_path):
    other = copied(ran.source, tmp_path / "other")
    assert ran.printed[-1] == "1"
    assert run(COUNTED, other, ran.cache).split() == [*ran.printed[:2], "0"]


def doubling():
    """Return a small kernel, as another process would make it."""

    @kernel
    def doubled(values: FloatVector, factor: float) -> float:
        return values[0] * factor

    return doubled


@failures.over(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"x" * 1000),
        lambda file: file.chmod(0o666),
        lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), os.mkfifo(file)),
    ],
    ids=["cut", "empty", "other", "open to all", "link", "folder", "pipe"],
)
def test_a_damaged_file_is_no_file(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("NESTSIM_CACHE_DIR", str(tmp_path))
    with gathered_notices() as notes:
        assert doubling()(np.ones(1), 2.5) == 2.5
        assert doubling()(np.ones(1), 2.5) == 2.5
        assert notes.counts == {"compiling kernels": 1}
        (file,) = (tmp_path / "kernels").iterdir()
        damage(file)
        assert doubling()(np.ones(1), 2.5) == 2.5
        assert notes.counts == {"compiling kernels": 2}


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NESTSIM_CACHE_DIR", str(tmp_path / "file"))
    with gathered_notices() as notes:
        assert doubling()(np.ones(1), 2.5) == 2.5
    (problem,) = notes.sentences(1000.0)
    assert problem.startswith("compiled kernels cannot be kept")
    assert "Not a directory" in problem


def test_several_processes_at_once_are_all_right(ran, tmp_path):
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(2) as pool:
        printed = pool.map(lambda _: run(PARAMETER_COST, ran.source, cache), range(2))
        assert [one.split() for one in printed] == [ran.printed[:2]] * 2
    assert len(list((cache / "kernels").iterdir())) == 1


CALLED = """
from topologies.compiling import kernel


@kernel
def inner(number: int) -> int:
    total = 0
    for step in range(number):
        total += step * step
    return total


@kernel
def outer(number: int) -> int:
    return inner(number) + inner(2 * number)
"""
"""A kernel that Python and another kernel call."""


def test_a_kernel_that_was_kept_goes_into_kernels_that_are_not(tmp_path):
    """Else their code names what only the process has that compiled them."""
    (tmp_path / "called.py").write_text(CALLED, encoding="utf-8")
    shutil.copytree(ROOT / "topologies", tmp_path / "topologies")
    results = [
        run(f"import called; print(called.{call})", tmp_path, tmp_path / "cache")
        for call in ("inner(4)", "outer(4)", "outer(4)")
    ]
    assert results == ["14\n", "154\n", "154\n"]


def test_a_kernel_takes_what_converts_to_its_declared_types():
    doubled = doubling()
    ones = np.ones(1)
    assert doubled(ones, 2) == 2.0
    assert doubled(ones, 2.5) == 2.5
    assert len(doubled.dispatcher.signatures) == 1
    for wrong in (np.ones(1, dtype=np.int64), np.ones((1, 1)), np.ones(4)[::2]):
        with pytest.raises(TypeError):
            doubled(wrong, 2.0)


def test_the_first_call_refuses_what_does_not_convert():
    @kernel
    def first(values: FloatVector) -> float:
        return values[0]

    with pytest.raises(TypeError, match="values is declared as"):
        first(np.ones(1, dtype=np.int64))
    assert first(np.ones(1)) == 1.0


class Pair(NamedTuple):
    """Two arrays of one type, for which numba has a class of its own."""

    first: FloatVector
    second: FloatVector


class Nested(NamedTuple):
    """What kernels get that have much state."""

    pair: Pair
    count: IntVector
    scale: float


def test_a_kernel_takes_nested_named_tuples():
    @writing_kernel
    def count_up(state: Nested) -> float:
        state.count[0] += 1
        state.pair.second[0] += state.scale * state.pair.first[0]
        return state.pair.second[0]

    state = Nested(Pair(np.ones(1), np.zeros(1)), np.zeros(1, np.int64), 2.0)
    assert count_up(state) == 2.0
    assert check_once(count_up, state)(state) == 4.0
    assert state.count[0] == 2
    wrong = state._replace(count=np.zeros(1))
    for call in (count_up, check_once):
        with pytest.raises(TypeError):
            call(*((count_up, wrong) if call is check_once else (wrong,)))
    assert check_once(count_up.py_func, state) is count_up.py_func


MAKES_AN_ARRAY = """
import numpy as np
from numba.core.errors import NumbaError
from topologies.compiling import kernel, writing_kernel

def make(size: int) -> float:
    return np.ones(size).sum()

try:
    writing_kernel(make)(3)
except NumbaError:
    print("refused", kernel(make)(3))
"""
"""In a process of its own: numba keeps what other kernels have had compiled."""


def test_a_kernel_that_does_not_count_references_cannot_make_arrays():
    done = subprocess.run(
        [sys.executable, "-c", MAKES_AN_ARRAY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["refused", "3.0"]


BESIDE_OTHERS = """
import gc
import numba
import numpy as np
from topologies.arrays import FloatVector
from topologies.compiling import kernel

def sorted_ones(size: int) -> FloatVector:
    return np.sort(np.ones(size))

try:
    kernel(sorted_ones)(-1)
except ValueError as error:
    print(gc.isenabled(), str(error).split()[0], numba.njit(sorted_ones)(3).sum())
"""


def test_who_uses_numba_besides_kernels_compiles_the_same_functions_of_it():
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_OTHERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "negative", "3.0"]


def kernel_files():
    return [file for folder in FOLDERS for file in sorted((ROOT / folder).glob("*.py"))]


@failures.over("file", kernel_files(), ids=lambda file: file.stem)
def test_kernels_are_made_from_files_of_their_own_folder(file):
    """Or what they are kept under would not say all that they depend on."""
    own = ".".join(file.parent.relative_to(ROOT).parts)
    may = {"math", "typing", "numpy", "topologies.arrays", "topologies.compiling", own}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert {name.name for name in node.names} <= may
        elif isinstance(node, ast.ImportFrom):
            assert node.module in may or node.module.startswith(f"{own}.")
            assert node.level == 0


@failures.over(
    "module", [memory_bound, relaxed, tables], ids=lambda module: module.__name__
)
def test_parameters_of_all_functions_have_compiled_types(module):
    functions = [value for value in vars(module).values() if hasattr(value, "py_func")]
    assert functions
    for function in functions:
        assert declared_types(function.py_func)


def test_arrays_have_the_same_compiled_type_however_numpy_spells_its_alias():
    """Numpy 2.5 names the scalar in ``NDArray[..]``, 2.4 the dtype of it."""

    def matrix(array):
        return 0

    types = set()
    for spelling in (
        np.ndarray[tuple[int, ...], np.dtype[np.int32]],
        GenericAlias(np.ndarray, (np.int32,)),
    ):
        matrix.__annotations__ = {"array": Annotated[spelling, Dimensions(2)]}
        types.add(declared_types(matrix))
    ((compiled,),) = types
    assert str(compiled) == "array(int32, 2d, C)"
