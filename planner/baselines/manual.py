"""``manual``: what people write down for Megatron-LM, in the order they think of it.

1. Tensor-parallel size: the smallest power of two inside a node for which one block
   fits, at least 4 where the hidden size is 8192 or more. Expert-parallel size:
   likewise the smallest for which one block of experts fits. Context-parallel size: 1
   up to sequences of 32k tokens, then what makes them shorter.
2. Stages: the smallest divisor of the number of blocks for which all stages fit,
   without recompute if possible, with full recompute otherwise.
3. Replicas: as many as the devices and full microbatches allow; ZeRO-1 (Megatron's
   distributed optimizer) if there is more than one; the smallest micro-batch.
4. Equal numbers of blocks in each stage, ranks in Megatron's default order.

Sizes that the scenario does not allow are passed over; where blocks still do not fit
at any number of stages, the next tensor- and expert-parallel sizes are tried.

References
----------
.. [1] Narayanan et al., SC 2021, section 3: takeaways 1 to 3.
.. [2] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022: sequence parallelism beside tensor parallelism.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from estimators.layer_work import Degrees
from planner.baselines.chain_prices import SpaceIndex
from planner.baselines.proposals import (
    NO_SIZES,
    fits,
    priced_best_first,
    too_little_memory,
)
from planner.baselines.protocol import PlannerOutcome, PlannerSettings
from planner.class_table import RECOMPUTE_MODES
from planner.fixed_plan import build_plan, with_algorithms
from planner.plan import Plan
from planner.plan_spec import PlanSpec
from planner.progress import Progress
from planner.search_spec import SearchSpec
from planner.space import Configuration, inner_configurations, sequence_parallel
from planner.work import (
    PLAN,
    PRICED_DEVICES,
    LimitReachedError,
    Work,
    stopped_sentence,
)
from planner.workload import Workload
from topologies import Network

WIDE = 8192
"""Hidden size from which tensor parallelism is at least `LEAST_OF_WIDE`."""

LEAST_OF_WIDE = 4

LONGEST_WHOLE = 2**15
"""Sequences of at least so many tokens are split by context parallelism."""


class Proposal(NamedTuple):
    """The first plan that fits, or why there is none."""

    plan: Plan | None
    why_not: str
    num_tried: int


@dataclass(frozen=True, slots=True)
class Manual:
    """Takes the first plan that fits; minimises nothing."""

    name: str = "manual"

    sees: str = "Nothing but the size of a node, which tensor parallelism stays inside."

    def find(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        settings: PlannerSettings,
        *,
        progress: Progress | None = None,
    ) -> PlannerOutcome:
        """Return the plan of the heuristics, if one fits."""
        work = settings.allowance(spec)
        if progress is not None:
            progress("manual: search", None)
        found = propose(network, workload, spec, work)
        return PlannerOutcome(
            planner=self.name,
            plans=priced_best_first(
                network, workload, [] if found.plan is None else [found.plan]
            ),
            belief=math.nan,
            sees=self.sees,
            spent=work.total(),
            search_time=work.elapsed,
            evaluations=found.num_tried,
            why_not=found.why_not,
        )


def propose(
    network: Network, workload: Workload, spec: SearchSpec, work: Work | None = None
) -> Proposal:
    """Return the first plan of the heuristics that fits in memory.

    Counted, and stopped if the work is spent.
    """
    work = Work() if work is None else work
    inner, _ = inner_configurations(
        workload.graph.spec,
        spec,
        num_devices=network.num_devices,
        chain=workload.chain,
        global_batch_size=workload.training.global_batch_size,
    )
    index = SpaceIndex(inner)
    tried, last = 0, None
    for plan_spec in _plan_specs(network, workload, spec, index):
        try:
            work.spend(PLAN + network.num_devices // PRICED_DEVICES)
        except LimitReachedError:
            return Proposal(
                None, stopped_sentence(work.total(), f"{tried} plans"), tried
            )
        tried += 1
        # Which algorithm is cheapest is a question for the one plan that is kept.
        last = build_plan(network, workload, plan_spec)
        if fits(workload, spec, last):
            auto = replace(last, gradient_algorithm="auto", tensor_algorithm="auto")
            return Proposal(with_algorithms(network, workload, auto), "", tried)
    if last is None:
        why_not = _no_sizes(network, workload, spec, index)
        return Proposal(None, why_not, tried)
    short = too_little_memory(network, workload, spec, last)
    return Proposal(
        None, f"Memory: the last of {tried} plans does not fit: {short}", tried
    )


def _no_sizes(
    network: Network, workload: Workload, spec: SearchSpec, index: SpaceIndex
) -> str:
    """Say which constraint left no sizes to try."""
    if not index.sizes["v"]:
        return NO_SIZES
    if 1 not in index.sizes["v"]:
        return "Schedule: the heuristics know 1F1B without virtual stages only."
    cp, b = _context_size(workload, index), index.sizes["b"][0]
    pairs = _tensor_and_expert_sizes(network, workload, spec, index, cp)
    if not pairs:
        return (
            f"Devices: no tensor-parallel size inside a node of "
            f"{network.levels[0].block_size} devices goes with context-parallel size "
            f"{cp} and micro-batches of {b}."
        )
    stages = sorted({pp for tp, ep in pairs for pp in index.stages(tp, cp, ep, b)})
    num_blocks = workload.chain[1]
    if all(num_blocks % pp for pp in stages):
        return (
            f"Divisibility: none of the numbers of stages that the space allows, "
            f"{stages[0]} to {stages[-1]}, divides the {num_blocks} blocks."
        )
    return (
        "Divisibility: no number of replicas splits the global batch of "
        f"{workload.training.global_batch_size} into full microbatches of {b}."
    )


def _plan_specs(
    network: Network, workload: Workload, spec: SearchSpec, index: SpaceIndex
) -> Iterator[PlanSpec]:
    """Yield plans in the order in which the heuristics try them."""
    if not index.sizes["v"]:
        return
    cp, b = _context_size(workload, index), index.sizes["b"][0]
    for tp, ep in _tensor_and_expert_sizes(network, workload, spec, index, cp):
        for pp in index.stages(tp, cp, ep, b):
            dp = _replicas(workload, index, Configuration(tp, cp, ep, b, 1, pp, 1))
            if dp is None or workload.chain[1] % pp:
                continue
            for recompute in _recompute_modes(spec):
                yield PlanSpec(
                    micro_batch_size=b,
                    tensor_model_parallel_size=tp,
                    pipeline_model_parallel_size=pp,
                    data_parallel_size=dp,
                    context_parallel_size=cp,
                    expert_model_parallel_size=ep,
                    sequence_parallel=sequence_parallel(spec, tp),
                    recompute=recompute,
                    zero_stage=_zero_stage(spec, dp),
                    gradient_algorithm="ring",
                    tensor_algorithm="ring",
                )


def _context_size(workload: Workload, index: SpaceIndex) -> int:
    """Return 1, or the smallest size that leaves devices less than `LONGEST_WHOLE`."""
    tokens = workload.graph.spec.sequence_length
    sizes = index.sizes["cp"]
    short = [size for size in sizes if tokens / size < LONGEST_WHOLE]
    return short[0] if short else sizes[-1]


def _tensor_and_expert_sizes(
    network: Network, workload: Workload, spec: SearchSpec, index: SpaceIndex, cp: int
) -> list[tuple[int, int]]:
    """Return the sizes to try, from the first for which one block fits."""
    node = network.levels[0].block_size
    least = LEAST_OF_WIDE if workload.graph.spec.hidden_size >= WIDE else 1
    inside = [tp for tp in index.sizes["tp"] if tp <= node and _is_power(tp)]
    wide = [tp for tp in inside if tp >= least]
    tps = wide or inside[-1:] or index.sizes["tp"][:1]
    eps = [ep for ep in index.sizes["ep"] if _is_power(ep)] or index.sizes["ep"][:1]
    b = index.sizes["b"][0]
    pairs = [(tp, ep) for tp in tps for ep in eps if index.stages(tp, cp, ep, b)]
    memory = workload.tensor_memory(spec.memory_reserve)
    for place, (tp, ep) in enumerate(pairs):
        degrees = Degrees(tp, cp, ep, b, sequence_parallel(spec, tp))
        if _block_bytes(workload, degrees) <= memory:
            return pairs[place:]
    return pairs[-1:]


def _block_bytes(workload: Workload, degrees: Degrees) -> float:
    """Return what the largest block holds beside its activations [byte]."""
    table, each = workload.table(degrees), workload.parameter_bytes
    held = each.weights + each.gradients + each.optimizer
    whole = table.parameters * held + table.saved_bytes["none"]
    return float(np.max(whole * table.is_block))


def _replicas(
    workload: Workload, index: SpaceIndex, configuration: Configuration
) -> int | None:
    """Return the most replicas with full microbatches, None if there are none."""
    batch, b = workload.training.global_batch_size, configuration.b
    full = [dp for dp in index.replicas(configuration) if batch % (b * dp) == 0]
    return full[-1] if full else None


def _recompute_modes(spec: SearchSpec) -> list[str]:
    """Return none and full, as Megatron's users know them, or else what there is."""
    allowed = [mode for mode in RECOMPUTE_MODES if mode in spec.recompute]
    return [mode for mode in allowed if mode in {"none", "full"}] or allowed


def _zero_stage(spec: SearchSpec, dp: int) -> int:
    """Return 1 if there are replicas and 0 if not, or the smallest that is allowed."""
    wanted = 1 if dp > 1 else 0
    return wanted if wanted in spec.zero_stages else min(spec.zero_stages)


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
