"""Readers of GPT-2 and GPT-NeoX."""

from estimators.models.huggingface.config_file import GELUS, ConfigFile
from estimators.models.huggingface.windows import rotary_percent
from estimators.models.spec import TransformerSpec


def read_gpt2(config: ConfigFile) -> TransformerSpec:
    """Read GPT-2."""
    config.require("activation_function", default="gelu_new", allowed=GELUS)
    config.require("add_cross_attention", default=False, allowed=(False,))
    hidden_size = config.integer("n_embd")
    length = config.integer("n_positions")
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer("n_layer"),
        hidden_size=hidden_size,
        ffn_hidden_size=config.integer("n_inner", 4 * hidden_size),
        num_attention_heads=config.integer("n_head"),
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        hidden_dropout=config.number("resid_pdrop", 0.1),
        attention_dropout=config.number("attn_pdrop", 0.1),
    )


def read_gpt_neox(config: ConfigFile) -> TransformerSpec:
    """Read GPT-NeoX; its parallel residual branches are computed one by one."""
    config.require("hidden_act", default="gelu", allowed=GELUS)
    config.require("attention_bias", default=True, allowed=(True,))
    length = config.integer("max_position_embeddings")
    return TransformerSpec(
        family="gpt",
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=config.integer("hidden_size"),
        ffn_hidden_size=config.integer("intermediate_size"),
        num_attention_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        position_embedding_type="rope",
        rotary_percent=rotary_percent(config, "rotary_pct", default=0.25),
        parallel_residual=config.flag("use_parallel_residual", default=True),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        hidden_dropout=config.number("hidden_dropout", 0.0),
        attention_dropout=config.number("attention_dropout", 0.0),
    )
