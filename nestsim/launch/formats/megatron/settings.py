"""A job as options of Megatron-LM, in groups that a person can read.

What an option says beside its setting in `options.TABLES` is written from there; here
is what takes several options: norms of experts, layouts, recompute, sharding, number
formats. What Megatron-LM has no option for is left to `gaps`, which reads the options
back and tells what is missing.
"""

from collections.abc import Iterator, Mapping

from estimators.layers.saved_activations import ATTENTION_CORE
from estimators.models.spec import FIRST_DECODER_BLOCK, TransformerSpec
from estimators.models.words import HYBRID_KINDS
from nestsim.launch.carried import OptionGroup
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.patterns import write_layout, write_list
from nestsim.launch.formats.usual import strongest
from nestsim.launch.job import LaunchJob
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import LaunchRules
from planner.frameworks.splits import LAYOUT, counted_ends, has_other_ends
from planner.step.schedules.language import round_length

Values = tuple[str, ...]
"""What stands behind an option; nothing behind a flag."""

Options = dict[str, Values]
"""Options without their dashes, in order."""

_NARROW: Mapping[str, Mapping[str, str]] = known.TABLE.facts["narrow"]
"""Format of products with weights -> its options."""


def job_options(job: LaunchJob) -> tuple[OptionGroup, ...]:
    """Return the options of a job, group by group, those without any left out."""
    model = job.model
    groups = (
        ("MODEL_ARGS", "The architecture.", _architecture(model) | _layers(job)),
        ("MOE_ARGS", "Mixture of experts.", _experts(model) | _dispatch(job)),
        ("MLA_ARGS", "Multi-head latent attention.", _latent(model)),
        ("MAMBA_ARGS", "Mamba-2 layers among the blocks.", _mamba(model)),
        ("PARALLEL_ARGS", "How ranks share the work.", _parallel(job)),
        ("BATCH_ARGS", "Batch and optimizer.", _training(job)),
        ("PRECISION_ARGS", "Number formats.", _precision(job)),
        ("MEMORY_ARGS", "What saves memory.", _memory(job)),
        ("OVERLAP_ARGS", "What is hidden behind compute.", _overlaps(job)),
    )
    return tuple(
        OptionGroup(name=name, comment=comment, options=options)
        for name, comment, options in groups
        if options
    )


def model_options(model: TransformerSpec) -> Options:
    """Return the options of an architecture alone."""
    return {
        **_architecture(model),
        **_experts(model),
        **_latent(model),
        **_mamba(model),
        "vocab-size": (str(model.vocab_size),),
    }


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


def _written(part: str, source: object) -> Iterator[tuple[str, Values]]:
    """Yield the options of a part whose setting is not Megatron-LM's default."""
    for option in known.TABLE.part(part):
        value = getattr(source, option.key, None)
        if value is not None and (option.always or value != option.usual):
            words = option.written(value)
            if words is not None:
                yield option.name, words


def _architecture(model: TransformerSpec) -> Options:
    options = dict(_written("architecture", model))
    if model.family == "t5":
        del options["num-layers"], options["seq-length"]
        options |= _encoder_decoder(model)
    if model.family == "vit":
        options |= {
            "num-classes": (str(model.vocab_size),),
            "img-h": (str(model.image_size),),
            "img-w": (str(model.image_size),),
            "patch-dim": (str(model.patch_size),),
        }
    if model.family == "bert" and not model.bert_binary_head:
        options["bert-no-binary-head"] = ()
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
        options |= {"group-query-attention": (), "num-query-groups": (str(groups),)}
    options |= _windows(model)
    if model.attention_implementation == "plain":
        options["attention-backend"] = ("unfused",)
    return options


def _layers(job: LaunchJob) -> Options:
    """Return whose layers run: Megatron-LM's own, those of its papers, if asked for."""
    own = job.scenario.software_preset == "megatron-lm"
    return {"transformer-impl": ("local",)} if own else {}


def _encoder_decoder(model: TransformerSpec) -> Options:
    encoder = model.block_pattern.index(FIRST_DECODER_BLOCK)
    return {
        "encoder-num-layers": (str(encoder),),
        "decoder-num-layers": (str(model.num_layers - encoder),),
        "encoder-seq-length": (str(model.sequence_length),),
        "decoder-seq-length": (str(model.decoder_sequence_length),),
    }


def _activation(model: TransformerSpec) -> Options:
    """Return the nonlinearity; of gated ones Megatron-LM has SwiGLU alone."""
    if model.gated_linear_unit:
        return {"swiglu": ()}
    if model.nonlinearity == "squared_relu":
        return {"squared-relu": ()}
    return {}


def _windows(model: TransformerSpec) -> Options:
    if not model.window_size:
        return {}
    kinds = model.block_pattern or (model.last_block_kind,) * model.num_layers
    marks = [int("window" in kind.split("+")) for kind in kinds]
    options: Options = {"window-size": (f"{model.window_size - 1},0",)}
    full = [index for index, mark in enumerate(marks, start=1) if not mark]
    if full:
        every = full[0]
        regular = [index for index in range(1, len(marks) + 1) if index % every == 0]
        freq = str(every) if full == regular else write_list(marks)
        options["window-attn-skip-freq"] = (freq,)
    return options


def _experts(model: TransformerSpec) -> Options:
    if not model.num_moe_experts:
        return {}
    options = dict(_written("experts", model))
    marks = [int("experts" in kind.split("+")) for kind in model.block_pattern]
    if marks and not all(marks) and model.family != "mamba":
        options["moe-layer-freq"] = (f"({write_list(marks)})",)
    return options


def _dispatch(job: LaunchJob) -> Options:
    """Return how tokens travel to experts, and what balances them."""
    if not job.model.num_moe_experts:
        return {}
    sent: Options = {"moe-token-dispatcher-type": ("alltoall",)}
    if job.workload.software.ranks_per_node:
        # DeepEP sends a token once to each node that has experts for it.
        sent = {
            "moe-token-dispatcher-type": ("flex",),
            "moe-flex-dispatcher-backend": ("deepep",),
        }
    launch = job.scenario.launch
    if launch is not None and launch.format == known.FORMAT:
        # The rest is what scripts say for themselves, or leave to Megatron-LM.
        return sent if job.plan.parallel.expert_model_parallel_size > 1 else {}
    options: Options = {
        "moe-router-load-balancing-type": ("aux_loss",),
        "moe-aux-loss-coeff": ("1e-3",),
        "moe-token-dispatcher-type": sent.pop("moe-token-dispatcher-type"),
    }
    if job.training.precision == "bf16":
        options["moe-grouped-gemm"] = ()
    if sent:
        options |= {**sent, "moe-router-dtype": ("fp32",)}
    return options


def _latent(model: TransformerSpec) -> Options:
    if not model.kv_lora_rank:
        return {}
    options: Options = {"multi-latent-attention": (), "qk-layernorm": ()}
    for option in known.TABLE.part("latent"):
        if value := getattr(model, option.key):
            options[option.name] = (str(value),)
    return options


def _mamba(model: TransformerSpec) -> Options:
    if not model.has_mamba:
        return {}
    letters = {kind: letter for letter, kind in HYBRID_KINDS.items()}
    kinds = "".join(letters.get(kind, "?") for kind in model.block_pattern)
    spec = tuple(known.TABLE.facts["mamba_spec"])
    options: Options = {"spec": spec, "is-hybrid-model": ()}
    if "?" not in kinds:
        options["hybrid-override-pattern"] = (kinds,)
    return options | dict(_written("mamba", model))


def _parallel(job: LaunchJob) -> Options:
    plan = job.settings
    options = dict(_written("parallel", plan))
    if plan.context_parallel_size > 1:
        options["cp-comm-type"] = (plan.cp_comm_type,)
    if plan.hierarchical_context_parallel_sizes:
        sizes = plan.hierarchical_context_parallel_sizes
        options["hierarchical-context-parallel-sizes"] = tuple(map(str, sizes))
    if job.model.num_moe_experts and (
        plan.expert_model_parallel_size > 1 or plan.expert_tensor_parallel_size
    ):
        tp = plan.expert_tensor_parallel_size or plan.tensor_model_parallel_size
        options["expert-tensor-parallel-size"] = (str(tp),)
    if rank_order(job) == known.PP_INSIDE_ORDER:
        options["use-tp-pp-dp-mapping"] = ()
    v, pp = job.plan.virtual_pipeline_model_parallel_size, len(job.plan.stages)
    length = round_length(pp, job.plan.num_microbatches)
    if v > 1 and length != pp:
        options["microbatch-group-size-per-virtual-pipeline-stage"] = (str(length),)
    return options | _layout(job)


def launch_rules(job: LaunchJob) -> LaunchRules:
    """Return the rules of the release that a job names, or of the usual one."""
    rules = job.scenario.search.rules
    of_megatron = {"megatron-lm", "megatron-core", "nemo"}
    if rules is not None and job.scenario.software_preset in of_megatron:
        return rules
    return FRAMEWORKS["megatron-core"].rules


def _layout(job: LaunchJob) -> Options:
    """Return how blocks are shared out: evenly, by the ends, or by a layout.

    A release without layouts may count the ends of the chain as blocks.
    """
    plan, pp = job.settings, len(job.plan.stages)
    v = plan.virtual_pipeline_model_parallel_size
    blocks = job.blocks_by_virtual_stage()
    chunks: Options = {}
    if v > 1:
        chunks = {"num-virtual-stages-per-pipeline-rank": (str(v),)}
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
            name: (str(v * count),)
            for name, count in (
                ("decoder-first-pipeline-num-layers", blocks[0]),
                ("decoder-last-pipeline-num-layers", blocks[-1]),
            )
            if count != middle
        }
    if not has_layouts and (ends := counted_ends(blocks)):
        names: Options = {f"account-for-{end}-in-pipeline-split": () for end in ends}
        return chunks | names
    return {
        "pipeline-model-parallel-layout": (
            write_layout(blocks, job.model.mtp_num_layers),
        )
    }


def _training(job: LaunchJob) -> Options:
    options = dict(_written("training", job.training))
    states = ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    if any(name in options for name in states):
        options["use-precision-aware-optimizer"] = ()
    if job.training.optimizer == "muon" and max(job.settings.zero_stage_by_stage()):
        # Muon with its states spread over ranks, layer by layer.
        options["optimizer"] = ("dist_muon",)
    return options


def _precision(job: LaunchJob) -> Options:
    training = job.training
    options: Options = {}
    if training.precision != "fp32":
        options[training.precision] = ()
    wide = training.gradient_precision == "fp32"
    if training.precision == "bf16" and not wide:
        options["grad-reduce-in-bf16"] = ()
    elif training.precision != "fp32" and wide:
        options["accumulate-allreduce-grads-in-fp32"] = ()
    for name, value in _NARROW.get(training.matmul_precision, {}).items():
        options[name] = (value,)
    return options


def _memory(job: LaunchJob) -> Options:
    return _recompute(job) | _sharding(job) | _offload(job)


def _recompute(job: LaunchJob) -> Options:
    plan = job.settings
    mode = strongest(plan.recompute_by_stage())
    if mode == "none":
        return {}
    if mode == "selective":
        options: Options = {"recompute-granularity": ("selective",)}
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
        "recompute-granularity": ("full",),
        "recompute-method": (method,),
        "recompute-num-layers": (str(count),),
    }


def _sharding(job: LaunchJob) -> Options:
    plan = job.settings
    stage = max(plan.zero_stage_by_stage())
    if stage == 0 or job.training.optimizer == "muon":
        return {}
    options: Options = {"use-distributed-optimizer": ()}
    if stage > 1:
        strategy = known.TABLE.options["data-parallel-sharding-strategy"]
        options |= {
            "use-megatron-fsdp": (),
            strategy.name: (strategy.word(stage),),
            "no-gradient-accumulation-fusion": (),
            "ckpt-format": ("fsdp_dtensor",),
        }
        if job.training.fp8_param_gather and job.training.keep_fp8_transpose_cache:
            options["keep-fp8-transpose-cache"] = ()
    ranks = job.plan.parallel.data_parallel_size * plan.context_parallel_size
    group = min(plan.sharding_group_by_stage(ranks))
    if group < ranks:
        options["num-distributed-optimizer-instances"] = (str(ranks // group),)
    return options


def _offload(job: LaunchJob) -> Options:
    kept = job.settings.offload_by_stage()
    options: Options = {}
    if part := max(one.optimizer for one in kept):
        options |= {
            "optimizer-cpu-offload": (),
            "optimizer-offload-fraction": (f"{part!r}",),
            "use-precision-aware-optimizer": (),
        }
        if job.workload.execution.cpu_adam:
            options["overlap-cpu-optimizer-d2h-h2d"] = ()
    layers = max(one.activations for one in kept) * job.num_blocks
    alone = len(kept) == 1 and job.settings.recompute == "none"
    if 0 < layers < job.num_blocks and layers == int(layers) and alone:
        options["cpu-offloading-num-layers"] = (str(int(layers)),)
    return options


def _overlaps(job: LaunchJob) -> Options:
    execution, plan = job.workload.execution, job.settings
    options = dict(_written("overlaps", execution))
    if plan.virtual_pipeline_model_parallel_size == 1:
        options.pop("no-overlap-p2p-communication", None)
    if not plan.sequence_parallel or plan.tensor_model_parallel_size == 1:
        options.pop("tp-comm-overlap", None)
    if not _sharding(job) or "overlap-grad-reduce" not in options:
        options.pop("overlap-param-gather", None)
    if job.workload.software.cuda_graphs:
        options |= {
            "cuda-graph-impl": ("local",),
            "cuda-graph-scope": ("full_iteration",),
            "no-check-for-nan-in-loss-and-grad": (),
            "te-rng-tracker": (),
        }
    return options
