"""Accelerators as people write them: ``H100-80GB-SXM (GCP A3)``, ``TPU v7 (Ironwood)``.

What a description may say is derived from the catalogue: an entry's name without the
board and the memory in it, with or without blanks between letters and digits, and what
the entry is ``also_called``. Of entries with one name the board and the memory tell
which is meant; a board or a memory that the catalogue lacks is another device.
"""

import re
from functools import cache
from typing import NamedTuple

from nestsim.features.validation.reading import name_pattern
from topologies.accelerators import (
    accelerator_names,
    catalogue_table,
    load_accelerator,
)

_CARDS = r"\b(pcie|nvl)\b"
"""Pattern of boards that are cards: with links and clocks other than a module's."""

_BOARD = re.compile(rf"{_CARDS}|\bsxm")
_MEMORY = re.compile(r"(?<![0-9.])([0-9]{2,3})[ -]?gi?b\b")

_GIB, _WIDTH = 2.0**30, 0.1
"""What a memory may differ by, relative: GB for GiB, and what a vendor rounds up."""

_PCIE_RATE = 64e9
"""The most that 16 lanes of PCIe 5.0 carry, one direction [byte/s]."""


class DeviceName(NamedTuple):
    """An entry of the catalogue as descriptions name it."""

    entry: str
    """Name in the catalogue."""

    pattern: re.Pattern[str]
    """Pattern of the device, whatever its board and memory."""

    board: str
    """``"pcie"``, ``"nvl"`` or, of a module, nothing."""

    memory: float
    """Memory of the device [GiB]."""

    is_card: bool
    """Whether all devices of the name are cards, which have no link but PCIe."""

    def agrees(self, board: str, memory: float | None) -> bool:
        """Return whether a board and a memory may be this entry's."""
        fits = memory is None or abs(self.memory / memory - 1.0) <= _WIDTH
        return fits and (self.board == board or (board == "pcie" and self.is_card))


@cache
def device_names() -> tuple[DeviceName, ...]:
    """Return all entries of the catalogue as descriptions name them."""
    return tuple(map(_device_name, accelerator_names()))


def _device_name(entry: str) -> DeviceName:
    device = load_accelerator(entry)
    board = re.search(_CARDS, entry)
    words = [word for word in entry.split("-") if not _BOARD.match(word)]
    stem = "-".join(word for word in words if not _MEMORY.fullmatch(word))
    called = [stem, *catalogue_table(entry).get("also_called", ())]
    return DeviceName(
        entry=entry,
        pattern=re.compile("|".join(map(name_pattern, called))),
        board=board[0] if board else "",
        memory=device.memory_bytes / _GIB,
        is_card=not board and device.interconnect_bandwidth <= _PCIE_RATE,
    )


def find_device(written: str, memory: float | None) -> tuple[str | None, bool]:
    """Return the entry of the catalogue that is meant, and whether its memory is open.

    Parameters
    ----------
    written
        Description, in small letters. The device that it names first counts.
    memory
        Memory that a column states beside it [GB]; where several entries agree with
        the description, the nearest counts, without it the largest.

    Returns
    -------
    tuple
        No entry if none agrees with board and memory.
    """
    starts = {
        name: match.start()
        for name in device_names()
        if (match := name.pattern.search(written))
    }
    first = min(starts.values(), default=0)
    board, stated = re.search(_CARDS, written), _MEMORY.search(written)
    size = float(stated[1]) if stated else None
    agreeing = [
        name
        for name, start in starts.items()
        if start == first and name.agrees(board[0] if board else "", size)
    ]
    if not agreeing:
        return None, False
    near = memory or size
    if near is None:
        largest = max(agreeing, key=lambda name: name.memory)
        return largest.entry, len(agreeing) > 1
    return min(agreeing, key=lambda name: abs(name.memory - near)).entry, False
