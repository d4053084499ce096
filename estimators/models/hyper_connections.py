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

Gemma 3n has streams that its embedding and products of it start. A block predicts all
of them by a matrix that it makes of the first one, works on the first one alone, and
corrects all by how far the prediction was off [4]_. What it adds to all but the first
is a product with its own channels of a second word embedding. Beside attention there
are two narrow products (LAuReL [5]_), and feed-forward layers of the first blocks let
through only gates that are far above their mean [6]_. The first stage holds both
embeddings, and sends what it made of the second one with the streams. The last blocks
attend to keys and values of the last block before them that has some, with a window or
without, which are sent in the same way. Factors, clamps and the scale of scores are
left out.

References
----------
.. [1] Zhu et al., "Hyper-Connections", 2024, arXiv:2409.19606.
.. [2] Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025,
   arXiv:2512.24880; ``DeepseekV4HyperConnection`` of transformers.
.. [3] ``HYV4HyperConnection`` of transformers.
.. [4] Baykal et al., "Alternating Updates for Efficient Transformers", NeurIPS 2023;
   ``Gemma3nTextAltUp`` of transformers.
.. [5] Menghani et al., "LAuReL: Learned Augmented Residual Layer", 2024,
   arXiv:2411.07501.
.. [6] ``Gemma3nTextMLP._gaussian_topk`` of transformers.
"""

from functools import partial

from estimators.models.attention import RotaryEmbedding, build_core
from estimators.models.layers import (
    MLP,
    ColumnParallelLinear,
    RMSNorm,
    RowParallelLinear,
    Scale,
    VocabParallelEmbedding,
    build_norm,
)
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import F, Tensor, nn, torch

ROUNDS = 20
"""Times that rows and columns are divided by their sums (DeepSeek-V4)."""

EPSILON = 1e-6
"""What is added to sums that are divided by, and to weights (DeepSeek-V4)."""

LARGEST = 2.0
"""Weight of a branch's result in a stream, at most [2]_."""

DEVIATIONS = 1.6448536
"""Standard deviations above their mean that 5 % of gates are."""


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


class MagnitudeOf(nn.Module):
    """Give vectors the root mean square of others."""

    def forward(self, hidden: Tensor, like: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        sizes = (part.square().mean(-1, keepdim=True).sqrt() for part in (like, hidden))
        wanted, size = sizes
        return hidden * wanted / size


class JoinedParts(nn.Module):
    """Streams beside each other."""

    def forward(self, *streams: Tensor) -> Tensor:
        """Return all as one tensor."""
        return torch.cat(streams, -1)


class FirstStreams(nn.Module):
    """An embedding and products of it, as long as itself."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.projections = _projections(spec)
        self.magnitude, self.join = MagnitudeOf(), JoinedParts()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return streams (batch, sequence, streams x hidden)."""
        others = [self.magnitude(part(hidden), hidden) for part in self.projections]
        joined: Tensor = self.join(hidden, *others)
        return joined


class LastStreams(nn.Module):
    """The mean of the first stream and products of all others."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.num_streams = spec.num_residual_streams
        self.projections, self.magnitude = _projections(spec), MagnitudeOf()
        self.mean = Scale(1 / self.num_streams)

    def forward(self, streams: Tensor) -> Tensor:
        """Return hidden states (batch, sequence, hidden)."""
        parts = streams.chunk(self.num_streams, -1)
        total = parts[0]
        for place, projection in enumerate(self.projections, 1):
            total = total + self.magnitude(projection(parts[place]), parts[0])
        mean: Tensor = self.mean(total)
        return mean


def _projections(spec: TransformerSpec) -> nn.ModuleList:
    width, others = spec.hidden_size, spec.num_residual_streams - 1
    return nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(others))


class PartNorm(RMSNorm):
    """Norm of each part of some width of a token's channels."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.width = width

    def forward(self, flat: Tensor) -> Tensor:
        """Return channels side by side, as they came."""
        parts = flat.reshape(*flat.shape[:2], -1, self.width)
        return super().forward(parts).flatten(2)


class BlockEmbeddings(nn.Module):
    """Streams of words, and what each block is given of a second embedding."""

    def __init__(self, spec: TransformerSpec, words: nn.Module) -> None:
        super().__init__()
        rows, blocks, width, _ = spec.block_embedding
        self.words, self.streams = words, FirstStreams(spec)
        self.block_embeddings = VocabParallelEmbedding(rows, blocks * width)
        self.scale = Scale(width**0.5)
        self.projection = nn.Linear(spec.hidden_size, blocks * width, bias=False)
        self.norm, self.root_half = PartNorm(width), Scale(0.5**0.5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return streams, and the channels of all blocks beside each other."""
        hidden = self.words(tokens)
        looked_up = self.scale(self.block_embeddings(tokens))
        summed = self.root_half(looked_up + self.norm(self.projection(hidden)))
        return self.streams(hidden), summed


class StreamRouter(nn.Module):
    """A number between -1 and 1 for each stream of a token."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.norm = build_norm(spec)
        self.linear = nn.Linear(spec.hidden_size, spec.num_residual_streams, bias=False)
        self.activation = nn.Tanh()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the numbers (batch, sequence, streams)."""
        weights: Tensor = self.activation(self.linear(self.norm(hidden)))
        return weights


class StreamPrediction(nn.Module):
    """Add to streams what a matrix of each token makes of them."""

    mixes = True

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.streams = spec.num_residual_streams

    def forward(self, streams: Tensor, weights: Tensor) -> Tensor:
        """Return streams of the same shape."""
        shape = streams.shape[:2]
        apart = streams.view(*shape, self.streams, -1)
        square = weights.view(*shape, self.streams, self.streams)
        mixed: Tensor = (square @ apart).flatten(-2)
        return streams + mixed


class StreamCorrection(nn.Module):
    """Add to each stream a part of how far the first one was off."""

    mixes = False

    def forward(self, streams: Tensor, active: Tensor, weights: Tensor) -> Tensor:
        """Return streams of the same shape."""
        off = active - streams[..., : active.shape[-1]]
        added = (weights[..., None] + 1) * off[..., None, :]
        return streams + added.flatten(-2)


class OtherStreams(nn.Module):
    """Add something to all streams but the first."""

    mixes = False

    def forward(self, streams: Tensor, added: Tensor) -> Tensor:
        """Return streams of the same shape."""
        width = added.shape[-1]
        others = streams[..., width:].reshape(*added.shape[:2], -1, width)
        others = (others + added[..., None, :]).flatten(-2)
        return torch.cat((streams[..., :width], others), -1)


class ChannelScale(nn.Module):
    """A factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return hidden * self.weight


class ThresholdActivation(nn.Module):
    """A nonlinearity of how far gates are above most of their token's."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, gate: Tensor) -> Tensor:
        """Return gates of the same shape."""
        mean = gate.mean(-1, keepdim=True)
        deviation = (gate - mean).square().mean(-1, keepdim=True).sqrt()
        above: Tensor = self.activation((gate - mean - DEVIATIONS * deviation).relu())
        return above


class ThresholdMLP(MLP):
    """A feed-forward layer of few gates."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__(spec)
        self.activation = ThresholdActivation(self.activation)


class QueryRotary(RotaryEmbedding):
    """Rotary positions of queries alone."""

    def forward(self, flat: Tensor) -> Tensor:  # type: ignore[override]  # no keys
        """Return turned queries: (batch, heads, sequence, head)."""
        heads = flat.reshape(*flat.shape[:2], -1, self.head_size).transpose(1, 2)
        return super().forward(heads, heads)[0]


class BorrowedHeads(nn.Module):
    """Heads of keys and values that another block made."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.width = spec.kv_channels

    def forward(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values: (batch, groups, sequence, head)."""
        heads = kept.reshape(*kept.shape[:2], -1, self.width).transpose(1, 2)
        key, value = heads.chunk(2, 1)
        return key, value


class BorrowingAttention(nn.Module):
    """Attention to keys and values of another block."""

    def __init__(self, spec: TransformerSpec, window: int = 0) -> None:
        super().__init__()
        hidden, width = spec.hidden_size, spec.kv_channels
        self.linear_q = ColumnParallelLinear(hidden, spec.query_width, bias=False)
        self.query_norm, self.rotary = PartNorm(width), QueryRotary(width)
        self.borrowed = BorrowedHeads(spec)
        self.core_attention = build_core(spec, window)
        self.linear_proj = RowParallelLinear(spec.query_width, hidden, bias=False)

    def forward(self, hidden: Tensor, kept: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        query = self.rotary(self.query_norm(self.linear_q(hidden)))
        key, value = self.borrowed(kept)
        context = self.core_attention(query, key, value)
        output: Tensor = self.linear_proj(context.transpose(1, 2).flatten(2))
        return output


class AlternatingBlock(nn.Module):
    """A prediction, two branches of the first stream, a correction, a block's words."""

    def __init__(
        self, spec: TransformerSpec, mixer: nn.Module | None, mlp: nn.Module | None
    ) -> None:
        super().__init__()
        assert mixer is not None, "Gemma 3n has attention in each block"
        assert mlp is not None, "and a feed-forward layer"
        _, _, width, rank = spec.block_embedding
        hidden, streams = spec.hidden_size, spec.num_residual_streams
        self.hidden, self.width = hidden, width
        linear = partial(nn.Linear, bias=False)
        self.router, self.predict = StreamRouter(spec), StreamPrediction(spec)
        self.prediction = linear(streams, streams**2)
        self.input_norm = build_norm(spec)
        self.self_attention, self.post_attention_norm = mixer, build_norm(spec)
        self.laurel_left, self.laurel_right = linear(hidden, rank), linear(rank, hidden)
        self.laurel_norm, self.root_half = build_norm(spec), Scale(0.5**0.5)
        self.pre_mlp_norm, self.mlp = build_norm(spec), mlp
        self.post_mlp_norm = build_norm(spec)
        self.correction, self.correct = linear(streams, streams), StreamCorrection()
        self.scale = ChannelScale(hidden)
        self.gate, self.activation = linear(hidden, width), nn.GELU()
        self.gate_out, self.gate_norm = linear(width, hidden), build_norm(spec)
        self.others = OtherStreams()

    def forward(self, streams: Tensor, memory: Tensor, passing: Tensor) -> Tensor:
        """Return streams of the same shape.

        Parameters
        ----------
        streams
            Beside each other.
        memory
            The block's channels of the second embedding, and keys and values of
            another block where it has none itself.
        passing
            What blocks behind it are given.
        """
        del passing
        router = self.router(streams[..., : self.hidden])
        streams = self.predict(streams, self.prediction(router))
        active = streams[..., : self.hidden]
        normed = self.input_norm(active)
        laurel = normed + self.laurel_norm(self.laurel_right(self.laurel_left(normed)))
        borrows = isinstance(self.self_attention, BorrowingAttention)
        kept = (memory[..., self.width :],) if borrows else ()
        branch = self.self_attention(normed, *kept)
        active = self.root_half(active + self.post_attention_norm(branch) + laurel)
        branch = self.mlp(self.pre_mlp_norm(active))
        active = active + self.post_mlp_norm(branch)
        streams = self.correct(streams, active, self.correction(self.router(active)))
        scaled = self.scale(streams[..., : self.hidden])
        gated = self.activation(self.gate(scaled)) * memory[..., : self.width]
        added = self.gate_norm(self.gate_out(gated))
        output: Tensor = self.others(streams, added)
        return output


def build_borrowing(spec: TransformerSpec, mixer: str) -> nn.Module:
    """Return attention to keys and values of another block, within a window or not."""
    return BorrowingAttention(spec, spec.window_size * mixer.endswith("window"))
