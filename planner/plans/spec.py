"""A plan as people write it: sizes and settings under Megatron's names."""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Le

from estimators.grouping import ParallelDegrees
from planner.step.ledger import shards_weights
from planner.step.plan import (
    COUNTED_MODES,
    STAGE_SETTINGS,
    Offload,
    Recompute,
    RecomputeModule,
    ZeroStage,
)
from planner.step.recompute import SENDING_AGAIN
from planner.step.schedules import SCHEDULES
from topologies.errors import InputError
from topologies.settings import (
    MAX_COUNT,
    MOST_STAGES,
    Count,
    Examples,
    Fraction,
    Listed,
    NameChoice,
    OfStages,
    Text,
)

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
"""The parallel dimensions in Megatron's default order of ranks."""

DEFAULT_ORDER = "-".join(DIMENSIONS)
"""``initialize_model_parallel(order=..)`` of Megatron-LM, innermost first."""

MOST_VIRTUAL_STAGES = 100_000
"""Virtual stages of a pipeline, at most."""

Layers = Annotated[int, Ge(0), Le(MAX_COUNT)]
ScheduleName = Annotated[str, NameChoice(tuple(SCHEDULES))]

T = TypeVar("T", str, int, float)

_WAYS_TO_SHARE = (
    ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    ("num_layers_per_pipeline_stage",),
    ("pipeline_model_parallel_layout",),
    (
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    ),
)
"""Settings that say how blocks are shared out; those of one group go together."""


STAGE_NAMES = (
    *(name for name in STAGE_SETTINGS if name != "offload"),
    *(f"offload_{name}" for name in Offload._fields),
)
"""Settings that have a value for all stages, or one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec(ParallelDegrees):
    """One plan, under Megatron's names, for `nestsim simulate`."""

    micro_batch_size: Annotated[Count, Examples(1)]
    """Sequences of a microbatch."""

    virtual_pipeline_model_parallel_size: Annotated[
        Count, Examples(3, default=None)
    ] = 1
    """Chunks of each stage; more than 1 is interleaved 1F1B. Left out, 2 with the
    schedules "zb-v" and "dualpipe-v", which have no other number."""

    data_parallel_size: Annotated[Count | None, Examples(8)] = None
    """Replicas of the pipeline. Left out, as many as the devices suffice for."""

    num_microbatches: Annotated[Count | None, Examples(16)] = None
    """Microbatches of each replica. If it is given, the last ones may be padded. Left
    out, those that make the global batch, which must all be full."""

    schedule: Annotated[ScheduleName | None, Examples("1f1b")] = None
    """Order of the microbatches' forward and backward passes. Left out, 1F1B,
    interleaved if stages have several chunks; with "maxtext" its own, "scanned" and
    "circular"."""

    microbatch_group_size_per_vp_stage: Annotated[Count | None, Examples(4)] = None
    """Microbatches that go through one chunk before the next one's turn, with
    interleaved 1F1B: Megatron's --microbatch-group-size-per-virtual-pipeline-stage. At
    least as many as stages, and so has the last group. Larger groups wait less for slow
    links, and keep more activations. Left out, as many as stages, or a few more where
    those come out even."""

    overlap_moe_expert_parallel_comm: Annotated[bool, Examples(True)] = False
    """Whether all-to-alls between experts go on beside the passes of another
    microbatch, as Megatron Core's overlap_moe_expert_parallel_comm has it: each forward
    pass beside a backward pass, once the pipeline is full. Not with full recompute."""

    recompute: Annotated[
        OfStages[Recompute], Examples("selective", ["full", "none"], default=None)
    ] = "none"
    """What is recomputed in the backward pass: one mode for all stages, or a list with
    one for each. Left out, as `software.preset` has it; nothing with "ideal"."""

    zero_stage: Annotated[OfStages[ZeroStage], Examples(1, [1, 0], default=None)] = 0
    """ZeRO stage of all pipeline stages, or a list with one for each. Megatron's
    use_distributed_optimizer is 1. Left out, as `software.preset` has it; 0 with
    "ideal"."""

    sharding_group_size: Annotated[OfStages[Count] | None, Examples(8, [8, 4])] = None
    """Data-parallel ranks that share ZeRO's shards, in all stages, or a list with one
    number for each stage. Left out, all of them."""

    zero_hpz_partition_size: Annotated[OfStages[Count], Examples(8, [8, 4])] = 1
    """hpZ of ZeRO++, under DeepSpeed's name: with ZeRO-3, data-parallel ranks next to
    each other, as a rule those of a node, that share a second copy of the weights. The
    first forward pass of a step gathers among all ranks, every other pass among these.
    One number for all stages, or a list with one for each; 1 for no copy."""

    reshard_after_forward: Annotated[
        OfStages[Annotated[int, Ge(2), Le(MAX_COUNT)]] | None, Examples(8, [8, 4])
    ] = None
    """FSDP2's reshard_after_forward = n: with ZeRO-3, data-parallel ranks next to each
    other, as a rule those of a node, that share the weights from each forward pass to
    its backward pass, which gathers among these. One number for all stages, or a list
    with one for each. Left out, all ranks that share shards, FSDP2's True; its False is
    ZeRO-2."""

    recompute_num_layers: Annotated[OfStages[Layers] | None, Examples(2, [5, 0])] = None
    """Blocks of each stage's chunks, from the first one on, that `recompute` is about,
    or a list with one number for each stage. Megatron's --recompute-num-layers with
    --recompute-method block. Left out, all blocks."""

    recompute_modules: Annotated[
        Annotated[tuple[RecomputeModule, ...], Listed(1)] | None,
        Examples(["layernorm", "moe_act"]),
    ] = None
    """Megatron's option: what "selective" recompute runs again in all stages, names of
    `software.recompute_modules`. Left out, that setting's."""

    offload_weights: Annotated[OfStages[Fraction], Examples(0.5, [1.0, 0.0])] = 0.0
    """Fraction of the weights that the host keeps; they come in each pass. One number
    for all stages, or a list with one for each."""

    offload_gradients: Annotated[OfStages[Fraction], Examples(0.5, [1.0, 0.0])] = 0.0
    """Fraction of the accumulated gradients that the host keeps; they come and go in
    each backward pass. One number for all stages, or a list with one for each."""

    offload_optimizer: Annotated[OfStages[Fraction], Examples(1.0, [1.0, 0.0])] = 0.0
    """Fraction of the optimizer states that the host keeps. Megatron's
    --optimizer-offload-fraction. One number for all stages, or a list with one for
    each."""

    offload_activations: Annotated[OfStages[Fraction], Examples(0.5, [1.0, 0.0])] = 0.0
    """Fraction of the saved activations that the host keeps between a forward pass and
    its backward pass. One number for all stages, or a list with one for each."""

    num_layers_in_first_pipeline_stage: Annotated[Layers | None, Examples(5)] = None
    """Transformer blocks of the first stage, where it differs from the others.
    Megatron's command line calls it --decoder-first-pipeline-num-layers."""

    num_layers_in_last_pipeline_stage: Annotated[Layers | None, Examples(5)] = None
    """Transformer blocks of the last stage, where it differs from the others.
    Megatron's command line calls it --decoder-last-pipeline-num-layers."""

    num_layers_per_pipeline_stage: Annotated[
        Annotated[tuple[Layers, ...], Listed(1, MOST_STAGES)] | None,
        Examples([7, 8, 8, 7]),
    ] = None
    """Transformer blocks of each stage, in place of
    `num_layers_in_first_pipeline_stage` and its like for the last."""

    pipeline_model_parallel_layout: Annotated[
        Annotated[tuple[Layers, ...], Listed(1, MOST_VIRTUAL_STAGES)] | None,
        Examples([1, 2, 2, 2, 2, 2, 2, 1]),
    ] = None
    """Transformer blocks of each virtual stage in the order of the model, in place of
    all settings about blocks of stages: chunk 0 of every stage, then chunk 1, and so
    on. What Megatron's --pipeline-model-parallel-layout says with letters."""

    account_for_embedding_in_pipeline_split: Annotated[bool, Examples(True)] = False
    """Megatron's option: the embedding counts as a block where blocks are shared out
    evenly."""

    account_for_loss_in_pipeline_split: Annotated[bool, Examples(True)] = False
    """Megatron's option: final norm, head and loss together count as a block where
    blocks are shared out evenly."""

    order: Annotated[Text | None, Examples("tp-cp-ep-dp-pp")] = None
    """How ranks are numbered, from the dimension whose neighbours are next to each
    other outwards. Megatron's default is "tp-cp-ep-dp-pp"."""

    placement: Annotated[Text | None, Examples("tp8 dp2 pp4 dp4")] = None
    """Nesting of the parallel dimensions over device numbers, as reports write it,
    innermost first; it may split dp and pp into two parts, and stands in place of
    `order`. Where devices differ it may end in ", fast first" or ", slow first": whole
    nodes in that order."""

    gradient_algorithm: Annotated[Text, Examples("ring", "halving-doubling")] = "auto"
    """Algorithm of the data-parallel collectives, a name that `nestsim collectives`
    prints; "auto" takes the cheaper of ring and hierarchical, as the planner does, and
    nvls or sharp where switches of the network add up and that is cheaper. What an
    algorithm does not have, such as an all-gather by trees, rings do."""

    tensor_algorithm: Annotated[Text, Examples("ring", "double-binary-tree")] = "auto"
    """Algorithm of the tensor-parallel collectives, a name that `nestsim collectives`
    prints; "auto" takes the cheaper of ring and hierarchical, as the planner does, and
    nvls or sharp where switches of the network add up and that is cheaper. What an
    algorithm does not have, such as an all-gather by trees, rings do."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, with the name of one."""
        self._check_stages()
        self._check_layers()
        self._check_order()
        self._check_zero()
        self._check_recompute()
        self._check_overlap()

    def recompute_by_stage(self) -> tuple[str, ...]:
        """Return the recompute mode of each stage."""
        return self._by_stage(self.recompute)

    def zero_stage_by_stage(self) -> tuple[int, ...]:
        """Return the ZeRO stage of each stage."""
        return self._by_stage(self.zero_stage)

    def sharding_group_by_stage(self, whole: int) -> tuple[int, ...]:
        """Return the sharding group of each stage, ``whole`` where none is given."""
        group = self.sharding_group_size
        return self._by_stage(whole if group is None else group)

    def resharding_by_stage(self) -> tuple[int | None, ...]:
        """Return over how many ranks each stage's weights are sharded again."""
        if self.reshard_after_forward is None:
            return (None,) * self.pipeline_model_parallel_size
        sizes = self._by_stage(self.reshard_after_forward)
        return tuple(
            size if shards_weights(zero_stage) else None
            for size, zero_stage in zip(sizes, self.zero_stage_by_stage(), strict=True)
        )

    def second_copy_by_stage(self) -> tuple[int, ...]:
        """Return who shares a second copy of each stage's weights; 1 for nobody."""
        sizes = self._by_stage(self.zero_hpz_partition_size)
        return tuple(
            size if shards_weights(zero_stage) else 1
            for size, zero_stage in zip(sizes, self.zero_stage_by_stage(), strict=True)
        )

    def recompute_num_layers_by_stage(self) -> tuple[int | None, ...]:
        """Return how many blocks of its chunks each stage recomputes; None for all.

        Stages that recompute nothing, or everything from their input, have no number.
        """
        count = self.recompute_num_layers
        if count is None:
            return (None,) * self.pipeline_model_parallel_size
        counts, modes = self._by_stage(count), self.recompute_by_stage()
        return tuple(
            each if mode in COUNTED_MODES else None
            for each, mode in zip(counts, modes, strict=True)
        )

    def offload_by_stage(self) -> tuple[Offload, ...]:
        """Return what the hosts of each stage keep."""
        names = [f"offload_{name}" for name in Offload._fields]
        columns = [self._by_stage(getattr(self, name)) for name in names]
        return tuple(Offload(*parts) for parts in zip(*columns, strict=True))

    def stage_settings(self, ranks: int) -> list[dict[str, Any]]:
        """Return what each stage chooses, by the names of `STAGE_SETTINGS`.

        Parameters
        ----------
        ranks
            Data-parallel ranks of a stage.
        """
        shards = self.sharding_group_by_stage(ranks)
        groups = zip(shards, self.zero_stage_by_stage(), strict=True)
        again = zip(self.resharding_by_stage(), shards, strict=True)
        derived: dict[str, tuple[Any, ...]] = {
            "sharding_group_size": tuple(
                group if zero_stage else 1 for group, zero_stage in groups
            ),
            "recompute_num_layers": self.recompute_num_layers_by_stage(),
            "offload": self.offload_by_stage(),
            "zero_hpz_partition_size": self.second_copy_by_stage(),
            # Over all of them is what happens anyway.
            "reshard_after_forward": tuple(
                None if size == group else size for size, group in again
            ),
        }
        columns = [
            derived[name] if name in derived else self._by_stage(getattr(self, name))
            for name in STAGE_SETTINGS
        ]
        return [
            dict(zip(STAGE_SETTINGS, values, strict=True))
            for values in zip(*columns, strict=True)
        ]

    def _by_stage(self, value: T | tuple[T, ...]) -> tuple[T, ...]:
        if isinstance(value, tuple):
            return value
        return (value,) * self.pipeline_model_parallel_size

    def _check_stages(self) -> None:
        """Refuse lists that do not have one entry for each stage."""
        pp = self.pipeline_model_parallel_size
        for name in (*STAGE_NAMES, "num_layers_per_pipeline_stage"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != pp:
                raise InputError(
                    "must have one entry for each pipeline stage",
                    where=name,
                    got=list(value),
                    expected=f"a list of {pp}, as pipeline_model_parallel_size says",
                )

    def _check_layers(self) -> None:
        """Refuse two ways to share the layers, and ends that are not there."""
        given = [
            [name for name in names if _is_given(getattr(self, name))]
            for names in _WAYS_TO_SHARE
        ]
        ways = [names[0] for names in given if names]
        if len(ways) > 1:
            raise InputError(
                f"does not go with {ways[1]}",
                where=ways[0],
                got=_file_value(getattr(self, ways[0])),
                expected="one of the two settings",
            )
        if given[0] and self.pipeline_model_parallel_size < 2:
            raise InputError(
                "needs at least 2 pipeline stages",
                where=ways[0],
                got=getattr(self, ways[0]),
                expected="pipeline_model_parallel_size = 2 or more",
            )
        self._check_layout()

    def _check_layout(self) -> None:
        """Refuse a layout that does not have one entry for each virtual stage."""
        layout = self.pipeline_model_parallel_layout
        pp, v = (
            self.pipeline_model_parallel_size,
            self.virtual_pipeline_model_parallel_size,
        )
        if layout is not None and len(layout) != pp * v:
            raise InputError(
                "must have one entry for each virtual stage",
                where="pipeline_model_parallel_layout",
                got=list(layout),
                expected=f"a list of {pp * v}: {pp} stages x {v} chunks",
            )

    def _check_order(self) -> None:
        if self.order is None:
            return
        if self.placement is not None:
            raise InputError(
                "does not go with placement",
                where="order",
                got=self.order,
                expected="one of the two settings",
            )
        names = order_names(self.order)
        known = set(names) <= set(DIMENSIONS) and len(set(names)) == len(names)
        if not known or names[0] != "tp":
            raise InputError(
                "is not an order of ranks",
                where="order",
                got=self.order,
                expected=f'tp, then cp, ep, dp and pp in any order: "{DEFAULT_ORDER}", '
                '"tp-cp-ep-pp-dp"',
            )

    def _check_zero(self) -> None:
        group = self.sharding_group_size
        if group is not None and not any(self.zero_stage_by_stage()):
            raise InputError(
                "there is nothing to share without ZeRO",
                where="sharding_group_size",
                got=_file_value(group),
                expected="zero_stage = 1, 2 or 3 beside it",
            )
        again = self.reshard_after_forward
        if again is not None and not any(
            map(shards_weights, self.zero_stage_by_stage())
        ):
            raise InputError(
                "there are no sharded weights to shard again",
                where="reshard_after_forward",
                got=_file_value(again),
                expected="zero_stage = 3 beside it, or nothing",
            )
        copies = self.zero_hpz_partition_size
        is_asked = max(self._by_stage(copies)) > 1
        if is_asked and not any(map(shards_weights, self.zero_stage_by_stage())):
            raise InputError(
                "there are no sharded weights to keep a second copy of",
                where="zero_hpz_partition_size",
                got=_file_value(copies),
                expected="zero_stage = 3 beside it, or 1 for no copy",
            )

    def _check_recompute(self) -> None:
        count = self.recompute_num_layers
        modes = self.recompute_by_stage()
        if count is not None and not COUNTED_MODES & set(modes):
            raise InputError(
                "there are no blocks to count",
                where="recompute_num_layers",
                got=_file_value(count),
                expected='recompute = "full" or "selective" beside it',
            )

    def _check_overlap(self) -> None:
        """Refuse to hide what is not there, or is sent again inside of a pass.

        A pass that computes everything again sends its tokens in the middle of its
        partner's compute; Megatron Core refuses it, too
        (``megatron/core/transformer/transformer_config.py``).
        """
        if not self.overlap_moe_expert_parallel_comm:
            return
        if self.expert_model_parallel_size == 1:
            raise InputError(
                "there are no all-to-alls between experts to hide",
                where="overlap_moe_expert_parallel_comm",
                got=True,
                expected="expert_model_parallel_size = 2 or more beside it",
            )
        self.refuse_sending_again(SENDING_AGAIN)

    def refuse_sending_again(self, modes: frozenset[str]) -> None:
        """Refuse recompute modes that send tokens again beside another microbatch.

        Raises
        ------
        InputError
            If a stage has one of these modes.
        """
        again = sorted(modes & {*self.recompute_by_stage()})
        if again:
            raise InputError(
                "does not go with passes that send their tokens again",
                where="overlap_moe_expert_parallel_comm",
                got=f'recompute = "{again[0]}"',
                expected='recompute = "none" beside it, or "selective" without "moe" '
                "in software.recompute_modules",
            )


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _file_value(value: object) -> object:
    """Return a value as it stands in a file."""
    return list(value) if isinstance(value, tuple) else value


def order_names(order: str | None) -> tuple[str, ...]:
    """Return the dimensions of an order of ranks, innermost first."""
    return tuple((DEFAULT_ORDER if order is None else order).lower().split("-"))
