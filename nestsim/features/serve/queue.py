"""Questions that wait, are worked on, or have ended; what a restart takes up again.

A question is written into a file before anybody is told that it was taken, and the file
goes when its answer is stored. What a server that was killed had under way is taken up
once more; what was under way at two deaths is lost, as it may have been the cause.
"""

import asyncio
import json
import math
import os
import shutil
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestsim.features.serve.limits import Limits
from nestsim.features.serve.questions import KINDS, Question, key_of
from nestsim.features.serve.store import AnswerStore
from nestsim.features.serve.worker import ANSWER
from nestsim.features.serve.workers import QuestionEnd, WorkerProcess

ACTIVE = ("queued", "running")
"""States of a question that will have an answer."""

_MOST_ENDED = 1_000
"""Questions without an answer that are remembered."""

_MOST_ATTEMPTS = 2
"""Deaths of the server after which a question is not taken up again."""


class TooManyError(Exception):
    """A token has too many questions that wait."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        super().__init__()


@dataclass(eq=False)
class Job:
    """A question on its way."""

    key: str
    kind: str
    question: Question
    owners: set[str]
    """Names of the tokens that asked it."""

    state: str = "queued"
    """``queued``, ``running``, ``done``, ``refused``, ``failed``, ``lost`` or
    ``deleted``."""

    doing: str = ""
    share: float | None = None
    """Share of what is being done that is done."""

    reason: str = ""
    """Why there is no answer."""

    attempts: int = 0
    """How often it was begun."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def to_json(self) -> dict[str, Any]:
        """Return what users are told."""
        return {
            "job": self.key,
            "kind": self.kind,
            "state": self.state,
            "doing": self.doing,
            "share": self.share,
            "reason": self.reason or None,
        }

    def written(self) -> str:
        """Return what a restart needs."""
        says = {
            "kind": self.kind,
            "question": self.question.model_dump(),
            "owners": sorted(self.owners),
            "attempts": self.attempts,
        }
        return json.dumps(says)


class JobQueue:
    """All questions of a server, and the processes that answer them.

    Parameters
    ----------
    folder
        For the questions' files and for answers that are being made.
    store
        For answers.
    limits
        Of each question.
    workers
        Processes.
    trust_code
        Whether questions may read files of this machine and run code.
    """

    def __init__(
        self,
        folder: Path,
        store: AnswerStore,
        limits: Limits,
        *,
        workers: int,
        trust_code: bool,
    ) -> None:
        self._asked, self._made = folder / "asked", folder / "made"
        self._store, self._limits, self._trust_code = store, limits, trust_code
        self._workers = [
            WorkerProcess(limits, trust_code=trust_code) for _ in range(workers)
        ]
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._some = asyncio.Condition()
        self._running: dict[str, WorkerProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._mean = 1.0

    async def start(self) -> None:
        """Take up what was under way, and start the processes."""
        shutil.rmtree(self._made, ignore_errors=True)
        self._asked.mkdir(parents=True, exist_ok=True)
        self._made.mkdir()
        for file in sorted(self._asked.glob("*.json"), key=lambda f: f.stat().st_mtime):
            await self._take_up(file)
        self._tasks = [
            asyncio.create_task(self._serve(worker)) for worker in self._workers
        ]

    async def stop(self) -> None:
        """End the processes; what they do is taken up at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            await worker.stop()

    async def ask(self, key: str, kind: str, question: Question, owner: str) -> Job:
        """Take a question, or join those who asked the same.

        Raises
        ------
        TooManyError
            If its owner has too many under way.
        """
        known = self._jobs.get(key)
        if known is not None and known.state in ACTIVE:
            known.owners.add(owner)
            return known
        if len(self._active_of(owner)) >= self._limits.waiting:
            raise TooManyError(self._patience())
        job = Job(key, kind, question, {owner})
        self._remember(job)
        await asyncio.to_thread(self._write, job)
        await self._enqueue(job, owner)
        return job

    def job(self, key: str) -> Job | None:
        """Return a question that is under way, or ended without an answer."""
        return self._jobs.get(key)

    def jobs_of(self, owner: str) -> Sequence[Job]:
        """Return the questions of an owner, in the order in which they came."""
        return [job for job in self._jobs.values() if owner in job.owners]

    async def delete(self, key: str, owner: str) -> bool:
        """Withdraw a question: nobody works on it once nobody waits for it."""
        job = self._jobs.get(key)
        if job is None or owner not in job.owners:
            return False
        job.owners.discard(owner)
        if job.owners:
            return True
        was = job.state
        self._end(job, "deleted")
        if was == "running" and key in self._running:
            await self._running[key].stop()
        self._jobs.pop(key, None)
        return True

    async def _serve(self, worker: WorkerProcess) -> None:
        await worker.started()
        while True:
            job = await self._next()
            if job.state == "queued":
                await self._work(worker, job)

    async def _work(self, worker: WorkerProcess, job: Job) -> None:
        """Have a question answered, and store the answer."""
        place = self._made / job.key
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        await worker.started()
        if job.state != "queued":  # deleted meanwhile
            return
        job.state, job.attempts = "running", job.attempts + 1
        await asyncio.to_thread(self._write, job)
        self._running[job.key] = worker

        def listen(doing: str, share: float | None) -> None:
            job.doing, job.share = doing, share

        begun = time.monotonic()
        try:
            ended = await worker.ask(job.kind, job.question, place.resolve(), listen)
        finally:
            del self._running[job.key]
        self._mean += 0.1 * (time.monotonic() - begun - self._mean)
        if job.state != "running":  # deleted meanwhile
            return
        if ended.state != "failed":
            try:
                await asyncio.to_thread(self._store.put, job.key, place)
            except Exception as error:
                ended = QuestionEnd("failed", f"its answer cannot be stored: {error}")
        self._end(job, ended.state, ended.reason)

    async def _next(self) -> Job:
        """Return the next question: owners take turns."""
        async with self._some:
            await self._some.wait_for(lambda: self._waiting)
            owner, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[owner] = jobs
            return job

    async def _enqueue(self, job: Job, owner: str) -> None:
        async with self._some:
            self._waiting.setdefault(owner, deque()).append(job)
            self._some.notify()

    def _end(self, job: Job, state: str, reason: str = "") -> None:
        job.state, job.reason = state, reason
        if state in {"done", "refused"}:
            self._jobs.pop(job.key, None)
        (self._asked / f"{job.key}.json").unlink(missing_ok=True)
        shutil.rmtree(self._made / job.key, ignore_errors=True)
        job.ended.set()

    def _remember(self, job: Job) -> None:
        self._jobs.pop(job.key, None)
        self._jobs[job.key] = job
        over = [one for one in self._jobs.values() if one.state not in ACTIVE]
        for old in over[: max(0, len(over) - _MOST_ENDED)]:
            del self._jobs[old.key]

    def _active_of(self, owner: str) -> list[Job]:
        return [job for job in self.jobs_of(owner) if job.state in ACTIVE]

    def _patience(self) -> int:
        """Return after how long there may be a place again [s]."""
        return max(1, math.ceil(self._mean / len(self._workers)))

    def _write(self, job: Job) -> None:
        """Write a question so that it outlives this process."""
        file = self._asked / f"{job.key}.json"
        new = self._asked / f".{job.key}"
        with new.open("w", encoding="utf-8") as stream:
            stream.write(job.written())
            stream.flush()
            os.fsync(stream.fileno())
        new.rename(file)

    async def _take_up(self, file: Path) -> None:
        """Queue a question again that a server had under way when it ended."""
        key = file.stem
        answer = await asyncio.to_thread(self._store.read, key, ANSWER)
        with suppress(ValueError, KeyError, TypeError):
            says = json.loads(file.read_text("utf-8"))
            job = Job(
                key,
                says["kind"],
                KINDS[says["kind"]].model_validate(says["question"]),
                set(says["owners"]),
                attempts=int(says["attempts"]),
            )
            if answer is None:
                self._remember(job)
                if reason := self._lost(job):
                    self._end(job, "lost", reason)
                else:
                    await self._enqueue(job, min(job.owners))
                return
        file.unlink(missing_ok=True)

    def _lost(self, job: Job) -> str:
        """Say why a question is not taken up again; empty if it is."""
        if job.attempts >= _MOST_ATTEMPTS:
            return "the server ended twice while it was worked on"
        now = key_of(job.kind, job.question, trust_code=self._trust_code)
        return "" if now == job.key else "the server is another one now; ask again"
