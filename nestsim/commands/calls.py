"""What calls have in common: take a scenario, show progress, keep notices."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nestsim.commands.report import ScenarioReport
from nestsim.running.progress import sentences_of, shown_progress
from nestsim.scenario.load import Scenario
from planner.explain.request import Request
from planner.plans.written import read_plan
from planner.step.plan import Plan
from planner.work import Progress
from topologies.errors import InputError, naming
from topologies.notices import gathered_notices

ScenarioSource = Scenario | str | os.PathLike[str] | Mapping[str, Any]
"""A scenario, the path of its file, or what the file would say as a dictionary."""

ProgressTarget = Progress | bool | None
"""What is called with what is being done and the share of it that is done (None if
unknown); True to show it; False or None for silence."""

ReportOfScenario = TypeVar("ReportOfScenario", bound=ScenarioReport)


def scenario_from(source: ScenarioSource) -> Scenario:
    """Return a scenario, read and checked if it is none yet."""
    if isinstance(source, Scenario):
        return source
    if isinstance(source, Mapping):
        return Scenario.from_dict(source)
    return Scenario.from_file(source)


def with_settings(
    scenario: Scenario, values: Mapping[str, tuple[str, Any]]
) -> Scenario:
    """Return a scenario with other values for some settings, checked by its tables.

    Parameters
    ----------
    scenario
        As loaded.
    values
        Dotted path of a setting -> name of what gives it, and the value as in TOML;
        None for no value.

    Raises
    ------
    InputError
        If a value is wrong. The message names what gives it, not the file.
    """
    changed = scenario
    for key, (name, value) in values.items():
        try:
            changed = _with_value(changed, key, value)
        except InputError as error:
            prefix = f"{scenario.path}: "
            place = error.where.removeprefix(prefix)
            if not place.startswith(key):
                raise
            raise error.moved(f"{name}{place.removeprefix(key)}") from None
    return changed


def _with_value(scenario: Scenario, key: str, value: Any) -> Scenario:
    if value is not None:
        return scenario.replace({key: value})
    document = scenario.document()
    *outer, last = key.split(".")
    inner = document
    for part in outer:
        inner = inner.get(part, {})
    inner.pop(last, None)
    return Scenario.from_dict(document, scenario.path)


@dataclass(slots=True)
class CallNotes:
    """One call, while it works."""

    progress: Progress | None
    """What the job tells of itself."""

    notices: list[str] = field(default_factory=list)
    """What users should know, filled at the end."""


@contextmanager
def calling(
    progress: ProgressTarget, file: Path | None = None, notes: Iterable[str] = ()
) -> Iterator[CallNotes]:
    """Show the progress of a job, and name the file that a mistake is in.

    Parameters
    ----------
    progress
        As the caller gave it.
    file
        Where mistakes are; None if that is not known.
    notes
        What users should know of what the job is about, such as `Scenario.notes`.
    """
    with gathered_notices() as gathered, shown_progress(progress) as shown:
        call = CallNotes(shown)
        with naming(file):
            yield call
    call.notices += dict.fromkeys([*notes, *sentences_of(gathered)])


def reported(
    report: type[ReportOfScenario],
    job: Callable[..., Any],
    scenario: ScenarioSource,
    progress: ProgressTarget,
    **settings: Any,
) -> ReportOfScenario:
    """Do a job of a scenario, and return what it found as a report.

    Parameters
    ----------
    report
        Class of the report.
    job
        Function of the scenario, ``progress`` and the settings.
    scenario, progress
        As the caller gave them.
    settings
        What else the job takes.
    """
    loaded = scenario_from(scenario)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = job(loaded, progress=call.progress, **settings)
    return report(scenario=loaded, result=result, notices=tuple(call.notices))


def request_of(configuration: str | Request, where: str = "") -> Request:
    """Return what is asked for, read if it is written.

    Raises
    ------
    InputError
        If it is none; ``where`` names what gives it.
    """
    if isinstance(configuration, Request):
        return configuration
    try:
        return Request.parse(configuration)
    except InputError as error:
        raise (error.at(where) if where else error) from None


def plan_of(
    plan: Plan | str | os.PathLike[str] | None,
) -> tuple[Plan | None, str]:
    """Return a plan, read if it is in a file, and what messages call it."""
    if plan is None or isinstance(plan, Plan):
        return plan, "plan"
    return read_plan(Path(plan)), str(plan)


def store_folder(folder: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder in which finished points are kept; it is made."""
    if folder is None:
        return None
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be made: {error.strerror or error}",
            where="keep_in",
            got=str(place),
            expected="a folder for finished points",
        ) from None
    return place
