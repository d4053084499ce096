"""The folder of results, for the commands that write one."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nestsim.results import ReplayedResult
    from nestsim.scenario import Scenario


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder that results may not be written into, before hours of work."""
    from nestsim.report.folder import check_target
    from topologies.errors import InputError

    try:
        check_target(folder, force=force)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise InputError(problem, where="--output", got=str(folder)) from None
    except InputError as error:
        raise error.at("--output", ": ") from None


def write_folder(
    result: "ReplayedResult",
    scenario: "Scenario",
    folder: Path,
    *,
    force: bool,
    figures: bool,
    quiet: bool,
) -> None:
    """Write the folder of results and say where it is."""
    from nestsim.cli.output import note, progress_bar
    from nestsim.report.folder import write_results
    from topologies.errors import InputError

    try:
        with progress_bar(quiet=quiet) as progress:
            written = write_results(
                result,
                scenario.text,
                folder,
                force=force,
                figures=figures,
                progress=progress,
            )
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot be written: {reason}", where="--output", got=str(folder)
        ) from None
    note(f"Results are in {written}", quiet=quiet)
