"""Vision transformers: patches of an image as tokens, a class token, one loss.

As published [1]_ and in torchvision and Hugging Face's ``ViTForImageClassification``:
pre-LN blocks without a causal mask, learned positions, a final norm, and a classifier
of the class token. Patches do not overlap: cutting them out is a product.

References
----------
.. [1] Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.1.
"""

import torch
from torch import Tensor, nn

from estimators.models.layers import CrossEntropy
from estimators.models.limits import NUM_CHANNELS
from estimators.models.spec import TransformerSpec


class PatchProjection(nn.Conv2d):
    """Hidden states of patches, each of which is seen once."""

    def __init__(self, spec: TransformerSpec) -> None:
        size = spec.patch_size
        super().__init__(NUM_CHANNELS, spec.hidden_size, size, stride=size)

    def forward(self, images: Tensor) -> Tensor:
        """Return hidden states (batch, patches, hidden)."""
        return super().forward(images).flatten(2).transpose(1, 2)


class ClassTokenAndPositions(nn.Module):
    """A learned token in front, and learned vectors added to all."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        width = spec.hidden_size
        self.class_token = nn.Parameter(torch.zeros(width))
        self.position_embeddings = nn.Parameter(
            torch.zeros(spec.sequence_length, width)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """Return hidden states of one token more."""
        first = self.class_token.expand(patches.shape[0], 1, -1)
        return torch.cat((first, patches), 1) + self.position_embeddings


class VisionEmbedding(nn.Module):
    """From images to hidden states of their patches and of the class token."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.patch_projection = PatchProjection(spec)
        self.tokens = ClassTokenAndPositions(spec)
        self.dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return the first hidden states of images (batch, colours, height, width)."""
        output: Tensor = self.dropout(self.tokens(self.patch_projection(images)))
        return output


class ClassificationHead(nn.Module):
    """Classifier of the class token, and its loss."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.classifier = nn.Linear(spec.hidden_size, spec.vocab_size)
        self.loss = CrossEntropy()

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over all images."""
        loss: Tensor = self.loss(self.classifier(hidden[:, 0]), labels)
        return loss
