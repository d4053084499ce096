"""Which public launch files import at the first try, or with what the error asked for.

``python -m tests.nestsim.launch.public FOLDER`` reads the files that ``LIST.tsv`` in
the folder names first in each line, or all files there are. Nothing is executed.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from estimators.models.library import model_names
from nestsim.launch.command import import_launch
from nestsim.launch.read import LaunchSource
from nestsim.launch.readers import READERS
from topologies.errors import InputError

DEVICES = 768
"""Devices that are given where an error asks how many: 2^8 times 3."""


class Trial(NamedTuple):
    """What became of one file."""

    file: str
    """Path in the folder."""
    kind: str
    """Format that it was taken for."""
    outcome: str
    """``first``, ``second`` or ``no``."""
    why: str
    """What the second try was given, or the last error."""


def trials(folder: Path) -> Iterator[Trial]:
    """Yield what becomes of each file of a folder."""
    listed = folder / "LIST.tsv"
    if listed.is_file():
        lines = listed.read_text().splitlines()
        names = [line.partition("\t")[0] for line in lines]
    else:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(folder)) for path in files]
    for name in names:
        yield _trial(folder / name, name)


def _trial(path: Path, name: str) -> Trial:
    text = path.read_text("utf-8", errors="replace")
    source = LaunchSource(path=path, text=text)
    kinds = (kind for kind, reader in READERS.items() if reader.recognizes(source))
    kind = next(kinds, "-")
    try:
        import_launch(path)
    except InputError as error:
        given = asked(str(error), f"{name} {text}")
        if not given:
            return Trial(name, kind, "no", _line(error))
    else:
        return Trial(name, kind, "first", "")
    try:
        import_launch(path, given=given)
    except InputError as error:
        return Trial(name, kind, "no", f"{given}: {_line(error)}")
    return Trial(name, kind, "second", str(given))


def asked(error: str, text: str) -> dict[str, Any]:
    """Return the settings beside a file that an error asks for.

    Parameters
    ----------
    error
        The error's text.
    text
        The file's path and text, which may name the model.
    """
    given: dict[str, Any] = {}
    if settings := re.findall(r"--set (\w+)=(?:(\w+)|\.\.)", error):
        given["variables"] = {name: value or "x" for name, value in settings}
    if "--num-devices" in error:
        given["num_devices"] = DEVICES
    if given:
        return given
    if "--model" in error:
        plain = re.sub(r"[^a-z0-9]", "", text.lower())
        places = {
            model: plain.find(re.sub(r"[^a-z0-9]", "", model))
            for model in model_names()
        }
        named = [model for model, place in places.items() if place >= 0]
        named.sort(key=lambda model: (places[model], -len(model)))
        return {"model": named[0]} if named else {}
    return {}


def _line(error: InputError) -> str:
    """Return the first line of an error, without the file's name."""
    return str(error).splitlines()[0].partition(": ")[2] or str(error)


def main() -> int:
    """Print the table, and how many files import."""
    found = list(trials(Path(sys.argv[1])))
    width = max(len(trial.file) for trial in found)
    lines = [
        f"{trial.file:{width}}  {trial.kind:13}  {trial.outcome:6}  {trial.why}"
        for trial in found
    ]
    counts = {
        kind: sum(trial.outcome == kind for trial in found)
        for kind in ("first", "second", "no")
    }
    lines.append(f"{len(found)} files: {counts}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
