"""``nestsim verify``: what it is called with, and what it returns."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nestsim.commands.calls import ProgressTarget, calling
from nestsim.commands.report import DocumentReport, Parts, Report
from nestsim.commands.task import FileOutput, Task
from nestsim.document.folder import replace_file
from nestsim.features.certificate.document import (
    verification_document,
    verification_json,
    verification_rows,
)
from nestsim.features.certificate.folder import (
    FolderCheck,
    check_folder,
    folder_document,
    folder_json,
)
from nestsim.features.certificate.job import (
    REPLAYS,
    VerifyResult,
    is_certificate,
    verify_job,
    write_certificate,
)
from nestsim.scenario.load import Scenario
from planner.search.replayed.trail import ProofTrail
from topologies.errors import InputError

ALL = "all"
"""Word for all plans that the search replayed."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class VerifyReport(DocumentReport):
    """What became of a certificate, or of a folder of results."""

    result: VerifyResult | FolderCheck
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether everything holds that was checked."""
        return self.result.holds

    def facts(self) -> dict[str, object]:
        """Return the verdict, the bound and the gap."""
        data = self.written.record
        names = ("certificate", "verdict", "proven", "lower_bound_s", "optimality_gap")
        return {name: data[name] for name in ("folder", *names) if name in data}

    def parts(self) -> Parts:
        """Return the record and a row for each check."""
        result = self.result
        if isinstance(result, FolderCheck):
            record, document = folder_json(result), partial(folder_document, result)
        else:
            record = verification_json(result)
            document = partial(verification_document, result)
        rows = verification_rows(result.inspections)
        return Parts(record=record, rows=rows, document=document)


def verify(
    certificate: str | os.PathLike[str],
    *,
    replays: int | None = REPLAYS,
    trust_code: bool = False,
    progress: ProgressTarget = None,
) -> VerifyReport:
    """Check the certificate of a search, without the search; or a folder of results.

    Of a folder, the files are held against the hashes of its manifest.

    Parameters
    ----------
    certificate
        A file that ``nestsim run --certificate FILE`` wrote, or a folder of results.
    replays
        Plans that the search replayed which are replayed again, and as many that bounds
        closed; None for all that the search replayed.
    trust_code
        Whether the Python file of a scenario whose model is a module may be run.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If it is no certificate of this version, or made with other constants, or a
        folder without a manifest. That something does not hold is a result.
    """
    path = Path(certificate)
    if path.is_dir():
        return VerifyReport(result=check_folder(path))
    with calling(progress) as call:
        result = verify_job(
            path, replays=replays, trust_code=trust_code, progress=call.progress
        )
    return VerifyReport(result=result, notices=tuple(call.notices))


def number_of_replays(text: str) -> int | None:
    """Read how many plans are replayed; None for all."""
    if text == ALL:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(
            "is no number of plans", got=text, expected='"all" or a number, e.g. "32"'
        )
    return int(text)


def verify_task(file: Path, replays: int | None, trust_code: bool) -> Task:
    """Return the task of checking a certificate, or a folder of results."""
    return Task(
        call=partial(verify, file, replays=replays, trust_code=trust_code),
        inputs=[file],
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CertifiedReport(Report):
    """What a search found, with what its certificate is made of."""

    scenario: Scenario
    """What was asked."""

    trail: ProofTrail | None = None
    """What closed what; None where no certificate was asked for."""

    def save_certificate(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate of the search, compressed if the name ends in ``.gz``.

        Raises
        ------
        InputError
            If none was asked for (``certify=True``), or it cannot be written.
        """
        replace_file(Path(path), self.write_certificate)

    def write_certificate(self, path: Path) -> None:
        """Write the certificate of the search into a new file."""
        if self.trail is None:
            raise InputError(
                "was not asked for", where="certificate", expected="certify=True"
            )
        write_certificate(self.scenario, self.trail, path)


def certificate_output(
    path: Path | None, *, several: bool = False
) -> FileOutput | None:
    """Return where a command writes its certificate; None if nobody asks for one.

    Raises
    ------
    InputError
        If it would be that of several searches.
    """
    if path is None:
        return None
    if several:
        raise InputError(
            "is of one search", where="--certificate", expected="one scenario beside it"
        )
    return FileOutput(
        path=path,
        is_ours=is_certificate,
        title="The certificate is",
        writer=lambda report: report.write_certificate,
    )
