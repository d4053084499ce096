"""Whether a framework can launch plans of some sizes, whatever their stages are.

The search asks it of sizes before there is a plan, `planner.search.launchable` of the
sizes of a plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from estimators.grouping import Grouping
from estimators.layers.work import Degrees
from estimators.training import Sizes
from planner.frameworks.rules import (
    ALWAYS,
    INTERLEAVED,
    PART,
    TENSOR,
    WHOLE,
    WORDS,
    LaunchRules,
    Order,
)
from planner.search.device_kinds import DeviceOrder, device_orders
from planner.search.space import Configuration
from planner.step.execution import Workload
from planner.step.rounds import group_takes
from planner.step.schedules import SCHEDULES
from topologies import Network

Breaches = Iterator[tuple[str, str, str]]
"""Rule, what was found, what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """What rules ask of the job and of the cluster."""

    is_block: tuple[bool, ...]
    """Whether each layer of the chain is a transformer block."""

    num_attention_heads: int
    """Attention heads of each block."""

    num_query_groups: int
    """Groups of heads that share keys and values."""

    num_moe_experts: int
    """Experts of each mixture-of-experts layer; 0 without any."""

    has_biased_experts: bool = False
    """Whether experts have biases."""

    mtp_num_layers: int = 0
    """Layers of multi-token prediction."""

    has_normed_queries: bool = False
    """Whether queries and keys are normed."""

    has_latent_attention: bool = False
    """Whether attention is multi-head latent attention."""

    has_linear_attention: bool = False
    """Whether blocks have linear attention, whose heads hold a state."""

    has_sparse_attention: bool = False
    """Whether attention is to keys that an indexer chooses."""

    is_tied: bool = False
    """Whether the embedding is the head's matrix, too."""

    sequence_length: int = 0
    """Tokens of each sequence."""

    precision: str = "bf16"
    """Precision of the model."""

    global_batch_size: int
    """Sequences per optimizer step."""

    ramp_sizes: tuple[int, ...] = ()
    """Sequences of steps while batches grow, rising."""

    num_devices: int
    """Devices of the cluster."""

    idle_devices: bool = False
    """Whether devices without work are asked for."""

    experts_within_data: bool = False
    """Whether the framework spreads experts over data-parallel ranks alone."""

    orders: tuple[DeviceOrder | None, ...] = (None,)
    """Orders in which nodes may be listed, None for that of their numbers."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        cluster: Network | int,
        *,
        idle_devices: bool = False,
    ) -> "LaunchFacts":
        """Return the facts of a workload on a cluster, or on a number of devices.

        On a cluster nodes may be listed by how fast they are, where that differs.
        """
        spec = workload.graph.spec
        orders: tuple[DeviceOrder | None, ...] = (None,)
        if not isinstance(cluster, int):
            orders = device_orders(cluster, workload, 1)
            cluster = cluster.num_devices
        return cls(
            is_block=tuple(name.startswith("block") for name in workload.graph.names),
            num_attention_heads=spec.num_attention_heads,
            num_query_groups=spec.num_query_groups,
            num_moe_experts=spec.num_moe_experts,
            has_biased_experts=spec.num_moe_experts > 0 and spec.add_bias_linear,
            mtp_num_layers=spec.mtp_num_layers,
            has_normed_queries=spec.qk_layernorm and spec.kv_lora_rank == 0,
            has_latent_attention=spec.kv_lora_rank > 0,
            has_linear_attention=spec.has_recurrences,
            has_sparse_attention=spec.dsa_indexer_topk > 0,
            is_tied=spec.tie_word_embeddings,
            sequence_length=spec.sequence_length,
            precision=workload.training.precision,
            experts_within_data=workload.software.experts_within_data,
            global_batch_size=workload.training.global_batch_size,
            ramp_sizes=workload.training.batch_sizes[:-1],
            num_devices=cluster,
            idle_devices=idle_devices,
            orders=orders,
        )


class LaunchSizes(NamedTuple):
    """Sizes that rules ask about."""

    tp: int
    """Tensor-parallel ranks."""
    cp: int
    """Context-parallel ranks."""
    ep: int
    """Expert-parallel ranks."""
    grouping: Grouping
    """How ranks form groups."""
    sequence_parallel: bool
    """Whether tensor-parallel ranks split sequences."""
    pp: int = 1
    """Pipeline stages."""
    dp: int = 1
    """Replicas."""

    @property
    def etp(self) -> int:
        """Ranks that share each expert."""
        return self.grouping.etp or self.tp

    @property
    def by_name(self) -> dict[str, int]:
        """Sizes of the dimensions by their names."""
        return {**named_sizes(self, self.pp), "dp": self.dp}


def size_breaches(
    sizes: LaunchSizes, rules: LaunchRules, facts: LaunchFacts
) -> Breaches:
    """Yield what of some sizes a framework cannot launch, on any number of devices."""
    yield from _tensor(sizes.tp, rules, facts)
    yield from _sequence(sizes, rules, facts)
    yield from _context(sizes, rules, facts)
    yield from _experts(sizes, rules, facts)


def shape_breaches(
    sizes: LaunchSizes, rules: LaunchRules, facts: LaunchFacts
) -> Breaches:
    """Yield what of the stages and replicas of some sizes it cannot launch."""
    pp = sizes.pp
    if pp > 1 and not rules.pipeline:
        yield "pipeline", f"{pp} stages", "1 stage"
    elif pp > 1 and facts.has_normed_queries and not rules.pipelines_normed_queries:
        yield "pipeline", f"{pp} stages with normed queries", "1 stage"
    elif pp > 1 and facts.is_tied and not rules.ties_over_stages:
        yield "pipeline", f"{pp} stages that share an embedding", "1 stage"
    if rules.context_parallel_alone and sizes.cp > 1 and pp > 1:
        yield "context_parallelism", f"{sizes.cp} ranks beside {pp} stages", "1 stage"
    splits = sizes.sequence_parallel and sizes.tp > 1
    if pp > 1 and splits and not rules.sequence_parallel_with_pipeline:
        yield "sequence_parallelism", f"it beside {pp} stages", "1 stage"
    if rules.experts_fill_data and facts.num_moe_experts:
        ranks = min(sizes.dp, facts.num_moe_experts)
        if sizes.ep != ranks:
            yield (
                "expert_parallelism",
                f"{facts.num_moe_experts} experts of {sizes.dp} replicas on "
                f"{sizes.ep} ranks",
                f"{ranks} ranks",
            )


def orders_of(rules: LaunchRules, configuration: Configuration) -> tuple[Order, ...]:
    """Return the orders of ranks that a framework has for some sizes."""
    return rules.orders_of(named_sizes(configuration, configuration.pp))


def named_sizes(
    sizes: LaunchSizes | Degrees | Configuration | Sizes, pp: int
) -> dict[str, int]:
    """Return sizes by the dimensions' names; ``etp`` ranks share each expert."""
    tp, cp, ep = sizes.tp, sizes.cp, sizes.ep
    etp = 0 if isinstance(sizes, Sizes) else sizes.grouping.etp
    return {"tp": tp, "cp": cp, "ep": ep, "etp": etp or tp, "pp": pp}


def _groups(rules: LaunchRules, pp: int) -> str:
    """Return which groups a framework deals out."""
    if rules.microbatch_groups:
        return f"groups of {pp} or more, the last one too"
    return "groups of the framework's choice"


def deals_out(rules: LaunchRules, schedule: str, pp: int, m: int, v: int) -> str:
    """Return which numbers of microbatches a pipeline takes; empty if ``m`` is one."""
    named = SCHEDULES[schedule]
    if named.family in rules.full_schedules and m < pp:
        return f"{pp} or more"
    if named.group is not None:
        takes = rules.microbatch_groups and group_takes(named.group, pp, m)
        return "" if takes else _groups(rules, pp)
    if rules.microbatches == ALWAYS and m % pp:
        return f"a multiple of {pp}"
    if v > 1 and named.deals_rounds:
        if rules.microbatches == INTERLEAVED and m % pp:
            return f"a multiple of {pp}"
        if m % max(m // pp, 1):
            return f"rounds of one length, of {pp} or more"
    return ""


def _tensor(tp: int, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    heads, groups = facts.num_attention_heads, facts.num_query_groups
    if tp > 1 and not rules.tensor_parallel:
        yield "tensor_parallelism", f"tensor-parallel size {tp}", "1"
    elif heads % tp:
        yield "tensor_parallelism", f"{heads} heads on {tp} ranks", "a divisor"
    elif groups % tp and (tp % groups or not rules.copies_query_groups):
        multiple = " or a multiple" if rules.copies_query_groups else ""
        yield (
            "tensor_parallelism",
            f"{groups} query groups on {tp} ranks",
            f"a divisor{multiple} of the groups",
        )


def _sequence(sizes: LaunchSizes, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    if sizes.sequence_parallel and sizes.tp == 1:
        yield (
            "sequence_parallelism",
            "sequence parallelism with tensor-parallel size 1",
            "a tensor-parallel size above 1, or none",
        )
    elif sizes.tp > 1 and sizes.sequence_parallel not in rules.sequence_parallel:
        words = "whole sequences", "split sequences"
        now = sizes.sequence_parallel
        yield "sequence_parallelism", words[now], words[not now]
    unit = rules.sequence_unit(sizes.tp, sizes.cp, sizes.grouping.ring(sizes.cp))
    if facts.sequence_length % unit:
        yield (
            "sequence_length",
            f"{facts.sequence_length:,} tokens",
            f"a multiple of {unit}",
        )


def _unsplit_attention(rules: LaunchRules, facts: LaunchFacts) -> str:
    """Return a kind of attention that ranks cannot share a sequence of, if any."""
    kinds = (
        ("latent", facts.has_latent_attention, rules.splits_latent_attention),
        ("linear", facts.has_linear_attention, rules.splits_linear_attention),
        ("sparse", facts.has_sparse_attention, rules.splits_sparse_attention),
    )
    return next((name for name, has, splits in kinds if has and not splits), "")


def _context(sizes: LaunchSizes, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    tp, cp, grouping = sizes.tp, sizes.cp, sizes.grouping
    kinds, words = rules.context_parallel, WORDS["context_parallel"]
    if cp > 1 and grouping.cp_comm_type not in kinds:
        yield (
            "context_parallelism",
            f"{words[grouping.cp_comm_type]} of {cp} context-parallel ranks",
            " or ".join(words[kind] for kind in kinds) if kinds else "1 rank",
        )
        return
    if cp > 1 and (unsplit := _unsplit_attention(rules, facts)):
        yield "context_parallelism", f"{unsplit} attention of {cp} ranks", "1 rank"
        return
    if rules.context_parallel_alone and cp > 1 and tp > 1:
        yield (
            "context_parallelism",
            f"{cp} ranks beside {tp} tensor-parallel ones",
            "1 tensor-parallel rank",
        )
        return
    ranks, groups = grouping.exchanging(cp), max(facts.num_query_groups // tp, 1)
    if (
        ranks > 1
        and facts.has_latent_attention
        and not rules.exchanges_latent_attention
    ):
        exchanged = f"heads of latent attention exchanged by {ranks} ranks"
        yield "context_parallelism", exchanged, "a ring, or gathered keys and values"
        return
    copies = rules.copies_exchanged_groups and ranks % groups == 0
    if groups % ranks and not copies:
        yield (
            "context_parallelism",
            f"heads of {groups} query groups exchanged by {ranks} ranks",
            "a divisor of the query groups on a tensor-parallel rank",
        )


def _experts(sizes: LaunchSizes, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    ep, etp = sizes.ep, sizes.grouping.etp
    if ep > 1 and facts.precision == "fp16" and not rules.experts_in_fp16:
        yield "experts", "experts in fp16", "bf16 or fp32"
    is_whole = sizes.tp > 1 and not sizes.sequence_parallel
    if ep > 1 and is_whole and not rules.experts_beside_whole_sequences:
        yield "experts", f"{sizes.tp} ranks with whole sequences", "split sequences"
    if facts.has_biased_experts and not rules.biased_experts:
        yield "experts", "experts with biases", "none"
    elif facts.has_biased_experts and sizes.etp > 1 and not rules.splits_biased_experts:
        yield (
            "experts",
            f"biases of experts that {sizes.etp} ranks share",
            "each expert whole on its rank (expert_tensor_parallel_size = 1)",
        )
    if rules.experts_innermost and min(ep, sizes.tp) > 1:
        ranks = f"{ep} ranks outside of {sizes.tp} tensor-parallel ones"
        yield "rank_order", f"experts on {ranks}", "experts innermost"
    if ep > 1 and not rules.expert_parallel:
        yield "expert_parallelism", f"experts on {ep} ranks", "1 rank"
    elif etp or ep > 1:
        yield from _spread(sizes, rules, facts)


def _spread(sizes: LaunchSizes, rules: LaunchRules, facts: LaunchFacts) -> Breaches:
    experts, ep = facts.num_moe_experts, sizes.ep
    words = WORDS["expert_tensor_parallel"]
    counts_anew, folds = not facts.experts_within_data, sizes.grouping.folds
    if sizes.tp > 1 and split_kind(sizes) not in rules.expert_tensor_parallel:
        yield (
            "expert_parallelism",
            f"each expert on {sizes.etp} of {sizes.tp} ranks",
            " or ".join(words[kind] for kind in rules.expert_tensor_parallel),
        )
    elif not experts or experts % ep:
        yield "expert_parallelism", f"{experts} experts on {ep} ranks", "a divisor"
    elif not sizes.grouping.etp and sizes.cp > 1 and folds != counts_anew:
        ways = "data-parallel ranks alone", "all ranks of a stage"
        yield (
            "expert_parallelism",
            f"experts spread over {ways[not counts_anew]}",
            ways[counts_anew],
        )


def split_kind(sizes: LaunchSizes) -> str:
    """Return how experts are split: `TENSOR`, `PART` or `WHOLE`."""
    if sizes.etp == sizes.tp:
        return TENSOR
    return WHOLE if sizes.etp == 1 else PART
