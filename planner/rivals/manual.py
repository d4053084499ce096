"""``manual``: what a competent user of Megatron-LM writes down.

Nothing is searched: rules of thumb leave a few plans, and the cheapest of them by the
common price (`planner.cost.pricing`) is taken, as a user takes the fastest of a few
trials.

1. Every device works: ``tp cp pp dp = N`` if sizes allow it, or as many as they do;
   ``dp`` times the micro-batch size divides the global batch.
2. Tensor parallelism stays inside a node, in powers of two ([1]_, takeaway 1), with
   sequence parallelism beside it ([2]_). Experts are spread by expert parallelism as
   far as a node goes with it, and further only where memory asks for that ([3]_).
   Sequences of 8k tokens or more may be split by context parallelism, those of 32k
   are ([3]_).
3. The model-parallel size ``tp cp pp`` is the least that fits in memory, the rest is
   data parallelism ([1]_, takeaway 2), with the distributed optimizer (ZeRO-1) where
   there are several replicas. It is looked for without recompute first; selective
   recompute is tried only where it fits in less, full recompute only where that fits
   in less again ([2]_; [3]_ recomputes last). All ways to write the size as
   ``tp cp pp`` are tried, and those of twice the least size, which leave room for
   larger micro-batches, with the lightest recompute that fits.
4. Stages, and their chunks, hold equally many blocks. Where the blocks do not split,
   embedding and loss count as blocks (``account_for_embedding_in_pipeline_split``,
   ``account_for_loss_in_pipeline_split``: 126 blocks and two ends over 16 stages of 8
   chunks in [4]_).
5. The micro-batch size is the smallest, or twice that as often as memory holds and the
   pipeline stays full ([1]_, takeaway 3): at least 4 microbatches for each stage, or 4
   passes of chunks ([5]_, section 2.3).
6. Pipelines are interleaved where their bubble exceeds 5 % and ``pp`` divides the
   number of microbatches ([1]_, section 2.2; [3]_ from 2 stages on), in the fewest
   chunks that leave a bubble of 5 %, in the most that there can be, or in fewer if
   these do not fit; and tried without, too.
7. Ranks are in Megatron's default order.

Sizes that the scenario does not allow are passed over.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
   Using Megatron-LM", SC 2021, section 3: takeaways 1 to 3.
.. [2] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", MLSys 2023: sequence parallelism, and selective before full recompute.
.. [3] NVIDIA, "Parallelism Strategies Guide" of Megatron Core and "Performance Tuning
   Guide" of NeMo: the smallest model-parallel size, expert before tensor parallelism,
   interleaving, recompute as the last resort.
.. [4] Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.2.
.. [5] Huang et al., "GPipe", NeurIPS 2019: bubbles are small from 4 microbatches a
   stage on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from estimators.grouping import Grouping
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.training import Sizes
from planner.cost.choices import RECOMPUTE_MODES
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.rivals.launched import Launcher
from planner.rivals.protocol import (
    NO_SIZES,
    Planner,
    PlannerOutcome,
    PlanRequest,
    priced_best_first,
    too_little_memory,
)
from planner.search.device_kinds import least_memory
from planner.search.space import (
    SearchSpec,
    configuration_of,
    sequence_parallel,
)
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import (
    PLAN,
    PRICED_DEVICES,
    STEP,
    LimitReachedError,
    Work,
    stopped_sentence,
)
from topologies import Network

LONGEST_WHOLE = 2**15
"""Length from which sequences are split by context parallelism [token]."""

SHORTEST_PART = 2**12
"""Least length that context parallelism leaves to a device, unless the sequence is one
of `LONGEST_WHOLE` [token]."""

FULL_PIPELINE = 4
"""Passes of chunks for each stage from which a pipeline counts as full."""

SMALL_BUBBLE = 0.05
"""Share of the useful time that more chunks need not shorten."""

_COUNTED_ENDS = ((False, False), (True, True), (False, True), (True, False))
"""Whether embedding and loss count as blocks, in the order in which it is tried."""


class Manual(Planner):
    """Takes the cheapest of the few plans that rules of thumb leave."""

    name = "manual"
    sees = (
        "The size of a node, which tensor parallelism stays inside, and the price of "
        "the few plans that its rules leave."
    )

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the plan of the recipe, if one fits."""
        request.report("manual: search")
        outcome = propose(*request.problem, request.work)
        return replace(outcome, plans=outcome.plans[: request.spec.keep_best])


def propose(
    network: Network, workload: Workload, spec: SearchSpec, work: Work | None = None
) -> PlannerOutcome:
    """Return the plans of the recipe that fit in memory, one for each configuration.

    Counted; a limit ends the recipe once it has a plan.
    """
    work = Work() if work is None else work
    launcher = Launcher.of(network, workload, spec)
    recipe = _Recipe(network, workload, spec, work, launcher)
    why_not = ""
    try:
        recipe.follow()
    except LimitReachedError:
        why_not = stopped_sentence(work.total(), f"{recipe.num_tried} plans")
    ranked = priced_best_first(network, workload, recipe.plans)
    # The last one written is the cheapest of its configuration.
    cheapest = {configuration_of(made.plan): made for made in reversed(ranked)}
    return PlannerOutcome(
        plans=tuple(
            made for made in ranked if made is cheapest[configuration_of(made.plan)]
        ),
        spent=work.total(),
        evaluations=recipe.num_tried,
        why_not="" if cheapest else why_not or recipe.why_not(),
        refused=tuple(launcher.refused),
    )


def manual_plans(
    network: Network, workload: Workload, spec: SearchSpec, work: Work | None = None
) -> list[Plan]:
    """Return the plans that the recipe leaves, cheapest first.

    Ordinary plans, which all fit in memory: where a search may start from.
    """
    return [priced.plan for priced in propose(network, workload, spec, work).plans]


class _BlockLayout(NamedTuple):
    """How blocks are shared out."""

    v: int
    """Chunks of each stage."""
    counts_embedding: bool = False
    """Whether the embedding counts as a block."""
    counts_loss: bool = False
    """Whether final norm, head and loss together count as a block."""


@dataclass(slots=True)
class _Recipe:
    """The rules, for one job on one cluster."""

    network: Network
    """Network that plans are placed on."""
    workload: Workload
    """Model, job and device."""
    spec: SearchSpec
    """Space that plans are taken from."""
    work: Work
    """Work that the recipe is counted on."""
    launcher: Launcher
    """What holds plans to memory and to the framework."""

    plans: list[Plan] = field(default_factory=list)
    """Plans that the rules leave."""

    num_tried: int = 0
    """Plans that were looked at."""

    _last: PlanSpec | None = None
    """Last plan that did not fit."""

    _dropped: dict[str, list[int]] = field(default_factory=dict)
    """What a number of stages did not divide, ``"blocks"`` or ``"batch"`` -> the
    numbers of stages that were dropped for that."""

    def follow(self) -> None:
        """Find the plans that the rules leave.

        Raises
        ------
        LimitReachedError
            If the work is spent.
        """
        smallest: tuple[int, int] | None = None
        ranked = sorted((self._rank(sizes), sizes) for sizes in self._sizes())
        groups = {
            rank: [sizes for _, sizes in group]
            for rank, group in groupby(ranked, key=lambda item: item[0])
        }
        for recompute in self._recompute_modes():
            better = [rank for rank in groups if smallest is None or rank < smallest]
            for idle, part in better:
                if self._find(groups[idle, part], recompute):
                    if smallest is None:
                        self._find(groups.get((idle, 2 * part), []), recompute)
                    smallest = idle, part
                    break

    def why_not(self) -> str:
        """Say which constraint left no plan."""
        if self.launcher.refused:
            return self.launcher.why_not(self.num_tried)
        if self._last is not None:
            plan = build_plan(self.network, self.workload, self._last)
            short = too_little_memory(self.network, self.workload, self.spec, plan)
            return f"Memory: the last of {self.num_tried} plans does not fit: {short}"
        if "blocks" in self._dropped:
            stages = sorted(set(self._dropped["blocks"]))
            return (
                "Divisibility: none of the numbers of stages and chunks that the space "
                f"allows, {stages[0]} to {stages[-1]} stages, divides the "
                f"{self.workload.chain[1]} blocks, with or without embedding and loss."
            )
        if "batch" in self._dropped:
            return (
                "Divisibility: no number of replicas splits the global batch of "
                f"{self.workload.training.global_batch_size} into full microbatches "
                f"of {self.spec.micro_batches[0]}."
            )
        if not self._groups():
            return (
                "Devices: no tensor-parallel size inside a node of "
                f"{self.network.levels[0].block_size} devices goes with this model, "
                "sequence and cluster."
            )
        return NO_SIZES

    def _sizes(self) -> Iterator[Sizes]:
        """Yield the sizes that divide model, batch and cluster."""
        num_blocks, b = self.workload.chain[1], self.spec.micro_batches[0]
        batches = self.workload.training.global_batch_size // b
        stages = self.spec.pipeline_model_parallel_sizes or range(1, num_blocks + 2)
        replicas = self._replicas(batches)
        for tp, cp, ep in self._groups():
            for pp in sorted(stages):
                held = self.network.num_devices // (tp * cp * pp)
                if held == 0 or pp > self.workload.chain[0]:
                    continue
                unit = self._grouping(tp, cp, ep).replica_unit((tp, cp, ep))
                dps = [dp for dp in replicas if dp <= held and dp % unit == 0]
                if not dps:
                    self._dropped.setdefault("batch", []).append(pp)
                    continue
                sizes = Sizes(tp=tp, cp=cp, ep=ep, dp=dps[-1], pp=pp)
                if self._layouts(sizes, batches // sizes.dp):
                    yield sizes
                else:
                    self._dropped.setdefault("blocks", []).append(pp)

    def _find(self, group: list[Sizes], recompute: str) -> bool:
        """Keep the plans of sizes of one rank, and tell whether there are any."""
        fitting = self._fitting(group, recompute)
        self._keep([plan for _, plan in fitting])
        for sizes, plan in fitting:
            self._keep_variants(sizes, recompute, plan)
        return bool(fitting)

    def _keep(self, plans: list[Plan]) -> None:
        self.plans += plans
        if plans:
            self.work.note_plan()

    def _rank(self, sizes: Sizes) -> tuple[int, int]:
        """Return what makes sizes better: few idle devices, a small model part."""
        part = sizes.tp * sizes.cp * sizes.pp
        return self.network.num_devices - part * sizes.dp, part

    def _groups(self) -> list[tuple[int, int, int]]:
        """Return tensor-, context- and expert-parallel sizes that go together."""
        model, spec = self.workload.graph.spec, self.spec
        node = self.network.levels[0].block_size
        powers = [2**k for k in range(self.network.num_devices.bit_length())]
        tps = [
            tp
            for tp in sorted(spec.tensor_model_parallel_sizes or powers)
            if tp <= node and _is_power(tp)
        ]
        tps = tps or sorted(spec.tensor_model_parallel_sizes or ())[:1]
        cps = sorted(spec.context_parallel_sizes or powers)
        short = [cp for cp in cps if model.sequence_length / cp < LONGEST_WHOLE]
        if model.sequence_length < LONGEST_WHOLE:
            some = [cp for cp in short if model.sequence_length / cp >= SHORTEST_PART]
            short = [cp for cp in short if cp == 1 or cp in some]
        cps = short or cps[-1:]
        eps = sorted(spec.expert_model_parallel_sizes or powers)
        eps = [ep for ep in eps if _is_power(ep)] or eps[:1]
        b = self.spec.micro_batches[0]
        return [
            (tp, cp, ep)
            for tp in tps
            for cp in cps
            for ep in eps
            if self._span(tp, cp, ep) <= self.network.num_devices
            and divisibility_problem(
                model, Degrees(tp, cp, ep, b, sequence_parallel(spec, tp))
            )
            is None
        ]

    def _grouping(self, tp: int, cp: int, ep: int) -> Grouping:
        """Return how ranks form groups: rings, experts split as other layers are."""
        within = self.workload.software.experts_within_data
        return Grouping.of((tp, cp, ep), within_data=within)

    def _span(self, tp: int, cp: int, ep: int) -> int:
        """Return the neighbouring devices among which experts are shared."""
        return self._grouping(tp, cp, ep).expert_span((tp, cp, ep))

    def _replicas(self, batches: int) -> list[int]:
        """Return the numbers of replicas that get full microbatches, rising."""
        batch, b = self.workload.training.global_batch_size, self.spec.micro_batches[0]
        if batch % b:
            return []
        most = min(batches, self.network.num_devices)
        chosen = self.spec.data_parallel_sizes or range(1, most + 1)
        return [dp for dp in sorted(chosen) if dp <= most and batches % dp == 0]

    def _recompute_modes(self) -> list[str]:
        """Return what Megatron's users know, lightest first, or else what there is."""
        allowed = [mode for mode in RECOMPUTE_MODES if mode in self.spec.recompute]
        return [mode for mode in allowed if mode != "stage"] or allowed

    def _layouts(self, sizes: Sizes, m: int) -> list[_BlockLayout]:
        """Return how blocks may be shared out: whole stages, then chunks as preferred.

        Parameters
        ----------
        sizes
            The number of stages among them.
        m
            Microbatches of a replica.
        """
        num_blocks, pp = self.workload.chain[1], sizes.pp
        allowed = self.spec.virtual_pipeline_model_parallel_sizes
        plain = [] if allowed and 1 not in allowed else [_layout(num_blocks, pp, 1)]
        whole = [layout for layout in plain if layout is not None]
        if pp < 2 or m % pp:
            return whole
        if self.spec.recompute == ("stage",):
            return whole
        chunked = [
            layout
            for v in sorted(allowed or range(2, num_blocks + 1))
            if v > 1 and (layout := _layout(num_blocks, pp, v)) is not None
        ]
        if plain and (pp - 1) / m <= SMALL_BUBBLE:
            return whole or chunked[:1]
        too_few = [item for item in chunked if (pp - 1) / (m * item.v) > SMALL_BUBBLE]
        return whole + chunked[: len(too_few) + 1][::-1]

    def _fitting(self, group: list[Sizes], recompute: str) -> list[tuple[Sizes, Plan]]:
        """Return which sizes of one rank fit with the smallest micro-batch.

        Of expert-parallel sizes the smallest that fits, and the largest whose groups
        stay in a node.
        """
        node = self.network.levels[0].block_size
        fitting: dict[tuple[int, ...], list[tuple[Sizes, Plan]]] = {}
        for sizes in sorted(group):
            b = self.spec.micro_batches[0]
            layouts = self._layouts(sizes, self._num_microbatches(sizes, b))
            plan = self._first_that_fits(sizes, layouts, b, recompute)
            if plan is not None:
                key = sizes.tp, sizes.cp, sizes.pp
                fitting.setdefault(key, []).append((sizes, plan))
        kept = []
        for (tp, cp, _), alternatives in fitting.items():
            near = [
                item
                for item in alternatives[1:]
                if self._span(tp, cp, item[0].ep) <= node
            ]
            kept += [alternatives[0], *near[-1:]]
        return kept

    def _first_that_fits(
        self, sizes: Sizes, layouts: list[_BlockLayout], b: int, recompute: str
    ) -> Plan | None:
        """Return the plan of the first layout that fits."""
        for layout in layouts:
            plan = self._plan(sizes, layout, b, recompute)
            if plan is not None:
                return plan
        return None

    def _keep_variants(self, sizes: Sizes, recompute: str, first: Plan) -> None:
        """Keep the plans with chunks, and those with larger micro-batches."""
        batch = self.workload.training.global_batch_size
        v = first.virtual_pipeline_model_parallel_size
        for b in self.spec.micro_batches:
            if batch % (b * sizes.dp):
                continue
            m = self._num_microbatches(sizes, b)
            layouts = self._layouts(sizes, m)
            is_first = b == first.micro_batch_size
            if not is_first:
                full = FULL_PIPELINE * sizes.pp
                layouts = [x for x in layouts if sizes.pp == 1 or m * x.v >= full]
            whole = [x for x in layouts if x.v == 1 and not is_first]
            chunked = [x for x in layouts if x.v > 1 and not (is_first and x.v <= v)]
            plans = [
                plan
                for some in (whole, chunked)
                if (plan := self._first_that_fits(sizes, some, b, recompute))
            ]
            self._keep(plans)
            if not is_first and not plans:
                return

    def _num_microbatches(self, sizes: Sizes, b: int) -> int:
        return self.workload.training.global_batch_size // (b * sizes.dp)

    def _schedule(self, pp: int, v: int) -> str | None:
        """Return the framework's own schedule; None for 1F1B."""
        rules = self.spec.rules
        return None if rules is None or pp == 1 else rules.usual_schedule(v)

    def _plan(
        self, sizes: Sizes, layout: _BlockLayout, b: int, recompute: str
    ) -> Plan | None:
        """Write a plan out, if it fits."""
        self.num_tried += 1
        written = PlanSpec(
            micro_batch_size=b,
            tensor_model_parallel_size=sizes.tp,
            pipeline_model_parallel_size=sizes.pp,
            virtual_pipeline_model_parallel_size=layout.v,
            schedule=self._schedule(sizes.pp, layout.v),
            account_for_embedding_in_pipeline_split=layout.counts_embedding,
            account_for_loss_in_pipeline_split=layout.counts_loss,
            data_parallel_size=sizes.dp,
            context_parallel_size=sizes.cp,
            expert_model_parallel_size=sizes.ep,
            sequence_parallel=sequence_parallel(self.spec, sizes.tp),
            recompute=recompute,
            zero_stage=self._zero_stage(sizes),
            # Which algorithm is cheapest is a question for plans that fit.
            gradient_algorithm="ring",
            tensor_algorithm="ring",
        )
        if self._has_room(sizes, b):
            self.work.spend(PLAN + self.network.num_devices // PRICED_DEVICES)
            plan = build_plan(self.network, self.workload, written)
            if self.launcher.takes(plan):
                return self.launcher.with_cheapest_algorithms(plan)
        self._last = written
        return None

    def _has_room(self, sizes: Sizes, b: int) -> bool:
        """Tell whether the mean stage has room for what ZeRO-1 does not shard."""
        self.work.spend(STEP)
        if self._zero_stage(sizes) > 1:
            return True
        tp, cp, ep, *_ = sizes
        is_split = sequence_parallel(self.spec, tp)
        grouping = self._grouping(tp, cp, ep)
        table = self.workload.table(Degrees(tp, cp, ep, b, is_split, grouping))
        parameter_bytes = self.workload.parameter_bytes
        held = float(table.parameters.sum()) - table.tied_parameters
        held *= parameter_bytes.weights + parameter_bytes.gradients
        memory = least_memory(self.workload, self.spec.memory_reserve)
        return held / sizes.pp <= memory

    def _zero_stage(self, sizes: Sizes) -> int:
        """Return 1 if there are replicas and 0 if not, or the smallest allowed."""
        preferred = 1 if sizes.dp > 1 else 0
        allowed = self.launcher.zero_stages(sizes.pp, sizes)
        return preferred if preferred in allowed else min(allowed)


def _layout(num_blocks: int, pp: int, v: int) -> _BlockLayout | None:
    """Return how blocks split over ``pp`` stages of ``v`` chunks, if they do."""
    if pp == 1:
        return _BlockLayout(v) if v == 1 else None
    for counts_embedding, counts_loss in _COUNTED_ENDS:
        even, left = divmod(num_blocks + counts_embedding + counts_loss, pp * v)
        # A stage, or the only chunk of one, has work beside an end of the chain.
        least = 2 if v == 1 and (counts_embedding or counts_loss) else 1
        if left == 0 and even >= least:
            return _BlockLayout(v, counts_embedding, counts_loss)
    return None


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
