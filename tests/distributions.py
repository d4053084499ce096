"""``make dist``: build both distributions, check them, and try each by itself.

The wheel is installed into a new environment of each Python that is at hand, with the
wheel that brings kernels for this one, and the source distribution into one. Each runs
a scenario; all must give the same bytes, and kernels that came along are not compiled.
"""

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.frameworks.environments import UnavailableError, find_python

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
SCENARIO = ROOT / "scenarios" / "gpt3_1.3b_8_a100.toml"


def built(folder: Path) -> tuple[Path, Path]:
    """Build into a folder, and return the source distribution and the wheel of it."""
    for old in folder.glob("nestsim-*"):
        old.unlink()
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    _run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    return source, wheel


def built_with_kernels(source: Path, python: Path, version: str) -> Path:
    """Build the wheel with kernels for a Python, beside its source, and return it."""
    with tempfile.TemporaryDirectory(prefix="nestsim-dist-") as home:
        _run(python, "-m", "venv", home)
        pip = (Path(home) / "bin" / "python", "-m", "pip", "--quiet", "wheel")
        where = ("--no-deps", "--wheel-dir", source.parent)
        _run(*pip, "--disable-pip-version-check", *where, source, NESTSIM_KERNELS="1")
    (wheel,) = source.parent.glob(f"*-cp{version.replace('.', '')}-*.whl")
    _run(sys.executable, "-m", "twine", "check", "--strict", wheel)
    return wheel


def answer(distribution: Path, python: Path, extras: str = "") -> str:
    """Install into a new environment, run a scenario, and return its result's hash."""
    brings_kernels = distribution.suffix == ".whl" and "-none-" not in distribution.name
    with tempfile.TemporaryDirectory(prefix="nestsim-dist-") as home:
        environment, results = Path(home) / "environment", Path(home) / "results"
        _run(python, "-m", "venv", environment)
        pip = (environment / "bin" / "python", "-m", "pip", "--quiet")
        _run(*pip, "install", "--disable-pip-version-check", f"{distribution}{extras}")
        _run(*pip, "check")
        nestsim = environment / "bin" / "nestsim"
        _run(nestsim, "--version")
        cache = {"NESTSIM_CACHE_DIR": f"{home}/cache"} if brings_kernels else {}
        options = ("--no-figures", "-q", "--output", results)
        _run(nestsim, "run", SCENARIO, *options, **cache)
        if brings_kernels and (Path(home) / "cache" / "kernels").exists():
            raise RuntimeError(f"{distribution.name}: kernels were compiled anew")
        _run(nestsim, "verify", results)
        return hashlib.sha256((results / "result.json").read_bytes()).hexdigest()


def _run(*command: object, **environment: str) -> None:
    # Not from the repository, whose packages stand in the folder.
    words, folder = [str(word) for word in command], tempfile.gettempdir()
    subprocess.run(words, check=True, cwd=folder, env=os.environ | environment)


def main() -> int:
    """Build, check and try; the exit status is 1 where answers differ."""
    parser = argparse.ArgumentParser(prog="tests.distributions", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS)
    parser.add_argument("--extras", default="", help='for example "[trace]"')
    options = parser.parse_args()
    source, wheel = built(options.output.resolve())
    answers = {}
    for version in options.pythons:
        try:
            python = find_python(version)
        except UnavailableError as error:
            sys.stdout.write(f"Python {version} is not tried: {error}\n")
            continue
        answers[f"{wheel.name} on {version}"] = answer(wheel, python, options.extras)
        if len(answers) == 1:
            answers[source.name] = answer(source, python, options.extras)
        if (sys.platform, platform.machine()) == ("linux", "x86_64"):
            bringing = built_with_kernels(source, python, version)
            answers[bringing.name] = answer(bringing, python, options.extras)
    for name, digest in answers.items():
        sys.stdout.write(f"{digest[:16]}  {name}\n")
    return 0 if len(set(answers.values())) <= 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
