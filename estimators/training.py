"""What a training job is: its batch, what it keeps for each parameter, how it is split.

Sizes of parallel groups have Megatron's names outside, and short letters inside.
"""

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
