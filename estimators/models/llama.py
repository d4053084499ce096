"""Llama 2, Llama 3, Mistral: RMSNorm, SwiGLU, rotary positions, grouped heads.

The modules are those of every pre-LN decoder; what makes a Llama is its specification.
"""

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
