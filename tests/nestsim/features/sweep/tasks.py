"""Tasks that tests sweep over, where worker processes can import them."""

import errno
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestsim.running.store import PointFailedError, content_key
from topologies.errors import InputError


def spin(seconds: float) -> None:
    """Work for a while: unlike sleep, in steps of Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Square:
    """Squares ``x``; some points do not go well, as their other settings say."""

    def key(self, point: Mapping[str, Any]) -> str:
        return content_key(dict(point))

    def __call__(self, point: Mapping[str, Any]) -> Mapping[str, Any]:
        x = point["x"]
        time.sleep(point.get("seconds", 0.0))
        spin(point.get("spin", 0.0))
        if "count" in point:  # one letter for each evaluation
            with Path(point["count"]).open("a") as file:
                file.write("x")
        match point.get("mishap"):
            case "input":
                raise InputError("is wrong", where="a.b", got=x, expected="another")
            case "nothing":
                raise PointFailedError("nothing\n fits")
            case "memory":
                raise MemoryError
            case "death":
                os.kill(os.getpid(), signal.SIGKILL)
            case "disk":
                raise OSError(errno.ENOSPC, "No space left on device")
            case "bug":
                raise ZeroDivisionError
        return {"square": x * x, "third": x / 3, "text": f"é{x}"}
