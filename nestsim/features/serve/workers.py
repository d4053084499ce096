"""Processes that answer questions, seen from the server: started, asked, killed."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nestsim.features.serve.limits import Limits
from nestsim.features.serve.questions import Question
from nestsim.features.serve.worker import task_line
from topologies.units import format_duration

_MODULE = "nestsim.features.serve.worker"

_MOST_QUESTIONS = 500
"""After so many a worker is replaced: what libraries keep is given back."""

_LONGEST_LINE = 1 << 20
"""Of what a worker says [byte]."""


class QuestionEnd(NamedTuple):
    """What became of a question."""

    state: str
    """``done``, ``refused`` or ``failed``."""

    reason: str = ""
    """Why it failed."""


class WorkerProcess:
    """One process, started anew when it has ended."""

    def __init__(self, limits: Limits, *, trust_code: bool) -> None:
        self._limits, self._trust_code = limits, trust_code
        self._process: asyncio.subprocess.Process | None = None
        self._answered = 0

    async def ask(
        self,
        kind: str,
        question: Question,
        folder: Path,
        listener: Callable[[str, float | None], None],
    ) -> QuestionEnd:
        """Have a question answered into a folder.

        Parameters
        ----------
        kind, question
            What is asked.
        folder
            Empty, for the answer.
        listener
            Called with what is being done and the share of it that is done.
        """
        process = await self.started()
        line = task_line(
            kind, question, folder, self._limits, trust_code=self._trust_code
        )
        assert process.stdin is not None
        with suppress(ConnectionError):  # it has died: its end says so
            process.stdin.write(line)
            await process.stdin.drain()
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                ended = await self._heard(process, listener)
        except TimeoutError:
            await self.stop()
            return QuestionEnd("failed", f"took longer than {self._wall()}")
        self._answered += 1
        return ended

    async def started(self) -> asyncio.subprocess.Process:
        """Return the process, started if there is none, once it is ready."""
        if self._process is None or self._process.returncode is not None:
            self._answered = 0
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", _MODULE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            await self._process.stdout.readline()  # it is ready, or has died
        return self._process

    async def stop(self) -> None:
        """Kill the process, whatever it does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _heard(
        self,
        process: asyncio.subprocess.Process,
        listener: Callable[[str, float | None], None],
    ) -> QuestionEnd:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            says = json.loads(line)
            if "end" not in says:
                listener(says["doing"], says["share"])
                continue
            kept = says.get("resident", 0)
            if kept > self._limits.memory_bytes // 2 or (
                self._answered >= _MOST_QUESTIONS
            ):
                await self.stop()
            return QuestionEnd(says["end"], says.get("reason", ""))
        return QuestionEnd("failed", self._why(await process.wait()))

    def _why(self, status: int) -> str:
        if status == -signal.SIGXCPU:
            limit = format_duration(self._limits.cpu_seconds)
            return f"it took more than {limit} of processor time"
        return "its process died: most likely, it needed more memory than there is"

    def _wall(self) -> str:
        return format_duration(self._limits.wall_seconds)
