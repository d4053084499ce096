"""From a row to the tables [training], [software] and [plan] of a scenario."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nestsim.features.validation.cluster_table import device_of, slice_size
from nestsim.features.validation.columns import RowRefusedError
from nestsim.features.validation.reading import (
    COUNT,
    Converter,
    JobReading,
    Table,
    Value,
    fill_table,
    is_unstated,
    meaning,
    vocabulary,
)
from nestsim.features.validation.run_columns import run_again
from planner.frameworks.framework import FRAMEWORKS


def training_table(reading: JobReading) -> Table:
    """Return the table [training] of a row.

    Raises
    ------
    RowRefusedError
        If the batch is missing or the precision is not modelled.
    """
    return fill_table(reading, _TRAINING) | reading.by_source("training")


def _precision(reading: JobReading, _table: Table) -> str:
    written = reading.words("precision")
    if re.search(r"fp6|int4", written):
        raise RowRefusedError(
            "low-precision", f"{reading.row.words('precision')} is not modelled"
        )
    match = re.search(r"bf16|bfloat16|fp16|float16|fp32|float32", written)
    if match is not None:
        return match[0].replace("bfloat", "bf").replace("float", "fp")
    if "rowwise" in written:
        # torchtitan's recipe: casts by row cost what 8-bit products gain.
        reading.assume("rowwise float8 products as fast as bf16 ones")
        return "bf16"
    if written not in {"", "not stated"} and meaning(_NARROW, written) is None:
        raise RowRefusedError(
            "unknown-precision", f"precision {reading.row.words('precision')}"
        )
    reading.assume(f"precision {reading.preset.precision}")
    return reading.preset.precision


def _gradients(reading: JobReading, table: Table) -> str | None:
    if reading.says("precision", "fp32 grad"):
        return "fp32"
    precision = str(table["precision"])
    is_wide = reading.preset.gradients[precision] == "fp32"
    reading.assume(f"gradients in {'fp32' if is_wide else precision}, adam")
    return None


def _global_batch(reading: JobReading, _table: Table) -> int:
    """Return the sequences of a step; where they are not stated, one micro-batch each.

    Raises
    ------
    RowRefusedError
        If they are not stated, and decide what was measured: a pipeline has its
        bubble, a time is that of a step of unknown length.
    """
    if reading.row.whole("global_batch") is not None:
        return reading.needed("global_batch")
    dp, micro_batch = reading.row.whole("dp"), reading.row.whole("micro_batch")
    is_time = any(
        reading.words(name) for name in ("iter_time_s", "iter_time_s_derived")
    )
    is_micro_batch = reading.says("notes", "iteration = one micro-batch")
    if (
        dp is None
        or micro_batch is None
        or reading.needed("pp") > 1
        or (is_time and not is_micro_batch)
    ):
        return reading.needed("global_batch")
    reading.assume(f"global_batch = {dp * micro_batch}, a micro-batch for each replica")
    reading.assumes_layout = not is_micro_batch
    return dp * micro_batch


def _gather(reading: JobReading, table: Table) -> str | None:
    """Return the format of weights on the wire.

    Megatron Core gathers the weights of 8-bit products in 8 bits, torchtitan where the
    row says so. LLM Foundry's modes PURE and DEFAULT gather 16 bits (Composer, pull
    request 2047, March 2023).
    """
    narrow = reading.preset.software.keeps_narrow_inputs and "matmul_precision" in table
    if narrow or reading.says("precision", "fp8 all-gather"):
        return "fp8"
    return reading.preset.gather or None


_NARROW = (
    ("fp4", "fp4"),
    ("int8", "int8"),
    ("^(?!.*rowwise).*(fp8|float8)", "fp8"),
)
"""Precision -> narrow format of products with weights."""


def _matmul_precision(reading: JobReading, _table: Table) -> str | None:
    return meaning(_NARROW, reading.words("precision"))


_TRAINING: Mapping[str, Converter] = MappingProxyType(
    {
        "precision": _precision,
        "gradient_precision": _gradients,
        "global_batch_size": _global_batch,
        "matmul_precision": _matmul_precision,
        "gather_precision": _gather,
    }
)
"""Setting of [training] -> what makes it of a row."""


def software_table(reading: JobReading) -> Table:
    """Return the table [software] of a row: the preset, and what runs again."""
    table: Table = {"preset": reading.preset.name, "frees_gradients": reading.is_fsdp}
    if reading.says("zero_or_fsdp", "fsdp") and not reading.preset.weights_in_fp32:
        # Megatron FSDP's user guide: --no-gradient-accumulation-fusion.
        table["gradient_accumulation_fusion"] = False
    modules = run_again(reading)
    if modules:
        table["recompute_modules"] = list(modules)
    return table


MICRO_BATCHES = (1, 2, 4)
"""What is tried where a row does not say its micro-batch: what recipes of large models
have."""


class RowSizes(NamedTuple):
    """Parallel sizes of a row."""

    tp: int
    """Devices that share each layer."""

    pp: int
    """Stages of the pipeline."""

    cp: int
    """Devices that share each sequence."""

    dp: int
    """Replicas."""


def read_num_devices(reading: JobReading) -> int:
    """Return how many devices took part; the columns must agree."""
    tp, pp, cp = reading.needed("tp"), reading.needed("pp"), reading.given("cp", 1)
    dp, model_parallel = reading.row.whole("dp"), tp * pp * cp
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
            f"tp {tp} x pp {pp} x cp {cp} x dp {dp or '?'} is not {count} devices",
        )
    return count


def plan_tables(
    reading: JobReading, tables: Mapping[str, Table], accelerator: Value, devices: int
) -> list[Table]:
    """Return the table [plan] of a row; with alternatives if the micro-batch is open.

    Parameters
    ----------
    reading
        The row.
    tables
        The scenario's, as far as they are known.
    accelerator
        Setting cluster.accelerator of the scenario.
    devices
        Devices that took part.
    """
    tp, pp = reading.needed("tp"), reading.needed("pp")
    cp = reading.row.whole("cp") or 1
    sizes = RowSizes(tp, pp, cp, devices // (tp * pp * cp))
    num_layers = _whole(tables["model"]["num_layers"])
    micro_batch, vpp = reading.row.whole("micro_batch"), reading.row.whole("vpp")
    if micro_batch is not None:
        chunks, micro_batches = [reading.given("vpp", 1)], [micro_batch]
    else:
        reading.assumes_layout = True
        chunks = [vpp] if vpp is not None else _open_chunks(reading, num_layers, pp)
        per_replica = _whole(tables["training"]["global_batch_size"]) // sizes.dp
        micro_batches = [size for size in MICRO_BATCHES if per_replica % size == 0]
        reading.assume(f"micro_batch: the fastest that fits, of {_list(micro_batches)}")
        if len(chunks) > 1:
            reading.assume(f"vpp: the fastest that fits, of {_list(chunks)}")
    shares = [_shares(reading, tables, accelerator, sizes, count) for count in chunks]
    return [
        {"micro_batch_size": size, **table}
        for table in shares
        for size in micro_batches
    ]


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _list(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _open_chunks(reading: JobReading, num_layers: int, pp: int) -> list[int]:
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


def _shares(
    reading: JobReading,
    tables: Mapping[str, Table],
    accelerator: Value,
    sizes: RowSizes,
    vpp: int,
) -> Table:
    """Return the table [plan] with a number of chunks, for any microbatch."""
    model, ranks = tables["model"], sizes.dp * sizes.cp
    num_layers = _whole(model["num_layers"])
    zero_stage, group = _sharding(reading, accelerator)
    counts_ends = _counts_ends(num_layers, sizes.pp * vpp)
    if counts_ends:
        reading.assume(
            "embedding and loss count as a layer each in the pipeline's split"
        )
    table: Table = {
        "tensor_model_parallel_size": sizes.tp,
        "pipeline_model_parallel_size": sizes.pp,
        "virtual_pipeline_model_parallel_size": vpp,
        "data_parallel_size": sizes.dp,
        "context_parallel_size": sizes.cp,
        "expert_model_parallel_size": _experts(reading, model, ranks, sizes.tp),
        "sequence_parallel": sizes.tp > 1 and _sequence_parallel(reading),
        "recompute": _recompute(reading),
        "zero_stage": zero_stage,
        "account_for_embedding_in_pipeline_split": counts_ends,
        "account_for_loss_in_pipeline_split": counts_ends,
    }
    if group is not None and group < ranks:
        table["sharding_group_size"] = group
    if not counts_ends:
        table |= _layout(reading, num_layers, sizes.pp, vpp)
    return table | _offload(reading)


def _experts(reading: JobReading, model: Table, replicas: int, tp: int) -> int:
    """Return the expert-parallel size.

    A group may span tensor-parallel ranks (Megatron Core's expert tensor-parallel size
    of 1): here those share each expert instead, which holds as many parameters and
    moves as many tokens.
    """
    if "num_moe_experts" not in model:
        return 1
    ep = reading.given("ep", 1)
    if replicas % ep and ep % tp == 0 and replicas % (ep // tp) == 0:
        reading.assume(f"expert parallelism of {ep} as {ep // tp} x tensor size {tp}")
        return ep // tp
    return ep


def _counts_ends(num_layers: int, parts: int) -> bool:
    """Return whether embedding and loss have to count as layers each.

    As Megatron Core's account_for_embedding_in_pipeline_split and its counterpart for
    the loss have it, where blocks alone do not split evenly.
    """
    return num_layers % parts != 0 and (num_layers + 2) % parts == 0


def _layout(reading: JobReading, num_layers: int, pp: int, vpp: int) -> Table:
    """Share layers that do not split evenly; nothing if they do.

    As DeepSpeed's ``partition_uniform`` has it, the first stages get the rest. The
    chunks of interleaved stages are filled from the front, and the last ones, which
    have the loss, get what is left, as in Megatron-Bridge's layouts of DeepSeek-V3.
    """
    parts = pp * vpp
    if num_layers % parts == 0:
        return {}
    if vpp == 1:
        least, rest = divmod(num_layers, pp)
        reading.assume(
            f"layers per stage: {rest} x {least + 1}, then {pp - rest} x {least}"
        )
        stages = [least + 1] * rest + [least] * (pp - rest)
        return {"num_layers_per_pipeline_stage": stages}
    most = -(-num_layers // parts)
    layout = [min(most, max(num_layers - most * part, 0)) for part in range(parts)]
    if 0 in layout[:-1]:
        return {}
    reading.assume(f"layers per chunk: {most} from the first on, then what is left")
    return {"pipeline_model_parallel_layout": layout}


def _sequence_parallel(reading: JobReading) -> bool:
    written = reading.words("sequence_parallel")
    if written.startswith(("yes", "no")) and not is_unstated(written):
        return written.startswith("yes")
    on = reading.preset.sequence_parallel
    reading.assume(f"sequence parallelism {'on' if on else 'off'}")
    return on


def _recompute(reading: JobReading) -> str:
    written = reading.words("recompute")
    modules = run_again(reading)
    if modules is not None:
        return "selective" if modules else "none"
    if reading.leaves_recompute_open:
        reading.assume(f"recompute {reading.preset.recompute}")
        return reading.preset.recompute
    policy = re.match(r"[a-z_]+", written)
    nearest = FRAMEWORKS["maxtext"].remat_policies.get(policy[0] if policy else "")
    if nearest is not None:
        reading.assume(nearest.note)
        return nearest.mode
    by_operators = reading.preset.software.saves_products
    mode = meaning(_BY_OPERATORS if by_operators else _RECOMPUTE, written)
    if mode is None:
        is_uneven = written.startswith(("per stage", "per-op"))
        code = "uneven-plan" if is_uneven else "unknown-recompute"
        raise RowRefusedError(code, f"recompute {written}")
    if by_operators and re.match(r"selective( \((core a|config d)|$)", written):
        reading.assume("selective recompute by operators")
    return mode


_RECOMPUTE = (
    (r"^(none|no)\b(?!(.* )?not( |$))|^activation (cpu )?offload", "none"),
    (r"^(full\b|(activation|gradient) checkpointing)(?!.*\d (of|layers))", "full"),
    (r"^selective( \((core attention|config default)\))?$", "selective"),
)
"""Recompute -> its mode."""

_BY_OPERATORS = (*_RECOMPUTE, ("^selective", "selective"))
"""The same where the framework repeats operators."""


_OFFLOADED = r"^activation (cpu )?offload|host offload decoder_layer_input"
"""Pattern of recompute that keeps in the host's memory what it keeps: with MaxText's
layers, their inputs."""


def _offload(reading: JobReading) -> Table:
    """Return what the host keeps: what is said to be offloaded is so as a whole.

    By columns that are not about it; `offload` is (`run_columns`).
    """
    kept: Table = {}
    if reading.says("zero_or_fsdp", "offload"):
        reading.assume("the host keeps and updates the optimizer states")
        kept["offload_optimizer"] = 1.0
        if reading.says("zero_or_fsdp", "param"):
            kept["offload_weights"] = 1.0
    if reading.says("recompute", _OFFLOADED) or reading.says(
        "notes", r"offload(ing)?:? true"
    ):
        reading.assume("the host keeps all activations between the passes")
        kept["offload_activations"] = 1.0
    return kept


def _sharding(reading: JobReading, accelerator: Value) -> tuple[int, int | None]:
    """Return ZeRO stage and the ranks that share shards, None for all of them."""
    written = reading.words("zero_or_fsdp")
    if written.startswith("per stage"):
        raise RowRefusedError("uneven-plan", f"sharding {written}")
    if is_unstated(written):
        reading.assume(f"ZeRO stage {reading.preset.zero_stage}")
        return reading.preset.zero_stage, None
    # SHARD_GRAD_OP is FSDP, and ZeRO-2 all the same.
    is_less = re.search(r"shard_grad_op|_zero2|zero-?[012]", written) is not None
    known = vocabulary().zero_stages
    stage = meaning([entry for entry in known if entry[1] < 3 or not is_less], written)
    if stage is None:
        raise RowRefusedError(
            "unknown-sharding", f"sharding {reading.row.words('zero_or_fsdp')}"
        )
    if "deepspeed 3d" in written:
        reading.assume("ZeRO stage 1 in DeepSpeed's 3D parallelism")
    if stage >= 2 and reading.is_fsdp and reading.needed("pp") > 1:
        # torchtitan and its kind: with a pipeline, fully_shard keeps parameters
        # gathered and gradients whole from a chunk's first microbatch to its last.
        reading.assume("parameters and gradients are sharded between steps only")
        stage = 1
    return stage, _sharding_group(reading, written, accelerator)


def _sharding_group(
    reading: JobReading, written: str, accelerator: Value
) -> int | None:
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
    joined = slice_size(reading, device_of(accelerator), num_devices)
    return joined // (reading.needed("tp") * reading.needed("pp")) or None


def _hybrid_group(reading: JobReading, written: str) -> int:
    """Return the ranks of a node, unless ``REPLICASxSHARDS`` says another size."""
    stated = re.search(rf"{COUNT}\s*x\s*{COUNT}", written) or re.search(
        rf"()shard\w*[ =]{COUNT}", written
    )
    if stated is not None:
        return int(stated[2])
    size = max((reading.row.whole("devices_per_node") or 8) // reading.needed("tp"), 1)
    reading.assume(f"shards within groups of {size}, those of a node")
    return size
