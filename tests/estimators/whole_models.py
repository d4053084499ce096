"""Whole models of the layers that are traced: what they count and learn is tested."""

import torch
from torch import Tensor, nn

from estimators.models.spec import FIRST_DECODER_BLOCK, TransformerSpec
from tests.estimators.torch_models import FAMILIES, ModelFamily


class TransformerModel(nn.Module):
    """A whole model: the chain of its layers; those of a T5 are counted only."""

    def __init__(self, spec: TransformerSpec, family: ModelFamily) -> None:
        super().__init__()
        layers = family.layers(spec)
        kinds = list(spec.block_kinds.values())
        self.embedding = layers["embedding"]
        pattern = spec.block_pattern or kinds * spec.num_layers
        self.blocks = nn.ModuleList(family.block(spec, kind) for kind in pattern)
        self.final_norm = layers.get("final norm", nn.Identity())
        self.depths = nn.ModuleList(
            layers[f"mtp {depth}"] for depth in range(spec.mtp_num_layers)
        )
        self.head = layers["head"]
        weight = "word_embeddings.weight"
        if spec.tie_word_embeddings:
            shared = self.embedding.get_parameter(weight)
            self.head.get_submodule("output_layer").register_parameter("weight", shared)
        for depth in self.depths:
            shared = self.embedding.get_parameter(weight)
            depth.get_submodule("embedding").register_parameter("weight", shared)
        if spec.has_decoder:
            shared = self.embedding.get_parameter("word_embeddings.weight")
            first = self.blocks[pattern.index(FIRST_DECODER_BLOCK)]
            first.get_submodule("word_embeddings").register_parameter("weight", shared)

    def forward(self, inputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        """Return the loss; `inputs` and `labels` as embedding and head take them."""
        hidden = self.embedding(*inputs)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.final_norm(hidden)
        for depth in self.depths:
            hidden = depth(hidden, *inputs)
        loss: Tensor = self.head(hidden, *labels)
        return loss


def build_model(spec: TransformerSpec, device: str = "meta") -> TransformerModel:
    """Build the whole model; on the meta device it takes no memory."""
    with torch.device(device):
        return TransformerModel(spec, FAMILIES[spec.family])
