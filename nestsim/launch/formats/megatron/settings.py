"""A job as options of Megatron-LM, in groups that a person can read.

What an option says beside its setting in `options.TABLE` is written from there; here
is what takes several options: norms of experts, layouts, recompute, sharding, number
formats. What Megatron-LM has no option for is left to `gaps`, which reads the options
back and tells what is missing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from estimators.layers.saved_activations import ATTENTION_CORE
from estimators.models.library import HYBRID_KINDS
from estimators.models.spec import FIRST_DECODER_BLOCK, TransformerSpec
from nestsim.launch.carried import OptionGroup, words_of_option
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.options import write_layout, write_list
from nestsim.launch.formats.usual import strongest
from nestsim.launch.job import LaunchJob
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import LAYOUT, LaunchRules, counted_ends, has_other_ends
from planner.step.schedules import find_schedule

Values = tuple[str, ...]
"""What stands behind an option; nothing behind a flag."""

Options = dict[str, Values]
"""Options without their dashes, in order."""

Raw = dict[str, Any]
"""The same with what they say: a number, a word, several, or nothing but that they are
given (True)."""

_NARROW: Mapping[str, Mapping[str, str]] = known.TABLE.facts["narrow"]
"""Format of products with weights -> its options."""


def job_options(job: LaunchJob) -> tuple[OptionGroup, ...]:
    """Return the options of a job, group by group, those without any left out."""
    model = job.model
    memory = _recompute(job) | _sharding(job) | _offload(job)
    groups = (
        ("MODEL_ARGS", "The architecture.", _architecture(model) | _layers(job)),
        ("MOE_ARGS", "Mixture of experts.", _experts(model) | _dispatch(job)),
        ("MLA_ARGS", "Multi-head latent attention.", _latent(model)),
        ("MAMBA_ARGS", "Mamba-2 layers among the blocks.", _mamba(model)),
        ("VARIANT_ARGS", "Linear or sparse attention.", _variant(model)),
        ("PARALLEL_ARGS", "How ranks share the work.", _parallel(job)),
        ("BATCH_ARGS", "Batch and optimizer.", _training(job)),
        ("PRECISION_ARGS", "Number formats.", _precision(job)),
        ("MEMORY_ARGS", "What saves memory.", memory),
        ("OVERLAP_ARGS", "What is hidden behind compute.", _overlaps(job)),
    )
    return tuple(
        OptionGroup(name, comment, _worded(options))
        for name, comment, options in groups
        if options
    )


def model_options(model: TransformerSpec) -> Options:
    """Return the options of an architecture alone."""
    options = _architecture(model) | _experts(model) | _latent(model) | _mamba(model)
    options |= {**_variant(model), "vocab-size": model.vocab_size}
    return _worded(options)


def _worded(options: Raw) -> Options:
    return {name: words_of_option(value) for name, value in options.items()}


def script_of(model: TransformerSpec) -> str:
    """Return the program of Megatron-LM that trains a model."""
    return known.SCRIPTS.get(model.family, known.GPT_SCRIPT)


def rank_order(job: LaunchJob) -> str | None:
    """Return the order in which Megatron-LM's ranks are the devices in turn.

    With the stages inside, replicas of experts must be as many as those of the rest
    (``initialize_model_parallel`` of ``megatron/core/parallel_state.py``).

    Returns
    -------
    str or None
        None if there is none, so that ranks need a map.
    """
    if job.is_in_order(known.USUAL_ORDER):
        return known.USUAL_ORDER
    parallel = job.plan.parallel
    alike = parallel.expert_data_size == parallel.data_parallel_size
    possible = alike or parallel.pipeline_model_parallel_size == 1
    if possible and job.is_in_order(known.PP_INSIDE_ORDER):
        return known.PP_INSIDE_ORDER
    return None


def _written(part: str, source: object) -> Iterator[tuple[str, Any]]:
    """Yield the options of a part whose setting is not Megatron-LM's default."""
    for option in known.TABLE.part(part):
        value = getattr(source, option.key, None)
        if value is not None and (option.always or value != option.usual):
            words = option.written(value)
            if words is not None:
                yield option.name, list(words) or True


def _architecture(model: TransformerSpec) -> Raw:
    options = dict(_written("architecture", model))
    if model.family == "t5":
        del options["num-layers"], options["seq-length"]
        options |= _encoder_decoder(model)
    if model.family == "vit":
        options |= {
            "num-classes": model.vocab_size,
            "img-h": model.image_size,
            "img-w": model.image_size,
            "patch-dim": model.patch_size,
        }
    if model.family == "bert" and not model.bert_binary_head:
        options["bert-no-binary-head"] = True
    # Options of Megatron-DeepSpeed, which Megatron-LM would refuse.
    options.pop("embed-layernorm", None)
    if model.position_embedding_type == "alibi":
        options.pop("position-embedding-type")
    options |= _activation(model)
    options["max-position-embeddings"] = (
        str(max(model.max_position_embeddings, model.sequence_length)),
    )
    groups = model.num_query_groups
    if groups != model.num_attention_heads and not model.kv_lora_rank:
        options |= {"group-query-attention": True, "num-query-groups": groups}
    options |= _windows(model)
    if model.attention_implementation == "plain":
        options["attention-backend"] = "unfused"
    return options


def _layers(job: LaunchJob) -> Raw:
    """Return whose layers run: Megatron-LM's own, those of its papers, if asked for."""
    is_older = job.scenario.software_preset == "megatron-lm"
    return {"transformer-impl": "local"} if is_older else {}


def _encoder_decoder(model: TransformerSpec) -> Raw:
    encoder = model.block_pattern.index(FIRST_DECODER_BLOCK)
    return {
        "encoder-num-layers": encoder,
        "decoder-num-layers": model.num_layers - encoder,
        "encoder-seq-length": model.sequence_length,
        "decoder-seq-length": model.decoder_sequence_length,
    }


def _activation(model: TransformerSpec) -> Raw:
    """Return the nonlinearity; of gated ones Megatron-LM has SwiGLU alone."""
    if model.gated_linear_unit:
        return {"swiglu": True}
    if model.nonlinearity == "squared_relu":
        return {"squared-relu": True}
    return {}


def _windows(model: TransformerSpec) -> Raw:
    if not model.window_size:
        return {}
    kinds = model.block_pattern or (model.last_block_kind,) * model.num_layers
    marks = [int("window" in kind) for kind in kinds]
    options: Raw = {"window-size": (f"{model.window_size - 1},0",)}
    full = [index for index, mark in enumerate(marks, start=1) if not mark]
    if full:
        every = full[0]
        regular = [index for index in range(1, len(marks) + 1) if index % every == 0]
        freq = str(every) if full == regular else write_list(marks)
        options["window-attn-skip-freq"] = freq
    return options


def _experts(model: TransformerSpec) -> Raw:
    if not model.num_moe_experts:
        return {}
    options = dict(_written("experts", model))
    marks = [int("experts" in kind.split("+")) for kind in model.block_pattern]
    if marks and not all(marks) and model.family != "mamba":
        options["moe-layer-freq"] = (f"({write_list(marks)})",)
    return options


def _dispatch(job: LaunchJob) -> Raw:
    """Return how tokens travel to experts, and what balances them."""
    if not job.model.num_moe_experts:
        return {}
    kind = job.workload.software.moe_token_dispatcher_type or "alltoall"
    sent: Raw = {"moe-token-dispatcher-type": kind}
    if kind == "flex":
        # DeepEP sends a token once to each node that has experts for it.
        sent["moe-flex-dispatcher-backend"] = "deepep"
        if processors := job.workload.software.moe_flex_dispatcher_num_sms:
            sent["moe-deepep-num-sms"] = (str(processors),)
    launch = job.scenario.launch
    if launch is not None and launch.format == known.FORMAT:
        # The rest is what scripts say for themselves, or leave to Megatron-LM.
        return sent if job.plan.parallel.expert_model_parallel_size > 1 else {}
    options: Raw = {
        "moe-router-load-balancing-type": "aux_loss",
        "moe-aux-loss-coeff": "1e-3",
        "moe-token-dispatcher-type": sent.pop("moe-token-dispatcher-type"),
    }
    if job.training.precision == "bf16":
        options["moe-grouped-gemm"] = True
    if sent:
        options |= {**sent, "moe-router-dtype": "fp32"}
    return options


def _latent(model: TransformerSpec) -> Raw:
    if not model.kv_lora_rank:
        return {}
    options: Raw = {"multi-latent-attention": True, "qk-layernorm": True}
    for option in known.TABLE.part("latent"):
        if value := getattr(model, option.key):
            options[option.name] = value
    return options


def _mamba(model: TransformerSpec) -> Raw:
    if not model.has_mamba:
        return {}
    letters = {kind: letter for letter, kind in HYBRID_KINDS.items()}
    kinds = "".join(letters.get(kind, "?") for kind in model.block_pattern)
    spec = tuple(known.TABLE.facts["mamba_spec"])
    options: Raw = {"spec": spec, "is-hybrid-model": True}
    if "?" not in kinds:
        options["hybrid-override-pattern"] = kinds
    return options | dict(_written("mamba", model))


def _variant(model: TransformerSpec) -> Raw:
    """Return what says that attention is that of an indexer, or a delta net's."""
    name = "experimental-attention-variant"
    if model.dsa_indexer_topk:
        return {name: "dsa", **dict(_written("indexer", model))}
    linear = [int("gated_delta" in kind.split("+")) for kind in model.block_pattern]
    if not any(linear):
        return {}
    every = linear.index(0) + 1 if 0 in linear else len(linear) + 1
    regular = [int((index + 1) % every > 0) for index in range(len(linear))]
    freq = str(every) if linear == regular else f"({write_list(linear)})"
    options: Raw = {name: "gated_delta_net", "linear-attention-freq": (freq,)}
    return options | dict(_written("linear", model))


def _parallel(job: LaunchJob) -> Raw:
    plan = job.settings
    options = dict(_written("parallel", plan))
    if plan.context_parallel_size > 1:
        options["cp-comm-type"] = (plan.cp_comm_type,)
    if plan.hierarchical_context_parallel_sizes:
        sizes = plan.hierarchical_context_parallel_sizes
        options["hierarchical-context-parallel-sizes"] = sizes
    if job.model.num_moe_experts and (
        plan.expert_model_parallel_size > 1 or plan.expert_tensor_parallel_size
    ):
        tp = plan.expert_tensor_parallel_size or plan.tensor_model_parallel_size
        options["expert-tensor-parallel-size"] = tp
    if rank_order(job) == known.PP_INSIDE_ORDER:
        options["use-tp-pp-dp-mapping"] = True
    v, pp = job.plan.virtual_pipeline_model_parallel_size, len(job.plan.stages)
    schedule = find_schedule(job.plan.schedule)
    length = schedule.round_length(pp, job.plan.num_microbatches)
    if v > 1 and length != pp:
        options["microbatch-group-size-per-virtual-pipeline-stage"] = length
    return options | _layout(job)


def launch_rules(job: LaunchJob) -> LaunchRules:
    """Return the rules of the release that a job names, or of the usual one."""
    rules = job.scenario.search.rules
    of_megatron = {"megatron-lm", "megatron-core", "nemo"}
    if rules is not None and job.scenario.software_preset in of_megatron:
        return rules
    return FRAMEWORKS["megatron-core"].rules


def _layout(job: LaunchJob) -> Raw:
    """Return how blocks are shared out: evenly, by the ends, or by a layout.

    A release without layouts may count the ends of the chain as blocks.
    """
    plan, pp = job.settings, len(job.plan.stages)
    v = plan.virtual_pipeline_model_parallel_size
    blocks = job.blocks_by_virtual_stage()
    chunks: Raw = {}
    if v > 1:
        chunks = {"num-virtual-stages-per-pipeline-rank": v}
    if len(set(blocks)) == 1:
        return chunks
    if job.model.has_mamba or job.model.has_decoder:
        return {}  # their blocks are shared out evenly
    has_layouts = LAYOUT in launch_rules(job).splits
    plain = 0 not in blocks and not (v > 1 and has_layouts)
    if plain and has_other_ends(blocks, pp):
        # Of two stages the first one says it; with both, 0.12 divides by the rest.
        middle = blocks[1]
        return chunks | {
            name: v * count
            for name, count in (
                ("decoder-first-pipeline-num-layers", blocks[0]),
                ("decoder-last-pipeline-num-layers", blocks[-1]),
            )
            if count != middle
        }
    if not has_layouts and (ends := counted_ends(blocks)):
        names: Raw = {f"account-for-{end}-in-pipeline-split": True for end in ends}
        return chunks | names
    return {
        "pipeline-model-parallel-layout": (
            write_layout(blocks, job.model.mtp_num_layers),
        )
    }


def _training(job: LaunchJob) -> Raw:
    options = dict(_written("training", job.training))
    if job.training.rampup_batch_size:
        options["rampup-batch-size"] = job.training.rampup_batch_size
    states = ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    if any(name in options for name in states):
        options["use-precision-aware-optimizer"] = True
    if job.training.optimizer == "muon" and max(job.settings.zero_stage_by_stage()):
        # Muon with its states spread over ranks, layer by layer.
        options["optimizer"] = "dist_muon"
    return options


def _precision(job: LaunchJob) -> Raw:
    training = job.training
    options: Raw = {}
    if training.precision != "fp32":
        options[training.precision] = True
    wide = training.gradient_precision == "fp32"
    if training.precision == "bf16" and not wide:
        options["grad-reduce-in-bf16"] = True
    elif training.precision != "fp32" and wide:
        options["accumulate-allreduce-grads-in-fp32"] = True
    for name, value in _NARROW.get(training.matmul_precision, {}).items():
        options[name] = value
    return options


def _recompute(job: LaunchJob) -> Raw:
    plan = job.settings
    mode = strongest(plan.recompute_by_stage())
    if mode == "none":
        return {}
    if mode == "selective":
        options: Raw = {"recompute-granularity": "selective"}
        modules = job.workload.software.recompute_modules
        if modules != ATTENTION_CORE:
            options["recompute-modules"] = tuple(modules)
        return options
    counts = [count for count in plan.recompute_num_layers_by_stage() if count]
    method, count = "uniform", 1
    if mode == "stage":
        count = max(job.blocks_by_virtual_stage())
    elif counts:
        method, count = "block", max(counts)
    return {
        "recompute-granularity": "full",
        "recompute-method": method,
        "recompute-num-layers": count,
    }


def _sharding(job: LaunchJob) -> Raw:
    plan = job.settings
    stage = max(plan.zero_stage_by_stage())
    if stage == 0 or job.training.optimizer == "muon":
        return {}
    options: Raw = {"use-distributed-optimizer": True}
    if stage > 1:
        strategy = known.TABLE.options["data-parallel-sharding-strategy"]
        options |= {
            "use-megatron-fsdp": True,
            strategy.name: (strategy.word(stage),),
            "no-gradient-accumulation-fusion": True,
            "ckpt-format": "fsdp_dtensor",
        }
        if job.training.fp8_param_gather and job.training.keep_fp8_transpose_cache:
            options["keep-fp8-transpose-cache"] = True
    ranks = job.plan.parallel.data_parallel_size * plan.context_parallel_size
    group = min(plan.sharding_group_by_stage(ranks))
    if group < ranks:
        options["num-distributed-optimizer-instances"] = ranks // group
    return options


def _offload(job: LaunchJob) -> Raw:
    kept = job.settings.offload_by_stage()
    options: Raw = {}
    if part := max(stage.optimizer for stage in kept):
        options |= {
            "optimizer-cpu-offload": True,
            "optimizer-offload-fraction": part,
            "use-precision-aware-optimizer": True,
        }
        if job.workload.execution.cpu_adam:
            options["overlap-cpu-optimizer-d2h-h2d"] = True
    layers = max(stage.activations for stage in kept) * job.num_blocks
    alone = len(kept) == 1 and job.settings.recompute == "none"
    if 0 < layers < job.num_blocks and layers == int(layers) and alone:
        options["cpu-offloading-num-layers"] = int(layers)
    return options


def hides_shared_experts(job: LaunchJob) -> bool:
    """Return whether experts of all tokens can work beside all-to-alls.

    ``core/transformer/transformer_config.py`` refuses it where passes hide these, or
    where no dispatcher sends any.
    """
    kind = job.workload.software.moe_token_dispatcher_type
    pairs = job.settings.overlap_moe_expert_parallel_comm
    has_any = job.model.moe_shared_expert_intermediate_size > 0
    return has_any and not pairs and kind != "allgather"


def _overlaps(job: LaunchJob) -> Raw:
    execution, plan = job.workload.execution, job.settings
    options = dict(_written("overlaps", execution))
    if plan.virtual_pipeline_model_parallel_size == 1:
        options.pop("no-overlap-p2p-communication", None)
    if not plan.sequence_parallel or plan.tensor_model_parallel_size == 1:
        options.pop("tp-comm-overlap", None)
    if not _sharding(job) or "overlap-grad-reduce" not in options:
        options.pop("overlap-param-gather", None)
    if not plan.overlap_moe_expert_parallel_comm:
        options.pop("delay-wgrad-compute", None)
    if not hides_shared_experts(job):
        options.pop("moe-shared-expert-overlap", None)
    return options | _graphs(job)


def _graphs(job: LaunchJob) -> Raw:
    """Return what captures CUDA graphs: of layers the parts that the model has."""
    software, model = job.workload.software, job.model
    if software.captures_step:
        return {
            "cuda-graph-impl": "local",
            "cuda-graph-scope": "full_iteration",
            "no-check-for-nan-in-loss-and-grad": True,
            "te-rng-tracker": True,
        }
    present = {
        "attn": True,
        "mlp": any("dense" in kind for kind in model.block_kinds.values()),
        "mamba": model.has_mamba,
        "moe_router": bool(model.num_moe_experts),
        "moe_preprocess": bool(model.num_moe_experts),
    }
    scope = tuple(name for name in software.cuda_graph_modules if present[name])
    # transformer_config.py (core_v0.16.1): layers that run again are in no graph.
    again = strongest(job.settings.recompute_by_stage()) in {"full", "stage"}
    if software.cuda_graphs != "layers" or again or not scope:
        return {}
    return {
        "cuda-graph-impl": "transformer_engine",
        "cuda-graph-scope": scope,
        "te-rng-tracker": True,
    }
