"""The measurements that come with nestsim: published figures, each with its source.

Two tables, about the time of a step and about the memory of a device, in the columns
that every file of measurements has. Numbers are as printed; where a source prints a
rate alone, the time of a step was computed by the source's own count of FLOPs, as the
row's notes say.
"""

from importlib.resources import as_file, files

from nestsim.validation.columns import Measurements, read_measurements

TABLES = ("published.csv", "published_memory.csv")
"""Names of the files, beside this one."""


def published_measurements() -> tuple[Measurements, ...]:
    """Return the tables, time before memory."""
    found = []
    for name in TABLES:
        with as_file(files("nestsim.validation") / name) as path:
            found.append(read_measurements(path))
    return tuple(found)
