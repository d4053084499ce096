"""GPT-3 and BERT."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec


def _gpt3(num_layers: int, hidden_size: int, heads: int) -> TransformerSpec:
    """Return a GPT-3: 2,048 tokens, the vocabulary of GPT-2, dropout as Megatron-LM."""
    return TransformerSpec(
        family="gpt",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        vocab_size=50257,
        sequence_length=2048,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )


_BERT_LARGE = TransformerSpec(
    family="bert",
    num_layers=24,
    hidden_size=1024,
    num_attention_heads=16,
    vocab_size=30522,
    sequence_length=512,
    hidden_dropout=0.1,
    attention_dropout=0.1,
    causal=False,
    num_token_types=2,
)

_GPT3_SOURCE = (
    "Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1; dropout 0.1 "
    "is Megatron-LM's default"
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "bert-large": PublishedModel(
            _BERT_LARGE,
            "Devlin et al., BERT, 2019, section 3; vocabulary of bert-large-uncased",
        ),
        "gpt3-125m": PublishedModel(_gpt3(12, 768, 12), _GPT3_SOURCE),
        "gpt3-350m": PublishedModel(_gpt3(24, 1024, 16), _GPT3_SOURCE),
        "gpt3-760m": PublishedModel(_gpt3(24, 1536, 16), _GPT3_SOURCE),
        "gpt3-1.3b": PublishedModel(
            _gpt3(24, 2048, 16),
            f"{_GPT3_SOURCE}; 16 heads of 128, since the table's 24 x 128 is not 2048",
        ),
        "gpt3-2.7b": PublishedModel(_gpt3(32, 2560, 32), _GPT3_SOURCE),
        "gpt3-6.7b": PublishedModel(_gpt3(32, 4096, 32), _GPT3_SOURCE),
        "gpt3-13b": PublishedModel(
            _gpt3(40, 5120, 40),
            f"{_GPT3_SOURCE}; width 40 x 128 = 5120, where the table has 5140",
        ),
        "gpt3-35b": PublishedModel(
            replace(_gpt3(64, 8192, 64), ffn_hidden_size=16384),
            "Wang et al., NEST, 2026, appendix C.1.1, table 3: its feed-forward is "
            "twice as wide as the model, not four times; vocabulary of GPT-2",
        ),
        "gpt3-175b": PublishedModel(_gpt3(96, 12288, 96), _GPT3_SOURCE),
    }
)
"""Name -> architecture and source."""
