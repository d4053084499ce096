"""A sweep that is killed with signal 9 and taken up again is as if it had not been."""

import random
import sqlite3
import time
from pathlib import Path

import pytest

from nestsim.running.store import Store
from tests.nestsim.features.sweep.driver import POINTS
from tests.nestsim.features.sweep.killing import run_killed, run_whole

DRIVER = "tests.nestsim.features.sweep.driver"


def rows(path: Path) -> list[tuple[object, ...]]:
    """Return the stored points as they lie in the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT * FROM points").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_all_points_are_there_once_as_if_undisturbed(tmp_path: Path, workers) -> None:
    whole = tmp_path / "whole.sqlite"
    seconds = run_whole([DRIVER, str(whole), str(workers)], {})
    draw = random.Random(workers)
    path = tmp_path / "killed.sqlite"
    arguments, found = [DRIVER, str(path), str(workers)], [0]
    # At least 0.6 s of sleep are shared by the workers at the end of each whole run.
    for _ in range(2):
        latest = seconds - 0.2 / workers
        run_killed(arguments, {}, draw.uniform(latest - 0.5 / workers, latest))
        if path.exists():
            with Store(path, {"of": "driver"}) as store:
                found.append(len(store.keys()))
    assert found == sorted(found)
    run_whole(arguments, {})
    assert rows(path) == rows(whole)
    assert len(rows(path)) == len(POINTS)


def test_workers_end_when_the_sweep_is_killed(tmp_path: Path) -> None:
    def children() -> set[str]:
        mark = str(tmp_path)
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if f"MARK={mark}".encode() in environment:
                found.add(folder.name)
        return found

    if not Path("/proc/self/environ").exists():
        pytest.skip("this system has no /proc")
    # Seconds of work: it is killed in the middle of them, however fast it starts.
    arguments = [DRIVER, str(tmp_path / "sweep.sqlite"), "2", "0.5"]
    assert run_killed(arguments, {"MARK": str(tmp_path)}, 2.0)
    deadline = time.monotonic() + 20
    while children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children() == set()
