"""The columns that flows are collected in, family by family.

A family is a number of flows of one kind, whose properties are one value for all of
them or an array.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.lanes import Lanes, joined
from topologies.arrays import FloatArray, IntArray

NOTHING = -1
"""No replica, no chunk or no flow."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """Flows of one kind; every field is as in `nestsim.simulator.flows.Flows`."""

    kind: int
    stage: int | IntArray
    num_sources: int | IntArray
    num_bytes: float | FloatArray
    num_steps: int
    """How often the latency of the slowest lane is paid."""
    lanes: Lanes
    """Of all flows of the family."""
    chunk: int | IntArray = NOTHING
    replica: int | IntArray = NOTHING


@dataclass(slots=True)
class Columns:
    """Families in the order in which they were added."""

    families: list[Family] = field(default_factory=list)
    num_flows: int = 0

    def add(self, family: Family) -> int:
        """Add a family; return the number of its first flow."""
        first = self.num_flows
        self.families.append(family)
        self.num_flows += family.lanes.counts.size
        return first

    def column(self, name: str, dtype: type[Any] = np.int64) -> NDArray[Any]:
        """Return one property of all flows."""
        column = np.zeros(self.num_flows, dtype=dtype)
        first = 0
        for family in self.families:
            last = first + family.lanes.counts.size
            column[first:last] = getattr(family, name)
            first = last
        return column

    def lanes(self) -> Lanes:
        """Return the lanes of all flows."""
        return joined([family.lanes for family in self.families])
