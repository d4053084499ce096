"""``python -m tests.fuzz``: try many inputs, or repeat one that failed."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz.case import read_reproducer
from tests.fuzz.oracle import examine
from tests.fuzz.pool import CPU_SECONDS, Lane
from tests.fuzz.session import run_session, summary


def main() -> int:
    """Run a session, and return 1 if anything failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Give nestsim inputs of every kind, right and wrong. Each must end "
        "with exit status 0, 1 or 2 and a sentence, within 20 s of CPU and 4 GiB.",
    )
    parser.add_argument("--inputs", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument(
        "--minutes", type=float, help="draw no more inputs after this long"
    )
    parser.add_argument(
        "--cpu-seconds",
        type=float,
        default=CPU_SECONDS,
        help="an input that takes longer hangs",
    )
    parser.add_argument(
        *("--output", "-o"),
        type=Path,
        default=Path("results/fuzz"),
        metavar="DIR",
        help="folder for summary.txt and a reproducer of each failure",
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="repeat a reproducer"
    )
    asked = parser.parse_args()
    return _replay(asked.replay) if asked.replay else _session(asked)


def _session(asked: argparse.Namespace) -> int:
    folder = asked.output.absolute()
    if folder.exists() and any(folder.iterdir()):
        sys.stderr.write(f"{folder} is not empty: name another folder by --output\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="nestsim-fuzz-") as temporary:
        session = run_session(
            Path(temporary),
            number=asked.inputs,
            first_seed=asked.seed,
            num_lanes=asked.workers,
            minutes=asked.minutes,
            cpu_seconds=asked.cpu_seconds,
            tell=lambda text: sys.stderr.write(f"{text}\n"),
        )
        folder.mkdir(parents=True, exist_ok=True)
        for file in session.reproducers.values():
            (folder / file.name).write_bytes(file.read_bytes())
    text = f"seed {asked.seed}\n{summary(session)}\n"
    (folder / "summary.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 1 if session.failures else 0


def _replay(file: Path) -> int:
    case = read_reproducer(file)
    with (
        tempfile.TemporaryDirectory(prefix="nestsim-fuzz-") as temporary,
        Lane(Path(temporary) / "lane") as lane,
    ):
        outcome, failures = examine(case, lane, twice=True)
    streams = (outcome.stdout, outcome.stderr)
    printed, told = (one.decode("utf-8", errors="replace") for one in streams)
    sys.stdout.write(f"nestsim {' '.join(case.argv)[:300]!r}\n{printed[:3000]}\n")
    sys.stdout.write(f"standard error:\n{told[:4000]}\n")
    sys.stdout.write(
        f"exit status {outcome.status}, {outcome.cpu_seconds:.2f} s of CPU, "
        f"{outcome.peak_bytes / 1e6:.0f} MB\n"
    )
    for failure in failures:
        sys.stdout.write(f"FAILED {failure.key}\n{failure.detail}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
