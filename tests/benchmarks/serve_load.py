"""``python -m tests.benchmarks.serve_load``: many users ask a server at once.

Each user asks one question after the other, every other one new to the server, waits
for each answer as a client does (202, then its place), and counts what came back.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

import nestsim
from tests.benchmarks.measured import tell
from tests.nestsim.features.serve.serving import ROOT, Served

MAIN = ROOT / "scenarios" / "glm4_32b_64_h100.toml"

Question = dict[str, Any]


def question() -> Question:
    """Return the replay of the main scenario's best plan."""
    report = nestsim.run(MAIN)
    assert report.best is not None
    plan = report.best.priced.plan.to_json()
    return {"scenario": MAIN.read_text(encoding="utf-8"), "plan": plan}


def other(says: Question, words: object) -> Question:
    """Return the same question in other bytes: it is new to the server."""
    return {**says, "scenario": f"{says['scenario']}# {words}\n"}


async def asked(http: httpx.AsyncClient, says: Question, counts: Counter[int]) -> float:
    """Ask for a replay, and return how long its answer took [s]."""
    begun = time.perf_counter()
    answer = await http.post("/v1/simulate", params={"wait": 5}, json=says)
    counts[answer.status_code] += 1
    while answer.status_code in {202, 429}:
        await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))
        if answer.status_code == 429:
            answer = await http.post("/v1/simulate", params={"wait": 5}, json=says)
        else:
            answer = await http.get(answer.headers["Location"])
        counts[answer.status_code] += 1
    return time.perf_counter() - begun


async def load(
    url: str, says: Question, users: int, questions: int
) -> tuple[Counter[int], list[float]]:
    """Have users ask, and return how often each status came, and all times [s]."""
    counts: Counter[int] = Counter()
    seconds: list[float] = []
    limits = httpx.Limits(max_connections=users)
    async with httpx.AsyncClient(
        base_url=url, timeout=120.0, limits=limits, trust_env=False
    ) as http:
        # What everybody asks is known, as a page that is looked at again.
        await asked(http, says, counts)

        async def use(user: int) -> None:
            for number in range(questions):
                mine = says if number % 2 else other(says, (user, number))
                seconds.append(await asked(http, mine, counts))

        await asyncio.gather(*(use(user) for user in range(users)))
    return counts, seconds


def main() -> int:
    """Return 1 if any answer is an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.serve_load")
    parser.add_argument("--users", type=int, default=50, metavar="N")
    parser.add_argument("--questions", type=int, default=4, metavar="N")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    asked_for = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        Served(Path(place), "--workers", str(asked_for.workers)) as served,
    ):
        says = question()
        for name in ("first", "warm, new", "warm, new", "stored"):
            mine = says if name == "stored" else other(says, time.perf_counter())
            if name == "stored":
                served.ask("simulate", **says)
            begun = time.perf_counter()
            status = served.ask("simulate", **mine).status_code
            tell(f"{name}: {status} in {time.perf_counter() - begun:.3f} s")
        begun = time.perf_counter()
        run = load(served.url, says, asked_for.users, asked_for.questions)
        counts, seconds = asyncio.run(run)
        took = time.perf_counter() - begun
    ordered = sorted(seconds)
    tell(
        f"{asked_for.users} users, {len(seconds)} answers in {took:.1f} s: "
        f"median {statistics.median(ordered):.2f} s, "
        f"p95 {ordered[int(0.95 * len(ordered))]:.2f} s, longest {ordered[-1]:.2f} s"
    )
    tell(f"statuses: {dict(sorted(counts.items()))}")
    return 0 if set(counts) <= {200, 202, 429} else 1


if __name__ == "__main__":
    sys.exit(main())
