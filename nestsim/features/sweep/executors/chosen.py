"""Where points are evaluated, as the options of a command choose it."""

from collections.abc import Iterator
from contextlib import contextmanager

EXECUTORS = ("processes", "dask")
"""Values of ``--executor``."""


@contextmanager
def chosen_executor(
    executor: str, scheduler: str | None, workers: int | None, quiet: bool
) -> Iterator[dict[str, object]]:
    """Give who evaluates points as an argument of the call, for a while.

    Parameters
    ----------
    executor, scheduler, workers
        Values of ``--executor``, ``--scheduler`` and ``--workers``.
    quiet
        Do not tell of the scheduler.

    Raises
    ------
    InputError
        If they do not go together, or the scheduler cannot be reached.
    """
    from topologies.errors import InputError

    if executor not in EXECUTORS:
        raise InputError(
            "unknown choice",
            where="--executor",
            got=executor,
            expected=" or ".join(EXECUTORS),
        )
    if executor == "processes":
        if scheduler is not None:
            raise InputError(
                "processes of this machine have no scheduler",
                where="--scheduler",
                got=scheduler,
                hint="--executor dask has one",
            )
        yield {"executor": None}
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
    from nestsim.features.sweep.executors.dask import DaskWorkers
    from nestsim.running.progress import tell

    def note(text: str) -> None:
        if not quiet:
            tell(f"{text}\n")

    with DaskWorkers(scheduler, tell=note) as dask:
        yield {"executor": dask}
