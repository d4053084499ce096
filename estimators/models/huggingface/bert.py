"""Reader of BERT."""

from estimators.models.huggingface.config_file import GELUS, ConfigFile
from estimators.models.spec import TransformerSpec


def read_bert(config: ConfigFile) -> TransformerSpec:
    """Read BERT, with its heads for pretraining unless the file says otherwise."""
    config.require("hidden_act", default="gelu", allowed=GELUS)
    config.require("position_embedding_type", default="absolute", allowed=("absolute",))
    config.require("is_decoder", default=False, allowed=(False,))
    config.require("tie_word_embeddings", default=True, allowed=(True,))
    architectures = config.values.get("architectures") or ["BertForPreTraining"]
    length = config.integer("max_position_embeddings")
    return TransformerSpec(
        family="bert",
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=config.integer("hidden_size"),
        ffn_hidden_size=config.integer("intermediate_size"),
        num_attention_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        hidden_dropout=config.number("hidden_dropout_prob", 0.1),
        attention_dropout=config.number("attention_probs_dropout_prob", 0.1),
        causal=False,
        num_token_types=config.integer("type_vocab_size", 2),
        bert_binary_head=architectures != ["BertForMaskedLM"],
    )
