"""What a framework can launch: the shape of its rules, which are data.

A plan that breaks one of these rules may still be simulated, but nobody can start it:
`planner.search.launchable` compares a plan with them, and the search stays inside them
unless a scenario asks for more. `planner.frameworks.catalog` holds what each framework
asks for, release by release, and where its code says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType

from planner.step.plan import Offload
from planner.step.schedules import SCHEDULES

RULES: Mapping[str, str] = MappingProxyType(
    {
        "global_batch": "replicas x micro-batch size x microbatches is the batch",
        "idle_devices": "all devices have work, unless idle ones are asked for",
        "rank_order": "devices are numbered by nesting whole dimensions, tp innermost",
        "pipeline": "a pipeline only where the framework has one",
        "schedule": "a schedule that the framework has",
        "microbatches": "microbatches in a number that the schedule can deal out",
        "split": "blocks shared out over stages and chunks as the framework does it",
        "tensor_parallelism": "tp divides the heads, and goes with the query groups",
        "sequence_parallelism": "sequence parallelism only with tensor parallelism",
        "context_parallelism": "context-parallel ranks share attention in a way that "
        "the framework has",
        "expert_parallelism": "ep divides the experts, and the ranks that the "
        "framework spreads them over",
        "expert_overlap": "all-to-alls of experts behind another microbatch only where "
        "the framework hides them there",
        "zero_stage": "one ZeRO stage for the job, one that the framework has",
        "sharding_group": "one sharding group for the job, one that the framework has",
        "recompute": "one recompute mode for the job, one that the framework has",
        "offload": "the same fractions on all hosts, of what the framework can keep",
    }
)
"""Name of a rule -> what it asks for. Every `LaunchRules` has a source for each."""

EVEN = "even"
"""Every chunk holds the same number of blocks."""

ENDS = "ends"
"""The first and the last stage may hold other numbers of blocks than the stages
between, which are alike; each stage shares its blocks evenly over its chunks."""

ACCOUNTED = "accounted"
"""As `EVEN`, where the embedding, or final norm, head and loss, or both, may count as
one block each."""

ROUNDS = "rounds"
"""Each round of chunks holds as many blocks, shared out with at most one more in some
chunks than in others."""

BALANCED = "balanced"
"""Numbers of blocks differ by one at most, the ends of the chain counting or not, as in
`ACCOUNTED`."""

LAYOUT = "layout"
"""Any number of blocks in any chunk, written out one by one."""


INTERLEAVED = "interleaved"
ALWAYS = "always"

Order = tuple[str, ...]
"""Parallel dimensions, innermost first; ``dp`` are the replicas of each expert."""

ANY_ORDER: tuple[Order, ...] = tuple(
    ("tp", *rest) for rest in permutations(("cp", "ep", "dp", "pp"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRules:
    """What one framework can launch."""

    framework: str
    """Framework and version that the rules are of."""

    schedules: tuple[str, ...] = ()
    """Schedules of its pipelines, names of `planner.step.schedules.SCHEDULES`; empty if
    it has no pipeline."""

    microbatches: str = INTERLEAVED
    """When the number of stages must divide the number of microbatches, `INTERLEAVED`
    or `ALWAYS`."""

    splits: tuple[str, ...] = (EVEN,)
    """Ways to share out the blocks, `EVEN` to `LAYOUT`; one that fits suffices."""

    empty_ends: bool = False
    """Whether the first and the last chunk may hold no block, only the end of the
    chain."""

    tensor_parallel: bool = True
    """Whether it has tensor parallelism."""

    copies_query_groups: bool = True
    """Whether tensor-parallel ranks may outnumber the query groups, which are then
    held several times."""

    context_parallel: tuple[str, ...] = ()
    """How ranks that share a sequence may share attention, of
    `estimators.grouping.CP_COMM_TYPES`; none if it has no context parallelism."""

    copies_exchanged_groups: bool = False
    """Whether ranks that exchange heads for tokens may outnumber the query groups of a
    rank, which are then copied."""

    expert_parallel: bool = True
    """Whether experts may be spread over ranks."""

    overlap_expert_parallel: bool = False
    """Whether all-to-alls between experts may go on beside another microbatch: without
    a pipeline, or with chunks, in the combined schedules."""

    expert_tensor_parallel: bool = False
    """Whether experts may have a tensor-parallel size of their own."""

    zero_stages: tuple[int, ...] = (0,)
    """ZeRO stages without a pipeline."""

    zero_stages_with_pipeline: tuple[int, ...] = ()
    """ZeRO stages with a pipeline."""

    hybrid_sharding: tuple[int, ...] = ()
    """ZeRO stages whose shards a part of the replicas may hold, the others having
    copies."""

    recompute: tuple[str, ...] = ("none", "selective", "full")
    """Recompute modes that stages may have."""

    recompute_num_layers: bool = False
    """Whether only the first blocks of each chunk may be recomputed, in a number that
    is given."""

    offload: tuple[str, ...] = ()
    """What hosts can keep without a pipeline, fields of `planner.step.plan.Offload`."""

    offload_with_pipeline: tuple[str, ...] = ()
    """What hosts can keep with a pipeline."""

    offload_together: tuple[str, ...] = ()
    """Of what hosts can keep, what they keep all of or nothing of."""

    same_savings: bool = True
    """Whether all stages must have one recompute mode, one ZeRO stage, one sharding
    group and one set of fractions on hosts."""

    orders: tuple[Order, ...] = ANY_ORDER
    """Orders in which ranks are numbered. Dimensions of size 1 may be anywhere."""

    sources: tuple[tuple[str, str], ...] = ()
    """For each of `RULES` its name, and where the framework's side of it stands."""

    @property
    def pipeline(self) -> bool:
        """Whether the framework has a pipeline."""
        return bool(self.schedules)

    @property
    def interleaving(self) -> bool:
        """Whether stages may have several chunks."""
        return any(SCHEDULES[name].interleaves for name in self.schedules)

    def usual_schedule(self, num_chunks: int) -> str | None:
        """Return the schedule of plans that name none, of so many chunks.

        None for 1F1B, interleaved or not, and where there is none.
        """
        if {"1f1b", "interleaved-1f1b"} & set(self.schedules):
            return None
        several = num_chunks > 1
        named = (one for one in self.schedules if SCHEDULES[one].interleaves == several)
        return next(named, None)

    def source(self, rule: str) -> str:
        """Return where the framework's side of a rule stands."""
        return dict(self.sources)[rule]

    def zero_stages_of(self, num_stages: int) -> tuple[int, ...]:
        """Return the ZeRO stages that go with a number of pipeline stages."""
        if num_stages > 1 and self.pipeline:
            return self.zero_stages_with_pipeline
        return self.zero_stages

    def offload_of(self, num_stages: int) -> tuple[str, ...]:
        """Return what hosts can keep with a number of pipeline stages."""
        return self.offload_with_pipeline if num_stages > 1 else self.offload

    def keeps_together(self, offload: Offload) -> bool:
        """Tell whether hosts keep all or nothing of what goes together."""
        parts = {getattr(offload, name) for name in self.offload_together}
        return parts <= {0.0} or parts == {1.0}
