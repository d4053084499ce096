"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ScenarioFile = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help="A scenario file (TOML).")
]

ScenarioFiles = Annotated[
    list[Path], typer.Argument(metavar="SCENARIO", help="Scenario files (TOML).")
]

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables, in SI units.")
]

Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="No progress and no notes; results and errors only."
    ),
]

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Write there even if nestsim did not make what is there; files of the "
        "names that it writes are replaced, all others stay.",
    ),
]

NoFigures = Annotated[
    bool,
    typer.Option(
        "--no-figures", help="Draw no figures: they take most of a small job's time."
    ),
]
