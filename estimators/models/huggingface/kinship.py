"""Which type that is read comes nearest to one that is not."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

_KIN: Mapping[str, str] = MappingProxyType(
    {
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
        "phi": "gpt_neox",
        "phimoe": "mixtral",
        "dbrx": "mixtral",
        "RefinedWeb": "falcon",
        "RefinedWebModel": "falcon",
        "roberta": "bert",
        "xlm-roberta": "bert",
        "smollm3": "llama",
        "xglm": "opt",
        "chatglm": "glm",
        "qwen": "qwen2",
        "seed_oss": "qwen2",
    }
)
"""Type -> the type whose modules are nearly the same: with its sizes, a model of that
type has as many parameters, within 2 %."""


def nearest_type(model_type: str, known: Iterable[str]) -> str:
    """Return the known type that is nearly another, or an empty text if none is.

    By its modules, or if its name is written otherwise. Names that are alike say
    nothing: a falcon_h1 with the modules of a falcon lacks a third of its parameters.
    """
    names = tuple(known)
    if _KIN.get(model_type) in names:
        return _KIN[model_type]
    return next((one for one in names if _plain(one) == _plain(model_type)), "")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
