"""Folders of results read again: what they hold, as a page to look at.

Of a run ``result.json`` has the verdict, the other plans and what the search proved;
what the figures of a page show is in no file of the folder, in full at least. The
replay is exact and takes a small part of a search's time, hence it is done again, and
must find what it found the first time.
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from nestsim.commands.calls import ProgressTarget, calling
from nestsim.commands.task import FileOutput, Task
from nestsim.document.folder import MANIFEST, PAGE, replace_file, writer_of
from nestsim.document.html import is_page, page_html
from nestsim.document.parts import Document, Section
from nestsim.document.terminal import print_document
from nestsim.document.wording import VERDICT_WORDS
from nestsim.evaluate.job import nothing_found, simulate_job
from nestsim.evaluate.results import (
    Candidate,
    GivenPlan,
    JobKind,
    ReplayedResult,
    SimplestPlan,
    StepCause,
    WhatIf,
)
from nestsim.evaluate.verdict import Verdict
from nestsim.features.run.document import (
    BEFORE_GOODPUT,
    launch_section,
    run_document,
    run_goodput,
)
from nestsim.features.run.record import reported_candidate
from nestsim.features.run.result_record import (
    CauseRecord,
    GivenRecord,
    SimplestRecord,
)
from nestsim.features.run.whatif import (
    CANDIDATES,
    CandidatesRecord,
    candidates_section,
)
from nestsim.launch.command import launch_snippets
from nestsim.registry import COMMANDS, Command
from nestsim.scenario.load import Scenario, load_scenario
from planner.plans.written import plan_of, read_plan
from planner.search.space import OBJECTIVES
from planner.work import TIME_LIMIT, WORK_LIMIT, Progress, Spent
from topologies.errors import InputError, naming
from topologies.input_file import Value, decode, parse_json, read_file, read_json

if TYPE_CHECKING:
    from rich.console import Console

Said = TypeVar("Said")
"""What a file of a folder says."""

_EXPECTED_RUN = "a folder of results of nestsim run or nestsim simulate"

_MANY = 10**15
"""More than anything that is counted."""

_PROPOSED = "proposed_iteration_time_s"
"""Key of what the dynamic program's plans reach; not there where it was not asked."""

_OF_SPENDING = ("work", "stopped_by", "time_limit_s", "reproducible")
"""What ``search`` of ``result.json`` says beside counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What a folder of results holds of a run."""

    scenario: Scenario
    """What was asked."""

    result: ReplayedResult
    """What was found; of its plans the reported one alone."""

    rows: tuple[dict[str, object], ...]
    """All replayed plans, as ``candidates`` of ``result.json``."""


def stored_run(
    folder: Path,
    scenario: Path | None = None,
    *,
    progress: Progress | None = None,
    trust_code: bool = False,
) -> StoredRun:
    """Return what a folder of results holds, its plan replayed anew.

    Parameters
    ----------
    folder
        As ``nestsim run`` writes it.
    scenario
        Where the scenario's file is, if it names files beside it; None for its copy
        in the folder.
    progress
        Told about the replay.
    trust_code
        Whether code that the folder's own scenario names may be run; that of a
        scenario that is given is the user's.

    Raises
    ------
    InputError
        If the folder holds no run, the scenario is another one, or the replay differs
        from what was found.
    """
    manifest = _read(folder / MANIFEST)
    data = _read(folder / "result.json")
    try:
        trusted = trust_code or scenario is not None
        loaded = _scenario(folder, scenario, manifest, trust_code=trusted)
        is_run = "candidates" in data.table()
        kind: JobKind = "run" if is_run else "simulate"
        has_plan = data["plan"].raw is not None
    except InputError as error:
        raise error.at(str(folder), ": ") from None
    if has_plan:
        file = folder / "plan.json"
        result = simulate_job(
            loaded, plan=read_plan(file), source=str(file), progress=progress
        )
    else:
        result = nothing_found(loaded, progress=progress)
    try:
        result = replace(
            result,
            kind=kind,
            scenario_name=_words(data["scenario"]),
            why=data["why"].each(_cause),
        )
        if has_plan:
            result = _judged(result, data)
        if is_run:
            result = _searched(result, data)
        rows = data["candidates"].each(_row) if is_run else ()
    except InputError as error:
        raise error.at(str(folder / "result.json"), ": ") from None
    return StoredRun(scenario=loaded, result=result, rows=rows)


def _read(file: Path) -> Value:
    try:
        return Value(read_json(file, expected=_EXPECTED_RUN, most_bytes=_LONGEST))
    except InputError as error:
        raise error.at(str(file), ": ") from None


def _scenario(
    folder: Path, named: Path | None, manifest: Value, *, trust_code: bool
) -> Scenario:
    """Return the scenario, which must be the one of the manifest."""
    file = named or folder / "scenario.toml"
    known = manifest["scenario_sha256"].text()
    content = read_file(file, expected="a scenario file in TOML", most_bytes=_LONGEST)
    if named is None and hashlib.sha256(content).hexdigest() != known:
        raise _another(file)
    try:
        loaded = load_scenario(file, trust_code=trust_code)
    except InputError as error:
        if named is None and not error.hint:
            error.hint = (
                "where the scenario names files beside it, say where it is: "
                "--scenario FILE"
            )
        raise
    if hashlib.sha256(loaded.text).hexdigest() != known:
        raise _another(file)
    return loaded


def _another(file: Path) -> InputError:
    return InputError(
        "is not the scenario that was run",
        where=str(file),
        expected="the file as it was, whose hash the manifest has",
        hint="nestsim run --html SCENARIO runs the scenario as it is now",
    )


def _judged(result: ReplayedResult, data: Value) -> ReplayedResult:
    """Return a replayed plan with the verdict that it was given."""
    candidate: Candidate = result.candidate
    _check_time(candidate.planned.iteration_time, data["planned"])
    _check_time(candidate.simulated.iteration_time, data["simulated"])
    # A search has another tolerance than a plan that is given, but not another gap.
    verdict = Verdict(
        kind=data["verdict"].choice(tuple(VERDICT_WORDS)),
        reason=_words(data["reason"]),
        gap=candidate.verdict.gap,
        memory=candidate.verdict.memory,
    )
    # A plan that was given has no rank, which is 0.
    rank = data.get("planner_rank", 0).whole(least=0, most=_MANY)
    best = replace(candidate, rank=rank, verdict=verdict)
    chosen = 0 if data["confirmed"].flag() else None
    return replace(result, candidates=(best,), chosen=chosen)


def _check_time(now: float, stored: Value) -> None:
    """Refuse results that are not those of this version and these files."""
    then = stored["iteration_time_s"]
    if then.number() != now:
        raise InputError(
            "is not what the replay finds now",
            where=then.where,
            got=then.raw,
            expected=f"{now!r}, with the scenario's files and nestsim as they are",
            hint="nestsim run --html SCENARIO makes the results anew",
        )


def _searched(result: ReplayedResult, data: Value) -> ReplayedResult:
    """Return a result with what its search had to say of itself."""
    search = data["search"]
    stopped_by = search["stopped_by"]
    limit = search["time_limit_s"]
    is_found = data["plan"].raw is not None
    return replace(
        result,
        objective=data["objective"].choice(OBJECTIVES),
        lower_bound=_number_or(data["lower_bound_s"], math.nan),
        search_statistics={
            name: count.whole(least=0, most=_MANY)
            for name, count in search.items()
            if name not in {*_OF_SPENDING, _PROPOSED}
        },
        proposed_time=_number_or(search.get(_PROPOSED, None), math.nan),
        spent=Spent(
            work=search["work"].whole(least=0, most=_MANY),
            stopped_by=(
                ""
                if stopped_by.raw is None
                else stopped_by.choice((WORK_LIMIT, TIME_LIMIT))
            ),
            time_limit=None if limit.raw is None else limit.number(),
        ),
        shortfall="" if is_found else _words(data["reason"]),
        covers_space=data["verdict"].raw != "not found",
        given=_given(data["given"]),
        simplest=_simplest(data["simplest"]),
    )


def _cause(data: Value) -> StepCause:
    """Return something that the step waited for."""
    try:
        record = CauseRecord.read(data.table())
    except ValidationError:
        raise data.error("is nothing that a step waits for", "its keys") from None
    what_if = None
    if record.change is not None:
        what_if = WhatIf(
            change=record.change,
            settings=record.settings,
            iteration_time=_nan_for_none(record.iteration_time_s),
            gain=_nan_for_none(record.gain),
            below_model_error=record.below_model_error,
        )
    return StepCause(
        cause=record.cause,
        seconds=record.seconds,
        share=record.share,
        what_if=what_if,
    )


def _nan_for_none(value: float | None) -> float:
    return math.nan if value is None else value


def _given(data: Value) -> GivenPlan | None:
    """Return the scenario's own plan, None if it has none."""
    if data.raw is None:
        return None
    plan = plan_of(data["plan"])
    try:
        record = GivenRecord.read(data.table())
    except ValidationError:
        raise data.error("is no plan beside another one", "its keys") from None
    return GivenPlan(
        plan=plan,
        iteration_time=record.iteration_time_s,
        planned_time=record.planned_iteration_time_s,
        peak_memory=record.peak_memory_bytes,
        verdict=record.verdict,
        longer=record.longer_s,
    )


def _simplest(data: Value) -> SimplestPlan | None:
    """Return the simplest plan, None if there was none."""
    if data.raw is None:
        return None
    plan = plan_of(data["plan"])
    try:
        record = SimplestRecord.read(data.table())
    except ValidationError:
        raise data.error("is no plan that is nearly as fast", "its keys") from None
    return SimplestPlan(
        plan=plan,
        iteration_time=record.iteration_time_s,
        peak_memory=record.peak_memory_bytes,
        slower_by=record.slower_by,
        within=record.within,
        spared=record.spared,
        added=record.added,
    )


def _words(value: Value) -> str:
    """Return a text of any length: names in it may be long."""
    if not isinstance(value.raw, str):
        raise value.error("has the wrong type", "a text in quotes")
    return value.raw


def _number_or(value: Value, otherwise: float) -> float:
    return otherwise if value.raw is None else value.number(least=-math.inf)


def _row(row: Value) -> dict[str, object]:
    """Return one of the replayed plans."""
    times = ("planned_iteration_time_s", "simulated_iteration_time_s")
    sizes = {
        name: size.whole(least=1, most=_MANY)
        for name, size in row["parallel"].items()
        if not isinstance(size.raw, bool | str)
    }
    return {
        "planner_rank": row["planner_rank"].whole(least=0, most=_MANY),
        "parallel": sizes,
        "virtual_pipeline_model_parallel_size": row[
            "virtual_pipeline_model_parallel_size"
        ].whole(least=1, most=_MANY),
        "micro_batch_size": row["micro_batch_size"].whole(least=1, most=_MANY),
        "placement": row["placement"].text(),
        **{name: row[name].number() for name in times},
        "simulated_peak_memory_bytes": row["simulated_peak_memory_bytes"].number(),
        "verdict": row["verdict"].text(),
    }


_EXPECTED = "a folder of results that nestsim wrote"

_LONGEST = 1 << 28
"""No file of a folder of results is longer [byte]."""


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    """A page about a folder of results."""

    page: Document
    """What it shows."""

    notices: tuple[str, ...] = ()
    """What users should know beside the page, one sentence each."""

    @property
    def succeeded(self) -> bool:
        """Always: there is a page."""
        return True

    def printed_dict(self) -> dict[str, object]:
        """Return the page, for programs."""
        return {"html": self.to_html()}

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print what the page says."""
        print_document(self.page, console, verbose=verbose)

    def to_html(self) -> str:
        """Return the page as HTML: the bytes of the command's file."""
        return page_html(self.page)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file, whole or not at all.

        Raises
        ------
        InputError
            If it cannot be written.
        """
        file = Path(path)
        replace_file(file, writer_of(self.to_html()))
        return file


def report_page(
    folder: str | os.PathLike[str],
    *,
    scenario: str | os.PathLike[str] | None = None,
    trust_code: bool = False,
    progress: ProgressTarget = None,
) -> ReportPage:
    """Return a page about a folder of results; the plan of a run is replayed anew.

    Parameters
    ----------
    folder
        As ``nestsim run``, ``simulate``, ``compare``, ``stress``, ``jitter``,
        ``goodput``, ``jobs`` or ``sweep`` writes it.
    scenario
        The scenario's file where it was, if it names files beside it; None for its
        copy in the folder.
    trust_code
        Whether the Python file that the copy in the folder names as its ``module`` may
        be run: do so where you know what is in it. One that ``scenario`` names is run.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the folder holds no such results, they were changed, or the replay differs
        from them.
    """
    place = Path(folder)
    stored = stored_document(place)
    if stored is not None:
        if scenario is not None:
            raise InputError(
                "is for folders of nestsim run and nestsim simulate",
                where="--scenario",
                got=str(scenario),
                expected="left out",
            )
        return ReportPage(page=stored)
    with calling(progress) as call:
        named = None if scenario is None else Path(scenario)
        replayed = stored_run(
            place, named, progress=call.progress, trust_code=trust_code
        )
        best = reported_candidate(replayed.result)
        page = run_document(replayed.result, rows=replayed.rows)
        goodput = run_goodput(replayed.scenario, replayed.result)
        page = page.with_section(goodput, BEFORE_GOODPUT)
        page = page.with_section(_candidates(place), "candidates")
        if best is not None:
            snippets = launch_snippets(replayed.scenario, best.priced.plan)
            page = page.with_section(launch_section(snippets))
    return ReportPage(page=page, notices=tuple(call.notices))


def report_task(
    folder: Path, output: Path | None, scenario: Path | None, trust_code: bool
) -> Task:
    """Return the task of writing a page about a folder."""

    def call(progress: Progress | None) -> ReportPage:
        return report_page(
            folder, scenario=scenario, trust_code=trust_code, progress=progress
        )

    return Task(
        call=call,
        inputs=[] if scenario is None else [scenario],
        file=FileOutput(
            path=folder / PAGE if output is None else output,
            is_ours=is_page,
            title="The page is",
            writer=lambda page: writer_of(page.to_html()),
            is_added=output is None,
        ),
        prints=False,
    )


def stored_document(folder: Path) -> Document | None:
    """Return what a folder of results says; None if they may be a run's.

    Nothing is computed anew: the folder's own file holds all that the document says.
    Its hash in the manifest says that it is the one that was written.

    Raises
    ------
    InputError
        If the folder has no manifest, or its results are not as they were written.
    """
    manifest = folder / MANIFEST
    with naming(manifest):
        hashes = Value(_parsed(_content(manifest))).get("files", {}).table()
    for command in COMMANDS:
        if command.stored is not None and command.stored.marker in hashes:
            return _checked(command, folder, hashes)
    return None


def _candidates(folder: Path) -> Section:
    """Return the candidates that a folder has beside its page, or had; else none."""
    manifest = folder / MANIFEST
    with naming(manifest):
        hashes = Value(_parsed(_content(manifest))).get("files", {}).table()
    if CANDIDATES not in hashes:
        return candidates_section(None)
    return _read_unchanged(folder / CANDIDATES, hashes, _as_section)


def _as_section(record: Any) -> Section:
    CandidatesRecord.read(record)
    return candidates_section(record)


def _checked(command: Command, folder: Path, hashes: Mapping[str, object]) -> Document:
    """Return what a file says, which must be the one that was written."""
    assert command.stored is not None
    says: Callable[[Any], Document] = command.function(command.stored.document)
    return _read_unchanged(folder / command.stored.record, hashes, says)


def _read_unchanged(
    file: Path, hashes: Mapping[str, object], read: Callable[[Any], Said]
) -> Said:
    """Return what a file says, which must be the one that the manifest has."""
    with naming(file):
        content = _content(file)
    if hashlib.sha256(content).hexdigest() != hashes.get(file.name):
        raise InputError(
            "is not as it was written",
            where=str(file),
            expected=f"the file whose hash {MANIFEST} has",
            hint="run the command again",
        )
    try:
        return read(_parsed(content))
    except (KeyError, TypeError, IndexError, AttributeError, ValidationError) as error:
        raise InputError(
            "was written by another version of nestsim",
            where=str(file),
            got=f"{type(error).__name__}: {' '.join(str(error).split())}",
            expected="results of this version",
            hint="run the command again",
        ) from None


def _content(file: Path) -> bytes:
    return read_file(file, expected=_EXPECTED, most_bytes=_LONGEST)


def _parsed(content: bytes) -> Any:
    return parse_json(decode(content), expected=_EXPECTED)
