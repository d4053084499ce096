"""``nestsim jobs``: what it is called with, and what it returns."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nestsim.commands.calls import ProgressTarget, calling
from nestsim.commands.report import PagedReport, Parts
from nestsim.document.dumps import csv_of
from nestsim.document.folder import Writer, json_writer
from nestsim.features.jobs.document import jobs_document
from nestsim.features.jobs.job import jobs_job
from nestsim.features.jobs.record import job_rows, jobs_json, shift_rows
from nestsim.features.jobs.results import TenancyResult
from nestsim.features.jobs.scenario import JobsScenario
from topologies.errors import InputError

JobsSource = JobsScenario | str | os.PathLike[str] | Mapping[str, Any]
"""Several jobs, the path of their file, or what it would say as a dictionary."""

LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TenancyReport(PagedReport):
    """What jobs on one fabric do to each other."""

    scenario: JobsScenario
    """What was asked."""

    result: TenancyResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether every job has a plan that fits."""
        outcomes = self.result.outcomes
        return bool(outcomes) and all(outcome.made.fits for outcome in outcomes)

    @property
    def slowdowns(self) -> dict[str, float]:
        """What the other jobs multiply the step time of each job by, by its name."""
        outcomes = self.result.outcomes
        return {outcome.tenant.name: outcome.slowdown for outcome in outcomes}

    def facts(self) -> dict[str, Any]:
        """Return the slow-down of each job, and what all of them lose."""
        facts: dict[str, Any] = {"scenario": self.result.name}
        if not self.result.outcomes:
            return {**facts, "reason": self.result.shortfall}
        # No job is called like another fact then.
        slowdowns = {f'"{name}"': factor for name, factor in self.slowdowns.items()}
        return {**facts, **slowdowns, "lost_devices": self.result.lost}

    def parts(self) -> Parts:
        """Return record, a row for each job, figure and page."""
        record, rows = jobs_json(self.result), job_rows(self.result)
        files: dict[str, str | bytes | Writer] = {
            "jobs.json": json_writer(record),
            "jobs.csv": csv_of(rows),
        }
        if self.result.shifts:
            files["shifts.csv"] = csv_of(shift_rows(self.result))
        return Parts(
            record=record,
            rows=rows,
            document=partial(jobs_document, record),
            files=files,
            pictures={"jobs": ()},
            manifest={"scenario": self.result.name},
        )

    def inputs(self) -> Sequence[Path]:
        """Return the files of all jobs."""
        return self.scenario.files()


def jobs(
    scenario: JobsSource,
    *,
    ecmp_seeds: Sequence[int] | None = None,
    shifts: int | None = None,
    progress: ProgressTarget = None,
) -> TenancyReport:
    """Place several jobs on one fabric, and replay them alone and together.

    Parameters
    ----------
    scenario
        A file with tables [[jobs]], the path of one, or what it would say as a
        dictionary.
    ecmp_seeds
        Seeds of the hash that picks cables, one replay of all jobs for each; None for
        those of the scenario.
    shifts
        Starts of each job that meets others for which all are replayed; None for what
        the scenario says.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    loaded = loaded_jobs(scenario)
    if ecmp_seeds is not None:
        loaded = loaded.with_ecmp_seeds(ecmp_seeds)
    if shifts is not None:
        loaded = loaded.with_shifts(shifts)
    notes = [note for tenant in loaded.tenants for note in tenant.scenario.notes]
    with calling(progress, loaded.path, notes) as call:
        result = jobs_job(loaded, progress=call.progress)
    return TenancyReport(scenario=loaded, result=result, notices=tuple(call.notices))


def loaded_jobs(source: JobsSource) -> JobsScenario:
    """Return jobs, read and checked if they are not yet."""
    if isinstance(source, JobsScenario):
        return source
    if isinstance(source, Mapping):
        return JobsScenario.from_dict(source)
    return JobsScenario.from_file(source)


def seeds(text: str) -> tuple[int, ...]:
    """Read ``0,1,2``, each once."""
    words = [part.strip() for part in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words) or any(
        int(word[:20]) > LARGEST_SEED for word in words
    ):
        raise InputError(
            "is not a list of seeds",
            got=text,
            expected="whole numbers with commas between them, e.g. 0,1,2",
        )
    return tuple(dict.fromkeys(int(word) for word in words))
