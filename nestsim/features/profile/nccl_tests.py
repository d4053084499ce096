"""Logs of nccl-tests, as people paste them, to a sweep that links are fitted from.

A log has any number of programs' outputs (``all_reduce_perf``, ``alltoall_perf`` ..),
with whatever a launcher wrote around them. Of each, the lines ``# Rank ..`` tell ranks,
hosts and devices, the line of columns tells where times stand. In rows, sizes are those
of the full tensor [1]_, which `LinkPoint` has too. The ratio of a row's two bandwidths
follows from the operation and the number of ranks [1]_: logs that contradict themselves
are refused. Logs of rccl-tests are of the same form.

References
----------
.. [1] NVIDIA, nccl-tests, ``doc/PERFORMANCE.md``, ``src/common.cu``, ``src/util.cu``
   (2.0 to 2.20).
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimators.collectives.transports import WIRE_FRACTIONS
from estimators.operators.profile import OperatorTiming
from estimators.user_files import LinkPoint, LinkSweep
from topologies.errors import InputError
from topologies.input_file import read_text
from topologies.records import MAX_DEVICES

MAX_FILE = 10_000_000
"""Longest log that is read [byte]."""

MAX_POINTS = 1000
"""Most points, a size of an operation in a group each, that are fitted together."""

PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "all_reduce",
        "all_gather": "all_gather",
        "reduce_scatter": "reduce_scatter",
        "alltoall": "all_to_all",
        "broadcast": "broadcast",
        "sendrecv": "send_recv",
        "reduce": "",
        "gather": "",
        "scatter": "",
        "hypercube": "",
        "alltoallv": "",
    }
)
"""Program, without ``_perf`` -> operation; empty where plans have none."""

_EXPECTED = "what all_reduce_perf or another program of nccl-tests printed"

_PROGRAM = re.compile(rf"(?<![a-z_])({'|'.join(PROGRAMS)})_perf")
_TAG = re.compile(r"^\s*(?:\[\d+,\d+\]<std\w+>:|\d+:)\s?")
"""What mpirun and srun put in front of lines when told to."""

_RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device"
    r"\s+\d+(?:\s+\[[^\]]*\])?\s*(.*)"
)
_THREADS = re.compile(r"#\s*nThread\s+(\d{1,9})\s+nGpus\s+(\d{1,9})\b")
_VERSION = re.compile(r"#\s*((?:nccl|rccl)-tests) version (\S+).*-library=(\d+)")
_ROW = re.compile(r"\s*(\d{1,18})\s+(\d{1,18})\s+([A-Za-z]\w*)\s+(\S.*)$")
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(\.\d+)?)$")
_NUMBER = re.compile(r"^\d{1,15}(\.\d{0,15})?(e[+-]?\d{1,2})?$")

_PART = ("time", "algbw", "busbw")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What users say of logs that do not tell it themselves."""

    num_ranks: int | None = None
    """Members of the group; None as the log says."""

    num_nodes: int | None = None
    """Nodes that they are on, where a rack joined by NVLink counts as one; None for as
    many as hosts in the log."""


class _RankLine(NamedTuple):
    """A line that tells of one rank."""

    group: int
    host: str
    device: str


@dataclass(slots=True)
class _Run:
    """What a log has said of the program that is running."""

    members: dict[int, _RankLine] = field(default_factory=dict)
    """Rank -> what its line says."""

    threads: int = 0
    """Devices of one process; 0 if not said."""

    program: str = ""
    """Name of the program; empty if not said."""

    columns: tuple[str, ...] = ()
    """Columns from the first time on; empty before they were named."""

    has_rows: bool = False
    """Whether rows have followed the program's name."""


class _Measured(NamedTuple):
    """One row of a log."""

    operation: str
    num_ranks: int
    num_nodes: int
    num_bytes: int
    times: tuple[float, ...]
    """Out of place and in place, whichever were measured [s]."""


def read_nccl_tests(paths: Sequence[Path], options: LogOptions) -> LinkSweep:
    """Read logs of nccl-tests as one sweep.

    Out of place and in place count as two samples of a point, and so do equal points of
    several logs.

    Parameters
    ----------
    paths
        The logs.
    options
        What they do not say.

    Raises
    ------
    InputError
        If a log cannot be read, has no measurement or contradicts itself; with file and
        line.
    """
    samples: dict[tuple[str, int, int, int], list[float]] = {}
    logs = [_TestsLog(path, options) for path in paths]
    for log in logs:
        for row in log.rows():
            samples.setdefault(row[:4], []).extend(row.times)
    if len(samples) > MAX_POINTS:
        raise InputError(
            "too many points",
            where=str(paths[-1]),
            got=len(samples),
            expected=f"at most {MAX_POINTS:,} sizes of operations together",
        )
    points = tuple(
        LinkPoint(
            operation=operation,
            num_ranks=ranks,
            num_nodes=nodes,
            num_bytes=size,
            timing=_timing(times),
        )
        for (operation, ranks, nodes, size), times in samples.items()
    )
    devices = Counter(device for log in logs for device in log.devices)
    return LinkSweep(
        backend=next((log.library for log in logs if log.library), "nccl, nccl-tests"),
        device=devices.most_common(1)[0][0] if devices else "devices without a name",
        torch_version="",
        num_ranks=max(point.num_ranks for point in points),
        num_nodes=max(point.num_nodes for point in points),
        points=points,
        num_skipped=sum(log.num_skipped for log in logs),
        skipped_because="no bytes, wrong results, or a collective that plans have not",
    )


def _timing(times: Sequence[float]) -> OperatorTiming:
    first, middle, third = np.percentile(times, [25, 50, 75]).tolist()
    return OperatorTiming(middle, third - first, len(times))


class _TestsLog:
    """One log, read line by line.

    Parameters
    ----------
    path
        The file.
    options
        What it does not say.
    """

    def __init__(self, path: Path, options: LogOptions) -> None:
        self.path, self.options = path, options
        self.devices: Counter[str] = Counter()
        self.library = ""
        self.num_skipped = 0
        self._run = _Run()
        stem = path.stem.lower().replace("-", "_")
        named = [name for name in PROGRAMS if re.search(rf"(?<![a-z_]){name}\b", stem)]
        named = named or [name for name in PROGRAMS if PROGRAMS[name] and name in stem]
        self._program = named[0] if len(named) == 1 else ""

    def rows(self) -> Iterator[_Measured]:
        """Yield what was measured.

        Raises
        ------
        InputError
            If something cannot be read, or nothing was measured.
        """
        try:
            text = read_text(self.path, expected=_EXPECTED, most_bytes=MAX_FILE)
        except InputError as error:
            raise error.at(str(self.path), ": ") from None
        found = False
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                row = self._line(_TAG.sub("", line, count=1))
            except InputError as error:
                raise error.at(f"{self.path}: line {number}") from None
            if row is not None:
                found = True
                yield row
        if not found:
            raise InputError(
                "has no measurement that links can be fitted to",
                where=str(self.path),
                expected=f"{_EXPECTED}, with its line of columns: size, count, type ..",
            )

    def _line(self, line: str) -> _Measured | None:
        """Take in one line; return a row's measurement."""
        row = _ROW.match(line) if self._run.columns else None
        if row:
            return self._measured(int(row[1]), row[4].split())
        if member := _RANK.match(line.strip()):
            self._member(member)
        elif threads := _THREADS.match(line.strip()):
            program = "" if self._run.has_rows else self._run.program
            count = int(threads[1]) * int(threads[2])
            self._run = _Run(threads=count, program=program)
        elif version := _VERSION.match(line.strip()):
            program, number, library = version.groups()
            self.library = f"{program[:4]} {_version(library)}, {program} {number}"
        elif "algbw" in line and "busbw" in line and "size" in line:
            self._columns(line.replace("#wrong", "wrong").replace("#", " ").split())
        elif (named := _PROGRAM.findall(line)) and "concluded" not in line:
            self._run.program, self._run.has_rows = named[-1], False
        return None

    def _member(self, found: re.Match[str]) -> None:
        rank, group, host, device = found.groups()
        if int(rank) in self._run.members:
            raise InputError(
                "says that it is a rank that there was already",
                got=f"rank {int(rank)} on {_words(host)}",
                expected="every rank once",
                hint="nccl-tests were built without MPI=1, and each process measured "
                "alone",
            )
        if len(self._run.members) >= _MAX_MEMBERS:
            raise InputError(
                "has too many ranks", expected=f"at most {_MAX_MEMBERS:,} ranks"
            )
        member = _RankLine(int(group or 0), host, _words(device))
        self._run.members[int(rank)] = member
        if member.device:
            self.devices[member.device] += 1

    def _columns(self, names: list[str]) -> None:
        """Note where times stand."""
        if "time" not in names:
            raise InputError(
                "has no column of times",
                got=" ".join(names),
                expected="the columns time, algbw and busbw",
                hint="do not measure with -C 1, which is the time of the host",
            )
        if self._run.has_rows:
            self._run.program, self._run.has_rows = "", False
        self._run.columns = tuple(
            name for name in names[names.index("time") :] if name != "timestamp"
        )

    def _measured(self, size: int, words: list[str]) -> _Measured | None:
        """Return the measurement of a row; None where it tells nothing of links."""
        while words and _STAMP.match(words[-1]):
            words.pop()
        columns = self._run.columns
        head, values = words[: -len(columns)], words[-len(columns) :]
        if len(values) < len(columns) or any(word.isalpha() for word in values):
            raise InputError(
                "does not have the values that the line of columns names",
                got=" ".join(words),
                expected=f"{', '.join(columns)}, behind type, redop and root",
            )
        times, rates, wrong = self._values(values)
        redop = next((word for word in head if word.isalpha()), "none")
        root = next((word for word in head if word.lstrip("-").isdigit()), "-1")
        ranks, nodes = self._group()
        program = self._run.program or self._program or _guess(redop, root, rates)
        operation, self._run.has_rows = PROGRAMS[program], True
        if not operation or not size or wrong or not times:
            self.num_skipped += 1
            return None
        _check_rates(operation, ranks, rates)
        return _Measured(operation, ranks, nodes, size, tuple(times))

    def _values(
        self, values: Sequence[str]
    ) -> tuple[list[float], list[tuple[float, float]], bool]:
        """Return times [s], pairs of bandwidths, and whether results were wrong."""
        columns = self._run.columns
        starts = [i for i, name in enumerate(columns) if name == "time"]
        times: list[float] = []
        rates: list[tuple[float, float]] = []
        wrong = False
        for start, end in itertools.pairwise([*starts, len(columns)]):
            part = dict(zip(columns[start:end], values[start:end], strict=True))
            if any(part.get(name, "N/A") == "N/A" for name in _PART):
                continue
            time, algorithm, bus = (_number(part[name]) for name in _PART)
            wrong = wrong or part.get("wrong", "N/A") not in {"N/A", "0"}
            if time > 0.0:
                times.append(time * 1e-6)
                rates.append((algorithm, bus))
        return times, rates, wrong

    def _group(self) -> tuple[int, int]:
        """Return how many ranks communicate, and on how many nodes."""
        ranks, nodes = self.options.num_ranks, self.options.num_nodes
        members = [member for member in self._run.members.values() if member.group == 0]
        if members:
            if ranks not in {None, len(members)}:
                raise InputError(
                    "does not agree with --ranks",
                    got=f"{len(members)} ranks in the log",
                    expected=f"{ranks}, as the option says",
                )
            ranks = len(members)
            nodes = nodes or len({member.host for member in members})
        elif ranks is None and self._run.threads > 1:
            ranks = self._run.threads * (nodes or 1)
        if ranks is None:
            raise InputError(
                "does not tell the number of ranks",
                expected='the lines "# Rank 0 .." above the table, or --ranks and '
                "--nodes",
            )
        nodes = nodes or 1
        if not 2 <= ranks <= MAX_DEVICES or ranks % nodes:
            raise InputError(
                "is not measured among ranks that share nodes evenly",
                got=f"{ranks} ranks on {nodes} nodes",
                expected="at least 2 ranks, as many on each node",
            )
        return ranks, nodes


_MAX_MEMBERS = 16_384
"""Most ranks whose lines are read."""


def _guess(redop: str, root: str, rates: Sequence[tuple[float, float]]) -> str:
    """Return the only program that prints such a row, where its name is not told.

    Raises
    ------
    InputError
        If several do.
    """
    ratio = max((bus / rate for rate, bus in rates if rate >= 1.0), default=0.0)
    reduces = redop not in {"none", ""}
    if root not in {"-1", ""}:
        return "reduce" if reduces else "broadcast"
    # Ratios are 2 (n - 1) / n of an all-reduce and (n - 1) / n of a reduce-scatter.
    if reduces and ratio:
        return "all_reduce" if ratio > 0.995 else "reduce_scatter"
    raise InputError(
        "does not tell which program measured it",
        expected="a line above the table that names it, e.g. the command or "
        '"# Collective test starting: all_gather_perf"; or a file of that name',
    )


def _check_rates(
    operation: str, num_ranks: int, rates: Sequence[tuple[float, float]]
) -> None:
    """Refuse bandwidths that cannot be of the operation among so many ranks."""
    factor = WIRE_FRACTIONS[operation](num_ranks)
    for rate, bus in rates:
        # Two decimals, one from 100 on, none from 10,000 on: 1 % at 1 GB/s.
        if rate >= 1.0 and abs(bus / rate - factor) > 0.02 * factor:
            raise InputError(
                f"is not measured by {operation} among {num_ranks} ranks",
                got=f"busbw / algbw = {bus / rate:.3g}",
                expected=f"{factor:.3g}, by which nccl-tests multiplies",
                hint="say with --ranks how many there were"
                if operation not in {"broadcast", "send_recv"}
                else "",
            )


def _number(word: str) -> float:
    if not _NUMBER.match(word):
        raise InputError(
            "is not a number", got=word, expected="a time in us or a rate in GB/s"
        )
    return float(word)


def _version(code: str) -> str:
    """Return NCCL's version as people write it; 2.8 and older had four digits."""
    number = int(code[:9])
    if number < 10_000:
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _words(text: str) -> str:
    """Return a name of a log in one readable line."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:100]
