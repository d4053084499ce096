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
from planner.planners.alpa.mesh import LogicalMesh, Submesh, TwoLevelMesh
from planner.planners.alpa.strategies import MeshCase
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
    """Replicas: devices of the first axis."""
    tp: int
    """Tensor-parallel size: devices of the second axis."""
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
            for mesh in self._plan_meshes(submesh):
                dp, tp = mesh.first.size, mesh.second.size
                for ep in self._expert_sizes(dp):
                    for b in self.micro_batch_sizes():
                        sizes = PlanSizes(pp, dp, tp, ep, b)
                        if batch % (b * dp) or not self._is_possible(sizes):
                            continue
                        count = batch // (b * dp)
                        case = MeshCase(mesh, b * dp, count, ep, True, recompute)
                        yield sizes, case

    def _plan_meshes(self, submesh: Submesh) -> Iterator[LogicalMesh]:
        """Yield logical meshes whose second axis is tensor parallelism."""
        forced = [m for m in self.mesh.logical_meshes(submesh) if not m.has_free_batch]
        if submesh.hosts > 1:
            # The mesh (n, 1), all of it for each layer's matrices.
            whole = self.mesh.logical(submesh, 1).first
            forced.append(LogicalMesh(whole.of_size(1), whole))
        yield from (mesh for mesh in forced if self._allows_mesh(mesh))

    def _allows_mesh(self, mesh: LogicalMesh) -> bool:
        spec = self.spec
        return _allows(spec.tensor_model_parallel_sizes, mesh.second.size) and _allows(
            spec.data_parallel_sizes, mesh.first.size
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
            if not mesh.has_free_batch and not self._allows_mesh(mesh):
                continue
            shared = math.gcd(mesh.first.size, experts) if experts else 1
            eps = [ep for ep in self._expert_sizes(mesh.first.size) if shared % ep == 0]
            for ep in [ep for ep in eps if ep > 1] or [1]:
                yield MeshCase(mesh, sequences, count, ep, False, recompute)


def _allows(sizes: tuple[int, ...] | None, size: int) -> bool:
    return sizes is None or size in sizes
