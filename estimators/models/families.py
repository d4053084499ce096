"""The families of modules by name, and models built from a specification.

This is the door to torch: import it only where modules are really needed.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from estimators.models import bert, gpt, llama, mixtral
from estimators.models.family import ModelFamily, TransformerModel
from estimators.models.spec import TransformerSpec

FAMILIES: Mapping[str, ModelFamily] = MappingProxyType(
    {
        "gpt": gpt.FAMILY,
        "llama": llama.FAMILY,
        "mixtral": mixtral.FAMILY,
        "bert": bert.FAMILY,
    }
)
"""`TransformerSpec.family` -> its modules."""


def build_layers(spec: TransformerSpec, device: str = "meta") -> dict[str, nn.Module]:
    """Build one layer of each distinct kind, in the order of the chain."""
    with torch.device(device):
        return FAMILIES[spec.family].layers(spec)


def build_model(spec: TransformerSpec, device: str = "meta") -> TransformerModel:
    """Build the whole model; on the meta device it takes no memory."""
    with torch.device(device):
        return TransformerModel(spec, FAMILIES[spec.family])


def example_inputs(
    spec: TransformerSpec, device: str = "meta"
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return one sequence of ids for the embedding, and labels for the head."""
    tokens = torch.zeros(1, spec.sequence_length, dtype=torch.long, device=device)
    if spec.family == "bert":
        return (tokens, tokens), (tokens, tokens[:, 0])
    return (tokens,), (tokens,)
