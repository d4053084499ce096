"""`nestsim sweep` killed with signal 9 at 20 random moments of its life, resumed."""

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.nestsim.features.sweep.killing import ROOT, run_killed, run_whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SCENARIO = ROOT / "scenarios" / "gpt_76b_1024_a100.toml"
SETS = (
    *("--set", "cluster.network.nic_bandwidth=100 Gbit/s,200 Gbit/s,400 Gbit/s"),
    *("--set", "cluster.network.nic_latency=500 ns,1 us,2 us,4 us,8 us,16 us"),
    *("--set", "plan.micro_batch_size=1,2,3"),
)
POINTS = 54
EXPORTS = ("points.csv", "points.parquet", "result.json", "manifest.json")
MOMENTS = 20


def sweep(folder: Path, workers: int) -> list[str]:
    where = ("--output", str(folder), "--workers", str(workers))
    return ["nestsim", "sweep", str(SCENARIO), *SETS, *where]


def points(folder: Path) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(folder / "sweep.sqlite")
    try:
        return connection.execute("SELECT * FROM points").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_no_kill_loses_or_repeats_or_changes_a_point(tmp_path: Path, workers) -> None:
    environment = {"NESTSIM_CACHE_DIR": str(tmp_path / "cache")}
    whole = tmp_path / "whole"
    run_whole(sweep(tmp_path / "warm", workers), environment)
    seconds = run_whole(sweep(whole, workers), environment)
    assert len(points(whole)) == POINTS
    draw = random.Random(workers)
    killed = 0
    while killed < MOMENTS:
        folder = tmp_path / f"killed {killed}"
        arguments = sweep(folder, workers)
        if not run_killed(arguments, environment, draw.uniform(0.1, seconds)):
            seconds *= 0.9  # the machine has less to do than before
            shutil.rmtree(folder)
            continue
        killed += 1
        run_whole(arguments, environment)
        assert points(folder) == points(whole)
        for name in EXPORTS:
            assert (folder / name).read_bytes() == (whole / name).read_bytes()
