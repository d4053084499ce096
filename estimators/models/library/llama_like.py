"""Decoders that are a Llama but for norms, biases, heads or positions."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.llama import llama_spec
from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec, with_windows


def _olmo2(
    num_layers: int, hidden_size: int, ffn_hidden_size: int, heads: int, groups: int
) -> TransformerSpec:
    """Return an OLMo 2: norms behind branches, and of all queries and keys."""
    llama = llama_spec(
        num_layers, hidden_size, ffn_hidden_size, heads, groups, 100_352, 4096
    )
    return replace(
        llama, norm_placement="post", qk_layernorm=True, qk_layernorm_whole=True
    )


def _olmo(llama: TransformerSpec, *, tied: bool = False) -> TransformerSpec:
    """Return an OLMo: its LayerNorm has no weights."""
    return replace(
        llama,
        normalization="layernorm",
        layernorm_affine=False,
        tie_word_embeddings=tied,
    )


def _glm(llama: TransformerSpec, *, sandwich: bool, biases: bool) -> TransformerSpec:
    """Return a GLM-4: heads of 128 channels, half of them turned."""
    return replace(
        llama,
        kv_channels=128,
        add_qkv_bias=biases,
        rotary_percent=0.5,
        norm_placement="sandwich" if sandwich else "pre",
    )


_PHI3_SOURCE = (
    "Abdin et al., Phi-3 Technical Report, 2024, section 2; config.json of "
    "microsoft/Phi-3"
)
_OLMO2_SOURCE = (
    "OLMo Team, 2 OLMo 2 Furious, 2025, table 3; config.json of allenai/OLMo-2"
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "mistral-7b": PublishedModel(
            with_windows(llama_spec(32, 4096, 14336, 32, 8, 32000, 8192), 4096),
            "Jiang et al., Mistral 7B, 2023, table 1; a window in every block",
        ),
        "deepseek-llm-7b": PublishedModel(
            llama_spec(30, 4096, 11008, 32, 32, 102_400, 4096),
            "DeepSeek-AI, DeepSeek LLM, 2024, table 2; config.json of "
            "deepseek-ai/deepseek-llm-7b-base",
        ),
        "mistral-nemo-12b": PublishedModel(
            replace(llama_spec(40, 5120, 14336, 32, 8, 131_072, 8192), kv_channels=128),
            "Mistral AI, Mistral NeMo, 2024: config.json of "
            "mistralai/Mistral-Nemo-Base-2407; its sequences of up to 131,072 tokens "
            "are set to 8,192",
        ),
        "mistral-small-24b": PublishedModel(
            replace(llama_spec(40, 5120, 32768, 32, 8, 131_072, 8192), kv_channels=128),
            "Mistral AI, Mistral Small 3, 2025: config.json of "
            "mistralai/Mistral-Small-24B-Base-2501; its sequences of up to 32,768 "
            "tokens are set to 8,192",
        ),
        "mistral-large-123b": PublishedModel(
            llama_spec(88, 12288, 28672, 96, 8, 32_768, 8192),
            "Mistral AI, Mistral Large 2, 2024: config.json of "
            "mistralai/Mistral-Large-Instruct-2407; its sequences of up to 131,072 "
            "tokens are set to 8,192",
        ),
        "llama3.2-1b": PublishedModel(
            replace(
                llama_spec(16, 2048, 8192, 32, 8, 128_256, 8192),
                tie_word_embeddings=True,
            ),
            "Meta, Llama 3.2, 2024: config.json of meta-llama/Llama-3.2-1B; sequences "
            "as those of Llama 3",
        ),
        "llama3.2-3b": PublishedModel(
            replace(
                llama_spec(28, 3072, 8192, 24, 8, 128_256, 8192),
                tie_word_embeddings=True,
            ),
            "Meta, Llama 3.2, 2024: config.json of meta-llama/Llama-3.2-3B; sequences "
            "as those of Llama 3",
        ),
        "yi-34b": PublishedModel(
            llama_spec(60, 7168, 20480, 56, 8, 64_000, 4096),
            "01.AI, Yi: Open Foundation Models, 2024, table 3",
        ),
        "phi3-mini": PublishedModel(
            llama_spec(32, 3072, 8192, 32, 32, 32_064, 4096), _PHI3_SOURCE
        ),
        "phi3-medium": PublishedModel(
            llama_spec(40, 5120, 17920, 40, 10, 32_064, 4096), _PHI3_SOURCE
        ),
        "phi4": PublishedModel(
            llama_spec(40, 5120, 17920, 40, 10, 100_352, 4096),
            "Abdin et al., Phi-4 Technical Report, 2024, section 3; config.json of "
            "microsoft/phi-4",
        ),
        "olmo-1b": PublishedModel(
            _olmo(llama_spec(16, 2048, 8192, 16, 16, 50_304, 2048), tied=True),
            "Groeneveld et al., OLMo, 2024, table 1; config.json of allenai/OLMo-1B-hf",
        ),
        "olmo-7b": PublishedModel(
            _olmo(llama_spec(32, 4096, 11008, 32, 32, 50_304, 2048)),
            "Groeneveld et al., OLMo, 2024, table 1; config.json of allenai/OLMo-7B-hf",
        ),
        "olmo2-1b": PublishedModel(_olmo2(16, 2048, 8192, 16, 16), _OLMO2_SOURCE),
        "olmo2-7b": PublishedModel(_olmo2(32, 4096, 11008, 32, 32), _OLMO2_SOURCE),
        "olmo2-13b": PublishedModel(_olmo2(40, 5120, 13824, 40, 40), _OLMO2_SOURCE),
        "olmo2-32b": PublishedModel(_olmo2(64, 5120, 27648, 40, 8), _OLMO2_SOURCE),
        "glm4-9b": PublishedModel(
            _glm(
                llama_spec(40, 4096, 13696, 32, 2, 151_552, 8192),
                sandwich=False,
                biases=True,
            ),
            "GLM Team, ChatGLM: a Family of Large Language Models, 2024; config.json "
            "of THUDM/glm-4-9b-hf",
        ),
        "glm4-9b-0414": PublishedModel(
            _glm(
                llama_spec(40, 4096, 13696, 32, 2, 151_552, 8192),
                sandwich=True,
                biases=True,
            ),
            "GLM Team, GLM-4-0414, 2025: config.json of THUDM/GLM-4-9B-0414; its "
            "sequences of up to 32,768 tokens are set to 8,192",
        ),
        "glm4-32b-0414": PublishedModel(
            _glm(
                llama_spec(61, 6144, 23040, 48, 2, 151_552, 8192),
                sandwich=True,
                biases=False,
            ),
            "GLM Team, GLM-4-0414, 2025: config.json of THUDM/GLM-4-32B-0414; its "
            "sequences of up to 32,768 tokens are set to 8,192",
        ),
        "stablelm2-1.6b": PublishedModel(
            replace(
                llama_spec(24, 2048, 5632, 32, 32, 100_352, 4096),
                normalization="layernorm",
                add_qkv_bias=True,
                rotary_percent=0.25,
            ),
            "Bellagente et al., Stable LM 2 1.6B Technical Report, 2024, table 2",
        ),
        "command-r-35b": PublishedModel(
            replace(
                llama_spec(40, 8192, 22528, 64, 64, 256_000, 8192),
                normalization="layernorm",
                layernorm_bias=False,
                parallel_residual=True,
                norm_placement="shared",
                tie_word_embeddings=True,
            ),
            "Cohere, Command R, 2024: config.json of CohereForAI/c4ai-command-r-v01; "
            "its sequences of up to 131,072 tokens are set to 8,192",
        ),
    }
)
"""Name -> architecture and source."""
