"""Read an architecture from a local Hugging Face ``config.json``.

Nothing is downloaded and nothing of the transformers library is needed. Keys that do
not change sizes or work (initialisation, token ids, rotary scaling) are ignored; keys
that would, and that the modules here cannot express, are refused.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from estimators.models.library import with_sequence_length
from estimators.models.spec import TransformerSpec
from topologies.errors import InputError, Problems
from topologies.input_file import file_in, read_json

MAX_FILE = 1_000_000
"""Longest file that is read as a configuration, which has some kB [byte]."""

_WHOLE = "a positive whole number, e.g. 32"

_EXPECTED = "a config.json of the Hugging Face hub"


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
        config = _read(file)
        model_type = config.text("model_type", None)
        if model_type not in _READERS:
            raise InputError(
                "model type is not supported",
                where="model_type",
                got=model_type,
                expected=" or ".join(f'"{name}"' for name in _READERS),
            )
        spec = config.read(_READERS[model_type])
        if sequence_length is not None:
            spec = _limit_window(config, with_sequence_length(spec, sequence_length))
    except InputError as error:
        raise error.at(str(file), separator=": ") from None
    return spec


class _Config:
    """A parsed file whose look-ups explain themselves."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems = Problems()

    def _value(self, key: str, default: Any, expected: str) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise InputError("key is missing", where=key, expected=expected)
        return default

    def read(self, reader: "Callable[[_Config], TransformerSpec]") -> TransformerSpec:
        """Return what a reader makes of the file, or raise all that is wrong with it.

        A wrong value is noted and stands for 1, nothing or no; what else that makes
        wrong is not told.
        """
        try:
            spec = reader(self)
        except InputError:
            self.problems.refuse()
            raise
        self.problems.refuse()
        return spec

    def integer(self, key: str, default: int | None = None) -> int:
        with self.problems.noted():
            value = self._value(key, default, _WHOLE)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    "not a positive whole number",
                    where=key,
                    got=value,
                    expected=_WHOLE,
                )
            return value
        return 1

    def number(self, key: str, default: float) -> float:
        with self.problems.noted():
            value = self._value(key, default, "a number, e.g. 0.1")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(
                    "not a number", where=key, got=value, expected="a number, e.g. 0.1"
                )
            return float(value)
        return 0.0

    def flag(self, key: str, *, default: bool) -> bool:
        with self.problems.noted():
            value = self._value(key, default, "true or false")
            if not isinstance(value, bool):
                raise InputError(
                    "not a truth value", where=key, got=value, expected="true or false"
                )
            return value
        return default

    def text(self, key: str, default: str | None) -> str:
        expected = 'a text in quotes, e.g. "llama"'
        value = self._value(key, default, expected)
        if not isinstance(value, str):
            raise InputError("not a text", where=key, got=value, expected=expected)
        return value

    def require(self, key: str, *, default: Any, allowed: tuple[Any, ...]) -> None:
        """Refuse a key that changes the model in a way that is not modelled."""
        value = self.values.get(key, default)
        with self.problems.noted():
            if value not in allowed:
                raise InputError(
                    "value is not supported",
                    where=key,
                    got=value,
                    expected=" or ".join(json.dumps(choice) for choice in allowed),
                )


def _read(file: Path) -> _Config:
    values = read_json(file, expected=_EXPECTED, most_bytes=MAX_FILE)
    if not isinstance(values, dict):
        raise InputError(
            "not a JSON object",
            got=type(values).__name__,
            expected='an object, e.g. {"model_type": "llama", ...}',
        )
    return _Config(values)


_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def _llama(config: _Config, *, default_groups: int | None = None) -> TransformerSpec:
    """Read the Llama and Mistral families."""
    config.require("hidden_act", default="silu", allowed=("silu", "swish"))
    bias = config.flag("attention_bias", default=False)
    config.require("mlp_bias", default=False, allowed=(bias,))
    length = config.integer("max_position_embeddings")
    heads = config.integer("num_attention_heads")
    return TransformerSpec(
        family="llama",
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=config.integer("hidden_size"),
        ffn_hidden_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_query_groups=config.integer("num_key_value_heads", default_groups or heads),
        kv_channels=config.integer("head_dim") if config.values.get("head_dim") else 0,
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        max_position_embeddings=length,
        gated_linear_unit=True,
        normalization="rmsnorm",
        position_embedding_type="rope",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        add_bias_linear=bias,
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def _mistral(config: _Config) -> TransformerSpec:
    """Read Mistral; without a length, sequences end where its window does."""
    spec = _llama(config, default_groups=8)  # the default of MistralConfig
    window = config.values.get("sliding_window")
    if window is not None:
        window = config.integer("sliding_window")
        spec = with_sequence_length(spec, min(window, spec.sequence_length))
    return spec


def _mixtral(config: _Config) -> TransformerSpec:
    dense = _mistral(config)
    return replace(
        dense,
        family="mixtral",
        num_moe_experts=config.integer("num_local_experts"),
        moe_router_topk=config.integer("num_experts_per_tok"),
    )


def _gpt2(config: _Config) -> TransformerSpec:
    config.require("activation_function", default="gelu_new", allowed=_GELUS)
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


def _gpt_neox(config: _Config) -> TransformerSpec:
    """Read GPT-NeoX; its parallel residual branches cost what serial ones do."""
    config.require("hidden_act", default="gelu", allowed=_GELUS)
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
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        hidden_dropout=config.number("hidden_dropout", 0.0),
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def _bert(config: _Config) -> TransformerSpec:
    config.require("hidden_act", default="gelu", allowed=_GELUS)
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


_READERS: Mapping[str, Callable[[_Config], TransformerSpec]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "mixtral": _mixtral,
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "bert": _bert,
    }
)


def _limit_window(config: _Config, spec: TransformerSpec) -> TransformerSpec:
    """Refuse sequences that a sliding window would cut: full attention is built."""
    window = config.values.get("sliding_window")
    windowed = config.values["model_type"] in {"mistral", "mixtral"}
    if windowed and window is not None and spec.sequence_length > window:
        raise InputError(
            "sliding-window attention is not modelled beyond its window",
            where="sliding_window",
            got=window,
            expected=f"null, or at least the sequence length {spec.sequence_length}",
        )
    return spec
