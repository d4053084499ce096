"""How a command is run: read its options, take hold of its folder, call, note, print.

One way for all: what a command does otherwise stands in its description. Results go to
standard output, notes to standard error.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from nestsim.cli.streams import silence
from nestsim.commands.task import FileOutput, Printable, Task
from nestsim.document.dumps import dump_json
from nestsim.document.folder import (
    ResultsFolder,
    check_file,
    claimed_folder,
    replace_file,
    writer_of,
)
from nestsim.registry import Command, chosen
from nestsim.running.progress import sentences_of, shown_progress, tell
from planner.work import Progress
from topologies.errors import InputError, import_extra, located
from topologies.notices import gathered_notices

PIPE_WIDTH = 120
"""Columns where there is no terminal that could say."""


class ResultConsole(Console):
    """Standard output; a reader that has left does not change the exit status."""

    def on_broken_pipe(self) -> None:
        """Stop writing."""
        self.quiet = True
        silence(sys.stdout)


def note(text: str, *, quiet: bool = False) -> None:
    """Tell the user something that is not a result."""
    if not quiet:
        tell(f"{text}\n")


def note_all(sentences: Sequence[str], *, quiet: bool) -> None:
    """Tell the user what a result has to say of how it came about."""
    for sentence in sentences:
        note(sentence, quiet=quiet)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress | None]:
    """Show progress, and say afterwards what users should know.

    Parameters
    ----------
    quiet
        Show nothing, and yield None.
    """
    with gathered_notices() as gathered, shown_progress(not quiet) as progress:
        yield progress
    note_all(sentences_of(gathered), quiet=quiet)


@contextmanager
def working(doing: str, *, quiet: bool) -> Iterator[None]:
    """Show that something is being done that does not report on itself."""
    with progress_bar(quiet=quiet) as progress:
        if progress is not None:
            progress(doing, None)
        yield


def result_console() -> ResultConsole:
    """Return standard output; in a pipe or a file, wide enough for every table."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return ResultConsole(width=width, highlight=False, soft_wrap=False)


Given = Mapping[str, Any]
"""Value of each option by its target."""


def run_command(command: Command, typed: Given) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    command
        What to run.
    typed
        Value of each option by its target, as it was typed.

    Raises
    ------
    InputError
        If something that was typed, or that it names, is wrong.
    """
    given = _read(command, typed)
    if command.has("--system"):
        given |= _made(given)
    form = _form(command, given)
    with ExitStack() as stack:
        with progress_bar(quiet=_is_quiet(given) or not _tells(command)) as progress:
            tasks = _tasks(command, {**given, "progress": progress})
        context: dict[str, Any] = {}
        if command.within:
            context = stack.enter_context(command.apply(command.within, given))
        claimed = stack.enter_context(_claimed(tasks, given))
        status = 0
        for task, folder in zip(tasks, claimed, strict=True):
            if command.has("--restart"):
                context["keep_in"] = None if folder is None else folder.path
                context["restart"] = given["restart"]
            answer = _answer(task, folder, given, context)
            if form is not None:
                typer.echo(form(answer), nl=False)
            elif task.prints:
                _print(answer, given)
            status = max(status, 0 if answer.succeeded else 1)
    return status


def _is_quiet(given: Given) -> bool:
    """Return whether progress is not shown: also where there is no option for it."""
    return bool(given.get("quiet", True))


def _tells(command: Command) -> bool:
    """Return whether making its tasks takes so long that it shows progress."""
    name = command.task or command.arguments
    return bool(name and chosen(command.function(name), {"progress": None}))


def _read(command: Command, typed: Given) -> dict[str, Any]:
    """Return the values of options, read."""
    given = dict(typed)
    for option in command.options:
        value = given[option.target]
        if option.is_list and value is None:
            value = given[option.target] = []
        if option.read and value is not None:
            try:
                given[option.target] = command.function(option.read)(value)
            except InputError as error:
                raise error.at(option.name, ": ") from None
    return given


WORDS = ("model", "gpus", "system", "framework", "batch", "seq", "prices", "save")
"""Options that make a scenario of a few words."""


def _made(given: Given) -> dict[str, Any]:
    """Return the scenario that options say in a few words, None with a file.

    Raises
    ------
    InputError
        If there is both or too little of one.
    """
    words = {f"--{name}": given[name] for name in WORDS if given[name] is not None}
    file = given.get("scenario") or given.get("scenarios")
    if not words:
        if file or "nest_instance" in given:
            return {"made": None}
        raise InputError(
            "nothing says what to look at",
            where="SCENARIO",
            expected="a scenario file, or --model, --gpus and --system",
        )
    if file:
        raise InputError(
            "does not go with a scenario file",
            where=next(iter(words)),
            got=" ".join(words),
            expected="either a scenario file or these options",
        )
    missing = [name for name in ("--model", "--gpus", "--system") if name not in words]
    if missing:
        raise InputError(
            "is missing",
            where=missing[0],
            got=" ".join(words),
            expected="--model, --gpus and --system together",
        )
    from nestsim.scenario.one_line import HEADING, scenario_of

    save: Path | None = given["save"]
    made = scenario_of(
        given["model"],
        given["gpus"],
        given["system"],
        framework=given["framework"],
        batch=given["batch"],
        sequence_length=given["seq"],
        prices=given["prices"],
        path=save,
    )
    if save is not None:
        with located("--save", ": "):
            begins = HEADING.encode()
            check_file(
                save,
                lambda content: content.startswith(begins),
                force=bool(given.get("force")),
            )
            replace_file(save, writer_of(made.text))
        note(f"The scenario is in {save}", quiet=_is_quiet(given))
    return {"made": made}


def _form(command: Command, given: Given) -> Any:
    """Return what makes the text that is printed instead of tables and JSON, if any."""
    for option in command.options:
        if option.form and given[option.target]:
            if given["json"]:
                raise InputError(
                    "results are printed in one form",
                    where=option.name,
                    got=f"--json {option.name}",
                    expected="one of the two",
                )
            return command.function(option.form)
    return None


def _tasks(command: Command, given: Given) -> Sequence[Task]:
    """Return what is to be done, one task for each folder of results."""
    if command.task:
        tasks = command.apply(command.task, given)
        return (tasks,) if isinstance(tasks, Task) else tasks
    loaded = _loaded(command, given)
    passed = dict(given)
    if command.arguments:
        passed |= command.apply(command.arguments, {**given, "loaded": loaded})
    call = command.function(command.call)
    passed = chosen(call, passed)
    del passed["scenario"], passed["progress"]
    paths = [value for value in passed.values() if isinstance(value, Path)]
    return (
        Task(
            call=partial(call, loaded, **passed),
            inputs=[*loaded.files(), *paths],
            folder=results_path(command, given),
            files=command.files,
        ),
    )


def _loaded(command: Command, given: Given) -> Any:
    """Return the scenario, those of its settings replaced that options replace."""
    from nestsim.commands.calls import with_settings
    from nestsim.scenario.load import load_scenario

    load = command.function(command.load) if command.load else load_scenario
    loaded = given.get("made") or load(given["scenario"])
    settings = {
        option.key: (option.name, None if value == option.absent else value)
        for option in command.options
        # A switch that is not given leaves what the scenario says.
        if option.key
        and (value := given[option.target]) not in (None, [], {})
        and value is not False
    }
    return with_settings(loaded, settings) if settings else loaded


def results_path(command: Command, given: Given) -> Path | None:
    """Return the folder of results; None for none."""
    output: Path | None = given.get("output")
    is_silent = given["json"] and not command.always_writes
    if output is not None or not command.suffix or is_silent:
        return output
    return Path("results") / f"{given['scenario'].stem}{command.suffix}"


def _answer(
    task: Task,
    folder: ResultsFolder | None,
    given: Given,
    context: Mapping[str, Any],
) -> Printable:
    """Do a task, say what there is to say, and write what it writes."""
    quiet = _is_quiet(given)
    if task.file is not None and not task.file.is_added:
        with about_output():
            check_file(
                task.file.path,
                task.file.is_ours,
                inputs=task.inputs,
                force=given["force"],
            )
    with progress_bar(quiet=quiet) as progress:
        answer = task.call(progress=progress, **context)
    note_all(answer.notices, quiet=quiet)
    if folder is not None:
        _write(answer, folder, task, given)
    if task.file is not None:
        _write_file(task.file, answer, quiet=quiet, force=given["force"])
    return answer


def _write(report: Printable, folder: ResultsFolder, task: Task, given: Given) -> None:
    """Write a folder of results, and say where it is."""
    from nestsim.commands.report import FolderReport

    assert isinstance(report, FolderReport)
    quiet = given["quiet"]
    if not report.written.files:
        return
    with about_output(), progress_bar(quiet=quiet) as progress:
        report.write_to(
            folder,
            figures=not given.get("no_figures"),
            html=bool(given.get("html")),
            progress=progress,
        )
    note(f"Results are in {task.folder}", quiet=quiet)


def _write_file(
    file: FileOutput, answer: Printable, *, quiet: bool, force: bool
) -> None:
    """Write the one file of a command, and say where it is."""
    write = file.writer(answer)
    shown = working(file.doing, quiet=quiet) if file.doing else nullcontext()
    if file.is_added:
        place = file.path.parent
        with claimed_folder(place, [file.path.name], force=force) as claimed:
            claimed.add(file.path.name, write)
    else:
        with about_output(), shown:
            replace_file(file.path, write)
    note(f"{file.title} {file.path}", quiet=quiet)


def _print(answer: Printable, given: Given) -> None:
    """Print what was found, for people or for programs."""
    if given.get("json"):
        typer.echo(dump_json(answer.printed_dict()), nl=False)
    else:
        answer.print_to(result_console(), verbose=bool(given.get("verbose")))


@contextmanager
def _claimed(
    tasks: Sequence[Task], given: Given
) -> Iterator[list[ResultsFolder | None]]:
    """Take hold of all folders of results, before hours of work.

    Raises
    ------
    InputError
        If one cannot be written into, or a page has none.
    """
    folders = [task.folder for task in tasks]
    if given.get("html") is True and None in folders:
        raise InputError(
            "the page is written into a folder of results, and there is none",
            where="--html",
            expected="--output FOLDER beside it",
        )
    if given.get("html") is True:
        from nestsim.document.drawing import PAGES

        import_extra(*PAGES, where="--html")
    inputs = [file for task in tasks for file in task.inputs]
    with ExitStack() as stack:
        claimed: dict[Path, ResultsFolder] = {}
        for task in tasks:
            if task.folder is None:
                continue
            claim = claimed_folder(
                task.folder, task.files, inputs=inputs, force=given["force"]
            )
            with about_output():
                claimed[task.folder] = stack.enter_context(claim)
        try:
            yield [None if place is None else claimed[place] for place in folders]
        except BaseException as error:
            # Whatever a library has made of a signal: only stops print their notes.
            if claimed:
                error.add_note(_left_behind(claimed))
            raise


def _left_behind(claimed: Mapping[Path, ResultsFolder]) -> str:
    """Say what was written before an interruption, and how to go on."""
    written = [str(place) for place, held in claimed.items() if held.is_written]
    begun = [
        str(place)
        for place, held in claimed.items()
        if not held.is_written and held.stores()
    ]
    others = [str(place) for place in claimed if str(place) not in {*written, *begun}]
    sentences = []
    if written:
        sentences.append(f"Results are in {_some(written)}.")
    if begun:
        sentences.append(
            f"Finished points are kept in {_some(begun)}; the same command, without "
            "--restart, goes on from there."
        )
    if others:
        sentences.append(f"Nothing was written to {_some(others)}.")
    return " ".join(sentences)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} others" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@contextmanager
def about_output() -> Iterator[None]:
    """Say that a mistake is in what ``--output`` names."""
    try:
        yield
    except InputError as error:
        raise error.at("--output", ": ") from None
