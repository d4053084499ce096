"""A recipe of Megatron Bridge: the same options as fields of its configurations.

Every option that is written for Megatron-LM is a field of a `ConfigContainer` here; one
that has no field is a gap.

Facts: the classes of megatron-bridge 0.3.1, which build on those of megatron-core 0.16:
``megatron/bridge/training/config.py``, ``training/mixed_precision.py``,
``training/comm_overlap.py``, ``models/gpt_provider.py``, ``recipes/common.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.carried import script_options
from nestsim.launch.formats.megatron.gaps import find_gaps
from nestsim.launch.formats.megatron.options import Option
from nestsim.launch.formats.megatron.patterns import read_list
from nestsim.launch.formats.megatron.settings import Values, job_options
from nestsim.launch.formats.megatron.write import (
    SCRIPT,
    environment_lines,
    mapped_lines,
    mapped_ranks,
    needs_rank_map,
    size_lines,
    torchrun_lines,
)
from nestsim.launch.job import LaunchJob
from nestsim.launch.ranks import RANK_MAP
from nestsim.launch.written import LaunchFiles, LaunchGap

VERSION = "Megatron Bridge 0.3"
"""Version whose fields are written."""

RECIPE = "recipe.py"
"""Name of the recipe."""

_NO_RECIPE = frozenset({"bert", "t5", "vit", "module"})
_TRUE: Callable[[Values], str] = lambda _: "True"  # noqa: E731 - a value of the table
_FALSE: Callable[[Values], str] = lambda _: "False"  # noqa: E731 - a value of the table


def _word(values: Values) -> str:
    return repr(values[0])


def _number(values: Values) -> str:
    number = float(values[0])
    return str(int(number)) if number.is_integer() else repr(number)


def _plain(values: Values) -> str:
    return values[0]


def _words(values: Values) -> str:
    return repr(list(values))


def _numbers(values: Values) -> str:
    return f"[{', '.join(values)}]"


def _marks(values: Values) -> str:
    return repr(read_list(values[0], "list"))


def _window(values: Values) -> str:
    return f"({values[0].replace(',', ', ')})"


def _dtype(values: Values) -> str:
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "uint8"}
    return f"torch.{names[values[0]]}"


FIELDS: Mapping[str, tuple[tuple[str, Callable[[Values], str]], ...]] = (
    MappingProxyType(
        {
            "seq-length": (
                ("model.seq_length", _plain),
                ("dataset.seq_length", _plain),
            ),
            "max-position-embeddings": (),  # follows from seq_length
            "position-embedding-type": (("model.position_embedding_type", _word),),
            "rotary-base": (("model.rotary_base", _number),),
            "norm-epsilon": (("model.layernorm_epsilon", _number),),
            "swiglu": (
                ("model.gated_linear_unit", _TRUE),
                ("model.activation_func", lambda _: "torch.nn.functional.silu"),
            ),
            "squared-relu": (("model.activation_func", lambda _: "squared_relu"),),
            "group-query-attention": (),
            "num-query-groups": (("model.num_query_groups", _plain),),
            "window-size": (("model.window_size", _window),),
            "window-attn-skip-freq": (("model.window_attn_skip_freq", _marks),),
            "attention-backend": (
                ("model.attention_backend", lambda one: f"AttnBackend.{one[0]}"),
            ),
            "transformer-impl": (("model.transformer_impl", _word),),
            "moe-layer-freq": (("model.moe_layer_freq", _marks),),
            "moe-router-load-balancing-type": (
                ("model.moe_router_load_balancing_type", _word),
            ),
            "moe-aux-loss-coeff": (("model.moe_aux_loss_coeff", _number),),
            "moe-token-dispatcher-type": (("model.moe_token_dispatcher_type", _word),),
            "moe-flex-dispatcher-backend": (
                ("model.moe_flex_dispatcher_backend", _word),
            ),
            "moe-grouped-gemm": (("model.moe_grouped_gemm", _TRUE),),
            "moe-router-dtype": (("model.moe_router_dtype", _word),),
            "multi-latent-attention": (),  # the provider has it
            "hybrid-override-pattern": (("model.hybrid_override_pattern", _word),),
            "spec": (),
            "is-hybrid-model": (),
            "micro-batch-size": (("train.micro_batch_size", _plain),),
            "global-batch-size": (("train.global_batch_size", _plain),),
            "overlap-moe-expert-parallel-comm": (
                ("comm_overlap.overlap_moe_expert_parallel_comm", _TRUE),
            ),
            "microbatch-group-size-per-virtual-pipeline-stage": (
                ("model.microbatch_group_size_per_vp_stage", _plain),
            ),
            "num-virtual-stages-per-pipeline-rank": (
                ("model.virtual_pipeline_model_parallel_size", _plain),
            ),
            "pipeline-model-parallel-layout": (
                ("model.pipeline_model_parallel_layout", _word),
            ),
            "cp-comm-type": (("model.cp_comm_type", _word),),
            "hierarchical-context-parallel-sizes": (
                ("model.hierarchical_context_parallel_sizes", _numbers),
            ),
            "use-tp-pp-dp-mapping": (("dist.use_tp_pp_dp_mapping", _TRUE),),
            "optimizer": (("optimizer.optimizer", _word),),
            "main-params-dtype": (("optimizer.main_params_dtype", _dtype),),
            "exp-avg-dtype": (("optimizer.exp_avg_dtype", _dtype),),
            "exp-avg-sq-dtype": (("optimizer.exp_avg_sq_dtype", _dtype),),
            "use-precision-aware-optimizer": (
                ("optimizer.use_precision_aware_optimizer", _TRUE),
            ),
            "fp8-param-gather": (("mixed_precision.fp8_param_gather", _TRUE),),
            "bf16": (
                ("mixed_precision.bf16", _TRUE),
                ("mixed_precision.params_dtype", lambda _: "torch.bfloat16"),
                ("mixed_precision.pipeline_dtype", lambda _: "torch.bfloat16"),
            ),
            "fp16": (
                ("mixed_precision.fp16", _TRUE),
                ("mixed_precision.params_dtype", lambda _: "torch.float16"),
                ("mixed_precision.pipeline_dtype", lambda _: "torch.float16"),
            ),
            "grad-reduce-in-bf16": (("mixed_precision.grad_reduce_in_fp32", _FALSE),),
            "accumulate-allreduce-grads-in-fp32": (
                ("mixed_precision.grad_reduce_in_fp32", _TRUE),
            ),
            "fp8-format": (("mixed_precision.fp8", _word),),
            "fp8-recipe": (("mixed_precision.fp8_recipe", _word),),
            "fp4-format": (("mixed_precision.fp4", _word),),
            "fp4-recipe": (("mixed_precision.fp4_recipe", _word),),
            "recompute-granularity": (("model.recompute_granularity", _word),),
            "recompute-method": (("model.recompute_method", _word),),
            "recompute-num-layers": (("model.recompute_num_layers", _plain),),
            "recompute-modules": (("model.recompute_modules", _words),),
            "use-distributed-optimizer": (
                ("ddp.use_distributed_optimizer", _TRUE),
                ("optimizer.use_distributed_optimizer", _TRUE),
            ),
            "num-distributed-optimizer-instances": (
                ("ddp.num_distributed_optimizer_instances", _plain),
            ),
            "use-megatron-fsdp": (
                ("ddp.use_megatron_fsdp", _TRUE),
                ("dist.use_megatron_fsdp", _TRUE),
            ),
            "data-parallel-sharding-strategy": (
                ("ddp.data_parallel_sharding_strategy", _word),
            ),
            "keep-fp8-transpose-cache": (("ddp.keep_fp8_transpose_cache", _TRUE),),
            "no-gradient-accumulation-fusion": (
                ("model.gradient_accumulation_fusion", _FALSE),
            ),
            "ckpt-format": (("checkpoint.ckpt_format", _word),),
            "optimizer-cpu-offload": (("optimizer.optimizer_cpu_offload", _TRUE),),
            "optimizer-offload-fraction": (
                ("optimizer.optimizer_offload_fraction", _plain),
            ),
            "overlap-cpu-optimizer-d2h-h2d": (
                ("optimizer.overlap_cpu_optimizer_d2h_h2d", _TRUE),
            ),
            "cpu-offloading-num-layers": (
                ("model.cpu_offloading", _TRUE),
                ("model.cpu_offloading_num_layers", _plain),
            ),
            "overlap-grad-reduce": (
                ("comm_overlap.overlap_grad_reduce", _TRUE),
                ("ddp.overlap_grad_reduce", _TRUE),
            ),
            "overlap-param-gather": (
                ("comm_overlap.overlap_param_gather", _TRUE),
                ("ddp.overlap_param_gather", _TRUE),
            ),
            "tp-comm-overlap": (("comm_overlap.tp_comm_overlap", _TRUE),),
            "no-overlap-p2p-communication": (
                ("comm_overlap.overlap_p2p_comm", _FALSE),
            ),
            "cuda-graph-impl": (("model.cuda_graph_impl", _word),),
            "cuda-graph-scope": (("model.cuda_graph_scope", _word),),
            "no-check-for-nan-in-loss-and-grad": (
                ("rerun_state_machine.check_for_nan_in_loss", _FALSE),
                ("ddp.check_for_nan_in_grad", _FALSE),
            ),
            "te-rng-tracker": (("rng.te_rng_tracker", _TRUE),),
        }
    )
)
"""Option -> fields of the container, and how their value is written. Options of
`options.TABLES` that are not here are fields of the model."""

_OF_SCRIPTS = frozenset(
    {
        *("rotary-base", "norm-epsilon", "moe-aux-loss-coeff", "moe-router-dtype"),
        *("moe-token-dispatcher-type", "moe-flex-dispatcher-backend"),
        *("moe-router-load-balancing-type", "moe-grouped-gemm"),
    }
)
"""Options of an imported script that are fields here."""

_SILENT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "ddp.use_distributed_optimizer": "False",
        "optimizer.use_distributed_optimizer": "False",
        "ddp.overlap_grad_reduce": "False",
        "ddp.overlap_param_gather": "False",
        "mixed_precision.grad_reduce_in_fp32": "False",
        "comm_overlap.tp_comm_overlap": "False",
        "comm_overlap.overlap_grad_reduce": "False",
        "comm_overlap.overlap_param_gather": "False",
    }
)
"""Fields that Megatron Bridge's common recipe sets otherwise than Megatron-LM, where no
option says it."""


@dataclass(slots=True)
class _BridgeRecipe:
    """Fields of a container, by section."""

    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: list[tuple[str, Values]] = field(default_factory=list)

    def put(self, path: str, expression: str) -> None:
        section, _, name = path.partition(".")
        self.sections.setdefault(section, {})[name] = expression


def write_megatron_bridge(job: LaunchJob) -> LaunchFiles:
    """Write a plan as a recipe of Megatron Bridge, and the script that starts it."""
    own = {
        name: one for group in job_options(job) for name, one in group.options.items()
    }
    script = {name: one for name, one in (script_options(job) or {}).items() if one}
    values = {**{name: script[name] for name in _OF_SCRIPTS & set(script)}, **own}
    recipe = _recipe(job, values)
    mapped = needs_rank_map(job)
    files: dict[str, str | bytes] = {
        RECIPE: "\n".join(_recipe_lines(job, recipe)) + "\n",
        SCRIPT: "\n".join(_script_lines(job, values, mapped=mapped)) + "\n",
    }
    if mapped:
        files[RANK_MAP] = mapped_ranks(job)
    vocabulary = {"vocab-size": (str(job.model.vocab_size),)}
    return LaunchFiles(
        files=files,
        gaps=(
            *find_gaps(job, values | vocabulary),
            *_bridge_gaps(job, recipe),
            *_script_gaps(job, values),
        ),
        notes=(
            "Data, tokenizer, checkpoints and learning rates are yours: the recipe has "
            "placeholders that run on made-up data.",
            f"The fields are those of {VERSION}.",
        ),
    )


def _recipe(job: LaunchJob, values: Mapping[str, Values]) -> _BridgeRecipe:
    recipe = _BridgeRecipe()
    for path, expression in _SILENT_FIELDS.items():
        recipe.put(path, expression)
    by_name = known.by_name()
    for name, words in values.items():
        if name in FIELDS:
            for path, write in FIELDS[name]:
                recipe.put(path, write(words))
        elif name in by_name:
            option = by_name[name]
            where = option.core or name.replace("-", "_")
            recipe.put(f"model.{where}", _expression(option, words))
        else:
            recipe.missing.append((name, words))
    recipe.put("model.vocab_size", str(job.model.vocab_size))
    recipe.put("model.should_pad_vocab", "True")
    if "pipeline-model-parallel-layout" in values:
        v = job.settings.virtual_pipeline_model_parallel_size
        recipe.put(
            "model.virtual_pipeline_model_parallel_size", str(v) if v > 1 else "None"
        )
    return recipe


def _expression(option: Option, words: Values) -> str:
    """Return the value of an option in Python."""
    if option.kind == known.FLAG:
        return "True"
    if option.kind == known.OFF:
        return "False"
    return repr(words[0]) if option.kind == known.WORD else words[0]


def _bridge_gaps(job: LaunchJob, recipe: _BridgeRecipe) -> Iterator[LaunchGap]:
    if job.model.family in _NO_RECIPE:
        yield LaunchGap(
            setting="model.family",
            value=job.model.family,
            reason="Megatron Bridge pre-trains decoders: the recipe has one of these "
            "sizes; --to megatron writes this model.",
        )
    for name, words in recipe.missing:
        yield LaunchGap(
            setting=f"--{name}",
            value=" ".join(words),
            reason="Megatron Bridge has no field for this option of Megatron-LM.",
        )


def _script_gaps(job: LaunchJob, values: Mapping[str, Values]) -> Iterator[LaunchGap]:
    """Yield the options of an imported script that are no fields of the recipe."""
    script = script_options(job) or {}
    if left := [name for name, one in script.items() if values.get(name) != one]:
        yield LaunchGap(
            setting="launch.options",
            value=", ".join(left),
            reason="The recipe leaves these options of the imported script to you.",
        )


def _provider(job: LaunchJob) -> tuple[str, str]:
    """Return the module and the class of the model's provider."""
    if job.model.kv_lora_rank:
        return "megatron.bridge.models.mla_provider", "MLAModelProvider"
    if job.model.has_mamba:
        return "megatron.bridge.models.mamba.mamba_provider", "MambaModelProvider"
    return "megatron.bridge.models.gpt_provider", "GPTModelProvider"


_SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "train": "Batch.",
        "optimizer": "What keeps the states of the optimizer, and where.",
        "ddp": "How replicas share gradients and states.",
        "dist": "How ranks are numbered.",
        "checkpoint": "The format that the sharding asks for.",
        "rerun_state_machine": "Nothing may look at the loss inside of a graph.",
        "rng": "Random numbers inside of graphs.",
        "dataset": "Yours: made-up tokens until cfg.dataset.blend names your data.",
    }
)


def _recipe_lines(job: LaunchJob, recipe: _BridgeRecipe) -> Iterator[str]:
    yield from _imports(job, recipe)
    yield "def pretrain_config() -> ConfigContainer:"
    yield '    """Return the configuration of the job."""'
    yield "    cfg = _pretrain_common()"
    for comment, section, kind in (
        ("Architecture, parallel sizes, recompute.", "model", _provider(job)[1]),
        ("Number formats.", "mixed_precision", "MixedPrecisionConfig"),
        ("What is hidden behind compute.", "comm_overlap", "CommOverlapConfig"),
    ):
        yield from _call(comment, section, kind, recipe)
    for section, comment in _SECTIONS.items():
        if section in recipe.sections:
            yield f"    # {comment}"
            for name, expression in recipe.sections[section].items():
                yield f"    cfg.{section}.{name} = {expression}"
    yield "    # Yours: a tokenizer; this one makes up tokens."
    yield '    cfg.tokenizer.tokenizer_type = "NullTokenizer"'
    # It has a token more, and may not have more than the model.
    yield f"    cfg.tokenizer.vocab_size = {job.model.vocab_size - 1}"
    yield "    cfg.train.train_iters = 100"
    yield "    return cfg"
    yield ""
    yield ""
    yield 'if __name__ == "__main__":'
    yield "    pretrain(pretrain_config(), forward_step)"


def _imports(job: LaunchJob, recipe: _BridgeRecipe) -> Iterator[str]:
    module, provider = _provider(job)
    title = "".join(c if c.isprintable() else "?" for c in job.scenario.name)
    title = title.replace("\\", "/").replace('"', "'")
    yield f'"""{title}: a recipe for {VERSION}.'
    yield ""
    yield "Started on every node by launch.sh; cfg is what pretrain() takes."
    yield '"""'
    yield ""
    yield "import torch"
    model = recipe.sections["model"]
    if model.get("activation_func") == "squared_relu":
        yield "from megatron.core.activations import squared_relu"
    if "attention_backend" in model:
        yield "from megatron.core.transformer.enums import AttnBackend"
    yield ""
    yield f"from {module} import {provider}"
    yield "from megatron.bridge.recipes.common import _pretrain_common"
    yield "from megatron.bridge.training.comm_overlap import CommOverlapConfig"
    yield "from megatron.bridge.training.config import ConfigContainer"
    yield "from megatron.bridge.training.gpt_step import forward_step"
    yield "from megatron.bridge.training.mixed_precision import MixedPrecisionConfig"
    yield "from megatron.bridge.training.pretrain import pretrain"
    yield ""
    yield ""


def _call(
    comment: str, section: str, kind: str, recipe: _BridgeRecipe
) -> Iterator[str]:
    """Yield a section that is made anew, a field a line."""
    yield f"    # {comment}"
    yield f"    cfg.{section} = {kind}("
    for name, expression in recipe.sections.get(section, {}).items():
        yield f"        {name}={expression},"
    yield "    )"


def _script_lines(
    job: LaunchJob, values: Mapping[str, Values], *, mapped: bool
) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"# Starts {RECIPE} with {VERSION}: on every node, with NODE_RANK (0, 1, ..)"
    yield "# and MASTER_ADDR (the first node) set."
    yield "set -euo pipefail"
    yield ""
    yield from environment_lines(values, job)
    yield from size_lines(job, mapped=mapped)
    if mapped:
        yield from mapped_lines(job, RECIPE, ())
    else:
        yield from torchrun_lines(RECIPE, ())
