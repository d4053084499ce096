"""What a launch of DeepSpeed says, as tables of a scenario.

DeepSpeed's batch is micro-batch x accumulation steps x data-parallel size
(``deepspeed/runtime/config.py``, ``_batch_assertion``): of the four numbers, what is
missing follows from the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimators.grouping import Grouping
from nestsim.launch.formats.deepspeed.config import ConfigFacts, read_config
from nestsim.launch.formats.deepspeed.script import (
    TABLE,
    TrainerOptions,
    architecture,
    built_model,
)
from nestsim.launch.ranks import placement_settings
from nestsim.launch.read import OptionEffects, Settings
from planner.plans.spec import DEFAULT_ORDER
from planner.search.placements import Extents
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.input_file import Value

PRESET = "deepspeed"
"""Preset of what is read."""

ALGORITHMS: Mapping[str, str] = TABLE.facts["algorithms"]
"""Our name of an algorithm -> NCCL's, in the environment variable ``NCCL_ALGO``."""

JSON, TRAINER = "json.", "trainer."
"""What stands before keys of the JSON, and options of trainers other than
Megatron-DeepSpeed, in the table [launch]."""

_SHARDS_ANYWAY = (
    "ZeRO stage 0 shares out the optimizer's states as stage 1 does: DeepSpeed's "
    "optimizer for bf16 in a pipeline."
)
_NOTHING_AGAIN = (
    "Nothing is recomputed: the JSON leaves that to the script (for the Hugging Face "
    "trainer, gradient_checkpointing)."
)

TRAINER_MICRO_BATCH: int = TABLE.facts["trainer_micro_batch"]
"""``per_device_train_batch_size`` of the Hugging Face trainer."""

SIZES = tuple(option.key for option in TABLE.part("sizes"))
"""Settings of [plan] that are options with a size."""


BLOCKS = "type:transformer"
"""Blocks count; what Megatron-DeepSpeed asks for."""

ENDS = "type:transformer|embedding"
"""Embeddings count as a block, too; BigScience's ``--pp-partition-method``."""

METHODS = (BLOCKS, ENDS)
"""Ways to share out the blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedLaunch:
    """What starts a job with DeepSpeed."""

    options: TrainerOptions
    """Options of the script that is started."""

    config: object | None
    """The JSON, parsed; None if there is none."""

    num_devices: int | None = None
    """Devices that are started on; None if nothing says it."""

    devices: IntArray | None = None
    """Device of each rank; None if each rank has the device of its number."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""

    model: Mapping[str, Any] | None = None
    """Table [model] that is given beside it."""

    folder: Path = Path()
    """Folder that files of the model are looked for in."""


@dataclass(slots=True)
class LaunchTables:
    """Tables of a scenario, and how they were come by."""

    tables: dict[str, Settings]
    """``model``, ``training``, ``software`` and ``plan``."""
    num_devices: int
    """Devices of the job."""
    assumptions: list[str]
    """What was assumed, a sentence each."""
    effects: OptionEffects
    """What became of options and keys."""
    kept: Settings
    """What no setting holds."""


def launch_tables(launch: DeepSpeedLaunch) -> LaunchTables:
    """Return what a launch says.

    Raises
    ------
    InputError
        If sizes contradict each other or are missing, or something of it is not known
        here.
    """
    facts = ConfigFacts() if launch.config is None else read_config(launch.config)
    options = launch.options
    assumptions = [*options.replaced.values(), *facts.assumptions]
    model = dict(launch.model or architecture(options, assumptions))
    if "sequence_length" in options.launch and "family" not in model:
        model["sequence_length"] = options.launch["sequence_length"]
    plan = _sizes(options, facts)
    ranks = launch.num_devices if launch.devices is None else launch.devices.size
    batch = _batch(options, facts, plan, ranks, assumptions)
    plan |= facts.plan
    training = _training(options, facts, batch, assumptions)
    stage = _zero_stage(options, facts, plan)
    if not stage and _shards_anyway(plan, training):
        stage = 1
        assumptions.append(_SHARDS_ANYWAY)
    plan["zero_stage"] = stage
    if options.launch.get("offload"):
        plan |= {"offload_optimizer": 1.0, "offload_weights": 1.0}
    if stage < 3:
        plan.pop("offload_weights", None)
        plan.pop("zero_hpz_partition_size", None)
    if stage < 1:
        plan.pop("offload_optimizer", None)
    if not stage:
        plan.pop("sharding_group_size", None)
    plan |= _recompute(options, plan, assumptions)
    _add_layout(plan, model, options, launch.folder)
    plan |= _placement(launch.devices, plan)
    plan |= _algorithms(launch.environment)
    used = plan["data_parallel_size"] * _model_ranks(plan)
    if "zero_hpz_partition_size" in plan:
        # Groups are no larger than the world (deepspeed/utils/groups.py:944).
        plan["zero_hpz_partition_size"] = min(plan["zero_hpz_partition_size"], used)
    return LaunchTables(
        tables={
            "model": model,
            "training": training,
            "software": _software(facts, plan),
            "plan": plan,
        },
        num_devices=launch.num_devices or used,
        assumptions=assumptions,
        effects=options.effects + facts.effects,
        kept=_kept(options, facts),
    )


def _kept(options: TrainerOptions, facts: ConfigFacts) -> Settings:
    """Return what no setting holds, by names that tell where it stands."""
    outer = "" if options.is_megatron else TRAINER
    return {f"{outer}{name}": one for name, one in options.kept().items()} | {
        f"{JSON}{name}": one for name, one in facts.kept().items()
    }


def _model_ranks(plan: Mapping[str, Any]) -> int:
    """Return the ranks of one replica."""
    tp, pp, cp = (int(plan[name]) for name in SIZES[:3])
    return tp * pp * cp


def _sizes(options: TrainerOptions, facts: ConfigFacts) -> Settings:
    """Return the parallel sizes but for the replicas."""
    plan: Settings = dict.fromkeys(SIZES, 1)
    plan |= facts.sizes
    plan |= {
        name: value
        for name, value in options.plan.items()
        if name in {*SIZES, "sequence_parallel", "schedule"}
    }
    if options.launch.get("no_pipeline"):
        plan["pipeline_model_parallel_size"] = 1
    if plan["context_parallel_size"] > 1:
        plan["cp_comm_type"] = "a2a"
    is_mixture = options.model.get("num_moe_experts", 1) > 1
    splits = options.launch.get("expert_tensor", False)
    if is_mixture and plan["tensor_model_parallel_size"] > 1 and not splits:
        raise InputError(
            "holds every expert as often as there are tensor-parallel ranks, which "
            "plans here do not",
            where="--moe-expert-parallel-size",
            expected="--enable-expert-tensor-parallelism beside it, or a tensor-"
            "parallel size of 1",
        )
    return plan


def _batch(
    options: TrainerOptions,
    facts: ConfigFacts,
    plan: Settings,
    ranks: int | None,
    assumptions: list[str],
) -> int:
    """Put micro-batch and replicas into the plan, and return the global batch."""
    # What the JSON says holds; options of the script fill in what it leaves open.
    batch = _BatchNumbers(
        total=facts.train_batch or options.training.get("global_batch_size") or 0,
        micro=facts.micro_batch or options.plan.get("micro_batch_size") or 0,
        steps=facts.accumulation or options.launch.get("accumulation") or 0,
        replicas=_replicas(ranks, _model_ranks(plan)),
    )
    if not batch.micro and "train_micro_batch_size_per_gpu" in facts.automatic:
        batch.micro = TRAINER_MICRO_BATCH
        assumptions.append(
            f"A microbatch has {batch.micro} sequences, the trainer's default "
            "per_device_train_batch_size: the JSON leaves it to the trainer."
        )
    if not batch.total and not batch.steps:
        batch.steps = 1
        assumptions.append(
            "Gradients are not accumulated: nothing says over how many microbatches."
        )
    batch.complete()
    plan["micro_batch_size"] = batch.micro
    plan["data_parallel_size"] = batch.replicas
    return batch.total


def _replicas(ranks: int | None, inner: int) -> int:
    """Return how many replicas the ranks make; 0 if nothing says how many there are."""
    if ranks is None:
        return 0
    if ranks % inner:
        raise InputError(
            "the ranks do not make whole replicas",
            got=f"{ranks} ranks, {inner} in a replica",
            expected="a multiple of the tensor-, pipeline- and sequence-parallel sizes",
        )
    return ranks // inner


@dataclass(slots=True)
class _BatchNumbers:
    """The four numbers of a batch; 0 for those that are not known yet."""

    total: int
    """Sequences of a step."""
    micro: int
    """Sequences of a microbatch."""
    steps: int
    """Microbatches of a replica."""
    replicas: int
    """Replicas."""

    def complete(self) -> None:
        """Make the missing numbers of the others, as DeepSpeed does.

        Raises
        ------
        InputError
            If too few are known, or they contradict each other.
        """
        if not self.replicas and self.total and self.micro and self.steps:
            self.replicas = max(self.total // (self.micro * self.steps), 1)
        if not self.replicas:
            raise InputError(
                "nothing says how many devices the job runs on",
                expected="the number of devices, or train_batch_size, "
                "train_micro_batch_size_per_gpu and gradient_accumulation_steps",
            )
        if not self.micro and not self.total:
            raise InputError(
                "nothing says the size of a microbatch",
                where="train_micro_batch_size_per_gpu",
                expected="a number, or train_batch_size beside it",
            )
        self._follow()
        made = self.micro * self.steps * self.replicas
        if self.total != made:
            raise Value(self.total, "train_batch_size").error(
                "is not micro-batch x accumulation steps x replicas, as DeepSpeed asks",
                f"{self.micro} x {self.steps} x {self.replicas} = {made}",
            )

    def _follow(self) -> None:
        if not self.micro:
            self.steps = self.steps or 1
            self.micro = max(self.total // (self.steps * self.replicas), 1)
        if not self.total:
            self.total = self.micro * self.steps * self.replicas
        if not self.steps:
            self.steps = max(self.total // (self.micro * self.replicas), 1)


def _zero_stage(
    options: TrainerOptions, facts: ConfigFacts, plan: Mapping[str, Any]
) -> int:
    stage = facts.zero_stage
    if stage is None:
        stage = options.launch.get("zero_stage", 0)
    if plan["pipeline_model_parallel_size"] > 1 and stage > 1:
        raise Value(stage, "zero_optimization.stage").error(
            "does not go with a pipeline in DeepSpeed "
            "(deepspeed/runtime/pipe/engine.py)",
            "0 or 1, or --no-pipeline-parallel",
        )
    return int(stage)


def _shards_anyway(plan: Mapping[str, Any], training: Mapping[str, Any]) -> bool:
    """Return whether states are shared out without ZeRO.

    A pipeline in bf16 has ``BF16_Optimizer`` (``deepspeed/runtime/engine.py``,
    ``_do_optimizer_sanity_check``; ``runtime/bf16_optimizer.py``).
    """
    is_pipeline = bool(plan["pipeline_model_parallel_size"] > 1)
    return is_pipeline and bool(training["precision"] == "bf16")


def _recompute(
    options: TrainerOptions, plan: Settings, assumptions: list[str]
) -> Settings:
    """Return what is recomputed, and drop what hosts would keep of it otherwise."""
    launch = options.launch
    found: Settings = {"recompute": launch.get("recompute_granularity", "none")}
    every = launch.get("recompute_num_layers", 1)
    if launch.get("checkpoint_activations") or launch.get("gradient_checkpointing"):
        found["recompute"] = "full"
        every = launch.get("checkpoint_num_layers", 1)
    elif found["recompute"] == "full" and launch.get("recompute_method") == "block":
        found["recompute_num_layers"], every = every, 1
        _check_block_method(plan)
    elif not options.is_megatron and "gradient_checkpointing" not in launch:
        assumptions.append(_NOTHING_AGAIN)
    if found["recompute"] == "full" and every > 1:
        assumptions.append(
            f"Each block is recomputed from its own input, not {every} blocks at a "
            "time."
        )
    on_host = launch.get("checkpoint_in_cpu") or plan.pop("offload_activations", 0.0)
    if found["recompute"] == "full" and on_host:
        found["offload_activations"] = 1.0
    return found


def _check_block_method(plan: Mapping[str, Any]) -> None:
    """Refuse to recompute some blocks of the stages of a pipeline."""
    if plan["pipeline_model_parallel_size"] > 1:
        raise Value("block", "--recompute-method").error(
            "is not what DeepSpeed's pipeline recomputes by",
            "uniform, or --checkpoint-activations",
        )


def _add_layout(
    plan: Settings, model: Mapping[str, Any], options: TrainerOptions, folder: Path
) -> None:
    """Say how many blocks each stage holds where they are not equally many."""
    pp = plan["pipeline_model_parallel_size"]
    if pp == 1:
        return
    method = options.launch.get("partition_method", BLOCKS)
    if method not in METHODS:
        raise Value(method, "--pp-partition-method").error(
            "is no way to share out blocks that is known here", " or ".join(METHODS)
        )
    spec = built_model(model, folder)
    blocks, tied = spec.num_layers, spec.tie_word_embeddings
    if pp > blocks + 2:  # the ends of the chain may be stages of their own
        raise Value(pp, "--pipeline-model-parallel-size").error(
            "are more stages than the model has blocks", f"at most {blocks + 2}"
        )
    counts = shared_blocks(blocks, pp, method, tied=tied)
    if len(set(counts)) > 1:
        plan["pipeline_model_parallel_layout"] = list(counts)


def shared_blocks(
    num_blocks: int, num_stages: int, method: str, *, tied: bool
) -> tuple[int, ...]:
    """Return the blocks of each stage.

    ``PipelineModule`` gives weight 1 to the layers whose class matches a type, 0 to all
    others, and parts them as evenly as it can: the first parts have one more
    (``deepspeed/runtime/utils.py``, ``partition_balanced``, 0.19.8).

    Parameters
    ----------
    num_blocks, num_stages
        Blocks of the model, stages of the pipeline.
    method
        One of `METHODS`.
    tied
        Whether the head is a second embedding; it counts then under `ENDS`.

    Examples
    --------
    >>> shared_blocks(10, 4, BLOCKS, tied=True)
    (3, 3, 2, 2)
    >>> shared_blocks(10, 4, ENDS, tied=True)
    (2, 3, 3, 2)
    """
    leads, trails = (1, int(tied)) if method == ENDS else (0, 0)
    least, more = divmod(num_blocks + leads + trails, num_stages)
    counts = [least + (stage < more) for stage in range(num_stages)]
    counts[0] -= leads
    counts[-1] -= trails
    return tuple(counts)


def _placement(devices: IntArray | None, plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the order or the placement that ranks stand in."""
    tp, pp, cp, ep = (int(plan[name]) for name in SIZES)
    dp, grouping = plan["data_parallel_size"], Grouping.of((tp, cp, ep))
    if dp % grouping.replica_unit((tp, cp, ep)):
        raise Value(ep, "--moe-expert-parallel-size").error(
            "does not divide the ranks that experts are spread over",
            f"a divisor of {dp * cp}",
        )
    ep = 1 if grouping.is_folded else ep
    extents = Extents(tp, cp, ep, dp // ep, pp)
    return placement_settings(devices, extents, DEFAULT_ORDER)


def _algorithms(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the algorithm that NCCL is told to use, for all collectives."""
    named = environment.get("NCCL_ALGO", "").lower()
    for ours, theirs in ALGORITHMS.items():
        if named == theirs.lower():
            return {"gradient_algorithm": ours, "tensor_algorithm": ours}
    return {}


def _training(
    options: TrainerOptions, facts: ConfigFacts, batch: int, assumptions: list[str]
) -> Settings:
    """Return the table [training]; the JSON decides, as in DeepSpeed."""
    given = {
        name: value
        for name, value in options.training.items()
        if name != "global_batch_size"
    }
    table = {"global_batch_size": batch, **given, **facts.training}
    if "precision" not in table and not options.is_megatron:
        assumptions.append("Precision is bf16: nothing says it.")
    table.setdefault("precision", "fp32" if options.is_megatron else "bf16")
    if table["precision"] == "fp32":
        table.pop("gradient_precision", None)
    return table


def _software(facts: ConfigFacts, plan: Mapping[str, Any]) -> Settings:
    """Return the table [software]: a pipeline reduces behind its last pass."""
    table: Settings = {"preset": PRESET}
    if plan["pipeline_model_parallel_size"] == 1:
        table |= {name: True for name, on in facts.software.items() if on}
    return table
