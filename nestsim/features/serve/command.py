"""``nestsim serve``: what it is called with; it listens until it is told to stop."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nestsim.commands.task import Reply, Task
from nestsim.features.serve.access import Tokens, is_loopback
from nestsim.features.serve.limits import Limits
from nestsim.running.progress import tell
from topologies.errors import InputError, import_extra
from topologies.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where and as what a server listens."""

    host: str
    port: int
    tokens: Tokens
    limits: Limits
    folder: Path
    """For questions under way, and for answers unless `store` says where."""
    store: str
    workers: int
    trust_code: bool
    certificate: Path | None


def size(text: str) -> int:
    """Read ``4 GiB``."""
    return int(parse_quantity(text, "size"))


def serve_task(  # noqa: PLR0913, PLR0917 - one for each option
    host: str,
    port: int,
    token_file: Path | None,
    certificate: Path | None,
    output: Path | None,
    store: str,
    workers: int | None,
    cpu_limit: float,
    memory_limit: int,
    most_devices: int,
    most_waiting: int,
    trust_code: bool,
) -> Task:
    """Return the task of serving.

    Raises
    ------
    InputError
        If others could ask without a token, or what serves is not installed.
    """
    import_extra("fastapi", "serve")
    import_extra("uvicorn", "serve")
    if token_file is None and not is_loopback(host):
        raise InputError(
            "others than this machine would be heard, and nobody would need a token",
            where="--host",
            got=host,
            expected="--token-file FILE beside it",
        )
    listening = Listening(
        host=host,
        port=port,
        tokens=Tokens.of_file(token_file),
        limits=Limits(
            cpu_seconds=cpu_limit,
            memory_bytes=memory_limit,
            devices=most_devices,
            waiting=most_waiting,
        ),
        folder=output or Path("results/serve"),
        store=store,
        workers=workers or os.cpu_count() or 1,
        trust_code=trust_code,
        certificate=certificate,
    )
    return Task(call=partial(serve, listening), prints=False)


def serve(listening: Listening, *, progress: Any = None) -> Reply:  # noqa: ARG001
    """Listen until the process is told to stop."""
    import uvicorn

    from nestsim.features.serve.app import Server, application
    from nestsim.features.serve.queue import JobQueue
    from nestsim.features.serve.store import answer_store

    folder = listening.folder
    with _alone(folder):
        store = answer_store(listening.store, folder / "answers")
        queue = JobQueue(
            folder,
            store,
            listening.limits,
            workers=listening.workers,
            trust_code=listening.trust_code,
        )
        app = application(
            Server(
                store=store,
                queue=queue,
                tokens=listening.tokens,
                limits=listening.limits,
                trust_code=listening.trust_code,
                is_local=is_loopback(listening.host),
            )
        )
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            ssl_certfile=listening.certificate,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        with _bound(listening) as bound:
            uvicorn.Server(settings).run(sockets=[bound])
    return Reply(record=dict)


@contextmanager
def _bound(listening: Listening) -> Iterator[socket.socket]:
    """Take hold of the address, and say what it is."""
    place = (listening.host, listening.port)
    family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
    try:
        bound = socket.create_server(place, family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot be listened at: {getattr(error, 'strerror', None) or error}",
            where="--host",
            got=f"{listening.host}, port {listening.port}",
            expected="a free port of an address of this machine",
        ) from None
    with bound:
        scheme = "http" if listening.certificate is None else "https"
        name = f"[{listening.host}]" if ":" in listening.host else listening.host
        tell(f"Serving on {scheme}://{name}:{bound.getsockname()[1]}\n")
        yield bound


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder: two servers would take up each other's questions."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(
            f"cannot be made: {error.strerror}", where="--output", got=str(folder)
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "another server uses it", where="--output", got=str(folder)
            ) from None
        yield
    finally:
        os.close(descriptor)
