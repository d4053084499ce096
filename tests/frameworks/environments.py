"""Environments of frameworks: which Python, which packages, built once and kept.

Each lies in a folder of its own, with a stamp that is written last: one that an
interrupted installation left is made anew.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli

HERE = Path(__file__).parent
ROOT = HERE.parents[1] / ".frameworks"
STAMP = "installed.json"
CHECKOUTS = ROOT / "checkouts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a framework's own code runs, and what it is held against."""

    name: str
    python: str
    """Version of Python, as 3.11."""
    packages: tuple[str, ...]
    """What pip installs, pinned."""
    preset: str
    release: str
    """Release of the preset's rules."""
    format: str
    """Format of nestsim's files that the framework starts from."""
    draws: str
    """Table of ``draws.toml``."""
    driver: str
    """Script in the folder of drivers."""
    shares: str = ""
    """Environment that has its packages already, empty for one of its own."""
    checkout: str = ""
    """Folder of the framework's repository that the driver is given, empty for none."""
    not_asked: tuple[str, ...] = ()
    """Rules of which the driver cannot know."""
    without_dependencies: tuple[str, ...] = ()
    """What pip installs without what it asks for."""

    @property
    def script(self) -> Path:
        """Return the driver's file."""
        return HERE / "drivers" / f"{self.driver}.py"

    @property
    def folder(self) -> Path:
        """Return where its packages lie."""
        return ROOT / (self.shares or self.name)

    def stamp(self) -> dict[str, object]:
        """Return what the folder was built from."""
        packages = [*self.packages, *self.without_dependencies]
        return {"python": self.python, "packages": packages}


class UnavailableError(Exception):
    """An environment that this machine cannot have, with the reason."""


def read_environments() -> dict[str, Environment]:
    """Return what there is, by name."""
    tables = tomli.loads((HERE / "environments.toml").read_text("utf-8"))
    environments: dict[str, Environment] = {}
    for name, table in tables.items():
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        if other := given.pop("like", ""):
            like = environments[other]
            shares = like.shares or other
            environments[name] = replace(like, name=name, shares=shares, **given)
        else:
            environments[name] = Environment(name=name, **given)
    return environments


def built_python(environment: Environment, *, build: bool) -> Path:
    """Return an environment's Python.

    Parameters
    ----------
    environment
        Which.
    build
        Whether to build it if it is not there.

    Raises
    ------
    UnavailableError
        If it is not there and is not built, if there is no Python of its version, or
        if packages cannot be installed.
    """
    folder, stamp = environment.folder, environment.folder / STAMP
    python = folder / "bin" / "python"
    if stamp.is_file() and json.loads(stamp.read_text("utf-8")) == environment.stamp():
        return python
    if not build:
        raise UnavailableError(f"no .frameworks/{folder.name}: `make frameworks`")
    if folder.is_symlink():
        raise UnavailableError(f"{folder} is a link to what is built otherwise")
    shutil.rmtree(folder, ignore_errors=True)
    name = folder.name
    _run(name, [str(find_python(environment.python)), "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
    _run(name, [*pip, *environment.packages])
    if environment.without_dependencies:
        _run(name, [*pip, "--no-deps", *environment.without_dependencies])
    stamp.write_text(json.dumps(environment.stamp()), "utf-8")
    return python


def find_checkout(environment: Environment, folder: Path = CHECKOUTS) -> str:
    """Return the checkout that an environment's driver takes, empty if it takes none.

    Raises
    ------
    UnavailableError
        If it is not in the folder.
    """
    checkout = folder.absolute() / environment.checkout
    if not environment.checkout:
        return ""
    if not checkout.is_dir():
        raise UnavailableError(f"no checkout {environment.checkout} in {folder}")
    return str(checkout)


def find_python(version: str) -> Path:
    """Return a Python of a version: as a variable says, of the path, or pyenv's.

    Raises
    ------
    UnavailableError
        If there is none.
    """
    variable = f"PYTHON{version.replace('.', '')}"
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    named = [os.environ.get(variable), shutil.which(f"python{version}")]
    for candidate in [*filter(None, named), *map(str, kept[::-1])]:
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return Path(candidate)
    raise UnavailableError(
        f"there is no Python {version}: install python{version}, or say where it is "
        f"with {variable}=/path/to/python{version}"
    )


def _run(name: str, command: Sequence[str]) -> None:
    """Run a command with its lines as progress."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith(("Collecting", "  Downloading", "Installing")):
                sys.stderr.write(f"{name}: {line.strip()[:100]}\n")
    if process.returncode:
        last = "\n".join(lines[-3:])
        raise UnavailableError(f"{' '.join(command[:4])} ..: {last}")
