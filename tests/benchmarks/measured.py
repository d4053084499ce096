"""What measurements in processes of their own have in common."""

import json
import math
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

Row = dict[str, Any]


def peak_bytes() -> int:
    """Return the most memory that this process has held [byte].

    On Linux ``ru_maxrss`` counts the parent's memory too, if that was larger when it
    started this process (``exec`` keeps the maximum); ``VmHWM`` does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return 1024 * int(fields["VmHWM"].split()[0])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_apart(command: Sequence[str], longest: float) -> Row | str:
    """Measure once in a process of its own; a word on why where there is no result."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, timeout=longest, stdout=subprocess.PIPE, check=True
        )
    except subprocess.TimeoutExpired:
        return f"killed after {longest:g} s"
    except subprocess.CalledProcessError as error:
        return f"died with status {error.returncode}"
    measured: Row = json.loads(done.stdout)
    return measured


def tell(text: str) -> None:
    """Say on standard error how far it is."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def markdown(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    formats: Mapping[str, str],
    words: Collection[str],
) -> str:
    """Return the rows as a Markdown table, aligned for plain text too.

    Parameters
    ----------
    rows
        One for each case.
    columns
        Key -> heading of each column.
    formats
        Key -> how its numbers are written, where not as whole numbers.
    words
        Keys of the columns that hold words.
    """
    cells = [list(columns.values())]
    cells += [
        [_cell(row.get(key), formats.get(key, ",")) for key in columns] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [key in words for key in columns]
    rule = [
        "-" * width if to_left else "-" * (width - 1) + ":"
        for width, to_left in zip(widths, left, strict=True)
    ]
    lines = [
        [
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(line, widths, left, strict=True)
        ]
        for line in [cells[0], rule, *cells[1:]]
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(value: Any, how: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return value if isinstance(value, str) else format(value, how)
