"""The parts that transformers are made of, as torch modules.

Every module computes what its plain counterpart computes on one device. What a class
adds is how Megatron-LM splits it over a tensor-parallel group: a linear layer is
*column parallel* (its output features are split), *row parallel* (its input features
are), or neither. The tracer reads the classes; the numbers per device follow in
`estimators.layers.sharding`. Hidden states have the shape (batch, sequence, hidden).

References
----------
.. [1] Shoeybi et al., "Megatron-LM", 2019, section 3.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its customary name

from estimators.models.spec import TransformerSpec


class ColumnParallelLinear(nn.Linear):
    """A linear layer whose output features are split."""


class RowParallelLinear(nn.Linear):
    """A linear layer whose input features are split; partial results are summed."""


class VocabParallelLinear(nn.Linear):
    """The output layer: column parallel, over the padded vocabulary."""


class VocabParallelEmbedding(nn.Embedding):
    """A word embedding whose rows are split; partial results are summed."""


class PositionEmbedding(nn.Embedding):
    """Learned vectors, added to the hidden states of each position."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return hidden + self.weight[: hidden.shape[1]]


class RMSNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states at unit root mean square, scaled."""
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps)
        return hidden * scale * self.weight


def build_norm(spec: TransformerSpec, width: int = 0) -> nn.Module:
    """Return the norm that the architecture asks for, by default of hidden states."""
    width = width or spec.hidden_size
    if spec.normalization == "rmsnorm":
        return RMSNorm(width)
    affine = spec.layernorm_affine
    return nn.LayerNorm(width, elementwise_affine=affine, bias=spec.layernorm_bias)


class SquaredReLU(nn.Module):
    """The square of a ReLU (So et al., "Primer", 2021, section 4.1)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return F.relu(hidden).square()


class SoftCap(nn.Module):
    """Bend values below a bound: ``c tanh(x / c)`` (Gemma 2, 2024, section 2)."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        return self.bound * torch.tanh(values / self.bound)


class Scale(nn.Module):
    """Multiply by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return hidden * self.factor


ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "relu": nn.ReLU,
        "squared_relu": SquaredReLU,
    }
)
"""`TransformerSpec.nonlinearity` -> its module."""


class MLP(nn.Module):
    """Feed-forward layer; gated ones have both halves in one product.

    Its inner width is the architecture's if none is given.
    """

    def __init__(self, spec: TransformerSpec, width: int = 0) -> None:
        super().__init__()
        self.gated = spec.gated_linear_unit
        width, bias = width or spec.ffn_hidden_size, spec.add_bias_linear
        self.linear_fc1 = ColumnParallelLinear(
            spec.hidden_size, width * (2 if self.gated else 1), bias=bias
        )
        self.activation = ACTIVATIONS[spec.nonlinearity]()
        self.linear_fc2 = RowParallelLinear(width, spec.hidden_size, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        hidden = self.linear_fc1(hidden)
        if self.gated:
            gate, up = hidden.chunk(2, -1)
            hidden = self.activation(gate) * up
        else:
            hidden = self.activation(hidden)
        output: Tensor = self.linear_fc2(hidden)
        return output


class CrossEntropy(nn.Module):
    """Loss in fp32 over a vocabulary that may be split (Megatron-LM's)."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())
