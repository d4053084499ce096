"""A plan as people write it: sizes and settings under Megatron's names."""

from dataclasses import dataclass
from typing import Any, TypeVar

from planner.step.ledger import shards_weights
from planner.step.plan import COUNTED_MODES, STAGE_SETTINGS, Offload
from planner.step.recompute import SENDING_AGAIN
from topologies.errors import InputError

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
"""The parallel dimensions in Megatron's default order of ranks."""

DEFAULT_ORDER = "-".join(DIMENSIONS)
"""``initialize_model_parallel(order=..)`` of Megatron-LM, innermost first."""

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
class PlanSpec:
    """One plan, without the device numbers and layers that follow from it.

    Raises
    ------
    InputError
        If settings contradict each other, with the name of one in ``where``.
    """

    micro_batch_size: int
    """Sequences per microbatch."""

    tensor_model_parallel_size: int = 1
    """Devices that share each layer's matrices."""

    pipeline_model_parallel_size: int = 1
    """Pipeline stages."""

    virtual_pipeline_model_parallel_size: int = 1
    """Chunks of each stage."""

    data_parallel_size: int | None = None
    """Replicas of the pipeline; None for as many as the devices suffice for."""

    num_microbatches: int | None = None
    """Microbatches of each replica, the last of which may then be padded; None for as
    many as make the global batch, all of them full."""

    context_parallel_size: int = 1
    """Devices that share each sequence."""

    expert_model_parallel_size: int = 1
    """Devices that share the experts of each mixture-of-experts layer."""

    expert_tensor_parallel_size: int | None = None
    """Devices that share each expert's matrices; None for as many as share those of
    other layers."""

    cp_comm_type: str = "p2p"
    """How devices that share a sequence share attention, one of
    `estimators.grouping.CP_COMM_TYPES`."""

    hierarchical_context_parallel_sizes: tuple[int, ...] | None = None
    """Under ``"a2a+p2p"``: devices that exchange heads, and devices of each ring."""

    sequence_parallel: bool = False
    """Megatron's sequence parallelism; without effect where tensor-parallel groups
    have one member."""

    schedule: str | None = None
    """A name of `planner.step.schedules.SCHEDULES`; None for 1F1B, interleaved if
    stages have several chunks."""

    overlap_moe_expert_parallel_comm: bool = False
    """Whether all-to-alls between experts go on beside the passes of another
    microbatch, in one of the schedules that pair passes (Megatron Core's combined
    1F1B)."""

    recompute: str | tuple[str, ...] = "none"
    """Recompute mode of all stages, or of each: ``"none"``, ``"selective"``,
    ``"full"``, ``"stage"``."""

    zero_stage: int | tuple[int, ...] = 0
    """Stage of ZeRO of all pipeline stages, or of each: 0 to 3. Megatron's
    ``use_distributed_optimizer`` is 1."""

    sharding_group_size: int | tuple[int, ...] | None = None
    """Data-parallel ranks that share ZeRO's shards, of all stages or of each; None for
    all of them."""

    zero_hpz_partition_size: int | tuple[int, ...] = 1
    """Data-parallel ranks next to each other that share a second copy of the weights
    with ZeRO-3 (hpZ), in all stages or in each; 1 for none. DeepSpeed's setting."""

    recompute_num_layers: int | tuple[int, ...] | None = None
    """Blocks of each chunk, from its first one on, that `recompute` is about, in all
    stages or in each; None for all blocks."""

    offload_weights: float | tuple[float, ...] = 0.0
    """Fraction of the weights that the host keeps, in all stages or in each."""

    offload_gradients: float | tuple[float, ...] = 0.0
    """Fraction of the accumulated gradients that the host keeps, in all stages or in
    each."""

    offload_optimizer: float | tuple[float, ...] = 0.0
    """Fraction of the optimizer states that the host keeps, in all stages or in
    each."""

    offload_activations: float | tuple[float, ...] = 0.0
    """Fraction of the saved activations that the host keeps between the passes, in all
    stages or in each."""

    num_layers_in_first_pipeline_stage: int | None = None
    """Transformer blocks of the first stage; None for as many as the others."""

    num_layers_in_last_pipeline_stage: int | None = None
    """Transformer blocks of the last stage; None for as many as the others."""

    num_layers_per_pipeline_stage: tuple[int, ...] | None = None
    """Transformer blocks of each stage, instead of those of the first and the last."""

    pipeline_model_parallel_layout: tuple[int, ...] | None = None
    """Transformer blocks of each virtual stage in the order of the chain, instead of
    those of each stage: chunk 0 of every stage, then chunk 1, and so on."""

    account_for_embedding_in_pipeline_split: bool = False
    """Whether the embedding counts as a block where blocks are shared out evenly."""

    account_for_loss_in_pipeline_split: bool = False
    """Whether final norm, head and loss together count as a block where blocks are
    shared out evenly."""

    order: str | None = None
    """Parallel dimensions in the order of ranks, innermost first, joined by dashes;
    None for `DEFAULT_ORDER`."""

    placement: str | None = None
    """Nesting of the parallel dimensions that `planner.search.placements` names,
    instead of the order."""

    gradient_algorithm: str = "auto"
    """Algorithm of the data-parallel collectives, of
    `estimators.collectives.algorithms`; ``"auto"`` takes the cheapest of those that the
    search chooses from."""

    tensor_algorithm: str = "auto"
    """Algorithm of the tensor-parallel collectives, of
    `estimators.collectives.algorithms`; ``"auto"`` takes the cheapest of those that the
    search chooses from."""

    def __post_init__(self) -> None:
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
        groups = zip(
            self.sharding_group_by_stage(ranks), self.zero_stage_by_stage(), strict=True
        )
        derived: dict[str, tuple[Any, ...]] = {
            "sharding_group_size": tuple(
                group if zero_stage else 1 for group, zero_stage in groups
            ),
            "recompute_num_layers": self.recompute_num_layers_by_stage(),
            "offload": self.offload_by_stage(),
            "zero_hpz_partition_size": self.second_copy_by_stage(),
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
        again = sorted(SENDING_AGAIN & {*self.recompute_by_stage()})
        if again:
            raise InputError(
                "does not go with passes that send their tokens again",
                where="overlap_moe_expert_parallel_comm",
                got=f'recompute = "{again[0]}"',
                expected='recompute = "none" or "selective" beside it',
            )


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _file_value(value: object) -> object:
    """Return a value as it stands in a file."""
    return list(value) if isinstance(value, tuple) else value


def order_names(order: str | None) -> tuple[str, ...]:
    """Return the dimensions of an order of ranks, innermost first."""
    return tuple((DEFAULT_ORDER if order is None else order).lower().split("-"))
