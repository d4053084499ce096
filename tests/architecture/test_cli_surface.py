"""The whole surface of the command line: fails when an option appears or goes.

Options say where and how loud; what is computed stands in the scenario. Whoever adds
one changes this list, and thinks about that.
"""

from typing import Any

import typer.main

from nestsim.cli.app import app

SURFACE = {
    "": ["--help", "--install-completion", "--show-completion", "--version", "-h"],
    "run": [
        *("--force", "--html", "--json", "--no-figures", "--output", "--quiet"),
        *("--verbose", "-o", "-q", "-v", "SCENARIO..."),
    ],
    "report": [
        *("--force", "--output", "--quiet", "--scenario", "--trust-code", "-o", "-q"),
        "FOLDER",
    ],
    "plan": [
        *("--explain", "--json", "--nest-instance", "--quiet", "--score", "-q"),
        *("--verbose", "-v", "SCENARIO"),
    ],
    "simulate": [
        *("--force", "--html", "--json", "--no-figures", "--output", "--plan"),
        *("--quiet", "--verbose", "-o", "-q", "-v", "SCENARIO"),
    ],
    "memory": [
        *("--cp", "--dp", "--ep", "--explain", "--force", "--json", "--micro-batch"),
        *("--no-figures", "--output", "--pp", "--quiet", "--recompute", "--tp"),
        *("--zero", "-o", "-q", "SCENARIO"),
    ],
    "compare": [
        *("--base", "--equal", "--force", "--html", "--json", "--networks"),
        "--no-figures",
        *("--output", "--planners"),
        *(
            "--quiet",
            "--restart",
            "--space",
            "--time-limit",
            "--workers",
            "-o",
            "-q",
            "SCENARIO...",
        ),
    ],
    "stress": [
        *("--executor", "--force", "--html", "--json", "--keep", "--level"),
        *("--no-figures", "--output", "--oversubscription", "--planners", "--quiet"),
        *("--restart", "--scheduler", "--workers", "-o", "-q", "SCENARIO"),
    ],
    "goodput": [
        *("--duration", "--force", "--html", "--interval", "--json", "--no-figures"),
        *("--output", "--quiet", "--seeds", "--spares", "-o", "-q", "SCENARIO"),
    ],
    "jitter": [
        *("--force", "--html", "--json", "--no-figures", "--output", "--quiet"),
        *("--runs", "--seed", "--workers", "-o", "-q", "SCENARIO"),
    ],
    "sweep": [
        *("--csv", "--executor", "--force", "--html", "--json", "--no-figures"),
        *("--output", "--quiet", "--restart", "--scheduler", "--set", "--what"),
        *("--workers", "-o", "-q", "SCENARIO"),
    ],
    "jobs": [
        *("--ecmp-seeds", "--force", "--html", "--json", "--no-figures", "--output"),
        *("--quiet", "-o", "-q", "FILE"),
    ],
    "diff": ["--json", "A", "B"],
    "export": [
        *("--force", "--json", "--onto", "--output", "--quiet", "--scenario", "--set"),
        *("--to", "--trust-code", "-o", "-q", "SOURCE"),
    ],
    "import": [
        *("--accelerator", "--cluster", "--force", "--from", "--json", "--model"),
        *("--num-devices", "--output", "--quiet", "--set", "-o", "-q", "FILE"),
    ],
    "validate": [
        *("--force", "--json", "--markdown", "--no-figures", "--output", "--quiet"),
        *("-o", "-q", "FILE"),
    ],
    "calibrate": [
        "--force",
        "--json",
        "--output",
        "--quiet",
        "-o",
        "-q",
        "MEASUREMENTS",
    ],
    "collectives": [
        *("--force", "--json", "--max-bytes", "--min-bytes", "--no-figures"),
        *("--output", "--quiet", "--step-factor", "-b", "-e", "-f", "-o", "-q"),
        "SCENARIO",
    ],
    "topology": [
        *("--force", "--json", "--no-figures", "--output", "--quiet"),
        *("-o", "-q", "SCENARIO"),
    ],
    "models": ["--json"],
    "accelerators": ["--json"],
    "profile": [
        *("--bandwidth", "--budget", "--check", "--device", "--force", "--json"),
        *("--links", "--nccl-tests", "--nic-bandwidth", "--nodes", "--output"),
        *("--quick", "--quiet", "--ranks", "-o", "-q"),
    ],
    "schema": [],
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
    assert surface == SURFACE
