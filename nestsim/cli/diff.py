"""``nestsim diff``."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.arguments import Json

Before = Annotated[
    Path,
    typer.Argument(
        metavar="A",
        help="A folder of results, or a file with what run, plan or simulate printed "
        "with --json.",
    ),
]

After = Annotated[Path, typer.Argument(metavar="B", help="Another one.")]


def diff(before: Before, after: After, as_json: Json = False) -> None:
    """Show what changed between two results: the plan, and its numbers.

    Settings of the plan that differ, stage by stage, numbers with their absolute and
    relative change, and what only one of the two has. Results of run, simulate and
    plan may be compared with each other.

    Exit status 0 if they are equal, 1 if they differ, 2 if one cannot be read.

    Example: `nestsim diff results/first results/second`
    """
    from nestsim.report.diff import compare_reports, read_report

    found = compare_reports(read_report(before), read_report(after))
    if as_json:
        from nestsim.report.diff_text import diff_json
        from nestsim.report.json import dump_json

        typer.echo(dump_json(diff_json(found)), nl=False)
    else:
        from nestsim.cli.output import result_console
        from nestsim.report.diff_text import print_diff

        print_diff(found, (str(before), str(after)), result_console())
    raise typer.Exit(0 if found.is_empty else 1)
