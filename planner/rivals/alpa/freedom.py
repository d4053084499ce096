"""What Alpa would do with any mesh for each stage: the whole of its own program."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.rivals.alpa.choices import MeshChoices
from planner.rivals.alpa.pipeline import MixedSplit, mixed_split
from planner.rivals.alpa.stages import StageCosts, StageModel
from planner.work import LimitReachedError, Work
from topologies.arrays import FloatArray, IntArray
from topologies.units import format_duration

MOST_FREEDOM = 4_000_000
"""Units of work after which the program is left where it is: 4 s or so of what is for
a note. What it has found by then is an upper bound of its optimum."""


MOST_ENTRIES = 2 * 10**7
"""Most entries of a recursion that counts stages and devices: half a gigabyte."""

SMALLEST_GAIN = 0.001
"""Relative gain of a mesh for each stage from which it is worth a sentence."""


class FreeChoice(NamedTuple):
    """The best over any mesh for each stage."""

    time: float
    """Time of a step by Alpa's own model, or the bound if none is below it [s]."""
    sequences: int
    """Sequences of a microbatch."""
    split: MixedSplit | None
    """Stages, and the number of each one's submesh; None if none is below the
    bound."""
    is_exact: bool
    """Whether everything was looked at."""


class Freedom(NamedTuple):
    """The unrestricted program on one problem."""

    choices: MeshChoices
    """Meshes that stages may have."""
    model: StageModel
    """What stages cost."""
    recompute: str
    """Recompute mode of all stages."""

    @classmethod
    def of(cls, choices: MeshChoices, model: StageModel, recompute: str) -> "Freedom":
        """Return the program, with an allowance of its own for what is for a note."""
        most = MOST_FREEDOM
        if model.work.limit is not None:
            most = min(most, max(model.work.limit - model.work.spent, 0))
        work = Work(limit=most, time_limit=model.work.time_limit)
        work.note_plan()
        return cls(choices, replace(model, work=work), recompute)

    def best(self, bound: float, likely: int) -> FreeChoice:
        """Return the best split over submeshes, if any is below a bound.

        Parameters
        ----------
        bound
            Step that is known already [s].
        likely
            Sequences of a microbatch to begin with.
        """
        num_units = self.model.workload.chain[1]
        order = self.choices.sequences(num_units)
        order.sort(key=lambda size: (abs(math.log2(size / likely)), size))
        best = FreeChoice(bound, likely, None, True)
        try:
            for sequences in order:
                split = self._split(sequences, best.time)
                if math.isfinite(split.time):
                    best = FreeChoice(split.time, sequences, split, True)
        except LimitReachedError:
            return best._replace(is_exact=False)
        return best

    def note(self, price: float, likely: int) -> str:
        """Say what one mesh for all stages costs against a mesh for each."""
        found = self.best(price, likely)
        gain = 0.0 if found.split is None else price / found.time - 1.0
        limit = "" if found.is_exact else " that was looked at"
        if gain < SMALLEST_GAIN:
            return (
                f"by its own model no mesh for each stage{limit} is faster than one "
                f"mesh for all by {SMALLEST_GAIN:.1%} or more, however operators are "
                "sharded."
            )
        least = "" if found.is_exact else "at least "
        return (
            "by its own model a mesh for each stage and shardings for each operator, "
            f"which no plan here can say, would take {format_duration(found.time)} "
            f"instead of {format_duration(price)}: the restriction costs {least}"
            f"{gain:.1%}."
        )

    def _split(self, sequences: int, bound: float) -> MixedSplit:
        submeshes = self.choices.mesh.submeshes()
        costs = [
            [
                costs
                for case in self.choices.cases(submesh, sequences, self.recompute)
                if (costs := self.model.costs(case)) is not None
            ]
            for submesh in submeshes
        ]
        sizes = np.array([submesh.size for submesh in submeshes], dtype=np.int64)
        count = self.model.workload.training.global_batch_size // sequences
        devices = self.choices.mesh.num_devices
        # First as if no stage's memory depended on those that follow it.
        free = self._times(costs, (0,))
        if self._least(free, sizes) * count / devices >= bound:
            return MixedSplit(math.inf, ())
        work = self.model.work
        split = mixed_split(free, sizes, devices, count, bound, work)
        if not math.isfinite(split.time) or self._holds(split, costs, free):
            return split
        depth = min(free.shape[2], devices)
        if (depth + 1) ** 2 * (devices + 1) > MOST_ENTRIES:
            raise LimitReachedError
        staged = self._times(costs, tuple(range(depth)))
        return mixed_split(staged, sizes, devices, count, bound, work)

    def _times(
        self, costs: list[list[StageCosts]], later: tuple[int, ...]
    ) -> FloatArray:
        """Return the least time of each stage on each submesh, by stages behind it."""
        units = self.model.workload.chain[1]
        times = np.full((len(later), len(costs), units, units), np.inf)
        for mesh, found in enumerate(costs):
            for time, most in found:
                for row, number in enumerate(later):
                    allowed = np.where(most >= number, time, np.inf)
                    np.minimum(times[row, mesh], allowed, out=times[row, mesh])
        return times

    def _least(self, times: FloatArray, sizes: IntArray) -> float:
        """Return the least time that one device would need for all stages [s]."""
        whole = (times[0] * sizes[:, None, None]).min(axis=0)
        units = len(whole)
        least = np.full(units + 1, np.inf)
        least[units] = 0.0
        for first in range(units - 1, -1, -1):
            least[first] = (whole[first, first:] + least[first + 1 :]).min()
        return float(least[0])

    def _holds(
        self, split: MixedSplit, costs: list[list[StageCosts]], free: FloatArray
    ) -> bool:
        """Tell whether memory allows a split that was found as if it were no matter."""
        count = len(split.stages) - 1
        for place in range(count):
            first, mesh = split.stages[place]
            last = split.stages[place + 1][0] - 1
            later = count - 1 - place
            if not any(
                time[first, last] <= free[0, mesh, first, last]
                and most[first, last] >= later
                for time, most in costs[mesh]
            ):
                return False
        return True
