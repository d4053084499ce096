"""The service as an application: what is asked where, and what comes back.

Answers are those of `nestsim`, as its commands print them with ``--json``, in an
envelope that says what became of the question. Errors are nestsim's sentences; no
client ever sees a traceback. Nothing here computes: see `nestsim.features.serve.queue`.
"""

import asyncio
import json
import logging
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from nestsim.features.serve.access import COOKIE, Tokens, is_foreign, token_of
from nestsim.features.serve.limits import Limits
from nestsim.features.serve.pages import (
    ASSETS,
    POLICY,
    asset,
    live_page,
    login_page,
    start_page,
)
from nestsim.features.serve.questions import KINDS, Question, key_of
from nestsim.features.serve.queue import ACTIVE, Job, JobQueue, TooManyError
from nestsim.features.serve.store import AnswerStore
from nestsim.features.serve.worker import ANSWER, FOLDER, LIVE, error_json
from topologies.errors import InputError
from topologies.input_file import decode, parse_json

LONGEST_WAIT = 30.0
"""A request waits as long for an answer, at most [s]."""

USUAL_WAIT = 10.0
"""A request waits as long for an answer unless it says otherwise [s]."""

_TOML = "application/toml"

_LOG = logging.getLogger("nestsim.serve")

_PLAIN = ("json", "csv", "txt", "toml", "html")
"""Endings of files that browsers show."""


class MistakeAnswer(BaseModel):
    """What is wrong, as nestsim says it."""

    message: str
    where: str = ""
    got: str | None = None
    expected: str = ""
    hint: str = ""


class ErrorAnswer(BaseModel):
    """Why there is no answer."""

    error: MistakeAnswer


class JobAnswer(BaseModel):
    """A question on its way."""

    job: str
    kind: str
    state: str
    doing: str = ""
    share: float | None = None
    reason: str | None = None


class FoundAnswer(BaseModel):
    """What was found."""

    id: str
    format: int
    kind: str
    state: str
    succeeded: bool
    """Whether the command would end with exit status 0."""
    notices: list[str]
    result: dict[str, Any]
    """What the command prints with --json."""


class TooLongError(Exception):
    """A request is longer than it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server is made of."""

    store: AnswerStore
    queue: JobQueue
    tokens: Tokens
    limits: Limits
    trust_code: bool = False

    is_local: bool = True
    """Whether it hears this machine alone."""


def application(server: Server) -> FastAPI:
    """Return a server as an application of ASGI."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await server.queue.start()
        try:
            yield
        finally:
            await server.queue.stop()

    app = FastAPI(
        title="nestsim",
        version=version("nestsim"),
        summary="Plan, replay and report distributed training of large models.",
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # its pages load scripts of other hosts
        redoc_url=None,
    )
    app.state.server = server
    _add_guard(app, server)
    _add_errors(app)
    for kind, model in KINDS.items():
        _add_kind(app, kind, model)
    _add_results(app)
    _add_files(app)
    _add_pages(app)
    _add_live(app)
    return app


def _server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


def _owner(request: Request) -> str:
    """Return who asks.

    Raises
    ------
    HTTPException
        If that is nobody known.
    """
    owner = _server(request).tokens.owner(token_of(request.headers, request.cookies))
    if owner is None:
        raise HTTPException(401, "a token is needed: Authorization: Bearer TOKEN")
    return owner


Owner = Annotated[str, Depends(_owner)]


def _mistake(status: int, message: str, **headers: str) -> JSONResponse:
    error = {"message": message, "where": "", "got": None, "expected": "", "hint": ""}
    return JSONResponse({"error": error}, status, headers=headers)


def _add_guard(app: FastAPI, server: Server) -> None:
    """Turn requests of other sites' pages away, and tell browsers what not to do."""
    is_open = server.is_local and not server.tokens.owners

    @app.middleware("http")
    async def guard(
        request: Request, call: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        changes = request.method not in {"GET", "HEAD", "OPTIONS"}
        if is_foreign(request.headers, changes=changes, is_local=is_open):
            return _mistake(403, "requests of other sites' pages are not answered")
        try:
            response = await call(request)
        except Exception:
            _LOG.exception("%s %s", request.method, request.url.path)
            return _mistake(500, "something went wrong on the server")
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        response.headers["Cache-Control"] = "no-store"
        return response


def _add_errors(app: FastAPI) -> None:
    """Have errors said in nestsim's words."""

    @app.exception_handler(InputError)
    async def wrong(_: Request, error: Exception) -> Response:
        assert isinstance(error, InputError)
        return JSONResponse({"error": error_json(error)}, 422)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _mistake(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        said = InputError(str(first["msg"]), where=_place(first["loc"]))
        return JSONResponse({"error": error_json(said)}, 422)

    @app.exception_handler(TooLongError)
    async def too_long(request: Request, _: Exception) -> Response:
        most = _server(request).limits.body_bytes
        return _mistake(413, f"the request is longer than {most:,} bytes")

    @app.exception_handler(TooManyError)
    async def too_many(request: Request, error: Exception) -> Response:
        assert isinstance(error, TooManyError)
        waiting = _server(request).limits.waiting
        message = f"{waiting:,} questions of this token are under way; ask again later"
        return _mistake(429, message, **{"Retry-After": str(error.seconds)})


def _place(parts: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in parts)


async def _body(request: Request) -> bytes:
    """Return a request's body, read no further than it may be long."""
    most = _server(request).limits.body_bytes
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise TooLongError
    return bytes(content)


async def _question(request: Request, model: type[Question]) -> Question:
    """Return what a request asks: JSON, or a scenario in TOML alone."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind not in {"application/json", _TOML}:
        raise HTTPException(415, f"expected application/json or {_TOML}")
    try:
        text = decode(await _body(request))
        expected = "an object with a scenario"
        says = (
            {"scenario": text} if kind == _TOML else parse_json(text, expected=expected)
        )
        question = model.model_validate(says)
        question.check_files()
        question.toml()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = _place(("request", *first["loc"]))
        raise InputError(first["msg"], where=where, got=first["input"]) from None
    return question


def _add_kind(app: FastAPI, kind: str, model: type[Question]) -> None:
    """Add what asks one function of nestsim."""
    schema = model.model_json_schema()
    body = {
        "required": True,
        "content": {
            "application/json": {"schema": schema},
            _TOML: {"schema": {"type": "string", "title": "Scenario"}},
        },
    }

    async def ask(
        request: Request,
        owner: Owner,
        wait: Annotated[
            float, Query(ge=0.0, le=LONGEST_WAIT, description="For an answer [s].")
        ] = USUAL_WAIT,
    ) -> Response:
        server = _server(request)
        question = await _question(request, model)
        key = key_of(kind, question, trust_code=server.trust_code)
        stored = await _stored(server, key)
        if stored is not None:
            return stored
        job = await server.queue.ask(key, kind, question, owner)
        try:
            async with asyncio.timeout(wait):
                await job.ended.wait()
        except TimeoutError:
            return _under_way(job)
        return await _stored(server, key) or _ended(job)

    ask.__doc__ = f"{model.__doc__}\n\nThe answer is that of nestsim.{kind}."
    app.post(
        f"/v1/{kind}",
        name=kind,
        summary=str(model.__doc__).partition("\n")[0]
        if model is not Question
        else kind,
        response_model=FoundAnswer,
        responses={
            202: {
                "model": JobAnswer,
                "description": "It is not there yet: ask Location.",
            },
            422: {"model": ErrorAnswer, "description": "Something is wrong with it."},
            429: {"model": ErrorAnswer, "description": "Retry-After says when [s]."},
        },
        openapi_extra={"requestBody": body},
    )(ask)


async def _stored(server: Server, key: str) -> Response | None:
    """Return a stored answer as a response; None if there is none."""
    content = await asyncio.to_thread(server.store.read, key, ANSWER)
    if content is None:
        return None
    answer = json.loads(content)
    if answer["state"] == "refused":
        return JSONResponse({"error": answer["error"]}, 422)
    headers = {"Location": f"/v1/results/{key}"}
    return JSONResponse({"id": key, **answer}, 200, headers=headers)


def _under_way(job: Job) -> Response:
    location = f"/v1/results/{job.key}"
    headers = {"Location": location, "Retry-After": "1"}
    return JSONResponse(job.to_json(), 202, headers=headers)


def _ended(job: Job) -> Response:
    """Return what became of a question that has no answer."""
    if job.state == "failed":
        said = InputError(job.reason, where="limits", hint="ask for less at once")
        return JSONResponse({"error": error_json(said)}, 422)
    return _mistake(410, job.reason or f"the question was {job.state}")


def _add_results(app: FastAPI) -> None:
    """Add what answers and questions are looked at and removed by."""

    @app.get("/v1/results/{key}", response_model=FoundAnswer)
    async def result(request: Request, key: str, _: Owner) -> Response:
        """Return an answer, or how far it is."""
        server = _server(request)
        job = server.queue.job(key)
        if job is not None and job.state in ACTIVE:
            return _under_way(job)
        stored = await _stored(server, _checked(key))
        if stored is None:
            return (
                _mistake(404, "there is no such answer") if job is None else _ended(job)
            )
        return stored

    @app.delete("/v1/results/{key}", status_code=204)
    async def delete(request: Request, key: str, owner: Owner) -> Response:
        """Withdraw a question, or forget its answer: asked again, it is made anew."""
        server = _server(request)
        withdrawn = await server.queue.delete(_checked(key), owner)
        forgotten = await asyncio.to_thread(server.store.delete, key)
        if not (withdrawn or forgotten):
            return _mistake(404, "there is no such answer")
        return Response(status_code=204)


def _add_files(app: FastAPI) -> None:
    """Add what files of answers and questions are looked at by."""

    @app.get("/v1/results/{key}/files")
    async def files(request: Request, key: str, _: Owner) -> list[str]:
        """Return the names of an answer's files."""
        return await asyncio.to_thread(_server(request).store.names, _checked(key))

    @app.get("/v1/results/{key}/files/{name:path}", response_class=Response)
    async def file(request: Request, key: str, name: str, _: Owner) -> Response:
        """Return a file of an answer."""
        read = _server(request).store.read
        content = await asyncio.to_thread(read, _checked(key), name)
        if content is None:
            return _mistake(404, "there is no such file")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        is_plain = name.rpartition(".")[2] in _PLAIN
        # A page of results brings its own policy; it may reach nothing of this server.
        headers = {"Content-Security-Policy": "sandbox allow-scripts"}
        if not is_plain:
            headers["Content-Disposition"] = "attachment"
        return Response(content, media_type=kind, headers=headers)

    @app.get("/v1/jobs", response_model=list[JobAnswer])
    async def jobs(request: Request, owner: Owner) -> Any:
        """Return the questions of this token that have no answer, yet or at all."""
        return [job.to_json() for job in _server(request).queue.jobs_of(owner)]


def _checked(key: str) -> str:
    """Return a key if it can be one: it becomes part of a path."""
    if not (key.isalnum() and key.isascii()):
        raise HTTPException(404, "there is no such answer")
    return key


def _add_pages(app: FastAPI) -> None:
    """Add pages for people."""

    @app.exception_handler(401)
    async def unknown(request: Request, error: Exception) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(login_page(), 401)
        assert isinstance(error, HTTPException)
        return _mistake(401, str(error.detail), **{"WWW-Authenticate": "Bearer"})

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def start(_: Owner) -> str:
        return start_page()

    @app.get("/assets/{name}", include_in_schema=False)
    async def assets(name: str) -> Response:
        if name not in ASSETS:
            return _mistake(404, "there is no such file")
        return Response(asset(name), media_type=ASSETS[name])

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        token = parse_qs(decode(await _body(request))).get("token", [""])[0]
        if _server(request).tokens.owner(token) is None:
            return HTMLResponse(login_page(wrong=True), 401)
        response = RedirectResponse("/", 303)
        is_safe = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, token, httponly=True, samesite="strict", secure=is_safe
        )
        return response


def _add_live(app: FastAPI) -> None:
    """Add the page of an answer."""

    @app.get("/results/{key}", response_class=HTMLResponse, include_in_schema=False)
    async def live(request: Request, key: str, _: Owner) -> Response:
        read = _server(request).store.read
        answer = await asyncio.to_thread(read, _checked(key), ANSWER)
        if answer is None:
            return _mistake(404, "there is no such answer")
        names = await asyncio.to_thread(_server(request).store.names, key)
        changed = await asyncio.to_thread(read, key, LIVE) if LIVE in names else None
        page = f"{FOLDER}/page.html"
        source = f"/v1/results/{key}/files/{page}" if page in names else ""
        return HTMLResponse(live_page(json.loads(answer), changed, source))
