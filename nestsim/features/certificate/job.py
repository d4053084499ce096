"""Write a certificate, and check one without the search.

A certificate is one JSON object on a line, compressed if its name ends in ``.gz``.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from nestsim.evaluate.evaluator import Evaluator
from nestsim.features.certificate.checks import CHECKS
from nestsim.features.certificate.recheck import Inspection, Recheck, inspection
from nestsim.features.certificate.record import (
    FORMAT,
    CertificateRecord,
    certificate_json,
    seal,
)
from nestsim.features.certificate.sources import (
    data_digest,
    restored_scenario,
    source_failures,
)
from nestsim.running.store import plain_json
from nestsim.scenario.load import Scenario
from planner.search.replayed.trail import ProofTrail
from planner.work import Progress
from topologies.errors import InputError, located, short_repr
from topologies.input_file import parse_json, read_file

EXPECTED = "a file that nestsim run --certificate wrote"

REPLAYS = 32
"""Plans of each kind that are replayed unless more are asked for."""

_MOST_BYTES = 2**29
"""Longest certificate that is read, decompressed [byte]."""

_BEGINNING = f'{{"format":"{FORMAT}"'.encode()


def leaves_trail(scenario: Scenario) -> bool:
    """Tell whether the search of a scenario notes what it looks at."""
    search = scenario.search
    of_replays = scenario.planner == "nest" and search.objective == "replayed"
    return of_replays and search.launchable


def trail_for(scenario: Scenario) -> ProofTrail:
    """Return what a search is to fill for its certificate.

    Raises
    ------
    InputError
        If the scenario asks for another search.
    """
    search = scenario.search
    if leaves_trail(scenario):
        return ProofTrail()
    if scenario.planner == "nest" and search.objective == "replayed":
        where, got = "search.launchable", "false"
    elif scenario.planner != "nest":
        where, got = "search.planner", scenario.planner
    else:
        where, got = "search.objective", search.objective
    raise InputError(
        "there is no certificate of such a search",
        where=where,
        got=got,
        expected="the search for the fastest replay of what can be launched: planner "
        '"nest", objective "replayed", launchable = true',
    )


def write_certificate(scenario: Scenario, trail: ProofTrail, path: Path) -> None:
    """Write the certificate of a search that is done.

    Raises
    ------
    InputError
        If a file that the scenario names cannot be read any more.
    """
    content = plain_json(certificate_json(scenario, trail)).encode() + b"\n"
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)


def is_certificate(content: bytes) -> bool:
    """Tell whether a file with this beginning is a certificate."""
    if content.startswith(b"\x1f\x8b"):
        try:
            content = zlib.decompressobj(31).decompress(content, len(_BEGINNING))
        except zlib.error:
            return False
    return content.startswith(_BEGINNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What became of a certificate."""

    name: str
    """Name of its file."""

    record: CertificateRecord
    """What it says."""

    inspections: tuple[Inspection, ...]
    """What was checked."""

    replays: int | None
    """Plans of each kind that were to be replayed; None for all."""

    __repr__ = short_repr

    @property
    def failures(self) -> tuple[str, ...]:
        """Sentences on what does not hold; none if all does."""
        return tuple(
            failure for checked in self.inspections for failure in checked.failures
        )

    @property
    def holds(self) -> bool:
        """Whether everything holds that was checked."""
        return not self.failures


def verify_job(
    path: Path,
    *,
    replays: int | None = REPLAYS,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> VerifyResult:
    """Check a certificate; nothing is searched.

    Parameters
    ----------
    path
        The certificate.
    replays
        Plans of each kind that are replayed; None for all that the search replayed.
    trust_code
        Whether the Python file of a scenario whose model is a module may be run.
    progress
        Told about every step.

    Raises
    ------
    InputError
        If it is no certificate of this version, or made with other constants. What does
        not hold of one is a result.
    """
    with located(str(path), ": "):
        record, sealed = read_certificate(path)
        with restored_scenario(record.scenario, trust_code=trust_code) as scenario:
            trail_for(scenario)
            evaluator = Evaluator.of(scenario, progress)
            checked = sealed, *inspected(record, evaluator, replays, progress)
    return VerifyResult(
        name=path.name, record=record, inspections=checked, replays=replays
    )


def inspected(
    record: CertificateRecord,
    evaluator: Evaluator,
    replays: int | None = REPLAYS,
    progress: Progress | None = None,
) -> tuple[Inspection, ...]:
    """Check what a certificate says of a job; parameters are those of `verify_job`."""
    job = Recheck.of(record, evaluator, replays, progress)
    return tuple(check(job) for check in CHECKS)


def read_certificate(path: Path) -> tuple[CertificateRecord, Inspection]:
    """Return what a certificate says, and whether its hashes are those of its content.

    Raises
    ------
    InputError
        If it is none of this version, or made with other constants.
    """
    written = parse_json(_text(path), expected=EXPECTED)
    known = written.get("format") if isinstance(written, dict) else None
    if known != FORMAT:
        raise InputError(
            "is not a certificate that this version reads",
            where="format",
            got=known,
            expected=f'"{FORMAT}"',
        )
    try:
        record = CertificateRecord.read(written)
    except ValueError as error:
        raise InputError(
            f"is not a certificate: {str(error).splitlines()[1]}", expected=EXPECTED
        ) from None
    if record.data_sha256 != data_digest():
        raise InputError(
            "was made with other constants than those of this nestsim",
            where="data_sha256",
            got=record.data_sha256,
            expected=data_digest(),
            hint=f"check it with nestsim {record.nestsim}, which wrote it",
        )
    lengths = {len(column) for column in vars(record.configurations).values()}
    if len(lengths) > 1:
        raise InputError(
            "columns are not equally long", where="configurations", got=sorted(lengths)
        )
    failures = source_failures(record.scenario)
    if seal(written) != record.sha256:
        failures.append("The certificate is not as it was written: its hash differs.")
    how = "hashes of the certificate, of the scenario and of its files"
    return record, inspection("hashes", 2 + len(record.scenario.files), how, failures)


def _text(path: Path) -> str:
    """Return the text of a certificate, decompressed."""
    content = read_file(path, expected=EXPECTED, most_bytes=_MOST_BYTES)
    try:
        if content.startswith(b"\x1f\x8b"):
            content = zlib.decompressobj(31).decompress(content, _MOST_BYTES)
        return content.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"is damaged: {error}", expected=EXPECTED) from None
