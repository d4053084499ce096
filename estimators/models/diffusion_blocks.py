"""Diffusion transformers as torch modules: from noisy latents to a loss.

A chain begins with the projections of patches, text and time, and ends with a norm, a
projection and a square error. Time, with what joins it, is called conditioning here: a
row for each sequence, of which shifts, scales and gates are made. It is made once and
taken as given by all other layers, and what of it goes from stage to stage is left out:
it is a row beside thousands. Its products are whole on every tensor-parallel rank, as
in NeMo's DFM [1]_; products of tokens are split by heads and inner widths.

* adaLN-Zero [2]_: attention and a feed-forward layer, each with a norm that is shifted
  and scaled before it and a gate behind it. With cross-attention in between it is Wan's
  block [3]_, whose conditioning has six rows and whose text travels with hidden states.
* MMDiT [4]_: text and picture are two streams with weights of their own and attention
  over both, as in Stable Diffusion 3, Qwen-Image and the first blocks of FLUX.1.
* FLUX.1's later blocks have one stream, whose attention and feed-forward layer read the
  same hidden states and share the product behind them [5]_.

References
----------
.. [1] NVIDIA-NeMo/DFM, ``dfm/src/megatron/model/wan``: ``WanModel``, ``WanAdaLN``.
.. [2] Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section
   3.2.
.. [3] ``WanTransformer3DModel`` of diffusers.
.. [4] Esser et al., "Scaling Rectified Flow Transformers for High-Resolution Image
   Synthesis", 2024, section 4; ``SD3Transformer2DModel`` and
   ``QwenImageTransformer2DModel`` of diffusers.
.. [5] ``FluxTransformer2DModel`` of diffusers.
"""

from estimators.models.attention import (
    FlashAttention,
    KeyNorm,
    QKVParallelLinear,
    QueryNorm,
    RotaryEmbedding,
    SelfAttention,
    query_key_norms,
)
from estimators.models.diffusion import ADAPTIVE, CROSS, LAST_DOUBLE, SINGLE, Diffusion
from estimators.models.encoders import CrossHeads
from estimators.models.layers import (
    MLP,
    ColumnParallelLinear,
    Concatenation,
    RMSNorm,
    RowParallelLinear,
)
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import F, Tensor, nn, torch


def diffusion_of(spec: TransformerSpec) -> Diffusion:
    """Return what is special to a diffusion transformer."""
    assert spec.diffusion is not None, "of this family"
    return spec.diffusion


class RowLinear(nn.Linear):
    """A product of one row for each sequence, whole on every rank."""


class RowMLP(nn.Module):
    """Two products of one row for each sequence."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear_1 = RowLinear(width, hidden)
        self.activation = nn.SiLU()
        self.linear_2 = RowLinear(hidden, hidden)

    def forward(self, row: Tensor) -> Tensor:
        """Return rows of the model's width."""
        output: Tensor = self.linear_2(self.activation(self.linear_1(row)))
        return output


class ModulationTable(nn.Module):
    """Learned rows that are added to the conditioning."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, width))

    def forward(self, conditioning: Tensor) -> Tensor:
        """Return `count` rows side by side: (batch, count x width)."""
        rows = conditioning.view(conditioning.shape[0], -1, self.weight.shape[1])
        return (rows + self.weight).flatten(1)


class ModulationProduct(nn.Module):
    """A nonlinearity and a product of the conditioning."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.activation = nn.SiLU()
        self.linear = RowLinear(width, count * width)

    def forward(self, conditioning: Tensor) -> Tensor:
        """Return `count` rows side by side: (batch, count x width)."""
        output: Tensor = self.linear(self.activation(conditioning))
        return output


class Modulation(nn.Module):
    """Shifts, scales and gates of one block."""

    def __init__(self, spec: TransformerSpec, count: int) -> None:
        super().__init__()
        tables = diffusion_of(spec).modulation_tables
        kind = ModulationTable if tables else ModulationProduct
        self.count, self.rows = count, kind(count, spec.hidden_size)

    def forward(self, conditioning: Tensor) -> tuple[Tensor, ...]:
        """Return `count` rows."""
        return self.rows(conditioning).chunk(self.count, -1)  # type: ignore[no-any-return]


class Modulate(nn.Module):
    """Scale and shift all tokens of a sequence alike."""

    def forward(self, hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return hidden * (1 + scale[:, None]) + shift[:, None]


class GatedSum(nn.Module):
    """Add a branch, weighed by a gate that all tokens of a sequence share."""

    def forward(self, hidden: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return hidden + branch * gate[:, None]


class AdaptiveNorm(nn.Module):
    """A LayerNorm without weights, then a scale and a shift of the conditioning."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.hidden_size, elementwise_affine=False)
        self.modulate = Modulate()

    def forward(self, hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        output: Tensor = self.modulate(self.norm(hidden), shift, scale)
        return output


class TextFlashAttention(nn.Module):
    """Fused attention of a picture's tokens to all of a text."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        return F.scaled_dot_product_attention(query, key, value)


class TextAttention(nn.Module):
    """Cross-attention to a text, whose queries and keys have norms of all heads."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        hidden, width = spec.hidden_size, spec.query_width
        self.linear_q = ColumnParallelLinear(hidden, width)
        self.linear_kv = ColumnParallelLinear(hidden, 2 * width)
        self.heads = CrossHeads(spec.kv_channels)
        self.query_norm, self.key_norm = QueryNorm(width), KeyNorm(width)
        self.core_attention = TextFlashAttention()
        self.linear_proj = RowParallelLinear(width, hidden)

    def forward(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        query, key, value = self.heads(self.linear_q(hidden), self.linear_kv(memory))
        context = self.core_attention(self.query_norm(query), self.key_norm(key), value)
        output: Tensor = self.linear_proj(context.transpose(1, 2).flatten(2))
        return output


class AdaptiveBlock(nn.Module):
    """Attention and a feed-forward layer with adaptive norms: adaLN-Zero."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.modulation = Modulation(spec, 6)
        self.input_norm = AdaptiveNorm(spec)
        self.self_attention = SelfAttention(spec)
        self.attention_sum = GatedSum()
        self.pre_mlp_norm = AdaptiveNorm(spec)
        self.mlp = MLP(spec)
        self.mlp_sum = GatedSum()

    def forward(self, hidden: Tensor, conditioning: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        rows = self.modulation(conditioning)
        return self.fed(self.attended(hidden, rows), rows)

    def attended(self, hidden: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        """Return hidden states with attention."""
        branch = self.self_attention(self.input_norm(hidden, rows[0], rows[1]))
        output: Tensor = self.attention_sum(hidden, branch, rows[2])
        return output

    def fed(self, hidden: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        """Return hidden states with the feed-forward layer."""
        branch = self.mlp(self.pre_mlp_norm(hidden, rows[3], rows[4]))
        output: Tensor = self.mlp_sum(hidden, branch, rows[5])
        return output


class CrossBlock(AdaptiveBlock):
    """The same with cross-attention to a text in between, behind a norm with weights.

    Its norms of queries and keys go over all heads.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__(spec)
        self.cross_norm = nn.LayerNorm(spec.hidden_size)
        self.cross_attention = TextAttention(spec)

    def forward(self, hidden: Tensor, memory: Tensor, conditioning: Tensor) -> Tensor:  # type: ignore[override]  # a text more
        """Return hidden states of the same shape."""
        rows = self.modulation(conditioning)
        hidden = self.attended(hidden, rows)
        hidden = hidden + self.cross_attention(self.cross_norm(hidden), memory)
        return self.fed(hidden, rows)


class StreamEntry(nn.Module):
    """What a stream gives to the attention over both."""

    def __init__(self, spec: TransformerSpec, num_rows: int) -> None:
        super().__init__()
        self.modulation = Modulation(spec, num_rows)
        self.input_norm = AdaptiveNorm(spec)
        self.linear_qkv = QKVParallelLinear(spec)
        self.query_norm: nn.Module | None
        self.key_norm: nn.Module | None
        self.query_norm, self.key_norm = query_key_norms(spec)

    def forward(
        self, hidden: Tensor, conditioning: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return queries, keys, values, and the rows of the modulation."""
        rows = self.modulation(conditioning)
        query, key, value = self.linear_qkv(self.input_norm(hidden, rows[0], rows[1]))
        return (*self.normed(query, key), value), rows

    def normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys with their norms, if there are any."""
        if self.query_norm is None or self.key_norm is None:
            return query, key
        return self.query_norm(query), self.key_norm(key)


class StreamExit(nn.Module):
    """What a stream makes of the attention over both, and its feed-forward layer."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.linear_proj = RowParallelLinear(spec.query_width, spec.hidden_size)
        self.attention_sum = GatedSum()
        self.pre_mlp_norm = AdaptiveNorm(spec)
        self.mlp = MLP(spec)
        self.mlp_sum = GatedSum()

    def forward(
        self, hidden: Tensor, context: Tensor, rows: tuple[Tensor, ...]
    ) -> Tensor:
        """Return hidden states of the same shape."""
        hidden = self.attention_sum(hidden, self.linear_proj(context), rows[2])
        branch = self.mlp(self.pre_mlp_norm(hidden, rows[3], rows[4]))
        output: Tensor = self.mlp_sum(hidden, branch, rows[5])
        return output


class JoinedStreams(nn.Module):
    """Text, then picture, in one tensor that holds both anyway."""

    def forward(self, text: Tensor, picture: Tensor) -> Tensor:
        """Return hidden states of all tokens."""
        return torch.cat((text, picture), 1)


class DoubleBlock(nn.Module):
    """A block of two streams: MMDiT's.

    Parameters
    ----------
    spec
        The architecture.
    is_last
        Whether text is read by the attention alone, and left as it came.
    """

    def __init__(self, spec: TransformerSpec, *, is_last: bool = False) -> None:
        super().__init__()
        text = diffusion_of(spec).joined_tokens
        self.parts = [text, spec.sequence_length - text]
        self.text_entry = StreamEntry(spec, 2 if is_last else 6)
        self.picture_entry = StreamEntry(spec, 6)
        self.join_heads = Concatenation(2)
        rotary = spec.position_embedding_type == "rope"
        self.rotary = RotaryEmbedding(spec.kv_channels) if rotary else None
        self.core_attention = FlashAttention(spec)
        self.text_exit = None if is_last else StreamExit(spec)
        self.picture_exit = StreamExit(spec)
        self.join = JoinedStreams()

    def forward(self, hidden: Tensor, conditioning: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        text, picture = torch.split(hidden, self.parts, 1)
        of_text, text_rows = self.text_entry(text, conditioning)
        of_picture, picture_rows = self.picture_entry(picture, conditioning)
        query, key, value = (
            self.join_heads(*both) for both in zip(of_text, of_picture, strict=True)
        )
        if self.rotary is not None:
            query, key = self.rotary(query, key)
        context = self.core_attention(query, key, value).transpose(1, 2).flatten(2)
        text_context, picture_context = torch.split(context, self.parts, 1)
        if self.text_exit is not None:
            text = self.text_exit(text, text_context, text_rows)
        picture = self.picture_exit(picture, picture_context, picture_rows)
        output: Tensor = self.join(text, picture)
        return output


class SingleBlock(nn.Module):
    """A block of one stream whose branches share the product behind them: FLUX.1's."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        width, inner = spec.hidden_size, spec.ffn_hidden_size
        self.entry = StreamEntry(spec, 3)
        self.rotary = RotaryEmbedding(spec.kv_channels)
        self.core_attention = FlashAttention(spec)
        self.linear_fc1 = ColumnParallelLinear(width, inner)
        self.activation = nn.GELU()
        self.join_branches = Concatenation(2)
        self.linear_fc2 = RowParallelLinear(spec.query_width + inner, width)
        self.sum = GatedSum()

    def forward(self, hidden: Tensor, conditioning: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        rows = self.entry.modulation(conditioning)
        normed = self.entry.input_norm(hidden, rows[0], rows[1])
        query, key, value = self.entry.linear_qkv(normed)
        query, key = self.rotary(*self.entry.normed(query, key))
        context = self.core_attention(query, key, value)
        inner = self.activation(self.linear_fc1(normed))
        both = self.join_branches(context.transpose(1, 2).flatten(2), inner)
        output: Tensor = self.sum(hidden, self.linear_fc2(both), rows[2])
        return output


class TextProjection(nn.Module):
    """From what a text encoder made to the model's width."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        diffusion, width = diffusion_of(spec), spec.hidden_size
        norm = diffusion.text_norm
        self.norm = RMSNorm(diffusion.text_width) if norm else nn.Identity()
        self.linear_1 = nn.Linear(diffusion.text_width, width)
        several = diffusion.text_layers > 1
        self.activation = nn.GELU() if several else nn.Identity()
        self.linear_2 = nn.Linear(width, width) if several else nn.Identity()

    def forward(self, text: Tensor) -> Tensor:
        """Return hidden states of a text."""
        projected = self.linear_1(self.norm(text))
        output: Tensor = self.linear_2(self.activation(projected))
        return output


class DiffusionEmbedding(nn.Module):
    """Projections of patches and text, and the conditioning."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        diffusion, width = diffusion_of(spec), spec.hidden_size
        self.in_sequence = diffusion.joined_tokens > 0
        self.patches = nn.Linear(diffusion.patch_elements, width)
        self.text = TextProjection(spec) if diffusion.text_tokens else None
        self.join = JoinedStreams()
        self.time = RowMLP(diffusion.time_width, width)
        guides, pooled = diffusion.guidance, diffusion.pooled_width
        self.guidance = RowMLP(diffusion.time_width, width) if guides else None
        self.pooled = RowMLP(pooled, width) if pooled else None
        classes = diffusion.num_classes
        self.classes = nn.Embedding(classes, width) if classes else None
        tables = diffusion.modulation_tables
        self.rows = ModulationProduct(6, width) if tables else nn.Identity()

    def forward(
        self,
        latents: Tensor,
        text: Tensor,
        time: Tensor,
        pooled: Tensor,
        classes: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return hidden states, a text that is no part of them, and conditioning.

        Parameters
        ----------
        latents
            Patches of noisy latents (batch, tokens, numbers of a patch).
        text, pooled
            What text encoders made; of no tokens and no width without.
        time
            Time, and the strength of guidance, as sines (batch, numbers of a time).
        classes
            Numbers of classes (batch).
        """
        hidden = self.patches(latents)
        conditioning = self.time(time)
        for part, given in (
            (self.guidance, time),
            (self.pooled, pooled),
            (self.classes, classes),
        ):
            if part is not None:
                conditioning = conditioning + part(given)
        rows = self.rows(conditioning)
        if self.text is None:
            return hidden, rows
        projected = self.text(text)
        if self.in_sequence:
            return self.join(projected, hidden), rows
        return hidden, projected, rows


class SquareError(nn.Module):
    """Mean square error in fp32."""

    def forward(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss."""
        difference = predicted.float() - target.float()
        return difference.square().mean()


class DiffusionHead(nn.Module):
    """An adaptive norm, the projection to latents, and the loss of the picture."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        text = diffusion_of(spec).joined_tokens
        self.parts = [text, spec.sequence_length - text]
        self.modulation = Modulation(spec, 2)
        self.norm = AdaptiveNorm(spec)
        self.projection = nn.Linear(
            spec.hidden_size, diffusion_of(spec).output_elements
        )
        self.loss = SquareError()

    def forward(self, hidden: Tensor, conditioning: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss."""
        if self.parts[0]:
            hidden = torch.split(hidden, self.parts, 1)[1]
        shift, scale = self.modulation(conditioning)
        predicted = self.projection(self.norm(hidden, shift, scale))
        loss: Tensor = self.loss(predicted, target)
        return loss


def build_diffusion_block(spec: TransformerSpec, kind: str) -> nn.Module:
    """Return a block of some kind."""
    if kind == SINGLE:
        return SingleBlock(spec)
    if kind in {ADAPTIVE, CROSS}:
        return (CrossBlock if kind == CROSS else AdaptiveBlock)(spec)
    return DoubleBlock(spec, is_last=kind == LAST_DOUBLE)


def embedding_inputs(spec: TransformerSpec, device: str) -> tuple[Tensor, ...]:
    """Return what `DiffusionEmbedding` takes for one sequence."""
    diffusion = diffusion_of(spec)
    picture = spec.sequence_length - diffusion.joined_tokens
    shapes = (
        (1, picture, diffusion.patch_elements),
        (1, diffusion.text_tokens, diffusion.text_width),
        (1, diffusion.time_width),
        (1, diffusion.pooled_width),
    )
    floats = (torch.zeros(shape, device=device) for shape in shapes)
    return (*floats, torch.zeros(1, dtype=torch.long, device=device))


def head_inputs(spec: TransformerSpec, device: str) -> tuple[Tensor, ...]:
    """Return what `DiffusionHead` takes beside hidden states."""
    diffusion = diffusion_of(spec)
    picture = spec.sequence_length - diffusion.joined_tokens
    target = torch.zeros((1, picture, diffusion.output_elements), device=device)
    return torch.zeros((1, spec.hidden_size), device=device), target


def beside_hidden(spec: TransformerSpec, kind: str, device: str) -> tuple[Tensor, ...]:
    """Return what a block of some kind takes beside hidden states."""
    diffusion, width = diffusion_of(spec), spec.hidden_size
    rows = 6 if diffusion.modulation_tables else 1
    conditioning = torch.zeros((1, rows * width), device=device)
    if kind != CROSS:
        return (conditioning,)
    text = torch.zeros((1, diffusion.text_tokens, width), device=device)
    return text, conditioning
