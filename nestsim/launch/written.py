"""What is written for a framework: its files, and what they cannot say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchGap:
    """Something of the plan that the framework's configuration has no words for."""

    setting: str
    """What of the plan, under the name that [plan] or [training] has for it."""

    value: object
    """What the plan says there."""

    reason: str
    """Why it cannot be expressed, and what the launch does instead, in a sentence."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"setting": self.setting, "value": self.value, "reason": self.reason}

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.setting} = {self.value}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """Launch configuration of one plan."""

    files: Mapping[str, str | bytes]
    """Content of each file by its name; the first one is what people look at."""

    gaps: tuple[LaunchGap, ...] = ()
    """What the plan says and the files do not."""

    notes: tuple[str, ...] = ()
    """What users must still fill in or know, a sentence each: paths of data, host
    names, versions."""
