"""The folder of results: everything about one run, complete or not there at all.

Holds ``scenario.toml`` (a copy of the input), ``plan.json``, ``result.json``,
``summary.csv``, ``report.txt``, ``trace.json``, ``figures/*.png`` and
``manifest.json`` with the hash of each. No file holds a time stamp: the same scenario
gives the same folder.
"""

import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nestsim.report.assumptions import assumptions_json
from nestsim.report.figure_data import hottest_link_use
from nestsim.report.json import dump_json, reported_candidate
from nestsim.report.simulation import print_result, result_json
from nestsim.simulator.trace import write_chrome_trace
from planner.progress import Progress
from topologies.errors import InputError

if TYPE_CHECKING:
    from nestsim.results import Candidate, ReplayedResult

MANIFEST = "manifest.json"
_TEXT_WIDTH = 100


def write_results(
    result: "ReplayedResult",
    scenario_bytes: bytes,
    directory: Path,
    *,
    force: bool = False,
    figures: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Write the folder of results.

    Everything is written into a hidden folder beside the target first. A new, empty
    or earlier folder of results is then replaced in one step; files of other origin
    are never removed.

    Parameters
    ----------
    result
        What `nestsim.job.run_job` or `nestsim.simulate_job.simulate_job` returned.
    scenario_bytes
        The scenario file as the user wrote it.
    directory
        Where to; parents are made.
    force
        Write into a folder that holds files of other origin, beside them.
    figures
        Draw the figures, too.
    progress
        Told about every file.

    Returns
    -------
    Path
        The folder, resolved.

    Raises
    ------
    InputError
        If the target is not a folder, or holds files of other origin and neither a
        manifest of ours nor ``force`` says that it may be used.
    OSError
        If the folder cannot be written.
    """
    target = directory.resolve()
    check_target(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        writers = _writers(result, scenario_bytes, figures=figures)
        _fill(partial, writers, result, scenario_bytes, progress)
        _move(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a folder that results may not be written into, before hours of work.

    Raises
    ------
    InputError
        If the target is not a folder, or holds files of other origin and neither a
        manifest of ours nor ``force`` says that it may be used.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError("is not a folder", got=str(target), expected="a folder")
    foreign = _foreign_files(target)
    if foreign and not force and not _listed_files(target):
        raise InputError(
            "holds files that nestsim did not write",
            got=f"{target}: {', '.join(foreign[:3])}",
            expected="a new or empty folder, or one with earlier results",
            hint="choose another folder, or add --force to write into this one",
        )


def _listed_files(folder: Path) -> frozenset[str]:
    """Return the files that a manifest of ours lists, itself included; none else."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        names = [PurePosixPath(name) for name in manifest["files"]]
        is_ours = isinstance(manifest["nestsim"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()  # no manifest, or one of another tool
    if not is_ours or any(p.is_absolute() or ".." in p.parts for p in names):
        return frozenset()
    return frozenset([MANIFEST, *(str(name) for name in names)])


def _foreign_files(folder: Path) -> list[str]:
    """Return what the folder holds beyond what its manifest lists, sorted."""
    ours = _listed_files(folder)
    found = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    names = (path.relative_to(folder).as_posix() for path in found)
    return sorted(name for name in names if name not in ours)


def _move(partial: Path, target: Path) -> None:
    """Put the new folder in the place of the old one; keep files of other origin."""
    if not target.exists():
        partial.rename(target)
        return
    if _foreign_files(target) or target == Path.cwd():
        _move_into(partial, target)
        return
    old = partial.with_suffix(".old")
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _move_into(partial: Path, target: Path) -> None:
    """Replace file by file, the manifest last, and remove what is out of date."""
    outdated = _listed_files(target)
    files = [path for path in partial.rglob("*") if path.is_file()]
    names = {path.relative_to(partial).as_posix() for path in files}
    for name in [*sorted(names - {MANIFEST}), MANIFEST]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).replace(target / name)
    for name in sorted(outdated - names):
        (target / name).unlink(missing_ok=True)


def _fill(
    folder: Path,
    writers: Mapping[str, Callable[[Path], object]],
    result: "ReplayedResult",
    scenario_bytes: bytes,
    progress: Progress | None,
) -> None:
    """Write all files, the manifest last."""
    for done, (name, write) in enumerate(writers.items()):
        if progress is not None:
            progress(f"report: {name}", done / len(writers))
        (folder / name).parent.mkdir(exist_ok=True)
        write(folder / name)
    hashes = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in writers
    }
    manifest = {
        "nestsim": version("nestsim"),
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "software": result.assumptions.preset,
        "operator_times": assumptions_json(result.assumptions)["operator_times"],
        "files": hashes,
    }
    (folder / MANIFEST).write_text(dump_json(manifest), encoding="utf-8")


def _writers(
    result: "ReplayedResult", scenario_bytes: bytes, *, figures: bool
) -> dict[str, Callable[[Path], object]]:
    """Return the function that writes each file, by name relative to the folder."""
    best = reported_candidate(result)
    writers: dict[str, Callable[[Path], object]] = {
        "scenario.toml": lambda path: path.write_bytes(scenario_bytes),
        "result.json": lambda path: _write_json(path, result_json(result)),
        "summary.csv": lambda path: _write_summary(path, result.candidates),
        "report.txt": lambda path: _write_report(path, result),
    }
    if best is not None:
        writers |= _plan_writers(best, result)
    return writers | (_figure_writers(best, result) if figures else {})


def _plan_writers(
    best: "Candidate", result: "ReplayedResult"
) -> dict[str, Callable[[Path], object]]:
    """Return the writers of what only a plan has."""
    return {
        "plan.json": lambda path: _write_json(path, best.priced.plan.to_json()),
        "trace.json": lambda path: write_chrome_trace(
            best.replay,
            path,
            max_events=result.max_trace_events,
            link_use=hottest_link_use(best.replay, result.network),
        ),
    }


def _figure_writers(
    best: "Candidate | None", result: "ReplayedResult"
) -> dict[str, Callable[[Path], object]]:
    """Return the writers of the figures: of the network, and of the plan if any."""
    from nestsim.report.figures import (
        draw_gap,
        draw_links,
        draw_memory,
        draw_timeline,
    )
    from nestsim.report.topology import draw_topology

    limit, network = result.device_memory, result.network
    writers: dict[str, Callable[[Path], object]] = {
        "figures/topology.png": lambda path: draw_topology(network, path)
    }
    if best is None:
        return writers
    return writers | {
        "figures/timeline.png": lambda path: draw_timeline(best, path),
        "figures/memory.png": lambda path: draw_memory(best, limit, path),
        "figures/links.png": lambda path: draw_links(best, network, path),
        "figures/gap.png": lambda path: draw_gap(best, result.candidates, path),
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(dump_json(data), encoding="utf-8")


def _write_report(path: Path, result: "ReplayedResult") -> None:
    """Write the text report as a terminal without colours would show it."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=_TEXT_WIDTH,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    )
    print_result(result, console)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def summary_rows(candidates: Sequence["Candidate"]) -> list[dict[str, Any]]:
    """Return one row for each replayed plan, fastest first, in SI units."""
    rows = []
    for candidate in candidates:
        plan = candidate.priced.plan
        data = plan.settings_json()
        rows.append(
            {
                "planner_rank": candidate.rank,
                "verdict": candidate.verdict.kind,
                **data["parallel"],
                "virtual_pipeline_model_parallel_size": (
                    plan.virtual_pipeline_model_parallel_size
                ),
                "micro_batch_size": plan.micro_batch_size,
                "num_microbatches": plan.num_microbatches,
                "recompute": data["recompute"],
                "zero_stage": data["zero_stage"],
                "placement": plan.placement,
                "devices_used": plan.devices_used,
                "planned_iteration_time_s": candidate.planned.iteration_time,
                "simulated_iteration_time_s": candidate.simulated.iteration_time,
                "planned_tokens_per_s": candidate.planned.tokens_per_second,
                "simulated_tokens_per_s": candidate.simulated.tokens_per_second,
                "planned_mfu": candidate.planned.mfu,
                "simulated_mfu": candidate.simulated.mfu,
                "planned_peak_memory_bytes": candidate.planned.peak_memory,
                "simulated_peak_memory_bytes": candidate.simulated.peak_memory,
            }
        )
    return rows


_SUMMARY_KEYS = ("planner_rank", "verdict")
"""The heading of a summary without rows."""


def _write_summary(path: Path, candidates: Sequence["Candidate"]) -> None:
    rows = summary_rows(candidates)
    heading = list(rows[0]) if rows else list(_SUMMARY_KEYS)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, heading, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
