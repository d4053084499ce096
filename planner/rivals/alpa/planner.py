"""``alpa``: an integer program in each stage, a dynamic program over stages.

Alpa [1]_ cuts the cluster into submeshes and the model into stages. In a stage every
operator has a sharding of its own, the cheapest together by an integer program
(`planner.rivals.alpa.program`); stages and submeshes are those of the least time of a
step by a dynamic program (`planner.rivals.alpa.stages`)::

    sum_i t_i + (B - 1) max_i t_i

All devices work, stages send each other nothing, and a stage's memory is looked at
once its shardings are known (`planner.rivals.alpa.stages`). This is Alpa-E, the
extension of the NEST paper, with experts that may be shared among replicas.

A plan of this project has one mesh for all stages, which may hold unlike numbers of
blocks: proposed is the best of those that have (`planner.rivals.alpa.choices`), by
Alpa's own model, the first of them that truly fits, as the framework launches it
(`planner.rivals.launched`). Alpa's microbatch is that of a
whole stage, ``dp`` times the micro-batch size. What the restriction costs by its own
model is told in a note, against the best over all submeshes and shardings.

Differences from the public program: operator times are those of this project on the
shapes that a device has left, for Alpa's profiles and Alpa-E's estimates; the constants
that Alpa-E adds to collectives and its cap on submeshes are left out
(`planner.rivals.alpa.meshes`); no product is free. Weights are sharded as ZeRO-3 does
where the program does so; otherwise as little as the space allows, as in Alpa.
Activations are recomputed only where nothing fits without, by the cheapest mode.

References
----------
.. [1] Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for
   Distributed Deep Learning", OSDI 2022.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.rivals.alpa.choices import Freedom, MeshChoices, PlanSizes
from planner.rivals.alpa.meshes import MeshCase, TwoLevelMesh
from planner.rivals.alpa.sharding import operator_parameters
from planner.rivals.alpa.stages import StageModel, uniform_split
from planner.rivals.launched import MOST_TRIED, Launcher
from planner.rivals.protocol import Planner, PlannerOutcome, PlanRequest, allows
from planner.search.device_kinds import least_memory
from planner.search.space import SearchSpec, sequence_parallel
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import (
    PLAN,
    PRICED_DEVICES,
    SPLIT,
    SPLIT_STEPS,
    LimitReachedError,
    Progress,
    Work,
    stopped_sentence,
)
from topologies import Network


class UniformPlan(NamedTuple):
    """One plan of the restricted program."""

    price: float
    """Time of a step by Alpa's own model [s]."""
    sizes: PlanSizes
    """Sizes of the plan."""
    cuts: tuple[int, ...]
    """First unit of each stage, and the number of units."""
    case: MeshCase
    """Mesh of its stages."""


class Alpa(Planner):
    """Shards operator by operator, on two links of one speed each."""

    name = "alpa"
    sees = (
        "A mesh of two levels: latency and bandwidth of level 0 inside a node and of "
        "the next one between nodes, for each axis of a stage's devices; no transfers "
        "between stages, no oversubscription."
    )

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the best plan of the programs that fits."""
        request.report("alpa: search")
        work = request.work
        search = AlpaSearch.of(*request.problem, work)
        why_not = _refusal(request.workload, request.spec)
        chosen = None
        for recompute in search.choices.recompute_modes() if not why_not else ():
            search.look(recompute)
            chosen, why_not = search.first_fitting()
            if chosen is not None or work.stopped_by:
                break
        notes = () if chosen is None else search.notes(chosen[0], request.progress)
        proposed = None if chosen is None else (chosen[0].price, chosen[1])
        number = search.num_priced
        outcome = search.launcher.outcome(
            work, proposed, why_not, evaluations=number, notes=notes
        )
        statistics = {f"plans priced by {self.name}": number, **search.model.solved}
        return replace(outcome, statistics=statistics)


@dataclass(slots=True, kw_only=True, eq=False)
class AlpaSearch:
    """Both programs on one problem."""

    network: Network
    """Network that plans are written for; the search looks at `choices` only."""
    choices: MeshChoices
    """Meshes that stages may have."""
    model: StageModel
    """What stages cost."""
    work: Work
    """Work that the programs are counted on."""
    launcher: Launcher
    """What holds plans to memory and to the framework."""
    plans: list[UniformPlan] = field(default_factory=list)
    """Plans that fit by its own account."""
    num_priced: int = 0
    """Meshes whose stages were priced."""

    @classmethod
    def of(
        cls, network: Network, workload: Workload, spec: SearchSpec, work: Work
    ) -> "AlpaSearch":
        """Read what Alpa may see of a problem."""
        memory = least_memory(workload, spec.memory_reserve)
        return cls(
            network=network,
            choices=MeshChoices(TwoLevelMesh.of(network), workload, spec),
            model=StageModel.of(workload, memory, work),
            work=work,
            launcher=Launcher.of(network, workload, spec),
        )

    @property
    def num_units(self) -> int:
        """Units of layers that stages are made of."""
        return self.choices.workload.chain[1]

    def look(self, recompute: str) -> None:
        """Price every plan of one mesh, or those that the work suffices for."""
        self.plans.clear()
        next_opening = 8
        try:
            for sizes, case in self.choices.plans(self.num_units, recompute):
                self._price(sizes, case)
                self.num_priced += 1
                if self.num_priced == next_opening and not self.work.has_plan:
                    next_opening *= 2
                    if self.first_fitting()[0] is not None:
                        self.work.note_plan()
        except LimitReachedError:
            pass

    def _price(self, sizes: PlanSizes, case: MeshCase) -> None:
        costs = self.model.costs(case)
        if costs is None:
            return
        steps = sizes.pp * self.num_units**2
        self.work.spend(SPLIT + 8 * steps // SPLIT_STEPS)
        split = uniform_split(
            costs.time, costs.most_later, sizes.pp, case.num_microbatches
        )
        if math.isfinite(split.time):
            self.plans.append(UniformPlan(split.time, sizes, split.cuts, case))

    def first_fitting(self) -> tuple[tuple[UniformPlan, Plan] | None, str]:
        """Return the first plan by its own price that truly fits, or why none does."""
        chosen, why_not = self.launcher.first_launched(self._proposals())
        return chosen, "" if chosen else why_not or self._why_not()

    def _proposals(self) -> Iterator[tuple[UniformPlan, Plan]]:
        """Yield the best plans by its own price, written out."""
        best = heapq.nsmallest(MOST_TRIED, self.plans, key=lambda plan: plan[:3])
        for uniform in best:
            self.work.count(PLAN + self.network.num_devices // PRICED_DEVICES)
            yield uniform, self.plan(uniform)

    def plan(self, uniform: UniformPlan) -> Plan:
        """Write one of its plans out, each stage on consecutive devices."""
        spec, sizes = self.choices.spec, uniform.sizes
        zero = min(spec.zero_stages)
        if 3 in spec.zero_stages and self._shards_weights(uniform):
            zero = 3
        return build_plan(
            self.network,
            self.choices.workload,
            PlanSpec(
                micro_batch_size=sizes.b,
                tensor_model_parallel_size=sizes.tp,
                pipeline_model_parallel_size=sizes.pp,
                data_parallel_size=sizes.dp,
                expert_model_parallel_size=sizes.ep,
                sequence_parallel=sequence_parallel(spec, sizes.tp),
                num_layers_per_pipeline_stage=tuple(np.diff(uniform.cuts).tolist()),
                recompute=uniform.case.recompute,
                zero_stage=zero if sizes.dp > 1 else min(spec.zero_stages),
            ),
        )

    def _shards_weights(self, uniform: UniformPlan) -> bool:
        """Tell whether the first stage shards most of its weights over replicas."""
        if uniform.sizes.dp == 1:
            return False
        graph = self.choices.workload.graph
        sharded = whole = 0
        for kind, chosen in self.model.strategies(uniform.case, 0, uniform.cuts[1] - 1):
            layer = graph.layers[kind]
            for operator, name in zip(layer.operators, chosen, strict=True):
                count = operator_parameters(layer, operator)
                whole += count
                sharded += count * ("shard" in name)
        return 2 * sharded > whole

    def _why_not(self) -> str:
        """Say what left the program without a plan."""
        if self.work.stopped_by:
            meshes = f"{self.num_priced:,} meshes"
            return stopped_sentence(self.work.total(), meshes)
        if not self.num_priced:
            return (
                "Devices: no submesh, or power of two of nodes, goes with the sizes of "
                "the space and divides devices and batch."
            )
        return (
            "Memory: by its own account (weights, gradients, optimizer states, and the "
            "activations of each microbatch in flight and of one more) no split fits "
            f"on any of {self.num_priced} meshes."
        )

    def notes(
        self, uniform: UniformPlan, progress: Progress | None = None
    ) -> tuple[str, ...]:
        """Say how a block is sharded, and what one mesh for all stages costs."""
        if self.work.stopped_by:
            return ()
        if progress is not None:
            progress("alpa: any mesh for each stage", None)
        freedom = Freedom.of(self.choices, self.model, uniform.case.recompute)
        note = freedom.note(uniform.price, uniform.case.sequences)
        self.work.count(freedom.model.work.spent)
        return (*self._shardings(uniform), note)

    def _shardings(self, uniform: UniformPlan) -> tuple[str, ...]:
        """Say how the weights of the first block are split over tensor ranks."""
        if uniform.sizes.tp == 1:
            return ()
        graph = self.choices.workload.graph
        layers = self.model.strategies(uniform.case, 0, uniform.cuts[1] - 1)
        first = graph.names.index("block 0")
        operators = graph.layers[graph.kinds[first]].operators
        split = ", ".join(
            f"{operator.name.rpartition('.')[2]} {name.partition('|')[2]}"
            for operator, name in zip(operators, layers[first][1], strict=True)
            if operator.operation == "linear"
        )
        return (f"its integer program splits the first block's weights so: {split}.",)


def _refusal(workload: Workload, spec: SearchSpec) -> str:
    """Say what of a problem Alpa has no way with; empty if nothing."""
    if not workload.graph.layers or not workload.chain[1]:
        return "Model: it needs the traced operators of a chain of blocks."
    if not allows(spec.virtual_pipeline_model_parallel_sizes, 1):
        return "Schedule: it knows 1F1B without virtual stages only."
    if not allows(spec.context_parallel_sizes, 1):
        return "Devices: it knows no context parallelism."
    return ""
