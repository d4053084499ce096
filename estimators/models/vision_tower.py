"""Vision towers and projectors as torch modules, in front of the word embedding.

A tower works on the patches of all pictures of a sequence; patches attend to those of
their picture alone, or of their part of it. What it makes stands in the sequence where
a picture's tokens are. As Megatron-LM and NeMo place it without a pipeline of its own,
the tower belongs to the first stage, in one piece with the word embedding [1]_: it is
part of the first layer of the chain. Heads and inner widths are split over a
tensor-parallel group. Recompute of blocks leaves it alone.

* SigLIP with Gemma 3's projector [2]_: patches are averaged, normalised and projected.
* Llama 4's [3]_: a class token; four patches become one, an adapter of two products.
* Qwen2.5-VL's [4]_: root mean square norms, gated feed-forward layers, attention in
  windows but for a few blocks, and a merger of two products.
* Qwen3-VL's [5]_: blocks of SigLIP, the merger, and one more for each of three blocks,
  whose tokens transformers adds in the first blocks of the language model, and which
  are added to the embedding here.

References
----------
.. [1] Megatron-LM, ``megatron/core/models/multimodal/llava_model.py``:
   ``LLaVAModel`` with ``add_encoder`` on the first stage.
.. [2] Gemma Team, "Gemma 3 Technical Report", 2025; ``SiglipVisionModel`` and
   ``Gemma3MultiModalProjector`` of transformers.
.. [3] ``Llama4VisionModel`` of transformers.
.. [4] Qwen Team, "Qwen2.5-VL Technical Report", 2025, section 2.1.
.. [5] Qwen Team, "Qwen3-VL Technical Report", 2025; ``Qwen3VLVisionModel`` of
   transformers.
"""

from estimators.models.encoders import UnmaskedFlashAttention
from estimators.models.layers import (
    MLP,
    ColumnParallelLinear,
    RMSNorm,
    RowParallelLinear,
    build_norm,
)
from estimators.models.spec import TransformerSpec
from estimators.models.vision import VisionTower
from estimators.models.vocabulary import Tensor, nn, torch


def block_spec(tower: VisionTower) -> TransformerSpec:
    """Return what the blocks of a tower are made of."""
    gated = tower.kind == "qwen2_5_vl"
    return TransformerSpec(
        family="gpt",
        num_layers=tower.num_layers,
        hidden_size=tower.hidden_size,
        ffn_hidden_size=tower.ffn_hidden_size,
        num_attention_heads=tower.num_heads,
        vocab_size=1,
        sequence_length=tower.images * tower.rows,
        causal=False,
        position_embedding_type="none",
        normalization="rmsnorm" if gated else "layernorm",
        gated_linear_unit=gated,
        activation_func="silu" if gated else "gelu",
    )


class Positions(nn.Module):
    """A class token in front of each picture, if there is one, and learned positions.

    Of another number of rows than patches, positions are resampled.
    """

    def __init__(self, tower: VisionTower) -> None:
        super().__init__()
        self.images, self.rows = tower.images, tower.rows
        width = tower.hidden_size
        token = nn.Parameter(torch.zeros(width)) if tower.kind == "llama4" else None
        self.register_parameter("class_token", token)
        self.weight = nn.Parameter(torch.zeros(tower.positions, width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of all pictures, with those of class tokens."""
        return hidden.new_empty(1, self.images * self.rows, hidden.shape[-1])


class PictureHeads(nn.Module):
    """Queries, keys and values whose heads are those of all parts of all pictures."""

    def __init__(self, heads: int, parts: int, *, rotary: bool) -> None:
        super().__init__()
        self.heads, self.parts, self.rotary = heads, parts, rotary

    def forward(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each as (1, parts x heads, patches, head)."""
        rows = projected.shape[1] // self.parts
        width = projected.shape[2] // 3 // self.heads
        query, key, value = (
            part.reshape(self.parts, rows, self.heads, width)
            .transpose(1, 2)
            .reshape(1, -1, rows, width)
            for part in projected.chunk(3, -1)
        )
        return query, key, value


class JoinedHeads(nn.Module):
    """Heads side by side, patches of all pictures one after the other."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, context: Tensor) -> Tensor:
        """Return (1, patches of all pictures, heads x head)."""
        rows, width = context.shape[2:]
        apart = context.reshape(self.parts, -1, rows, width).transpose(1, 2)
        return apart.reshape(1, self.parts * rows, -1)


class PictureAttention(nn.Module):
    """Attention of patches to those of their picture, or of their part of it."""

    def __init__(self, spec: TransformerSpec, parts: int, *, rotary: bool) -> None:
        super().__init__()
        width = spec.hidden_size
        self.linear_qkv = ColumnParallelLinear(width, 3 * width, bias=True)
        self.heads = PictureHeads(spec.num_attention_heads, parts, rotary=rotary)
        self.core_attention = UnmaskedFlashAttention(spec)
        self.join = JoinedHeads(parts)
        self.linear_proj = RowParallelLinear(width, width, bias=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        query, key, value = self.heads(self.linear_qkv(hidden))
        context = self.join(self.core_attention(query, key, value))
        output: Tensor = self.linear_proj(context)
        return output


class TowerBlock(nn.Module):
    """A block of a tower: two norms, attention, a feed-forward layer."""

    def __init__(self, tower: VisionTower, *, is_full: bool) -> None:
        super().__init__()
        spec = block_spec(tower)
        parts = tower.images * (1 if is_full else tower.windows)
        self.input_norm = build_norm(spec)
        rotary = tower.kind != "siglip"
        self.attention = PictureAttention(spec, parts, rotary=rotary)
        self.pre_mlp_norm = build_norm(spec)
        self.feed_forward = MLP(spec)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        hidden = hidden + self.attention(self.input_norm(hidden))
        output: Tensor = hidden + self.feed_forward(self.pre_mlp_norm(hidden))
        return output


class MergedPatches(nn.Module):
    """Patches side by side that become one token, without class tokens."""

    def __init__(self, tower: VisionTower) -> None:
        super().__init__()
        self.tokens, self.merged = tower.tokens, tower.merged

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (1, tokens, merged x hidden)."""
        kept = hidden[:, : self.tokens * self.merged]
        return kept.reshape(1, self.tokens, -1)


class AveragedPatches(MergedPatches):
    """Means of patches that become one token."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (1, tokens, hidden)."""
        merged = super().forward(hidden)
        return merged.unflatten(-1, (self.merged, -1)).mean(2)  # type: ignore[no-untyped-call, no-any-return]


class Merger(nn.Module):
    """A norm before patches are merged, or behind, and two products."""

    def __init__(self, tower: VisionTower, width: int, *, behind: bool) -> None:
        super().__init__()
        inner = tower.merged * tower.hidden_size
        spec = block_spec(tower)
        self.norm = nn.Identity() if behind else build_norm(spec)
        self.merge = MergedPatches(tower)
        self.merged_norm = build_norm(spec, inner) if behind else nn.Identity()
        self.linear_fc1 = ColumnParallelLinear(inner, inner, bias=True)
        self.activation = nn.GELU()
        self.linear_fc2 = RowParallelLinear(inner, width, bias=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return tokens (1, tokens, width)."""
        merged = self.merged_norm(self.merge(self.norm(hidden)))
        output: Tensor = self.linear_fc2(self.activation(self.linear_fc1(merged)))
        return output


class MeanProjector(nn.Module):
    """Means of patches, a norm and a product: Gemma 3's."""

    def __init__(self, tower: VisionTower, width: int) -> None:
        super().__init__()
        self.pool = AveragedPatches(tower)
        self.norm = RMSNorm(tower.hidden_size)
        self.projection = nn.Linear(tower.hidden_size, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return tokens (1, tokens, width)."""
        output: Tensor = self.projection(self.norm(self.pool(hidden)))
        return output


class AdapterProjector(nn.Module):
    """Merged patches, two products with a nonlinearity each, a third: Llama 4's."""

    def __init__(self, tower: VisionTower, width: int) -> None:
        super().__init__()
        inner = tower.projector_width
        self.merge = MergedPatches(tower)
        merged = tower.merged * tower.hidden_size
        self.linear_fc1 = ColumnParallelLinear(merged, inner, bias=False)
        self.activation = nn.GELU()
        self.linear_fc2 = RowParallelLinear(inner, inner, bias=False)
        self.last_activation = nn.GELU()
        self.projection = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return tokens (1, tokens, width)."""
        inner = self.activation(self.linear_fc1(self.merge(hidden)))
        adapted = self.last_activation(self.linear_fc2(inner))
        output: Tensor = self.projection(adapted)
        return output


class Tower(nn.Module):
    """From the patches of a sequence's pictures to its tokens of pictures."""

    def __init__(self, tower: VisionTower, width: int) -> None:
        super().__init__()
        kind, spec = tower.kind, block_spec(tower)
        biased = kind in {"siglip", "qwen3_vl"}
        hidden, full = tower.hidden_size, tower.full_blocks
        self.patches = nn.Linear(tower.patch_elements, hidden, bias=biased)
        self.positions = Positions(tower) if tower.positions else nn.Identity()
        self.norm_before = build_norm(spec) if kind == "llama4" else nn.Identity()
        windowed = tower.num_layers - full
        self.blocks = nn.ModuleList(
            TowerBlock(tower, is_full=tower.windows == 1 or index >= windowed)
            for index in range(tower.num_layers)
        )
        normed = kind in {"llama4", "siglip"}
        self.norm_behind = build_norm(spec) if normed else nn.Identity()
        self.projector = _projector(tower, width)
        self.deep_mergers = nn.ModuleList(
            Merger(tower, width, behind=True) for _ in range(tower.deep_mergers)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """Return tokens (1, tokens, width) of patches (1, all, numbers of a patch)."""
        hidden = self.norm_before(self.positions(self.patches(patches)))
        for block in self.blocks:
            hidden = block(hidden)
        tokens: Tensor = self.projector(self.norm_behind(hidden))
        for merger in self.deep_mergers:
            tokens = tokens + merger(hidden)
        return tokens


def _projector(tower: VisionTower, width: int) -> nn.Module:
    if tower.kind == "siglip":
        return MeanProjector(tower, width)
    if tower.kind == "llama4":
        return AdapterProjector(tower, width)
    return Merger(tower, width, behind=False)


class PlacedTokens(nn.Module):
    """The tokens of pictures in a sequence of words."""

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return torch.cat((tokens, hidden[:, tokens.shape[1] :]), 1)
