"""``python -m tests.mutants``: do tests notice when an operator is wrong?"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutants.mutating import AREAS, ROOT, Mutant, drawn_mutants

CODE = ("nestsim", "planner", "estimators", "topologies")
"""Packages that have mutants."""

PARTS = (*CODE, "tests", "scenarios", "docs")
"""What a copy needs, beside the files at the top."""

LONGEST = 600.0
"""Tests that take longer have noticed, if they do not without the mutant: they hang
[s]."""

ENDLESS = 300.0
"""A single test that takes longer has noticed [s]."""


@dataclass(frozen=True)
class Verdict:
    """What tests said of a mutant."""

    mutant: Mutant
    tests: str
    """Folders and files that ran."""

    killed_by: str
    """The first test that failed; empty if none did."""

    seconds: float
    """Wall time [s]."""


_IMPORT = re.compile(r"^\s*from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
_DOTTED = re.compile(r"\b(?:nestsim|planner|estimators|topologies)(?:\.\w+)+")


@cache
def _named_modules(*folders: str) -> dict[str, set[str]]:
    """Return what each Python file below folders names in full or imports, by path."""
    named = {}
    for name in folders:
        for file in sorted((ROOT / name).rglob("*.py")):
            text = file.read_text("utf-8")
            names = set(_DOTTED.findall(text))
            for package, imported in _IMPORT.findall(text):
                names |= {f"{package}.{word}" for word in re.findall(r"\w+", imported)}
                names.add(package)
            named[file.relative_to(ROOT).as_posix()] = names
    return named


def _naming(path: str, *folders: str) -> list[str]:
    """Return the files below folders that import a module."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    named = _named_modules(*folders)
    return [
        file
        for file, names in named.items()
        if file != path
        and any(name == module or name.startswith(f"{module}.") for name in names)
    ]


def _tests_naming(path: str, package: str) -> list[str]:
    """Return the files of a package's tests that import a module."""
    files = _naming(path, f"tests/{package}")
    return [file for file in files if Path(file).name.startswith("test_")]


def _beside(path: str) -> list[str]:
    """Return the tests of the folder that mirrors a file's.

    A folder below it is of code below the file's, if there is such a folder.
    """
    code = Path(path).parent
    folder = "tests" / code
    if len(folder.parts) <= 2 or not (ROOT / folder).is_dir():
        return []
    files = sorted(ROOT.glob(f"{folder}/test_*.py"))
    for child in sorted((ROOT / folder).iterdir()):
        if child.is_dir() and not (ROOT / code / child.name).exists():
            files += sorted(child.rglob("test_*.py"))
    return [file.relative_to(ROOT).as_posix() for file in files]


@cache
def nearest_tests(path: str) -> list[str]:
    """Return the files of tests that are nearest to a file of code.

    Those of the folder that mirrors its folder, or the next one around it that has any,
    after the ones among them that import it. Where none does, after those elsewhere
    that import it; where no test does, after those of the helpers of tests, and of the
    modules, that import it.
    """
    beside, package = _beside(path), Path(path).parts[0]
    tests = _tests_naming(path, package)
    if near := [file for file in tests if file in beside]:
        tests = near
    elif not tests:
        for reader in _naming(path, f"tests/{package}", package):
            if Path(reader).name != "__init__.py":
                tests += _tests_naming(reader, package)
    shared = os.path.commonpath
    tests.sort(key=lambda file: -len(shared([file, f"tests/{path}"])))
    parents = map(Path.as_posix, Path(path).parents)
    around = next(filter(None, map(_beside, (path, *parents))), [])
    return list(dict.fromkeys([*tests, *around])) or [f"tests/{package}"]


def judged(mutant: Mutant, copy: Path, tests: Sequence[str]) -> Verdict:
    """Run tests on a copy of the code in which one thing is wrong."""
    file = copy / mutant.path
    text = file.read_text("utf-8")
    file.write_text(mutant.applied(text), "utf-8")
    begun = time.monotonic()
    try:
        killed_by = _first_failure(copy, tests)
    finally:
        file.write_text(text, "utf-8")
    return Verdict(mutant, " ".join(tests), killed_by, time.monotonic() - begun)


def _first_failure(copy: Path, tests: Sequence[str]) -> str:
    """Return the first test that fails; empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--no-header"]
    command += ["-p", "no:randomly", "-o", f"cache_dir={copy / '.cache'}", *tests]
    command += ["-o", f"faulthandler_timeout={ENDLESS}"]
    command += ["-o", "faulthandler_exit_on_timeout=true"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        run = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if run.returncode == 0:
        return ""
    lines = re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return lines[0] if lines else f"exit {run.returncode}"


def _check_without_mutant(copy: Path, verdict: Verdict) -> None:
    """Refuse a verdict of tests that fail without any mutant."""
    name = verdict.killed_by.partition("[")[0]
    tests = [name] if name.startswith("tests/") else verdict.tests.split()
    failure = _first_failure(copy, tests) if name else ""
    if failure:
        raise SystemExit(f"without any mutant, {failure} of {tests} fails")


def verdicts(mutants: Sequence[Mutant], *, suite: bool) -> Iterator[Verdict]:
    """Yield what the nearest tests say of each mutant; then all tests, if asked."""
    with tempfile.TemporaryDirectory(prefix="nestsim-mutants-") as folder:
        copy = Path(folder)
        for part in PARTS:
            shutil.copytree(
                ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy2(file, copy / file.name)
        passing: set[str] = set()
        for mutant in mutants:
            verdict = judged(mutant, copy, nearest_tests(mutant.path))
            if suite and not verdict.killed_by:
                verdict = judged(mutant, copy, ["tests"])
            if verdict.killed_by not in passing:
                _check_without_mutant(copy, verdict)
                passing.add(verdict.killed_by)
            yield verdict


def main() -> int:
    """Draw mutants, run tests on each, and list those that none noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Change one operator or number at a time, and run tests beside it.",
    )
    parser.add_argument("--mutants", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--area", choices=list(AREAS), help="of this part alone")
    parser.add_argument(
        "--suite", action="store_true", help="run all tests on those that survive"
    )
    parser.add_argument("--list", action="store_true", help="print them, and run none")
    parser.add_argument(
        *("--output", "-o"), type=Path, default=Path("results/mutants"), metavar="DIR"
    )
    options = parser.parse_args()
    mutants = drawn_mutants(options.mutants, options.seed, options.area)
    if options.list:
        sys.stdout.writelines(f"{mutant}\n" for mutant in mutants)
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    survivors = []
    with (options.output / "mutants.csv").open("w", encoding="utf-8", newline="") as f:
        table = csv.writer(f, lineterminator="\n")
        table.writerow(["mutant", "tests", "killed_by", "seconds"])
        for verdict in verdicts(mutants, suite=options.suite):
            seconds = f"{verdict.seconds:.0f}"
            table.writerow([verdict.mutant, verdict.tests, verdict.killed_by, seconds])
            f.flush()
            if not verdict.killed_by:
                survivors.append(verdict)
            word = verdict.killed_by or "SURVIVED"
            sys.stdout.write(f"{verdict.mutant}: {word} ({seconds} s)\n")
            sys.stdout.flush()
    sys.stdout.write(
        f"Seed {options.seed}: tests noticed {len(mutants) - len(survivors)} of "
        f"{len(mutants)} mutants.\n"
    )
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
