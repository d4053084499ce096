"""The whole surface of the command line: fails when an option appears or goes.

Options say where and how loud; what is computed stands in the scenario. Whoever adds
one changes this list, and thinks about that.
"""

import inspect
from importlib import import_module
from typing import Any

import typer.main

import nestsim
from nestsim.cli.app import app
from nestsim.registry import COMMANDS, Command, chosen

READ_BY_ALL = {
    "json",
    "quiet",
    "force",
    "html",
    "no_figures",
    "output",
    "restart",
    "verbose",
    *("model", "gpus", "system", "framework", "batch", "seq", "prices", "save"),
}
"""Options that the runner itself reads."""

WRITES = ("--force", "--json", "--no-figures", "--output", "--quiet", "-o", "-q")
FILES = ("--force", "--json", "--output", "--quiet", "-o", "-q")
WORDS = (
    "--model",
    "--gpus",
    "--system",
    "--framework",
    "--batch",
    "--seq",
    "--prices",
    "--save",
)
RATES = ("--bandwidth", "--nic-bandwidth", "--ranks")

SURFACE = {
    "": ["--help", "--install-completion", "--show-completion", "--version", "-h"],
    "run": [
        *(*WRITES, *WORDS, "--certificate", "--html", "--markdown", "--verbose", "-v"),
        "SCENARIO...",
    ],
    "advise": [
        *(*FILES, "--verbose", "-v", "--model", "--cluster", "--accelerator"),
        *("--num-devices", "--set", "--no-search", "--trust-code", "JOB"),
    ],
    "report": [
        *("--force", "--output", "--quiet", "--scenario", "--trust-code", "-o", "-q"),
        "FOLDER",
    ],
    "plan": [
        *WORDS,
        *("--explain", "--json", "--nest-instance", "--quiet", "--score", "--verbose"),
        *("--certificate", "--force", "-q", "-v"),
        "SCENARIO",
    ],
    "simulate": [
        *(*WRITES, "--html", "--markdown", "--verbose", "-v", "--plan", "SCENARIO")
    ],
    "memory": [
        *WORDS,
        *(*WRITES, "--cp", "--dp", "--ep", "--explain", "--micro-batch", "--pp"),
        *("--recompute", "--tp", "--zero", "SCENARIO"),
    ],
    "compare": [
        *(*WRITES, "--base", "--equal", "--executor", "--html", "--networks"),
        *("--planners", "--restart", "--scheduler", "--space", "--time-limit"),
        *("--workers", "SCENARIO..."),
    ],
    "stress": [
        *(*WRITES, "--executor", "--html", "--keep", "--level", "--oversubscription"),
        *("--planners", "--restart", "--scheduler", "--workers", "SCENARIO"),
    ],
    "goodput": [
        *(
            *WRITES,
            "--duration",
            "--fit",
            "--html",
            "--interval",
            "--seeds",
            "--spares",
        ),
        "SCENARIO",
    ],
    "jitter": [
        *(*WRITES, "--executor", "--html", "--runs", "--scheduler", "--seed"),
        *("--workers", "SCENARIO"),
    ],
    "rl": [*WRITES, "--html", "--placement", "--schedule", "SCENARIO"],
    "sites": [*WRITES, "--bandwidth", "--html", "--sync-every", "SCENARIO"],
    "sweep": [
        *(*WRITES, "--csv", "--executor", "--html", "--restart", "--scheduler"),
        *("--set", "--what", "--workers", "SCENARIO"),
    ],
    "serve": [
        *("--certificate", "--cpu-limit", "--host", "--memory-limit"),
        *("--most-devices", "--most-waiting", "--output", "--port", "--store"),
        *("--token-file", "--trust-code", "--workers", "-o"),
    ],
    "jobs": [*WRITES, "--ecmp-seeds", "--html", "--shifts", "FILE"],
    "diff": [
        *("--force", "--html", "--json", "--quiet", "--trust-code", "-q", "A", "B")
    ],
    "export": [
        *(*FILES, "--onto", "--scenario", "--set", "--to", "--trust-code", "SOURCE")
    ],
    "import": [
        *(*FILES, "--accelerator", "--cluster", "--from", "--model", "--num-devices"),
        *("--set", "FILE"),
    ],
    "validate": [*WRITES, "--markdown", "FILE"],
    "calibrate": [*FILES, "--peak", "--stage", "MEASUREMENTS"],
    "collectives": [
        *(*WRITES, "--max-bytes", "--min-bytes", "--step-factor", "-b", "-e", "-f"),
        "SCENARIO",
    ],
    "verify": ["--json", "--quiet", "--replays", "--trust-code", "-q", "FILE"],
    "topology": [*WRITES, "SCENARIO"],
    "check": ["--json", "--quiet", "--trust-code", "-q", "FILE..."],
    "models": ["--json"],
    "accelerators": ["--json"],
    "systems": ["--json"],
    "profile": [*FILES, "--budget", "--check", "--device", "--quick"],
    "profile-links": [*FILES, *RATES, "--budget", "--device", "--quick"],
    "jitter-fit": [*FILES, "TIMES"],
    "profile-logs": [*FILES, *RATES, "--nodes", "LOG..."],
    "schema": ["--of"],
}


def words(command: Any) -> list[str]:
    """Return the options and arguments of a command."""
    found = []
    for parameter in command.params:
        if parameter.param_type_name == "option":
            found += [*parameter.opts, *parameter.secondary_opts]
        else:
            found.append(parameter.metavar + ("..." if parameter.nargs == -1 else ""))
    return sorted(found)


def test_every_command_and_option_is_listed_here() -> None:
    group = typer.main.get_command(app)
    surface = {"": words(group)}
    surface |= {name: words(one) for name, one in group.commands.items()}  # type: ignore[attr-defined]
    surface[""] = sorted({*surface[""], "-h", "--help"})
    assert surface == {name: sorted(known) for name, known in SURFACE.items()}


def _functions(command: Command) -> list[str]:
    """Return the functions that take options."""
    named = (command.task, command.arguments, command.within)
    return [name for name in (*named, "" if command.task else command.call) if name]


def test_every_function_that_a_description_names_is_there() -> None:
    for command in COMMANDS:
        names = [*_functions(command), command.load]
        names += [name for one in command.options for name in (one.read, one.form)]
        names += [] if command.stored is None else [command.stored.document]
        missing = [name for name in names if name and not command.function(name)]
        assert missing == [], command.name


def test_somebody_takes_every_option() -> None:
    """Of each command: its call, its task, the scenario, or the runner."""
    for command in COMMANDS:
        given = dict.fromkeys(option.target for option in command.options)
        taken = {*READ_BY_ALL}
        for name in _functions(command):
            taken |= chosen(command.function(name), given).keys()
        lost = [
            option.name
            for option in command.options
            if option.target not in taken and not (option.key or option.form)
        ]
        assert lost == [], command.name


def test_nothing_is_asked_of_a_command_that_it_has_no_option_for() -> None:
    """Functions take options, what the runner adds, or have a default."""
    added = {"loaded", "progress", "made"}
    for command in COMMANDS:
        known = {option.target for option in command.options} | added
        for name in _functions(command):
            for parameter in inspect.signature(command.function(name)).parameters:
                of_call = name == command.call or parameter in known
                assert of_call, f"{command.name}: {name} takes {parameter}"


def test_python_has_every_call_under_its_name() -> None:
    for command in COMMANDS:
        if command.call:
            home = import_module(command.module)
            assert getattr(nestsim, command.call) is getattr(home, command.call)
