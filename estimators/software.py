"""How a framework runs a model: which kernels, and what the host costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What of a framework changes operator times."""

    name: str = "ideal"
    """Whose constants (`estimators.constants`) hold; ``"ideal"`` costs nothing."""

    attention_kernel: str = "fused"
    """Of fused attention: ``"flash"`` (FlashAttention-2, Triton, PyTorch's) or
    ``"fused"`` (the vendor's, such as cuDNN's)."""

    compiled: bool = False
    """Layers are launched as one graph (XLA, CUDA graphs): no time per kernel."""

    loaded_network: bool = False
    """Collectives cost what libraries add to the time on the wire."""


IDEAL = Software()
"""The device's own time and nothing else."""
