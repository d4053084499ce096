"""``nestsim check``: scenario files read, and nothing more."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from nestsim.commands.task import Reply, Task, known
from nestsim.document.wording import plural
from nestsim.features.jobs.scenario import JobsScenario
from nestsim.scenario.load import MAX_FILE, load_scenario
from topologies.errors import InputError, Problems
from topologies.input_file import parse_toml, read_file


def check_task(files: Sequence[Path], trust_code: bool) -> Task:
    """Return the task of saying that scenarios are right.

    Raises
    ------
    InputError
        With everything that is wrong in any of them.
    """
    problems, names = Problems(), {}
    for file in files:
        with problems.noted():
            names[str(file)] = _name(file, trust_code)
    problems.refuse()
    return known(
        Reply(record=lambda: {"files": names}, text=partial(_print, list(names)))
    )


def _name(file: Path, trust_code: bool) -> str:
    """Return the name of a scenario that is right, of one job or of several."""
    models = _models(file)
    if not trust_code and any("module" in model for model in models):
        raise InputError(
            "would run a Python file that the scenario names",
            where=f"{file}: {'jobs' if len(models) > 1 else 'model.module'}",
            expected="--trust-code, if you know what the file does",
        )
    if len(models) > 1:
        return JobsScenario.from_file(file).name
    return load_scenario(file, trust_code=trust_code).name


def _models(file: Path) -> list[Mapping[str, Any]]:
    """Return the tables [model] of a file, and behind it those of its jobs.

    What cannot be read is left to the reader of scenarios, who says what is wrong.
    """
    if file.suffix != ".toml":
        return []
    try:
        text = read_file(file, expected="a scenario", most_bytes=MAX_FILE)
        document = parse_toml(text)
    except InputError:
        return []
    jobs = document.get("jobs", [])
    tables = [document, *jobs] if isinstance(jobs, list) else [document]
    models = [table.get("model", {}) for table in tables if isinstance(table, dict)]
    return [model for model in models if isinstance(model, dict)]


def _print(files: Sequence[str], console: Console) -> None:
    number = plural(len(files), "scenario")
    console.print(f"{number}: nothing is wrong", soft_wrap=True)
