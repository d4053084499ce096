"""Readers of models with experts: DeepSeek, Kimi K2, Qwen, GPT-OSS, GLM-4.5, Llama 4.

Kimi K2 has the architecture of DeepSeek V3. Weights of 4 and 8 bits are read as if they
were of one format: quantisation is no part of an architecture.
"""

from dataclasses import replace

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.huggingface.llama import read_llama
from estimators.models.huggingface.windows import rotary_percent, with_config_windows
from estimators.models.mixtures import expert_pattern
from estimators.models.spec import TransformerSpec


def read_deepseek_v2(config: ConfigFile) -> TransformerSpec:
    """Read DeepSeek V2: a softmax over all experts, then the best ones."""
    config.require("scoring_func", default="softmax", allowed=("softmax",))
    return _read_deepseek(config, score_function="softmax")


def read_deepseek_v3(config: ConfigFile) -> TransformerSpec:
    """Read DeepSeek V3 or Kimi K2: sigmoids, and a bias for each expert."""
    config.require("scoring_func", default="sigmoid", allowed=("sigmoid",))
    return _read_deepseek(config, score_function="sigmoid")


def _read_deepseek(config: ConfigFile, *, score_function: str) -> TransformerSpec:
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


def read_qwen2_moe(config: ConfigFile) -> TransformerSpec:
    """Read Qwen1.5-MoE or Qwen2-MoE: shared experts behind a gate."""
    return replace(
        _read_qwen(config),
        add_qkv_bias=config.flag("qkv_bias", default=True),
        moe_shared_expert_intermediate_size=config.integer(
            "shared_expert_intermediate_size"
        ),
        moe_shared_expert_gate=True,
    )


def read_qwen3_moe(config: ConfigFile) -> TransformerSpec:
    """Read Qwen3-MoE: heads of queries and keys are normalised, no shared experts."""
    return replace(_read_qwen(config), qk_layernorm=True)


def _read_qwen(config: ConfigFile) -> TransformerSpec:
    config.require("use_sliding_window", default=False, allowed=(False,))
    dense = read_llama(config)
    every = config.integer("decoder_sparse_step", 1)
    without = frozenset(config.indices("mlp_only_layers"))
    normalized = config.flag("norm_topk_prob", default=False)
    return replace(
        dense,
        family="mixtral",
        block_pattern=expert_pattern(
            dense.num_layers,
            lambda index: index not in without and (index + 1) % every == 0,
        ),
        num_moe_experts=config.integer(config.spelled("num_experts", _LOCAL)),
        moe_router_topk=config.integer("num_experts_per_tok"),
        moe_ffn_hidden_size=config.integer("moe_intermediate_size"),
        moe_router_pre_softmax=not normalized,
    )


_LOCAL = "num_local_experts"
"""Another name of the number of experts."""


def read_gpt_oss(config: ConfigFile) -> TransformerSpec:
    """Read GPT-OSS: biases everywhere, sinks, a window in every second block."""
    config.require("attention_bias", default=True, allowed=(True,))
    dense = replace(
        read_llama(config),
        add_bias_linear=True,
        add_attention_bias=False,
        softmax_type="learnable",
    )
    windowed = [index % 2 == 0 for index in range(dense.num_layers)]
    dense = with_config_windows(config, dense, windowed, default=128)
    return replace(
        dense,
        family="mixtral",
        block_pattern=tuple(
            kind.replace("dense", "experts") for kind in dense.block_pattern
        ),
        num_moe_experts=config.integer(config.spelled(_LOCAL, "num_experts")),
        moe_router_topk=config.integer(
            config.spelled("num_experts_per_tok", "experts_per_token")
        ),
    )


def read_glm4_moe(config: ConfigFile) -> TransformerSpec:
    """Read GLM-4.5: DeepSeek V3's experts and depths, attention with few groups."""
    dense = read_llama(config)
    width = config.integer("moe_intermediate_size")
    first = config.count("first_k_dense_replace", 1)
    groups = config.count("n_group", 1)
    depths = config.spelled("num_nextn_predict_layers", "num_mtp_layers")
    return replace(
        dense,
        family="mixtral",
        block_pattern=expert_pattern(dense.num_layers, lambda index: index >= first),
        add_attention_bias=False,
        add_qkv_bias=dense.add_attention_bias,
        qk_layernorm=config.flag("use_qk_norm", default=False),
        rotary_percent=rotary_percent(config, "partial_rotary_factor", default=0.5),
        num_moe_experts=config.integer(config.spelled("n_routed_experts", _LOCAL)),
        moe_router_topk=config.integer("num_experts_per_tok"),
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=config.count("n_shared_experts", 1) * width,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_num_groups=groups if groups > 1 else 0,
        moe_router_group_topk=config.integer("topk_group", 1) if groups > 1 else 0,
        mtp_num_layers=config.count(depths, 0),
    )


def read_llama4(config: ConfigFile) -> TransformerSpec:
    """Read the text model of Llama 4."""
    return config.inside("text_config", read_llama4_text)


def read_llama4_text(config: ConfigFile) -> TransformerSpec:
    """Read Llama 4: experts of sigmoids, chunks, blocks without positions."""
    dense = read_llama(config)
    width = config.integer("intermediate_size")
    every = config.integer("interleave_moe_layer_step", 1)
    listed = frozenset(config.indices("moe_layers"))
    turned = config.indices("no_rope_layers")
    skip = config.integer("no_rope_layer_interval", 4)
    chunk = config.count("attention_chunk_size", 8192)

    def has_experts(index: int) -> bool:
        return index in listed if listed else (index + 1) % every == 0

    def mixer(index: int) -> str:
        given = index < len(turned)
        is_turned = turned[index] != 0 if given else (index + 1) % skip != 0
        if not is_turned:
            return "unturned"
        return "chunked" if chunk else "attention"

    pattern = expert_pattern(dense.num_layers, has_experts, mixer)
    chunked = any(kind.startswith("chunked") for kind in pattern)
    norm = config.flag("use_qk_norm", default=True)
    return replace(
        dense,
        family="mixtral",
        block_pattern=pattern,
        sequence_length=_whole_chunks(dense.sequence_length, chunk),
        attention_chunk_size=chunk if chunked else 0,
        qk_l2_norm=norm and chunked,
        ffn_hidden_size=config.integer("intermediate_size_mlp", 16384),
        num_moe_experts=config.integer(_LOCAL),
        moe_router_topk=config.integer("num_experts_per_tok"),
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=width,
        moe_router_score_function="sigmoid",
    )


def _whole_chunks(length: int, chunk: int) -> int:
    """Return the longest sequence up to some length that chunks fill [tokens]."""
    return length if not chunk or length <= chunk else length // chunk * chunk
