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

from estimators.models.bert import BertBlock, BertEmbedding, BertHead
from estimators.models.blocks import build_block
from estimators.models.decoder import (
    FinalNorm,
    LanguageModelHead,
    WordEmbedding,
)
from estimators.models.multi_token import MultiTokenHead, MultiTokenPrediction
from estimators.models.spec import TransformerSpec

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
        "bert": ModelFamily(
            embedding=BertEmbedding,
            block=lambda spec, _: BertBlock(spec),
            final_norm=None,
            head=BertHead,
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
    """Return one sequence of ids for the embedding, and labels for the head."""
    tokens = torch.zeros(1, spec.sequence_length, dtype=torch.long, device=device)
    if spec.family == "bert":
        return (tokens, tokens), (tokens, tokens[:, 0])
    return (tokens,), (tokens,)
