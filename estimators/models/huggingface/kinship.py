"""Which type that is read comes nearest to one that is not."""

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

_KIN: Mapping[str, str] = MappingProxyType(
    {
        "arcee": "llama",
        "baichuan": "llama",
        "code_llama": "llama",
        "cohere2": "cohere",
        "codegen": "gpt_neox",
        "exaone": "llama",
        "exaone4": "olmo2",
        "gpt_neo": "gpt2",
        "gptj": "gpt_neox",
        "granite": "llama",
        "internlm2": "llama",
        "internlm3": "llama",
        "ministral": "mistral",
        "ministral3": "mistral",
        "mistral3": "mistral",
        "persimmon": "stablelm",
        "phi": "gpt_neox",
        "phimoe": "mixtral",
        "dbrx": "mixtral",
        "gemma3n": "gemma3_text",
        "gemma4": "gemma3_text",
        "RefinedWeb": "falcon",
        "RefinedWebModel": "falcon",
        "roberta": "bert",
        "xlm-roberta": "bert",
        "electra": "bert",
        "deberta-v2": "bert",
        "modernbert": "bert",
        "smollm3": "llama",
        "xglm": "opt",
        "chatglm": "glm",
        "qwen": "qwen2",
        "qwen2_vl": "qwen2",
        "qwen2_5_vl": "qwen2",
        "qwen3_vl": "qwen3",
        "seed_oss": "qwen2",
    }
)
"""Type -> the type whose modules differ least."""


def nearest_type(model_type: str, known: Iterable[str]) -> str:
    """Return the known type that comes nearest to another, or an empty text.

    By its modules where they are known here, by its name otherwise.
    """
    names = tuple(known)
    if _KIN.get(model_type) in names:
        return _KIN[model_type]
    return next(iter(difflib.get_close_matches(model_type, names, n=1)), "")
