"""What a training job is: its batch, what it keeps for each parameter, how it is split.

Sizes of parallel groups have Megatron's names outside, and short letters inside.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import NamedTuple

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


class ParameterItem(NamedTuple):
    """One of the numbers that a device keeps for each of its parameters."""

    part: str
    """Field of `ParameterBytes` that it belongs to."""
    name: str
    """What it is."""
    num_bytes: int
    """Its size [byte]."""
    reason: str
    """Why it is kept."""


_MASTER = ("master copy", 4)
_MOMENTUM = ("momentum", 4)
_VARIANCE = ("variance", 4)

OPTIMIZER_STATES: Mapping[tuple[str, bool], tuple[tuple[str, int], ...]] = (
    MappingProxyType(
        {
            # Master copy, momentum and variance in fp32: Rajbhandari et al., "ZeRO",
            # 2020, section 3.1 (K = 12).
            ("adam", True): (_MASTER, _MOMENTUM, _VARIANCE),
            ("adam", False): (_MOMENTUM, _VARIANCE),
            # Master copy and momentum in fp32.
            ("sgd", True): (_MASTER, _MOMENTUM),
            ("sgd", False): (_MOMENTUM,),
            # Momentum and variance in bf16, no master copy.
            ("adam-bf16", True): (("momentum", 2), ("variance", 2)),
        }
    )
)
"""(optimizer, whether the weights are in 16 bits) -> name and bytes per parameter of
each state."""

OPTIMIZER_BYTES: Mapping[tuple[str, bool], int] = MappingProxyType(
    {
        key: sum(num_bytes for _, num_bytes in states)
        for key, states in OPTIMIZER_STATES.items()
    }
)
"""(optimizer, whether the weights are in 16 bits) -> bytes per parameter."""

_STATE_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "master copy": "the optimizer updates the weights in fp32",
        "momentum": "mean of the gradients",
        "variance": "mean of the squared gradients",
    }
)
"""State of an optimizer -> why it is kept."""


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
    def parameter_items(self) -> tuple[ParameterItem, ...]:
        """Weights, gradients, optimizer states and copies, one by one."""
        narrow = self.precision != "fp32"
        copied = narrow and not self.weights_in_fp32
        return (
            self._weights_item(copied=copied),
            *self._gradient_items(narrow=narrow, copied=copied),
            *(
                ParameterItem("optimizer", name, size, _STATE_REASONS.get(name, name))
                for name, size in OPTIMIZER_STATES[self.optimizer, copied]
            ),
        )

    def _weights_item(self, *, copied: bool) -> ParameterItem:
        reason = f"in {self.precision}, as forward and backward passes read them"
        if not copied and self.precision != "fp32":
            reason = "in fp32, cast when they are read; no master copy beside them"
        return ParameterItem(
            "weights", "weights", self.element_bytes if copied else 4, reason
        )

    def _gradient_items(
        self, *, narrow: bool, copied: bool
    ) -> tuple[ParameterItem, ...]:
        wide = self.gradient_precision == "fp32" or not narrow
        summed = ParameterItem(
            "gradients",
            "gradients",
            4 if wide else 2,
            f"in {'fp32' if wide else 'bf16'}, summed over microbatches",
        )
        size, cast = self.element_bytes, "the optimizer works on its share in fp32"
        if self.gradient_copies and wide:
            beside = "as backward passes make them, beside the sum in fp32"
            return summed, ParameterItem("gradients", "new gradients", size, beside)
        if self.gradient_copies:
            flat = "the optimizer lays its share side by side for its step"
            return (
                summed,
                ParameterItem("copies", "flat gradients", size, flat),
                ParameterItem("copies", "gradients in fp32", 4, cast),
            )
        if self.casts_gradients and copied and not wide:
            return summed, ParameterItem("copies", "gradients in fp32", 4, cast)
        return (summed,)

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states of one parameter [byte]."""
        kept = Counter[str]()
        for item in self.parameter_items:
            kept[item.part] += item.num_bytes
        summed = 4 if self.gradient_precision == "fp32" else self.element_bytes
        return ParameterBytes(
            weights=kept["weights"],
            gradients=kept["gradients"],
            optimizer=kept["optimizer"],
            gather=_WIDTH.get(self.gather_precision, self.element_bytes),
            reduce=_WIDTH.get(self.reduce_precision, summed),
            copies=kept["copies"],
        )


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

    sequence_parallel: bool = False
    """Whether norms, dropouts and residuals are split over the tensor-parallel group
    along the sequence (Korthikanti et al., 2022)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if field.name != "sequence_parallel" and not size >= 1:
                raise InputError(
                    "must be at least 1",
                    where=field.name,
                    got=size,
                    expected="a positive whole number, e.g. 8",
                )

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
