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
        "--force", help="Write into the folder even if it holds files of other origin."
    ),
]

NoFigures = Annotated[
    bool,
    typer.Option(
        "--no-figures", help="Draw no figures: they take most of a small job's time."
    ),
]
