"""What every input must come to, whatever it is, and what two of them must share."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz.case import OUTPUT, Case
from tests.fuzz.pool import MEMORY, ROOT, Lane, Outcome

WRONG_INPUT = 2
LONGEST_MESSAGE = 8000
"""All problems of a file are told at once: some twenty of them."""

REPEATED_BELOW = 0.5
"""Inputs that take longer are run once only [s]."""

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+,? in (?P<function>\S+)')
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
_PARTS = ("nestsim", "planner", "estimators", "topologies")
_OPTION = re.compile(r"--[a-z-]+|\bSCENARIO\b|\bUsage:")


class Failure(NamedTuple):
    """One way in which an input came out wrong."""

    key: str
    """Failures with the same key count as one: what is wrong, and where."""

    detail: str
    """What was found."""


def examine(case: Case, lane: Lane, *, twice: bool) -> tuple[Outcome, list[Failure]]:
    """Run an input and return everything that is wrong with what came of it.

    Parameters
    ----------
    case
        The input.
    lane
        Where it is run.
    twice
        Run it once more, and compare.
    """
    folder = lane.fresh_folder(case)
    outcome = lane.run(case.argv, folder)
    found = list(_failures(case, outcome, folder))
    found += [
        Failure("leaves a temporary file", file.name)
        for file in lane.temporary.iterdir()
        if not file.name.startswith(("joblib", "loky", "torchinductor"))
    ]
    answered = outcome.status in {0, 1} and not outcome.error
    if answered and not found:
        if case.kind == "run":
            found += _confirmed(case, lane, folder)
        elif twice and "--json" in case.argv and outcome.cpu_seconds < REPEATED_BELOW:
            found += _repeated(case, lane, outcome)
    return outcome, found


def _failures(case: Case, outcome: Outcome, folder: Path) -> Iterator[Failure]:
    stderr = outcome.stderr.decode("utf-8", errors="replace")
    command = case.argv[0]
    if outcome.status is None:
        key = f"{outcome.error}: {command}, {_place(stderr, innermost_last=False)}"
        yield Failure(key, stderr[-2000:])
        return
    if outcome.error:
        last = outcome.error.strip().splitlines()[-1]
        name = last.partition(":")[0]
        key = f"traceback: {name} in {_place(outcome.error, innermost_last=True)}"
        yield Failure(key, f"{last[:300]}\n{outcome.error[-3000:]}")
    elif outcome.status not in {0, 1, WRONG_INPUT}:
        yield Failure(f"exit status {outcome.status}: {command}", stderr[-2000:])
    if outcome.peak_bytes > MEMORY:
        yield Failure(f"memory: {command}", f"{outcome.peak_bytes / 2**30:.1f} GiB")
    if outcome.status == WRONG_INPUT and not outcome.error:
        yield from _message_failures(case, stderr)
    elif outcome.status in {0, 1} and not outcome.error:
        yield from _report_failures(case, outcome, stderr)
    yield from _folder_failures(case, outcome, folder)


def _place(trace: str, *, innermost_last: bool) -> str:
    """Return file and function of the innermost frame of ours."""
    frames = [(one["file"], one["function"]) for one in _FRAME.finditer(trace)]
    roots = tuple(f"{ROOT}/{part}/" for part in _PARTS)
    ours = [frame for frame in frames if frame[0].startswith(roots)]
    if not ours:
        return "somewhere"
    file, function = ours[-1 if innermost_last else 0]
    return f"{Path(file).relative_to(ROOT)}: {function}"


def _message_failures(case: Case, message: str) -> Iterator[Failure]:
    """Say what is wrong with what a user is told of a mistake."""
    first = message.partition("\n")[0]
    shape = f"{case.argv[0]}, {_QUOTED.sub('..', first)[-80:]}"
    if not message.strip():
        yield Failure(f"no message: {case.argv[0]}", "")
        return
    if len(message) > LONGEST_MESSAGE:
        yield Failure(f"long message: {shape}", f"{len(message)} characters")
    if control := _CONTROL.search(message):
        yield Failure(f"control character in a message: {shape}", repr(control[0]))
    names = {part for name in case.files for part in (name, Path(name).parts[0])}
    names |= {word or "." for word in case.argv[1:]}
    # How letters that cannot be printed are written is left to the message.
    written = {name[:40] for name in names if name.isprintable()}
    told = _OPTION.search(message) or len(written) < len(names)
    if not (told or any(name in message for name in written)):
        yield Failure(f"a message that names no file: {shape}", message[:500])
    if "Warning:" in message:
        yield _warning(message)


def _warning(stderr: str) -> Failure:
    (line,) = [one for one in stderr.splitlines() if "Warning:" in one][:1]
    place = re.sub(r":\d+:", ":", line.replace(f"{ROOT}/", ""))
    return Failure(f"a warning of a library: {place[:120]}", line)


def _report_failures(case: Case, outcome: Outcome, stderr: str) -> Iterator[Failure]:
    """Say what is wrong with a result as it is printed."""
    stdout = outcome.stdout.decode("utf-8", errors="replace")
    command = case.argv[0]
    if not stdout.strip():
        yield Failure(f"nothing printed: {command}", stderr[:500])
    for name, text in (("report", stdout), ("note", stderr)):
        if control := _CONTROL.search(text):
            found = f"{control[0]!r} in {text[control.start() :][:80]!r}"
            yield Failure(f"control character in a {name}: {command}", found)
    if "--json" in case.argv:
        try:
            _strict_json(stdout)
        except ValueError as error:
            yield Failure(f"not JSON: {command}", str(error))
    if "Warning:" in stderr:
        yield _warning(stderr)


def _strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _folder_failures(case: Case, outcome: Outcome, folder: Path) -> Iterator[Failure]:
    """Say what has become of the user's files, and what was left half-written."""
    for name, content in case.files.items():
        file = folder / name
        if isinstance(content, bytes):
            if not file.is_file() or file.read_bytes() != content:
                yield Failure(f"an input was changed: {case.argv[0]}", name)
        elif not (file.is_symlink() or file.exists()):
            yield Failure(f"an input was removed: {case.argv[0]}", name)
    for file in folder.rglob("*"):
        name = file.relative_to(folder)
        if str(name) not in case.files and not file.is_dir():
            yield from _new_file_failures(case.argv[0], outcome, folder, name)


def _new_file_failures(
    command: str, outcome: Outcome, folder: Path, file: Path
) -> Iterator[Failure]:
    """Say why a file should not be there."""
    places = {OUTPUT, "results"}
    if (folder / OUTPUT).is_symlink():
        places.add(str((folder / OUTPUT).readlink()))
    if file.name.startswith(".") or "partial" in file.name:
        yield Failure(f"half-written: {command}", str(file))
    elif outcome.status == WRONG_INPUT:
        yield Failure(f"written although refused: {command}", str(file))
    elif file.parts[0] not in places:
        yield Failure(f"written outside: {command}", str(file))


def _repeated(case: Case, lane: Lane, outcome: Outcome) -> Iterator[Failure]:
    """Run an input again, and compare what it prints."""
    again = lane.run(case.argv, lane.fresh_folder(case))
    first, second = (_without_times(one.stdout) for one in (outcome, again))
    if first != second or again.status != outcome.status:
        pairs = enumerate(zip(first, second, strict=False))
        start = max(0, next((n for n, (a, b) in pairs if a != b), 0) - 80)
        parts = [text[start : start + 160] for text in (first, second)]
        yield Failure(
            f"two answers: {case.argv[0]}", f"{parts[0]!r}, then {parts[1]!r}"
        )


_TIMES = re.compile(rb'"(search_time_s|[a-z_]*seconds[a-z_]*)": [^,\n}]+')
"""How long something took, which no two runs share."""


def _without_times(stdout: bytes) -> bytes:
    return _TIMES.sub(b"", stdout)


def _confirmed(case: Case, lane: Lane, folder: Path) -> Iterator[Failure]:
    """Replay the plan that a run reports: it must take as long as the run said."""
    if not (folder / OUTPUT / "plan.json").is_file():
        return
    told = _strict_json((folder / OUTPUT / "result.json").read_text(encoding="utf-8"))
    plan = f"{OUTPUT}/plan.json"
    again = lane.run(("simulate", case.argv[1], "--plan", plan, "--json"), folder)
    if again.error or again.status not in {0, 1}:
        detail = again.error[-500:] or again.stderr.decode("utf-8")[:500]
        yield Failure("a plan that run wrote cannot be simulated", detail)
        return
    times = [
        report["simulated"]["iteration_time_s"]
        for report in (told, _strict_json(again.stdout.decode("utf-8")))
    ]
    if times[0] != times[1]:
        yield Failure("simulate disagrees with run", f"{times[0]!r} and {times[1]!r}")
