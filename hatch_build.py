"""Build the wheel with every package below ``nestsim``.

In the repository `planner`, `estimators` and `topologies` stand beside `nestsim`, so
that imports show which way they go. In the environment of somebody who installs
nestsim they would take names that are too general. The wheel has them as
``nestsim.planner`` and so on, their imports rewritten; an editable install uses the
repository as it is.

With ``NESTSIM_KERNELS=1`` the wheel has machine code of all kernels, too, for the
Python that builds it (`topologies.machine_code` says when it is used). Such a wheel
stands beside the one for all Pythons, as each installation takes what fits it best.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOM = "nestsim"
PACKAGES = ("planner", "estimators", "topologies")
"""What stands beside `ROOM` in the repository, and below it in the wheel."""

_NAMES = "|".join(PACKAGES)
_REWRITES = tuple(
    (re.compile(pattern, re.MULTILINE), text)
    for pattern, text in (
        (rf"^(\s*)from ({_NAMES})(?=[. ])", rf"\1from {ROOM}.\2"),
        (rf"^(\s*)import ({_NAMES})$", rf"\1from {ROOM} import \2"),
        (rf"^(\s*)import ({_NAMES})(\.[\w.]+ as )", rf"\1import {ROOM}.\2\3"),
        # Modules and packages that are named by text: imported late, or hold data.
        (rf'"((?:{_NAMES})(?:\.[a-z_]\w*)+)"', rf'"{ROOM}.\1"'),
        (rf'\bfiles\("({_NAMES})', rf'files("{ROOM}.\1'),
    )
)
_LEFT_OVER = re.compile(rf"^\s*import ({_NAMES})\b.*$", re.MULTILINE)


def rewritten(source: str) -> str:
    """Return a module's source as it stands in the wheel.

    Raises
    ------
    ValueError
        If an import has a form that is not provided for.

    Examples
    --------
    >>> rewritten("from planner.step.plan import Plan")
    'from nestsim.planner.step.plan import Plan'
    >>> rewritten('files("estimators")')
    'files("nestsim.estimators")'
    """
    for pattern, text in _REWRITES:
        source = pattern.sub(text, source)
    found = _LEFT_OVER.search(source)
    if found is not None:
        raise ValueError(
            f"cannot be moved below {ROOM}: {found[0].strip()}; write from .. import"
        )
    return source


def write_tree(root: Path, folder: Path) -> None:
    """Write all packages of the repository into a folder, as the wheel has them."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / ROOM, folder / ROOM, ignore=ignored)
    for name in PACKAGES:
        shutil.copytree(root / name, folder / ROOM / name, ignore=ignored)
    for file in folder.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        file.write_text(rewritten(source), encoding="utf-8")


_KERNEL = re.compile(r"^@(writing_)?kernel$", re.MULTILINE)
_COMPILE = f"""
import sys
from importlib import import_module
from {ROOM}.topologies.compiling import Kernel
from {ROOM}.topologies.machine_code import declared_types
for name in sys.argv[1:]:
    for kernel in vars(import_module(name)).values():
        if type(kernel) is Kernel and kernel.__module__ == name:
            kernel.dispatcher.compile(declared_types(kernel.py_func))
"""
_TARGET = f"from {ROOM}.topologies.machine_code import GENERIC; print(*GENERIC)"


def ships_kernels() -> bool:
    """Return whether the environment asks for machine code in the wheel."""
    return os.environ.get("NESTSIM_KERNELS", "0") not in {"", "0"}


def compile_kernels(folder: Path) -> None:
    """Add the machine code of all kernels to a folder that `write_tree` has written.

    Raises
    ------
    RuntimeError
        If this is no Linux on x86-64, whose processors alone have a common target.
    """
    machine = f"{sys.platform} on {platform.machine()}"
    if machine != "linux on x86_64":
        raise RuntimeError(f"NESTSIM_KERNELS: kernels are not built for {machine}")
    home = folder / ROOM / "topologies"
    modules = (
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in sorted((folder / ROOM).rglob("*.py"))
        if _KERNEL.search(file.read_text(encoding="utf-8"))
    )
    processor, features = _python(folder, _TARGET).split()
    with tempfile.TemporaryDirectory(prefix="nestsim-kernels-") as cache:
        target = {
            "NESTSIM_CACHE_DIR": cache,
            "NUMBA_CPU_NAME": processor,
            "NUMBA_CPU_FEATURES": features,
        }
        _python(folder, _COMPILE, modules, **target)
        shutil.copytree(Path(cache) / "kernels", home / "shipped")
    for file in (home / "shipped").iterdir():
        file.chmod(0o644)


def _python(
    folder: Path, program: str, words: Iterable[str] = (), **target: str
) -> str:
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("NUMBA_")
    }
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env={**others, **target, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout


def kernels_tag() -> str:
    """Return the tag of a wheel with machine code: llvmlite's, which loads it."""
    wheel = importlib.metadata.distribution("llvmlite").read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", wheel, re.MULTILINE)
    return "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))


class WheelHook(BuildHookInterface[Any]):
    """Puts rewritten packages into the wheel in place of the repository's."""

    def dependencies(self) -> list[str]:
        """Return what the build needs: to compile kernels, what they run with."""
        return self.metadata.core.dependencies if ships_kernels() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the packages; an editable install gets none."""
        if version != "standard":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="nestsim-wheel-"))
        write_tree(Path(self.root), self._folder)
        if ships_kernels():
            compile_kernels(self._folder)
            build_data |= {"pure_python": False, "tag": kernels_tag()}
        build_data["force_include"][str(self._folder / ROOM)] = ROOM

    def finalize(
        self,
        version: str,
        build_data: dict[str, Any],  # noqa: ARG002 - the hook's signature
        artifact_path: str,  # noqa: ARG002 - likewise
    ) -> None:
        """Remove what was written."""
        if version == "standard":
            shutil.rmtree(self._folder)
