"""Two results on one page: what changed, term by term, and both steps on one axis.

The plans of two folders of results are replayed anew for their timelines, as
`nestsim.features.run.pages` does it; of other reports the page has all but these.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.commands.calls import calling
from nestsim.commands.task import FileOutput, Reply, Task
from nestsim.document.drawing import rounded
from nestsim.document.folder import MANIFEST, writer_of
from nestsim.document.html import is_page, page_html
from nestsim.document.paints import Swatch
from nestsim.document.parts import (
    Block,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    TimeWindow,
    cell,
    paragraphs,
)
from nestsim.document.wording import (
    number,
    signed_duration,
    signed_percent,
    time_unit,
    without_rounding,
)
from nestsim.features.run.causes import waterfall
from nestsim.features.run.diff import (
    RESULT,
    SETTING_COLUMNS,
    Diff,
    ValueChange,
    compare_reports,
    diff_document,
    diff_json,
    read_report,
)
from nestsim.features.run.pages import stored_run
from nestsim.features.run.record import reported_candidate
from nestsim.features.run.timeline import timeline_figure, timeline_windows
from planner.work import Progress
from topologies.input_file import file_in
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

REPLAY = "replay beside plan"
"""Name of the part of a change that the replay adds to the planned terms."""

_OF_STAGE = re.compile(r"^plan\.stages\[([0-9]+)\]\.(.+)$")
"""Path of a setting of one stage."""

_MOST_STAGES = 4
"""Stages that a row names."""


@dataclass(frozen=True, slots=True)
class WeighedChange:
    """A setting that differs, in the whole plan or in some of its stages."""

    name: str
    """Path of the setting, without its stage."""

    share: float
    """Share of the plan's stages in which it differs; 1 for all of the plan."""

    stages: tuple[int, ...]
    """Those stages; none for a setting of the whole plan."""

    first: ValueChange
    """The change, in the first of these stages."""

    @property
    def place(self) -> str:
        """Where it differs, in words."""
        if not self.stages:
            return "the plan" if self.name.startswith("plan.") else "the result"
        named = ", ".join(map(str, self.stages[:_MOST_STAGES]))
        more = len(self.stages) - _MOST_STAGES
        return f"stage {named}" + (f" and {more} more" if more > 0 else "")


def weighed_settings(changes: Sequence[ValueChange]) -> list[WeighedChange]:
    """Return settings by the share of the plan that they are about.

    Settings of the whole plan first, then those of stages, by the number of stages in
    which they differ, and what is no setting of the plan; each in the order of the
    report.
    """
    by_name: dict[str, list[tuple[int, ValueChange]]] = {}
    whole: list[WeighedChange] = []
    for change in changes:
        of_stage = _OF_STAGE.match(change.path)
        if of_stage is None:
            whole.append(WeighedChange(change.path, 1.0, (), change))
        else:
            stage, name = int(of_stage[1]), f"plan.stages.{of_stage[2]}"
            by_name.setdefault(name, []).append((stage, change))
    most = 1 + max((stage for rows in by_name.values() for stage, _ in rows), default=0)
    parts = [
        WeighedChange(
            name, len(rows) / most, tuple(stage for stage, _ in rows), rows[0][1]
        )
        for name, rows in by_name.items()
    ]
    others = [row for row in whole if not row.name.startswith("plan.")]
    of_plan = [row for row in whole if row.name.startswith("plan.")]
    return [*of_plan, *sorted(parts, key=lambda row: -row.share), *others]


def changed_terms(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, float]:
    """Return by how much each term of the time changes; empty without both [s].

    Planned terms, and where both were replayed what the replays add to them: together
    the change of the time that is reported.
    """
    if not _are_planned((before, after)):
        return {}
    first, second = (
        {name: float(time) for name, time in report["planned"]["terms_s"].items()}
        for report in (before, after)
    )
    changes = {
        name: second.get(name, 0.0) - first.get(name, 0.0)
        for name in dict.fromkeys((*first, *second))
    }
    times = [_times(report) for report in (before, after)]
    if all(simulated is not None for _, simulated in times):
        gaps = [float(simulated or 0.0) - plan for plan, simulated in times]
        changes[REPLAY] = gaps[1] - gaps[0]
    whole = max(max(plan, simulated or 0.0) for plan, simulated in times)
    exact = {name: without_rounding(time, whole) for name, time in changes.items()}
    return {name: time for name, time in exact.items() if time}


def _are_planned(reports: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether all reports have a plan with its times."""
    return all(isinstance(report.get("planned"), dict) for report in reports)


def _times(report: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return the planned time of a report, and the simulated one [s]."""
    simulated = report.get("simulated")
    return (
        float(report["planned"]["iteration_time_s"]),
        float(simulated["iteration_time_s"]) if simulated else None,
    )


def replayed_folder(
    place: Path, *, trust_code: bool, progress: Progress | None = None
) -> "Candidate | None":
    """Return the plan of a folder of results, replayed; None of what is no folder.

    Raises
    ------
    InputError
        If the folder's results are not those of its scenario.
    """
    if not (place / MANIFEST).is_file():
        return None
    run = stored_run(place, trust_code=trust_code, progress=progress)
    return reported_candidate(run.result)


def diff_page(
    changes: Diff,
    names: tuple[str, str],
    reports: tuple[Mapping[str, Any], Mapping[str, Any]],
    candidates: "tuple[Candidate | None, Candidate | None]",
) -> Document:
    """Return what differs between two results, for the page.

    Parameters
    ----------
    changes
        All that differs.
    names
        Of both results.
    reports
        What `nestsim.features.run.diff.read_report` returns of each.
    candidates
        Their replayed plans, None where there is none.
    """
    plain = diff_document(changes, names)
    others = [
        replace(part, folded=True) for part in plain.sections if part.name != "settings"
    ]
    return Document.of(
        plain.subject,
        plain.doing,
        _headline(plain.headline, reports, names),
        (
            Section("terms", "What changed the time", (*_terms(reports),)),
            Section("steps", "Both steps", (*_steps(candidates, names),)),
            Section("settings", "Settings that differ", (*_settings(changes),)),
            *others,
        ),
    )


def _headline(
    plain: Headline, reports: Sequence[Mapping[str, Any]], names: tuple[str, str]
) -> Headline:
    """Return the verdict with both times."""
    if not _are_planned(reports):
        return plain
    both = [_times(report) for report in reports]
    is_simulated = all(simulated is not None for _, simulated in both)
    before, after = (
        simulated if is_simulated and simulated is not None else plan
        for plan, simulated in both
    )
    kind = "simulated" if is_simulated else "planned"
    change = after / before - 1.0 if before else math.nan
    tokens = [
        report["simulated" if is_simulated else "planned"]["tokens_per_s"]
        for report in reports
    ]
    return Headline(
        verdict=plain.verdict,
        tone=plain.tone,
        sentences=(f"A is {names[0]}, B is {names[1]}.",),
        key_figures=(
            KeyFigure("Time of A", format_duration(before), kind),
            KeyFigure("Time of B", format_duration(after), kind),
            KeyFigure("B beside A", signed_percent(change), "of the time"),
            KeyFigure(
                "Throughput", f"{number(tokens[1])} tokens/s", f"A: {number(tokens[0])}"
            ),
        ),
    )


def _terms(reports: tuple[Mapping[str, Any], Mapping[str, Any]]) -> Iterator[Block]:
    changes = changed_terms(*reports)
    if not changes:
        return
    total = sum(changes.values())
    ordered = dict(sorted(changes.items(), key=lambda row: -abs(row[1])))
    whole = _times(reports[0])[0]
    painted = {
        name: (time, "longer" if time > 0 else "shorter")
        for name, time in (*ordered.items(), ("all", total))
    }
    largest = next(iter(ordered))
    yield FigureBlock(
        name="changes",
        title=f"B beside A: {signed_duration(total)}; the largest change is {largest} "
        f"({signed_duration(ordered[largest])})",
        about="Bars of what makes the second result longer or shorter than the first.",
        drawing=waterfall(painted, {"all": painted.pop("all")}, signed_duration, whole),
        table=DataTable.of(
            "Time of B minus time of A, by cause, the largest change first",
            [*ordered.items(), ("all", total)],
            {
                "Cause": lambda row: row[0],
                "Change": lambda row: cell(row[1], signed_duration),
                "Of A": lambda row: signed_percent(row[1] / whole),
            },
            numbers=("Of A",),
        ),
        legend=(
            Swatch(name="longer", paint="longer"),
            Swatch(name="shorter", paint="shorter"),
        ),
        note=f"Planned terms; {REPLAY}: what the replays differ by beyond them.",
    )


def _steps(
    candidates: "tuple[Candidate | None, Candidate | None]", names: tuple[str, str]
) -> Iterator[Block]:
    """Yield both timelines, on one axis."""
    before, after = candidates
    if before is None or after is None:
        yield from paragraphs(
            ("Timelines need two folders of results, whose plans are replayed anew.",)
        )
        return
    total = max(candidate.replay.iteration_time for candidate in (before, after))
    scale, unit = time_unit(total)
    windows = [
        (f"{window.title} of {letter}", window.start, window.end)
        for letter, candidate in (("A", before), ("B", after))
        for window in timeline_windows(candidate.replay)[1:]
    ]
    yield TimeWindow(
        total=rounded(total / scale),
        unit=unit,
        choices=tuple(
            (title, rounded(start / scale), rounded(end / scale))
            for title, start, end in (("Both whole steps", 0.0, total), *windows)
        ),
    )
    for letter, candidate in (("A", before), ("B", after)):
        yield timeline_figure(candidate, of=letter, total=total)
    yield Sentences((f"A: {names[0]}. B: {names[1]}. Both have the same axis.",))


def _settings(changes: Diff) -> Iterator[Block]:
    rows = weighed_settings(changes.settings)
    if not rows:
        return
    yield DataTable.of(
        "Settings that differ: of the whole plan first, then by the share of stages",
        rows,
        {
            "Setting": lambda row: row.name,
            "Where": lambda row: row.place,
            "A": lambda row: SETTING_COLUMNS["before"](row.first),
            "B": lambda row: SETTING_COLUMNS["after"](row.first),
        },
    )


def diff_task(before: Path, after: Path, html: Path | None, trust_code: bool) -> Task:
    """Return the task of comparing two results."""
    reports = read_report(before), read_report(after)
    changes, names = compare_reports(*reports), (str(before), str(after))

    def call(progress: Progress | None) -> Reply:
        page, notices = None, list[str]()
        if html is not None:
            with calling(progress) as call:
                candidates = [
                    replayed_folder(
                        place, trust_code=trust_code, progress=call.progress
                    )
                    for place in (before, after)
                ]
                page = diff_page(
                    changes, names, reports, (candidates[0], candidates[1])
                )
            notices = call.notices
        return Reply(
            record=partial(diff_json, changes),
            document=partial(diff_document, changes, names),
            succeeded=changes.is_empty,
            notices=tuple(notices),
            about=page,
        )

    return Task(
        call=call,
        inputs=[file_in(place, RESULT) for place in (before, after)],
        file=None
        if html is None
        else FileOutput(
            path=html,
            is_ours=is_page,
            title="The page is",
            writer=lambda reply: writer_of(page_html(reply.about)),
        ),
    )
