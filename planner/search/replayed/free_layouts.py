"""Layouts beyond those that are listed, proposed from plans that were replayed.

Where a framework takes any number of blocks in each chunk, the listed layouts
(`planner.search.replayed.layouts`) are a few of very many. With 1F1B stages ``i`` and
``i + 1`` wait for each other: ``f_i + x + t_{i+1} + y + b_i`` is no more than two
periods of the pipeline, and likewise the mean of any run of neighbours with what they
send each other. So stages on both sides of a slow boundary should hold fewer blocks,
those between more; which of them depends on what the network makes of transfers that
meet.

From a plan single blocks go from one virtual stage to another, as long as the exact
timeline of the passes gets shorter (`planner.kernels.timeline.deal_anew`), with
transfers that take as long as alone, and some times as long (`CROWDED`): they may meet
on adapters. What comes of it is replayed if by its timeline without meeting it is
faster than the best plan so far. The replay decides; no bound comes of this.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan, rates_of
from planner.frameworks.rules import LAYOUT
from planner.kernels.timeline import (
    BoundaryTimes,
    InstructionLists,
    MovableChain,
    deal_anew,
)
from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.space import Configuration, configuration_of
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES
from planner.work import PLAN
from topologies.arrays import FloatArray, IntArray

CROWDED = (1.0, 1.5, 2.0)
"""How many times as long transfers are taken to be as alone on their links."""

MOST_ROUNDS = 4
"""Most microbatches of a stage that are looked at, in stages."""

MOST_STEPS = 1_500_000
"""Most instructions that are looked at from each beginning."""

STEPS = 60
"""Instructions that take one unit of work."""

_KINDS = FORWARD, BACKWARD, WEIGHT, FORWARD, BACKWARD, FORWARD
"""Kind of the passes in each field of `planner.cost.objective.ChunkTimes`."""

FREE_WORK = 200_000
"""Units of work that free layouts may take of any search."""

FREE_SHARE = 20
"""Divisor of the work of a search: the part that they may take beyond it."""


@dataclass(slots=True, kw_only=True, eq=False)
class FreeLayouts:
    """Proposes layouts from plans, of each configuration and placement once."""

    candidates: LaunchableCandidates
    """The space whose plans these begin from."""

    _seen: set[tuple[Configuration, str]] = field(default_factory=set)
    """Configurations and placements that proposals were made of."""

    _spent: int = 0
    """Units of work that proposals took."""

    def proposed(self, priced: PricedPlan, limit: float) -> Iterator[PricedPlan]:
        """Yield plans of other layouts that may take less than a limit [s].

        None if the framework does not take them, or such a plan was asked about before,
        or more work than `FREE_WORK` and `FREE_SHARE` allow went into them.
        """
        plan, work = priced.plan, self.candidates.work
        key = configuration_of(plan), plan.placement
        is_free = LAYOUT in self.candidates.rules.splits and len(plan.stages) > 1
        if not is_free or not self.candidates.spec.proposals or key in self._seen:
            return
        if self._spent > FREE_WORK + work.spent // FREE_SHARE:
            return
        self._seen.add(key)
        before = work.spent
        work.spend(PLAN)
        dealing = _Dealing.of(self.candidates, priced)
        layouts: dict[tuple[int, ...], None] = {}
        for crowded in CROWDED:
            cuts = dealing.dealt(crowded)
            work.spend(dealing.steps // STEPS)
            if dealing.time(cuts) < limit:
                layouts[tuple(cuts.tolist())] = None
        layouts.pop(tuple(dealing.cuts.tolist()), None)
        for layout in layouts:
            other = _with_layout(plan, layout)
            work.spend(PLAN)
            if self.candidates.is_launchable(other):
                known = price_plan(
                    self.candidates.network, self.candidates.workload, other
                )
                if known.iteration_time < limit and self.candidates.has_room(known):
                    yield known
        self._spent += work.spent - before


@dataclass(slots=True, kw_only=True, eq=False)
class _Dealing:
    """The timeline of a plan whose layers may be dealt out anew."""

    lists: InstructionLists
    """Instructions of the stages."""

    num_listed: int
    """Microbatches of these."""

    more: int
    """Microbatches of the plan beyond them."""

    chain: MovableChain
    """Layers, and who may have how many."""

    cuts: IntArray
    """First layer of each virtual stage, and the number of layers."""

    wires: FloatArray
    """Transfers of activations and of gradients over the boundary after each virtual
    stage, alone on their links, shape ``(2, C - 1)`` [s]."""

    steps: int = 0
    """Instructions that were looked at."""

    @classmethod
    def of(cls, candidates: LaunchableCandidates, priced: PricedPlan) -> "_Dealing":
        """Read a plan and its price."""
        plan, workload = priced.plan, candidates.workload
        p, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
        m = plan.num_microbatches
        listed = min(m, MOST_ROUNDS * p)
        schedule = SCHEDULES[plan.schedule]
        program, virtual = schedule.program(p, listed, v), schedule.virtual_stages(p, v)
        written = schedule.written_kinds(
            program.kind, program.virtual_stage, program.indptr
        )
        table = workload.table(plan.degrees)
        chunks = [
            (plan.stages[stage].chunks[chunk], priced.stages[stage].chunk_times[chunk])
            for stage, chunk in zip(virtual.stage, virtual.chunk, strict=True)
        ]
        cuts = np.array([first for (first, _), _ in chunks] + [table.num_layers])
        times = np.array([passes for _, passes in chunks]).T
        layers = np.zeros((len(times), table.num_layers + 1))
        for row, kind in enumerate(_KINDS):
            of_layer = table.forward_time if kind == FORWARD else table.backward_time
            layers[row, 1:] = np.cumsum(of_layer)
        weights = np.diff(layers[:, cuts], axis=1)
        blocks = np.diff(np.append(0.0, np.cumsum(table.is_block))[cuts])
        with np.errstate(divide="ignore", invalid="ignore"):
            paces = times / weights
        holds = (blocks > 0) & (weights > 0.0).all(axis=0)
        paces[:, ~holds] = paces[:, holds].mean(axis=1, keepdims=True)
        least = np.diff(cuts) - blocks.astype(np.int64)
        least[1:-1] += 1
        if v == 1 or not candidates.rules.empty_ends:
            least[[0, -1]] += 1
        sent = rates_of(candidates.network, workload, plan)
        both = np.stack([sent.activation, sent.gradient], axis=-1).max(axis=1)
        laid = virtual.after_each(both)
        wires = laid[:, 0] + laid[:, 1] * priced.stages[0].boundary_bytes
        return cls(
            lists=InstructionLists(*program),
            num_listed=listed,
            more=m - listed,
            chain=MovableChain(
                np.ascontiguousarray(layers),
                np.ascontiguousarray(paces),
                written.copy(),
                virtual.stage.copy(),
                _most_layers(candidates, priced, blocks[virtual.number].sum(axis=1)),
                least,
                np.append(0.0, np.cumsum(table.parameters)),
                _step_ends(priced, table.parameters),
            ),
            cuts=cuts,
            wires=np.ascontiguousarray(wires.T),
        )

    def dealt(self, crowded: float) -> IntArray:
        """Deal layers out for transfers that take some times as long as alone."""
        return self._deal(self.cuts, crowded, MOST_STEPS)[0]

    def time(self, cuts: IntArray) -> float:
        """Return when the step ends, about, where transfers never meet [s]."""
        return self._deal(cuts, 1.0, 0)[1]

    def _deal(
        self, cuts: IntArray, crowded: float, most: int
    ) -> tuple[IntArray, float]:
        forward, backward = crowded * self.wires
        at_once = np.zeros_like(forward)
        boundaries = BoundaryTimes(forward, backward, at_once, at_once)
        dealt, time, steps = deal_anew(
            self.lists, self.num_listed, self.chain, cuts, boundaries, most, self.more
        )
        self.steps = steps
        return dealt, time


def _step_ends(priced: PricedPlan, parameters: FloatArray) -> FloatArray:
    """Return what each stage takes after its last pass, as `MovableChain` has it [s].

    Of what it takes if nothing is hidden the part that is exposed of the whole plan.
    """
    tied = np.array([cost.tied_time for cost in priced.stages])
    ends = np.array([cost.step_end_time for cost in priced.stages])
    after = priced.iteration_time - priced.pipeline_time
    exposed = min(1.0, after / ends.max()) if ends.max() > 0.0 else 0.0
    held = [
        sum(float(parameters[first : last + 1].sum()) for first, last in stage.chunks)
        for stage in priced.plan.stages
    ]
    return exposed * np.stack([tied, (ends - tied) / held])


def _most_layers(
    candidates: LaunchableCandidates, priced: PricedPlan, blocks: FloatArray
) -> IntArray:
    """Return the most layers of each stage, by about what their memory leaves room for.

    As if all that a stage holds grew with its blocks, shape ``(p,)``.
    """
    most = []
    for stage, cost, count in zip(
        priced.plan.stages, priced.stages, blocks, strict=True
    ):
        reserve = candidates.spec.memory_reserve
        room = candidates.workload.memory_on(stage.devices, reserve) / cost.peak_memory
        held = sum(last + 1 - first for first, last in stage.chunks)
        most.append(held + int(count * max(room - 1.0, 0.0)))
    return np.array(most)


def _with_layout(plan: Plan, cuts: tuple[int, ...]) -> Plan:
    """Return a plan with other first layers of its virtual stages."""
    v = plan.virtual_pipeline_model_parallel_size
    number = SCHEDULES[plan.schedule].virtual_stages(len(plan.stages), v).number
    stages = tuple(
        replace(stage, chunks=tuple((cuts[k], cuts[k + 1] - 1) for k in held))
        for stage, held in zip(plan.stages, number.tolist(), strict=True)
    )
    return replace(plan, stages=stages)
