"""Compute times of ranks in steps, as traces of a job have them.

Ranks of a synchronous job end their steps together: what tells them apart is the time
in which each computes, without waiting for others. It is read from

* CSV with the columns ``rank``, ``step`` and ``time`` (compute time with its unit), and
  ``node`` if there is one;
* a folder of Kineto traces, JSON of each rank as ``torch.profiler`` exports it: the
  kernels of a step ``ProfilerStep#N`` that are not NCCL's, together;
* a folder of dumps of PyTorch's NCCL flight recorder as JSON, one of each rank, with
  ``TORCH_NCCL_ENABLE_TIMING=1``: from the completion of one collective to that of the
  next, less the next one's duration, in which a rank that comes early waits. Only
  durations and differences on one clock are used, so that clocks may differ. Names of
  fields are those of ``torch.distributed.flight_recorder`` (PyTorch 2.13).
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError, located
from topologies.input_file import Value, decode, parse_json, read_file
from topologies.units import parse_quantity

COLUMNS = ("rank", "step", "time")
"""Columns of a CSV file; ``node`` may be beside them."""

MOST_BYTES = 500_000_000
"""Longest file that is read [byte]."""

MOST_FILES = 4096
"""Files of a folder, at most."""

LEAST_RANKS, LEAST_STEPS = 4, 8
"""Ranks and steps below which a fleet has no median worth its name."""

_EXPECTED = (
    "CSV with the columns rank, step and time, or a folder of JSON: traces of "
    "torch.profiler or dumps of the NCCL flight recorder, one file for each rank"
)

Times = dict[tuple[int, int], float]
"""(rank, step) -> compute time [s]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """How long ranks computed in the steps that all of them have."""

    ranks: tuple[int, ...]
    """Numbers of the ranks, rising: ``R`` of them."""

    nodes: tuple[str, ...]
    """Node of each rank; empty where the file does not name it."""

    times: FloatArray
    """Compute time of each rank in each step, shape ``(R, K)`` [s]."""

    per: str
    """What a column is, as `nestsim.simulator.noise.PERIODS` has it: a step, or what is
    between two collectives."""

    source: str
    """Name of the file and what it is."""


def read_step_times(path: Path) -> StepTimes:
    """Return the compute times of a file or folder.

    Raises
    ------
    InputError
        If it is none of those that are read, or something in it cannot be.
    """
    with located(str(path), ": "):
        if not path.is_dir():
            times, nodes = _csv_times(_text(path))
            return _complete(times, nodes, "step", f"{path.name}, CSV")
        files = sorted(path.glob("*.json"))
        if not 1 <= len(files) <= MOST_FILES:
            raise InputError(
                "holds no JSON" if not files else "holds too many files",
                got=f"{len(files)} files *.json",
                expected=_EXPECTED,
                hint="dumps that are pickled are not read: they may run code",
            )
        return _folder_times(path, files)


def _text(path: Path) -> str:
    content = read_file(path, expected=_EXPECTED, most_bytes=MOST_BYTES)
    if content.startswith(b"\x80"):
        raise InputError(
            "is pickled, and pickles may run code",
            expected=_EXPECTED,
            hint="dump the flight recorder as JSON",
        )
    return decode(content)


def _complete(
    times: Times, nodes: Mapping[int, str], per: str, source: str
) -> StepTimes:
    """Return the steps that all ranks have."""
    ranks = sorted({rank for rank, _ in times})
    counts: dict[int, int] = defaultdict(int)
    for _, step in times:
        counts[step] += 1
    steps = sorted(step for step, count in counts.items() if count == len(ranks))
    if len(ranks) < LEAST_RANKS or len(steps) < LEAST_STEPS:
        raise InputError(
            "has too few ranks or steps that all ranks have",
            got=f"{len(ranks)} ranks, {len(steps)} steps",
            expected=f"at least {LEAST_RANKS} ranks and {LEAST_STEPS} steps",
        )
    array = np.array([[times[rank, step] for step in steps] for rank in ranks])
    if not (array > 0.0).all():
        place, number = (int(at[0]) for at in np.nonzero(array <= 0.0))
        raise InputError(
            "a rank computes for no time",
            where=f"rank {ranks[place]}, step {steps[number]}",
            got=f"{array[place, number]:g} s",
            expected="more than 0 s",
        )
    return StepTimes(
        ranks=tuple(ranks),
        nodes=tuple(nodes.get(rank, "") for rank in ranks),
        times=array,
        per=per,
        source=source,
    )


def _csv_times(text: str) -> tuple[Times, dict[int, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    times: Times = {}
    nodes: dict[int, str] = {}
    try:
        if not {*COLUMNS} <= {*(reader.fieldnames or ())}:
            raise InputError(
                "columns are missing",
                where="header",
                got=", ".join(reader.fieldnames or ()) or "none",
                expected=_EXPECTED,
            )
        for row in reader:
            with located(f"line {reader.line_num}"):
                key = _number(row, "rank"), _number(row, "step")
                if key in times:
                    raise InputError(
                        "names a rank and a step twice",
                        got=f"rank {key[0]}, step {key[1]}",
                        expected="one line for each",
                    )
                with located("time"):
                    times[key] = parse_quantity(row["time"] or "", "duration")
                nodes[key[0]] = (row.get("node") or "").strip()
    except csv.Error as error:
        raise InputError(f"not CSV: {error}", expected=_EXPECTED) from None
    return times, nodes


def _number(row: Mapping[str, str | None], name: str) -> int:
    word = (row[name] or "").strip()
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise InputError(
            "is not a whole number", where=name, got=word, expected="e.g. 12"
        )
    return int(word)


def _folder_times(path: Path, files: list[Path]) -> StepTimes:
    """Return the times of a folder of traces, or of dumps."""
    times: Times = {}
    kinds = set()
    for file in files:
        with located(file.name, ": "):
            record = Value(parse_json(_text(file), expected=_EXPECTED, infinities=True))
            table = record.table()
            if "traceEvents" in table:
                kinds.add("traces of torch.profiler")
                rank = _rank(record["distributedInfo"])
                read = _profiled(record["traceEvents"])
            elif "entries" in table:
                kinds.add("dumps of the NCCL flight recorder")
                rank = _rank(record)
                read = _recorded(record["entries"])
            else:
                raise InputError("is no trace and no dump", expected=_EXPECTED)
            for step, time in read:
                if (rank, step) in times:
                    raise InputError("is of a rank that another file has", got=rank)
                times[rank, step] = time
    if len(kinds) > 1:
        raise InputError(
            "holds different kinds of files",
            got=" and ".join(sorted(kinds)),
            expected=_EXPECTED,
        )
    (kind,) = kinds
    per = "step" if "torch" in kind else "operator"
    return _complete(times, {}, per, f"{path.name}, {kind}")


def _rank(record: Value) -> int:
    return record["rank"].whole(least=0, most=10**8)


def _profiled(events: Value) -> Iterator[tuple[int, float]]:
    """Yield each profiled step of a rank, and how long its own kernels take [s]."""
    spans: dict[tuple[bool, int], tuple[float, float]] = {}
    kernels = []
    for event in events.array():
        table = event.table()
        name, category = str(table.get("name", "")), table.get("cat")
        if table.get("ph") != "X":
            continue
        begin, length = event["ts"].number(), event["dur"].number()
        if name.startswith("ProfilerStep#") and name[13:].isdigit():
            on_device = category == "gpu_user_annotation"
            spans[on_device, int(name[13:])] = begin, begin + length
        elif category == "kernel" and not name.lower().startswith("nccl"):
            kernels.append((begin, length))
    on_device = any(is_device for is_device, _ in spans)
    moments = np.array(kernels).reshape(-1, 2)
    for (is_device, step), (begin, end) in sorted(spans.items()):
        if is_device == on_device:
            inside = (moments[:, 0] >= begin) & (moments[:, 0] < end)
            worked = float(moments[inside, 1].sum()) if kernels else end - begin
            yield step, 1e-6 * worked


def _recorded(entries: Value) -> Iterator[tuple[int, float]]:
    """Yield each collective of a rank's first group, and the compute before it [s]."""
    before: float | None = None
    group: Any = None
    for entry in entries.array():
        table = entry.table()
        if table.get("is_p2p") or table.get("time_discovered_completed_ns") is None:
            continue
        group = table.get("process_group") if group is None else group
        if table.get("process_group") != group:
            continue
        done = 1e-9 * entry["time_discovered_completed_ns"].number()
        if table.get("duration_ms") is None:
            raise entry.error(
                "has no duration", "duration_ms, as TORCH_NCCL_ENABLE_TIMING=1 gives it"
            )
        took = 1e-3 * entry["duration_ms"].number()
        if before is not None:
            number = entry["collective_seq_id"].whole(least=0, most=2**63)
            yield number, done - before - took
        before = done
