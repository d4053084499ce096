"""What a plan, its training and its software say and torchtitan has no words for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nestsim.launch.carried import carried_options
from nestsim.launch.formats.torchtitan.names import (
    COMMAND_VERSION,
    CONVERTERS,
    EVERY_NTH,
    OPTIONS,
    SCHEDULE,
    TABLE,
    TOML_FORMAT,
    TOML_VERSION,
    Flavor,
)
from nestsim.launch.formats.torchtitan.snippets import has_arguments
from nestsim.launch.formats.torchtitan.splits import blocks_again
from nestsim.launch.formats.usual import (
    order_cases,
    sizes_in_words,
    stated_gaps,
    training_gaps,
)
from nestsim.launch.job import LaunchGap, LaunchJob
from planner.plans.spec import DEFAULT_ORDER
from planner.step.plan import Offload


def every_nth(job: LaunchJob) -> str:
    """Return which blocks are computed again; empty if torchtitan cannot say it.

    "2" for every second one.
    """
    settings, blocks = job.settings, job.num_blocks
    if settings.recompute != "full" or settings.recompute_num_layers is None:
        return ""
    chunks = len(job.blocks_by_virtual_stage())
    fitting = [
        str(every)
        for every in range(2, blocks + 1)
        if blocks_again(blocks, chunks, every) == settings.recompute_num_layers
    ]
    named = str((carried_options(job, TOML_FORMAT) or {}).get(EVERY_NTH[1], ""))
    return named if named in fitting else next(iter(fitting), "")


_LACKING: Mapping[str, Sequence[str]] = TABLE.facts["lacking"]
"""Version -> cases of the table's gaps that are those of this one alone."""


def version_of(job: LaunchJob) -> str:
    """Return the version that a job names by its release, or the one with a TOML."""
    rules = job.scenario.search.rules
    newer = rules is not None and rules.framework == "torchtitan 0.3"
    return COMMAND_VERSION if newer else TOML_VERSION


def find_gaps(
    job: LaunchJob, flavor: Flavor | None, *, of_other: bool = False
) -> Iterator[LaunchGap]:
    """Yield what cannot be expressed of a job whose model is a flavor, or None.

    In the version that the job names; or what the other one alone cannot express.
    """
    training = job.training
    pure = is_pure(job)
    usual = {
        "precision": training.precision if training.precision != "fp16" else "bf16",
        "optimizer": "adam-bf16" if pure else "adam",
        "gradient_precision": "bf16" if pure else "fp32",
        "weights_in_fp32": not pure,
        "gather_precision": "fp8" if training.gather_precision == "fp8" else "",
    }
    if not of_other:
        yield from training_gaps(job, "torchtitan", CONVERTERS.values(), usual)
    parallel = job.plan.parallel
    values: dict[str, Any] = {
        "model": job.model.family if flavor is None else flavor.flavor,
        "sizes": sizes_in_words(job.model),
        "software.moe_token_dispatcher_type": "flex",
    }
    if parallel.expert_model_parallel_size > 1:
        etp = parallel.grouping.etp or parallel.tensor_model_parallel_size
        values["expert_tensor_parallel_size"] = etp
    cases = {
        "model: no flavor": flavor is None and not has_arguments(job.model),
        "model: not in 0.2.2": flavor is not None and not flavor.in_toml,
        "model: not in 0.3.0": flavor is not None and not flavor.in_command,
        "model.mtp_num_layers": bool(job.model.mtp_num_layers),
        **_group_cases(job),
        **_pipeline_cases(job),
        **_saving_cases(job),
        **_sharding_cases(job),
        **order_cases(job, is_usual=job.is_in_order(DEFAULT_ORDER)),
    }
    others = {
        case
        for version, lacking in _LACKING.items()
        for case in lacking
        if version != version_of(job)
    }
    chosen = {name: has and (name in others) == of_other for name, has in cases.items()}
    known = set() if not of_other else TABLE.gaps.keys() - others
    yield from stated_gaps(
        job, TABLE, {**dict.fromkeys(known, False), **chosen}, values
    )


def is_pure(job: LaunchJob) -> bool:
    """Whether weights and states of the optimizer are in 16 bits alone."""
    training = job.training
    return training.optimizer == "adam-bf16" and not training.weights_in_fp32


def _pipeline_cases(job: LaunchJob) -> dict[str, bool]:
    plan, graphs = job.plan, job.workload.software.cuda_graphs
    pairs, piped = plan.overlap_moe_expert_parallel_comm, len(plan.stages) > 1
    has_pairs = plan.schedule == "dualpipe-v" and piped
    known = plan.schedule in OPTIONS[SCHEDULE].words.values()
    return {
        "software.cuda_graphs": graphs and not piped,
        "software.cuda_graphs: in a pipeline": graphs and piped,
        "schedule": piped and not known,
        "schedule: of one stage": not (piped or pairs or plan.schedule == "1f1b"),
        "overlap_moe_expert_parallel_comm: DualPipeV": pairs and has_pairs,
        "overlap_moe_expert_parallel_comm: others": pairs and not has_pairs,
    }


def _group_cases(job: LaunchJob) -> dict[str, bool]:
    parallel = job.plan.parallel
    tp, cp = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    ep, etp = parallel.expert_model_parallel_size, parallel.grouping.etp
    return {
        "cp_comm_type: p2p": cp > 1 and parallel.cp_comm_type == "p2p",
        "cp_comm_type: heads": cp > 1
        and parallel.cp_comm_type not in ("p2p", "all_gather"),
        "sequence_parallel": tp > 1 and not parallel.sequence_parallel,
        "expert_tensor_parallel_size: alone": ep == 1 and bool(etp),
        "expert_tensor_parallel_size: split as the rest": ep > 1
        and tp > 1
        and etp in (0, tp),
        "expert_tensor_parallel_size: split": ep > 1
        and tp > 1
        and etp not in (0, 1, tp),
        "software.moe_token_dispatcher_type": ep > 1
        and bool(job.workload.software.ranks_per_node),
    }


def _saving_cases(job: LaunchJob) -> dict[str, bool]:
    settings = job.settings
    saves = job.workload.software.saves_products
    some, every = settings.recompute_num_layers is not None, bool(every_nth(job))
    kept = {stage.offload for stage in job.plan.stages}
    together = kept == {Offload(1.0, 1.0, 1.0, 0.0)}
    return {
        "recompute: selective": settings.recompute == "selective" and not saves,
        "recompute_num_layers: every n-th": some and every,
        "recompute_num_layers: others": some and not every,
        **{
            f"offload_{part}": not together
            and getattr(settings, f"offload_{part}") != 0.0
            for part in Offload._fields
        },
    }


def _sharding_cases(job: LaunchJob) -> dict[str, bool]:
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp, dp = parallel.context_parallel_size, parallel.data_parallel_size
    if isinstance(job.settings.zero_stage, tuple) or dp * cp == 1:
        return {}
    others = parallel.tensor_model_parallel_size * len(job.plan.stages)
    ep = parallel.expert_model_parallel_size
    zero, group = stage.zero_stage, stage.sharding_group_size
    whole = group % cp == 0 and dp % max(group // cp, 1) == 0
    return {
        "zero_stage: 1": zero == 1,
        "zero_stage: 0 with cp": zero == 0 and cp > 1,
        "zero_stage: 0 with others": zero == 0 and cp == ep == 1 < others,
        "sharding_group_size": bool(zero) and (not whole or group == 1),
    }
