"""From a row to number formats, optimizer and software."""

import re
from dataclasses import replace

from estimators.software import Software
from estimators.training import TrainingSpec
from nestsim.features.validation.rows.columns import Reading, RowRefusedError
from nestsim.features.validation.rows.recipes import (
    overlapping_recipe,
    recomputed_by_recipe,
)
from topologies.accelerators import Accelerator
from topologies.specs import FatTreeSpec


def read_software(reading: Reading, network: FatTreeSpec, num_devices: int) -> Software:
    """Return the preset's software, as far as the row does not say otherwise.

    Parameters
    ----------
    reading
        The row.
    network, num_devices
        What it ran on.
    """
    software = reading.preset.software
    if "compile=no" in reading.words("software"):
        # As LLM Foundry, whose blocks run eagerly.
        software = replace(software, name=software.name.partition("-")[0])
    per_node = reading.row.whole("devices_per_node") or 8
    software = replace(
        software, num_ranks=num_devices, many_nodes=num_devices > per_node
    )
    recipe = overlapping_recipe(reading)
    once = (
        reading.preset.sends_tokens_once if recipe is None else recipe.sends_tokens_once
    )
    if modules := recomputed_by_recipe(reading):
        software = replace(software, recompute_modules=modules)
    if once:
        software = replace(software, ranks_per_node=network.levels[0].fan_out)
    return software


def read_training(reading: Reading) -> TrainingSpec:
    """Return batch, precision and optimizer of a row.

    Raises
    ------
    RowRefusedError
        If the batch is missing or the precision is not modelled.
    """
    precision = _precision(reading)
    gradients = reading.preset.gradients[precision]
    if "fp32 grad" in reading.words("precision"):
        gradients = "fp32"
    else:
        reading.assume(
            f"gradients in {'fp32' if gradients == 'fp32' else precision}, adam"
        )
    return TrainingSpec(
        global_batch_size=_global_batch(reading),
        precision=precision,
        gradient_precision=gradients,
        matmul_precision=_matmul_precision(reading),
        weights_in_fp32=reading.preset.weights_in_fp32,
        gather_precision=_gather(reading),
        reduce_precision=reading.preset.reduce,
        gradient_copies=reading.preset.gradient_copies,
        casts_gradients=reading.preset.casts_gradients,
    )


def _global_batch(reading: Reading) -> int:
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
    is_one = "iteration = one micro-batch" in reading.words("notes")
    if None in {dp, micro_batch} or reading.needed("pp") > 1 or (is_time > is_one):
        return reading.needed("global_batch")
    assert dp is not None
    assert micro_batch is not None
    reading.assume(f"global_batch = {dp * micro_batch}, a micro-batch for each replica")
    reading.assumes_layout = not is_one
    return dp * micro_batch


def _precision(reading: Reading) -> str:
    written = reading.words("precision")
    if re.search(r"fp6|int4", written):
        raise RowRefusedError(
            "low-precision", f"{reading.row.words('precision')} is not modelled"
        )
    match = re.search(r"bf16|bfloat16|fp16|float16|fp32|float32", written)
    if match is None and "rowwise" in written:
        # torchtitan's recipe: casts by row cost what 8-bit products gain.
        reading.assume("rowwise float8 products as fast as bf16 ones")
        return "bf16"
    if match is None:
        if written not in {"", "not stated"} and not _matmul_precision(reading):
            raise RowRefusedError(
                "unknown-precision", f"precision {reading.row.words('precision')}"
            )
        reading.assume(f"precision {reading.preset.precision}")
        return reading.preset.precision
    return match[0].replace("bfloat", "bf").replace("float", "fp")


def _gather(reading: Reading) -> str:
    """Return the format of weights on the wire.

    LLM Foundry's mode DEFAULT gathers them in fp32, PURE in 16 bits; Megatron Core
    gathers the weights of 8-bit products in 8 bits, torchtitan where the row says so.
    """
    written = reading.words("precision")
    if "mp mode default" in written:
        return "fp32"
    if "fp8 all-gather" in written or (
        reading.preset.software.keeps_narrow_inputs and _matmul_precision(reading)
    ):
        return "fp8"
    return reading.preset.gather


def _matmul_precision(reading: Reading) -> str:
    """Return the narrow format of products with weights, ``""`` if there is none."""
    written = reading.words("precision")
    if "fp4" in written:
        return "fp4"
    if "int8" in written:
        return "int8"
    if re.search(r"fp8|float8", written) and "rowwise" not in written:
        return "fp8"
    return ""


def check_format(accelerator: Accelerator, training: TrainingSpec) -> None:
    """Refuse a narrow format that the accelerator has no rate for.

    Raises
    ------
    RowRefusedError
        If it has none.
    """
    narrow = training.matmul_precision
    if narrow and narrow not in accelerator.peak_flops:
        raise RowRefusedError(
            "low-precision", f"{accelerator.name} has no rate for {narrow}"
        )
