"""``python -m tests.benchmarks.killed_sweep``: a long sweep, killed at random moments.

The same points are evaluated twice: at one go, and by a sweep that is killed with
signal 9 three times and taken up again. Both must write the same table. Memory is what
the kernel counts of the sweep's process and of its workers, sampled as points are done:
what grows with their number shows between the quarters.
"""

import argparse
import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nestsim.features.sweep.job import STORE
from tests.benchmarks.measured import tell
from tests.nestsim.features.compare.small import write

BANDWIDTHS = 100
"""Values of the first axis; seeds are the second one."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Watched:
    """Memory of a sweep by the share of points that are done [byte]."""

    parent: dict[int, int] = field(default_factory=dict)
    """Quarter -> most of the sweep's own process."""

    workers: dict[int, int] = field(default_factory=dict)
    """Quarter -> most of one worker."""

    def look(self, process: int, share: float) -> None:
        """Take a sample."""
        quarter = min(3, int(4.0 * share))
        own = resident(process)
        others = [resident(child) for child in children(process)]
        self.parent[quarter] = max(self.parent.get(quarter, 0), own)
        self.workers[quarter] = max([self.workers.get(quarter, 0), *others])


def resident(process: int) -> int:
    """Return what a process holds in memory, 0 if it has ended [byte]."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    return 0


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    with suppress(OSError):
        listed = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(number) for number in listed.split()]
    return []


def done_points(folder: Path) -> int:
    """Return how many points the store of a folder holds."""
    file = folder / STORE
    if not file.exists():
        return 0
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as connection,
    ):
        return int(connection.execute("SELECT count(*) FROM points").fetchone()[0])
    return 0


def scenario(folder: Path, points: int) -> Path:
    """Write a scenario whose sweep replays one plan of a small job so many times."""
    path = write(folder, plan=True)
    bandwidths = [f'"{10.0 + 0.1 * step:.1f} GB/s"' for step in range(BANDWIDTHS)]
    seeds = [str(seed) for seed in range(1, points // BANDWIDTHS + 1)]
    axes = {
        '"cluster.network.levels[1].bandwidth"': bandwidths,
        '"simulation.seed"': seeds,
    }
    table = "\n".join(
        f"{name} = [{', '.join(values)}]" for name, values in axes.items()
    )
    path.write_text(f"{path.read_text()}\n[sweep.set]\n{table}\n")
    return path


def swept(
    path: Path, output: Path, workers: int, points: int, kill_at: int | None = None
) -> tuple[float, Watched]:
    """Run a sweep until its end or so many points; return its time and memory."""
    begun, watched = time.perf_counter(), Watched()
    arguments = ["sweep", str(path), "-o", str(output), "--no-figures", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nestsim", *arguments, "--workers", str(workers)],
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None:
        done = done_points(output)
        watched.look(process.pid, done / points)
        if kill_at is not None and done >= kill_at:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return time.perf_counter() - begun, watched
        time.sleep(0.25)
    if process.returncode:
        raise SystemExit(f"the sweep ended with status {process.returncode}")
    return time.perf_counter() - begun, watched


def main() -> int:
    """Sweep twice, and return 1 if the tables differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.killed_sweep")
    parser.add_argument("--points", type=int, default=2_000, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--kills", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    asked = parser.parse_args()
    points = asked.points - asked.points % BANDWIDTHS
    draw = random.Random(asked.seed)
    kills = sorted(draw.sample(range(1, points), asked.kills))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = scenario(folder, points)
        whole, watched = swept(path, folder / "whole", asked.workers, points)
        rate = points / whole
        tell(f"{points:,} points, {asked.workers} workers: {rate:.1f} points/s")
        for name, sizes in (
            ("the sweep", watched.parent),
            ("a worker", watched.workers),
        ):
            quarters = [f"{sizes.get(k, 0) / 2**20:.0f}" for k in range(4)]
            tell(f"most memory of {name} by quarter [MiB]: {', '.join(quarters)}")
        for kill_at in kills:
            swept(path, folder / "killed", asked.workers, points, kill_at)
            tell(f"killed at {done_points(folder / 'killed'):,} points")
        swept(path, folder / "killed", asked.workers, points)
        tables = [
            hashlib.sha256((folder / name / "points.csv").read_bytes()).hexdigest()
            for name in ("whole", "killed")
        ]
        same = tables[0] == tables[1]
        tell(f"points.csv: {tables[0][:16]}, {'the same' if same else 'OTHER BYTES'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
