"""Options that say where points are evaluated."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nestsim.features.sweep.executors.protocol import Executor

EXECUTORS = ("processes", "dask")
"""Values of ``--executor``."""

ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="|".join(EXECUTORS),
        help="Who evaluates points: processes of this machine, or the workers of a "
        "Dask scheduler. Results do not depend on it.",
    ),
]

Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        help="Of --executor dask: the scheduler's address, tcp://host:8786.",
        show_default=False,
    ),
]


@contextmanager
def chosen_executor(
    name: str, scheduler: str | None, *, workers: int | None, quiet: bool
) -> "Iterator[Executor | None]":
    """Give who evaluates points, for a while; None for processes of this machine.

    Parameters
    ----------
    name, scheduler, workers
        Values of ``--executor``, ``--scheduler`` and ``--workers``.
    quiet
        Do not tell of the scheduler.

    Raises
    ------
    InputError
        If they do not go together, or the scheduler cannot be reached.
    """
    from topologies.errors import InputError

    if name not in EXECUTORS:
        raise InputError(
            "unknown choice",
            where="--executor",
            got=name,
            expected=" or ".join(EXECUTORS),
        )
    if name == "processes":
        if scheduler is not None:
            raise InputError(
                "processes of this machine have no scheduler",
                where="--scheduler",
                got=scheduler,
                hint="--executor dask has one",
            )
        yield None
        return
    if scheduler is None:
        raise InputError(
            "--executor dask needs a scheduler",
            where="--scheduler",
            expected="its address, such as tcp://host:8786",
        )
    if workers is not None:
        raise InputError(
            "the workers are those of the scheduler",
            where="--workers",
            got=workers,
            hint="leave it out",
        )
    from nestsim.cli.console.output import note
    from nestsim.features.sweep.executors.dask import DaskWorkers

    with DaskWorkers(scheduler, tell=lambda text: note(text, quiet=quiet)) as executor:
        yield executor
