"""The meshes that stages may have: those of a plan, and all that Alpa has.

A plan has one tensor-parallel size and one number of replicas for all its stages. So
what can be proposed is one submesh, one logical mesh and one micro-batch size for all
of them; Alpa itself chooses for each stage.

What Alpa would do with any mesh for each stage: the whole of its own program.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from planner.cost.choices import RECOMPUTE_MODES
from planner.rivals.alpa.meshes import LogicalMesh, MeshCase, Submesh, TwoLevelMesh
from planner.rivals.alpa.stages import MixedSplit, StageCosts, StageModel, mixed_split
from planner.rivals.protocol import allows
from planner.search.space import SearchSpec, divisors, sequence_parallel
from planner.step.execution import Workload
from planner.work import LimitReachedError, Work
from topologies.arrays import FloatArray, IntArray
from topologies.units import format_duration


class PlanSizes(NamedTuple):
    """Sizes of one plan of equal meshes."""

    pp: int
    """Stages."""
    dp: int
    """Replicas: devices of the first axis, or of both."""
    tp: int
    """Tensor-parallel size: devices of the second axis, or 1."""
    ep: int
    """Replicas that share the experts."""
    b: int
    """Sequences of a microbatch on each replica."""


class MeshChoices(NamedTuple):
    """What the meshes of stages follow from."""

    mesh: TwoLevelMesh
    """The cluster as Alpa sees it."""
    workload: Workload
    """Model, job and device."""
    spec: SearchSpec
    """Space that plans are taken from."""

    def recompute_modes(self) -> list[str]:
        """Return the modes to try, each only where nothing fits without it.

        NEST's runs of Alpa recompute nothing.
        """
        return [mode for mode in RECOMPUTE_MODES if mode in self.spec.recompute]

    def plans(
        self, num_units: int, recompute: str = "none"
    ) -> Iterator[tuple[PlanSizes, MeshCase]]:
        """Yield the sizes that a plan may have, and their meshes."""
        batch = self.workload.training.global_batch_size
        for submesh in self.mesh.submeshes():
            pp, left = divmod(self.mesh.num_devices, submesh.size)
            if (
                left
                or pp > num_units
                or not allows(self.spec.pipeline_model_parallel_sizes, pp)
            ):
                continue
            for mesh, plan in self._plan_meshes(submesh):
                sizes = _sizes(mesh, plan)._replace(pp=pp)
                for ep in self._expert_sizes(mesh.first.size):
                    for b in self.spec.micro_batches:
                        candidate = sizes._replace(ep=ep, b=b)
                        if batch % (b * candidate.dp) or not self._is_possible(
                            candidate
                        ):
                            continue
                        sequences = b * candidate.dp
                        yield (
                            candidate,
                            MeshCase(
                                mesh,
                                sequences,
                                batch // sequences,
                                ep,
                                plan,
                                recompute,
                            ),
                        )

    def _plan_meshes(self, submesh: Submesh) -> Iterator[tuple[LogicalMesh, str]]:
        """Yield logical meshes, and what their second axis is for in a plan."""
        forced = [m for m in self.mesh.logical_meshes(submesh) if not m.has_free_batch]
        if submesh.hosts > 1:
            # The mesh (n, 1), all of it for each layer's matrices.
            whole = self.mesh.logical(submesh, 1).first
            forced.append(LogicalMesh(whole.of_size(1), whole))
        for mesh in forced:
            is_inside = mesh.first.size > 1 or submesh.hosts == 1
            for plan in ("tensor", "data"):
                if plan == "data" and (mesh.second.size == 1 or not is_inside):
                    continue
                if self._allows_mesh(mesh, plan):
                    yield mesh, plan

    def _allows_mesh(self, mesh: LogicalMesh, plan: str) -> bool:
        sizes = _sizes(mesh, plan)
        return allows(self.spec.tensor_model_parallel_sizes, sizes.tp) and allows(
            self.spec.data_parallel_sizes, sizes.dp
        )

    def _expert_sizes(self, dp: int) -> list[int]:
        experts = divisors(max(self.workload.graph.spec.num_moe_experts, 1))
        chosen = self.spec.expert_model_parallel_sizes or experts
        return [ep for ep in sorted(chosen) if dp % ep == 0]

    def _is_possible(self, sizes: PlanSizes) -> bool:
        degrees = Degrees(
            sizes.tp, 1, sizes.ep, sizes.b, sequence_parallel(self.spec, sizes.tp)
        )
        return divisibility_problem(self.workload.graph.spec, degrees) is None

    def sequences(self, num_units: int) -> list[int]:
        """Return the sequences of a microbatch that the plans have, rising."""
        return sorted({case.sequences for _, case in self.plans(num_units)})

    def cases(
        self, submesh: Submesh, sequences: int, recompute: str
    ) -> Iterator[MeshCase]:
        """Yield all meshes that Alpa has for a stage on a submesh.

        Axes keep to the sizes of the space; the mesh with free batch to those of
        tensor parallelism.
        """
        count = self.workload.training.global_batch_size // sequences
        experts = self.workload.graph.spec.num_moe_experts
        for mesh in self.mesh.logical_meshes(submesh):
            if not mesh.has_free_batch and sequences % mesh.first.size:
                continue
            if mesh.has_free_batch and mesh.first.size == 1:
                continue
            tps = self.spec.tensor_model_parallel_sizes
            if mesh.has_free_batch and not allows(tps, mesh.first.size):
                continue
            plan = ""
            if not mesh.has_free_batch and not self._allows_mesh(mesh, "tensor"):
                if not self._allows_mesh(mesh, "data"):
                    continue
                plan = "data"
            shared = math.gcd(mesh.first.size, experts) if experts else 1
            eps = [ep for ep in self._expert_sizes(mesh.first.size) if shared % ep == 0]
            for ep in [ep for ep in eps if ep > 1] or [1]:
                yield MeshCase(mesh, sequences, count, ep, plan, recompute)


def _sizes(mesh: LogicalMesh, plan: str) -> PlanSizes:
    """Return replicas and tensor ranks of a mesh, and 1 for all other sizes."""
    first, second = mesh.first.size, mesh.second.size
    if plan == "data":
        return PlanSizes(1, first * second, 1, 1, 1)
    return PlanSizes(1, first, second, 1, 1)


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
        free = self.best(price, likely)
        gain = 0.0 if free.split is None else price / free.time - 1.0
        limit = "" if free.is_exact else " that was looked at"
        if gain < SMALLEST_GAIN:
            return (
                f"by its own model no mesh for each stage{limit} is faster than one "
                f"mesh for all by {SMALLEST_GAIN:.1%} or more, however operators are "
                "sharded."
            )
        least = "" if free.is_exact else "at least "
        return (
            "by its own model a mesh for each stage and shardings for each operator, "
            f"which no plan here can say, would take {format_duration(free.time)} "
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
