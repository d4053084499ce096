"""``nestsim validate``: report, function, description."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console

from nestsim.commands.calls import ProgressTarget, calling
from nestsim.commands.report import FolderReport, Parts
from nestsim.commands.task import Task
from nestsim.document.folder import Writer, json_writer
from nestsim.document.markdown import markdown as markdown_of
from nestsim.document.parts import Document
from nestsim.document.sheet import draw_document
from nestsim.document.terminal import print_document
from nestsim.features.validation.columns import Measurements, read_measurements
from nestsim.features.validation.document import validation_document
from nestsim.features.validation.record import predictions_csv, validation_json
from nestsim.features.validation.results import ValidationResult
from nestsim.features.validation.runner import published_measurements
from nestsim.features.validation.runner import validate as validate_rows

FILES = ("predictions.csv", "validation.json", "validation.png")
"""What is written of one table."""

_FOLDERS = {"throughput": "time"}
"""Kind of a table -> its folder, where it is not called like the kind."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ValidateReport(FolderReport):
    """What became of measurements, one result for each table of them."""

    file: Path | None
    """What was read; None for the published figures."""

    results: tuple[ValidationResult, ...]
    """Everything that was found, by table: of the published, time before memory."""

    @property
    def succeeded(self) -> bool:
        """Whether some row could be compared."""
        return any(result.scored for result in self.results)

    def facts(self) -> dict[str, object]:
        """Return how many rows were compared, and the median of their errors."""
        facts: dict[str, object] = {"file": str(self.file or "published")}
        for result in self.results:
            facts |= {
                f"{result.kind}_rows": len(result.rows),
                f"{result.kind}_compared": len(result.scored),
                f"{result.kind}_median_ape": result.errors().median_ape,
            }
        return facts

    def to_frame(self) -> "pd.DataFrame":
        """Return the tables of ``predictions.csv``, one below the other."""
        texts = [predictions_csv(result) for result in self.results]
        return pd.concat([pd.read_csv(io.StringIO(text)) for text in texts])

    def print_to(self, console: Console, *, verbose: bool = False) -> None:
        """Print the errors by group, and what was refused."""
        for number, document in enumerate(self.documents()):
            if number:
                console.print()
            print_document(document, console, verbose=verbose)

    def documents(self) -> tuple[Document, ...]:
        """Return what text, pictures and Markdown say, by table."""
        return tuple(validation_document(result) for result in self.results)

    def parts(self) -> Parts:
        """Return predictions, errors and figures of each table.

        The record has those of time at the top, of memory under ``"memory"``.
        """
        records = [validation_json(result) for result in self.results]
        record = dict(records[0]) if records else {}
        for result, other in zip(self.results[1:], records[1:], strict=True):
            if result.kind == "memory":
                record["memory"] = other["memory"]
        files: dict[str, str | Writer] = {}
        inner = inner_folders([result.kind for result in self.results])
        for folder, result, table in zip(inner, self.results, records, strict=True):
            files[f"{folder}predictions.csv"] = predictions_csv(result)
            files[f"{folder}validation.json"] = json_writer(table)
            if result.scored:
                document = validation_document(result)
                files[f"{folder}validation.png"] = partial(draw_document, document)
        names = [result.name for result in self.results]
        return Parts(record=record, files=files, manifest={"measurements": names})

    def inputs(self) -> Sequence[Path]:
        """Return the file of measurements, if it is the user's."""
        return [] if self.file is None else [self.file]


def validate(
    measurements: str | os.PathLike[str] | None = None,
    *,
    progress: ProgressTarget = None,
) -> ValidateReport:
    """Predict published or own measurements, and report the errors.

    Parameters
    ----------
    measurements
        A file (CSV); None for the published figures that come with nestsim.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the file is wrong. A row that cannot be expressed is refused with its
        reason, as a part of the result.
    """
    file = None if measurements is None else Path(measurements)
    return _validated(tables_of(file), file, progress)


def tables_of(file: Path | None) -> tuple[Measurements, ...]:
    """Read measurements: a file's, or the published ones."""
    return published_measurements() if file is None else (read_measurements(file),)


def _validated(
    tables: Sequence[Measurements], file: Path | None, progress: ProgressTarget
) -> ValidateReport:
    """Predict measurements that have been read."""
    with calling(progress) as call:
        results = tuple(validate_rows(rows, progress=call.progress) for rows in tables)
    return ValidateReport(file=file, results=results, notices=tuple(call.notices))


def inner_folders(kinds: Sequence[str]) -> list[str]:
    """Return where in the folder each table goes: of several, one folder for each."""
    if len(kinds) == 1:
        return [""]
    return [f"{_FOLDERS.get(kind, kind)}/" for kind in kinds]


def markdown(report: ValidateReport) -> str:
    """Return the report as Markdown."""
    return "\n".join(map(markdown_of, report.documents()))


def validate_task(
    measurements: Path | None, output: Path | None, json: bool, markdown: bool
) -> Task:
    """Return the task of predicting measurements, which are read."""
    tables = tables_of(measurements)
    if output is None and not (json or markdown):
        stem = "published" if measurements is None else measurements.stem
        output = Path("results") / f"{stem}_validation"
    folders = inner_folders([table.kind for table in tables])
    return Task(
        call=lambda progress: _validated(tables, measurements, progress),
        inputs=[] if measurements is None else [measurements],
        folder=output,
        files=[f"{folder}{name}" for folder in folders for name in FILES],
    )
