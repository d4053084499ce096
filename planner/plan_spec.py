"""A plan as people write it: sizes and settings under Megatron's names."""

from dataclasses import dataclass
from typing import TypeVar

from topologies.errors import InputError

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
"""The parallel dimensions in Megatron's default order of ranks."""

DEFAULT_ORDER = "-".join(DIMENSIONS)
"""``initialize_model_parallel(order=..)`` of Megatron-LM, innermost first."""

T = TypeVar("T", str, int)


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

    context_parallel_size: int = 1
    """Devices that share each sequence."""

    expert_model_parallel_size: int = 1
    """Replicas that share the experts of each mixture-of-experts layer."""

    sequence_parallel: bool = False
    """Megatron's sequence parallelism; without effect where tensor-parallel groups
    have one member."""

    schedule: str | None = None
    """A name of `planner.schedules.SCHEDULES`; None for 1F1B, interleaved if stages
    have several chunks."""

    recompute: str | tuple[str, ...] = "none"
    """Of all stages, or of each: ``"none"``, ``"selective"``, ``"full"``,
    ``"stage"``."""

    zero_stage: int | tuple[int, ...] = 0
    """Of all stages, or of each: 0 to 3. Megatron's ``use_distributed_optimizer`` is
    1."""

    sharding_group_size: int | None = None
    """Data-parallel ranks that share ZeRO's shards; None for all of them."""

    num_layers_in_first_pipeline_stage: int | None = None
    """Transformer blocks of the first stage; None for as many as the others."""

    num_layers_in_last_pipeline_stage: int | None = None
    """Transformer blocks of the last stage; None for as many as the others."""

    num_layers_per_pipeline_stage: tuple[int, ...] | None = None
    """Transformer blocks of each stage, instead of the two above."""

    account_for_embedding_in_pipeline_split: bool = False
    """Whether the embedding counts as a block where they are shared out evenly."""

    account_for_loss_in_pipeline_split: bool = False
    """Whether final norm, head and loss together do."""

    order: str | None = None
    """Dimensions, innermost first, joined by dashes; None for `DEFAULT_ORDER`."""

    placement: str | None = None
    """Instead of the order: a nesting that `planner.placements` names."""

    gradient_algorithm: str = "auto"
    """Of the data-parallel collectives, of `estimators.algorithms`; ``"auto"`` takes
    the cheapest of those that the search chooses from."""

    tensor_algorithm: str = "auto"
    """Of the tensor-parallel collectives, likewise."""

    def __post_init__(self) -> None:
        self._check_stages()
        self._check_layers()
        self._check_order()
        self._check_zero()

    def each_recompute(self) -> tuple[str, ...]:
        """Return the recompute mode of each stage."""
        return self._each(self.recompute)

    def each_zero_stage(self) -> tuple[int, ...]:
        """Return the ZeRO stage of each stage."""
        return self._each(self.zero_stage)

    def _each(self, value: T | tuple[T, ...]) -> tuple[T, ...]:
        if isinstance(value, tuple):
            return value
        return (value,) * self.pipeline_model_parallel_size

    def _check_stages(self) -> None:
        """Refuse lists that do not have one entry for each stage."""
        pp = self.pipeline_model_parallel_size
        for name in ("recompute", "zero_stage", "num_layers_per_pipeline_stage"):
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
        ends = (
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
        )
        given = [name for name in ends if getattr(self, name) is not None]
        if not given:
            return
        where, got = given[0], getattr(self, given[0])
        if self.num_layers_per_pipeline_stage is not None:
            raise InputError(
                "does not go with num_layers_per_pipeline_stage",
                where=where,
                got=got,
                expected="one of the two settings",
            )
        if self.pipeline_model_parallel_size < 2:
            raise InputError(
                "needs at least 2 pipeline stages",
                where=where,
                got=got,
                expected="pipeline_model_parallel_size = 2 or more",
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
        if group is not None and not any(self.each_zero_stage()):
            raise InputError(
                "there is nothing to share without ZeRO",
                where="sharding_group_size",
                got=group,
                expected="zero_stage = 1, 2 or 3 beside it",
            )


def order_names(order: str | None) -> tuple[str, ...]:
    """Return the dimensions of an order of ranks, innermost first."""
    return tuple((DEFAULT_ORDER if order is None else order).lower().split("-"))
