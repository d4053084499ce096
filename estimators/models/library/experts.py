"""Models with experts: Mixtral's larger one, DeepSeek's, Kimi's and Qwen's.

Biases that take part in the choice of experts only are no parameters, and are counted
nowhere.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.llama import llama_spec
from estimators.models.library.published import PublishedModel
from estimators.models.mixtures import dense_at_first
from estimators.models.spec import TransformerSpec

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
    }
)
"""Name -> architecture and source."""
