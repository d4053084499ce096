"""A program that does what no program should, for tests of what notices it."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType


def _raise() -> int:
    raise KeyError("weight")


def _spin() -> int:
    while True:
        pass


def _sleep() -> int:
    time.sleep(3600)
    return 0


def _die() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _allocate() -> int:
    return len(bytearray(8 * 2**30)) and 0


def _leave_half() -> int:
    Path("out").mkdir()
    Path("out/.result.partial").write_text("half", encoding="utf-8")
    return 0


def _write_elsewhere() -> int:
    Path("elsewhere.txt").write_text("x", encoding="utf-8")
    return 0


def _overwrite() -> int:
    Path("scenario.toml").write_text("x", encoding="utf-8")
    return 0


def _refuse(message: str) -> int:
    sys.stderr.write(message)
    return 2


_WAYS: Mapping[str, Callable[[], int]] = MappingProxyType(
    {
        "raise": _raise,
        "spin": _spin,
        "sleep": _sleep,
        "die": _die,
        "allocate": _allocate,
        "leave-half": _leave_half,
        "write-elsewhere": _write_elsewhere,
        "overwrite": _overwrite,
        "say-nothing": lambda: _refuse(""),
        "name-nothing": lambda: _refuse("it is wrong\n"),
        "go-on-and-on": lambda: _refuse("scenario.toml: " + "x" * 9000),
        "escape": lambda: _refuse("scenario.toml: is \x1b[31mred\n"),
        "refuse": lambda: _refuse("scenario.toml: name: is missing\n"),
        "answer": lambda: 0,
    }
)


def main(argv: list[str]) -> int:
    """Do what the first argument says; print something else each time for ``vary``."""
    sys.stdout.write(f"{time.perf_counter()}\n" if "vary" in argv else "{}\n")
    if argv[0] == "fail-on-word" and b"boom" in Path("scenario.toml").read_bytes():
        raise ValueError("boom")
    return _WAYS.get(argv[0], lambda: 0)()
