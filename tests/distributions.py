"""``make dist``: build both distributions, check them, and try each by itself.

The wheel is installed into a new environment of each Python that is at hand, and the
source distribution into one; each runs a scenario, and all must give the same bytes.
"""

import argparse
import hashlib
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


def answer(distribution: Path, python: Path, extras: str = "") -> str:
    """Install into a new environment, run a scenario, and return its result's hash."""
    with tempfile.TemporaryDirectory(prefix="nestsim-dist-") as home:
        environment, results = Path(home) / "environment", Path(home) / "results"
        _run(python, "-m", "venv", environment)
        pip = (environment / "bin" / "python", "-m", "pip", "--quiet")
        _run(*pip, "install", "--disable-pip-version-check", f"{distribution}{extras}")
        _run(*pip, "check")
        nestsim = environment / "bin" / "nestsim"
        _run(nestsim, "--version")
        _run(nestsim, "run", SCENARIO, "--no-figures", "-q", "--output", results)
        _run(nestsim, "verify", results)
        return hashlib.sha256((results / "result.json").read_bytes()).hexdigest()


def _run(*command: object) -> None:
    # Not from the repository, whose packages stand in the folder.
    words = [str(word) for word in command]
    subprocess.run(words, check=True, cwd=tempfile.gettempdir())


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
    for name, digest in answers.items():
        sys.stdout.write(f"{digest[:16]}  {name}\n")
    return 0 if len(set(answers.values())) <= 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
