"""A model type of Hugging Face that no table reads: transformers' module of it, traced.

Where transformers is installed, its own class for the type is built from the
``config.json`` on the meta device and traced as a user's own module is. Nothing is
downloaded, and no code that a file names is run. Parameters are those of the class, to
the unit, and so are the products of a forward pass.

What a trace cannot tell apart: which tokens a mask hides. Attention is causal or not as
transformers' module says (``is_causal``); windows and chunks count as the whole
sequence, which a notice says. Dropout is not seen, as models are traced without it.
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from estimators.models.config_file import MAX_FILE, read_config
from estimators.models.huggingface import may_be_traced, parts_left_out
from estimators.tracing.graph import LayerGraph
from estimators.tracing.user_module import TracedModule
from topologies.errors import InputError, has_packages
from topologies.input_file import read_file
from topologies.notices import notices

if TYPE_CHECKING:
    from torch import Tensor, nn

_ATTENTION = "nestsim_traced"
"""Name under which transformers finds the attention that is traced."""

_OF_WEIGHTS = ("auto_map", "dtype", "quantization_config", "torch_dtype")
"""Keys that say how weights are kept, or what code reads them."""

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length")


class _Trace(NamedTuple):
    """What is known of a type."""

    graph: LayerGraph
    """The model as a chain of layers."""

    sentences: tuple[str, ...]
    """What users should know of it."""


def trace_hub_model(
    file: Path, *, sequence_length: int | None = None, num_layers: int | None = None
) -> TracedModule | None:
    """Trace transformers' module of a type that no table reads.

    Parameters
    ----------
    file
        A ``config.json``.
    sequence_length
        Tokens of a training sequence; None for the longest that the file allows.
    num_layers
        Blocks in place of the file's; None for these.

    Returns
    -------
    TracedModule or None
        None if a table reads the type or says what keeps it from being traced,
        transformers has no causal language model of it, or is not installed.

    Raises
    ------
    InputError
        If the module cannot be built or traced, or is no chain of blocks.
    """
    config = read_config(file)
    if not (may_be_traced(config) and _is_known(config.find("model_type"))):
        return None
    held = config.find("text_config")
    values = dict(held if isinstance(held, dict) else config.values)
    model_type = values.get("model_type")
    if not _name(model_type):
        return None
    for key in ("model_type", *_OF_WEIGHTS):
        values.pop(key, None)
    if num_layers is not None:
        values["num_hidden_layers"] = num_layers
    trace = _traced(model_type, json.dumps(values, sort_keys=True), sequence_length)
    for sentence in filter(None, (*trace.sentences, parts_left_out(file))):
        notices().remark(f"note: {file.name}: {sentence}")
    text = read_file(file, expected="a config.json", most_bytes=MAX_FILE)
    return TracedModule(trace.graph, hashlib.sha256(text).hexdigest())


def _is_known(model_type: Any) -> bool:
    """Return whether transformers and torch are installed, and have a type."""
    if not has_packages("transformers", "torch"):
        return False
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    return isinstance(model_type, str) and model_type in auto.CONFIG_MAPPING_NAMES


def _name(model_type: Any) -> str:
    """Return transformers' causal language model of a type; "" if there is none."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    names: Mapping[str, Any] = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    name = names.get(model_type) if isinstance(model_type, str) else None
    return name if isinstance(name, str) else ""


@lru_cache(maxsize=16)
def _traced(model_type: str, text: str, sequence_length: int | None) -> _Trace:
    """Return what is traced of a type, whose other values are a text in JSON."""
    from estimators.tracing.module_graph import module_graph
    from estimators.tracing.user_nodes import trace_shapes

    hub: Any = importlib.import_module("transformers")
    windows: set[int] = set()
    name = _name(model_type)
    with _running(f"transformers' {name} cannot be built"), _quiet(hub):
        config = hub.AutoConfig.for_model(model_type, **json.loads(text))
        _refuse_encoder(config)
        length = sequence_length or _longest(config)
        model = _of_tokens(_built(hub, config, windows))
    with _running(f"transformers' {name} cannot be traced"), _quiet(hub):
        trace = trace_shapes(model, length, labels=False)
        graph, whole = module_graph(trace, length)
    sentences = [
        f'no table reads the type "{model_type}": transformers {hub.__version__} has '
        f"its module ({name}), which is traced, without dropout"
    ]
    if other := _others_named(config, name):
        sentences.append(f"what {other} has beside it is left out")
    if any(window < length for window in windows):
        sentences.append("windows of attention are counted as the whole sequence")
    if graph.spec.whole_because:
        because = graph.spec.whole_because
        sentences.append(f"tensor parallelism does not split it: {because}")
    elif whole:
        sentences.append(
            f"every tensor-parallel rank computes {len(whole)} linear layers whole"
        )
    return _Trace(graph, tuple(sentences))


def _refuse_encoder(config: Any) -> None:
    """Refuse a model with an encoder: its class for causal language has none."""
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            "an encoder with a decoder is not traced",
            where="is_encoder_decoder",
            got=True,
            expected="a model of one chain of blocks",
        )


def _others_named(config: Any, name: str) -> str:
    """Return the first architecture that a file names, if that is another; else ""."""
    named = getattr(config, "architectures", None)
    first = named[0] if isinstance(named, list) and named else name
    return str(first) if first != name else ""


def _longest(config: Any) -> int:
    for key in _LENGTHS:
        length = getattr(config, key, None)
        if isinstance(length, int) and length > 0:
            return length
    raise InputError(
        "the file does not say how long sequences are",
        expected="model.sequence_length, e.g. 4096",
    )


def _built(hub: Any, config: Any, windows: set[int]) -> "nn.Module":
    """Return a model on the meta device; its windows are noted as it is traced."""
    import torch

    attend, build = _attention(windows), hub.AutoModelForCausalLM.from_config
    hub.AttentionInterface.register(_ATTENTION, attend)
    hub.AttentionMaskInterface.register(_ATTENTION, lambda *_, **__: None)
    with torch.device("meta"):
        try:
            model = build(config, attn_implementation=_ATTENTION)
        except (KeyError, ValueError):  # types that write their attention out
            model = build(config, attn_implementation="eager")
    built: nn.Module = model.eval()
    return built


def _attention(windows: set[int]) -> Callable[..., tuple["Tensor", None]]:
    """Return attention as one kernel, under the signature of transformers."""
    from torch.nn import functional

    def attend(
        module: "nn.Module",
        query: "Tensor",
        key: "Tensor",
        value: "Tensor",
        _: object,
        scaling: float | None = None,
        **options: Any,
    ) -> "tuple[Tensor, None]":
        if window := options.get("sliding_window"):
            windows.add(window)
        causal = options.get("is_causal")
        if causal is None:
            causal = getattr(module, "is_causal", True)
        context = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=bool(causal),
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return context.transpose(1, 2), None

    return attend


def _of_tokens(model: "nn.Module") -> "nn.Module":
    """Return a module from token ids to logits.

    A mask of all pairs of tokens keeps transformers from making one, which depends on
    numbers.
    """
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any) -> Any:
            length = tokens.shape[1]
            mask = torch.zeros(1, 1, length, length, device="meta")
            return self.model(tokens, attention_mask=mask, use_cache=False).logits

    return Logits()


@contextmanager
def _quiet(hub: Any) -> Iterator[None]:
    """Let transformers say nothing of kernels that are not installed."""
    logging = hub.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _running(problem: str) -> Iterator[None]:
    """Run code of transformers, and say what went wrong with it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever a class that nobody here has read raises
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            problem,
            got=message,
            expected="a module that torch.fx can trace with tensors that have shapes "
            "and no numbers",
        ) from None
