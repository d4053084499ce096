"""Build the wheel with every package below ``nestsim``.

In the repository `planner`, `estimators` and `topologies` stand beside `nestsim`, so
that imports show which way they go. In the environment of somebody who installs
nestsim they would take names that are too general. The wheel has them as
``nestsim.planner`` and so on, their imports rewritten; an editable install uses the
repository as it is.
"""

import re
import shutil
import tempfile
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


class WheelHook(BuildHookInterface[Any]):
    """Puts rewritten packages into the wheel in place of the repository's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the packages; an editable install gets none."""
        if version != "standard":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="nestsim-wheel-"))
        write_tree(Path(self.root), self._folder)
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
