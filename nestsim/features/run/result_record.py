"""The records that the JSON of runs and plans is made of, and its schema, too.

Times are in seconds, sizes in bytes, rates per second; a number that does not exist
(infinite, not a number) is ``null``. Keys with a default are left out where they would
say nothing.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from nestsim.document.dumps import LEFT_OUT, Of, Record


class ThroughputRecord(Record):
    """What a plan reaches, planned or replayed."""

    iteration_time_s: float
    """Time of an iteration [s]."""

    tokens_per_s: Annotated[float, Of("tokens_per_second")]
    """Throughput [token/s]."""

    tokens_per_s_per_device: Annotated[float, Of("tokens_per_second_per_device")]
    """Throughput over all devices of the cluster, idle ones included [token/s]."""

    tflops_per_device: float
    """Model FLOPs per second and device [TFLOP/s]."""

    mfu: float | None
    """Share of the devices' peak rate that the model's FLOPs need."""

    mfu_causal: float | None
    """The same share without what a causal mask hides."""

    peak_memory_bytes: float
    """Most that a device holds [byte]."""


class PlannedRunRecord(ThroughputRecord):
    """What the planner believes about a plan."""

    closed_form_time_s: float | None
    """Iteration time by the closed form, which orders proposals [s]."""

    terms_s: Mapping[str, float]
    """Cause -> its part of the planned iteration time [s]."""

    stages: tuple[Mapping[str, object], ...]
    """Times, sizes and memory of each stage, from the first to the last."""


class ReplayedRunRecord(ThroughputRecord):
    """What the replay found about a plan."""

    pipeline_time_s: float
    """Moment at which the last backward pass ends [s]."""

    bubble_fraction: float
    """Share of device time without compute until then."""

    breakdown_s: Mapping[str, object]
    """How a device spends the iteration: in the mean, by cause, and of each stage
    [s]."""

    memory: tuple[Mapping[str, object], ...]
    """Peak of each stage, when it is, and of what it consists."""

    levels: tuple[Mapping[str, object], ...]
    """The links of each level that carried anything."""

    hottest_links: tuple[Mapping[str, object], ...]
    """Links that are used most."""

    folding: tuple[str, ...]
    """Sentences on what the replay did not have to simulate."""

    engine: str
    """What replayed the plan."""

    events: int
    """Events of the replay."""


class ParallelRecord(Record):
    """Parallel sizes of a plan, under Megatron's names."""

    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    data_parallel_size: int
    context_parallel_size: int
    expert_model_parallel_size: int
    sequence_parallel: bool
    expert_tensor_parallel_size: Annotated[int, LEFT_OUT] = 0
    experts_within_data: Annotated[bool, LEFT_OUT] = False
    cp_comm_type: Annotated[str, LEFT_OUT] = ""
    hierarchical_context_parallel_sizes: Annotated[tuple[int, ...], LEFT_OUT] = ()


class StagePlanRecord(Record):
    """One stage of a plan."""

    layers: tuple[int, ...]
    """First layer of the chain, and the one behind the last."""

    chunks: tuple[tuple[int, ...], ...]
    """The same for each of its intervals."""

    devices: tuple[str, ...]
    """Device numbers as ranges, replica after replica."""

    recompute: str
    """What backward passes compute again: "none", "selective", "full" or "stage"."""

    zero_stage: int
    """What data-parallel ranks share: 0 to 3."""

    sharding_group_size: int
    """Ranks that share it."""

    recompute_num_layers: Annotated[int, LEFT_OUT] = 0
    """Blocks that are computed again, where these are not all."""

    offload: Annotated[Mapping[str, float], LEFT_OUT] = field(default_factory=dict)
    """Share of what hosts keep."""

    zero_hpz_partition_size: Annotated[int, LEFT_OUT] = 1
    """Ranks that a second copy of the weights is shared by."""

    reshard_after_forward: Annotated[int, LEFT_OUT] = 0
    """Ranks that weights stay shared by between forward and backward."""


class PlanRecord(Record):
    """How one model is split and placed: ``plan.json``."""

    parallel: ParallelRecord
    """Parallel sizes of the job."""

    virtual_pipeline_model_parallel_size: int
    """Chunks per stage; 1 without interleaving."""

    micro_batch_size: int
    """Sequences per microbatch."""

    num_microbatches: int
    """Microbatches per optimizer step and replica."""

    schedule: str
    """Name of the pipeline schedule."""

    recompute: str
    """That of all stages; "mixed" where they differ."""

    zero_stage: int | str
    """That of all stages; "mixed" where they differ."""

    placement: str
    """Nesting of the parallel dimensions over device numbers, innermost first."""

    gradient_algorithm: str
    """Algorithm of the gradient collectives."""

    tensor_algorithm: str
    """Algorithm of the tensor-parallel collectives."""

    overlap_moe_expert_parallel_comm: Annotated[bool, LEFT_OUT] = False
    """Whether all-to-alls between experts go on beside another microbatch."""

    microbatch_group_size_per_vp_stage: Annotated[int, LEFT_OUT] = 0
    """Microbatches that a chunk takes in a row, where a plan says so."""

    recompute_modules: Annotated[tuple[str, ...], LEFT_OUT] = ()
    """What "selective" recompute runs again, where a plan says so."""

    stages: tuple[StagePlanRecord, ...]
    """Stages of the pipeline, from the first to the last."""


class CauseRecord(Record):
    """Something that the step waits for, and the single change that helps most."""

    cause: str
    """What it waits for."""

    seconds: float
    """How long, of the replayed iteration [s]."""

    share: float
    """The same as a share of the iteration."""

    change: Annotated[str | None, Of("what_if.change")]
    """The change; null where none is known that gains anything."""

    settings: Annotated[Mapping[str, object], Of("what_if.settings", {})]
    """Dotted paths in the scenario and their new values; empty for other hardware."""

    iteration_time_s: Annotated[float | None, Of("what_if.iteration_time")]
    """Replayed iteration time with the change; null if it does not fit [s]."""

    gain: Annotated[float | None, Of("what_if.gain")]
    """Share of the iteration that the change saves; null if it does not fit."""

    fits: Annotated[bool, Of("what_if.fits", True)]
    """Whether there is memory for the change; true without one."""

    below_model_error: Annotated[bool, Of("what_if.below_model_error", False)]
    """Whether the gain is less than predictions of gains err."""


class GivenRecord(Record):
    """The scenario's own plan beside the one that was found."""

    plan: Mapping[str, object]
    """The plan, as ``plan`` of the reported one."""

    planned_iteration_time_s: float
    """Planned iteration time [s]."""

    iteration_time_s: float
    """Replayed iteration time [s]."""

    peak_memory_bytes: float
    """Most that a device holds in the replay [byte]."""

    verdict: str
    """What the replay says of it."""

    ratio: float
    """Its replayed iteration time over that of the reported plan."""

    longer_s: Mapping[str, float]
    """How much longer it takes by cause of the step, the largest differences first
    [s]."""


class SimplestRecord(Record):
    """The simplest plan that is nearly as fast as the reported one."""

    plan: Mapping[str, object]
    """The plan, as ``plan`` of the reported one."""

    iteration_time_s: float
    """Replayed iteration time [s]."""

    peak_memory_bytes: float
    """Most that a device holds [byte]."""

    slower_by: float
    """How much longer than the reported plan it takes, relative."""

    within: float
    """How much longer it may take, relative."""

    below_model_error: bool
    """Whether that is less than the model errs; false where that is not known."""

    is_reported: bool
    """Whether it is the reported plan itself."""

    spared: tuple[str, ...]
    """What the reported plan has and it has not."""

    added: tuple[str, ...]
    """What it has and the reported plan has not."""


class RampStepRecord(Record):
    """Steps of one batch size while batches grow."""

    global_batch_size: int
    """Sequences of each step."""

    num_microbatches: int
    """Microbatches of each replica."""

    num_steps: int
    """How many steps a run takes of it."""

    iteration_time_s: float | None
    """Replayed time of one step; null if the schedule has no such step [s]."""


class RampRecord(Record):
    """The steps of a run until its batches are whole."""

    sequences: int
    """Sequences that are trained on the way up."""

    num_steps: int
    """Steps on the way up."""

    time_s: float | None
    """Time of the way up [s]."""

    extra_time_s: float | None
    """How much longer that is than as many sequences in whole batches [s]."""

    steps: tuple[RampStepRecord, ...]
    """By rising batch size."""


class HitRecord(Record):
    """What was in flight when links or routes changed."""

    time_s: float
    """When [s]."""

    num_flows: int
    """Messages and collectives that stood still from then on, or went on elsewhere."""

    num_bytes: float
    """What they had left, between each pair of their devices [byte]."""


class ChangedRecord(Record):
    """The step in which links fail, slow down or come back."""

    iteration_time_s: float
    """Time of the step [s]."""

    plain_time_s: float
    """The same if nothing happens [s]."""

    hits: tuple[HitRecord, ...]
    """By time."""


class CircuitsRecord(Record):
    """The step over optical switches, as `nestsim.simulator.circuits.CircuitStep`."""

    iteration_time_s: float
    """Time of the step, circuits being changed only where that is faster [s]."""

    plain_time_s: float
    """The same with switches that pass on packets [s]."""

    fixed_time_s: float | None
    """The same with circuits that stay; null if that takes more ports [s]."""

    changing_time_s: float
    """The same with circuits that change [s]."""

    ports: int
    """Ports of a link."""

    fixed_ports: int
    """Ports of a link that circuits need that stay."""

    reconfiguration_time_s: float
    """How long changed circuits carry nothing [s]."""

    changed_at_s: float | None
    """When circuits are changed for the end of the step; null if never [s]."""

    pairs: tuple[int, int]
    """Pairs of links that send to each other in the passes, and at the step's end."""


class ResultRecord(Record):
    """Everything that was found about replayed plans: ``result.json``."""

    format: int
    """Form of this JSON: `nestsim.document.dumps.FORMAT`."""

    scenario: str
    """Name of the scenario."""

    verdict: str
    """What the replay says of the reported plan, or why there is none."""

    reason: str
    """Why, in a sentence."""

    broken_rules: tuple[Mapping[str, str], ...]
    """Rules of the framework that the plan breaks."""

    confirmed: bool
    """Whether the replay confirms the plan."""

    planner_rank: Annotated[int | None, LEFT_OUT] = None
    """Place of the plan among those that the search proposed."""

    plan: PlanRecord | None
    """The reported plan; null without one."""

    planned: PlannedRunRecord | None
    """What the planner believes about it."""

    simulated: ReplayedRunRecord | None
    """What the replay found about it."""

    gap: Mapping[str, object] | None
    """Simulated minus planned time, in all and by cause [s]."""

    why: tuple[CauseRecord, ...]
    """What the step waits for, the longest first."""

    uncertainty: Mapping[str, object] | None
    """Band that 8 of 10 such jobs lie in; null with ideal software."""

    memory: Mapping[str, object] | None
    """What the fullest stage needs, and how far off that may be."""

    lower_bound_s: float | None
    """No plan of the space is faster [s]."""

    objective: Annotated[str, LEFT_OUT] = ""
    """What the search minimised."""

    optimality_gap: float | None
    """How far above the bound the plan is, relative to the bound."""

    device_memory_bytes: float
    """Memory of a device that a plan may use [byte]."""

    assumptions: Mapping[str, object]
    """What the answer rests on."""

    candidates: Annotated[tuple[Mapping[str, object], ...], LEFT_OUT] = ()
    """A row for each replayed plan, fastest first."""

    given: Annotated[GivenRecord | None, LEFT_OUT] = None
    """The scenario's own plan beside the reported one."""

    simplest: Annotated[SimplestRecord | None, LEFT_OUT] = None
    """The simplest plan that is nearly as fast."""

    search: Annotated[Mapping[str, object], LEFT_OUT] = field(default_factory=dict)
    """What the search looked at and spent."""

    cost: Annotated[Mapping[str, object], LEFT_OUT] = field(default_factory=dict)
    """What the plan costs, where the scenario has prices."""

    ramp: Annotated[RampRecord | None, LEFT_OUT] = None
    """What smaller batches at the beginning take, where batches grow."""

    changed: Annotated[ChangedRecord | None, LEFT_OUT] = None
    """The step in which links fail, slow down or come back, where any do."""

    circuits: Annotated[CircuitsRecord | None, LEFT_OUT] = None
    """The step over optical switches, where there are any."""

    assertions: Annotated[tuple[Mapping[str, object], ...], LEFT_OUT] = ()
    """What the scenario's table [assert] asked for, and whether it holds."""
