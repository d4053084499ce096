"""A wheel brings machine code of its kernels, which is used where it fits exactly."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests import failures
from tests.architecture.test_wheel import ROOT, hook

__all__ = ["hook"]

SCENARIO = ROOT / "scenarios" / "glm4_32b_64_h100.toml"

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="wheels have kernels for Linux on x86-64 alone",
)

KERNEL = """
from topologies.arrays import FloatVector
from topologies.compiling import kernel, subkernel


@subkernel
def scaled(value: float, factor: float) -> float:
    return value * factor


@kernel
def summed(values: FloatVector, factor: float) -> float:
    total = 0.0
    for value in values:
        total += scaled(value, factor)
    return total
"""

COUNTED = """
import numpy as np
from nestsim.topologies.notices import gathered_notices
from nestsim import small
with gathered_notices() as notes:
    values = np.arange(99.0) / 7
    assert small.summed(values, 0.1) == small.summed.py_func(values, 0.1)
print(notes.counts.get("compiling kernels", 0))
"""
"""Prints how many kernels were compiled."""


@pytest.fixture(scope="module")
def installed(hook: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one kernel, as a wheel that brings kernels has it."""
    root, folder = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("installed")
    for name in ("nestsim", "planner", "estimators"):
        (root / name).mkdir()
        (root / name / "__init__.py").touch()
    (root / "nestsim" / "small.py").write_text(KERNEL, encoding="utf-8")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "topologies", root / "topologies", ignore=ignored)
    hook.write_tree(root, folder)
    hook.compile_kernels(folder)
    return folder


def compiled(folder: Path, cache: Path, program: str = COUNTED, **others: str) -> int:
    """Run a program beside what is installed; return how many kernels it compiled."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(folder), "NESTSIM_CACHE_DIR": str(cache)}
        | others,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_kernel_that_came_along_is_not_compiled_nor_kept(
    installed: Path, tmp_path: Path
) -> None:
    assert compiled(installed, tmp_path) == 0
    assert not any(tmp_path.iterdir())


def test_only_what_python_calls_comes_along(installed: Path) -> None:
    (file,) = (installed / "nestsim" / "topologies" / "shipped").iterdir()
    assert file.name.startswith("summed-")
    assert file.stat().st_mode & 0o777 == 0o644


@failures.over(
    "others",
    [
        {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": "+sse4.2,-avx2"},
        {"NUMBA_ENABLE_AVX": "0"},
        {"program": "import numba; numba.__version__ += '.1'\n" + COUNTED},
        {"program": "import llvmlite; llvmlite.__version__ += '.1'\n" + COUNTED},
        {"program": "import numba, numpy; numpy.__version__ = '2.99.9'\n" + COUNTED},
        {"program": "import sys; sys.implementation.cache_tag += '1'\n" + COUNTED},
    ],
    ids=["processor", "without AVX", "numba", "llvmlite", "numpy", "Python"],
)
def test_a_kernel_for_something_else_is_not_used(
    installed: Path, tmp_path: Path, others: dict[str, str]
) -> None:
    assert compiled(installed, tmp_path, **others) == 1


@failures.over(
    ("change", "count"),
    [
        (lambda small, _: small.write_text(small.read_text() + "# other\n"), 1),
        (lambda _, file: file.write_bytes(file.read_bytes()[:-1]), 1),
        # The rights of sources are those of kernels: whoever writes may write both.
        (lambda _, file: file.chmod(0o666), 0),
    ],
    ids=["source", "cut", "open to all"],
)
def test_a_kernel_of_another_source_is_not_used(
    installed: Path,
    tmp_path: Path,
    change: Callable[[Path, Path], object],
    count: int,
) -> None:
    folder = Path(shutil.copytree(installed, tmp_path / "installed"))
    (file,) = (folder / "nestsim" / "topologies" / "shipped").iterdir()
    change(folder / "nestsim" / "small.py", file)
    assert compiled(folder, tmp_path / "cache") == count


def test_kernels_are_built_where_processors_have_a_common_target(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook.platform, "machine", lambda: "riscv64")
    with pytest.raises(RuntimeError, match="not built for linux on riscv64"):
        hook.compile_kernels(tmp_path)


@pytest.mark.slow
def test_shipped_kernels_give_the_bytes_of_those_compiled_here(tmp_path: Path) -> None:
    environment = {**os.environ, "NESTSIM_KERNELS": "1"}
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d")
    subprocess.run([*command, tmp_path / "w"], cwd=ROOT, check=True, env=environment)
    (wheel,) = (tmp_path / "w").iterdir()
    assert f"-cp3{sys.version_info.minor}-" in wheel.name
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "unpacked")
    shipped = tmp_path / "unpacked" / "nestsim" / "topologies" / "shipped"
    results = []
    for number in range(2):  # the second compiles for this processor
        cache, output = tmp_path / f"cache{number}", tmp_path / str(number)
        options = ("--no-figures", "--output", output)
        done = subprocess.run(
            [sys.executable, "-m", "nestsim", "run", SCENARIO, *options],
            cwd=tmp_path / "unpacked",
            env=os.environ
            | {"PYTHONPATH": str(tmp_path / "unpacked")}
            | {"NESTSIM_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (cache / "kernels").exists() is bool(number)
        results.append((output / "result.json").read_bytes())
        shutil.rmtree(shipped, ignore_errors=True)
    assert results[0] == results[1]
