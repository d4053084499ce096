"""What a training job keeps for each parameter, and how much it works on at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


class ParameterBytes(NamedTuple):
    """Bytes that a device keeps for each of its parameters [byte]."""

    weights: int
    gradients: int
    optimizer: int


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
    """Of weights, activations and products: ``"bf16"``, ``"fp16"``, ``"fp32"``."""

    optimizer: str = "adam"
    """``"adam"``, ``"sgd"`` (with momentum) or ``"adam-bf16"``."""

    gradient_precision: str = "fp32"
    """Of the accumulated and reduced gradients: ``"fp32"`` (Megatron-LM's default
    with bf16) or ``"bf16"``."""

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states of one parameter [byte]."""
        mixed = self.precision != "fp32"
        gradients = 4 if self.gradient_precision == "fp32" or not mixed else 2
        return ParameterBytes(
            weights=self.element_bytes,
            gradients=gradients,
            optimizer=OPTIMIZER_BYTES[self.optimizer, mixed],
        )
