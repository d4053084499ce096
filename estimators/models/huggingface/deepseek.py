"""Readers of DeepSeek V2 and V3, and of Kimi K2, which has V3's architecture."""

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.mixtures import expert_pattern
from estimators.models.spec import TransformerSpec


def read_deepseek_v2(config: ConfigFile) -> TransformerSpec:
    """Read DeepSeek V2: a softmax over all experts, then the best ones."""
    config.require("scoring_func", default="softmax", allowed=("softmax",))
    return _read(config, score_function="softmax")


def read_deepseek_v3(config: ConfigFile) -> TransformerSpec:
    """Read DeepSeek V3 or Kimi K2: sigmoids, and a bias for each expert."""
    config.require("scoring_func", default="sigmoid", allowed=("sigmoid",))
    return _read(config, score_function="sigmoid")


def _read(config: ConfigFile, *, score_function: str) -> TransformerSpec:
    for key, default, allowed in (
        ("hidden_act", "silu", ("silu", "swish")),
        ("attention_bias", False, (False,)),
        ("mlp_bias", False, (False,)),
    ):
        config.require(key, default=default, allowed=allowed)
    length = config.integer("max_position_embeddings")
    num_layers = config.integer("num_hidden_layers")
    width = config.integer("moe_intermediate_size")
    sigmoid = score_function == "sigmoid"
    dense = config.count("first_k_dense_replace", 3 if sigmoid else 0)
    every = config.integer("moe_layer_freq", 1)
    groups = config.count("n_group", 8 if sigmoid else 0)
    limited = groups > 1 and config.text("topk_method", "noaux_tc") != "greedy"
    normalized = sigmoid or config.flag("norm_topk_prob", default=False)
    return TransformerSpec(
        family="mixtral",
        num_layers=num_layers,
        block_pattern=expert_pattern(
            num_layers, lambda index: index >= dense and index % every == 0
        ),
        hidden_size=config.integer("hidden_size"),
        num_attention_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        max_position_embeddings=length,
        ffn_hidden_size=config.integer("intermediate_size"),
        kv_channels=config.integer("qk_nope_head_dim"),
        gated_linear_unit=True,
        normalization="rmsnorm",
        position_embedding_type="rope",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        add_bias_linear=False,
        attention_dropout=config.number("attention_dropout", 0.0),
        num_moe_experts=config.integer("n_routed_experts"),
        moe_router_topk=config.integer("num_experts_per_tok"),
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=config.count("n_shared_experts", 0) * width,
        moe_router_score_function=score_function,
        moe_router_pre_softmax=not normalized,
        moe_router_enable_expert_bias=sigmoid,
        moe_router_num_groups=groups if limited else 0,
        moe_router_group_topk=config.integer("topk_group", 4) if limited else 0,
        mtp_num_layers=config.count("num_nextn_predict_layers", 0),
        kv_lora_rank=config.integer("kv_lora_rank"),
        q_lora_rank=config.count("q_lora_rank", 0),
        qk_pos_emb_head_dim=config.integer("qk_rope_head_dim"),
        v_head_dim=config.integer("v_head_dim"),
    )
