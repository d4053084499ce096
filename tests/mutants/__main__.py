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

PARTS = ("nestsim", "planner", "estimators", "topologies", "tests", "scenarios", "docs")
"""What a copy needs, beside the files at the top."""

LONGEST = 600.0
"""A folder of tests that takes longer has noticed: it hangs [s]."""


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


@cache
def _test_files() -> tuple[tuple[str, str], ...]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(
        (file.relative_to(ROOT).as_posix(), file.read_text("utf-8")) for file in files
    )


def nearest_tests(path: str) -> list[str]:
    """Return the folder of tests that mirrors a file's, or the files that name it."""
    folder = Path("tests") / Path(path).parent
    if len(folder.parts) > 2 and (ROOT / folder).is_dir():
        return [folder.as_posix()]
    module = path.removesuffix(".py").replace("/", ".")
    for name in (module, module.rpartition(".")[0]):
        word = re.compile(rf"\b{re.escape(name)}\b")
        files = [file for file, text in _test_files() if word.search(text)]
        if files:
            return files
    return [f"tests/{Path(path).parts[0]}"]


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
        passing = set()
        for mutant in mutants:
            tests = nearest_tests(mutant.path)
            if tuple(tests) not in passing:
                failure = _first_failure(copy, tests)
                if failure:
                    message = f"without any mutant, {failure} of {tests} fails"
                    raise SystemExit(message)
                passing.add(tuple(tests))
            verdict = judged(mutant, copy, tests)
            if suite and not verdict.killed_by:
                verdict = judged(mutant, copy, ["tests"])
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
