"""Options of Megatron-LM read into the tables of a scenario.

Single options are read by `options.TABLE`; here is what takes several. Defaults are
Megatron-LM's (`options`), and no assumptions; what is one is noted with the options.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from estimators.dispatch import DISPATCHERS
from estimators.layers.saved_activations import ATTENTION_CORE, RECOMPUTE_MODULES
from estimators.models.limits import CONVOLUTION_WIDTH, MAX_LAYERS
from estimators.software import GRAPH_MODULES
from estimators.training import TrainingSpec
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.options import (
    GivenOptions,
    hybrid_letters,
    need,
    read_list,
    write_list,
)
from nestsim.launch.formats.megatron.parallel import (
    count_replicas,
    num_blocks,
    read_plan,
)
from nestsim.launch.formats.megatron.settings import script_of
from nestsim.launch.formats.usual import decoder_family, gated_width
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import Settings
from nestsim.scenario.base import AnyTable, settings
from nestsim.scenario.model import SpelledOutModel
from planner.frameworks.framework import PRESETS
from topologies.input_file import Value

_LEGACY = ("DDP-impl", "checkpoint-activations", "activations-checkpoint-method")
_MOST_LETTERS = 100
TOKENIZERS: Mapping[str, int] = known.TABLE.facts["tokenizers"]
"""Tokenizer, by type or by name -> entries of its vocabulary."""

DEFAULT_VOCABULARY: int = known.TABLE.facts["vocabulary"]
"""Entries that are assumed where nothing is known of the tokenizer."""

_FLASH_ANYWAY = frozenset({"megatron-core", "nemo"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a job is started."""

    script: str = known.GPT_SCRIPT
    """The program, without its folder."""

    num_devices: int | None = None
    """Devices of the job; None if nothing says how many."""

    vocab_size: int | None = None
    """Entries of the vocabulary that the user gave beside the script."""

    preset: str = ""
    """The framework's preset; empty for the one that the options tell."""

    model: Mapping[str, Any] = field(default_factory=dict)
    """Settings of [model] that no option stands for."""

    @classmethod
    def of(cls, job: LaunchJob) -> "Launched":
        """Return how a job is started; its vocabulary is that of no tokenizer."""
        return cls(
            script=script_of(job.model),
            num_devices=job.plan.parallel.num_devices,
            vocab_size=job.model.vocab_size,
        )


def read_model(given: GivenOptions, launched: Launched) -> Settings:
    """Return the table ``model`` alone.

    Raises
    ------
    InputError
        As `read_tables`.
    """
    model = _model(given, launched, _preset(given, launched))
    return _said({**model, **launched.model}, SpelledOutModel)


def read_tables(given: GivenOptions, launched: Launched) -> dict[str, Settings]:
    """Return the tables ``model``, ``training``, ``software`` and ``plan``.

    Raises
    ------
    InputError
        If an option has a value that it cannot have, or one is missing.
    """
    preset = _preset(given, launched)
    model = read_model(given, launched)
    return {
        "model": model,
        "training": _said(_training(given, launched), TrainingSpec),
        "software": _software(given, preset),
        "plan": read_plan(given, launched.num_devices, model),
    }


def _said(table: Mapping[str, Any], form: AnyTable) -> Settings:
    """Return a table without what the scenario has where it is silent."""
    known = settings(form)
    return {
        name: value
        for name, value in table.items()
        if name not in known
        or known[name].is_required()
        or known[name].default != value
    }


def _preset(given: GivenOptions, launched: Launched) -> str:
    """Return the framework: Megatron Core, the older Megatron-LM, or with DeepSpeed."""
    if launched.preset:
        return launched.preset
    if given.any_of("deepspeed", "deepspeed-activation-checkpointing"):
        return "deepspeed"
    local = given.word("transformer-impl", "transformer_engine") == "local"
    if local or given.any_of("use-legacy-models", *_LEGACY):
        return "megatron-lm"
    return "megatron-core"


def _model(given: GivenOptions, launched: Launched, preset: str) -> Settings:
    families = {script: family for family, script in known.SCRIPTS.items()}
    special = families.get(launched.script)
    if special == "t5":
        return _encoder_decoder(given, launched, preset)
    if special == "vit":
        return _vision(given, preset)
    model: Settings = given.part("architecture")
    need(model, "num-layers", "hidden-size", "num-attention-heads", "seq-length")
    model["vocab_size"] = read_vocabulary(given, launched)
    model |= _activation(given, model)
    model |= _positions(given, model)
    model |= _groups(given)
    model |= _windows(given)
    model |= _experts(given)
    model |= _latent(given, model)
    model |= _variant(given)
    model["attention"] = _attention(given, preset)
    if special == "mamba":
        model |= _mamba(given, num_blocks(model))
    family = special or decoder_family(model)
    if family == "bert":
        model = _bert(given, model)
    return {"family": family, **model}


def read_vocabulary(given: GivenOptions, launched: Launched) -> int:
    """Return the entries of the vocabulary, as the options have them or as assumed."""
    for name in ("vocab-size", "pad-vocab-size-to", "padded-vocab-size"):
        size = given.whole(name)
        if size:
            # Its one token beside those that the option counts ends documents.
            null = name == "vocab-size" and _makes_up_tokens(given)
            return size + null
    if launched.vocab_size is not None:
        return launched.vocab_size
    names = (
        given.given_words("tokenizer-model") or ("",),
        given.given_words("tokenizer-name-or-path") or ("",),
        given.given_words("tokenizer-type") or ("",),
    )
    for name in (word for values in names for word in values[:1]):
        if name in TOKENIZERS:
            given.assume(f"The tokenizer {name} has {TOKENIZERS[name]:,} entries.")
            return TOKENIZERS[name]
    by_script = {known.SCRIPTS["bert"]: 30_522, known.SCRIPTS["t5"]: 28_996}
    size = by_script.get(launched.script, DEFAULT_VOCABULARY)
    given.assume(
        f"The vocabulary has {size:,} entries (--set VOCAB_SIZE=N for others)."
    )
    return size


def _makes_up_tokens(given: GivenOptions) -> bool:
    return given.values.get("tokenizer-type") == ("NullTokenizer",)


def _activation(given: GivenOptions, model: Mapping[str, Any]) -> Settings:
    if given.any_of("quick-geglu"):
        given.assume("--quick-geglu: The nonlinearity is a GELU.")
        return {"gated_linear_unit": True, "activation_func": "gelu"}
    if given.flag("swiglu"):
        table: Settings = {"gated_linear_unit": True}
        if "ffn_hidden_size" not in model:
            table["ffn_hidden_size"] = gated_width(model["hidden_size"])
        return table
    if given.flag("squared-relu"):
        return {"gated_linear_unit": False, "activation_func": "squared_relu"}
    return {"gated_linear_unit": False}


def _positions(given: GivenOptions, model: Mapping[str, Any]) -> Settings:
    kind = model["position_embedding_type"]
    if given.any_of("use-rotary-position-embeddings"):
        kind = "rope"
    return {"position_embedding_type": kind}


def _groups(given: GivenOptions) -> Settings:
    groups = given.whole("num-query-groups")
    if not given.flag("group-query-attention"):
        return {}
    return {"num_query_groups": groups or 1}


def _windows(given: GivenOptions) -> Settings:
    word = given.word("window-size")
    if not word:
        return {}
    reach = word.strip("()[]").split(",")[0]
    size = given.whole_number("window-size", reach.strip()) + 1
    freq = given.word("window-attn-skip-freq")
    if not freq:
        return {"window_size": size}
    where = "--window-attn-skip-freq"
    marks = read_list(freq, where)
    if isinstance(marks, list):
        full = [index for index, mark in enumerate(marks, start=1) if not mark]
        every = full[0] if full else 0
        rest = [n for n in range(1, len(marks) + 1) if every and n % every == 0]
        if full != rest:
            raise Value(freq, where).error(
                "has no regular windows",
                "a block without a window after each of N - 1 with one",
            )
        marks = every
    return {"window_size": size, "window_attn_skip_freq": marks}


def _experts(given: GivenOptions) -> Settings:
    if not given.whole("num-experts"):
        return {}
    table: Settings = given.part("experts")
    # Below 0 nothing is dropped (core/transformer/transformer_config.py).
    capacity = "moe_expert_capacity_factor"
    table[capacity] = max(0.0, table[capacity])
    freq = given.word("moe-layer-freq")
    if freq:
        marks = read_list(freq, "--moe-layer-freq")
        short = write_list(marks) if isinstance(marks, list) else ""
        table["moe_layer_freq"] = short if 0 < len(short) < _MOST_LETTERS else marks
    return table


def _latent(given: GivenOptions, model: Mapping[str, Any]) -> Settings:
    if not given.flag("multi-latent-attention"):
        return {}
    if model.get("qk_layernorm"):
        given.assume("Norms of latent attention are those of its latents.")
    return {**given.part("latent"), "qk_layernorm": False}


def _variant(given: GivenOptions) -> Settings:
    """Return linear attention, or attention with an indexer."""
    name = "experimental-attention-variant"
    variant = given.word(name)
    if not variant:
        return {}
    if variant == "dsa":
        return given.part("indexer")
    reach = given.whole("linear-conv-kernel-dim") or CONVOLUTION_WIDTH
    if variant not in {"gated_delta_net", "gdn"} or reach != CONVOLUTION_WIDTH:
        raise Value(variant, f"--{name}").error(
            "is no attention that is modelled",
            '"gated_delta_net" with --linear-conv-kernel-dim 4, or "dsa"',
        )
    where = "linear-attention-freq"
    freq = read_list(given.word(where) or "1", f"--{where}")
    return {**given.part("linear"), "linear_attention_freq": freq}


def _mamba(given: GivenOptions, num_layers: int) -> Settings:
    table: Settings = given.part("mamba")
    pattern = given.word("hybrid-override-pattern")
    shares = [
        given.real(f"hybrid-{name}-ratio") or 0.0 for name in ("attention", "mlp")
    ]
    if min(shares) < 0.0 or not shares[0] + shares[1] <= 1.0:
        raise Value(f"{shares[0]} and {shares[1]}", "--hybrid-attention-ratio").error(
            "are no shares of the blocks", "numbers of at least 0, together at most 1"
        )
    if not pattern and any(shares) and num_layers <= MAX_LAYERS:
        pattern = hybrid_letters(num_layers, *shares)
    if pattern:
        table["hybrid_override_pattern"] = pattern
    if not given.any_of("squared-relu", "swiglu"):
        # The family's published models have another one.
        table["activation_func"] = "gelu"
    return table


def _attention(given: GivenOptions, preset: str) -> str:
    backend = given.word("attention-backend", "auto")
    if backend in ("unfused", "local"):
        return "plain"
    named = backend in ("flash", "fused")
    flash = given.any_of(*known.FLASH)
    return "flash" if named or flash or preset in _FLASH_ANYWAY else "plain"


def _bert(given: GivenOptions, model: Settings) -> Settings:
    if given.any_of("bert-no-binary-head"):
        given.assume("BERT has its head for the next sentence.")
    left_out = ("mtp_num_layers", "embedding_layernorm", "softmax_type")
    return {name: value for name, value in model.items() if name not in left_out}


def _encoder_decoder(given: GivenOptions, launched: Launched, preset: str) -> Settings:
    model = given.part("architecture")
    sizes = ("encoder-num-layers", "hidden-size", "num-attention-heads", "seq-length")
    need(model, *sizes)
    if model["position_embedding_type"] != "relative" or model["add_bias_linear"]:
        given.assume(
            "The T5 has its published RMSNorm, relative positions and no biases."
        )
    gated = given.any_of("swiglu", "quick-geglu")
    table = {
        "family": "t5",
        "encoder_num_layers": model["num_layers"],
        "decoder_num_layers": given.whole("decoder-num-layers"),
        "sequence_length": model["sequence_length"],
        "decoder_sequence_length": given.whole("decoder-seq-length"),
        "vocab_size": read_vocabulary(given, launched),
        "gated_linear_unit": gated,
        "attention": _attention(given, preset),
    }
    widths = ("hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels")
    alike = (*widths, "tie_word_embeddings", "hidden_dropout", "attention_dropout")
    table |= {name: model[name] for name in alike if name in model}
    return {name: value for name, value in table.items() if value is not None}


def _vision(given: GivenOptions, preset: str) -> Settings:
    model = given.part("architecture")
    need(model, "num-layers", "hidden-size", "num-attention-heads")
    sizes = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
    alike = (*sizes, "hidden_dropout", "attention_dropout")
    # Defaults of arguments.py.
    return {
        "family": "vit",
        **{name: model[name] for name in alike if name in model},
        "image_size": given.whole("img-h") or 224,
        "patch_size": given.whole("patch-dim") or 16,
        "num_classes": given.whole("num-classes") or 1000,
        "attention": _attention(given, preset),
    }


def _training(given: GivenOptions, launched: Launched) -> Settings:
    training: Settings = given.part("training")
    if "global_batch_size" not in training:
        # validate_args: one microbatch on each replica.
        sizes = given.part("parallel")
        replicas = count_replicas(sizes, launched.num_devices)
        training["global_batch_size"] = int(str(sizes.get("micro_batch_size", 1))) * (
            replicas or 1
        )
        given.assume(
            "A step takes one microbatch on each replica, as nothing gives "
            "--global-batch-size."
        )
    ramp = given.words("rampup-batch-size")
    if ramp and given.any_of("decrease-batch-size-if-needed"):
        given.assume("The batch is that after its ramp.")
    elif ramp:
        training["rampup_batch_size"] = [
            given.whole_number("rampup-batch-size", word) for word in ramp
        ]
    training["precision"] = next(
        (name for name in ("bf16", "fp16") if given.flag(name)), "fp32"
    )
    training |= _gradients(given, training["precision"])
    narrow = _narrow(given)
    return training | ({"matmul_precision": narrow} if narrow else {})


def _gradients(given: GivenOptions, precision: str) -> Settings:
    """Return the format of gradients; validate_args has fp32 with bf16."""
    if precision == "fp32":
        return {"gradient_precision": "fp32"}
    wide = given.any_of("accumulate-allreduce-grads-in-fp32") or precision == "bf16"
    narrow = given.any_of("grad-reduce-in-bf16")
    narrow = narrow or given.word("main-grads-dtype", "fp32") == "bf16"
    return {"gradient_precision": "fp32" if wide and not narrow else "bf16"}


def _narrow(given: GivenOptions) -> str:
    if given.any_of("fp4-format"):
        return "nvfp4"
    if not given.any_of("fp8-format", "fp8-hybrid", "fp8-e4m3"):
        return ""
    return str(given.meaning("fp8-recipe", "fp8"))


def _software(given: GivenOptions, preset: str) -> Settings:
    software: Settings = {"preset": preset, **given.part("overlaps")}
    backend = given.word("attention-backend", "auto")
    if backend in ("flash", "fused"):
        software["attention_kernel"] = backend
    elif given.any_of(*known.FLASH):
        software["attention_kernel"] = "flash"
    software |= _recomputed_modules(given) | _dispatcher(given, preset)
    return software | _graphs(given)


def _graphs(given: GivenOptions) -> Settings:
    """Return what CUDA graphs capture; whole layers, of known sizes, by default."""
    asked = given.any_of("enable-cuda-graph", "external-cuda-graph")
    kind = given.word("cuda-graph-impl", "local" if asked else "none")
    scope = given.words("cuda-graph-modules") or given.words("cuda-graph-scope")
    names = {name for words in scope for name in words.split(",")} - {"full"}
    if kind == "none":
        return {}
    if "full_iteration" in (kind, *names):
        return {"cuda_graphs": "full_iteration"}
    if others := sorted(names.difference(GRAPH_MODULES)):
        given.assume(f"Graphs of {', '.join(others)} are left out.")
    parts = [name for name in GRAPH_MODULES if name in names]
    modules: Settings = {"cuda_graph_modules": parts} if names else {}
    return {"cuda_graphs": "layers", **modules} if parts or not names else {}


_ONCE = ("deepep", "hybridep")
_NAME = "moe-token-dispatcher-type"


def _dispatcher(given: GivenOptions, preset: str) -> dict[str, str | int]:
    """Return how tokens travel to experts, where that is not as the preset has it.

    ``allgather``, the default, hands all tokens to all ranks of an expert group;
    ``alltoall`` sends a token to each of its experts; ``flex``, DeepEP or HybridEP,
    once to each node that has experts for it (``core/transformer/moe``).
    """
    if not given.whole("num-experts"):
        return {}
    kind = given.meaning(_NAME, "allgather")
    if not given.flag("moe-grouped-gemm"):
        given.assume("Products of experts are grouped.")
    if (given.whole("expert-model-parallel-size") or 1) == 1:
        return {}
    backend = given.word("moe-flex-dispatcher-backend", "deepep")
    if kind == "flex" and backend not in _ONCE:
        given.assume(f"--moe-flex-dispatcher-backend: {backend} sends as DeepEP does.")
    if given.flag("moe-enable-deepep") and kind != "flex":
        given.assume("--moe-enable-deepep: Of the dispatchers flex alone has DeepEP.")
    taken = kind if kind in DISPATCHERS else "alltoall"
    sending: dict[str, str | int] = {}
    names = ("moe-flex-dispatcher-num-sms", f"moe-{backend}-num-sms")
    if kind == "flex" and (
        processors := next(filter(None, map(given.whole, names)), 0)
    ):
        sending["moe_flex_dispatcher_num_sms"] = processors
    if taken != PRESETS[preset].dispatcher:
        sending["moe_token_dispatcher_type"] = taken
    return sending


def _recomputed_modules(given: GivenOptions) -> Settings:
    """Return what selective recompute runs again, if not the core of attention."""
    modules = given.words("recompute-modules")
    if given.word("recompute-granularity") != "selective" or not modules:
        return {}
    others = [name for name in modules if name not in RECOMPUTE_MODULES]
    if others:
        given.assume(f"Recompute of {', '.join(others)} is left out.")
    known_modules = [name for name in modules if name in RECOMPUTE_MODULES]
    return (
        {"recompute_modules": known_modules}
        if known_modules != list(ATTENTION_CORE)
        else {}
    )
