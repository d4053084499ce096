"""Narrow number formats: the bits of an element, and the scales that come with it.

An element in 8 or 4 bits says little without a scale, and formats differ in how many
elements share one::

    bytes = (bits + scale bits / elements that share a scale) / 8

One scale for a whole tensor costs nothing; neither does NVFP4's second one, in fp32,
for a whole tensor. Weights that are scaled in squares share a scale among more elements
than activations do.

References
----------
.. [1] Micikevicius et al., "FP8 Formats for Deep Learning", 2022: one scale for a
   tensor.
.. [2] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.2: activations in
   tiles of 1 x 128, weights in blocks of 128 x 128, scales in fp32.
.. [3] Open Compute Project, "OCP Microscaling Formats (MX) Specification" v1.0, 2023,
   table 1: MXFP8 and MXFP4, an 8-bit scale (E8M0) for 32 elements.
.. [4] NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, section 2: an 8-bit
   scale (E4M3) for 16 elements, and one in fp32 for the tensor; weights that share
   one among 16 x 16 repeat it for each 16, as products ask for.
.. [5] Transformer Engine documentation, "MXFP8", "NVFP4" and "FP8 Blockwise Scaling",
   2026: products read both operands along their inner dimension, for which a quantised
   tensor is kept twice, by rows and by columns.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class NumberFormat(NamedTuple):
    """A narrow format of the operands of products."""

    bits: int
    """Bits of an element."""

    rate: str
    """Name of the format in `topologies.accelerators.Accelerator.peak_flops`."""

    scale_bits: int = 0
    """Bits of a scale that a block of elements shares; 0 if a tensor has one."""

    block: int = 1
    """Elements of an activation that share a scale."""

    weight_block: int = 1
    """Elements of a weight that share a scale."""

    is_square: bool = True
    """Whether the scales of a weight are the same by rows and by columns."""

    @property
    def activation_bytes(self) -> float:
        """Size of an element of an activation with its part of a scale [byte]."""
        return (self.bits + self.scale_bits / self.block) / 8

    @property
    def weight_bytes(self) -> float:
        """Size of an element of a weight with its part of a scale [byte]."""
        return (self.bits + self.scale_bits / self.weight_block) / 8


NARROW_FORMATS: Mapping[str, NumberFormat] = MappingProxyType(
    {
        # One scale for a tensor [1]_.
        "fp8": NumberFormat(8, "fp8"),
        # DeepSeek-V3's, and Megatron's fp8_recipe "blockwise" [2]_.
        "fp8-blockwise": NumberFormat(8, "fp8", 32, 128, 128 * 128),
        "mxfp8": NumberFormat(8, "mxfp8", 8, 32, 32, is_square=False),  # [3]_
        "int8": NumberFormat(8, "int8"),
        # 4 bits as the device has them; scales as NVFP4's.
        "fp4": NumberFormat(4, "fp4", 8, 16, 16, is_square=False),
        "nvfp4": NumberFormat(4, "nvfp4", 8, 16, 16, is_square=False),  # [4]_
    }
)
"""Name that settings have for a narrow format -> what it is."""

NARROW = tuple(NARROW_FORMATS)
"""Names of the narrow formats."""
