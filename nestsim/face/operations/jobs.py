"""Several jobs on one fabric."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import frame_of
from nestsim.document.folder import Writer, writer_of
from nestsim.document.parts import Document
from nestsim.face.calls import ProgressTarget, calling
from nestsim.face.report import Contents, PagedReport
from nestsim.features.jobs.document import jobs_document
from nestsim.features.jobs.job import jobs_job
from nestsim.features.jobs.record import job_rows, jobs_csv, jobs_json
from nestsim.features.jobs.results import TenancyResult
from nestsim.features.jobs.scenario import JobsScenario

if TYPE_CHECKING:
    import pandas as pd

JobsSource = JobsScenario | str | os.PathLike[str] | Mapping[str, Any]
"""Several jobs, the path of their file, or what it would say as a dictionary."""


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
        return bool(outcomes) and all(one.made.fits for one in outcomes)

    @property
    def slowdowns(self) -> dict[str, float]:
        """What the other jobs multiply the step time of each job by, by its name."""
        return {one.tenant.name: one.slowdown for one in self.result.outcomes}

    def facts(self) -> dict[str, Any]:
        """Return the slow-down of each job, and what all of them lose."""
        facts: dict[str, Any] = {"scenario": self.result.name}
        if not self.result.outcomes:
            return {**facts, "reason": self.result.shortfall}
        # No job is called like another fact then.
        slowdowns = {f'"{name}"': one for name, one in self.slowdowns.items()}
        return {**facts, **slowdowns, "lost_devices": self.result.lost}

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``jobs.json``."""
        return jobs_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each job."""
        return frame_of(job_rows(self.result))

    def contents(self) -> Contents:
        """Return tables, the figure and the page; no figure where a job has no plan."""
        result = self.result
        writers: dict[str, Writer] = {
            "jobs.json": writer_of(self.to_json()),
            "jobs.csv": writer_of(jobs_csv(result)),
        }
        return Contents(
            writers={
                **writers,
                **self.picture_writers("jobs"),
                **self.page_writers(),
            },
            manifest={"scenario": result.name},
        )

    def document(self) -> Document:
        """Return what text, picture and page say."""
        return jobs_document(self.to_dict())

    def inputs(self) -> Sequence[Path]:
        """Return the files of all jobs."""
        return self.scenario.files()


def jobs(
    scenario: JobsSource,
    *,
    ecmp_seeds: Sequence[int] | None = None,
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
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    file = _file(scenario)
    if ecmp_seeds is not None:
        file = file.with_ecmp_seeds(ecmp_seeds)
    notes = [note for tenant in file.tenants for note in tenant.scenario.notes]
    with calling(progress, file.path, notes) as call:
        result = jobs_job(file, progress=call.progress)
    return TenancyReport(scenario=file, result=result, notices=tuple(call.notices))


def _file(source: JobsSource) -> JobsScenario:
    if isinstance(source, JobsScenario):
        return source
    if isinstance(source, Mapping):
        return JobsScenario.from_dict(source)
    return JobsScenario.from_file(source)
