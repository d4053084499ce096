"""Whole models of the layers that are traced: what they count and learn is tested."""

import torch
from torch import Tensor, nn

from estimators.models.families import FAMILIES, ModelFamily
from estimators.models.spec import FIRST_DECODER_BLOCK, TransformerSpec


class TransformerModel(nn.Module):
    """A whole model: the chain of its layers; those of a T5 are counted only."""

    def __init__(self, spec: TransformerSpec, family: ModelFamily) -> None:
        super().__init__()
        layers = family.layers(spec)
        self.embedding = layers["embedding"]
        kinds = spec.block_pattern or tuple(spec.block_kinds.values()) * spec.num_layers
        self.blocks = nn.ModuleList(family.block(spec, kind) for kind in kinds)
        self.final_norm = layers.get("final norm", nn.Identity())
        self.head = layers["head"]
        if spec.tie_word_embeddings:
            shared = self.embedding.get_parameter("word_embeddings.weight")
            self.head.get_submodule("output_layer").register_parameter("weight", shared)
        if spec.has_decoder:
            shared = self.embedding.get_parameter("word_embeddings.weight")
            first = self.blocks[kinds.index(FIRST_DECODER_BLOCK)]
            first.get_submodule("word_embeddings").register_parameter("weight", shared)

    def forward(self, inputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        """Return the loss; `inputs` and `labels` as embedding and head take them."""
        hidden = self.embedding(*inputs)
        for block in self.blocks:
            hidden = block(hidden)
        loss: Tensor = self.head(self.final_norm(hidden), *labels)
        return loss


def build_model(spec: TransformerSpec, device: str = "meta") -> TransformerModel:
    """Build the whole model; on the meta device it takes no memory."""
    with torch.device(device):
        return TransformerModel(spec, FAMILIES[spec.family])
