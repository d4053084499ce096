"""What each framework can launch: one table of data, with the source of every rule.

A plan that breaks one of these rules may still be simulated, but nobody can start it:
`planner.search.launchable` compares a plan with them, and the search stays inside them
unless a scenario asks for more. Where a rule was read in the framework's code, its
source is the file; where it was not, the source says so.

References
----------
Megatron-LM and Megatron Core: github.com/NVIDIA/Megatron-LM, ``megatron/training`` and
``megatron/core``. DeepSpeed: github.com/deepspeedai/DeepSpeed, ``deepspeed/runtime``.
FSDP and DDP: github.com/pytorch/pytorch, ``torch/distributed``. torchtitan:
github.com/pytorch/torchtitan, ``torchtitan/distributed``. MaxText:
github.com/AI-Hypercomputer/maxtext. InternEvo: github.com/InternLM/InternEvo,
``internlm``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType

from estimators.grouping import CP_COMM_TYPES
from planner.step.plan import Offload
from planner.step.schedules import SCHEDULES

RULES: Mapping[str, str] = MappingProxyType(
    {
        "global_batch": "replicas x micro-batch size x microbatches is the batch",
        "idle_devices": "all devices have work, unless idle ones are asked for",
        "rank_order": "devices are numbered by nesting whole dimensions, tp innermost",
        "pipeline": "a pipeline only where the framework has one",
        "schedule": "a schedule that the framework has",
        "microbatches": "microbatches in a number that the schedule can deal out",
        "split": "blocks shared out over stages and chunks as the framework does it",
        "tensor_parallelism": "tp divides the heads, and goes with the query groups",
        "sequence_parallelism": "sequence parallelism only with tensor parallelism",
        "context_parallelism": "context-parallel ranks share attention in a way that "
        "the framework has",
        "expert_parallelism": "ep divides the experts, and the ranks that the "
        "framework spreads them over",
        "expert_overlap": "all-to-alls of experts behind another microbatch only where "
        "the framework hides them there",
        "zero_stage": "one ZeRO stage for the job, one that the framework has",
        "sharding_group": "one sharding group for the job, one that the framework has",
        "recompute": "one recompute mode for the job, one that the framework has",
        "offload": "the same fractions on all hosts, of what the framework can keep",
    }
)
"""Name of a rule -> what it asks for. Every `LaunchRules` has a source for each."""

EVEN = "even"
"""Every chunk holds the same number of blocks."""

ENDS = "ends"
"""The first and the last stage may hold other numbers of blocks than the stages
between, which are alike; each stage shares its blocks evenly over its chunks."""

ACCOUNTED = "accounted"
"""As `EVEN`, where the embedding, or final norm, head and loss, or both, may count as
one block each."""

ROUNDS = "rounds"
"""Each round of chunks holds as many blocks, shared out with at most one more in some
chunks than in others."""

BALANCED = "balanced"
"""Numbers of blocks differ by one at most, the ends of the chain counting or not, as in
`ACCOUNTED`."""

LAYOUT = "layout"
"""Any number of blocks in any chunk, written out one by one."""


INTERLEAVED = "interleaved"
ALWAYS = "always"

Order = tuple[str, ...]
"""Parallel dimensions, innermost first; ``dp`` are the replicas of each expert."""

ANY_ORDER: tuple[Order, ...] = tuple(
    ("tp", *rest) for rest in permutations(("cp", "ep", "dp", "pp"))
)

_DP_INSIDE: Order = ("tp", "cp", "ep", "dp", "pp")
_PP_INSIDE: Order = ("tp", "cp", "ep", "pp", "dp")

_MODES = ("none", "selective", "full")
_PIPELINES = ("1f1b", "interleaved-1f1b")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRules:
    """What one framework can launch."""

    framework: str
    """Framework and version that the rules are of."""

    schedules: tuple[str, ...]
    """Schedules of its pipelines, names of `planner.step.schedules.SCHEDULES`; empty if
    it has no pipeline."""

    microbatches: str = INTERLEAVED
    """When the number of stages must divide the number of microbatches, `INTERLEAVED`
    or `ALWAYS`."""

    splits: tuple[str, ...] = (EVEN,)
    """Ways to share out the blocks, `EVEN` to `LAYOUT`; one that fits suffices."""

    empty_ends: bool = False
    """Whether the first and the last chunk may hold no block, only the end of the
    chain."""

    tensor_parallel: bool = True
    """Whether it has tensor parallelism."""

    copies_query_groups: bool = True
    """Whether tensor-parallel ranks may outnumber the query groups, which are then
    held several times."""

    context_parallel: tuple[str, ...] = ()
    """How ranks that share a sequence may share attention, of
    `estimators.grouping.CP_COMM_TYPES`; none if it has no context parallelism."""

    copies_exchanged_groups: bool = False
    """Whether ranks that exchange heads for tokens may outnumber the query groups of a
    rank, which are then copied."""

    expert_parallel: bool = True
    """Whether experts may be spread over ranks."""

    overlap_expert_parallel: bool = False
    """Whether all-to-alls between experts may go on beside another microbatch: without
    a pipeline, or with chunks, in the combined schedules."""

    expert_tensor_parallel: bool = False
    """Whether experts may have a tensor-parallel size of their own."""

    zero_stages: tuple[int, ...]
    """ZeRO stages without a pipeline."""

    zero_stages_with_pipeline: tuple[int, ...] = ()
    """ZeRO stages with a pipeline."""

    hybrid_sharding: tuple[int, ...] = ()
    """ZeRO stages whose shards a part of the replicas may hold, the others having
    copies."""

    recompute: tuple[str, ...] = _MODES
    """Recompute modes that stages may have."""

    recompute_num_layers: bool = False
    """Whether only the first blocks of each chunk may be recomputed, in a number that
    is given."""

    offload: tuple[str, ...] = ()
    """What hosts can keep without a pipeline, fields of `planner.step.plan.Offload`."""

    offload_with_pipeline: tuple[str, ...] = ()
    """What hosts can keep with a pipeline."""

    offload_together: tuple[str, ...] = ()
    """Of what hosts can keep, what they keep all of or nothing of."""

    same_savings: bool = True
    """Whether all stages must have one recompute mode, one ZeRO stage, one sharding
    group and one set of fractions on hosts."""

    orders: tuple[Order, ...]
    """Orders in which ranks are numbered. Dimensions of size 1 may be anywhere."""

    sources: tuple[tuple[str, str], ...]
    """For each of `RULES` its name, and where the framework's side of it stands."""

    @property
    def pipeline(self) -> bool:
        """Whether the framework has a pipeline."""
        return bool(self.schedules)

    @property
    def interleaving(self) -> bool:
        """Whether stages may have several chunks."""
        return any(SCHEDULES[name].interleaves for name in self.schedules)

    def usual_schedule(self, num_chunks: int) -> str | None:
        """Return the schedule of plans that name none, of so many chunks.

        None for 1F1B, interleaved or not, and where there is none.
        """
        if {"1f1b", "interleaved-1f1b"} & set(self.schedules):
            return None
        several = num_chunks > 1
        named = (one for one in self.schedules if SCHEDULES[one].interleaves == several)
        return next(named, None)

    def source(self, rule: str) -> str:
        """Return where the framework's side of a rule stands."""
        return dict(self.sources)[rule]

    def zero_stages_of(self, num_stages: int) -> tuple[int, ...]:
        """Return the ZeRO stages that go with a number of pipeline stages."""
        if num_stages > 1 and self.pipeline:
            return self.zero_stages_with_pipeline
        return self.zero_stages

    def offload_of(self, num_stages: int) -> tuple[str, ...]:
        """Return what hosts can keep with a number of pipeline stages."""
        return self.offload_with_pipeline if num_stages > 1 else self.offload

    def keeps_together(self, offload: Offload) -> bool:
        """Tell whether hosts keep all or nothing of what goes together."""
        parts = {getattr(offload, name) for name in self.offload_together}
        return parts <= {0.0} or parts == {1.0}


ALL_PARTS = Offload._fields
"""All that hosts can keep."""

ALL_STATES = ("weights", "gradients", "optimizer")
"""All but activations."""


def _sources(default: str, **known: str) -> tuple[tuple[str, str], ...]:
    """Return a source for every rule; ``default`` for those that are not named."""
    return tuple((rule, known.get(rule, default)) for rule in RULES)


_UNCHECKED = "as known; not checked"

_MEGATRON_SOURCES = {
    "global_batch": "megatron/core/num_microbatches_calculator.py: the batch must be "
    "divisible by micro-batch size times data-parallel size",
    "idle_devices": "megatron/core/parallel_state.py, initialize_model_parallel: the "
    "world size is a multiple of tp x pp x cp, the rest is dp",
    "rank_order": "megatron/training/initialize.py: order tp-cp-ep-dp-pp, or "
    "tp-cp-ep-pp-dp with --use-tp-pp-dp-mapping; RankGenerator of "
    "megatron/core/parallel_state.py nests whole dimensions",
    "pipeline": "megatron/core/pipeline_parallel/schedules.py",
    "schedule": "megatron/core/pipeline_parallel/schedules.py: 1F1B, with and without "
    "interleaving",
    "microbatches": "megatron/core/pipeline_parallel/schedules.py: interleaving deals "
    "out microbatches in groups of pp",
    "tensor_parallelism": "megatron/core/transformer/transformer_config.py: tp divides "
    "num_attention_heads and num_query_groups",
    "sequence_parallelism": "megatron/core/model_parallel_config.py: sequence_parallel "
    "needs tensor_model_parallel_size > 1",
    "context_parallelism": "megatron/training/arguments.py: --cp-comm-type p2p, a2a, "
    "all_gather, a2a+p2p; transformer_engine/pytorch/attention: with all-to-alls the "
    "ranks divide heads and query groups",
    "expert_parallelism": "megatron/core/transformer/moe/moe_layer.py: ep divides the "
    "experts; parallel_state.py, initialize_model_parallel (0.10 and later): etp x ep "
    "divides tp x cp x dp, ranks counted anew, without cp; "
    "--expert-tensor-parallel-size is tp unless given",
    "expert_overlap": "megatron/core/transformer/transformer_config.py: "
    "overlap_moe_expert_parallel_comm (0.14 and later) needs ep > 1, chunks "
    "where there is a pipeline, and no full recompute; "
    "megatron/core/pipeline_parallel/combined_1f1b.py",
    "zero_stage": "megatron/training/arguments.py: --use-distributed-optimizer shards "
    "the optimizer, for the whole job; sharded parameters are --use-megatron-fsdp, "
    "another set of defaults than this preset's",
    "recompute": "megatron/training/arguments.py: --recompute-granularity, one for the "
    "whole job; --recompute-method block with --recompute-num-layers for each chunk",
    "offload": "megatron/training/arguments.py: --optimizer-cpu-offload with "
    "--optimizer-offload-fraction (Core 0.12 and later); "
    "megatron/core/transformer/transformer_config.py: cpu_offloading of weights and "
    "activations, not with a pipeline",
}


def _megatron_sources(
    split: str, sharding_group: str, **others: str
) -> tuple[tuple[str, str], ...]:
    known = {**_MEGATRON_SOURCES, "split": split, "sharding_group": sharding_group}
    return _sources(_UNCHECKED, **{**known, **others})


_MEGATRON_LM = LaunchRules(
    framework="Megatron-LM, core 0.8",
    schedules=_PIPELINES,
    splits=(EVEN, ENDS),
    copies_query_groups=False,
    context_parallel=("p2p",),
    zero_stages=(0, 1),
    zero_stages_with_pipeline=(0, 1),
    recompute_num_layers=True,
    orders=(_DP_INSIDE, _PP_INSIDE),
    sources=_megatron_sources(
        "megatron/training/arguments.py: --num-layers is a multiple of stages x "
        "chunks, unless --decoder-first-pipeline-num-layers or "
        "--decoder-last-pipeline-num-layers",
        "one group of all data- and context-parallel ranks; instances of the "
        "distributed optimizer came later",
        expert_parallelism="megatron/core/parallel_state.py, RankGenerator (0.8 and "
        "0.9): ep divides the experts and dp, and is inside dp in the order of ranks, "
        "outside cp",
    ),
)

_MEGATRON_CORE = LaunchRules(
    framework="Megatron Core 0.13 and later",
    schedules=_PIPELINES,
    splits=(EVEN, ENDS, ACCOUNTED, LAYOUT),
    empty_ends=True,
    context_parallel=CP_COMM_TYPES,
    expert_tensor_parallel=True,
    overlap_expert_parallel=True,
    zero_stages=(0, 1),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=(1,),
    recompute_num_layers=True,
    offload=("weights", "optimizer", "activations"),
    offload_with_pipeline=("optimizer",),
    orders=(_DP_INSIDE, _PP_INSIDE),
    sources=_megatron_sources(
        "megatron/core/transformer/transformer_block.py, get_num_layers_to_build: "
        "equal chunks, num_layers_in_first/last_pipeline_stage, "
        "account_for_embedding/loss_in_pipeline_split, or "
        "pipeline_model_parallel_layout (0.13), which gives every chunk its layers",
        "megatron/core/distributed/distributed_data_parallel_config.py: "
        "num_distributed_optimizer_instances",
        tensor_parallelism="megatron/core/transformer/transformer_config.py: tp "
        "divides num_attention_heads",
    ),
)

_DEEPSPEED = LaunchRules(
    framework="DeepSpeed 0.16 with Megatron-DeepSpeed",
    schedules=("1f1b",),
    splits=(EVEN, BALANCED),
    context_parallel=("a2a",),
    copies_exchanged_groups=True,
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=(3,),
    recompute_num_layers=True,
    offload=ALL_PARTS,
    offload_with_pipeline=("optimizer",),
    orders=(_DP_INSIDE,),
    sources=_sources(
        _UNCHECKED,
        global_batch="deepspeed/runtime/config.py: train_batch_size is micro-batch x "
        "accumulation steps x world size",
        rank_order="deepspeed/runtime/pipe/topology.py, "
        "PipeModelDataParallelTopology: axes pipe, data, model, the last innermost",
        pipeline="deepspeed/runtime/pipe/engine.py",
        schedule="deepspeed/runtime/pipe/schedule.py: TrainSchedule is 1F1B; there is "
        "no interleaving",
        microbatches="deepspeed/runtime/pipe/engine.py: any number of accumulation "
        "steps",
        split="deepspeed/runtime/pipe/module.py: partition_method, uniform or balanced "
        "over layers; numbers differ by one at most",
        context_parallelism="deepspeed/sequence/layer.py: DistributedAttention, "
        "all-to-alls over heads (Ulysses), query groups copied where they are fewer; "
        "no ring",
        expert_parallelism="deepspeed/utils/groups.py: "
        "_create_expert_and_data_parallel, ep neighbours among all ranks of a stage, "
        "each expert on one (deepspeed/moe/layer.py: without "
        "enable_expert_tensor_parallelism); with it, and tensor parallelism, ep "
        "divides dp",
        zero_stage="deepspeed/runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 are refused "
        "with a pipeline; zero_optimization.stage is one for the job",
        sharding_group="deepspeed/runtime/zero/config.py: mics_shard_size, with ZeRO-3",
        offload="deepspeed/runtime/zero/config.py: offload_optimizer, offload_param; "
        "deepspeed/runtime/activation_checkpointing/config.py: cpu_checkpointing",
    ),
)

_FSDP = LaunchRules(
    framework="PyTorch FSDP with DTensor's tensor parallelism, 2.4 and later",
    schedules=(),
    context_parallel=("p2p", "all_gather"),
    expert_parallel=False,
    zero_stages=(0, 2, 3),
    hybrid_sharding=(2, 3),
    offload=ALL_PARTS,
    offload_together=ALL_STATES,
    orders=(_DP_INSIDE,),
    sources=_sources(
        _UNCHECKED,
        global_batch="every rank of the mesh takes the same batches "
        "(torch/utils/data/distributed.py)",
        idle_devices="torch/distributed/device_mesh.py, init_device_mesh: the mesh has "
        "all ranks",
        rank_order="torch/distributed/device_mesh.py: a mesh (dp, tp) in row-major "
        "order",
        pipeline="torch/distributed/fsdp shards one module; pipelines are torchtitan's",
        schedule="torch/distributed/fsdp has no pipeline",
        context_parallelism="torch/distributed/tensor/experimental/_attention.py: "
        "context_parallel, set_rotate_method alltoall (a ring) or allgather",
        expert_parallelism="torch/distributed has no expert parallelism of its own",
        zero_stage="torch/distributed/fsdp/api.py, ShardingStrategy: NO_SHARD, "
        "SHARD_GRAD_OP, FULL_SHARD",
        sharding_group="torch/distributed/fsdp/api.py: HYBRID_SHARD and "
        "_HYBRID_SHARD_ZERO2",
        recompute="torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py, "
        "applied to all blocks alike",
        offload="torch/distributed/fsdp/_fully_shard/_fsdp_api.py: CPUOffloadPolicy, "
        "of parameters, gradients and states together; checkpoint_wrapper.py: "
        "offload_wrapper",
    ),
)

_TORCHTITAN = LaunchRules(
    framework="torchtitan 0.2",
    schedules=("gpipe", "1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v"),
    splits=(EVEN, ACCOUNTED, BALANCED, LAYOUT),
    empty_ends=True,
    context_parallel=("p2p", "all_gather"),
    expert_tensor_parallel=True,
    zero_stages=(2, 3),
    zero_stages_with_pipeline=(2, 3),
    hybrid_sharding=(2, 3),
    offload=ALL_STATES,
    offload_together=ALL_STATES,
    orders=(_DP_INSIDE,),
    sources=_sources(
        _UNCHECKED,
        global_batch="torchtitan/train.py: global_batch_size is a multiple of "
        "local_batch_size x data-parallel size",
        idle_devices="torchtitan/distributed/parallel_dims.py: dp_replicate x dp_shard "
        "x cp x tp x pp is the world size",
        rank_order="torchtitan/distributed/parallel_dims.py: mesh (pp, dp_replicate, "
        "dp_shard, cp, tp), row-major",
        pipeline="torchtitan/distributed/pipeline_parallel.py",
        schedule="torch/distributed/pipelining/schedules.py: ScheduleZBVZeroBubble and "
        "ScheduleDualPipeV among others; torchtitan/distributed/pipeline_parallel.py: "
        "schedules of several stages a rank have two or more, so that ZB-H1 is none",
        microbatches="torch/distributed/pipelining/schedules.py, "
        "ScheduleInterleaved1F1B: rounds of equal length; here of pp microbatches",
        split="torchtitan/distributed/pipeline_parallel.py: "
        "generate_llm_fqn_per_model_part, or module_fqns_per_model_part, which gives "
        "every chunk its layers",
        context_parallelism="torchtitan/config: "
        "parallelism.context_parallel_rotate_method, alltoall (a ring) or allgather",
        expert_parallelism="torchtitan/distributed/parallel_dims.py: mesh (pp, "
        "dp_replicate, efsdp, ep, etp) over the same ranks, so that ep x etp divides "
        "dp_shard x cp x tp; expert_tensor_parallel_degree is 1 or tp (0.2.0 asks for "
        "a multiple of cp, too; since 0.3 there is 1 only)",
        zero_stage="fully_shard(reshard_after_forward=..): parameters are always "
        "sharded",
        sharding_group="torchtitan/distributed/parallel_dims.py: dp_replicate x "
        "dp_shard",
        recompute="torchtitan/distributed/activation_checkpoint.py: one mode for all "
        "blocks",
        offload="torchtitan/config: training.enable_cpu_offload, of parameters, "
        "gradients and states together",
    ),
)

_MAXTEXT = LaunchRules(
    framework="MaxText 2025",
    schedules=("scanned", "circular"),
    microbatches=ALWAYS,
    context_parallel=("p2p", "all_gather"),
    zero_stages=(0, 3),
    zero_stages_with_pipeline=(0, 3),
    hybrid_sharding=(3,),
    offload=("weights", "optimizer", "activations"),
    offload_with_pipeline=("weights", "optimizer", "activations"),
    orders=(_DP_INSIDE, _PP_INSIDE),
    sources=_sources(
        _UNCHECKED,
        global_batch="MaxText/pyconfig.py: micro_batch_size_to_train_on is a multiple "
        "of num_pipeline_microbatches",
        idle_devices="MaxText/max_utils.py: the mesh has all devices",
        rank_order="MaxText/configs/base.yml, mesh_axes: data, stage, fsdp, .., "
        "context, .., tensor, .., expert, the last innermost: fsdp is inside the "
        "stages, data outside; expert stands inside tensor there, which placements do "
        "not have",
        pipeline="MaxText/layers/pipeline.py",
        schedule="MaxText/layers/pipeline.py, NNXPipeline.__call__: one jax.lax.scan "
        "over microbatches x repeats + stages - 1 turns of all stages, under one "
        "jax.grad",
        microbatches="MaxText/pyconfig.py: stages divide num_pipeline_microbatches",
        context_parallelism="MaxText/configs/base.yml: context_parallel_strategy, "
        "all_gather or ring",
        expert_parallelism="MaxText/configs/base.yml: an axis expert of the mesh, over "
        "which batches are split as over fsdp (logical_axis_rules: activation_batch), "
        "beside that of context: ep divides dp",
        split="MaxText/pyconfig.py: stages x num_pipeline_repeats x "
        "num_layers_per_pipeline_stage is the number of decoder layers",
        zero_stage="MaxText/configs/base.yml: ici_data_parallelism, "
        "ici_fsdp_parallelism",
        sharding_group="MaxText/configs/base.yml: data and fsdp axes at once",
        recompute="MaxText/configs/base.yml: remat_policy, one for all layers",
        offload="MaxText/configs/base.yml: optimizer_memory_host_offload, "
        "parameter_memory_host_offload, policies that end in _offloaded",
    ),
)

_INTERNEVO = LaunchRules(
    framework="InternEvo 0.5",
    schedules=_PIPELINES,
    splits=(EVEN, ROUNDS),
    zero_stages=(0, 1),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=(1,),
    orders=(_DP_INSIDE,),
    sources=_sources(
        _UNCHECKED,
        rank_order="internlm/core/context/process_group_initializer.py: tensor "
        "innermost, then data, pipeline outermost",
        pipeline="internlm/core/scheduler/pipeline_scheduler.py",
        schedule="configs/_base_/models: num_chunks > 1 is the interleaved scheduler",
        split="internlm/solver/pipeline_utils.py, partition_uniform",
        context_parallelism="internlm/core/context/process_group_initializer.py: the "
        "sequence is shared by the tensor-parallel ranks, by no others",
        expert_parallelism="internlm/core/context/process_group_initializer.py: ep "
        "divides dp and is inside it",
        zero_stage="configs/_base_/models: parallel.zero1",
        sharding_group="configs/_base_/models: parallel.zero1.size, a part of dp",
    ),
)

_DDP = LaunchRules(
    framework="PyTorch DistributedDataParallel, 2.x",
    schedules=(),
    tensor_parallel=False,
    expert_parallel=False,
    zero_stages=(0,),
    orders=(_DP_INSIDE,),
    sources=_sources(
        "torch/nn/parallel/distributed.py: every rank has the whole module, replicas "
        "are all there is"
    ),
)

_IDEAL = LaunchRules(
    framework="ideal software, no framework",
    schedules=(
        *("1f1b", "gpipe", "interleaved-1f1b"),
        *("zb-h1", "zb-h2", "zb-v", "dualpipe-v"),
    ),
    splits=(EVEN, ENDS, ACCOUNTED, BALANCED),
    context_parallel=CP_COMM_TYPES,
    copies_exchanged_groups=True,
    expert_tensor_parallel=True,
    overlap_expert_parallel=True,
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1, 2, 3),
    hybrid_sharding=(1, 2, 3),
    recompute=(*_MODES, "stage"),
    recompute_num_layers=True,
    offload=ALL_PARTS,
    offload_with_pipeline=ALL_PARTS,
    orders=ANY_ORDER,
    sources=_sources("what all frameworks with a pipeline share"),
)


def _research(framework: str, offload: tuple[str, ...] = ()) -> LaunchRules:
    """Return the rules of a system that makes each stage by itself."""
    return LaunchRules(
        framework=framework,
        schedules=("1f1b",),
        splits=(LAYOUT,),
        context_parallel=(),
        zero_stages=(0, 1, 2, 3),
        zero_stages_with_pipeline=(0, 1, 2, 3),
        recompute_num_layers=True,
        offload=offload,
        offload_with_pipeline=offload,
        same_savings=False,
        orders=(_DP_INSIDE,),
        sources=_sources(_UNCHECKED),
    )


LAUNCH_RULES: Mapping[str, LaunchRules] = MappingProxyType(
    {
        "ideal": _IDEAL,
        "megatron-lm": _MEGATRON_LM,
        "megatron-core": _MEGATRON_CORE,
        "nemo": _MEGATRON_CORE,
        "deepspeed": _DEEPSPEED,
        "fsdp": _FSDP,
        "llm-foundry": _FSDP,
        "torchtitan": _TORCHTITAN,
        "maxtext": _MAXTEXT,
        "internevo": _INTERNEVO,
        "ddp": _DDP,
        "aceso": _research("Aceso, its runtime on Megatron-LM"),
        "mist": _research("Mist", ALL_PARTS),
    }
)
"""Name of a preset (`nestsim.presets`) -> what its framework can launch."""
