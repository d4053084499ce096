"""One process that answers questions, one after the other: ``python -m`` this module.

It reads a line of JSON for each question, and writes lines of JSON about it: what is
being done, and at the end what came of it. The answer itself lies then in the folder
that the question names. Nothing is unpickled on either side. The process may be killed
at any time.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nestsim
from nestsim.commands.report import DocumentReport, FolderReport, Report
from nestsim.document.dumps import dump_json
from nestsim.document.folder import PAGE
from nestsim.features.run.command import JobReport
from nestsim.features.serve.limits import (
    Limits,
    begin_question,
    end_question,
    resident_bytes,
)
from nestsim.features.serve.questions import FORMAT, KINDS, SCENARIO, Question
from nestsim.features.sweep.executors.processes import Processes, end_with
from nestsim.launch.job import LaunchJob
from nestsim.launch.registry import plan_table
from nestsim.scenario.load import Scenario
from planner.plans.written import plan_of
from topologies.errors import InputError
from topologies.input_file import CarriedFile, Value, carried_files

ANSWER = "answer.json"
"""What was found, or what is wrong with the question."""

LIVE = "live.json"
"""The scenario with its plan as tables, which the live page changes."""

FOLDER = "files"
"""Folder of results, where the page was asked for."""

_HERE = {"sweep", "stress", "jitter", "compare"}
"""Functions that would start processes: those would have limits of their own."""

_LEAST_BETWEEN = 0.1
"""Between two lines on the same question [s]."""


def main() -> int:
    """Answer questions until there are no more."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever prints does not write into the channel
    end_with(os.getppid())
    # Kernels are loaded, once on a machine compiled, at nobody's expense.
    nestsim.run(nestsim.scenario_of("llama3-8b", 8, "dgx-h100"))
    channel.write("{}\n")
    for line in sys.stdin:
        _work(json.loads(line), channel)
    return 0


def _work(task: Mapping[str, Any], channel: Any) -> None:
    """Answer a question; what it cannot have ends it in a word."""

    def say(**words: object) -> None:
        channel.write(f"{json.dumps(words)}\n")

    limits = Limits(**task["limits"])
    kind = task["kind"]
    os.chdir(task["folder"])  # so that no message has a place of the server's
    try:
        begin_question(limits)
        question = KINDS[kind].model_validate(task["question"])
        with _files(question, trusted=task["trust_code"]):
            answer = _answer(kind, question, limits, _listener(say))
        state = "done"
    except InputError as error:
        answer, state = {"error": error_json(error)}, "refused"
    except MemoryError:
        end_question()
        say(end="failed", reason="it needs more memory than this server gives")
        os._exit(1)  # who knows what is left half-made
    except Exception:  # ours: the server says so, and its log says where
        traceback.print_exc()
        end_question()
        say(end="failed", reason="nestsim failed at it; the server's log says where")
        os._exit(1)
    end_question()
    head = {"format": FORMAT, "kind": kind, "state": state}
    Path(ANSWER).write_text(dump_json({**head, **answer}), encoding="utf-8")
    say(end=state, resident=resident_bytes())


def error_json(error: InputError) -> dict[str, Any]:
    """Return a mistake as JSON."""
    return {
        "message": str(error),
        "where": error.where,
        "got": None if error.got is None else str(error.got),
        "expected": error.expected,
        "hint": error.hint,
    }


@contextmanager
def _files(question: Question, *, trusted: bool) -> Iterator[None]:
    """Let the question read what came with it, and only that unless it is trusted."""
    carried: dict[str, CarriedFile] = {
        name: text.encode(errors="surrogatepass")
        for name, text in question.files.items()
    }
    with carried_files(carried, alone=not trusted):
        yield


def _listener(say: Any) -> Any:
    """Return what tells of progress, now and then."""
    last = [0.0]

    def listen(doing: str, share: float | None) -> None:
        now = time.monotonic()
        if now - last[0] >= _LEAST_BETWEEN:
            last[0] = now
            say(doing=doing, share=share)

    return listen


def _answer(
    kind: str, question: Question, limits: Limits, listener: Any
) -> dict[str, Any]:
    """Return what was found as JSON; files that were asked for are written."""
    scenario = Scenario.from_toml(question.toml(), SCENARIO)
    limits.check_devices(scenario.network_spec.num_devices)
    arguments = question.arguments()
    if arguments.get("plan") is not None:
        arguments["plan"] = plan_of(Value(arguments["plan"], "plan"))
    if kind in _HERE:
        arguments["executor"] = Processes(1)
    explained = arguments.pop("explain", None) if kind == "plan" else None
    if explained is not None:
        report: Report = nestsim.explain(scenario, explained, progress=listener)
    else:
        call = getattr(nestsim, kind)
        report = call(scenario, **arguments, progress=listener)
    if question.page:
        _write_files(report, scenario)
    return {
        "succeeded": report.succeeded,
        "notices": list(report.notices),
        "result": report.printed_dict(),
    }


def _write_files(report: Report, scenario: Scenario) -> None:
    """Write the folder of results with its page, and what the live page changes."""
    folder = Path(FOLDER)
    if isinstance(report, FolderReport):
        report.save(folder, figures=False, html=True)
    elif isinstance(report, DocumentReport):
        folder.mkdir()
        report.written.write_page(folder / PAGE)
    if not isinstance(report, JobReport) or report.best is None:
        return
    job = LaunchJob.of(scenario, report.best.priced.plan)
    table = {**plan_table(job.settings)}
    # They follow from the others, which a reader changes.
    for name in ("data_parallel_size", "num_microbatches"):
        table.pop(name, None)
    live = {"scenario": {**scenario.document(), "plan": table}}
    Path(LIVE).write_text(dump_json(live), encoding="utf-8")


def task_line(
    kind: str, question: Question, folder: Path, limits: Limits, *, trust_code: bool
) -> bytes:
    """Return a question as the line that `main` reads."""
    task = {
        "kind": kind,
        "question": question.model_dump(),
        "folder": str(folder),
        "limits": asdict(limits),
        "trust_code": trust_code,
    }
    return json.dumps(task).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main())
