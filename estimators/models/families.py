"""The families of models by name: decoders, and layers built from a specification.

The blocks of a model: what mixes tokens, and what looks at each by itself.

A kind of block is the name of its mixer and that of its feed-forward layer, joined by
``"+"``; either may be missing (`TransformerSpec.block_pattern`).

Multi-token prediction: layers that predict tokens further ahead, and their losses.

Layer ``d`` (from 0) stands between the final norm and the head. It joins the hidden
states of the layer before it with the embedding of the token that comes ``d + 1``
later, each normalised, projects both to the model's width and passes them through a
block of its own [1]_. Word embedding and output layer are the model's. Hidden states of
the model and of each depth leave side by side, and the head finds a loss for each, as
in Megatron Core's ``MultiTokenPredictionLayer``: the last stage of a pipeline holds a
copy of the word embedding for them, whose gradients it adds up with the first stage.

The families of models by name, and layers built from a specification.

A family is what its layers are built of. GPT-2, GPT-3, GPT-NeoX (LayerNorm, GELU,
biases, learned or rotary positions) and Llama 2, Llama 3, Mistral (RMSNorm, SwiGLU,
rotary positions, grouped heads) consist of the modules of every pre-LN decoder: their
specifications make the difference.

This is the door to torch: import it only where modules are really needed.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2, equations 21
   to 25.
.. [2] Meituan LongCat Team, "Scaling Embeddings Outperforms Scaling Experts in Language
   Models", 2026, arXiv:2601.21204; ``LongcatFlashNgramModel`` of its checkpoint.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from estimators.models.attention import (
    ChunkedSelfAttention,
    build_attention,
    build_unturned_attention,
    build_window_attention,
)
from estimators.models.diffusion import DIFFUSION_FAMILY
from estimators.models.diffusion_blocks import (
    DiffusionEmbedding,
    DiffusionHead,
    beside_hidden,
    build_diffusion_block,
    embedding_inputs,
    head_inputs,
)
from estimators.models.encoders import (
    BertBlock,
    BertEmbedding,
    BertHead,
    ClassificationHead,
    VisionEmbedding,
    build_t5_block,
)
from estimators.models.hyper_connections import (
    AlternatingBlock,
    BlockEmbeddings,
    LastStreams,
    LastStreamSum,
    StreamBlock,
    StreamCopies,
    ThresholdMLP,
    build_borrowing,
)
from estimators.models.layers import (
    MLP,
    Concatenation,
    CrossEntropy,
    MambaMixer,
    MoELayer,
    PositionEmbedding,
    Scale,
    SoftCap,
    VocabParallelEmbedding,
    VocabParallelLinear,
    build_norm,
)
from estimators.models.limits import NUM_CHANNELS
from estimators.models.linear_attention import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    SelectiveMixer,
    ShortConvolution,
)
from estimators.models.sparse_attention import (
    CompressedAttention,
    SparseLatentAttention,
)
from estimators.models.spec import (
    DECODER_BLOCK,
    ENCODER_BLOCK,
    FIRST_DECODER_BLOCK,
    SHORTCUT_BLOCK,
    TransformerSpec,
)
from estimators.models.vision_tower import PlacedTokens, Tower
from estimators.models.vocabulary import F, Tensor, nn, torch
from topologies.errors import InputError


class WordEmbedding(nn.Module):
    """Word embedding, scaled, with positions or normalised where it is; dropout."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        learned = spec.position_embedding_type == "learned"
        rows, width = spec.max_position_embeddings, spec.hidden_size
        self.word_embeddings = VocabParallelEmbedding(spec.vocab_size, width)
        self.scale = Scale(width**0.5) if spec.scale_embeddings else nn.Identity()
        self.position_embeddings = PositionEmbedding(rows, width) if learned else None
        self.norm = build_norm(spec) if spec.embedding_layernorm else nn.Identity()
        self.ngrams = NGramEmbedding(spec) if spec.ngram_embedding else None
        self.dropout = nn.Dropout(spec.hidden_dropout)
        copied = spec.num_residual_streams > 0 and not spec.block_embedding
        self.streams = StreamCopies(spec) if copied else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the first hidden states of token ids (batch, sequence)."""
        hidden: Tensor = self.scale(self.word_embeddings(tokens))
        if self.position_embeddings is not None:
            hidden = self.position_embeddings(hidden)
        hidden = self.norm(hidden)
        if self.ngrams is not None:
            hidden = self.ngrams(hidden, tokens)
        output: Tensor = self.streams(self.dropout(hidden))
        return output


class SeeingEmbedding(nn.Module):
    """Word embedding, and the tower that makes tokens of a sequence's pictures."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        assert spec.vision is not None
        self.words = WordEmbedding(spec)
        self.vision_tower = Tower(spec.vision, spec.hidden_size)
        self.place = PlacedTokens()

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """Return the first hidden states of token ids, and of pictures among them."""
        output: Tensor = self.place(self.words(tokens), self.vision_tower(patches))
        return output


def build_embedding(spec: TransformerSpec) -> nn.Module:
    """Return what makes the first hidden states of a sequence."""
    if spec.block_embedding:
        return BlockEmbeddings(spec, WordEmbedding(spec))
    return WordEmbedding(spec) if spec.vision is None else SeeingEmbedding(spec)


class NGramTables(VocabParallelEmbedding):
    """Tables of vectors for the n-grams that end at each token, below each other.

    A table has two rows more than the one before it, and a narrower vector for each; an
    n-gram is a number in digits of the vocabulary's size, and its row the rest [2]_.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        longest, splits, rows = spec.ngram_embedding
        lengths = [length for length in range(2, longest + 1) for _ in range(splits)]
        sizes = [rows + 2 * place + 1 for place in range(len(lengths))]
        super().__init__(sum(sizes), spec.hidden_size // len(sizes))
        self.width, self.digits = spec.hidden_size, spec.vocab_size
        self.tables = [*zip(lengths, sizes, strict=True)]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors of all tables side by side (batch, sequence, hidden)."""
        if tokens.is_meta:  # shapes are all there is to know
            return torch.empty((*tokens.shape, self.width), device="meta")
        begin, parts = 0, []
        for length, rows in self.tables:
            numbers = tokens % rows
            for place in range(1, length):
                earlier = F.pad(tokens, (place, 0))[:, : tokens.shape[1]]
                numbers = numbers + earlier * pow(self.digits, place, rows)
            parts.append(super().forward(numbers % rows + begin))
            begin += rows
        return torch.cat(parts, -1)


class NGramEmbedding(nn.Module):
    """The mean of a word's vector and one of each table, which a product makes [2]_."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.tables = NGramTables(spec)
        width = spec.hidden_size
        self.proj = nn.Linear(width, width, bias=False)  # those of all tables
        self.mean = Scale(1.0 / (1 + len(self.tables.tables)))

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        output: Tensor = self.mean(hidden + self.proj(self.tables(tokens)))
        return output


class TransformerBlock(nn.Module):
    """A block of two branches, each normalised before or behind it, or both.

    Branches follow each other, or read the same hidden states.

    Parameters
    ----------
    spec
        The architecture.
    mixer
        Branch that lets tokens see each other, if there is one.
    mlp
        Branch that looks at each token by itself, if there is one.
    """

    def __init__(
        self, spec: TransformerSpec, mixer: nn.Module | None, mlp: nn.Module | None
    ) -> None:
        super().__init__()
        self.parallel = spec.parallel_residual
        self.shares_norm = spec.norm_placement == "shared" and mixer is not None
        self.input_norm = _norm(spec, mixer, "pre", "sandwich", "shared")
        self.self_attention = mixer
        self.post_attention_norm = _norm(spec, mixer, "post", "sandwich")
        self.attention_dropout = nn.Dropout(spec.hidden_dropout)
        self.pre_mlp_norm = _norm(spec, mlp, "pre", "sandwich")
        self.mlp = mlp
        self.post_mlp_norm = _norm(spec, mlp, "post", "sandwich")
        self.mlp_dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        entering, normed = hidden, hidden
        if self.self_attention is not None:
            normed = self.input_norm(entering)
            branch = self.post_attention_norm(self.self_attention(normed))
            hidden = entering + self.attention_dropout(branch)
        if self.mlp is not None:
            if not self.shares_norm:
                normed = self.pre_mlp_norm(entering if self.parallel else hidden)
            branch = self.post_mlp_norm(self.mlp(normed))
            hidden = hidden + self.mlp_dropout(branch)
        return hidden


class ShortcutBlock(nn.Module):
    """Two blocks, and experts that read what the first feed-forward layer reads.

    What experts return is added behind the second block, so that their all-to-alls can
    run beside it (LongCat-Flash, 2025, section 2.2). That they do is not modelled: they
    are priced one after the other.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.input_norm, self.pre_mlp_norm = build_norm(spec), build_norm(spec)
        self.self_attention = build_attention(spec)
        self.mlp = MoELayer(spec)
        self.dense_mlp = MLP(spec)
        self.second = TransformerBlock(spec, build_attention(spec), MLP(spec))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        hidden = hidden + self.self_attention(self.input_norm(hidden))
        normed = self.pre_mlp_norm(hidden)
        beside = self.mlp(normed)
        output: Tensor = self.second(hidden + self.dense_mlp(normed)) + beside
        return output


def _norm(
    spec: TransformerSpec, branch: nn.Module | None, *placements: str
) -> nn.Module:
    """Return a norm of a branch, or nothing where norms are placed elsewhere."""
    if branch is None or spec.norm_placement not in placements:
        return nn.Identity()
    return build_norm(spec)


class FinalNorm(nn.Module):
    """The norm between the last block and the output layer, of a sum of streams."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        last = LastStreams if spec.block_embedding else LastStreamSum
        self.streams = last(spec) if spec.num_residual_streams else nn.Identity()
        self.norm = build_norm(spec)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states."""
        output: Tensor = self.norm(self.streams(hidden))
        return output


class LanguageModelHead(nn.Module):
    """Output layer and loss of a decoder."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.output_layer = VocabParallelLinear(
            spec.hidden_size, spec.vocab_size, bias=spec.add_head_bias
        )
        cap = spec.final_logit_softcapping
        self.soft_cap = SoftCap(cap) if cap else nn.Identity()
        self.loss = CrossEntropy()

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over all tokens."""
        logits = self.soft_cap(self.output_layer(hidden))
        loss: Tensor = self.loss(logits, labels)
        return loss


class ParallelMixers(nn.Module):
    """Mamba-2 and attention that read the same hidden states, added up: Falcon-H1."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.mamba = MambaMixer(spec)
        self.attention = build_attention(spec)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        output: Tensor = self.mamba(hidden) + self.attention(hidden)
        return output


MIXERS: Mapping[str, Callable[[TransformerSpec], nn.Module]] = MappingProxyType(
    {
        "attention": build_attention,
        "sparse": SparseLatentAttention,
        "reusing": partial(SparseLatentAttention, chooses=False),
        "window": build_window_attention,
        "chunked": ChunkedSelfAttention,
        "unturned": build_unturned_attention,
        "mamba": MambaMixer,
        "mamba_attention": ParallelMixers,
        "gated_delta": GatedDeltaNet,
        "kimi_delta": KimiDeltaAttention,
        "lightning": LightningAttention,
        "short_convolution": ShortConvolution,
        "selective_scan": SelectiveMixer,
    }
)
"""Name of a mixer -> its builder."""

FEED_FORWARDS: Mapping[str, Callable[[TransformerSpec], nn.Module]] = MappingProxyType(
    {"dense": MLP, "thresholded": ThresholdMLP, "experts": MoELayer}
)
"""Name of a feed-forward layer -> its builder."""


def build_block(spec: TransformerSpec, kind: str) -> nn.Module:
    """Return a block of some kind.

    Raises
    ------
    InputError
        If there is no such kind.
    """
    if kind == SHORTCUT_BLOCK:
        return ShortcutBlock(spec)
    parts = kind.split("+")
    mixers = [MIXERS[part](spec) for part in parts[:1] if part in MIXERS]
    if spec.block_embedding and kind.startswith("borrowing"):
        mixers = [build_borrowing(spec, parts[0])]
    elif spec.compression and kind.startswith("window_"):
        mixers = [CompressedAttention(spec, parts[0].removeprefix("window_"))]
    layers = [FEED_FORWARDS[part](spec) for part in parts[-1:] if part in FEED_FORWARDS]
    if not len(mixers) + len(layers) == len(parts) > 0:
        raise InputError(
            "no such kind of block",
            where="block_pattern",
            got=kind,
            expected=f"{_names(MIXERS)}, {_names(FEED_FORWARDS)}, or one of either "
            'joined by "+"',
        )
    block: type[nn.Module]
    block = StreamBlock if spec.num_residual_streams else TransformerBlock
    block = AlternatingBlock if spec.block_embedding else block
    return block(spec, mixers[0] if mixers else None, layers[0] if layers else None)


def _names(table: Mapping[str, object]) -> str:
    return ", ".join(f'"{name}"' for name in table)


LOSS_SCALE = 0.1
"""Weight of the losses of all depths together; Megatron-LM's default of
``mtp_loss_scaling_factor``."""


class LaterTokenEmbedding(VocabParallelEmbedding):
    """The word embedding, of tokens that come later."""

    def __init__(self, spec: TransformerSpec, depth: int) -> None:
        super().__init__(spec.vocab_size, spec.hidden_size)
        self.ahead = depth + 1
        self.is_held_already = depth > 0 or spec.tie_word_embeddings
        """Whether another layer of the last stage holds the same weight."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors of the tokens that come `ahead` later."""
        return super().forward(tokens.roll(-self.ahead, -1))


class MultiTokenPrediction(nn.Module):
    """One depth: two norms, a projection, a block, a norm."""

    def __init__(self, spec: TransformerSpec, block: nn.Module, depth: int) -> None:
        super().__init__()
        self.num_parts = depth + 1
        self.embedding = LaterTokenEmbedding(spec, depth)
        self.enorm = build_norm(spec)
        self.hnorm = build_norm(spec)
        self.join = Concatenation(-1)
        self.eh_proj = nn.Linear(2 * spec.hidden_size, spec.hidden_size, bias=False)
        self.transformer_layer = block
        self.final_norm = build_norm(spec)
        self.append = Concatenation(1)

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return the hidden states that came, and those of this depth behind them."""
        last = self.num_parts - 1
        before = hidden.chunk(self.num_parts, 1)[last] if last else hidden
        joined = self.join(self.enorm(self.embedding(tokens)), self.hnorm(before))
        ahead = self.final_norm(self.transformer_layer(self.eh_proj(joined)))
        output: Tensor = self.append(hidden, ahead)
        return output


class LaterCrossEntropy(nn.Module):
    """Loss in fp32 over a vocabulary that may be split, of tokens that come later."""

    def __init__(self, ahead: int, scale: float) -> None:
        super().__init__()
        self.ahead, self.scale = ahead, scale

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss, scaled."""
        rows, later = logits.flatten(0, -2).float(), labels.roll(-self.ahead, -1)
        return F.cross_entropy(rows, later.flatten()) * self.scale


class MultiTokenHead(nn.Module):
    """Output layer of the model and of each depth, one loss after the other."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.num_parts = spec.mtp_num_layers + 1
        self.output_layer = VocabParallelLinear(
            spec.hidden_size, spec.vocab_size, bias=spec.add_head_bias
        )
        cap = spec.final_logit_softcapping
        self.soft_cap = SoftCap(cap) if cap else nn.Identity()
        self.loss = CrossEntropy()
        scale = LOSS_SCALE / spec.mtp_num_layers
        self.later_losses = nn.ModuleList(
            LaterCrossEntropy(ahead, scale) for ahead in range(1, self.num_parts)
        )

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the model's loss and those of all depths."""
        parts = hidden.chunk(self.num_parts, 1)
        logits = self.soft_cap(self.output_layer(parts[0]))
        total: Tensor = self.loss(logits, labels)
        for place, loss in enumerate(self.later_losses, 1):
            logits = self.soft_cap(self.output_layer(parts[place]))
            total = total + loss(logits, labels)
        return total


Builder = Callable[[TransformerSpec], nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """The layers of a chain, one builder for each distinct kind."""

    embedding: Builder = build_embedding
    """Builds the layer from token ids to hidden states."""

    block: Callable[[TransformerSpec, str], nn.Module] = build_block
    """Builds a layer from hidden states to hidden states, of some kind."""

    final_norm: Builder | None = FinalNorm
    """Builds the norm behind the last block; None where the head normalises for
    itself."""

    head: Builder = LanguageModelHead
    """Builds the layer from hidden states and labels to the loss."""

    def layers(self, spec: TransformerSpec) -> dict[str, nn.Module]:
        """Build one layer of each distinct kind, in the order of the chain."""
        built = {"embedding": self.embedding(spec)}
        for name, kind in spec.block_kinds.items():
            built[name] = self.block(spec, kind)
        if self.final_norm is not None:
            built["final norm"] = self.final_norm(spec)
        for depth in range(spec.mtp_num_layers):
            block = self.block(spec, spec.last_block_kind)
            built[f"mtp {depth}"] = MultiTokenPrediction(spec, block, depth)
        head = MultiTokenHead if spec.mtp_num_layers else self.head
        return built | {"head": head(spec)}


FAMILIES: Mapping[str, ModelFamily] = MappingProxyType(
    {
        "gpt": ModelFamily(),
        "llama": ModelFamily(),
        "mixtral": ModelFamily(),
        "mamba": ModelFamily(),
        "bert": ModelFamily(
            embedding=BertEmbedding,
            block=lambda spec, _: BertBlock(spec),
            final_norm=None,
            head=BertHead,
        ),
        "t5": ModelFamily(block=build_t5_block),
        "vit": ModelFamily(embedding=VisionEmbedding, head=ClassificationHead),
        DIFFUSION_FAMILY: ModelFamily(
            embedding=DiffusionEmbedding,
            block=build_diffusion_block,
            final_norm=None,
            head=DiffusionHead,
        ),
    }
)
"""`TransformerSpec.family` -> builders of its layers."""


def build_layers(spec: TransformerSpec, device: str = "meta") -> dict[str, nn.Module]:
    """Build one layer of each distinct kind, in the order of the chain."""
    with torch.device(device):
        return FAMILIES[spec.family].layers(spec)


def example_inputs(
    spec: TransformerSpec, device: str = "meta"
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return one sequence of ids for the embedding, and labels for the head.

    A vision transformer's is one image, a diffusion transformer's latents and noise.
    """
    if spec.diffusion:
        return embedding_inputs(spec, device), head_inputs(spec, device)
    tokens = torch.zeros(1, spec.sequence_length, dtype=torch.long, device=device)
    if spec.family == "bert":
        return (tokens, tokens), (tokens, tokens[:, 0])
    if spec.family == "vit":
        shape = (1, NUM_CHANNELS, spec.image_size, spec.image_size)
        return (torch.zeros(shape, device=device),), (tokens[:, 0],)
    if tower := spec.vision:
        patches = (1, tower.images * tower.patches, tower.patch_elements)
        return (tokens, torch.zeros(patches, device=device)), (tokens,)
    if spec.has_decoder:
        return (tokens,), (_decoder_tokens(spec, device),)
    return (tokens,), (tokens,)


def block_inputs(
    spec: TransformerSpec, kind: str, device: str = "meta"
) -> tuple[Tensor, ...]:
    """Return what a block of some kind takes for one sequence, hidden states first."""
    hidden = _hidden_states(spec, spec.entering_tokens(kind), device)
    if spec.diffusion:
        return hidden, *beside_hidden(spec, kind, device)
    if spec.block_embedding:
        _, blocks, width, _ = spec.block_embedding
        kept = 2 * spec.group_width * kind.startswith("borrowing")
        return hidden, *(
            torch.zeros(1, hidden.shape[1], channels, device=device)
            for channels in (width + kept, (blocks - 1) * width + kept)
        )
    heads, tokens = spec.num_attention_heads, hidden.shape[1]
    bias = torch.zeros(1, heads, tokens, tokens, device=device)
    if kind == ENCODER_BLOCK:
        return hidden, bias
    if kind == DECODER_BLOCK:
        return hidden, _hidden_states(spec, spec.sequence_length, device), bias
    if kind == FIRST_DECODER_BLOCK:
        return hidden, _decoder_tokens(spec, device)
    return (hidden,)


def leaving_states(
    spec: TransformerSpec, device: str = "meta", *, normed: bool = False
) -> Tensor:
    """Return the hidden states of one sequence behind the last block, or its norm."""
    tokens = spec.decoder_sequence_length if spec.has_decoder else spec.sequence_length
    if normed:
        return torch.zeros(1, tokens, spec.hidden_size, device=device)
    return _hidden_states(spec, tokens, device)


def _hidden_states(spec: TransformerSpec, tokens: int, device: str) -> Tensor:
    width = spec.hidden_size * max(spec.num_residual_streams, 1)
    return torch.zeros(1, tokens, width, device=device)


def _decoder_tokens(spec: TransformerSpec, device: str) -> Tensor:
    length = spec.decoder_sequence_length
    return torch.zeros(1, length, dtype=torch.long, device=device)
