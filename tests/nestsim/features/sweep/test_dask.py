"""Points on the workers of a real Dask scheduler: the same answers, whoever dies."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from nestsim.features.sweep.executors import dask
from nestsim.features.sweep.executors.dask import PACKAGES, DaskWorkers
from nestsim.features.sweep.executors.protocol import DIED, Evaluate
from nestsim.features.sweep.job import csv_text
from nestsim.features.sweep.runner import run_sweep
from nestsim.running.store import Store
from tests.nestsim.features.sweep.dask_cluster import (
    ROOT,
    DaskCluster,
    kill,
    wait_until,
)
from tests.nestsim.features.sweep.tasks import Square
from tests.nestsim.features.sweep.test_runner import POINTS
from topologies.errors import InputError

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Return a scheduler with two workers that come back when they are killed."""
    with DaskCluster(tmp_path_factory.mktemp("dask") / "cluster") as cluster:
        cluster.start_workers(2)
        yield cluster


@pytest.fixture
def executor(cluster: DaskCluster) -> Iterator[DaskWorkers]:
    with DaskWorkers(cluster.address) as executor:
        yield executor


def test_outcomes_are_those_of_one_process(executor: DaskWorkers) -> None:
    points = [*POINTS, *({"x": x} for x in range(100, 400))]
    here = run_sweep(points, Square())
    there = run_sweep(points, Square(), executor=executor)
    assert here == there
    assert csv_text(here.outcomes) == csv_text(there.outcomes)


def test_a_point_that_takes_too_long_fails_on_a_worker(executor: DaskWorkers) -> None:
    points = [{"x": 1}, {"x": 2, "spin": 60}, {"x": 3}]
    result = run_sweep(points, Square(), executor=executor, time_limit=3.0)
    reasons = [one.reason for one in result.outcomes]
    assert reasons == ["", "took longer than 3 s", ""]


@pytest.mark.parametrize(
    ("mishap", "error"), [("bug", ZeroDivisionError), ("disk", OSError)]
)
def test_what_is_no_failure_of_a_point_ends_the_sweep(
    executor: DaskWorkers, mishap: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        run_sweep([{"x": 1, "mishap": mishap}], Square(), executor=executor)


def test_workers_that_were_left_are_refused(cluster: DaskCluster) -> None:
    executor = DaskWorkers(cluster.address)
    executor.close()
    executor.close()
    with pytest.raises(InputError, match="the scheduler went away"):
        run_sweep([{"x": 1}], Square(), executor=executor)


def test_a_worker_that_is_killed_loses_no_point(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    points = [{"x": x, "seconds": 0.05} for x in range(60)]
    told: list[float] = []
    wait_until(lambda: len(cluster.workers()) == 2)
    first, _ = cluster.workers().values()

    def progress(_: str, share: float | None) -> None:
        told.append(share or 0.0)
        if len(told) == 10:
            os.kill(first, signal.SIGKILL)

    with (
        DaskWorkers(cluster.address) as executor,
        Store(tmp_path / "sweep.sqlite") as store,
    ):
        found = run_sweep(points, Square(), store, executor=executor, progress=progress)
    assert told == [number / 60 for number in range(61)]
    assert found == run_sweep([*points], Square())


def test_a_point_that_kills_its_workers_fails_alone(
    cluster: DaskCluster, executor: DaskWorkers
) -> None:
    wait_until(lambda: len(cluster.workers()) == 2)
    points = [{"x": x} for x in range(12)]
    points[3]["mishap"] = "death"
    found = run_sweep(points, Square(), executor=executor)
    assert [one.reason for one in found.outcomes] == ["", "", "", DIED, *[""] * 8]


def test_few_points_are_handed_out_and_none_is_left_behind(
    cluster: DaskCluster, executor: DaskWorkers
) -> None:
    def known(dask_scheduler: object) -> int:
        return len(dask_scheduler.tasks)  # type: ignore[attr-defined]

    jobs = [(x, {"x": x, "spin": 60.0 if x >= 20 else 0.0}) for x in range(5_000)]
    answers = executor.answers(jobs, Evaluate(Square(), None))
    assert next(answers).number < 20
    with Client(cluster.address, set_as_default=False) as client:
        wait_until(lambda: client.run_on_scheduler(known) > 100)
        time.sleep(1.0)  # until every worker spins
        assert client.run_on_scheduler(known) <= 130
        answers.close()
        wait_until(lambda: not client.run_on_scheduler(known))
    # What was under way has been stopped: workers are there for others.
    begun = time.monotonic()
    run_sweep([{"x": 1}, {"x": 2}], Square(), executor=executor)
    assert time.monotonic() - begun < 30


def test_answers_that_die_with_their_worker_are_waited_for(tmp_path: Path) -> None:
    def unfinished(dask_scheduler: object) -> int:
        tasks = dask_scheduler.tasks.values()  # type: ignore[attr-defined]
        return sum(task.state != "memory" for task in tasks)

    jobs = [(x, {"x": x, "seconds": 0.2}) for x in range(20)]
    with DaskCluster(tmp_path / "cluster") as cluster:
        (worker,) = cluster.start_workers(1, nanny=False)
        with DaskWorkers(cluster.address) as executor:
            answers = executor.answers(jobs, Evaluate(Square(), None))
            rows = [next(answers).row]
            with Client(cluster.address, set_as_default=False) as client:
                wait_until(lambda: not client.run_on_scheduler(unfinished))
            kill(worker)
            wait_until(lambda: not cluster.workers())
            cluster.start_workers(1, nanny=False)
            begun = time.process_time()
            rows += [answer.row for answer in answers]
            # Asked again and again, they would take all of a core.
            assert time.process_time() - begun < 1.5
    here = run_sweep([point for _, point in jobs], Square())
    assert sorted(rows, key=str) == sorted(here.rows, key=str)


def test_a_worker_that_joins_without_our_software_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nestsim").mkdir()
    (tmp_path / "nestsim" / "__init__.py").write_text("")
    jobs = [(x, {"x": x, "seconds": 0.5}) for x in range(300)]
    with DaskCluster(tmp_path / "cluster") as cluster:
        cluster.start_workers(1, nanny=False)
        with DaskWorkers(cluster.address) as executor:
            answers = executor.answers(jobs, Evaluate(Square(), None))
            next(answers)
            path = os.pathsep.join(map(str, (tmp_path, ROOT)))
            cluster.start_workers(1, nanny=False, PYTHONPATH=path)
            with pytest.raises(InputError, match="a worker cannot import what"):
                list(answers)


def test_a_worker_with_other_software_is_refused(tmp_path: Path) -> None:
    lacking, other = tmp_path / "lacking", tmp_path / "other"
    (lacking / "nestsim").mkdir(parents=True)
    (lacking / "nestsim" / "__init__.py").write_text("")
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, other / name, ignore=ignored)
    (other / "planner" / "new.py").write_text("")
    with DaskCluster(tmp_path / "cluster") as cluster:
        for folder, sentence in (
            (lacking, "a worker cannot import what evaluates points: No module named"),
            (other, "a worker has other software than this machine"),
        ):
            path = os.pathsep.join(map(str, (folder, ROOT)))
            (worker,) = cluster.start_workers(1, nanny=False, PYTHONPATH=path)
            (address,) = cluster.workers()
            with (
                DaskWorkers(cluster.address) as executor,
                pytest.raises(InputError, match=sentence) as caught,
            ):
                run_sweep([{"x": 1}], Square(), executor=executor)
            assert "install the same on every worker" in str(caught.value)
            if folder == other:
                assert str(caught.value).startswith(address)
                assert "got:      'nestsim 0." in str(caught.value)
            kill(worker)
            wait_until(lambda: not cluster.workers())


def test_a_scheduler_that_is_none_is_refused(
    cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "CONNECT_WITHIN", 1.0)
    worker = next(iter(cluster.workers()))
    for address, problem in (
        ("tcp://127.0.0.1:9", "no scheduler answers within 1 s"),
        ("somewhere", "is no address of a scheduler: missing port"),
        (worker, "is no scheduler, but: Worker"),
    ):
        with pytest.raises(InputError, match=problem):
            DaskWorkers(address)
    assert threading.active_count() < 20


def test_without_the_library_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(InputError, match=r'pip install "nestsim\[dask\]"'):
        DaskWorkers("tcp://127.0.0.1:8786")
