"""Models with experts, from Mixtral 8x22B and Grok-1 to DeepSeek V3 and Llama 4.

Biases that take part in the choice of experts only are no parameters, and are counted
nowhere.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.llama import llama_spec
from estimators.models.library.published import PublishedModel
from estimators.models.mixtures import dense_at_first, expert_pattern
from estimators.models.spec import TransformerSpec, with_windows

_MIXTRAL_8X22B = replace(
    llama_spec(56, 6144, 16384, 48, 8, 32000, 4096),
    family="mixtral",
    num_moe_experts=8,
    moe_router_topk=2,
)

_DEEPSEEK_V2 = replace(
    llama_spec(60, 5120, 12288, 128, 128, 102400, 4096),
    family="mixtral",
    block_pattern=dense_at_first(60, 1),
    kv_channels=128,
    num_moe_experts=160,
    moe_ffn_hidden_size=1536,
    moe_router_topk=6,
    moe_shared_expert_intermediate_size=2 * 1536,
    moe_router_pre_softmax=True,
    moe_router_num_groups=8,
    moe_router_group_topk=3,
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_pos_emb_head_dim=64,
    v_head_dim=128,
)

_DEEPSEEK_V2_LITE = replace(
    _DEEPSEEK_V2,
    num_layers=27,
    block_pattern=dense_at_first(27, 1),
    hidden_size=2048,
    ffn_hidden_size=10944,
    num_attention_heads=16,
    num_query_groups=16,
    num_moe_experts=64,
    moe_ffn_hidden_size=1408,
    moe_shared_expert_intermediate_size=2 * 1408,
    moe_router_num_groups=0,
    moe_router_group_topk=0,
    q_lora_rank=0,
)

_DEEPSEEK_V3 = replace(
    _DEEPSEEK_V2,
    num_layers=61,
    block_pattern=dense_at_first(61, 3),
    hidden_size=7168,
    ffn_hidden_size=18432,
    vocab_size=129280,
    num_moe_experts=256,
    moe_ffn_hidden_size=2048,
    moe_router_topk=8,
    moe_shared_expert_intermediate_size=2048,
    moe_router_score_function="sigmoid",
    moe_router_pre_softmax=False,
    moe_router_enable_expert_bias=True,
    moe_router_group_topk=4,
    mtp_num_layers=1,
)

_KIMI_K2 = replace(
    _DEEPSEEK_V3,
    block_pattern=dense_at_first(61, 1),
    num_attention_heads=64,
    num_query_groups=64,
    vocab_size=163840,
    num_moe_experts=384,
    moe_router_num_groups=0,
    moe_router_group_topk=0,
    mtp_num_layers=0,
)


def _qwen_moe(  # noqa: PLR0913, PLR0917  # the columns of the tables
    num_layers: int,
    hidden_size: int,
    heads: int,
    groups: int,
    experts: tuple[int, int],
    width: int,
    shared_width: int,
) -> TransformerSpec:
    """Return a Qwen1.5-MoE or Qwen2-MoE: shared experts behind a gate."""
    return replace(
        llama_spec(num_layers, hidden_size, width, heads, groups, 151936, 4096),
        family="mixtral",
        add_qkv_bias=True,
        num_moe_experts=experts[0],
        moe_router_topk=experts[1],
        moe_router_pre_softmax=True,
        moe_shared_expert_intermediate_size=shared_width,
        moe_shared_expert_gate=True,
    )


def _qwen3_moe(
    num_layers: int, hidden_size: int, heads: int, width: int
) -> TransformerSpec:
    """Return a Qwen3-MoE: the best 8 of 128 experts, norms of queries and keys."""
    return replace(
        llama_spec(num_layers, hidden_size, width, heads, 4, 151936, 4096),
        family="mixtral",
        kv_channels=128,
        qk_layernorm=True,
        num_moe_experts=128,
        moe_router_topk=8,
    )


def _gpt_oss(num_layers: int, num_experts: int) -> TransformerSpec:
    """Return a GPT-OSS: biases, sinks, windows of 128 tokens in every second block."""
    dense = replace(
        llama_spec(num_layers, 2880, 2880, 32, 8, 201088, 4096),
        num_attention_heads=64,
        family="mixtral",
        kv_channels=64,
        add_bias_linear=True,
        softmax_type="learnable",
        num_moe_experts=num_experts,
        moe_router_topk=4,
    )
    return with_windows(dense, 128, 2)


def _llama4(num_experts: int, every: int) -> TransformerSpec:
    """Return the text model of a Llama 4: experts in every so many blocks."""
    return replace(
        llama_spec(48, 5120, 16384, 40, 8, 202048, 8192),
        family="mixtral",
        block_pattern=expert_pattern(
            48,
            lambda index: (index + 1) % every == 0,
            lambda index: "chunked" if (index + 1) % 4 else "unturned",
        ),
        attention_chunk_size=8192,
        qk_l2_norm=True,
        kv_channels=128,
        num_moe_experts=num_experts,
        moe_ffn_hidden_size=8192,
        moe_router_topk=1,
        moe_router_score_function="sigmoid",
        moe_shared_expert_intermediate_size=8192,
    )


_GLM_4_5_AIR = replace(
    llama_spec(46, 4096, 10944, 32, 8, 151552, 4096),
    num_attention_heads=96,
    family="mixtral",
    block_pattern=dense_at_first(46, 1),
    kv_channels=128,
    rotary_percent=0.5,
    add_qkv_bias=True,
    num_moe_experts=128,
    moe_ffn_hidden_size=1408,
    moe_router_topk=8,
    moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    moe_shared_expert_intermediate_size=1408,
    mtp_num_layers=1,
)

_GLM_4_5 = replace(
    _GLM_4_5_AIR,
    num_layers=92,
    block_pattern=dense_at_first(92, 3),
    hidden_size=5120,
    ffn_hidden_size=12288,
    qk_layernorm=True,
    num_moe_experts=160,
    moe_ffn_hidden_size=1536,
    moe_shared_expert_intermediate_size=1536,
)

_GROK_1 = replace(
    llama_spec(64, 6144, 32768, 48, 8, 131072, 8192),
    family="mixtral",
    norm_placement="sandwich",
    attn_logit_softcapping=30.0,
    scale_embeddings=True,
    tie_word_embeddings=True,
    num_moe_experts=8,
    moe_router_topk=2,
    moe_router_pre_softmax=True,
)

_DBRX = replace(
    llama_spec(40, 6144, 10752, 48, 8, 100352, 32768),
    family="mixtral",
    normalization="layernorm",
    layernorm_bias=False,
    num_moe_experts=16,
    moe_router_topk=4,
)

_GPT_OSS_SOURCE = (
    "OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, 2025, table 1; config.json of "
    "openai/gpt-oss, whose initial context is 4,096 tokens"
)
_QWEN3_SOURCE = (
    "Yang et al., Qwen3 Technical Report, 2025, table 2 and section 3.2; config.json "
    "of Qwen/Qwen3"
)
_LLAMA4_SOURCE = (
    "Meta, The Llama 4 herd, 2025, the text model; config.json of "
    "meta-llama/Llama-4; length of one chunk of its attention"
)
_GLM_SOURCE = (
    "GLM-4.5 Team, GLM-4.5, 2025, table 1 and section 2.4, with its layer of "
    "multi-token prediction; config.json of zai-org/GLM-4.5"
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "mixtral-8x22b": PublishedModel(
            _MIXTRAL_8X22B,
            "config.json of mistral-community/Mixtral-8x22B-v0.1, 2024; length as "
            "Mixtral 8x7B here",
        ),
        "deepseek-v2-lite": PublishedModel(
            _DEEPSEEK_V2_LITE,
            "DeepSeek-AI, DeepSeek-V2, 2024, appendix B; config.json of "
            "deepseek-ai/DeepSeek-V2-Lite",
        ),
        "deepseek-v2": PublishedModel(
            _DEEPSEEK_V2,
            "DeepSeek-AI, DeepSeek-V2, 2024, section 3.1.2; config.json of "
            "deepseek-ai/DeepSeek-V2",
        ),
        "deepseek-v3": PublishedModel(
            _DEEPSEEK_V3,
            "DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 4.2, with its "
            "layer of multi-token prediction; config.json of deepseek-ai/DeepSeek-V3",
        ),
        "kimi-k2": PublishedModel(
            _KIMI_K2,
            "Kimi Team, Kimi K2, 2025, table 2; config.json of moonshotai/Kimi-K2-Base",
        ),
        "qwen1.5-moe-a2.7b": PublishedModel(
            _qwen_moe(24, 2048, 16, 16, (60, 4), 1408, 5632),
            "config.json of Qwen/Qwen1.5-MoE-A2.7B, 2024; length as Qwen2-57B-A14B",
        ),
        "qwen2-57b-a14b": PublishedModel(
            _qwen_moe(28, 3584, 28, 4, (64, 8), 2560, 20480),
            "Yang et al., Qwen2 Technical Report, 2024, table 1; config.json of "
            "Qwen/Qwen2-57B-A14B",
        ),
        "qwen3-30b-a3b": PublishedModel(_qwen3_moe(48, 2048, 32, 768), _QWEN3_SOURCE),
        "qwen3-235b-a22b": PublishedModel(
            _qwen3_moe(94, 4096, 64, 1536), _QWEN3_SOURCE
        ),
        "gpt-oss-20b": PublishedModel(_gpt_oss(24, 32), _GPT_OSS_SOURCE),
        "gpt-oss-120b": PublishedModel(_gpt_oss(36, 128), _GPT_OSS_SOURCE),
        "llama4-scout": PublishedModel(_llama4(16, 1), _LLAMA4_SOURCE),
        "llama4-maverick": PublishedModel(_llama4(128, 2), _LLAMA4_SOURCE),
        "glm-4.5-air": PublishedModel(_GLM_4_5_AIR, _GLM_SOURCE),
        "glm-4.5": PublishedModel(_GLM_4_5, _GLM_SOURCE),
        "dbrx": PublishedModel(
            _DBRX, "Mosaic Research, DBRX, 2024; config.json of databricks/dbrx-base"
        ),
        "grok-1": PublishedModel(
            _GROK_1,
            "xai-org/grok-1, run.py and model.py, 2024; norms behind branches, too",
        ),
    }
)
"""Name -> architecture and source."""
