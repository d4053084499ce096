"""The meshes that stages may have: those of a plan, and all that Alpa has.

A plan has one tensor-parallel size and one number of replicas for all its stages. So
what can be proposed is one submesh, one logical mesh and one micro-batch size for all
of them; Alpa itself chooses for each stage.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from planner.cost.classes import RECOMPUTE_MODES
from planner.rivals.alpa.mesh import LogicalMesh, Submesh, TwoLevelMesh
from planner.rivals.alpa.strategies import MeshCase
from planner.search.space import (
    LARGEST_MICRO_BATCH,
    SearchSpec,
    divisors,
    sequence_parallel,
)
from planner.step.execution import Workload


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

    def micro_batch_sizes(self) -> list[int]:
        """Return the micro-batch sizes of the space, rising."""
        powers = [2**k for k in range(LARGEST_MICRO_BATCH.bit_length())]
        return sorted(self.spec.micro_batch_sizes or powers)

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
                or not _allows(self.spec.pipeline_model_parallel_sizes, pp)
            ):
                continue
            for mesh, plan in self._plan_meshes(submesh):
                sizes = _sizes(mesh, plan)._replace(pp=pp)
                for ep in self._expert_sizes(mesh.first.size):
                    for b in self.micro_batch_sizes():
                        found = sizes._replace(ep=ep, b=b)
                        if batch % (b * found.dp) or not self._is_possible(found):
                            continue
                        sequences = b * found.dp
                        yield (
                            found,
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
        return _allows(self.spec.tensor_model_parallel_sizes, sizes.tp) and _allows(
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
            if mesh.has_free_batch and not _allows(tps, mesh.first.size):
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


def _allows(sizes: tuple[int, ...] | None, size: int) -> bool:
    return sizes is None or size in sizes
