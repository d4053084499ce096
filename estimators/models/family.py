"""What a family of models consists of, and the model that its layers make."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from estimators.models.spec import TransformerSpec

Builder = Callable[[TransformerSpec], nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """The layers of a chain, one builder for each distinct kind."""

    embedding: Builder
    """Token ids to hidden states."""

    block: Builder
    """Hidden states to hidden states."""

    final_norm: Builder | None
    """Hidden states to hidden states; None where the head normalises for itself."""

    head: Builder
    """Hidden states and labels to the loss."""

    def layers(self, spec: TransformerSpec) -> dict[str, nn.Module]:
        """Build one layer of each distinct kind, in the order of the chain."""
        built = {"embedding": self.embedding(spec), "block": self.block(spec)}
        if self.final_norm is not None:
            built["final norm"] = self.final_norm(spec)
        return built | {"head": self.head(spec)}


class TransformerModel(nn.Module):
    """A whole model: the chain of its layers."""

    def __init__(self, spec: TransformerSpec, family: ModelFamily) -> None:
        super().__init__()
        layers = family.layers(spec)
        self.embedding = layers["embedding"]
        others = (family.block(spec) for _ in range(spec.num_layers - 1))
        self.blocks = nn.ModuleList((layers["block"], *others))
        self.final_norm = layers.get("final norm", nn.Identity())
        self.head = layers["head"]
        if spec.tie_word_embeddings:
            shared = self.embedding.get_parameter("word_embeddings.weight")
            self.head.get_submodule("output_layer").register_parameter("weight", shared)

    def forward(self, inputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        """Return the loss; `inputs` and `labels` as embedding and head take them."""
        hidden = self.embedding(*inputs)
        for block in self.blocks:
            hidden = block(hidden)
        loss: Tensor = self.head(self.final_norm(hidden), *labels)
        return loss
