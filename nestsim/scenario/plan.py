"""The table [plan]: one plan under Megatron's names, to be replayed as it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from nestsim.scenario.base import MAX_COUNT, Argument, Count, NameChoice, Table, Text
from nestsim.scenario.search import CpCommType, Recompute, ZeroStage
from planner.frameworks.framework import FRAMEWORKS, IDEAL_PRESET, Preset
from planner.plans.spec import PlanSpec
from planner.step.schedules import SCHEDULES

MOST_STAGES = 10_000
MOST_VIRTUAL_STAGES = 100_000

ScheduleName = Annotated[str, NameChoice(tuple(SCHEDULES))]
Layers = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Fraction = Annotated[float, Field(ge=0, le=1)]


def _one_or_each(value: object) -> str:
    return "each" if isinstance(value, list) else "one"


_ONE_OR_EACH = Discriminator(_one_or_each)
_EACH = Field(min_length=1, max_length=MOST_STAGES)

RecomputeOfStages = Annotated[
    Annotated[Recompute, Tag("one")] | Annotated[list[Recompute], _EACH, Tag("each")],
    _ONE_OR_EACH,
]
ZeroStageOfStages = Annotated[
    Annotated[ZeroStage, Tag("one")] | Annotated[list[ZeroStage], _EACH, Tag("each")],
    _ONE_OR_EACH,
]
GroupOfStages = Annotated[
    Annotated[Count, Tag("one")] | Annotated[list[Count], _EACH, Tag("each")],
    _ONE_OR_EACH,
]
LayersOfStages = Annotated[
    Annotated[Layers, Tag("one")] | Annotated[list[Layers], _EACH, Tag("each")],
    _ONE_OR_EACH,
]
FractionOfStages = Annotated[
    Annotated[Fraction, Tag("one")] | Annotated[list[Fraction], _EACH, Tag("each")],
    _ONE_OR_EACH,
]
"""One value for all stages, or a list with one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Options of a launch configuration that no setting of the job stands for."""

    format: str
    """Name of the format that they are of."""

    options: Mapping[str, Any]
    """Option -> its value as there; True for one that stands alone."""


class LaunchTable(Table):
    """What a launch configuration said beside the job, for `nestsim export`."""

    format: Text = Field(examples=["megatron"])
    """Name of the format that `nestsim import` read."""

    options: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")], Argument
    ] = Field({}, examples=[{"rotary-base": "500000", "bf16": True}])
    """Options that no other setting stands for, by their names there: words, lists of
    words, true for options that stand alone. An export to the same format has them as
    they are; nothing else reads them."""

    def build(self) -> LaunchSpec:
        """Return the options as words."""
        return LaunchSpec(format=self.format, options=self.options)


class PlanTable(Table):
    """One plan, under Megatron's names, for `nestsim simulate`."""

    micro_batch_size: Count = Field(examples=[1])
    """Sequences of a microbatch."""

    tensor_model_parallel_size: Count = Field(1, examples=[8])
    """Devices that share each layer's matrices."""

    pipeline_model_parallel_size: Count = Field(1, examples=[16])
    """Stages of the pipeline."""

    virtual_pipeline_model_parallel_size: Count = Field(1, examples=[3])
    """Chunks of each stage; more than 1 is interleaved 1F1B. Left out, 2 with the
    schedules "zb-v" and "dualpipe-v", which have no other number."""

    data_parallel_size: Count | None = Field(None, examples=[8])
    """Replicas of the pipeline. Left out, as many as the devices suffice for."""

    num_microbatches: Count | None = Field(None, examples=[16])
    """Microbatches of each replica. If it is given, the last ones may be padded. Left
    out, those that make the global batch, which must all be full."""

    context_parallel_size: Count = Field(1, examples=[2])
    """Devices that share each sequence; more than 1 needs flash attention."""

    expert_model_parallel_size: Count = Field(1, examples=[8])
    """Devices that share the experts of each mixture-of-experts layer: neighbours
    among all ranks of a stage, with "megatron-lm" and "maxtext" among its
    data-parallel ranks."""

    expert_tensor_parallel_size: Count | None = Field(None, examples=[1])
    """Devices that share each expert's matrices. Left out, as many as share those of
    other layers. Fewer let experts be spread over tensor- and context-parallel ranks,
    too; this needs sequence parallelism."""

    cp_comm_type: CpCommType = Field("p2p", examples=["a2a"])
    """How devices that share a sequence share attention, Megatron's names: "p2p" (keys
    and values go round a ring), "all_gather" (they are gathered), "a2a" (Ulysses: heads
    are exchanged for tokens) or "a2a+p2p" (heads among some ranks, a ring of those)."""

    hierarchical_context_parallel_sizes: (
        Annotated[list[Count], Field(min_length=2, max_length=2)] | None
    ) = Field(None, examples=[[2, 4]])
    """With "a2a+p2p": ranks that exchange heads, and ranks of each ring; their product
    is `context_parallel_size`."""

    sequence_parallel: bool | None = Field(None, examples=[True])
    """Megatron's sequence parallelism, where the tensor-parallel size exceeds 1. Left
    out, as `software.preset` has it; off with "ideal"."""

    schedule: ScheduleName | None = Field(None, examples=["1f1b"])
    """Order of the microbatches' forward and backward passes. Left out, 1F1B,
    interleaved if stages have several chunks; with "maxtext" its own, "scanned" and
    "circular"."""

    overlap_moe_expert_parallel_comm: bool = Field(False, examples=[True])
    """Whether all-to-alls between experts go on beside the passes of another
    microbatch, as Megatron Core's overlap_moe_expert_parallel_comm has it: each forward
    pass beside a backward pass, once the pipeline is full. Not with full recompute."""

    recompute: RecomputeOfStages | None = Field(
        None, examples=["selective", ["full", "none"]]
    )
    """What is recomputed in the backward pass: one mode for all stages, or a list with
    one for each. Left out, as `software.preset` has it; nothing with "ideal"."""

    zero_stage: ZeroStageOfStages | None = Field(None, examples=[1, [1, 0]])
    """ZeRO stage of all pipeline stages, or a list with one for each. Megatron's
    use_distributed_optimizer is 1. Left out, as `software.preset` has it; 0 with
    "ideal"."""

    sharding_group_size: GroupOfStages | None = Field(None, examples=[8, [8, 4]])
    """Data-parallel ranks that share ZeRO's shards, in all stages, or a list with one
    number for each stage. Left out, all of them."""

    zero_hpz_partition_size: GroupOfStages = Field(1, examples=[8, [8, 4]])
    """hpZ of ZeRO++, under DeepSpeed's name: with ZeRO-3, data-parallel ranks next to
    each other, as a rule those of a node, that share a second copy of the weights. The
    first forward pass of a step gathers among all ranks, every other pass among these.
    One number for all stages, or a list with one for each; 1 for no copy."""

    recompute_num_layers: LayersOfStages | None = Field(None, examples=[2, [5, 0]])
    """Blocks of each stage's chunks, from the first one on, that `recompute` is about,
    or a list with one number for each stage. Megatron's --recompute-num-layers with
    --recompute-method block. Left out, all blocks."""

    offload_weights: FractionOfStages = Field(0.0, examples=[0.5, [1.0, 0.0]])
    """Fraction of the weights that the host keeps; they come in each pass. One number
    for all stages, or a list with one for each."""

    offload_gradients: FractionOfStages = Field(0.0, examples=[0.5, [1.0, 0.0]])
    """Fraction of the accumulated gradients that the host keeps; they come and go in
    each backward pass. One number for all stages, or a list with one for each."""

    offload_optimizer: FractionOfStages = Field(0.0, examples=[1.0, [1.0, 0.0]])
    """Fraction of the optimizer states that the host keeps. Megatron's
    --optimizer-offload-fraction. One number for all stages, or a list with one for
    each."""

    offload_activations: FractionOfStages = Field(0.0, examples=[0.5, [1.0, 0.0]])
    """Fraction of the saved activations that the host keeps between a forward pass and
    its backward pass. One number for all stages, or a list with one for each."""

    num_layers_in_first_pipeline_stage: Layers | None = Field(None, examples=[5])
    """Transformer blocks of the first stage, where it differs from the others.
    Megatron's command line calls it --decoder-first-pipeline-num-layers."""

    num_layers_in_last_pipeline_stage: Layers | None = Field(None, examples=[5])
    """Transformer blocks of the last stage, where it differs from the others.
    Megatron's command line calls it --decoder-last-pipeline-num-layers."""

    num_layers_per_pipeline_stage: (
        Annotated[list[Layers], Field(min_length=1, max_length=MOST_STAGES)] | None
    ) = Field(None, examples=[[7, 8, 8, 7]])
    """Transformer blocks of each stage, in place of
    `num_layers_in_first_pipeline_stage` and its like for the last."""

    pipeline_model_parallel_layout: (
        Annotated[list[Layers], Field(min_length=1, max_length=MOST_VIRTUAL_STAGES)]
        | None
    ) = Field(None, examples=[[1, 2, 2, 2, 2, 2, 2, 1]])
    """Transformer blocks of each virtual stage in the order of the model, in place of
    all settings about blocks of stages: chunk 0 of every stage, then chunk 1, and so
    on. What Megatron's --pipeline-model-parallel-layout says with letters."""

    account_for_embedding_in_pipeline_split: bool = Field(False, examples=[True])
    """Megatron's option: the embedding counts as a block where blocks are shared out
    evenly."""

    account_for_loss_in_pipeline_split: bool = Field(False, examples=[True])
    """Megatron's option: final norm, head and loss together count as a block where
    blocks are shared out evenly."""

    order: Text | None = Field(None, examples=["tp-cp-ep-dp-pp"])
    """How ranks are numbered, from the dimension whose neighbours are next to each
    other outwards. Megatron's default is "tp-cp-ep-dp-pp"."""

    placement: Text | None = Field(None, examples=["tp8 dp2 pp4 dp4"])
    """Nesting of the parallel dimensions over device numbers, as reports write it,
    innermost first; it may split dp and pp into two parts, and stands in place of
    `order`. Where devices differ it may end in ", fast first" or ", slow first": whole
    nodes in that order."""

    gradient_algorithm: Text = Field("auto", examples=["ring", "halving-doubling"])
    """Algorithm of the data-parallel collectives, a name that `nestsim collectives`
    prints; "auto" takes the cheaper of ring and hierarchical, as the planner does, and
    nvls or sharp where switches of the network add up and that is cheaper. What an
    algorithm does not have, such as an all-gather by trees, rings do."""

    tensor_algorithm: Text = Field("auto", examples=["ring", "double-binary-tree"])
    """Algorithm of the tensor-parallel collectives, a name that `nestsim collectives`
    prints; "auto" takes the cheaper of ring and hierarchical, as the planner does, and
    nvls or sharp where switches of the network add up and that is cheaper. What an
    algorithm does not have, such as an all-gather by trees, rings do."""

    def build(self, defaults: Preset = IDEAL_PRESET) -> PlanSpec:
        """Return the settings for the planner.

        Parameters
        ----------
        defaults
            What holds where the table is silent.
        """
        settings: dict[str, Any] = {
            "sequence_parallel": defaults.sequence_parallel,
            "recompute": defaults.recompute,
            "zero_stage": defaults.zero_stage,
        }
        settings |= {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.model_dump(exclude_none=True).items()
        }
        chunks = "virtual_pipeline_model_parallel_size"
        if self.schedule is not None and chunks not in self.model_fields_set:
            settings[chunks] = SCHEDULES[self.schedule].num_chunks or 1
        if (
            self.schedule is None
            and settings.get("pipeline_model_parallel_size", 1) > 1
        ):
            rules = FRAMEWORKS[defaults.name].rules
            settings["schedule"] = rules.usual_schedule(settings.get(chunks, 1))
        return PlanSpec(**settings)
