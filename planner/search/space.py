"""The space of a search: what a scenario may allow, and the configurations of that.

Letters: ``tp``, ``cp``, ``ep`` tensor-, context- and expert-parallel size, ``b``
micro-batch size, ``v`` virtual stages, ``pp`` stages, ``dp`` replicas (as many as
`estimators.grouping.Grouping.replica_unit` says, or a multiple), ``m`` microbatches,
``N`` devices.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le, Lt

from estimators.grouping import PLAIN_GROUPING, CpCommType, Grouping, StageSizes
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.spec import TransformerSpec
from estimators.training import Sizes, expert_data_size
from planner.frameworks.rules import PART, TENSOR, WHOLE, LaunchRules
from planner.step.execution import Workload
from planner.step.plan import (
    NO_OFFLOAD,
    Offload,
    Plan,
    Recompute,
    RecomputeModule,
    ZeroStage,
)
from planner.step.schedules import SCHEDULES
from planner.work import DEFAULT_WORK
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.settings import (
    Count,
    Derived,
    Distinct,
    Duration,
    Examples,
    NameChoice,
    Parsed,
    Spec,
)

OBJECTIVES = ("replayed", "planned")
"""Names of what a search minimises. One is the time of a step in the replay, among
launchable plans of one choice for all stages; the other a closed form that hides
nothing, among all splits with a choice for each stage."""


SEARCHED = (
    *("1f1b", "gpipe", "interleaved-1f1b"),
    *("zb-h1", "zb-h2", "zb-v", "dualpipe-v"),
)
"""Schedules that are searched."""

MAX_WORK = 10**15
"""Units of work that a search may be given."""


def _searched(schedule: object) -> object:
    known = isinstance(schedule, str) and schedule in SCHEDULES
    if known and schedule not in SEARCHED:
        raise InputError(
            "this schedule is not searched",
            got=schedule,
            expected=" or ".join(f'"{name}"' for name in SEARCHED),
            hint="nestsim simulate replays it: plan.schedule",
        )
    return schedule


def _offload(name: object) -> Offload:
    """Return what a host keeps; refuse what names nothing that it can."""
    parts = name.split("+") if isinstance(name, str) else [""]
    if name == "none":
        return NO_OFFLOAD
    if not set(parts) <= set(Offload._fields) or len(set(parts)) < len(parts):
        raise InputError(
            "is nothing that a host can keep",
            got=name,
            expected='"none", or some of '
            + ", ".join(f'"{part}"' for part in Offload._fields)
            + ' with "+" between them',
        )
    return Offload(**dict.fromkeys(parts, 1.0))


Schedule = Annotated[str, NameChoice(SEARCHED, _searched)]
OffloadName = Annotated[
    Offload,
    Parsed(_offload, {"type": "string", "examples": ["optimizer+activations"]}),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec(Spec):
    """What the planner may try. A list that is left out is searched in full."""

    micro_batch_sizes: Annotated[Distinct[Count] | None, Examples([1, 2, 4])] = None
    """Sequences of a microbatch that may be tried. Left out, powers of two up to 64, 3
    and 6, as far as they divide the batch."""

    tensor_model_parallel_sizes: Annotated[
        Distinct[Count] | None, Examples([1, 2, 4, 8])
    ] = None
    """Numbers of devices that may share each layer's matrices."""

    pipeline_model_parallel_sizes: Annotated[
        Distinct[Count] | None, Examples([1, 2, 4])
    ] = None
    """Numbers of pipeline stages that may be tried."""

    data_parallel_sizes: Annotated[Distinct[Count] | None, Examples([8, 16])] = None
    """Numbers of replicas of the pipeline that may be tried."""

    context_parallel_sizes: Annotated[Distinct[Count] | None, Examples([1, 2])] = None
    """Numbers of devices that may share each sequence; more than 1 needs flash
    attention."""

    expert_model_parallel_sizes: Annotated[Distinct[Count] | None, Examples([1, 8])] = (
        None
    )
    """Numbers of devices that may share the experts of each mixture-of-experts
    layer."""

    expert_tensor_parallel_sizes: Annotated[
        Distinct[Count] | None, Examples([1, 8])
    ] = None
    """Numbers of devices that may share each expert's matrices. Left out, one, and as
    many as share those of other layers, where `software.preset` has both. For the
    objective "replayed"."""

    cp_comm_types: Annotated[Distinct[CpCommType] | None, Examples(["p2p", "a2a"])] = (
        None
    )
    """How devices that share a sequence may share attention, names of
    `plan.cp_comm_type`. Left out, "p2p" and "a2a", as far as `software.preset` has
    them. For the objective "replayed"."""

    virtual_pipeline_model_parallel_sizes: Annotated[
        Distinct[Count] | None, Examples([1, 2, 4])
    ] = None
    """Numbers of chunks that a stage may have; more than 1 is interleaved 1F1B."""

    microbatch_group_sizes_per_vp_stage: Annotated[
        Distinct[Count] | None, Examples([8, 16])
    ] = None
    """Numbers of microbatches that may go through one chunk before the next one's turn,
    beside the usual one (`plan.microbatch_group_size_per_vp_stage`), where
    `software.preset` has such groups. For the objective "replayed"."""

    sharding_group_sizes: Annotated[Distinct[Count] | None, Examples([16, 64])] = None
    """Numbers of data-parallel ranks that may share shards (hybrid sharding), beside
    all of them and the ranks of each block of the network. Sizes that divide the ranks
    and, with those of each block, one another. Left out, none beside."""

    sequence_parallel: Annotated[bool | None, Examples(True)] = None
    """Whether Megatron's sequence parallelism is on. Left out, it is wherever the
    tensor-parallel size exceeds 1."""

    overlap_moe_expert_parallel_comm: Annotated[bool | None, Examples(False)] = None
    """Whether all-to-alls between experts go on beside the passes of another
    microbatch, in plans that can have them there: with chunks or without a pipeline,
    and without full recompute. Left out, both are tried where the framework has it.
    Only the search for the fastest replay tries it."""

    recompute: Annotated[Distinct[Recompute], Examples(["none", "full"])] = (
        "none",
        "selective",
        "full",
    )
    """What a stage may recompute in the backward pass: nothing, the attention core, or
    each block from its input. No framework has "stage", everything from the stage's
    input: it is tried where it is listed."""

    recompute_modules: Annotated[
        Distinct[RecomputeModule] | None, Examples(["layernorm", "mlp", "moe_act"])
    ] = None
    """Modules that selective recompute may run again where the framework of
    `software.preset` names modules, names of `software.recompute_modules`: sets of them
    are tried beside that setting. Left out, all that the framework has; none where that
    setting names others than "core_attn". For the objective "replayed"."""

    zero_stages: Annotated[Distinct[ZeroStage], Examples([0, 1], default=None)] = (
        0,
        1,
        2,
        3,
    )
    """ZeRO stages that a stage may use. Left out, those that `software.preset` has; all
    of 0 to 3 with "ideal"."""

    offload: Annotated[
        Distinct[OffloadName],
        Examples(["none", "optimizer", "activations"], default=["none"]),
    ] = (NO_OFFLOAD,)
    """What the host of a device may keep for it: "none", "weights", "gradients",
    "optimizer" states, saved "activations", or several of them with a plus between
    them, such as "optimizer+activations". Each is tried with each of
    `offload_fractions`."""

    schedules: Annotated[Distinct[Schedule], Examples(["1f1b"])] = (
        "1f1b",
        "interleaved-1f1b",
    )
    """Orders of the microbatches' forward and backward passes that may be tried, where
    the framework of `software.preset` has them; MaxText's own stand for 1F1B. "gpipe"
    and those that split the backward pass, "zb-h1", "zb-h2", "zb-v" and "dualpipe-v",
    are tried where they are listed."""

    launchable: Annotated[bool, Examples(False)] = True
    """Whether the search keeps to plans that the framework of `software.preset` can
    launch. If not, it explores beyond, and reports say which rules a plan breaks."""

    idle_devices: Annotated[bool, Examples(True)] = False
    """Whether launchable plans may leave devices of the cluster without work."""

    objective: Annotated[str, NameChoice(OBJECTIVES)] = "replayed"
    """What the search minimises: the time of a step in the replay ("replayed"), among
    plans whose stages are all treated alike, as frameworks have it; or a closed form of
    the step ("planned"), among all splits with recompute and ZeRO chosen stage by
    stage."""

    proven_gap: Annotated[float, Ge(0), Lt(1), Examples(0.01)] = 0.01
    """How much faster another plan may be, relative, when a search for the fastest
    replay ends."""

    proposals: Annotated[int, Ge(0), Le(1000), Examples(4)] = 4
    """Plans of the dynamic program for the planned time that a search for the fastest
    replay begins with; 0 for none. The answer is the same, or faster with them."""

    keep_best: Annotated[int, Ge(1), Le(1000), Examples(5)] = 5
    """Distinct plans to keep and replay, best first. A search for the fastest replay
    keeps plans that differ in tensor-, pipeline-, expert- or context-parallel size, or
    in what they recompute."""

    simplest_within: Annotated[float, Ge(0), Le(0.25), Examples(0.02)] = 0.02
    """How much slower than the reported plan, relative, the simplest plan beside it may
    be, which `nestsim run` looks for and replays; 0 for none."""

    work_limit: Annotated[
        Annotated[int, Ge(1), Le(MAX_WORK)] | None,
        Examples(DEFAULT_WORK, 10 * DEFAULT_WORK, default=DEFAULT_WORK),
    ] = None
    """Units of work, of about a microsecond each, after which the search returns the
    best that it has found; it goes on until it has found a plan. Counts do not depend
    on the machine: the same scenario gives the same result everywhere."""

    time_limit: Annotated[Duration | None, Examples("60 s")] = None
    """Time after which the search returns the best that it has found, counted from its
    first plan on [s]. Results may then differ from run to run. Left out, there is no
    such limit."""

    rules: Annotated[LaunchRules | None, Derived()] = None
    """Rules of what the framework can launch; None for no framework's rules."""

    hides: Annotated[bool, Derived()] = False
    """Whether the planned objective leaves out what the framework hides behind compute
    (`planner.search.bounds`), as the search for the fastest replay has it do."""

    memory_reserve: Annotated[float, Derived()] = 0.0
    """Device memory that plans must leave free [byte]."""

    @property
    def micro_batches(self) -> list[int]:
        """Micro-batch sizes that are searched, rising, whatever the batch."""
        return sorted(self.micro_batch_sizes or MICRO_BATCHES)

    def full_micro_batches(self, global_batch_size: int) -> list[int]:
        """Return the micro-batch sizes that plans may have if none is partly empty."""
        sizes = self.micro_batch_sizes or (*MICRO_BATCHES, *MORE_MICRO_BATCHES)
        return sorted(size for size in sizes if global_batch_size % size == 0)

    @property
    def keeps_rules(self) -> bool:
        """Whether planners keep to what the framework can launch.

        The planned objective is one of all splits, with a choice for each stage.
        """
        return (
            self.launchable and self.rules is not None and self.objective != "planned"
        )


USUAL_CP_COMM_TYPES = ("p2p", "a2a")
"""Kinds of context parallelism that are searched when the scenario does not say: what
is gathered is as many bytes as go round a ring, and two levels lie between the two."""

LARGEST_MICRO_BATCH = 64
"""Largest micro-batch size that is searched when the scenario does not say."""

MICRO_BATCHES = tuple(2**k for k in range(LARGEST_MICRO_BATCH.bit_length()))
"""Micro-batch sizes that are searched when the scenario does not say."""

MORE_MICRO_BATCHES = (3, 6)
"""Those beside them in plans that are to be launched, where the batch is a multiple:
between larger powers of two devices gain little."""

MOST_CONFIGURATIONS = 2**25
"""Most configurations of a space: the bounds alone of a larger one would take more than
2 GiB."""


class Configuration(NamedTuple):
    """One point of the outer search; its splits and placements are the inner one."""

    tp: int
    """Tensor-parallel size."""
    cp: int
    """Context-parallel size."""
    ep: int
    """Expert-parallel size."""
    b: int
    """Sequences per microbatch."""
    v: int
    """Chunks of each stage."""
    pp: int
    """Pipeline stages."""
    dp: int
    """Replicas, those that share experts included."""
    grouping: Grouping = PLAIN_GROUPING
    """How the ranks of a stage form groups."""
    pairs: bool = False
    """Whether all-to-alls between experts go on beside another microbatch."""

    @property
    def extents_ep(self) -> int:
        """Replicas that share experts along an axis of their own."""
        return 1 if self.grouping.is_folded else self.ep

    @property
    def sizes(self) -> Sizes:
        """Its parallel degrees."""
        return Sizes(self.tp, self.cp, self.ep, self.dp, self.pp)

    @property
    def expert_data_size(self) -> int:
        """Ranks of a stage that hold the same experts."""
        return expert_data_size(self.sizes, self.grouping)

    @property
    def devices(self) -> int:
        """How many it uses."""
        return self.tp * self.cp * self.pp * self.dp


def configuration_of(plan: Plan) -> Configuration:
    """Return a plan's configuration."""
    tp, cp, ep, dp, pp = plan.parallel.sizes()
    v = plan.virtual_pipeline_model_parallel_size
    b, grouping = plan.micro_batch_size, plan.parallel.grouping
    pairs = plan.overlap_moe_expert_parallel_comm
    return Configuration(tp, cp, ep, b, v, pp, dp, grouping, pairs)


class Inner(NamedTuple):
    """What tables depend on, and the outer sizes that go with it."""

    degrees: Degrees
    """Sizes that layer tables depend on."""
    v: int
    """Chunks of each stage."""
    pp: IntArray
    """Numbers of stages, rising."""
    dp: IntArray
    """Numbers of replicas in step with `pp`, rising for each number of stages."""

    def configuration(self, index: int) -> Configuration:
        """Return one of its configurations."""
        tp, cp, ep, b, _, grouping, _ = self.degrees
        pp, dp = int(self.pp[index]), int(self.dp[index])
        return Configuration(tp, cp, ep, b, self.v, pp, dp, grouping)


def inner_configurations(
    workload: Workload, spec: SearchSpec, num_devices: int
) -> tuple[tuple[Inner, ...], Counter[str]]:
    """Enumerate the space.

    Sizes that the scenario leaves out are searched: every tensor-parallel size that
    divides the model, context-parallel sizes and micro-batch sizes that are powers of
    two, every expert-parallel size that divides the experts, every number of virtual
    stages that divides the blocks, of stages and of replicas that the cluster holds,
    dividing it or not.

    Returns
    -------
    tuple
        The configurations, and how many were left out for which reason.

    Raises
    ------
    InputError
        If there are more than `MOST_CONFIGURATIONS`.
    """
    dropped: Counter[str] = Counter()
    inner: list[Inner] = []
    outer: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
    count = 0
    num_layers, num_blocks = workload.chain
    batch = workload.training.global_batch_size
    for degrees in degrees_of(workload, spec, num_devices):
        if divisibility_problem(workload.graph.spec, degrees) is not None:
            dropped["not divisible"] += 1
            continue
        group = degrees.tp * degrees.cp
        unit = degrees.grouping.replica_unit(degrees[:3])
        key = group, unit
        if key not in outer:
            outer[key] = _outer_sizes(
                spec,
                num_groups=num_devices // group,
                num_layers=num_layers,
                unit=unit,
                most_replicas=batch,
            )
        b = degrees.micro_batch_size
        fits = outer[key][1] * b <= batch
        pairs = outer[key][0][fits], outer[key][1][fits]
        if not pairs[0].size:
            dropped["too large for the cluster or the batch"] += 1
        for item in _with_virtual_stages(
            spec, degrees, pairs, num_blocks=num_blocks, batch=batch
        ):
            inner.append(item)
            count += len(item.pp)
            if count > MOST_CONFIGURATIONS:
                raise _too_large(spec, num_devices, batch)
    return tuple(inner), dropped


def _with_virtual_stages(
    spec: SearchSpec,
    degrees: Degrees,
    pairs: tuple[IntArray, IntArray],
    *,
    num_blocks: int,
    batch: int,
) -> Iterator[Inner]:
    """Yield what each number of virtual stages allows, if it allows anything."""
    pp, dp = pairs
    for v in _virtual_sizes(spec, num_blocks):
        allowed = np.ones(pp.shape, dtype=np.bool_)
        if v > 1:
            m = -(-batch // (degrees.micro_batch_size * dp))
            rounds = np.maximum(m // pp, 1)
            allowed = (pp >= 2) & (pp * v <= num_blocks) & (m % rounds == 0)
        if allowed.any():
            yield Inner(degrees, v, pp[allowed], dp[allowed])


def _too_large(
    spec: SearchSpec, num_devices: int, global_batch_size: int
) -> InputError:
    """Return the refusal of a space, with the settings that would narrow it most."""
    free = [
        name
        for name in (
            "data_parallel_sizes",
            "pipeline_model_parallel_sizes",
            "virtual_pipeline_model_parallel_sizes",
            "context_parallel_sizes",
            "micro_batch_sizes",
            "tensor_model_parallel_sizes",
        )
        if getattr(spec, name) is None
    ]
    named = ", ".join(free[:3]) or "any of its lists"
    return InputError(
        "the space is too large to search",
        where="search",
        got=f"more than {MOST_CONFIGURATIONS:,} configurations of {num_devices:,} "
        f"devices and a global batch of {global_batch_size:,}",
        expected=f"at most {MOST_CONFIGURATIONS:,}",
        hint=f"list the sizes to try in [search]: {named}",
    )


def degrees_of(
    workload: Workload,
    spec: SearchSpec,
    num_devices: int,
    rules: LaunchRules | None = None,
) -> Iterator[Degrees]:
    """Yield what layer tables depend on, dividing the model or not.

    With ``rules`` ranks form all groups that the framework has, and microbatches are
    full; without them there are rings and tensor-parallel groups of experts alone.
    """
    model = workload.graph.spec
    within_data = workload.software.experts_within_data
    sizes = spec.micro_batches
    if rules is not None:
        unit = math.gcd(*workload.training.batch_sizes)
        sizes = spec.full_micro_batches(unit)
    tps = spec.tensor_model_parallel_sizes or divisors(model.num_attention_heads)
    powers = [2**k for k in range(num_devices.bit_length())]
    cps = spec.context_parallel_sizes or (
        powers if model.attention_implementation == "flash" else [1]
    )
    eps = spec.expert_model_parallel_sizes or divisors(max(model.num_moe_experts, 1))
    for tp in sorted(tps):
        for cp in sorted(cps):
            for ep in sorted(eps) if tp * cp <= num_devices else ():
                groupings = [Grouping.of((tp, cp, ep), within_data=within_data)]
                if rules is not None:
                    groupings = groupings_of(
                        model, spec, rules, (tp, cp, ep), within_data=within_data
                    )
                several = ep > 1 or spec.expert_tensor_parallel_sizes is not None
                usual = [grouping for grouping in groupings if not grouping.etp]
                tried = [
                    grouping
                    for grouping in (groupings if several else usual or groupings)
                    if grouping.expert_span((tp, cp, ep)) <= num_devices
                ]
                is_split = sequence_parallel(spec, tp)
                for b, grouping in product(sizes, tried):
                    yield Degrees(tp, cp, ep, b, is_split, grouping)


def groupings_of(
    model: TransformerSpec,
    spec: SearchSpec,
    rules: LaunchRules,
    sizes: StageSizes,
    *,
    within_data: bool,
) -> list[Grouping]:
    """Return how a framework's ranks may form groups, fitting the model or not.

    ``within_data`` as for `Grouping.of`. Two levels of context parallelism are for more
    ranks than can exchange heads: the most that can do, and rings of those.
    """
    tp, cp, _ = sizes
    kinds = [
        kind
        for kind in rules.context_parallel
        if kind in (spec.cp_comm_types or USUAL_CP_COMM_TYPES)
    ]
    # A ring of one: how it would turn says nothing.
    contexts = [("p2p", 0)] if cp == 1 else []
    for kind in kinds if cp > 1 else ():
        contexts += [(kind, a) for a in _levels(model, kind, tp, cp)]
    given = spec.expert_tensor_parallel_sizes
    has_experts = model.num_moe_experts > 0
    splits = [tp] if given is None or tp in given or not has_experts else []
    if has_experts and tp > 1:
        parts = [etp for etp in given or (1,) if etp < tp and tp % etp == 0]
        splits += [etp for etp in parts if _kind(etp) in rules.expert_tensor_parallel]
        if TENSOR not in rules.expert_tensor_parallel or (
            model.add_bias_linear and not rules.splits_biased_experts
        ):
            splits = [etp for etp in splits if etp < tp]
    return [
        Grouping.of(sizes, etp=etp, within_data=within_data, cp_comm_type=kind, a2a=a)
        for etp in splits
        for kind, a in contexts
    ]


def _kind(etp: int) -> str:
    return WHOLE if etp == 1 else PART


def _levels(model: TransformerSpec, kind: str, tp: int, cp: int) -> Iterator[int]:
    """Yield how many ranks of an inner level exchange heads, 0 without levels."""
    if kind != "a2a+p2p":
        yield 0
        return
    groups = model.num_query_groups or model.num_attention_heads
    most = math.gcd(cp, max(groups // tp, 1))
    if 1 < most < cp:
        yield most


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, rising; none of 0."""
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return small + [number // part for part in reversed(small) if part**2 < number]


def _virtual_sizes(spec: SearchSpec, num_blocks: int) -> Iterable[int]:
    sizes = spec.virtual_pipeline_model_parallel_sizes or divisors(max(num_blocks, 1))
    if set(spec.recompute) == {"stage"}:
        # A stage is run again from its input as a whole: it has one chunk.
        sizes = [v for v in sizes if v == 1]
    return [v for v in sorted(sizes) if v == 1 or (num_blocks and num_blocks % v == 0)]


def sequence_parallel(spec: SearchSpec, tp: int) -> bool:
    """Tell whether it is on: as the scenario says, where there is anything to split."""
    return tp > 1 and spec.sequence_parallel is not False


def _outer_sizes(
    spec: SearchSpec,
    *,
    num_groups: int,
    num_layers: int,
    unit: int,
    most_replicas: int,
) -> tuple[IntArray, IntArray]:
    """Return all pairs of stages and replicas that fit, as two arrays.

    Replicas are multiples of ``unit``.
    """
    stages = spec.pipeline_model_parallel_sizes or range(1, num_layers + 1)
    pps: list[IntArray] = []
    dps: list[IntArray] = []
    for pp in sorted(stages):
        most = min(num_groups // pp, most_replicas)
        if pp > num_layers or most == 0:
            continue
        chosen = spec.data_parallel_sizes
        dp = np.arange(1, most + 1) if chosen is None else np.array(sorted(chosen))
        dp = dp[(dp <= most) & (dp % unit == 0)].astype(np.int64)
        pps.append(np.full_like(dp, pp))
        dps.append(dp)
    empty = np.zeros(0, dtype=np.int64)
    return np.concatenate([empty, *pps]), np.concatenate([empty, *dps])
