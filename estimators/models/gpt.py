"""GPT-2, GPT-3, GPT-NeoX: LayerNorm, GELU, biases, learned or rotary positions."""

from estimators.models.decoder import (
    FinalNorm,
    LanguageModelHead,
    TransformerBlock,
    WordEmbedding,
)
from estimators.models.family import ModelFamily

FAMILY = ModelFamily(
    embedding=WordEmbedding,
    block=TransformerBlock,
    final_norm=FinalNorm,
    head=LanguageModelHead,
)
