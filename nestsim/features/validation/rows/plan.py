"""From a row to a fixed plan on a fixed cluster, or to the reason why not.

Nothing is filled in silently: what a row does not say is taken from the preset of its
framework and noted, and what decides the result must be there.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from estimators.models.spec import TransformerSpec
from estimators.software import Software
from estimators.training import TrainingSpec
from nestsim.features.validation.rows.cluster import (
    read_accelerator,
    read_network,
    slice_size,
)
from nestsim.features.validation.rows.columns import (
    COUNT,
    Reading,
    Row,
    RowRefusedError,
    is_unstated,
    refusing,
)
from nestsim.features.validation.rows.model import read_model
from nestsim.features.validation.rows.recipes import (
    offloaded_layers,
    overlapping_recipe,
    recomputed_by_recipe,
)
from nestsim.features.validation.rows.stages import (
    SizedStage,
    read_mist_plan,
    read_stages,
)
from nestsim.features.validation.rows.training import (
    check_format,
    read_software,
    read_training,
)
from planner.frameworks.framework import FRAMEWORKS
from planner.plans.spec import PlanSpec
from planner.step.execution import Execution
from planner.step.plan import Offload
from topologies.accelerators import Accelerator
from topologies.specs import FatTreeSpec, check_num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row as the planner and the simulator see it."""

    row: Row
    """Row as it was written."""

    model: TransformerSpec
    """Architecture and sequence length."""

    training: TrainingSpec
    """Batch, precision, optimizer."""

    accelerator: Accelerator
    """Device that was measured."""

    network: FatTreeSpec
    """Nodes and links."""

    plan: PlanSpec
    """Parallel sizes and settings."""

    software: Software
    """Kernels and host."""

    execution: Execution
    """Overlaps of communication and compute."""

    num_devices: int
    """Devices that were measured; the network may have a few more, which stay idle."""

    alternatives: tuple[PlanSpec, ...] = ()
    """Plans that may have been meant as well, where the row does not say its
    micro-batch; what is predicted is the fastest that fits."""

    stages: tuple[SizedStage, ...] = ()
    """Sizes of each stage where no plan expresses them; `plan` has those of the first
    then."""

    assumes_layout: bool = False
    """Whether a size that decides the time is not the row's."""

    preset: str
    """Name of the framework's preset."""

    assumed: tuple[str, ...]
    """What the row does not say."""

    leaves_recompute_open: bool = False
    """Whether the row does not say what is recomputed; the plan has the preset's."""

    def with_recompute(self, mode: str) -> "Case":
        """Return the same with another recompute mode, as the least that fits."""
        assumption = f"recompute {mode}, the least that fits in memory"
        return replace(
            self,
            plan=replace(self.plan, recompute=mode),
            alternatives=tuple(
                replace(other, recompute=mode) for other in self.alternatives
            ),
            assumed=(*self.assumed, assumption),
        )


def read_case(row: Row) -> Case:
    """Turn a row into a case.

    Raises
    ------
    RowRefusedError
        If it cannot be expressed.
    """
    reading = Reading(row)
    accelerator = read_accelerator(reading)
    model = read_model(reading)
    training = read_training(reading)
    check_format(accelerator, training)
    given = read_mist_plan(reading, model)
    stages = (read_stages(reading, model) or ()) if given is None else ()
    if stages:
        num_devices = sum(sized.degrees.tp * sized.dp for sized in stages)
    else:
        num_devices = _num_devices(reading)
    with refusing("no-such-cluster"):
        check_num_devices("num_devices", num_devices)
    if given is not None:
        plan, others = given, list[PlanSpec]()
    elif stages:
        plan, *others = [_first_sizes(stages)]
    else:
        plan, *others = _plans(reading, model, training, num_devices)
    if plan.zero_stage in {1, 2} and training.gather_precision != "fp32":
        # FSDP keeps fp32 shards beside whole weights in 16 bits then: what a sharded
        # master copy comes to.
        training = replace(training, weights_in_fp32=False)
    with refusing("no-such-cluster"):
        network = read_network(reading, accelerator, num_devices)
    return Case(
        row=row,
        model=model,
        training=training,
        accelerator=accelerator,
        network=network,
        plan=plan,
        software=read_software(reading, network, num_devices),
        execution=replace(reading.preset.execution, frees_gradients=_is_fsdp(reading)),
        num_devices=num_devices,
        alternatives=tuple(others),
        stages=stages,
        assumes_layout=reading.assumes_layout,
        preset=reading.preset.name,
        assumed=tuple(reading.assumed),
        leaves_recompute_open=_leaves_recompute_open(reading),
    )


def _first_sizes(stages: Sequence[SizedStage]) -> PlanSpec:
    """Return a plan with the first stage's sizes."""
    first = stages[0]
    with refusing("no-such-plan"):
        return PlanSpec(
            micro_batch_size=first.degrees.micro_batch_size,
            tensor_model_parallel_size=first.degrees.tp,
            pipeline_model_parallel_size=len(stages),
            data_parallel_size=first.dp,
            zero_stage=first.blocks.zero_stage,
        )


def _num_devices(reading: Reading) -> int:
    """Return how many devices took part; the columns must agree."""
    sizes = [reading.needed("tp"), reading.needed("pp"), reading.given("cp", 1)]
    dp = reading.row.whole("dp")
    model_parallel = sizes[0] * sizes[1] * sizes[2]
    count = reading.row.whole("num_devices")
    if count is None:
        if dp is None:
            raise RowRefusedError("missing-column", "num_devices and dp are empty")
        reading.assume(f"num_devices = {model_parallel * dp}, as the sizes make")
        return model_parallel * dp
    if dp is None and count % model_parallel == 0:
        reading.assume(f"dp = {count // model_parallel}, as the devices make")
    elif model_parallel * (dp or 1) != count:
        raise RowRefusedError(
            "contradiction",
            f"tp {sizes[0]} x pp {sizes[1]} x cp {sizes[2]} x dp {dp or '?'} is not "
            f"{count} devices",
        )
    return count


MICRO_BATCHES = (1, 2, 4)
"""What is tried where a row does not say its micro-batch: what recipes of large models
have."""


def _plans(
    reading: Reading, model: TransformerSpec, training: TrainingSpec, num_devices: int
) -> list[PlanSpec]:
    """Return the plan of a row; with its alternatives if the micro-batch is open."""
    tp, pp = reading.needed("tp"), reading.needed("pp")
    cp = reading.row.whole("cp") or 1
    dp = num_devices // (tp * pp * cp)
    micro_batch, vpp = reading.row.whole("micro_batch"), reading.row.whole("vpp")
    if micro_batch is not None:
        plan = _plan(reading, model, (tp, pp, cp, dp), reading.given("vpp", 1))
        return [plan(micro_batch)]
    reading.assumes_layout = True
    chunks = [vpp] if vpp is not None else _open_chunks(reading, model.num_layers, pp)
    per_replica = training.global_batch_size // dp
    sizes = [size for size in MICRO_BATCHES if per_replica % size == 0]
    reading.assume(f"micro_batch: the fastest that fits, of {_listed(sizes)}")
    if len(chunks) > 1:
        reading.assume(f"vpp: the fastest that fits, of {_listed(chunks)}")
    plans = [_plan(reading, model, (tp, pp, cp, dp), one) for one in chunks]
    return [plan(size) for plan in plans for size in sizes]


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(str(size) for size in sizes)


def _open_chunks(reading: Reading, num_layers: int, pp: int) -> list[int]:
    """Return the chunks that each stage may have had: as many as split evenly."""
    rules = FRAMEWORKS[reading.preset.name].rules
    if pp == 1 or (rules.pipeline and not rules.interleaving):
        return [reading.given("vpp", 1)]
    most = -(-num_layers // pp)
    return [1] + [
        count
        for count in range(2, most + 1)
        if num_layers % (pp * count) == 0 or (num_layers + 2) % (pp * count) == 0
    ]


def _plan(
    reading: Reading,
    model: TransformerSpec,
    sizes: tuple[int, int, int, int],
    vpp: int,
) -> Callable[[int], PlanSpec]:
    """Return the plan for any micro-batch; `sizes` are tp, pp, cp and dp."""
    tp, pp, cp, dp = sizes
    zero_stage, group = _sharding(reading)
    if group is not None and group >= dp * cp:
        group = None
    ends = _counts_ends(reading, model.num_layers, pp, vpp)
    ep = _experts(reading, model, dp * cp, tp)
    sequence_parallel = tp > 1 and _sequence_parallel(reading)
    recompute = _recompute(reading)
    layers = _layers(reading, model.num_layers, pp, vpp)
    layout = _layout(reading, model.num_layers, pp, vpp)

    offload = _offload(reading, model.num_layers)
    overlaps = overlapping_recipe(reading) is not None
    if overlaps:
        reading.assume("all-to-alls of experts beside another microbatch, by recipe")

    def plan(micro_batch: int) -> PlanSpec:
        with refusing("no-such-plan"):
            return PlanSpec(
                micro_batch_size=micro_batch,
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                virtual_pipeline_model_parallel_size=vpp,
                data_parallel_size=dp,
                context_parallel_size=cp,
                expert_model_parallel_size=ep,
                sequence_parallel=sequence_parallel,
                overlap_moe_expert_parallel_comm=overlaps,
                recompute=recompute,
                zero_stage=zero_stage,
                sharding_group_size=group,
                offload_weights=offload.weights,
                offload_gradients=offload.gradients,
                offload_optimizer=offload.optimizer,
                offload_activations=offload.activations,
                num_layers_per_pipeline_stage=layers,
                pipeline_model_parallel_layout=layout,
                account_for_embedding_in_pipeline_split=ends,
                account_for_loss_in_pipeline_split=ends,
            )

    return plan


def _experts(reading: Reading, model: TransformerSpec, replicas: int, tp: int) -> int:
    """Return the expert-parallel size.

    A group may span tensor-parallel ranks (Megatron Core's expert tensor-parallel size
    of 1): here those share each expert instead, which holds as many parameters and
    moves as many tokens.
    """
    if not model.num_moe_experts:
        return 1
    ep = reading.given("ep", 1)
    if replicas % ep and ep % tp == 0 and replicas % (ep // tp) == 0:
        reading.assume(f"expert parallelism of {ep} as {ep // tp} x tensor size {tp}")
        return ep // tp
    return ep


def _layers(
    reading: Reading, num_layers: int, pp: int, vpp: int
) -> tuple[int, ...] | None:
    """Share layers that do not split evenly as evenly as they go; None if they do.

    As DeepSpeed's ``partition_uniform`` has it, the first stages get the rest.
    """
    if num_layers % pp == 0 or vpp > 1:
        return None
    if _counts_ends(reading, num_layers, pp, vpp):
        return None
    per_stage, rest = divmod(num_layers, pp)
    reading.assume(
        f"layers per stage: {rest} x {per_stage + 1}, then {pp - rest} x {per_stage}"
    )
    return (per_stage + 1,) * rest + (per_stage,) * (pp - rest)


def _layout(
    reading: Reading, num_layers: int, pp: int, vpp: int
) -> tuple[int, ...] | None:
    """Fill the chunks of interleaved stages from the front; None if all are equal.

    The last ones, which have the loss, get what is left, as in Megatron-Bridge's
    layouts of DeepSeek-V3.
    """
    parts = pp * vpp
    if vpp == 1 or num_layers % parts == 0:
        return None
    if _counts_ends(reading, num_layers, pp, vpp):
        return None
    per_part = -(-num_layers // parts)
    layout = tuple(
        min(per_part, max(num_layers - per_part * part, 0)) for part in range(parts)
    )
    if 0 in layout[:-1]:
        return None
    reading.assume(f"layers per chunk: {per_part} from the first on, then what is left")
    return layout


def _counts_ends(reading: Reading, num_layers: int, pp: int, vpp: int) -> bool:
    """Return whether embedding and loss have to count as layers each.

    As Megatron Core's account_for_embedding_in_pipeline_split and its counterpart for
    the loss have it, where blocks alone do not split evenly.
    """
    if num_layers % (pp * vpp) == 0 or (num_layers + 2) % (pp * vpp):
        return False
    reading.assume("embedding and loss count as a layer each in the pipeline's split")
    return True


def _sequence_parallel(reading: Reading) -> bool:
    written = reading.words("sequence_parallel")
    if written.startswith(("yes", "no")) and not is_unstated(written):
        return written.startswith("yes")
    on = reading.preset.sequence_parallel
    reading.assume(f"sequence parallelism {'on' if on else 'off'}")
    return on


def _recompute(reading: Reading) -> str:
    written = reading.words("recompute")
    if modules := recomputed_by_recipe(reading):
        reading.assume(f"recompute selective ({', '.join(modules)}), by recipe")
        return "selective"
    if _leaves_recompute_open(reading):
        reading.assume(f"recompute {reading.preset.recompute}")
        return reading.preset.recompute
    policy = re.match(r"[a-z_]+", written)
    policies = FRAMEWORKS["maxtext"].remat_policies
    if policy is not None and policy[0] in policies:
        nearest = policies[policy[0]]
        reading.assume(nearest.note)
        return nearest.mode
    if written.startswith(("per stage", "per-op")):
        raise RowRefusedError("uneven-plan", f"recompute {written}")
    says_none = re.match(r"(none|no)\b", written) and "not" not in written.split()
    if says_none or re.match(r"activation (cpu )?offload", written):
        return "none"
    if re.match(r"full\b|(activation|gradient) checkpointing", written) and not (
        re.search(r"\d+ (of|layers)", written)
    ):
        return "full"
    return _selective(reading, written)


def _leaves_recompute_open(reading: Reading) -> bool:
    return is_unstated(reading.words("recompute")) and not recomputed_by_recipe(reading)


def _selective(reading: Reading, written: str) -> str:
    if re.fullmatch(r"selective( \((core attention|config default)\))?", written):
        if reading.preset.software.saves_products:
            reading.assume("selective recompute by operators")
        return "selective"
    if reading.preset.software.saves_products and written.startswith("selective"):
        return "selective"
    raise RowRefusedError("unknown-recompute", f"recompute {written}")


def _offload(reading: Reading, num_layers: int) -> Offload:
    """Return what the host keeps: what is said to be offloaded is so as a whole."""
    sharding, notes = reading.words("zero_or_fsdp"), reading.words("notes")
    keeps = Offload()
    if "offload" in sharding:
        reading.assume("the host keeps and updates the optimizer states")
        keeps = keeps._replace(optimizer=1.0)
        if "param" in sharding:
            keeps = keeps._replace(weights=1.0)
    if re.match(r"activation (cpu )?offload", reading.words("recompute")) or re.search(
        r"offload(ing)?:? true", notes
    ):
        reading.assume("the host keeps all activations between the passes")
        keeps = keeps._replace(activations=1.0)
    elif layers := offloaded_layers(reading):
        reading.assume(f"the host keeps the activations of {layers} blocks, by recipe")
        keeps = keeps._replace(activations=layers / num_layers)
    return keeps


_ZERO = (
    (r"zero-?3|full_shard|fsdp|hsdp|hybrid_shard", 3),
    (r"zero-?2|shard_grad_op|hybrid_shard_zero2", 2),
    # DeepSpeed's 3D parallelism has ZeRO's first stage along its replicas (Microsoft,
    # "DeepSpeed: Extreme-scale model training for everyone", 2020).
    (r"zero-?1|distributed optimizer|deepspeed 3d", 1),
    (r"zero-?0|^none|^no$|^ddp", 0),
)
"""What a description contains -> ZeRO stage."""


def _sharding(reading: Reading) -> tuple[int, int | None]:
    """Return ZeRO stage and the ranks that share shards, None for all of them."""
    written = reading.words("zero_or_fsdp")
    if written.startswith("per stage"):
        raise RowRefusedError("uneven-plan", f"sharding {written}")
    if is_unstated(written):
        reading.assume(f"ZeRO stage {reading.preset.zero_stage}")
        return reading.preset.zero_stage, None
    stages = [stage for words, stage in _ZERO if re.search(words, written)]
    # SHARD_GRAD_OP is FSDP, and ZeRO-2 all the same.
    if stages and re.search(r"shard_grad_op|_zero2|zero-?[012]", written):
        stages = [stage for stage in stages if stage < 3]
    if not stages:
        raise RowRefusedError(
            "unknown-sharding", f"sharding {reading.row.words('zero_or_fsdp')}"
        )
    stage = stages[0]
    if "deepspeed 3d" in written:
        reading.assume("ZeRO stage 1 in DeepSpeed's 3D parallelism")
    if stage >= 2 and _is_fsdp(reading) and reading.needed("pp") > 1:
        # torchtitan and its kind: with a pipeline, fully_shard keeps parameters
        # gathered and gradients whole from a chunk's first microbatch to its last.
        reading.assume("parameters and gradients are sharded between steps only")
        stage = 1
    return stage, _sharding_group(reading, written)


def _is_fsdp(reading: Reading) -> bool:
    """Return whether PyTorch's FSDP shards, or Meta's own."""
    written = reading.words("software")
    return reading.preset.weights_in_fp32 or (
        "fsdp" in written and "megatron" not in written
    )


def _sharding_group(reading: Reading, written: str) -> int | None:
    """Return the ranks that share shards, None for all of them."""
    ranks = re.search(
        rf"within (?:a )?(?:group of )?{COUNT}|\(ici_fsdp={COUNT}\)", written
    )
    if ranks is not None:
        return int(ranks[1] or ranks[2])
    axes = re.search(rf"\bdp[0-9]+ fsdp{COUNT}\b", written)
    if axes is not None:
        # Axes of one torus, which is a switch here: no group is nearer than another.
        reading.assume(f"groups of {axes[1]} shards as one of all replicas")
        return None
    if re.search(r"hsdp|hybrid_shard|within (a |each |the )?node", written):
        return _hybrid_group(reading, written)
    if "within slice" not in written:
        return None
    num_devices = reading.row.whole("num_devices") or 0
    tp, pp = reading.needed("tp"), reading.needed("pp")
    return slice_size(reading, num_devices) // (tp * pp) or None


def _hybrid_group(reading: Reading, written: str) -> int:
    """Return the ranks of a node, unless ``REPLICASxSHARDS`` says another size."""
    sizes = re.search(rf"{COUNT}\s*x\s*{COUNT}", written)
    if sizes is not None:
        return int(sizes[2])
    shards = re.search(rf"shard\w*[ =]{COUNT}", written)
    if shards is not None:
        return int(shards[1])
    size = max((reading.row.whole("devices_per_node") or 8) // reading.needed("tp"), 1)
    reading.assume(f"shards within groups of {size}, those of a node")
    return size
