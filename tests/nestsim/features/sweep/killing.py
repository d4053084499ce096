"""Kill a sweep at a moment of its life, and take it up again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[4]


def run_whole(arguments: Sequence[str], environment: dict[str, str]) -> float:
    """Run a sweep to its end and return how long that took [s]."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - begun


def run_killed(
    arguments: Sequence[str], environment: dict[str, str], seconds: float
) -> bool:
    """Kill a sweep with signal 9 after some time; return whether it still ran."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False
