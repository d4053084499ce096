"""What Mist's formulas read of a model at one micro-batch and tensor-parallel size."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer type on one device: the embedding, a block, or the head."""

    forward_time: float
    """Compute of a forward pass [s]."""

    backward_time: float
    """Compute of a backward pass without recompute [s]."""

    accumulation_time: float = 0.0
    """Time to add a microbatch's gradients to those before it [s]."""

    tensor_forward_time: float = 0.0
    """Tensor-parallel collectives of a forward pass, which nothing hides [s]."""

    tensor_backward_time: float = 0.0
    """Tensor-parallel collectives of a backward pass, which nothing hides [s]."""

    weights: float
    """Weights [byte]."""

    gradients: float
    """Gradients [byte]."""

    optimizer: float
    """Optimizer states [byte]."""

    saved: float
    """Activations kept for the backward pass [byte]."""

    saved_recomputed: float
    """Activations kept where the layer is recomputed: its input [byte]."""

    forward_peak: float
    """Most that a forward pass holds at once [byte]."""

    backward_peak: float
    """Most that a backward pass holds at once [byte]."""

    output: float
    """Activation that goes on to the next layer [byte]."""

    def backward(self, num_steps: int) -> float:
        """Return the backward compute of ``G`` steps' mean, accumulation included [s].

        The first microbatch has nothing to be added to.
        """
        return self.backward_time + self.accumulation_time * (
            (num_steps - 1) / num_steps
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A chain of equal blocks between an embedding and a head."""

    embedding: LayerProfile
    """What comes before the blocks."""

    block: LayerProfile
    """One block."""

    head: LayerProfile
    """What comes after the blocks."""

    num_layers: int
    """Number of blocks."""

    hidden_size: int
    """Hidden size of the model."""

    seq_length: int
    """Tokens of a sequence."""

    micro_batch_size: int
    """Sequences of a microbatch."""

    tensor_size: int
    """Tensor-parallel size."""

    attention_maps: float
    """What attention scores take beside everything else; 0 with flash attention
    [byte]."""
