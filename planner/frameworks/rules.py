"""What a framework can launch: the shape of its rules, which are data.

A plan that breaks one of these rules may still be simulated, but nobody can start it:
`planner.search.launchable` compares a plan with them, and the search stays inside them
unless a scenario asks for more. `planner.frameworks.catalog` holds what each framework
asks for, release by release, and where its code says so.

How blocks are shared out over the chunks of a pipeline has letters: ``c`` numbers of
blocks of the virtual stages in the order of the chain, ``p`` stages, ``v`` chunks of
each, ``B`` blocks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import permutations, product
from types import MappingProxyType

import tomli

from planner.step.plan import Offload
from planner.step.schedules import SCHEDULES

EVEN = "even"
"""Every chunk holds the same number of blocks."""

ENDS = "ends"
"""The first and the last stage may hold other numbers of blocks than the stages
between, which are alike; each stage shares its blocks evenly over its chunks."""

ACCOUNTED = "accounted"
"""As `EVEN`, where the embedding, or final norm, head and loss, or both, may count as
one block each."""

EARLY = "early"
"""Each round of chunks holds as many blocks; what is left over of a round goes to its
first stages, one block each."""

LATE = "late"
"""As `EARLY`, to the last stages of each round."""

BALANCED = "balanced"
"""Numbers of blocks differ by one at most, the ends of the chain counting or not, as in
`ACCOUNTED`."""

LAYOUT = "layout"
"""Any number of blocks in any chunk, written out one by one."""


def rounds(
    num_blocks: int, num_stages: int, num_chunks: int, kind: str
) -> tuple[int, ...] | None:
    """Return ``c`` as `EARLY` or `LATE` has it; None if there is none.

    DeepSpeed's ``partition_balanced`` over ``type:transformer`` and InternEvo's
    ``partition_uniform``.
    """
    of_round, rest = divmod(num_blocks, num_chunks)
    if rest or of_round < num_stages:
        return None
    even, over = divmod(of_round, num_stages)
    more = range(over) if kind == EARLY else range(num_stages - over, num_stages)
    return tuple(even + (stage in more) for stage in range(num_stages)) * num_chunks


def shared_out(
    num_blocks: int, num_stages: int, *, first: int, last: int
) -> tuple[int, ...]:
    """Return ``c`` as even as can be, first stages having what is left over.

    The ends of the chain count as ``first`` and ``last`` blocks.
    """
    least, more = divmod(num_blocks + first + last, num_stages)
    counts = [least + (stage < more) for stage in range(num_stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def is_even(counts: Sequence[int], _: int) -> bool:
    """Tell whether all ``c`` are equal."""
    return len(set(counts)) == 1


def has_other_ends(counts: Sequence[int], num_stages: int) -> bool:
    """Tell whether stages between the first and the last are alike, chunks in each."""
    stages = [counts[stage::num_stages] for stage in range(num_stages)]
    return all(is_even(stage, 1) for stage in stages) and len(set(stages[1:-1])) <= 1


def is_accounted(counts: Sequence[int], _: int) -> bool:
    """Tell whether all ``c`` are equal with some of the ends counted."""
    return any(is_even(parts, 1) for parts in _counted_ends(counts))


def is_balanced(counts: Sequence[int], _: int) -> bool:
    """Tell whether ``c`` differ by at most one, with some of the ends counted."""
    return any(max(parts) - min(parts) <= 1 for parts in _counted_ends(counts))


def counted_ends(counts: Sequence[int]) -> tuple[str, ...]:
    """Return which ends of the chain count as a block, all virtual stages being alike.

    Of ``"embedding"`` and ``"loss"``; none if no such count is even.
    """
    for parts, ends in zip(_counted_ends(counts), _ENDS, strict=True):
        if is_even(parts, 1):
            return ends
    return ()


_ENDS = (), ("loss",), ("embedding",), ("embedding", "loss")


def _counted_ends(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the counts with the embedding, the loss, both or neither as a block."""
    for embedding, loss in product((0, 1), repeat=2):
        parts = list(counts)
        parts[0] += embedding
        parts[-1] += loss
        yield parts


def _in_rounds(kind: str) -> Callable[[Sequence[int], int], bool]:
    def check(counts: Sequence[int], num_stages: int) -> bool:
        chunks = len(counts) // num_stages
        return tuple(counts) == rounds(sum(counts), num_stages, chunks, kind)

    return check


SPLIT_CHECKS = MappingProxyType[str, Callable[[Sequence[int], int], bool]](
    {
        EVEN: is_even,
        ENDS: has_other_ends,
        ACCOUNTED: is_accounted,
        EARLY: _in_rounds(EARLY),
        LATE: _in_rounds(LATE),
        BALANCED: is_balanced,
        LAYOUT: lambda *_: True,
    }
)
"""Kind of split -> whether ``c`` and ``p`` are of that kind."""


_FILE = resources.files("planner") / "frameworks" / "words.toml"

WORDS: Mapping[str, Mapping[str, str]] = tomli.loads(_FILE.read_text(encoding="utf-8"))
"""Field of `LaunchRules`, in part -> its values in sentences."""

RULES: Mapping[str, str] = WORDS["rules"]
"""Name of a rule -> what it asks for. Every `LaunchRules` has a source for each."""

INTERLEAVED = "interleaved"
"""Stages of several chunks divide the microbatches."""

ROUNDS = "rounds"
"""With several chunks all rounds of microbatches are as long, and no shorter than the
pipeline where there is more than one (`planner.step.schedules`)."""

ALWAYS = "always"
"""Stages divide the microbatches."""

TENSOR, PART, WHOLE = "tensor", "part", "whole"
"""Each expert is split over all tensor-parallel ranks, over some of them, or whole."""

AFTER, EQUAL, PLAIN = "after", "equal", "plain"
"""Where stages may stand in front of replicas in the order of ranks: anywhere, where
experts have as many replicas as the rest, without context and expert parallelism."""


def is_tpu(accelerator: str) -> bool:
    """Tell whether an accelerator of some name is a TPU."""
    return accelerator.lower().startswith("tpu")


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

    ties_over_stages: bool = True
    """Whether the first and the last stage may share the embedding."""

    pipelines_normed_queries: bool = True
    """Whether a pipeline goes with normed queries and keys."""

    microbatches: str = INTERLEAVED
    """How microbatches are dealt out: `INTERLEAVED`, `ROUNDS` or `ALWAYS`."""

    microbatch_groups: bool = False
    """Whether microbatches may go through chunks in groups of a size that is asked for,
    `planner.step.instructions.group_takes`."""

    full_schedules: tuple[str, ...] = ()
    """Schedules that want as many microbatches as stages, or more."""

    splits: tuple[str, ...] = (EVEN,)
    """Ways to share out the blocks, of `planner.frameworks.rules`; one that fits
    suffices."""

    empty_ends: bool = False
    """Whether the first and the last chunk may hold no block, only the end of the
    chain."""

    tensor_parallel: bool = True
    """Whether it has tensor parallelism."""

    copies_query_groups: bool = True
    """Whether tensor-parallel ranks may outnumber the query groups, which are then
    held several times."""

    sequence_parallel: tuple[bool, ...] = (False, True)
    """Whether tensor parallelism may leave sequences whole, and split them."""

    sequence_parallel_with_pipeline: bool = True
    """Whether a pipeline goes with sequence parallelism."""

    sequence_factors: tuple[str, ...] = ()
    """Product of what divides a sequence: ``"tp"``, ``"cp"``, ``"2"``, and ``"2cp"``,
    which is 1 without context parallelism: each rank has one part of the front and one
    of the back."""

    sequence_factors_on_tpu: tuple[str, ...] = ()
    """The same on TPUs, where it is another; ``"ring"`` are the ranks of a sequence,
    and of a ring the square of its ranks."""

    context_parallel: tuple[str, ...] = ()
    """How ranks that share a sequence may share attention, of
    `estimators.grouping.CP_COMM_TYPES`; none if it has no context parallelism."""

    context_parallel_on_tpu: tuple[str, ...] = ()
    """Ways that it has on TPUs beside those."""

    splits_latent_attention: bool = True
    """Whether context parallelism goes with latent attention."""

    splits_linear_attention: bool = True
    """Whether context parallelism goes with linear attention."""

    splits_sparse_attention: bool = True
    """Whether context parallelism goes with attention that has an indexer."""

    exchanges_latent_attention: bool = True
    """Whether heads of latent attention may be exchanged for tokens."""

    context_parallel_alone: bool = False
    """Whether context parallelism excludes tensor and pipeline parallelism."""

    copies_exchanged_groups: bool = False
    """Whether ranks that exchange heads for tokens may outnumber the query groups of a
    rank, which are then copied."""

    expert_parallel: bool = True
    """Whether experts may be spread over ranks."""

    overlap_expert_parallel: bool = False
    """Whether all-to-alls between experts may go on beside another microbatch: without
    a pipeline, or with chunks, in the combined schedules."""

    expert_tensor_parallel: tuple[str, ...] = (TENSOR,)
    """How experts may be split: `TENSOR`, `PART`, `WHOLE`."""

    experts_innermost: bool = False
    """Whether ranks of one expert group are numbered first, which no order here is
    where there are tensor-parallel ranks."""

    experts_fill_data: bool = False
    """Whether experts are spread over as many replicas as there are of either."""

    experts_in_fp16: bool = True
    """Whether experts on several ranks may be in fp16."""

    experts_beside_whole_sequences: bool = True
    """Whether experts on several ranks go with tensor parallelism that leaves sequences
    whole."""

    biased_experts: bool = True
    """Whether experts may have biases."""

    splits_biased_experts: bool = True
    """Whether experts with biases may be split."""

    overlap_most_predictions: int | None = None
    """Most layers of multi-token prediction beside `overlap_expert_parallel`."""

    overlap_predictions_alone: bool = True
    """Whether such layers go with it without a pipeline."""

    zero_stages: tuple[int, ...] = (0,)
    """ZeRO stages without a pipeline."""

    zero_stages_with_pipeline: tuple[int, ...] = ()
    """ZeRO stages with a pipeline."""

    zero_stages_unasked: tuple[int, ...] | None = None
    """ZeRO stages that are searched where a scenario names none; None for all."""

    zero_stages_with_experts: tuple[int, ...] | None = None
    """ZeRO stages beside experts, over all replicas; None for all, over any."""

    zero_excludes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """ZeRO stages with the dimensions that they do not go beside."""

    replicates_alone: bool = False
    """Whether replicas that share nothing go beside other kinds of parallelism only
    where experts are spread."""

    experts_within_shards: bool = False
    """Whether experts are spread over ranks of one sharding group alone: without ZeRO
    over those of one replica."""

    hybrid_sharding: tuple[int, ...] = ()
    """ZeRO stages whose shards a part of the replicas may hold, the others having
    copies."""

    second_copies: bool = False
    """Whether ranks next to each other may share a second copy of the weights beside
    ZeRO-3 (hpZ)."""

    reshards_in_groups: bool = False
    """Whether weights may be sharded again over ranks next to each other after forward
    passes, where no tensor-parallel ranks split them (FSDP2)."""

    second_copies_alone: bool = False
    """Whether such copies go only with shards over all replicas, and with layers that
    no tensor-parallel ranks split."""

    shards_fill: tuple[str, ...] = ()
    """Dimensions whose ranks share shards as a whole."""

    shards_several_replicas: bool = False
    """Whether shards that others have copies of are those of two replicas or more."""

    recompute: tuple[str, ...] = ("none", "selective", "full")
    """Recompute modes that stages may have."""

    recompute_modules: tuple[str, ...] = ()
    """What selective recompute may be of, one set for all stages, keys of `estimators.
    layers.saved_activations.RECOMPUTE_MODULES`; none if that is no choice."""

    recompute_num_layers: tuple[str, ...] = ()
    """Recompute modes of a number of blocks of each chunk that is given."""

    recompute_num_layers_with_pipeline: bool = True
    """Whether a pipeline goes with such a number."""

    recompute_every: tuple[str, ...] = ()
    """Recompute modes of every ``n``-th block, which a number of blocks may come to."""

    offload: tuple[str, ...] = ()
    """What hosts can keep without a pipeline, fields of `planner.step.plan.Offload`."""

    offload_with_pipeline: tuple[str, ...] = ()
    """What hosts can keep with a pipeline."""

    offload_unrepeated: tuple[str, ...] = ()
    """Of what hosts can keep, what they keep only where nothing is recomputed."""

    offload_sharded: tuple[str, ...] = ()
    """Of what hosts can keep, what they keep only with ZeRO."""

    offload_by_layers: tuple[str, ...] = ()
    """Of what hosts can keep, what they keep of whole blocks, and not of all."""

    adapters: tuple[str, ...] = ()
    """What may be trained in place of all weights, of `training.adapter`."""

    offload_together: tuple[str, ...] = ()
    """Of what hosts can keep, what they keep all of or nothing of."""

    same_savings: bool = True
    """Whether all stages must have one recompute mode, one ZeRO stage, one sharding
    group and one set of fractions on hosts."""

    orders: tuple[Order, ...] = ANY_ORDER
    """Orders in which ranks are numbered. Dimensions of size 1 may be anywhere."""

    pp_inside: str = AFTER
    """Where stages may stand in front of replicas: `AFTER`, `EQUAL` or `PLAIN`."""

    sources: tuple[tuple[str, str], ...] = ()
    """For each of `RULES` its name, and where the framework's side of it stands."""

    def on(self, accelerator: str) -> "LaunchRules":
        """Return the rules that hold on an accelerator of some name."""
        if not is_tpu(accelerator):
            return self
        ways = self.context_parallel + self.context_parallel_on_tpu
        return replace(
            self,
            context_parallel=ways,
            context_parallel_on_tpu=(),
            sequence_factors=self.sequence_factors_on_tpu or self.sequence_factors,
        )

    def sequence_unit(self, tp: int, cp: int, ring: int = 1) -> int:
        """Return what divides a sequence over so many ranks, some of them in a ring."""
        sizes = {"tp": tp, "cp": cp, "2": 2, "2cp": 2 * cp if cp > 1 else 1}
        sizes["ring"] = math.lcm(cp, ring * ring)
        return math.prod(sizes[name] for name in self.sequence_factors)

    def orders_of(self, sizes: Mapping[str, int]) -> tuple[Order, ...]:
        """Return the orders of ranks of some sizes, by the dimensions' names.

        ``etp`` ranks share each expert.
        """
        tp, cp, ep, etp, pp = (sizes[key] for key in ("tp", "cp", "ep", "etp", "pp"))
        orders = self.orders
        if self.experts_innermost and min(cp, ep) > 1:
            orders = tuple(
                order for order in orders if order.index("ep") < order.index("cp")
            )
        if pp == 1 or self.pp_inside == AFTER:
            return orders
        is_inside = cp * ep == 1 if self.pp_inside == PLAIN else etp * ep == tp * cp
        return tuple(order for order in orders if is_inside or order[-1] == "pp")

    @property
    def usual_zero_stages(self) -> tuple[int, ...]:
        """ZeRO stages that are tried where nobody asks for one, rising."""
        known = {*self.zero_stages, *self.zero_stages_with_pipeline}
        return self.zero_stages_unasked or tuple(sorted(known))

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
        named = (
            schedule
            for schedule in self.schedules
            if SCHEDULES[schedule].interleaves == several
        )
        return next(named, None)

    def source(self, rule: str) -> str:
        """Return where the framework's side of a rule stands."""
        return dict(self.sources)[rule]

    def zero_stages_of(
        self, sizes: Mapping[str, int], *, has_experts: bool = False
    ) -> tuple[int, ...]:
        """Return the ZeRO stages that go with some sizes; those left out are 1."""
        has_pipeline = sizes["pp"] > 1 and self.pipeline
        can = self.zero_stages_with_pipeline if has_pipeline else self.zero_stages
        beside = self.zero_stages_with_experts if has_experts else None
        excluded = dict(self.zero_excludes)
        if self.replicates_alone and sizes.get("ep", 1) == 1:
            excluded[0] = ("tp", "cp", "pp")
        ranks = sizes.get("tp", 1) * sizes.get("cp", 1)
        spread = sizes.get("ep", 1) * sizes.get("etp", sizes.get("tp", 1))
        if self.experts_within_shards and sizes.get("ep", 1) > 1 and ranks % spread:
            excluded[0] = ("ep",)
        return tuple(
            stage
            for stage in can
            if (beside is None or stage in beside)
            and all(sizes.get(name, 1) == 1 for name in excluded.get(stage, ()))
        )

    def hybrid_sharding_of(self, *, has_experts: bool) -> tuple[int, ...]:
        """Return the ZeRO stages whose shards a part of the replicas may hold."""
        alone = has_experts and self.zero_stages_with_experts is not None
        return () if alone else self.hybrid_sharding

    def shards_over(self, size: int, sizes: Mapping[str, int]) -> bool:
        """Tell whether so many ranks may hold shards that others have copies of.

        Sizes are those of the dimensions by their names.
        """
        several = size > sizes["cp"] or not self.shards_several_replicas
        return several and size % self.shared_as_one(sizes) == 0

    def shared_as_one(self, sizes: Mapping[str, int]) -> int:
        """Return how many ranks share shards as a whole."""
        return math.prod(sizes[name] for name in self.shards_fill)

    def counted_modes(self, num_stages: int) -> tuple[str, ...]:
        """Return the recompute modes that may be of some blocks of each chunk."""
        if num_stages > 1 and not self.recompute_num_layers_with_pipeline:
            return ()
        return self.recompute_num_layers

    def keeps_beside(self, offload: Offload, mode: str, zero_stage: int) -> bool:
        """Tell whether what hosts keep goes with a recompute mode and a ZeRO stage."""
        alone = self.offload_unrepeated if mode != "none" else ()
        sharded = self.offload_sharded if zero_stage == 0 else ()
        return not any(getattr(offload, name) > 0.0 for name in (*alone, *sharded))

    def offload_of(self, num_stages: int) -> tuple[str, ...]:
        """Return what hosts can keep with a number of pipeline stages."""
        return self.offload_with_pipeline if num_stages > 1 else self.offload

    def overlaps_predictions(self, num_layers: int, num_stages: int) -> bool:
        """Tell whether experts' all-to-alls are hidden beside such predictions."""
        most = self.overlap_most_predictions
        return most is None or (
            num_layers <= most
            and (num_layers == 0 or num_stages > 1 or self.overlap_predictions_alone)
        )

    def keeps_together(self, offload: Offload) -> bool:
        """Tell whether hosts keep all or nothing of what goes together."""
        parts = {getattr(offload, name) for name in self.offload_together}
        return parts <= {0.0} or parts == {1.0}

    def keeps_blocks(self, offload: Offload, num_blocks: int) -> bool:
        """Tell whether hosts keep whole blocks of what goes by blocks, and not all."""
        parts = [getattr(offload, name) for name in self.offload_by_layers]
        return all(
            part < 1.0 and math.isclose(part * num_blocks, round(part * num_blocks))
            for part in parts
        )
