"""Settings that all tests share."""

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples in each run, so that what passes once passes again; `make wide`
# tries others, and more. No example fails because the machine is busy.
settings.register_profile("suite", max_examples=50, derandomize=True, deadline=None)
settings.register_profile("wide", max_examples=300, deadline=None)
settings.load_profile("suite")

# A worker holds a million objects of modules and collected tests, which the collector
# would look at again and again: a third of the time of collecting them.
gc.set_threshold(50_000, 20, 20)

# Each process that a test starts would compile all modules anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tensors are tiny and workers share the cores: threads of torch wait by spinning.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_finish() -> None:
    """Leave out of garbage collection what lasts as long as the tests do."""
    gc.freeze()


CPU_SECONDS: Counter[str] = Counter()
"""Folder of tests -> CPU time of its tests and of processes they waited for [s]."""


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children [s]."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Add up what tests take, by folder: sessions of fixtures go to who came first."""
    begun = _cpu_seconds()
    result = yield
    folder = Path(item.location[0]).parent
    CPU_SECONDS[folder.as_posix()] += _cpu_seconds() - begun
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's times to the process that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu"] = dict(CPU_SECONDS)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the times of a worker that ended."""
    CPU_SECONDS.update(getattr(node, "workeroutput", {}).get("cpu", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print where the CPU time went, the dearest folders first."""
    folders = CPU_SECONDS.most_common(12)
    dear = ", ".join(f"{name} {seconds:.0f}" for name, seconds in folders)
    terminalreporter.write_line(f"CPU seconds: {CPU_SECONDS.total():.0f}; {dear}")


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep traces and kernels out of the user's cache, and from one run to the next."""
    cache = request.config.cache
    assert cache is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTSIM_CACHE_DIR", str(cache.mkdir("nestsim")))
        yield


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep standard error free of what comes after seconds, on a slow machine."""
    monkeypatch.setattr("nestsim.running.progress.FIRST_LINES", (3600.0,))
    # Whichever test comes first compiles kernels.
    monkeypatch.setattr("nestsim.running.progress.LEAST_TOLD", 3600.0)
