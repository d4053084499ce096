"""``nestsim report``: a page about a folder of results."""

from pathlib import Path
from typing import Annotated

import typer

from nestsim.cli.console.results import Force, Quiet, TrustCode

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="A folder of results of `nestsim run` or `nestsim simulate`.",
    ),
]

PageFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the page there. Default: page.html in the folder.",
        show_default=False,
    ),
]

ScenarioFile = Annotated[
    Path | None,
    typer.Option(
        "--scenario",
        metavar="FILE",
        help="The scenario where it was, if it names files beside it. Default: its "
        "copy in the folder.",
        show_default=False,
    ),
]


def report(
    folder: Folder,
    output: PageFile = None,
    scenario: ScenarioFile = None,
    trust_code: TrustCode = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write results into one HTML file to look at and to send.

    The page needs no server and no network. The folder says what was found; the plan
    is replayed anew for the figures, which must give the same times as before. With
    `--html`, `nestsim run` and `nestsim simulate` write the same page at once. Code
    that the scenario of a folder names runs only with --trust-code.

    Example: `nestsim report results/llama2_7b_64_h100`
    """
    from nestsim.cli.console.output import note, note_all, progress_bar
    from nestsim.cli.console.results import check_output_file, write_output_file
    from nestsim.document.folder import PAGE, claimed_folder, writer_of
    from nestsim.document.html import is_page
    from nestsim.face.folder import report_page

    if output is not None:
        inputs = [] if scenario is None else [scenario]
        check_output_file(output, is_page, inputs=inputs, force=force)
    with progress_bar(quiet=quiet) as progress:
        page = report_page(
            folder, scenario=scenario, trust_code=trust_code, progress=progress
        )
    note_all(page.notices, quiet=quiet)
    write = writer_of(page.to_html())
    if output is not None:
        write_output_file(output, write)
    else:
        with claimed_folder(folder, [PAGE], force=force) as claimed:
            claimed.add(PAGE, write)
    note(f"The page is {output or folder / PAGE}", quiet=quiet)
