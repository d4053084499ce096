"""What frameworks train with whatever a plan asks for, and where a plan differs.

Frameworks have models by name, and Llamas of any size: which models are alike is here,
too.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from nestsim.launch.job import LaunchGap, LaunchJob
from nestsim.scenario.model import DOCUMENTS, ROUTING, TAKEN_OF_ROUTING
from planner.frameworks.framework import PRESETS
from planner.frameworks.options import OptionTable
from planner.plans.spec import DEFAULT_ORDER
from topologies.input_file import Value

_EXECUTION = (
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm"),
    *("tp_comm_overlap", "cpu_adam"),
    *("delay_wgrad_compute", "moe_shared_expert_overlap"),
)


def stated_gaps(
    job: LaunchJob,
    table: OptionTable,
    cases: Mapping[str, bool],
    values: Mapping[str, Any],
) -> Iterator[LaunchGap]:
    """Yield what a framework cannot say, in the order of the reasons in its table.

    Parameters
    ----------
    job
        The job.
    table
        Options of the framework.
    cases
        Whether a gap of the table is one of the job; `_common_cases` are known.
    values
        Setting -> its value, where it is none of the job's; other words of reasons.
    """
    cases = {**_common_cases(job, table.name), **cases}
    for name, reason in table.gaps.items():
        setting = name.partition(":")[0]
        if cases.get(name, False):
            value = values.get(setting)
            value = setting_value(job, setting) if value is None else value
            yield LaunchGap(setting, value, reason.format(**values))


def _common_cases(job: LaunchJob, framework: str) -> dict[str, bool]:
    """Return what a job asks for that some framework has no words for."""
    settings, parallel = job.settings, job.plan.parallel
    usual = PRESETS[framework].execution
    execution = job.workload.execution
    cases = {
        "recompute: stage": settings.recompute == "stage",
        "expert_model_parallel_size: over all ranks": parallel.grouping.is_folded,
        "expert_model_parallel_size: within data": parallel.experts_within_data,
    }
    for name in (
        *("num_microbatches", "hierarchical_context_parallel_sizes"),
        *("expert_tensor_parallel_size", "pipeline_model_parallel_layout"),
        *("recompute_num_layers", "reshard_after_forward"),
        "microbatch_group_size_per_vp_stage",
    ):
        cases[name] = getattr(settings, name) is not None
    cases["model.moe_expert_capacity_factor"] = job.model.moe_expert_capacity_factor > 0
    cases["model.moe_expert_placement"] = job.model.moe_expert_placement != "linear"
    cases["zero_hpz_partition_size"] = settings.zero_hpz_partition_size != 1
    for name in ("gradient_algorithm", "tensor_algorithm"):
        cases[name] = getattr(settings, name) != "auto"
    for name in ("recompute", "zero_stage", "sharding_group_size"):
        cases[f"{name}: of each stage"] = isinstance(getattr(settings, name), tuple)
    for name in _EXECUTION:
        differs = getattr(execution, name) != getattr(usual, name)
        cases[f"software.{name}"] = differs
    return cases


def order_cases(job: LaunchJob, *, is_usual: bool) -> dict[str, bool]:
    """Return which of two settings puts ranks where a framework does not.

    ``is_usual`` is whether it puts them where the plan does.
    """
    is_order = job.settings.placement is None
    return {"order": is_order and not is_usual, "placement": not (is_order or is_usual)}


def setting_value(job: LaunchJob, setting: str) -> Any:
    """Return the value of a setting of a job, of the plan where it is of no table."""
    table, _, name = setting.rpartition(".")
    plan, workload = job.plan, job.workload
    holders: tuple[Any, ...] = (plan, plan.parallel, plan.stages[0])
    if table:
        holders = {
            "model": (job.model,),
            "training": (job.training,),
            "software": (workload.execution, workload.software),
        }[table]
    elif name == "order":
        return job.settings.order or DEFAULT_ORDER
    elif (value := getattr(job.settings, name)) is not None:
        return list(value) if isinstance(value, tuple) else value
    return next(getattr(holder, name) for holder in holders if hasattr(holder, name))


def written_plain(job: LaunchJob, table: OptionTable, settings: str) -> dict[str, Any]:
    """Return the options that are one setting of a table each, by the job's values."""
    return {
        name: option.word(setting_value(job, option.setting))
        for name, option in table.plain(settings).items()
    }


def sizes_in_words(spec: TransformerSpec) -> str:
    """Return the sizes of a model, for those who must write it down elsewhere."""
    sizes = {field.name: getattr(spec, field.name) for field in fields(spec)}
    named = ("num_", "hidden_", "ffn_", "moe_", "vocab_")
    elsewhere = {*TAKEN_OF_ROUTING, "moe_expert_placement"}
    return ", ".join(
        f"{name} {value}"
        for name, value in sizes.items()
        if name.startswith(named) and value and name not in elsewhere
    )


_IN_FULL = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_NOT_THERE = ("fp8_param_gather", "gradient_copies", "casts_gradients")
_AS_KEPT = ("moe_dispatch_precision", "gather_precision", "reduce_precision")
"""Settings of training whose masters and states are in fp32, without extras."""


def training_gaps(
    job: LaunchJob, framework: str, matmuls: Iterable[str], usual: Mapping[str, Any]
) -> Iterator[LaunchGap]:
    """Yield the settings of [training] that are others than a framework's.

    That is mixed precision with masters and states in fp32, no extras, and full
    microbatches.

    Parameters
    ----------
    job
        The job.
    framework
        What sentences call the framework.
    matmuls
        Formats of products that it has beside that of the weights.
    usual
        Setting -> what it has, where that is neither.
    """
    matmul = job.training.matmul_precision
    known: dict[str, Any] = {
        **dict.fromkeys(_IN_FULL, "fp32"),
        **dict.fromkeys(_NOT_THERE, False),
        **dict.fromkeys(_AS_KEPT, ""),
        "matmul_precision": matmul if matmul in set(matmuls) else "",
        "adapter": "none",
        **usual,
    }
    replicas = job.plan.parallel.data_parallel_size
    batch = job.plan.micro_batch_size * replicas * job.plan.num_microbatches
    known["global_batch_size"] = batch
    for field in fields(job.training):
        value = getattr(job.training, field.name)
        if field.name in known and value != known[field.name]:
            has = "none of its own" if known[field.name] == "" else known[field.name]
            reason = f"{framework} has {has}."
            yield LaunchGap(f"training.{field.name}", value, reason)
    if ramp := job.training.rampup_batch_size:
        reason = "The launch trains whole batches from its first step on."
        yield LaunchGap("training.rampup_batch_size", list(ramp), reason)


def expert_group_gaps(job: LaunchJob, framework: str) -> Iterator[LaunchGap]:
    """Yield experts that are spread over data-parallel ranks alone, which few do."""
    parallel = job.plan.parallel
    if parallel.experts_within_data:
        ranks = "over all ranks of a stage, the plan over data-parallel ranks alone."
        reason = f"{framework} spreads experts {ranks}"
        size = parallel.expert_model_parallel_size
        yield LaunchGap("expert_model_parallel_size", size, reason)


_SOME_LLAMA = "llama3-8b"

_SIZES = frozenset(
    {
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"),
        *("num_query_groups", "vocab_size", "sequence_length", "kv_channels"),
        *("max_position_embeddings", "attention_implementation"),
        *(*ROUTING, *TAKEN_OF_ROUTING, *DOCUMENTS),
    }
)

_OF_TRAINING = frozenset(
    {
        *("sequence_length", "max_position_embeddings", "attention_implementation"),
        *("mtp_num_layers", *ROUTING, *TAKEN_OF_ROUTING, *DOCUMENTS),
    }
)
"""What a job may have otherwise than the library, with the same weights otherwise."""


def left_over(devices: int | None, others: int, where: str, what: str) -> int:
    """Return a size that is left open: the devices over those of other sizes.

    Raises
    ------
    InputError
        If nothing says how many devices there are, or the others do not divide them.
    """
    if devices is None:
        raise Value(-1, where).error(
            "takes all devices that are left, and nothing says how many there are",
            "--num-devices N",
        )
    if devices % others or not devices:
        raise Value(f"{devices} devices", where).error(
            f"the devices do not split by the other {what}", f"a multiple of {others}"
        )
    return devices // others


def strongest(modes: Iterable[str]) -> str:
    """Return the recompute mode that keeps least."""
    return max(modes, key=("none", "selective", "full", "stage").index)


def decoder_family(model: Mapping[str, Any]) -> str:
    """Return the family of a decoder of Megatron's that a table [model] spells out."""
    if "num_moe_experts" in model:
        return "mixtral"
    rms = model["normalization"] == "rmsnorm"
    return "llama" if rms and model["gated_linear_unit"] else "gpt"


def gated_width(hidden_size: int) -> int:
    """Return the width of a SwiGLU that Megatron takes where nothing says it.

    Two thirds of four times the model's, in steps of 64 (``validate_args`` of
    ``megatron/training/arguments.py``).
    """
    return int(4 * hidden_size * 2 / 3 / 64) * 64


def is_published(spec: TransformerSpec, name: str) -> bool:
    """Whether a model is one of the library but for how it is trained.

    Its length of sequences, its kernel of attention, and layers that predict further
    ahead may be others.
    """
    return _differ_in(spec, load_model(name), _OF_TRAINING)


def is_llama(spec: TransformerSpec, *, tied: bool = False) -> bool:
    """Whether a model differs from Llama 3 in its sizes only.

    Parameters
    ----------
    spec
        The model.
    tied
        Whether the output layer may share the word embedding's weight.
    """
    others = _SIZES | ({"tie_word_embeddings"} if tied else set())
    return _differ_in(spec, load_model(_SOME_LLAMA), others)


def _differ_in(
    spec: TransformerSpec, known: TransformerSpec, names: Collection[str]
) -> bool:
    """Whether two models are alike in all but some fields."""
    return all(
        field.name in names or getattr(spec, field.name) == getattr(known, field.name)
        for field in fields(spec)
    )
