"""Every command can be stopped at any moment: status, words, and nothing left over."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nestsim.cli import main
from nestsim.running.interruption import Stop, deferred_signals, stoppable
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.validation.validation_rows import GPT, write_csv
from topologies.errors import InputError

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system has no /proc"
)

SEEDS = ",".join(map(str, range(1, 200)))
SWEPT = ("--set", f"simulation.seed={SEEDS}")
JOBS = """
[plan]
tensor_model_parallel_size = 2
micro_batch_size = 1

[[jobs]]
name = "one"
devices = "0-1, 4-5"

[[jobs]]
name = "other"
devices = "2-3, 6-7"
"""
COMMANDS = {
    "run": ("run", "job.toml", "-o", "out"),
    "simulate": ("simulate", "job.toml", "-o", "out"),
    "plan": ("plan", "job.toml"),
    "compare": ("compare", "job.toml", "-o", "out"),
    "compare on two": ("compare", "job.toml", "-o", "out", "--workers", "2"),
    "stress": ("stress", "job.toml", "-o", "out", "--workers", "2"),
    "sweep": ("sweep", "job.toml", "-o", "out", "--workers", "1", *SWEPT),
    "sweep on two": ("sweep", "job.toml", "-o", "out", "--workers", "2", *SWEPT),
    "goodput": ("goodput", "job.toml", "-o", "out", "--seeds", "5000"),
    "jitter": ("jitter", "job.toml", "-o", "out", "--runs", "2000", "--workers", "1"),
    "jitter on two": ("jitter", "job.toml", "-o", "out", "--runs", "2000"),
    "jobs": ("jobs", "jobs.toml", "-o", "out", "--ecmp-seeds", SEEDS),
    "validate": ("validate", "rows.csv", "-o", "out"),
    "collectives": ("collectives", "job.toml", "-o", "out"),
    "topology": ("topology", "job.toml", "-o", "out/network.png"),
}
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
WORD = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated."}
PATIENCE = 240
"""However slow the machine is [s]."""


class Ended(NamedTuple):
    """What became of a command."""

    status: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the current folder, with inputs; no process may be left at the end."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, plan=True)
    jobs = write(tmp_path, "jobs")
    jobs.write_text(jobs.read_text() + JOBS)
    rows = [{**GPT, "row_id": str(number)} for number in range(40)]
    write_csv(tmp_path / "rows.csv", *rows)
    yield tmp_path
    deadline = time.monotonic() + 20
    while processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes(tmp_path) == set()


def processes(folder: Path) -> set[str]:
    """Return the processes that a test has started and that still run."""
    found = set()
    for one in Path("/proc").glob("[0-9]*"):
        try:
            environment = (one / "environ").read_bytes()
            state = (one / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"MARK={folder}".encode() in environment and state != "Z":
            found.add(one.name)
    return found


def hears(process: "subprocess.Popen[str]", number: int) -> bool:
    """Return whether a process has a handler for a signal by now."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = int(text.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a command in a session of its own, as a terminal does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nestsim", *arguments],
        cwd=folder,
        env={**os.environ, "MARK": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE
    # Last of all that `stoppable` makes heard.
    while process.poll() is None and not hears(process, signal.SIGHUP):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def stopped(process: "subprocess.Popen[str]", number: signal.Signals) -> Ended:
    """Stop a command: Ctrl-C goes to all processes of a terminal, SIGTERM to one."""
    if process.poll() is None:
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    return Ended(process.returncode, out, err)


def assert_in_order(folder: Path, ended: Ended, number: signal.Signals) -> None:
    """Check what has to hold at whatever moment a command was stopped."""
    assert "Traceback" not in ended.err
    assert "Error" not in ended.err
    assert not list(folder.rglob(".nestsim-*"))
    out = folder / "out"
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    stores = {name for name in names if name.endswith(".sqlite")}
    if ended.status in {0, 1}:  # it was faster
        assert names or ended.out
        return
    assert ended.status == STATUS[number]
    *_, last = ended.err.splitlines()
    assert last == last.strip()
    assert last.startswith(WORD[number])
    assert len(ended.err.splitlines()) <= 12  # progress of a slow machine included
    assert names == stores or "manifest.json" in names or "network.png" in names
    if out.exists() and names == stores:
        assert stores
        assert "the same command, without --restart, goes on from there" in last


MOMENTS = (0.3, 1.5, 4.0)
"""Seconds after the beginning: while it loads, while it works, near its end."""


def moments() -> Iterator[Any]:
    """Yield each command with each moment; all but one of a command are slow."""
    for place, command in enumerate(COMMANDS):
        for number, seconds in enumerate(MOMENTS):
            marks = () if place % 2 == number else pytest.mark.slow
            yield pytest.param(command, seconds, marks=marks, id=f"{command}-{seconds}")


@pytest.mark.parametrize(("command", "seconds"), list(moments()))
def test_a_command_that_is_stopped_leaves_all_in_order(
    command: str, seconds: float, folder: Path
) -> None:
    number = signal.SIGTERM if seconds == 1.5 else signal.SIGINT
    process = started(folder, *COMMANDS[command])
    time.sleep(seconds)
    assert_in_order(folder, stopped(process, number), number)


@pytest.mark.parametrize("number", list(STATUS))
def test_a_sweep_on_two_workers_is_taken_up(
    number: signal.Signals, folder: Path
) -> None:
    import sqlite3

    arguments = ("sweep", "job.toml", "-o", "out", "--workers", "2", "--quiet")
    many = ",".join(map(str, range(1, 2000)))  # a slow machine looks too late
    process = started(folder, *arguments, "--set", f"simulation.seed={many}")
    deadline = time.monotonic() + PATIENCE
    done = 0
    while done < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
        if (folder / "out" / "sweep.sqlite").exists():
            connection = sqlite3.connect("file:out/sweep.sqlite?immutable=1", uri=True)
            try:
                rows = connection.execute("SELECT count(*) FROM points")
                (done,) = rows.fetchone()
            except sqlite3.Error:
                done = 0
            finally:
                connection.close()
    ended = stopped(process, number)
    assert_in_order(folder, ended, number)
    assert (ended.status, ended.out) == (STATUS[number], "")
    assert ended.err == (
        f"{WORD[number]} Finished points are kept in out; the same command, without "
        "--restart, goes on from there.\n"
    )
    few = ("--set", "simulation.seed=1,2")
    other = subprocess.run(
        [sys.executable, "-m", "nestsim", *arguments, *few],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MARK": str(folder)},
    )
    assert other.returncode == 2
    assert "belongs to another sweep: other settings" in other.stderr


def test_a_run_that_is_stopped_while_it_writes_says_so(folder: Path) -> None:
    process = started(folder, *COMMANDS["simulate"])
    deadline = time.monotonic() + PATIENCE
    while not list(folder.glob("out/.nestsim-*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    ended = stopped(process, signal.SIGTERM)
    assert_in_order(folder, ended, signal.SIGTERM)
    if ended.status == 143:
        assert "Nothing was written to out." in ended.err
        assert not (folder / "out").exists()


def test_what_was_written_before_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nestsim.features.run.command

    whole, calls = nestsim.features.run.command.run_job, []

    def interrupted(scenario: Any, **others: Any) -> Any:
        calls.append(scenario)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(scenario, **others)

    monkeypatch.setattr(nestsim.features.run.command, "run_job", interrupted)
    for name in ("a", "b", "c"):
        write(folder, name)
    assert main(["run", "a.toml", "b.toml", "c.toml", "-o", "out", "--json"]) == 130
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"]
    assert captured.err.splitlines()[-1] == (
        f"Interrupted. Results are in {Path('out/a')}. Nothing was written to "
        f"{Path('out/b')}, {Path('out/c')}."
    )
    assert [path.name for path in Path("out").iterdir()] == ["a"]


def test_a_signal_that_a_library_makes_another_error_of_is_told_like_any(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nestsim.features.run.command

    for number, kind in enumerate((RuntimeError, InputError)):

        def cut(*_: Any, kind: type[Exception] = kind, **__: Any) -> Any:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise kind("the library was cut") from None

        monkeypatch.setattr(nestsim.features.run.command, "run_job", cut)
        write(folder, f"job{number}")
        assert main(["run", f"job{number}.toml", "-o", "out", "-q"]) == 130
        told = capsys.readouterr().err
        assert told == "Interrupted. Nothing was written to out.\n"


def test_a_command_without_output_has_little_to_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nestsim.scenario.load

    def terminated() -> Any:
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(nestsim.scenario.schema, "scenario_schema", terminated)
    assert main(["schema"]) == 143
    assert capsys.readouterr() == ("", "Terminated.\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_impatient_user_does_not_cut_what_puts_things_in_order() -> None:
    tidied = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            tidied.append("all of it")

    with stoppable() as stop, pytest.raises(KeyboardInterrupt):
        work()
    assert (tidied, stop.received) == (["all of it"], signal.SIGTERM)


def test_a_signal_that_got_lost_can_be_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter([10.0, 11.0, 13.0])
    monkeypatch.setattr(
        "nestsim.running.interruption.time.monotonic", lambda: next(moments)
    )
    stop = Stop()
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGTERM)
    stop(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT)
    assert stop.received == signal.SIGTERM


def test_what_a_process_was_started_to_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(), deferred_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


CALLED_BACK = """
import ctypes, os, signal, sys, time
from nestsim.running.interruption import StoppedError, stoppable
back = ctypes.CFUNCTYPE(ctypes.c_int)
def work():
    os.kill(os.getpid(), signal.SIGTERM)
    return sum(range(10))
with stoppable():
    try:
        back(work)()
        time.sleep(20.0)
    except StoppedError:
        sys.exit("heard")
"""
"""A signal that arrives while a library calls back."""


def test_a_signal_that_a_library_swallows_is_heard_again() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CALLED_BACK],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (1, "heard\n")


WORKERS = """
import signal
import joblib
from nestsim.running.interruption import SIGNALS, unheard_by_children
def heard():
    return sorted(set(SIGNALS) - signal.pthread_sigmask(signal.SIG_BLOCK, ()))
if __name__ == "__main__":
    pool = joblib.Parallel(n_jobs=2, return_as="generator_unordered")
    with unheard_by_children():
        answers = pool(joblib.delayed(heard)() for _ in range(4))
    print(list(answers), heard() == sorted(SIGNALS))
"""
"""The first workers of a process, which start what keeps track of them too."""


def test_threads_that_a_stop_ends_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose() -> None:
        raise KeyError("what it waited for")

    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    with stoppable() as stop:
        for received, count in ((None, 1), (signal.SIGTERM, 1)):
            stop.received = received
            thread = threading.Thread(target=lose)
            thread.start()
            thread.join()
            assert len(shown) == count


LOADED_WHOLE = """
import signal, sys, time
from nestsim.running.interruption import stoppable

def watch(frame, event, argument):
    if event == "c_call" and argument.__name__ == "create_dynamic" and not sent:
        sent.append(argument)
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            print("cut")

sent = []
with stoppable():
    try:
        sys.setprofile(watch)
        import numpy
        sys.setprofile(None)
        time.sleep(10.0)
    except KeyboardInterrupt:
        print("stopped", len(sent))
"""


def test_a_library_is_loaded_whole_before_a_signal_is_acted_upon() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_WHOLE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("stopped 1\n", "")


def test_workers_hear_nothing_of_what_a_terminal_sends_to_all(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    ended = subprocess.run(
        [sys.executable, "workers.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "[[], [], [], []] True\n"
