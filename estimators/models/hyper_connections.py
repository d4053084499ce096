"""Hyper-connections: residual streams that branches read and write by weights.

Hidden states are ``n`` streams beside each other. Each branch of a block reads one sum
of them, and what it returns is added to each of them; weights of both are made anew for
each token, by one narrow product with all its streams at unit root mean square [1]_.
They are made by hyper-connections that are

``"manifold"``
    with a third part, a matrix by which streams are mixed before the branch's result is
    added; rounds of dividing rows and columns by their sums make it nearly doubly
    stochastic [2]_;
``"independent"``
    without it: a stream keeps what it had [3]_.

The embedding starts all streams alike, and a weighted sum of them enters the final
norm. Norm and product read streams once, the sum once more, and what adds a branch's
result up is one kernel, as the fused kernels of the paper are [2]_. A stage sends all
streams, and a block keeps them for each of its branches. With sequence parallelism each
tensor-parallel rank has the streams of its own tokens, and the whole of all weights.

References
----------
.. [1] Zhu et al., "Hyper-Connections", 2024, arXiv:2409.19606.
.. [2] Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025,
   arXiv:2512.24880; ``DeepseekV4HyperConnection`` of transformers.
.. [3] ``HYV4HyperConnection`` of transformers.
"""

from estimators.models.layers import build_norm
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import F, Tensor, nn, torch

ROUNDS = 20
"""Times that rows and columns are divided by their sums (DeepSeek-V4)."""

EPSILON = 1e-6
"""What is added to sums that are divided by, and to weights (DeepSeek-V4)."""

LARGEST = 2.0
"""Weight of a branch's result in a stream, at most [2]_."""


class StreamCopies(nn.Module):
    """Streams that start alike, beside each other."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.streams = spec.num_residual_streams

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the streams (batch, sequence, streams x hidden)."""
        return hidden.repeat(1, 1, self.streams)


class StreamSum(nn.Module):
    """Weights of streams, made of them, and their sum by these.

    Parameters
    ----------
    spec
        The architecture.
    expands
        Whether weights of what a branch returns are made, too.
    """

    def __init__(self, spec: TransformerSpec, *, expands: bool = True) -> None:
        super().__init__()
        self.streams, self.width = spec.num_residual_streams, spec.hidden_size
        mixes = spec.hyper_connections == "manifold"
        parts = [1, 1, self.streams][: 2 + mixes if expands else 1]
        self.widths = [part * self.streams for part in parts]
        weight = torch.empty(sum(self.widths), self.streams * self.width)
        self.weight = nn.Parameter(nn.init.normal_(weight, std=0.02))
        self.base = nn.Parameter(torch.zeros(sum(self.widths)))
        self.scale = nn.Parameter(torch.ones(len(self.widths)))

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum (batch, sequence, hidden), and weights for what comes back."""
        shape = streams.shape[:2]
        if streams.is_meta:  # shapes are all there is to know
            made = sum(self.widths[1:])
            return streams.new_empty(*shape, self.width), streams.new_empty(
                *shape, made
            )
        scale = torch.rsqrt(streams.square().mean(-1, keepdim=True) + EPSILON)
        logits = F.linear(streams * scale, self.weight)
        parts = [
            part * factor + base
            for part, factor, base in zip(
                torch.split(logits, self.widths, -1),
                self.scale,
                torch.split(self.base, self.widths),
                strict=True,
            )
        ]
        read = parts[0].sigmoid() + EPSILON
        apart = streams.view(*shape, self.streams, self.width)
        written = [LARGEST * part.sigmoid() for part in parts[1:2]]
        mixed = [self._doubly_stochastic(part) for part in parts[2:]]
        weights = torch.cat([*written, *mixed, streams[..., :0]], -1)
        return (read[..., None] * apart).sum(-2), weights

    def _doubly_stochastic(self, logits: Tensor) -> Tensor:
        """Return matrices whose rows and columns add up to one, flat."""
        shape = (*logits.shape[:-1], self.streams, self.streams)
        square = logits.reshape(shape).softmax(-1)
        square = square + EPSILON
        square = square / (square.sum(-2, keepdim=True) + EPSILON)
        for _ in range(ROUNDS - 1):
            square = square / (square.sum(-1, keepdim=True) + EPSILON)
            square = square / (square.sum(-2, keepdim=True) + EPSILON)
        flat: Tensor = square.flatten(-2)
        return flat


class LastStreamSum(StreamSum):
    """The sum of all streams behind the last block."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__(spec, expands=False)

    def forward(self, streams: Tensor) -> Tensor:  # type: ignore[override]  # no weights
        """Return the sum (batch, sequence, hidden)."""
        return super().forward(streams)[0]


class StreamUpdate(nn.Module):
    """Streams, mixed where they are, and what a branch returned in each."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.streams = spec.num_residual_streams
        self.mixes = spec.hyper_connections == "manifold"

    def forward(self, streams: Tensor, branch: Tensor, weights: Tensor) -> Tensor:
        """Return streams of the same shape.

        Parameters
        ----------
        streams
            As they were before the branch.
        branch
            What it returned.
        weights
            What `StreamSum` made for it.
        """
        if streams.is_meta:
            return torch.empty_like(streams)
        apart = streams.view(*streams.shape[:2], self.streams, -1)
        if self.mixes:
            shape = (*streams.shape[:2], self.streams, self.streams)
            square = weights[..., self.streams :].reshape(shape)
            apart = square.transpose(-1, -2) @ apart
        added = weights[..., : self.streams, None] * branch[..., None, :]
        output: Tensor = (apart + added).flatten(-2)
        return output


class StreamBlock(nn.Module):
    """A block of branches, each normalised, between sums and updates of streams."""

    def __init__(
        self, spec: TransformerSpec, mixer: nn.Module | None, mlp: nn.Module | None
    ) -> None:
        super().__init__()
        self.attention_streams = StreamSum(spec) if mixer is not None else None
        self.input_norm = build_norm(spec)
        self.self_attention = mixer
        self.mlp_streams = StreamSum(spec) if mlp is not None else None
        self.pre_mlp_norm = build_norm(spec)
        self.mlp = mlp
        self.dropout = nn.Dropout(spec.hidden_dropout)
        self.update = StreamUpdate(spec)

    def forward(self, streams: Tensor) -> Tensor:
        """Return streams of the same shape."""
        if self.self_attention is not None and self.attention_streams is not None:
            hidden, weights = self.attention_streams(streams)
            branch = self.dropout(self.self_attention(self.input_norm(hidden)))
            streams = self.update(streams, branch, weights)
        if self.mlp is not None and self.mlp_streams is not None:
            hidden, weights = self.mlp_streams(streams)
            branch = self.dropout(self.mlp(self.pre_mlp_norm(hidden)))
            streams = self.update(streams, branch, weights)
        return streams
