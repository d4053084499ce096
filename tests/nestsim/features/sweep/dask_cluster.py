"""A Dask scheduler and its workers, each a process of its own on this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from distributed import Client

ROOT = Path(__file__).parents[4]
PATIENCE = 60.0
"""However slow the machine is [s]."""

_ENVIRONMENT = {
    # One attempt more than the first: a test cannot wait for a worker to die often.
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical",
}


def wait_until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class DaskCluster:
    """A scheduler on a free port, and workers.

    Parameters
    ----------
    folder
        For what they write, and where workers run: nothing of a test lies there.
    protocol
        ``tcp``, or ``tls`` with the certificates that the environment names.
    """

    def __init__(self, folder: Path, protocol: str = "tcp") -> None:
        self._folder = folder
        folder.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        self.scheduler = self.start(
            *(
                "scheduler",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--dashboard-address",
                "127.0.0.1:0",
            ),
            *("--scheduler-file", str(file), "--protocol", protocol),
        )
        wait_until(lambda: file.exists() and file.read_text().rstrip().endswith("}"))
        self.address = str(json.loads(file.read_text())["address"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            kill(process)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Start a part of the cluster in a session of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **_ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def start_workers(
        self, number: int, *, nanny: bool = True, **environment: str
    ) -> "list[subprocess.Popen[bytes]]":
        """Start workers, and wait until the scheduler knows them."""
        before = len(self.workers())
        started = [
            self.start(
                *(
                    "worker",
                    self.address,
                    "--nthreads",
                    "1",
                    "--dashboard-address",
                    "127.0.0.1:0",
                ),
                *("--host", "127.0.0.1", "--nanny" if nanny else "--no-nanny"),
                *("--death-timeout", "60", "--memory-limit", "0"),
                *("--local-directory", str(self._folder)),
                **environment,
            )
            for _ in range(number)
        ]
        wait_until(lambda: len(self.workers()) >= before + number)
        return started

    def workers(self) -> dict[str, int]:
        """Return the process of each worker that the scheduler knows, by address."""
        with Client(self.address, set_as_default=False) as client:
            found: dict[str, int] = client.run(os.getpid)
            return found


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a part of the cluster, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
