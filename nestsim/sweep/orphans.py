"""Worker processes that end with the sweep that they work for, however it ends."""

import os
import threading
import time

_INTERVAL = 1.0
"""Between two looks at the parent [s]."""


def end_with(parent: int) -> None:
    """Have this process end soon after its parent has.

    A sweep that is killed cannot tell its workers, which would wait for minutes for
    more to do.

    Parameters
    ----------
    parent
        Number of the process that sweeps.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
    os._exit(1)
