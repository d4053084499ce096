"""``mist``: stages of unlike layers, recompute, sharding and offloading, by overlap.

Mist chooses for all stages the tensor-parallel size, the accumulation steps and the
number of stages, and for each its layers, how many of them are recomputed, what is
sharded and what the host keeps (`planner.rivals.mist.tuner`). Its times are those of
its own model of overlap and interference, its memory its own account. Devices are
numbered in Megatron's default order.

Of its choices by its own time the first one that truly fits is proposed, as the
framework launches it (`planner.rivals.launched`). Where all that fit by its own
account do not, it is asked again with less memory, as its users do.

Differences from the public program: layer times and sizes are those of this project's
layer tables in place of measured ones, links are two bandwidths in place of a measured
table, embedding and head are split by tensor parallelism as the blocks are, and that
comes with sequence parallelism where the space has it, which is no planner's choice.
There is no context or expert parallelism.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from estimators.layers.work import Degrees
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.rivals.launched import Launcher
from planner.rivals.mist.cluster import (
    ModelProfile,
    cluster_mesh,
    device_rates,
    model_profile,
)
from planner.rivals.mist.tuner import (
    MICRO_BATCHES,
    TENSOR_SIZES,
    StageChoice,
    Tuned,
    Tuner,
    TunerSpace,
)
from planner.rivals.protocol import (
    NO_SIZES,
    Planner,
    PlannerOutcome,
    PlanRequest,
    allows,
)
from planner.search.device_kinds import least_memory
from planner.search.space import SearchSpec, sequence_parallel
from planner.step.execution import Workload
from planner.step.plan import NO_OFFLOAD, Offload, Plan
from planner.work import (
    LAYER_TABLE,
    PLAN,
    PRICED_DEVICES,
    LimitReachedError,
    Work,
    stopped_sentence,
)
from topologies import Network

LARGEST_HIDDEN_SIZE = 8192
"""Largest hidden size of Mist's layer-norm kernels (its public implementation)."""

MEMORY_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Parts of the memory that it is told of, one after the other until a plan fits."""


class Mist(Planner):
    """Proposes the best plan of Mist's tuner that fits."""

    name = "mist"
    sees = (
        "A table of bandwidths by nodes and devices of a node, and the host's links: "
        "no transfers between stages, no oversubscription, no placement, nothing of "
        "the hierarchy above the node."
    )

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the best plan by Mist's model that fits."""
        request.report("mist: search")
        launcher = Launcher.of(*request.problem)
        search = _MistSearch(*request.problem, request.work, launcher)
        proposed, why_not = None, search.refusal()
        if not why_not:
            proposed, why_not = search.first_fitting()
        return launcher.outcome(
            search.work, proposed, why_not, evaluations=search.num_looked_at
        )


@dataclass(slots=True, eq=False)
class _MistSearch:
    """One job on one cluster."""

    network: Network
    workload: Workload
    spec: SearchSpec
    work: Work
    launcher: Launcher

    _tuners: list[Tuner] = field(default_factory=list)
    _profiles: dict[tuple[int, int], ModelProfile | None] = field(default_factory=dict)

    def refusal(self) -> str:
        """Say what Mist cannot be asked for; empty if it can."""
        model, spec = self.workload.graph.spec, self.spec
        if model.num_moe_experts:
            return "Model: Mist has no mixtures of experts."
        if model.hidden_size > LARGEST_HIDDEN_SIZE:
            return (
                f"Model: Mist's kernels end at a hidden size of "
                f"{LARGEST_HIDDEN_SIZE:,}, and this one is {model.hidden_size:,}."
            )
        for name, what in (
            ("virtual_pipeline_model_parallel_sizes", "1F1B without virtual stages"),
            ("context_parallel_sizes", "plans without context parallelism"),
            ("expert_model_parallel_sizes", "plans without expert parallelism"),
        ):
            if not allows(getattr(spec, name), 1):
                return f"Schedule: it knows {what} only."
        if not {"none", "full"} & set(spec.recompute):
            return "Recompute: it leaves blocks alone or recomputes them as a whole."
        return ""

    def first_fitting(self) -> tuple[tuple[float, Plan] | None, str]:
        """Return the first plan that truly fits and its time by Mist's model, or why.

        The time is in seconds.
        """
        try:
            fitting, why_not = self.launcher.first_launched(self._proposals())
        except LimitReachedError:
            looked_at = f"{self.num_looked_at:,} sizes"
            return None, stopped_sentence(self.work.total(), looked_at)
        if fitting is None:
            return None, why_not or self._why_not()
        self.work.note_plan()
        return (fitting[0], self.launcher.with_cheapest_algorithms(fitting[1])), ""

    def _proposals(self) -> Iterator[tuple[float, Plan]]:
        """Yield the plans of all shares of the memory, those of each best first."""
        for share in MEMORY_SHARES:
            tuner = self._tuner(share)
            self._tuners.append(tuner)
            for tuned in tuner.solutions():
                yield tuned.time, self._plan(tuned)

    def _why_not(self) -> str:
        """Say what left it without a plan to propose."""
        if not any(self._tuner(1.0).sizes()):
            return (
                "Divisibility: no micro-batch of 1, 2 or 4, power of two of "
                "accumulation steps and number of equal stages that the space allows "
                f"makes the batch of {self.workload.training.global_batch_size}."
            )
        if not any(self._profiles.values()):
            return NO_SIZES
        return (
            "Memory: by its own account no choice of layers, recomputed layers and "
            "sharding fits at any of its sizes."
        )

    @property
    def num_looked_at(self) -> int:
        """Sizes whose stages were sampled."""
        return sum(tuner.num_problems for tuner in self._tuners)

    def _tuner(self, share: float) -> Tuner:
        """Return the tuner with a part of the memory."""
        workload, spec = self.workload, self.spec
        zero_stages = tuple(stage for stage in (1, 2, 3) if stage in spec.zero_stages)
        space = TunerSpace(
            mesh=cluster_mesh(self.network),
            num_layers=workload.chain[1],
            global_batch_size=workload.training.global_batch_size,
            memory=share * least_memory(workload, spec.memory_reserve),
            tensor_sizes=_listed(TENSOR_SIZES, spec.tensor_model_parallel_sizes),
            micro_batch_sizes=_listed(MICRO_BATCHES, spec.micro_batch_sizes),
            stage_counts=spec.pipeline_model_parallel_sizes,
            replica_counts=spec.data_parallel_sizes,
            zero_stages=zero_stages or (0,),
            keeps="none" in spec.recompute,
            recomputes="full" in spec.recompute,
            most_offloaded=self._most_offloaded(),
        )
        rates = device_rates(self.network)
        return Tuner(space=space, rates=rates, profile=self._profile, work=self.work)

    def _most_offloaded(self) -> Offload:
        """Return the largest fractions that the space lets hosts keep."""
        if self.network.host is None:
            return NO_OFFLOAD
        return Offload(*map(max, zip(*self.spec.offload, strict=True)))

    def _profile(self, micro_batch_size: int, tensor_size: int) -> ModelProfile | None:
        key = micro_batch_size, tensor_size
        if key not in self._profiles:
            self.work.spend(LAYER_TABLE)
            links = device_rates(self.network).links
            degrees = Degrees(
                tp=tensor_size,
                micro_batch_size=micro_batch_size,
                sequence_parallel=sequence_parallel(self.spec, tensor_size),
            )
            self._profiles[key] = model_profile(self.workload, links, degrees)
        return self._profiles[key]

    def _plan(self, tuned: Tuned) -> Plan:
        """Write a plan out, its collectives rings until it is known to fit."""
        self.work.count(PLAN + self.network.num_devices // PRICED_DEVICES)
        sizes, stages = tuned.sizes, tuned.stages
        weights, gradients, optimizer, activations = (
            tuple(stage.strategy[k] for stage in stages) for k in range(3, 7)
        )
        again = tuple(stage.num_recomputed for stage in stages)
        written = PlanSpec(
            micro_batch_size=sizes.micro_batch_size,
            tensor_model_parallel_size=sizes.tensor_size,
            pipeline_model_parallel_size=sizes.num_stages,
            data_parallel_size=sizes.replicas,
            sequence_parallel=sequence_parallel(self.spec, sizes.tensor_size),
            recompute=tuple("full" if count else "none" for count in again),
            recompute_num_layers=again if any(again) else None,
            zero_stage=tuple(
                self._zero_stage(stage, sizes.replicas) for stage in stages
            ),
            num_layers_per_pipeline_stage=tuple(stage.num_layers for stage in stages),
            offload_weights=weights,
            offload_gradients=gradients,
            offload_optimizer=optimizer,
            offload_activations=activations,
            gradient_algorithm="ring",
            tensor_algorithm="ring",
        )
        return build_plan(self.network, self.workload, written)

    def _zero_stage(self, stage: StageChoice, replicas: int) -> int:
        """Return the stage of ZeRO; none where there is nothing to share."""
        if replicas == 1:
            return min(self.spec.zero_stages)
        return round(sum(stage.strategy[:3]))


def _listed(sizes: tuple[int, ...], allowed: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return those sizes that the space allows."""
    return tuple(size for size in sizes if allows(allowed, size))
