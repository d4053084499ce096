"""Read an architecture from a local Hugging Face ``config.json``.

Nothing is downloaded and nothing of the transformers library is needed. Keys that do
not change sizes or work (initialisation, token ids, rotary scaling) are ignored; keys
that would, and that the modules here cannot express, are refused.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from estimators.models.huggingface.bert import read_bert
from estimators.models.huggingface.config_file import ConfigFile, read_config
from estimators.models.huggingface.experts import (
    read_deepseek_v2,
    read_deepseek_v3,
    read_glm4_moe,
    read_gpt_oss,
    read_llama4,
    read_llama4_text,
    read_qwen2_moe,
    read_qwen3_moe,
)
from estimators.models.huggingface.gemma import (
    read_gemma,
    read_gemma2,
    read_gemma3,
    read_gemma3_text,
)
from estimators.models.huggingface.gpt import read_gpt2, read_gpt_neox
from estimators.models.huggingface.gpt_like import (
    read_bloom,
    read_falcon,
    read_gpt_bigcode,
    read_mpt,
    read_nemotron,
    read_opt,
    read_starcoder2,
)
from estimators.models.huggingface.kinship import nearest_type
from estimators.models.huggingface.llama import read_llama, read_mistral, read_mixtral
from estimators.models.huggingface.llama_like import (
    read_cohere,
    read_glm,
    read_glm4,
    read_olmo,
    read_olmo2,
    read_olmo3,
    read_phi3,
    read_qwen2,
    read_qwen3,
    read_stablelm,
)
from estimators.models.huggingface.mamba import read_mamba2, read_nemotron_h
from estimators.models.huggingface.t5 import read_t5
from estimators.models.huggingface.vit import left_out, read_vit
from estimators.models.spec import TransformerSpec, with_sequence_length
from topologies.errors import InputError
from topologies.input_file import file_in
from topologies.notices import notices

READERS: Mapping[str, Callable[[ConfigFile], TransformerSpec]] = MappingProxyType(
    {
        "llama": read_llama,
        "mistral": read_mistral,
        "mixtral": read_mixtral,
        "deepseek_v2": read_deepseek_v2,
        "deepseek_v3": read_deepseek_v3,
        "kimi_k2": read_deepseek_v3,
        "qwen2_moe": read_qwen2_moe,
        "qwen3_moe": read_qwen3_moe,
        "gpt_oss": read_gpt_oss,
        "glm4_moe": read_glm4_moe,
        "llama4": read_llama4,
        "llama4_text": read_llama4_text,
        "qwen2": read_qwen2,
        "qwen3": read_qwen3,
        "gemma": read_gemma,
        "gemma2": read_gemma2,
        "gemma3": read_gemma3,
        "gemma3_text": read_gemma3_text,
        "phi3": read_phi3,
        "olmo": read_olmo,
        "olmo2": read_olmo2,
        "olmo3": read_olmo3,
        "glm": read_glm,
        "glm4": read_glm4,
        "stablelm": read_stablelm,
        "cohere": read_cohere,
        "gpt2": read_gpt2,
        "gpt_neox": read_gpt_neox,
        "gpt_bigcode": read_gpt_bigcode,
        "bloom": read_bloom,
        "falcon": read_falcon,
        "mpt": read_mpt,
        "opt": read_opt,
        "starcoder2": read_starcoder2,
        "nemotron": read_nemotron,
        "bert": read_bert,
        "nemotron_h": read_nemotron_h,
        "mamba2": read_mamba2,
        "t5": read_t5,
        "mt5": read_t5,
        "vit": read_vit,
    }
)
"""``model_type`` -> what reads it."""


def load_huggingface(
    path: Path, *, sequence_length: int | None = None
) -> TransformerSpec:
    """Read a ``config.json``.

    Parameters
    ----------
    path
        The file, or the folder that holds it.
    sequence_length
        Tokens per training sequence; by default the longest that the configuration
        allows.

    Raises
    ------
    InputError
        If the file cannot be read or is not JSON, the ``model_type`` is not known, or
        a key is missing or has an unexpected value. The message names file and key.
    """
    file = file_in(path, "config.json")
    try:
        config = read_config(file)
        model_type = config.text("model_type", None)
        if model_type not in READERS:
            raise InputError(
                "model type is not supported",
                where="model_type",
                got=model_type,
                expected="one of " + ", ".join(READERS),
                hint=_hint(model_type),
            )
        spec = config.read(READERS[model_type])
        if sentence := left_out(config):
            notices().remark(f"note: {file.name}: {sentence}")
        if sequence_length is not None:
            spec = with_sequence_length(spec, sequence_length)
    except InputError as error:
        raise error.at(str(file), separator=": ") from None
    return spec


def parts_left_out(path: Path) -> str:
    """Return what of a ``config.json`` is left out, as a sentence; else nothing.

    Raises
    ------
    InputError
        If the file cannot be read or is not JSON.
    """
    return left_out(read_config(file_in(path, "config.json")))


def _hint(model_type: str) -> str:
    """Say what comes nearest to a type that is not read."""
    near = nearest_type(model_type, READERS)
    start = f'the nearest that is read is "{near}": ' if near else ""
    return f"{start}spell the architecture out under [model], with its family and sizes"
