"""Settings that all tests share."""

import fcntl
import gc
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
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


COSTLY = (
    "tests/architecture/test_shipped_kernels.py",
    "tests/architecture/test_wheel.py::test_the_wheel",
    "tests/architecture/test_wheel.py::test_the_source",
    "tests/docs/test_site.py::test_every_page_is",
    "tests/docs/test_site.py::test_every_page_says",
    "tests/docs/test_site.py::test_everything",
    "tests/docs/test_site.py::test_reading",
    "tests/docs/test_site.py::test_the_index",
    "tests/estimators/models/test_hub_types.py::test_all_other_types",
    "tests/estimators/tracing/test_hub_module.py::test_all_other_traced_types",
    "tests/fuzz/",
    "tests/nestsim/cli/test_cli.py::test_a_reader_that_leaves_early",
    "tests/nestsim/cli/test_cli.py::test_a_command_imports",
    "tests/nestsim/cli/test_cli.py::test_both_entry_points",
    "tests/nestsim/cli/test_cli.py::test_help_imports_nothing",
    "tests/nestsim/cli/test_cli.py::test_showing_a_network",
    "tests/nestsim/cli/test_cli.py::test_the_main_scenario_compiles",
    "tests/nestsim/cli/test_cli_interrupted.py",
    "tests/nestsim/cli/test_completion.py",
    "tests/nestsim/cli/test_cli_output.py::test_a_cache_that_cannot_be_written",
    "tests/nestsim/cli/test_cli_output.py::test_a_folder_is_whole",
    "tests/nestsim/cli/test_cli_output.py::test_no_file_becomes",
    "tests/nestsim/cli/test_cli_output.py::test_nobody_need_hear",
    "tests/nestsim/cli/test_cli_output.py::test_results_that_cannot",
    "tests/nestsim/document/test_canvas.py::test_figures_of_runs",
    "tests/nestsim/document/test_folder.py::test_processes_that_write",
    "tests/nestsim/document/test_folder.py::test_what_a_killed_process",
    "tests/nestsim/evaluate/test_job.py::test_every_shipped_scenario_is_planned_and_"
    "confirmed[qwen3_30b_a3b_64_h100]",
    "tests/nestsim/evaluate/test_job.py::test_two_processes",
    "tests/nestsim/features/calibration/test_fit.py::test_two_processes",
    "tests/nestsim/features/certificate/test_certificate.py::test_any_number",
    "tests/nestsim/features/certificate/test_certificate.py::test_certificates_of_more",
    "tests/nestsim/features/compare/test_cli_compare.py::test_a_killed",
    "tests/nestsim/features/compare/test_comparison_in_browser.py",
    "tests/nestsim/features/jitter/test_jitter_job.py::test_results_are_the_same",
    "tests/nestsim/features/profile/test_links.py::test_two_ranks",
    "tests/nestsim/features/run/test_goodput.py",
    "tests/nestsim/features/run/test_run_in_browser.py",
    "tests/nestsim/features/run/test_whatif_in_browser.py",
    "tests/nestsim/features/serve/test_serve.py",
    "tests/nestsim/features/serve/test_serve_in_browser.py",
    "tests/nestsim/features/serve/test_serve_killed.py",
    "tests/nestsim/features/stress/test_stress_job.py::test_any_number_of_workers",
    "tests/nestsim/features/sweep/test_cli_dask.py",
    "tests/nestsim/features/sweep/test_dask.py",
    "tests/nestsim/features/sweep/test_dask_tls.py",
    "tests/nestsim/features/sweep/test_kill.py",
    "tests/nestsim/features/sweep/test_runner.py::test_a_worker_that_dies",
    "tests/nestsim/features/test_kinds_in_browser.py",
    "tests/nestsim/launch/megatron/test_groups.py",
    "tests/nestsim/launch/started/",
    "tests/nestsim/scenario/test_module_model.py::test_a_sweep_on_several",
    "tests/nestsim/scenario/test_module_model.py::test_no_other_setting",
    "tests/nestsim/test_face.py::test_importing_nestsim",
    "tests/nestsim/test_python_page.py",
    "tests/planner/step/test_schedules.py::test_reading_schedules",
    "tests/regret/",
    "tests/topologies/test_compiling.py::test_a_kernel_that_does_not",
    "tests/topologies/test_compiling.py::test_a_second_copy",
    "tests/topologies/test_compiling.py::test_an_answer_follows",
    "tests/topologies/test_compiling.py::test_several_processes",
)
"""Tests, by how their names begin, that `make test` leaves to `make test-rest`: those
that start processes, a browser or Dask, build the site or models by the dozen, draw
random inputs, or search for half a minute."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests `-m` leaves out, all of them."""
    chosen = config.getoption("markexpr").partition(" and ")[0]
    name = collection_path.relative_to(config.rootpath).as_posix()
    if collection_path.suffix != ".py":
        return None
    if chosen == "costly":
        holds = any(entry.startswith(f"{name}::") for entry in COSTLY)
        return None if holds or name.startswith(COSTLY) else True
    return True if chosen == "not costly" and name.startswith(COSTLY) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is costly, before `-m` selects."""
    for item in items:
        if item.nodeid.startswith(COSTLY):
            item.add_marker("costly")


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
    folder = Path(item.nodeid.partition("::")[0]).parent
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
    # Here: the process that hands out tests compiles nothing.
    from topologies.machine_code import KernelDispatcher

    compiled = _compiled_once(KernelDispatcher, cache.mkdir("locks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTSIM_CACHE_DIR", str(cache.mkdir("nestsim")))
        patch.setattr(KernelDispatcher, "compile", compiled)
        yield


def _compiled_once(kind: Any, locks: Path) -> Callable[[Any, Any], Any]:
    """Return ``kind.compile`` that waits for a worker who compiles the same kernel."""
    compile_it = kind.compile

    def compiled(kernel: Any, sig: Any) -> Any:
        if kernel.overloads or type(kernel) is not kind:
            return compile_it(kernel, sig)
        name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"
        with (locks / hashlib.sha256(name.encode()).hexdigest()).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return compile_it(kernel, sig)

    return compiled


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep standard error free of what comes after seconds, on a slow machine."""
    monkeypatch.setattr("nestsim.running.progress.FIRST_LINES", (3600.0,))
    # Whichever test comes first compiles kernels.
    monkeypatch.setattr("nestsim.running.progress.LEAST_TOLD", 3600.0)
