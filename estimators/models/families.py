"""The families of models by name, and layers built from a specification.

A family is what its layers are built of. GPT-2, GPT-3, GPT-NeoX (LayerNorm, GELU,
biases, learned or rotary positions) and Llama 2, Llama 3, Mistral (RMSNorm, SwiGLU,
rotary positions, grouped heads) consist of the modules of every pre-LN decoder: their
specifications make the difference.

This is the door to torch: import it only where modules are really needed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from estimators.models.decoder import (
    FinalNorm,
    LanguageModelHead,
    MultiTokenHead,
    MultiTokenPrediction,
    WordEmbedding,
    build_block,
)
from estimators.models.encoders import (
    BertBlock,
    BertEmbedding,
    BertHead,
    ClassificationHead,
    VisionEmbedding,
    build_t5_block,
)
from estimators.models.limits import NUM_CHANNELS
from estimators.models.spec import (
    DECODER_BLOCK,
    ENCODER_BLOCK,
    FIRST_DECODER_BLOCK,
    TransformerSpec,
)

Builder = Callable[[TransformerSpec], nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """The layers of a chain, one builder for each distinct kind."""

    embedding: Builder = WordEmbedding
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

    A vision transformer's is one image.
    """
    tokens = torch.zeros(1, spec.sequence_length, dtype=torch.long, device=device)
    if spec.family == "bert":
        return (tokens, tokens), (tokens, tokens[:, 0])
    if spec.family == "vit":
        shape = (1, NUM_CHANNELS, spec.image_size, spec.image_size)
        return (torch.zeros(shape, device=device),), (tokens[:, 0],)
    if spec.has_decoder:
        return (tokens,), (_decoder_tokens(spec, device),)
    return (tokens,), (tokens,)


def block_inputs(
    spec: TransformerSpec, kind: str, device: str = "meta"
) -> tuple[Tensor, ...]:
    """Return what a block of some kind takes for one sequence, hidden states first."""
    hidden = _hidden_states(spec, spec.entering_tokens(kind), device)
    heads, tokens = spec.num_attention_heads, hidden.shape[1]
    bias = torch.zeros(1, heads, tokens, tokens, device=device)
    if kind == ENCODER_BLOCK:
        return hidden, bias
    if kind == DECODER_BLOCK:
        return hidden, _hidden_states(spec, spec.sequence_length, device), bias
    if kind == FIRST_DECODER_BLOCK:
        return hidden, _decoder_tokens(spec, device)
    return (hidden,)


def leaving_states(spec: TransformerSpec, device: str = "meta") -> Tensor:
    """Return the hidden states of one sequence behind the last block."""
    tokens = spec.decoder_sequence_length if spec.has_decoder else spec.sequence_length
    return _hidden_states(spec, tokens, device)


def _hidden_states(spec: TransformerSpec, tokens: int, device: str) -> Tensor:
    return torch.zeros(1, tokens, spec.hidden_size, device=device)


def _decoder_tokens(spec: TransformerSpec, device: str) -> Tensor:
    length = spec.decoder_sequence_length
    return torch.zeros(1, length, dtype=torch.long, device=device)
