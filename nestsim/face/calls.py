"""What all calls of the face do alike: take a scenario, show progress, keep notices."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestsim.running.progress import sentences_of, shown_progress
from nestsim.scenario.load import Scenario
from planner.work import Progress
from topologies.errors import InputError, naming
from topologies.notices import gathered_notices

ScenarioSource = Scenario | str | os.PathLike[str] | Mapping[str, Any]
"""A scenario, the path of its file, or what the file would say as a dictionary."""

ProgressTarget = Progress | bool | None
"""What is called with what is being done and the share of it that is done (None if
unknown); True to show it; False or None for silence."""


def scenario_from(source: ScenarioSource) -> Scenario:
    """Return a scenario, read and checked if it is none yet."""
    if isinstance(source, Scenario):
        return source
    if isinstance(source, Mapping):
        return Scenario.from_dict(source)
    return Scenario.from_file(source)


@dataclass(slots=True)
class FaceCall:
    """One call of the face, while it works."""

    progress: Progress | None
    """What the job tells of itself."""

    notices: list[str] = field(default_factory=list)
    """What users should know, filled at the end."""


@contextmanager
def calling(
    progress: ProgressTarget, file: Path | None = None, notes: Iterable[str] = ()
) -> Iterator[FaceCall]:
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
    with gathered_notices() as gathered, shown_progress(progress) as told:
        call = FaceCall(told)
        with naming(file):
            yield call
    call.notices += dict.fromkeys([*notes, *sentences_of(gathered)])


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
