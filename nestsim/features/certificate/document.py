"""What became of a certificate: the verdict, what was checked, and what was not."""

from collections.abc import Iterable, Iterator, Mapping

from nestsim.document.dumps import Record
from nestsim.document.parts import (
    DataTable,
    Document,
    FactList,
    Headline,
    Section,
    Sentences,
    table_section,
)
from nestsim.document.wording import plan_label, plural
from nestsim.features.certificate.job import VerifyResult
from nestsim.features.certificate.recheck import Inspection
from nestsim.features.certificate.record import CertificateRecord
from planner.plans.written import plan_of
from topologies.errors import InputError
from topologies.input_file import Value
from topologies.units import format_duration


class InspectionRecord(Record):
    """What one check looked at, and what does not hold."""

    what: str
    num_checked: int
    how: str
    failures: tuple[str, ...]


class VerificationRecord(Record):
    """What became of a certificate."""

    certificate: str
    scenario: str
    verdict: str
    proven: bool
    iteration_time_s: float | None
    lower_bound_s: float | None
    optimality_gap: float | None
    stopped_by: str | None
    written_by: str
    checks: tuple[InspectionRecord, ...]
    not_checked: tuple[str, ...]
    failures: tuple[str, ...]


def verification_json(result: VerifyResult) -> dict[str, object]:
    """Return what became of a certificate, for programs."""
    record = result.record
    return VerificationRecord.dump(
        certificate=result.name,
        scenario=record.scenario.name,
        verdict="holds" if result.holds else "fails",
        proven=result.holds and record.proven,
        iteration_time_s=_time(record),
        lower_bound_s=record.lower_bound_s,
        optimality_gap=record.optimality_gap,
        stopped_by=record.stopped_by,
        written_by=record.nestsim,
        checks=result.inspections,
        not_checked=not_checked(result),
        failures=result.failures,
    )


def verification_rows(inspections: Iterable[Inspection]) -> list[dict[str, object]]:
    """Return a row for each check."""
    return [
        {**checked._asdict(), "failures": len(checked.failures)}
        for checked in inspections
    ]


def verification_document(result: VerifyResult) -> Document:
    """Return what became of a certificate, the verdict first."""
    return Document(
        subject=result.record.scenario.name,
        doing="verify",
        headline=Headline(
            verdict=_verdict(result),
            tone="good" if result.holds else "bad",
            sentences=(_sentence(result),),
        ),
        sections=tuple(_sections(result)),
    )


def _verdict(result: VerifyResult) -> str:
    if not result.holds:
        return "DOES NOT HOLD"
    return "HOLDS" if result.record.proven else "HOLDS, NOT PROVEN"


def _sentence(result: VerifyResult) -> str:
    """Say what the certificate shows, or how much of it does not hold."""
    record = result.record
    if not result.holds:
        return f"{plural(len(result.failures), 'check')} of {result.name} failed."
    time = _time(record)
    if time is None:
        return (
            "No plan of the space fits in memory."
            if record.proven
            else f"The {record.stopped_by} ended the search before any plan fitted."
        )
    bound, gap = record.lower_bound_s, record.optimality_gap
    assert bound is not None
    assert gap is not None
    shown = (
        f"No plan of the space replays faster than {format_duration(bound)}, by the "
        f"bounds that were checked; the answer takes {format_duration(time)}, a gap of "
        f"{100 * gap:.2f} %"
    )
    asked = f"{100 * record.proven_gap:.2f} %"
    if record.proven:
        return f"{shown} of the {asked} that were asked for."
    return f"{shown}, above the {asked} that were asked for: {_stop(record)}."


def _stop(record: CertificateRecord) -> str:
    return f"the {record.stopped_by} ended the search"


def _time(record: CertificateRecord) -> float | None:
    return None if record.answer is None else record.answer.replayed_s


def _sections(result: VerifyResult) -> Iterator[Section]:
    if result.failures:
        yield Section("failures", "What does not hold", (Sentences(result.failures),))
    facts = _facts(result.record)
    if facts:
        yield Section("answer", "The answer", (FactList(facts),))
    table = DataTable.of(
        "What was checked",
        result.inspections,
        {
            "what": lambda checked: checked.what,
            "number": _count,
            "how": lambda checked: checked.how,
        },
        numbers=("number",),
    )
    yield table_section("checks", table)
    yield Section("not-checked", "What was not", (Sentences(not_checked(result)),))


def _count(checked: Inspection) -> str:
    return f"{checked.num_checked:,}"


def _facts(record: CertificateRecord) -> Mapping[str, str]:
    if record.answer is None:
        return {}
    facts = {"written by": f"nestsim {record.nestsim}", "of": record.scenario.file}
    try:
        plan = plan_of(Value(record.answer.plan))
    except InputError:
        return facts
    return {"plan": plan_label(plan), **facts}


def not_checked(result: VerifyResult) -> tuple[str, ...]:
    """Say what the verdict takes for granted."""
    rest = (
        "The rules of the space, the least times of layers and the rates of links are "
        "taken from the same tables as in the search.",
        "Relaxed bounds, and bounds of plans and of their timelines, are computed by "
        "the functions of the search, apart from each other; what speaks for them are "
        "their proofs and the replays that were made here.",
        "The space is that of plans which fit while gradients are there for the whole "
        "step; and the replay is a model.",
    )
    if result.replays is None:
        return rest
    first = (
        f"Of each kind at most {result.replays} plans were replayed; --replays all "
        "replays all that the search did."
    )
    return first, *rest
