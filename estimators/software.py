"""How a framework runs a model: which kernels, and what the host costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What of a framework changes operator times."""

    name: str
    """Whose constants (`estimators.constants`) hold; ``"ideal"`` costs nothing."""

    attention_kernel: str = "fused"
    """Of fused attention: ``"flash"`` (FlashAttention-2, Triton, PyTorch's) or
    ``"fused"`` (the vendor's, such as cuDNN's)."""

    compiled: bool = False
    """Layers are launched as one graph (XLA, CUDA graphs): no time per kernel."""

    saves_products: bool = False
    """``"selective"`` recompute saves every second product with a weight and fused
    attention, and repeats the rest of each block, as torchtitan's policy of operators
    does; else it repeats the attention core only, as Megatron-LM does."""

    many_nodes: bool = False
    """Whether a job's processes on several nodes meet at every step."""

    library: bool = True
    """Collectives of layers are a library's, with its launches and its ramp
    (`estimators.transports`); False for the time on the wire alone."""


IDEAL = Software(name="ideal", library=False)
"""The device's own time and nothing else."""
