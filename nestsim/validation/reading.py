"""Read one row, and remember what had to be assumed."""

import re

from nestsim.presets import Preset, find_preset
from nestsim.validation.columns import Row
from nestsim.validation.refusals import RowRefusedError

COUNT = r"(?<![0-9])([1-9][0-9]{0,8})"
"""Of something that is described in words, as a pattern."""

RATE = r"(?<![0-9.])([0-9]{1,9}(?:\.[0-9]{1,9})?)"
"""A number with or without a fraction, likewise."""


_UNSTATED = re.compile(
    r"(not|none) (stated|set|given|said|in (the )?(table|config))\b"
    r"|(config|recipe|script|source) does not (set|say|state)|unknown\b"
)


def is_unstated(written: str) -> bool:
    """Tell whether a description says nothing: it is empty, or begins with that."""
    return not written or _UNSTATED.match(written) is not None


def _software(row: Row) -> str:
    """Return the software's description; where there is none, that of the source."""
    written = row.words("software")
    return written or " ".join((row.words("source"), row.words("zero_or_fsdp")))


class Reading:
    """A row that is being turned into a plan, and the assumptions made on the way."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.assumed: list[str] = []
        self.assumes_layout = False
        """Whether a size that decides the time is not the row's."""
        self.preset: Preset
        written = _software(row)
        if row.words("accelerator").lower().startswith("tpu"):
            # Whatever runs there goes through XLA.
            written += " xla"
        elif "distributed optimizer" in row.words("zero_or_fsdp").lower():
            # Megatron-LM has it since its core is a library of its own; others call
            # theirs otherwise.
            written = written.replace("Megatron-LM", "Megatron-Core")
            if find_preset(written)[1]:
                written = "Megatron-Core"
        self.preset, sentence = find_preset(written)
        if not row.words("software"):
            known = "" if sentence else ", by the source"
            sentence = f"software = {self.preset.name}{known}"
        if sentence:
            self.assume(sentence)

    def words(self, column: str) -> str:
        """Return the text of a column in small letters."""
        return self.row.words(column).lower()

    def needed(self, column: str) -> int:
        """Return a whole number that decides the result.

        Raises
        ------
        RowRefusedError
            If it is not stated.
        """
        value = self.row.whole(column)
        if value is None:
            raise RowRefusedError("missing-column", f"{column} is empty")
        return value

    def given(self, column: str, default: int) -> int:
        """Return a whole number, or the default, which is noted."""
        value = self.row.whole(column)
        if value is None:
            self.assume(f"{column} = {default}")
            return default
        return value

    def assume(self, sentence: str) -> None:
        """Note what the row does not say, once."""
        if sentence not in self.assumed:
            self.assumed.append(sentence)
