"""Plans written as launch configurations, and launch configurations read as scenarios.

What is written says in words what it could not say; what is read lists what was
assumed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from nestsim.commands.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    plan_of,
    scenario_from,
)
from nestsim.commands.report import FolderReport, Parts, Report
from nestsim.commands.task import FileOutput, Task
from nestsim.document.folder import Writer, writer_of
from nestsim.document.parts import Snippet
from nestsim.launch.formats.trainers.reading import stored_arguments
from nestsim.launch.job import LaunchFiles, LaunchGap, LaunchJob
from nestsim.launch.onto.merging import changed_launch
from nestsim.launch.read import ImportedScenario, LaunchSource, imported_scenario
from nestsim.launch.readers import find_reader
from nestsim.launch.registry import (
    PRESET_FORMATS,
    TAKES_OPTIONS_OF,
    WITHOUT_OPTIONS,
    find_writer,
    group_files,
)
from nestsim.scenario.hardware.systems import load_system, names_system
from nestsim.scenario.load import Scenario, load_scenario
from planner.step.plan import Plan
from planner.work import Progress
from topologies.errors import InputError, located
from topologies.input_file import read_text

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

    def print_to(self, console: Console, *, verbose: bool = False) -> None:  # noqa: ARG002
        """Print the main file as it is; without one, the names of the files."""
        text = self.main_text
        if not text and self.onto is None:
            text = "".join(f"{name}\n" for name in self.launch.files)
        console.out(text, end="", highlight=False)

    def parts(self) -> Parts:
        """Return the files, and a row for each thing that they could not say."""
        launch, sentences = self.launch, _sentences(self.launch)
        files: dict[str, str | bytes | Writer] = dict(launch.files)
        if sentences:
            files[NOTES] = "".join(f"{sentence}\n" for sentence in sentences)
        if self.onto is not None:
            files[self.onto.name] = self._write_onto
        gaps = [gap.to_json() for gap in launch.gaps]
        about = {"scenario": self.scenario.name, "format": self.format}
        return Parts(
            record={
                **about,
                "files": {
                    name: content if isinstance(content, str) else None
                    for name, content in launch.files.items()
                },
                "gaps": gaps,
                "notes": list(launch.notes),
                **({} if self.onto is None else {"diff": self.diff}),
            },
            rows=gaps,
            files=files,
            manifest={**about, "gaps": gaps},
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

    def parts(self) -> Parts:
        """Return the scenario's tables, what was assumed, and each option's effect."""
        assumptions = self.imported.assumptions
        return Parts(
            record={
                "scenario": self.scenario.document(),
                "assumptions": list(assumptions),
                "options": self.imported.options.to_json(),
            },
            rows=[{"assumption": assumption} for assumption in assumptions],
        )

    def print_to(self, console: Console, *, verbose: bool = False) -> None:  # noqa: ARG002
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
    given_plan, name = plan_of(plan)
    with calling(progress, loaded.path, loaded.notes) as call:
        job = LaunchJob.of(loaded, given_plan, source=name, progress=call.progress)
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
        notices=(*call.notices, *_sentences(launch)),
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
        if snippets and _sentences(launch):
            last = len(snippets) - 1
            snippets[last] = replace(snippets[last], note=" ".join(_sentences(launch)))
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


def _sentences(launch: LaunchFiles) -> tuple[str, ...]:
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
        NeMo, NeMo RL or Megatron Bridge, an experiment of Primus, a script of slime or
        verl, a YAML of verl, a configuration of torchtitan, GPT-NeoX, DeepSpeed or
        MaxText, a log of torchtitan or MaxText, a Hugging Face ``config.json``.
    format
        Name of the format, one of `nestsim.launch.readers.READERS`; None to tell it by
        the file.
    given
        What stands beside the file, under names of `nestsim.launch.read.LaunchSource`:
        ``model``, ``num_devices``, ``variables``.
    cluster
        A scenario whose cluster the job runs on, or the name of a system; None for one
        that is assumed.
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
    on = None if cluster is None else _cluster(cluster)
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
    assumed = tuple(f"Assumed: {text}" for text in imported.assumptions)
    return ImportReport(imported=imported, notices=assumed)


def _cluster(given: ScenarioSource) -> Scenario | str:
    """Return the scenario of a cluster, or the name of a system."""
    if names_system(given):
        return str(given)
    if isinstance(given, str | os.PathLike):
        place = Path(given)
        if not place.suffix and not place.exists():
            with located("--cluster", ": "):
                load_system(str(given))
    return scenario_from(given)


def cluster_files(given: Path | None) -> list[Path]:
    """Return the file of a cluster, if it is one."""
    return [] if given is None or names_system(given) else [given]


def parsed_variables(values: Sequence[str]) -> dict[str, str]:
    """Return the values of variables by name.

    Raises
    ------
    InputError
        If one is no ``NAME=VALUE``.
    """
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not (name.isidentifier() or name.isdecimal()) or not equals:
            raise InputError(
                "is not the value of a variable",
                got=name + equals,
                expected="NAME=VALUE, such as --set NNODES=8",
            )
    return {name: value for name, _, value in pairs}


def export_task(  # noqa: PLR0913, PLR0917 - one for each option
    source: Path,
    to: str | None,
    scenario: Path | None,
    onto: Path | None,
    variables: dict[str, str],
    output: Path | None,
    trust_code: bool,
    json: bool,
    progress: Progress | None,
) -> Task:
    """Return the task of writing a plan, whose files are made already."""
    if to is not None:
        find_writer(to)
    if variables and onto is None:
        raise InputError(
            "is for a script that takes variables from outside",
            where="--set",
            got=next(f"{name}={value}" for name, value in variables.items()),
            expected="--onto FILE beside it",
        )
    file, plan = _export_parts(source, scenario)
    trusted = trust_code or file in (source, scenario)
    loaded = load_scenario(file, trust_code=trusted)
    given = {"variables": variables}
    report = export(loaded, to, plan=plan, onto=onto, given=given, progress=progress)
    names = list(report.written.files)
    if len(names) > 1 and output is None and not json:
        more = f"--output DIR writes {', '.join(names[1:])}, too"
        report = replace(report, notices=(*report.notices, more))
    return Task(
        call=lambda **_: report,
        inputs=[*loaded.files(), *([] if plan is None else [plan])],
        folder=output,
        files=names,
        prints=output is None or json,
    )


def _export_parts(source: Path, scenario: Path | None) -> tuple[Path, Path | None]:
    """Return the files of the scenario and of the plan, None for its table [plan]."""
    if source.is_dir():
        return scenario or source / SCENARIO, source / PLAN
    if source.suffix.lower() == ".json":
        return scenario or source.with_name(SCENARIO), source
    if scenario is not None:
        raise InputError(
            "is for a plan in JSON or a folder of results",
            where="--scenario",
            got=str(source),
            expected="plan.json or a folder of results as SOURCE",
        )
    return source, None


def import_task(  # noqa: PLR0913, PLR0917 - one for each option
    file: Path,
    format: str | None,  # noqa: A002 - as `import_launch` calls it
    model: str | None,
    cluster: Path | None,
    accelerator: str | None,
    num_devices: int | None,
    variables: dict[str, str],
    output: Path | None,
    json: bool,
) -> Task:
    """Return the task of reading a launch configuration."""
    given = {"model": model, "num_devices": num_devices, "variables": variables}

    def read(**_: object) -> ImportReport:
        return import_launch(
            file,
            format=format,
            given=given,
            cluster=cluster,
            accelerator=accelerator,
            saved_as=output,
        )

    written = FileOutput(
        path=output or Path(),
        is_ours=lambda content: content.startswith(b"# Read of "),
        title="The scenario is in",
        writer=lambda report: lambda path: path.write_bytes(report.scenario.text),
    )
    return Task(
        call=read,
        inputs=[file, *cluster_files(cluster)],
        file=None if output is None else written,
        prints=output is None or json,
    )
