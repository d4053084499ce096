"""A server in a process of its own, as a user starts it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

ROOT = Path(__file__).parents[4]
PATIENCE = 60.0
"""However slow the machine is [s]."""


class Served:
    """A server and what asks it.

    Parameters
    ----------
    folder
        For its answers.
    options
        Of the command, beside the folder and a free port.
    environment
        Variables beside those of this process.
    """

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "nestsim", "serve", "--port", "0"),
                *("--output", str(folder), "--workers", "1", *options),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self.said: list[str] = []
        line = self._process.stderr.readline()
        found = re.fullmatch(r"Serving on (https?://\S+)\n", line)
        if found is None:
            with self._process as ended:
                assert ended.stderr is not None
                raise AssertionError(line + ended.stderr.read())
        self.url = found[1]
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the server, and return how it ended."""
        self.http.close()
        self._process.send_signal(number)
        status = self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)  # workers, which share it, end a moment later
        assert self._process.stderr is not None
        self._process.stderr.close()
        return status

    def ask(self, kind: str, wait: float = 30.0, **question: Any) -> httpx.Response:
        """Ask something, and wait for the answer, kernels compiled meanwhile or not."""
        path = f"/v1/{kind}"
        answer = self.http.post(path, params={"wait": wait}, json=question)
        while wait and answer.status_code == 202:
            time.sleep(0.1)
            answer = self.http.get(answer.headers["Location"])
        return answer

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self.said.extend(self._process.stderr)
