"""From a row to a fixed plan on a fixed cluster, or to the reason why not.

Nothing is filled in silently: what a row does not say is taken from the preset of its
framework and noted, and what decides the result must be there.
"""

import re
from dataclasses import dataclass, replace

from estimators.models.spec import TransformerSpec
from estimators.software import Software
from estimators.training import TrainingSpec
from nestsim.validation.columns import Row
from nestsim.validation.reading import COUNT, Reading
from nestsim.validation.refusals import RowRefusedError, refusing
from nestsim.validation.row_cluster import read_accelerator, read_network
from nestsim.validation.row_model import read_model
from nestsim.validation.row_training import check_format, read_software, read_training
from planner.plan_spec import PlanSpec
from planner.step.execution import Execution
from topologies.accelerators import Accelerator
from topologies.checks import check_num_devices
from topologies.specs import NetworkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row as the planner and the simulator see it."""

    row: Row
    """As it was written."""

    model: TransformerSpec
    """Architecture and sequence length."""

    training: TrainingSpec
    """Batch, precision, optimizer."""

    accelerator: Accelerator
    """The device."""

    network: NetworkSpec
    """Nodes and links."""

    plan: PlanSpec
    """Parallel sizes and settings."""

    software: Software
    """Kernels and host."""

    execution: Execution
    """Overlaps."""

    num_devices: int
    """That were measured; the network may have a few more, which stay idle."""

    preset: str
    """Name of the framework's preset."""

    assumed: tuple[str, ...]
    """What the row does not say."""

    leaves_recompute_open: bool = False
    """Whether the row does not say what is recomputed; the plan has the preset's."""

    def with_recompute(self, mode: str) -> "Case":
        """Return the same with another recompute mode, as the least that fits."""
        said = f"recompute {mode}, the least that fits in memory"
        plan = replace(self.plan, recompute=mode)
        return replace(self, plan=plan, assumed=(*self.assumed, said))


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
    num_devices = _num_devices(reading)
    with refusing("no-such-cluster"):
        check_num_devices("num_devices", num_devices)
    plan = _plan(reading, model, num_devices)
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
        execution=reading.preset.execution,
        num_devices=num_devices,
        preset=reading.preset.name,
        assumed=tuple(reading.assumed),
        leaves_recompute_open=_leaves_recompute_open(reading),
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


def _plan(reading: Reading, model: TransformerSpec, num_devices: int) -> PlanSpec:
    tp, pp = reading.needed("tp"), reading.needed("pp")
    cp = reading.row.whole("cp") or 1
    zero_stage, group = _sharding(reading)
    dp = num_devices // (tp * pp * cp)
    vpp = reading.given("vpp", 1)
    if group is not None and group >= dp * cp:
        group = None
    ends = _counts_ends(reading, model.num_layers, pp, vpp)
    with refusing("no-such-plan"):
        return PlanSpec(
            micro_batch_size=reading.needed("micro_batch"),
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=vpp,
            data_parallel_size=dp,
            context_parallel_size=cp,
            expert_model_parallel_size=_experts(reading, model, dp * cp, tp),
            sequence_parallel=tp > 1 and _sequence_parallel(reading),
            recompute=_recompute(reading),
            zero_stage=zero_stage,
            sharding_group_size=group,
            num_layers_per_pipeline_stage=_layers(reading, model.num_layers, pp, vpp),
            account_for_embedding_in_pipeline_split=ends,
            account_for_loss_in_pipeline_split=ends,
        )


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
    each, rest = divmod(num_layers, pp)
    reading.assume(f"layers per stage: {rest} x {each + 1}, then {pp - rest} x {each}")
    return (each + 1,) * rest + (each,) * (pp - rest)


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
    if written in {"yes", "no"}:
        return written == "yes"
    on = reading.preset.sequence_parallel
    reading.assume(f"sequence parallelism {'on' if on else 'off'}")
    return on


def _recompute(reading: Reading) -> str:
    written = reading.words("recompute")
    if "offload" in written and written not in _XLA_POLICIES:
        raise RowRefusedError("offload", f"recompute {written}")
    if written.startswith(("per stage", "per-op")):
        raise RowRefusedError("uneven-plan", f"recompute {written}")
    if re.match(r"(none|no)\b", written) and "not" not in written.split():
        return "none"
    if re.fullmatch(r"full( \(.*\))?", written):
        return "full"
    if written in _XLA_POLICIES:
        mode, said = _XLA_POLICIES[written]
        reading.assume(said)
        return mode
    return _selective(reading, written)


def _leaves_recompute_open(reading: Reading) -> bool:
    return reading.words("recompute") in {"", "not stated", "not in table"}


def _selective(reading: Reading, written: str) -> str:
    if written in {"selective", "selective (core attention)"}:
        return "selective"
    if reading.preset.software.saves_products and written.startswith("selective"):
        if "op" not in written:
            reading.assume("selective recompute by operators")
        return "selective"
    if _leaves_recompute_open(reading):
        reading.assume(f"recompute {reading.preset.recompute}")
        return reading.preset.recompute
    raise RowRefusedError("unknown-recompute", f"recompute {written}")


_XLA_POLICIES = {
    "qkv_proj_offloaded": (
        "full",
        "full recompute but for products kept in the host's memory",
    ),
    "minimal": ("selective", "MaxText's minimal_flash: products are kept"),
}
"""MaxText's rematerialisation policies -> the nearest mode, and what is noted."""

_ZERO = (
    (r"zero-?3|full_shard|fsdp", 3),
    (r"zero-?2|shard_grad_op", 2),
    (r"zero-?1|distributed optimizer", 1),
    (r"zero-?0|^none|^no$|^ddp", 0),
)
"""What a description contains -> ZeRO stage."""


def _sharding(reading: Reading) -> tuple[int, int | None]:
    """Return ZeRO stage and the ranks that share shards, None for all of them."""
    written = reading.words("zero_or_fsdp")
    if written.startswith("per stage"):
        raise RowRefusedError("uneven-plan", f"sharding {written}")
    if "offload" in written or re.search(
        r"offload(ing)?:? true", reading.words("notes")
    ):
        raise RowRefusedError("offload", "states are offloaded to the host")
    if written in {"", "not stated"}:
        reading.assume(f"ZeRO stage {reading.preset.zero_stage}")
        return reading.preset.zero_stage, None
    found = [stage for words, stage in _ZERO if re.search(words, written)]
    # SHARD_GRAD_OP is FSDP, and ZeRO-2 all the same.
    if found and ("shard_grad_op" in written or re.search(r"zero-?[012]", written)):
        found = [stage for stage in found if stage < 3]
    if not found:
        raise RowRefusedError(
            "unknown-sharding", f"sharding {reading.row.words('zero_or_fsdp')}"
        )
    stage = found[0]
    if stage >= 2 and reading.preset.weights_in_fp32 and reading.needed("pp") > 1:
        # torchtitan and its kind: with a pipeline, fully_shard keeps parameters
        # gathered and gradients whole from the first microbatch to the last.
        reading.assume("parameters and gradients are sharded between steps only")
        stage = 1
    return stage, _sharding_group(reading, written)


def _sharding_group(reading: Reading, written: str) -> int | None:
    ranks = re.search(
        rf"within (?:a )?(?:group of )?{COUNT}|\(ici_fsdp={COUNT}\)", written
    )
    if ranks is not None:
        return int(ranks[1] or ranks[2])
    slices = re.search(rf"{COUNT} slice", reading.words("notes"))
    if "within slice" not in written or slices is None:
        return None
    tp, pp = reading.needed("tp"), reading.needed("pp")
    return (reading.row.whole("num_devices") or 0) // (int(slices[1]) * tp * pp) or None
