"""A lane: one worker process and its folder, seen from the process that asks."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fuzz.case import Case
from tests.fuzz.worker import NESTSIM, RESULTS

ROOT = Path(__file__).parents[2]

CPU_SECONDS = 20.0
"""An input that takes longer hangs [s]."""

MEMORY = 4 * 2**30
"""More than a worker needs before the first input [byte]."""

IDLE_SECONDS = 20.0
"""An input that neither ends nor computes for so long waits for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one command line."""

    status: int | None
    """Exit status; None if the process did not live to tell."""

    error: str
    """The traceback if there was one, or how the process ended."""

    stdout: bytes
    stderr: bytes

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int


class Lane:
    """One worker, which lives as long as the block that it is opened for.

    Parameters
    ----------
    folder
        An empty one, for all that the worker and its inputs write.
    cpu_seconds
        An input that takes longer hangs [s].
    idle_seconds
        An input that does nothing for so long waits for ever [s].
    program
        Module and function that take the arguments of a command line.
    """

    def __init__(
        self,
        folder: Path,
        *,
        cpu_seconds: float = CPU_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        program: str = NESTSIM,
    ) -> None:
        self._folder, self._program = folder, program
        self._cpu_seconds, self._idle_seconds = cpu_seconds, idle_seconds
        self.temporary.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._number = 0

    def __enter__(self) -> Self:
        """Start the worker and wait until it is warm."""
        environment = {
            # One for all lanes, unless whoever started this has said which.
            "NESTSIM_CACHE_DIR": str(self._folder.parent / "cache"),
            **os.environ,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(ROOT),
            "PYTHONUTF8": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.fuzz.worker",
                str(self._folder),
                self._program,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
            bufsize=0,
        )
        self._take_child()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the worker and everything that it started."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._kill(signal.SIGKILL)
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    @property
    def temporary(self) -> Path:
        """Where the worker's temporary files go."""
        return self._folder / "temporary"

    def results(self) -> tuple[dict[str, bytes], ...]:
        """Return the files of the jobs that the worker ran at its start."""
        names = ("scenario.toml", "plan.json", "result.json")
        folders = sorted((self._folder / RESULTS).iterdir())
        return tuple(
            {name: (folder / name).read_bytes() for name in names} for folder in folders
        )

    def fresh_folder(self, case: Case) -> Path:
        """Return a folder with the files of an input; the one before is removed."""
        shutil.rmtree(self._folder / f"input{self._number}", ignore_errors=True)
        for left in self.temporary.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._number += 1
        folder = self._folder / f"input{self._number}"
        folder.mkdir()
        case.materialise(folder)
        return folder

    def run(self, argv: tuple[str, ...], folder: Path) -> Outcome:
        """Run one command line in a folder."""
        texts = {name: self._folder / name for name in ("stdout", "stderr")}
        request = {
            "argv": argv,
            "folder": str(folder),
            "cpu_seconds": self._cpu_seconds,
            "memory_bytes": MEMORY,
            **{name: str(file) for name, file in texts.items()},
        }
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
        begun = time.perf_counter()
        reason = self._watched()
        answer = self._line()
        if "pid" in answer:
            died = answer["died"]
            signal_number = os.WTERMSIG(died) if os.WIFSIGNALED(died) else 0
            hangs = signal_number == signal.SIGXCPU
            reason = reason or (
                "hangs" if hangs else f"ended by signal {signal_number}"
            )
            used = self._cpu_seconds if hangs else 0.0
            answer = {"status": None, "error": reason, "cpu_seconds": used}
            self._kill(signal.SIGKILL)
            self._pid = self._last_pid
        return Outcome(
            status=answer["status"],
            error=answer["error"],
            stdout=texts["stdout"].read_bytes(),
            stderr=texts["stderr"].read_bytes(),
            cpu_seconds=answer["cpu_seconds"],
            wall_seconds=time.perf_counter() - begun,
            peak_bytes=answer.get("peak_bytes", 0),
        )

    def _watched(self) -> str:
        """Wait for an answer; end an input that will not give one, and say why."""
        assert self._process is not None
        begun, before, since = None, -1.0, time.perf_counter()
        while not select.select([self._process.stdout], [], [], 1.0)[0]:
            used = self._session_seconds()
            begun = used if begun is None else begun
            if used > before + 0.05:
                before, since = used, time.perf_counter()
            waits = time.perf_counter() - since > self._idle_seconds
            if waits or used - begun > 2 * self._cpu_seconds:
                self._kill(signal.SIGABRT)  # prints the stack
                time.sleep(0.5)
                self._kill(signal.SIGKILL)
                return "waits for ever" if waits else "hangs"
        return ""

    def _session_seconds(self) -> float:
        """Return the CPU time of the child and the processes it started [s]."""
        ticks = 0
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    text = (folder / "stat").read_text(encoding="utf-8")
                    fields = text.rpartition(")")[2].split()
                    if int(fields[3]) == self._pid:
                        ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _kill(self, number: int) -> None:
        """Send a signal to the child and the processes it started."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, number)

    def _take_child(self) -> None:
        self._line()
        self._pid = self._last_pid

    def _line(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            log = (self._folder / "worker.log").read_text(encoding="utf-8")
            raise RuntimeError(f"the worker has ended:\n{log}")
        found: dict[str, Any] = json.loads(line)
        if "pid" in found:
            self._last_pid = int(found["pid"])
        return found
