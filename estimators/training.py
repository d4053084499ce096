"""What a training job is: its batch, what it keeps for each parameter, how it is split.

Sizes of parallel groups have Megatron's names outside, and short letters inside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import NamedTuple, TypedDict

from topologies.errors import InputError

_WIDTH: Mapping[str, int] = MappingProxyType(
    {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
)
"""Number format -> bytes."""


class ParameterBytes(NamedTuple):
    """Bytes that a device keeps and sends for each of its parameters [byte]."""

    weights: int
    """Weights, kept for the whole step [byte]."""
    gradients: int
    """Gradients, kept while they are accumulated over microbatches [byte]."""
    optimizer: int
    """States of the optimizer, kept for the whole step [byte]."""
    gather: int
    """Weights on the wire when they are gathered [byte]."""
    reduce: int
    """Gradients on the wire when they are reduced [byte]."""
    copies: int = 0
    """Copies that the optimizer makes of its share for its step: not there in passes
    [byte]."""


OPTIMIZER_BYTES: Mapping[tuple[str, bool], int] = MappingProxyType(
    {
        # Master copy, momentum and variance in fp32: Rajbhandari et al., "ZeRO", 2020,
        # section 3.1 (K = 12).
        ("adam", True): 12,
        ("adam", False): 8,
        # Master copy and momentum in fp32.
        ("sgd", True): 8,
        ("sgd", False): 4,
        # Momentum and variance in bf16, no master copy.
        ("adam-bf16", True): 4,
    }
)
"""(optimizer, whether the weights are in 16 bits) -> bytes per parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """The part of a job that does not depend on how it is split."""

    global_batch_size: int
    """Sequences per optimizer step."""

    precision: str = "bf16"
    """Number format of weights, activations and products: ``"bf16"``, ``"fp16"``,
    ``"fp32"``."""

    optimizer: str = "adam"
    """Name of the optimizer: ``"adam"``, ``"sgd"`` (with momentum) or
    ``"adam-bf16"``."""

    gradient_precision: str = "fp32"
    """Number format of the accumulated and reduced gradients: ``"fp32"`` (Megatron-LM's
    default with bf16) or ``"bf16"``."""

    matmul_precision: str = ""
    """Number format of the products with weights, if not `precision`: ``"fp8"``,
    ``"int8"`` or ``"fp4"``, the operands being cast before each product."""

    weights_in_fp32: bool = False
    """Whether weights are kept in fp32 and cast when they are used, as FSDP's mixed
    precision does; there is no master copy then."""

    gather_precision: str = ""
    """Number format of the weights on the wire, if not `precision`: ``"fp32"``,
    ``"fp8"``."""

    reduce_precision: str = ""
    """Number format of the gradients on the wire, if not `gradient_precision`."""

    gradient_copies: bool = False
    """Whether the optimizer works on copies of gradients, as DeepSpeed's does: where
    they are accumulated in fp32, those that backward passes make stay beside them;
    where not, those of the optimizer's shard are flattened and cast to fp32 for its
    step."""

    casts_gradients: bool = False
    """Whether the optimizer casts 16-bit gradients of its share to fp32 for its step,
    and keeps them to the next one, as Megatron's does."""

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states of one parameter [byte]."""
        mixed = self.precision != "fp32"
        gradients = 4 if self.gradient_precision == "fp32" or not mixed else 2
        copied = mixed and not self.weights_in_fp32
        again, cast = 0, 0
        if self.gradient_copies:
            added = self.element_bytes
            again, cast = (added, 0) if gradients == 4 else (0, added + 4)
        elif self.casts_gradients and copied and gradients == 2:
            cast = 4
        return ParameterBytes(
            weights=self.element_bytes if copied else 4,
            gradients=gradients + again,
            optimizer=OPTIMIZER_BYTES[self.optimizer, copied],
            gather=_WIDTH.get(self.gather_precision, self.element_bytes),
            reduce=_WIDTH.get(self.reduce_precision, gradients),
            copies=cast,
        )


CP_COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
"""How the ranks of a context-parallel group share attention, Megatron's names: keys and
values go round a ring, or are gathered; heads are exchanged for tokens (Ulysses), among
all ranks, or among a few, whose groups form rings."""


class Grouping(NamedTuple):
    """How the ranks of a stage form groups, beside what its grid says.

    The defaults are a ring of context-parallel ranks, and experts that are split over
    the tensor group, on ranks that the grid has an axis for.
    """

    etp: int = 0
    """Expert-tensor-parallel size; 0 if it is the tensor-parallel size."""
    cp_comm_type: str = "p2p"
    """One of `CP_COMM_TYPES`."""
    a2a: int = 0
    """Context-parallel ranks that exchange heads among themselves under ``"a2a+p2p"``;
    0 under the others."""

    @classmethod
    def of(
        cls, tp: int, cp: int, *, etp: int = 0, cp_comm_type: str = "p2p", a2a: int = 0
    ) -> "Grouping":
        """Return the grouping of some sizes, equal ones by the same values."""
        kind = cp_comm_type if cp > 1 else "p2p"
        if kind != "a2a+p2p":
            a2a = 0
        return cls(0 if etp == tp else etp, kind, a2a)

    @property
    def is_folded(self) -> bool:
        """Whether expert groups count the ranks of a stage in their own way."""
        return self.etp > 0

    def settings(self, cp: int) -> "GroupSettings":
        """Return it as a `ParallelismConfig` with ``cp`` context ranks has it."""
        return {
            "expert_tensor_parallel_size": self.etp or None,
            "cp_comm_type": self.cp_comm_type,
            "hierarchical_context_parallel_sizes": (
                (self.a2a, cp // self.a2a) if self.a2a else None
            ),
        }

    def exchanging(self, cp: int) -> int:
        """Return the ranks that exchange heads for tokens, of ``cp``."""
        return {"a2a": cp, "a2a+p2p": self.a2a}.get(self.cp_comm_type, 1)

    def ring(self, cp: int) -> int:
        """Return the ranks of a ring that keys and values go round, of ``cp``."""
        return cp // self.exchanging(cp) if self.cp_comm_type != "all_gather" else 1


class GroupSettings(TypedDict):
    """Settings of a `ParallelismConfig` that say how ranks form groups."""

    expert_tensor_parallel_size: int | None
    """Devices that share each expert's matrices."""
    cp_comm_type: str
    """How the ranks that share a sequence share attention."""
    hierarchical_context_parallel_sizes: tuple[int, ...] | None
    """Ranks that exchange heads, and ranks of each ring."""


PLAIN_GROUPING = Grouping()
"""A ring, and experts split as the other layers are."""


class Sizes(NamedTuple):
    """The parallel degrees, as formulas and kernels call them."""

    tp: int
    """Tensor-parallel size."""
    cp: int
    """Context-parallel size."""
    ep: int
    """Expert-parallel size."""
    dp: int
    """Replicas, those that share experts included."""
    pp: int
    """Pipeline stages."""


def expert_data_size(sizes: Sizes, grouping: Grouping) -> int:
    """Return how many ranks of a stage hold the same experts.

    Megatron-LM counts the ranks of a stage in two ways (``RankGenerator`` in
    ``megatron/core/parallel_state.py``): ``tp cp dp``, and ``etp ep`` times this.
    """
    tp, cp, ep, dp, _ = sizes
    return tp * cp * dp // (ep * (grouping.etp or tp))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismConfig:
    """Parallel degrees of one training job."""

    tensor_model_parallel_size: int = 1
    """Devices that share each layer's matrices."""

    pipeline_model_parallel_size: int = 1
    """Pipeline stages."""

    data_parallel_size: int = 1
    """Replicas of the pipeline, each with its own part of the batch."""

    context_parallel_size: int = 1
    """Devices that share each sequence."""

    expert_model_parallel_size: int = 1
    """Devices that share the experts of a mixture-of-experts layer."""

    expert_tensor_parallel_size: int | None = None
    """Devices that share each expert's matrices; None for as many as share those of
    other layers. Any other number lets the experts of a stage be spread over all its
    ranks, tensor- and context-parallel ones included."""

    cp_comm_type: str = "p2p"
    """How the ranks that share a sequence share attention, one of `CP_COMM_TYPES`."""

    hierarchical_context_parallel_sizes: tuple[int, ...] | None = None
    """Under ``"a2a+p2p"``: ranks that exchange heads, and ranks of each ring."""

    sequence_parallel: bool = False
    """Whether norms, dropouts and residuals are split over the tensor-parallel group
    along the sequence (Korthikanti et al., 2022)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if field.type is int and not size >= 1:
                raise InputError(
                    "must be at least 1",
                    where=field.name,
                    got=size,
                    expected="a positive whole number, e.g. 8",
                )
        self._check_experts()
        self._check_context()

    def _check_experts(self) -> None:
        """Refuse expert groups that do not fill the ranks of a stage."""
        tp, etp = self.tensor_model_parallel_size, self.expert_tensor_parallel_size
        if etp is None or etp == tp:
            return
        if etp < 1 or tp % etp:
            raise InputError(
                "does not divide the tensor-parallel ranks",
                where="expert_tensor_parallel_size",
                got=etp,
                expected=f"a divisor of tensor_model_parallel_size, which is {tp}",
            )
        ranks = tp * self.context_parallel_size * self.data_parallel_size
        if ranks % (etp * self.expert_model_parallel_size):
            raise InputError(
                "does not divide the ranks that experts are spread over",
                where="expert_model_parallel_size",
                got=self.expert_model_parallel_size,
                expected=f"a divisor of tensor x context x data / "
                f"expert_tensor_parallel_size, which is {ranks} / {etp}",
            )

    def _check_context(self) -> None:
        """Refuse a kind of context parallelism that there is not."""
        cp, kind = self.context_parallel_size, self.cp_comm_type
        if kind not in CP_COMM_TYPES:
            raise InputError(
                "is not one of the known values",
                where="cp_comm_type",
                got=kind,
                expected=", ".join(f'"{name}"' for name in CP_COMM_TYPES),
            )
        levels = self.hierarchical_context_parallel_sizes
        if (kind == "a2a+p2p" and cp > 1) != (levels is not None):
            raise InputError(
                'goes with cp_comm_type "a2a+p2p", and only with that',
                where="hierarchical_context_parallel_sizes",
                got=None if levels is None else list(levels),
                expected="the ranks of an all-to-all and those of a ring, e.g. [2, 4]"
                if levels is None
                else "no such sizes",
            )
        if levels is not None and not (
            len(levels) == 2 and min(levels) > 1 and levels[0] * levels[1] == cp
        ):
            raise InputError(
                "are not the two levels of the context-parallel ranks",
                where="hierarchical_context_parallel_sizes",
                got=list(levels),
                expected=f"two sizes above 1 whose product is {cp}",
            )

    @property
    def grouping(self) -> Grouping:
        """How the ranks of a stage form groups."""
        levels = self.hierarchical_context_parallel_sizes
        return Grouping.of(
            self.tensor_model_parallel_size,
            self.context_parallel_size,
            etp=self.expert_tensor_parallel_size or 0,
            cp_comm_type=self.cp_comm_type,
            a2a=levels[0] if levels else 0,
        )

    @property
    def placed_expert_size(self) -> int:
        """Replicas that share experts along an axis of their own."""
        return 1 if self.grouping.is_folded else self.expert_model_parallel_size

    @property
    def expert_data_size(self) -> int:
        """Ranks of a stage that hold the same experts."""
        return expert_data_size(self.sizes(), self.grouping)

    def sizes(self) -> Sizes:
        """Return the degrees under their short names."""
        return Sizes(
            tp=self.tensor_model_parallel_size,
            cp=self.context_parallel_size,
            ep=self.expert_model_parallel_size,
            dp=self.data_parallel_size,
            pp=self.pipeline_model_parallel_size,
        )

    @property
    def num_devices(self) -> int:
        """Devices in use; experts are spread over data-parallel ranks."""
        sizes = self.sizes()
        return sizes.tp * sizes.cp * sizes.dp * sizes.pp
