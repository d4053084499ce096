"""Plan beside replay: whether the promise is kept, and why not."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Simulated minus planned iteration time, by cause."""

    total: float
    """[s]; positive when the replay is slower."""

    terms: Mapping[str, float]
    """Cause -> share of `total` [s]; they add up to it: ``"schedule"`` (the exact
    timeline instead of the closed form), ``"contention"`` (transfers that shared
    links), ``"synchronisation"`` (gradient collectives beside the plan's estimate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the replay says of a plan."""

    kind: str
    """``"confirmed"``, ``"slower"`` or ``"infeasible"``."""

    reason: str
    """One sentence that names the cause: which link, which stage, which term."""

    gap: Gap
    """The difference in time."""
