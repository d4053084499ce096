"""Plans written as launch configurations, and launch configurations read as scenarios.

What is written says in words what it could not say; what is read lists what was
assumed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import frame_of
from nestsim.document.folder import writer_of
from nestsim.document.parts import Snippet
from nestsim.face.calls import ProgressTarget, ScenarioSource, calling, scenario_from
from nestsim.face.report import Contents, FolderReport, Report
from nestsim.launch.formats.trainers.reading import stored_arguments
from nestsim.launch.job import LaunchFiles, LaunchGap, LaunchJob
from nestsim.launch.onto.merging import changed_launch
from nestsim.launch.read import ImportedScenario, LaunchSource, imported_scenario
from nestsim.launch.registry import (
    PRESET_FORMATS,
    TAKES_OPTIONS_OF,
    WITHOUT_OPTIONS,
    find_reader,
    find_writer,
    group_files,
)
from nestsim.scenario.load import Scenario, load_scenario
from planner.plans.written import read_plan
from planner.step.plan import Plan
from topologies.errors import InputError
from topologies.input_file import read_text

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

MAX_FILE = 4_000_000
"""Longest launch configuration that is read [byte]."""

MAX_SNIPPET = 20_000
"""Longest file that a page shows to be copied [letter]; plans of large clusters name
all their devices."""

NOTES = "notes.txt"
"""What the files do not say, in a folder of an export."""

SCENARIO, PLAN = "scenario.toml", "plan.json"
"""Files of a folder of results that an export is made of."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExportReport(FolderReport):
    """A plan as the launch configuration of a framework."""

    scenario: Scenario
    """The job."""

    format: str
    """Name of the format."""

    launch: LaunchFiles
    """The files, and what they could not say."""

    onto: Path | None = None
    """Launch file of the user that the plan was put into; None for files made anew."""

    diff: str = ""
    """What had to change in that file, as ``diff -u`` shows it."""

    @property
    def succeeded(self) -> bool:
        """Always: what the files cannot say, they say in words."""
        return True

    @property
    def main_text(self) -> str:
        """The file that people look at, or what has to change of theirs.

        Empty if it is no text, or nothing has to.
        """
        if self.onto is not None:
            return self.diff
        content = next(iter(self.launch.files.values()))
        return content if isinstance(content, str) else ""

    def facts(self) -> dict[str, Any]:
        """Return the format, the files, and how much could not be said."""
        return {
            "scenario": self.scenario.name,
            "format": self.format,
            "files": ", ".join(self.launch.files),
            "num_gaps": len(self.launch.gaps),
            **({} if self.onto is None else {"onto": str(self.onto)}),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the texts of all files, and what they could not say."""
        return {
            "scenario": self.scenario.name,
            "format": self.format,
            "files": {
                name: content if isinstance(content, str) else None
                for name, content in self.launch.files.items()
            },
            "gaps": [gap.to_json() for gap in self.launch.gaps],
            "notes": list(self.launch.notes),
            **({} if self.onto is None else {"diff": self.diff}),
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each thing that could not be said."""
        return frame_of([gap.to_json() for gap in self.launch.gaps])

    def print_to(self, console: "Console") -> None:
        """Print the main file as it is; without one, the names of the files."""
        text = self.main_text
        if not text and self.onto is None:
            text = "".join(f"{name}\n" for name in self.launch.files)
        console.out(text, end="", highlight=False)

    def contents(self) -> Contents:
        """Return the files."""
        files = dict(self.launch.files)
        said = _said(self.launch)
        if said:
            files[NOTES] = "".join(f"{one}\n" for one in said)
        writers = {name: writer_of(content) for name, content in files.items()}
        if self.onto is not None:
            writers[self.onto.name] = self._write_onto
        return Contents(
            writers=writers,
            manifest={
                "scenario": self.scenario.name,
                "format": self.format,
                "gaps": [gap.to_json() for gap in self.launch.gaps],
            },
        )

    def _write_onto(self, path: Path) -> None:
        """Write the changed file; a script that can be started stays one."""
        assert self.onto is not None
        writer_of(self.launch.files[self.onto.name])(path)
        path.chmod(self.onto.stat().st_mode & 0o777)

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ImportReport(Report):
    """A scenario that was read of a launch configuration."""

    imported: ImportedScenario
    """The scenario, and what was assumed."""

    @property
    def scenario(self) -> Scenario:
        """The scenario: what the other functions take."""
        return self.imported.scenario

    @property
    def text(self) -> str:
        """The scenario as TOML; its first lines list what was assumed."""
        return self.scenario.text.decode()

    @property
    def succeeded(self) -> bool:
        """Always: what cannot be read is refused."""
        return True

    def facts(self) -> dict[str, Any]:
        """Return which scenario it is, and how much was assumed."""
        return {
            "scenario": self.scenario.name,
            "has_plan": self.scenario.plan is not None,
            "num_assumptions": len(self.imported.assumptions),
            "num_options_read": len(self.imported.options.read),
            "num_options_assumed": len(self.imported.options.assumed),
            "num_options_without_effect": len(self.imported.options.without_effect),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario's tables, what was assumed, and each option's effect."""
        return {
            "scenario": self.scenario.document(),
            "assumptions": list(self.imported.assumptions),
            "options": self.imported.options.to_json(),
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each assumption."""
        return frame_of([{"assumption": one} for one in self.imported.assumptions])

    def print_to(self, console: "Console") -> None:
        """Print the scenario as it is."""
        console.out(self.text, end="", highlight=False)


def export(  # noqa: PLR0913 - one for each thing that is given
    source: ScenarioSource,
    to: str | None = None,
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    onto: str | os.PathLike[str] | None = None,
    given: Mapping[str, Any] | None = None,
    trust_code: bool = False,
    progress: ProgressTarget = None,
) -> ExportReport:
    """Write a plan as the launch configuration of a framework.

    Parameters
    ----------
    source
        A scenario, the path of its file, a dictionary, or a folder of results.
    to
        Name of the format, one of `nestsim.launch.registry.WRITERS`; None for that of
        the scenario's framework, or of ``onto``.
    plan
        A plan, or the path of one in JSON; None for the plan of the folder of results,
        or of the scenario's table [plan].
    onto
        A launch file of yours: of it only what the plan asks for otherwise is changed,
        and the file itself stays as it is. `ExportReport.diff` shows what.
    given
        What stands beside that file, as `import_launch` takes it.
    trust_code
        Whether the Python file that the scenario of a folder of results names as its
        ``module`` may be run: do so where you know what is in it. One that a scenario
        of your own names is run.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If there is no such format, or the plan does not go with the scenario. What the
        format cannot express is no error: `ExportReport.launch` lists it.
    """
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        folder = Path(source)
        source = load_scenario(folder / SCENARIO, trust_code=trust_code)
        plan = folder / PLAN if plan is None else plan
    loaded = scenario_from(source)
    chosen = PRESET_FORMATS[loaded.software_preset] if to is None else to
    find_writer(chosen)
    diff = ""
    name = "plan"
    if plan is not None and not isinstance(plan, Plan):
        name, plan = str(plan), read_plan(Path(plan))
    with calling(progress, loaded.path, loaded.notes) as call:
        job = LaunchJob.of(loaded, plan, source=name, progress=call.progress)
        launch = _written(job, chosen)
    if onto is not None:
        chosen, launch, diff = _put_into(job, Path(onto), to, given)
    if chosen not in WITHOUT_OPTIONS:
        beside = group_files(job, chosen)
        launch = replace(launch, files={**launch.files, **beside})
    return ExportReport(
        scenario=loaded,
        format=chosen,
        launch=launch,
        onto=None if onto is None else Path(onto),
        diff=diff,
        notices=(*call.notices, *_said(launch)),
    )


def _put_into(
    job: LaunchJob, path: Path, to: str | None, given: Mapping[str, Any] | None
) -> tuple[str, LaunchFiles, str]:
    """Return a launch file with a plan put into it: its format, files and changes."""
    changed = changed_launch(job, path, format_name=to, given=given)
    files: dict[str, str | bytes] = dict(changed.files)
    notes = list(changed.beside.notes)
    if changed.diff:
        files[f"{path.name}.diff"] = changed.diff
    else:
        notes.insert(0, f"{path.name} says the plan as it is: nothing has to change.")
    launch = LaunchFiles(
        files={**files, **changed.beside.files},
        gaps=changed.beside.gaps,
        notes=(*notes, *job.sums_in_switches()),
    )
    return changed.format, launch, changed.diff


def launch_snippets(scenario: Scenario, plan: Plan) -> tuple[Snippet, ...]:
    """Return how a plan is launched, to copy from a page of results.

    The configuration of the scenario's framework, and the plan as a scenario has it.
    """
    job = LaunchJob.of(scenario, plan)
    snippets = []
    for name in (PRESET_FORMATS[scenario.software_preset], "plan"):
        launch = _written(job, name)
        snippets += [
            Snippet(name=f"{file} ({name})", text=text)
            for file, text in launch.files.items()
            if isinstance(text, str) and len(text) <= MAX_SNIPPET
        ]
        if snippets and _said(launch):
            last = len(snippets) - 1
            snippets[last] = replace(snippets[last], note=" ".join(_said(launch)))
    return tuple(snippets)


def _written(job: LaunchJob, name: str) -> LaunchFiles:
    """Return the files of a format, with what any launch of the job must know."""
    launch = find_writer(name)(job)
    return replace(
        launch,
        gaps=(*launch.gaps, *_foreign_options(job, name)),
        notes=(*launch.notes, *job.sums_in_switches()),
    )


def _foreign_options(job: LaunchJob, name: str) -> Iterator[LaunchGap]:
    """Yield the options of an imported script that a format does not take."""
    carried = job.scenario.launch
    if carried is None or not carried.options or name in WITHOUT_OPTIONS:
        return
    if carried.format not in TAKES_OPTIONS_OF.get(name, ()):
        yield LaunchGap(
            setting="launch.options",
            value=", ".join(carried.options),
            reason=f"They are of {carried.format}, and do not come along: give here "
            "what matters to the model that is trained.",
        )


def _said(launch: LaunchFiles) -> tuple[str, ...]:
    """Return what the files do not say, and what users must know, a sentence each."""
    return (*(f"Not expressed: {gap}" for gap in launch.gaps), *launch.notes)


def import_launch(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - what users call it
    given: Mapping[str, Any] | None = None,
    cluster: ScenarioSource | None = None,
    accelerator: str | None = None,
    saved_as: str | os.PathLike[str] | None = None,
) -> ImportReport:
    """Read a launch configuration as a scenario with its plan.

    Parameters
    ----------
    path
        The file: a shell script, log or checkpoint of Megatron-LM, a recipe or YAML of
        NeMo or Megatron Bridge, an experiment of Primus, a script of slime or verl, a
        configuration of torchtitan, GPT-NeoX, DeepSpeed or MaxText, a log of torchtitan
        or MaxText, a Hugging Face ``config.json``.
    format
        Name of the format, one of `nestsim.launch.registry.READERS`; None to tell it by
        the file.
    given
        What stands beside the file, under names of `nestsim.launch.read.LaunchSource`:
        ``model``, ``num_devices``, ``variables``.
    cluster
        A scenario whose cluster the job runs on; None for one that is assumed.
    accelerator
        Name in the catalogue, where no cluster is given.
    saved_as
        Where the scenario is going to be kept: messages call it so, and its files are
        found from there; None for ``path``.

    Raises
    ------
    InputError
        If the file cannot be read, or makes no scenario. The message names the file.
    """
    file = Path(path)
    on = None if cluster is None else scenario_from(cluster)
    try:
        text = stored_arguments(file)
        if text is None:
            text = read_text(
                file, expected="a launch configuration", most_bytes=MAX_FILE
            )
        source = LaunchSource(path=file, text=text, **(given or {}))
        reader = find_reader(source, format)
        job = reader.read(source)
    except InputError as error:
        raise error.at(str(file), separator=": ") from None
    imported = imported_scenario(
        job,
        file if saved_as is None else Path(saved_as),
        origin=f"{file.name}, {reader.title}",
        cluster=on,
        accelerator=accelerator,
    )
    assumed = tuple(f"Assumed: {one}" for one in imported.assumptions)
    return ImportReport(imported=imported, notices=assumed)
