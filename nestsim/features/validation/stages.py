"""Rows about a pipeline whose stages no plan of ours expresses, or about one of them.

Two systems print what each stage does, in ``notes``; where Mist's stages are of one
size, they are a plan of ours (`read_mist_plan`):

- Mist: ``layers=[13, 11]``, ``ckpt layers=[0, 0]`` and, for each stage, ``[mbs, dp,
  tp, Wshard, Gshard, Oshard, Woff, Goff, Ooff, Aoff]``;
- Aceso: ``stage gpus=[1, 2]``, ``ops per stage=[132, 287]`` and ``recomputed-op
  fraction per stage=[0.98, 0.4]``. Stages are cut between any two operators.

A third form stands in ``recompute``: ``5 of 12 layers in stage 0, 0 in stage 1``. What
stands with one row of a run holds for all rows of its source.

For the time of such a pipeline each stage is priced by the planner in plans of like
stages, all of its sizes, with one and with two blocks each, which shows what a block
costs, and what the ends of the chain do. As many blocks as the stage has, under its
mixture of recompute modes, make its passes, and the planner's exact timeline of the
schedule runs them. Boundaries are those of the first stage's sizes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from estimators.layers.work import Degrees
from nestsim.features.validation.columns import (
    UNEVEN_COLUMNS,
    Row,
    RowRefusedError,
)
from nestsim.features.validation.reading import JobReading, Table
from planner.cost.objective import ChunkTimes, StageCost
from planner.cost.pricing import price_plan, rates_of
from planner.cost.stage import StagePrice
from planner.cost.timeline import AlikeReplicas, PlanTimeline, step_ends
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.execution import Workload
from planner.step.memory import BlockStage
from planner.step.plan import Offload, Plan
from topologies.network import Network
from topologies.specs import FatTreeSpec

_ACESO_OPERATORS = 13
"""Operators of a layer in Aceso's GPT (runtime/megatron/model): norm, qkv, scores,
softmax, dropout, context, projection, dropout and sum; norm, up, GELU, down, dropout
and sum. Before the layers is one, the embedding; final norm and head are behind."""

_ACESO_WEIGHTS: Mapping[int, float] = {1: 3 / 12, 6: 1 / 12, 9: 4 / 12, 11: 4 / 12}
"""Place of an operator in its layer -> its part of the layer's parameters, with a
feed-forward layer of four times the hidden size."""


_MIST_SETTINGS = 10
"""Numbers that Mist prints for each stage."""

_MOST = 1e6
"""Largest number that a description of stages may have."""

_ACESO_CORE = 4
"""Operators of the attention core, which are repeated first: dropout and context,
before scores and softmax join them. The first two alone free nothing, since softmax and
values are their inputs. So in the configurations of all runs that were logged
(``recompute_ops`` of ``top_configs``; Liu et al., "Aceso", EuroSys 2024)."""


class SizedStage(NamedTuple):
    """What a stage holds, and on how many devices."""

    degrees: Degrees
    """How each of its layers is split."""

    dp: int
    """Replicas of the stage, which share a microbatch."""

    blocks: BlockStage
    """What it holds."""


def with_notes_of_run(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Give every row the description of its run's stages, which one row has."""
    described = {
        row.words("source"): row.words("notes") for row in rows if is_staged(row)
    }
    return tuple(_with_notes(row, described) for row in rows)


_MIST = re.compile(r"\bckpt( layers)?=\[")
"""Pattern of notes that Mist's stages are described by."""

_ACESO = re.compile(r"\bops per stage=\[")
"""Pattern of notes that Aceso's stages are described by."""


def is_staged(row: Row) -> bool:
    """Return whether a row's notes describe stages."""
    notes = row.words("notes")
    return _MIST.search(notes) is not None or _ACESO.search(notes) is not None


def _with_notes(row: Row, described: Mapping[str, str]) -> Row:
    source = row.words("source")
    if is_staged(row) or not source or source not in described:
        return row
    return replace(row, values={**row.values, "notes": described[source]})


def read_sized_stage(reading: JobReading, num_layers: int) -> SizedStage:
    """Return the stage that a row is about, whose notes describe all.

    Raises
    ------
    RowRefusedError
        If it cannot be expressed.
    """
    number = re.match(r"stage ([0-9]{1,9})\b", reading.words("where"))
    if number is None:
        raise RowRefusedError("other-place", f"where is {reading.words('where')}")
    return _described(reading)(reading, num_layers, int(number[1]))


def _described(
    reading: JobReading,
) -> Callable[[JobReading, int, int], SizedStage]:
    """Return what reads a stage of a row's notes."""
    return _mist if _MIST.search(reading.row.words("notes")) else _aceso


def read_stages(reading: JobReading, num_layers: int) -> tuple[SizedStage, ...] | None:
    """Return all stages of a row that differ; None if columns say that none does.

    Raises
    ------
    RowRefusedError
        If there is one, and it cannot be expressed.
    """
    pp = reading.needed("pp")
    if not _differ(reading):
        return None
    if not is_staged(reading.row):
        return _recomputing(reading, num_layers, pp)
    read = _described(reading)
    stages = tuple(read(reading, num_layers, index) for index in range(pp))
    held = sum(sized.blocks.num_blocks for sized in stages)
    if abs(held - num_layers) > 1e-6 * held:
        raise RowRefusedError(
            "contradiction", f"stages hold {held:g} of {num_layers} layers"
        )
    return stages


def _differ(reading: JobReading) -> bool:
    """Tell whether stages have unlike sizes, recompute in part, or their own shards."""
    return (
        any("/" in reading.words(column) for column in UNEVEN_COLUMNS)
        or re.match(r"per[ -](stage|op)|\[", reading.words("recompute")) is not None
        or _PART.search(reading.words("recompute")) is not None
        or reading.words("zero_or_fsdp").startswith("per stage")
    )


_PART = re.compile(r"([0-9]{1,6})(?: of [0-9]+ layers)? in stage ([0-9]{1,6})")
"""Pattern of the recomputed layers of one stage."""


def _recomputing(
    reading: JobReading, num_layers: int, pp: int
) -> tuple[SizedStage, ...] | None:
    """Return even stages that repeat some of their layers each."""
    parts = {
        int(stage): int(count)
        for count, stage in _PART.findall(reading.words("recompute"))
    }
    if set(parts) != set(range(pp)) or num_layers % pp:
        return None
    dp, micro_batch = reading.needed("dp"), reading.needed("micro_batch")
    per_stage = num_layers // pp
    return tuple(
        SizedStage(
            Degrees(tp=reading.needed("tp"), micro_batch_size=micro_batch),
            dp,
            BlockStage(
                num_blocks=per_stage,
                num_weights=per_stage,
                recomputed=min(parts[index], per_stage),
                ends=_ends(num_layers, index, pp - 1),
                in_flight=_in_flight(reading, index, pp, micro_batch * dp),
                zero_stage=1 if "zero-1" in reading.words("notes") else 0,
                group_size=dp,
            ),
        )
        for index in range(pp)
    )


def _listed(notes: str, pattern: str) -> list[float]:
    match = re.search(pattern + r"\s*=\s*(\[[^\]]*\])", notes)
    if match is None:
        raise RowRefusedError("uneven-plan", f"notes do not list {pattern}")
    return _numbers(_parsed(match[1]), pattern)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RowRefusedError("uneven-plan", "notes hold a list that is none") from None


def _numbers(values: object, what: str) -> list[float]:
    """Return a list of numbers that sizes, shares and counts of layers can be."""
    known = isinstance(values, list) and all(
        isinstance(value, int | float) and 0 <= value <= _MOST for value in values
    )
    if not known:
        raise RowRefusedError("uneven-plan", f"notes do not list numbers of {what}")
    assert isinstance(values, list)
    return [float(value) for value in values]


def _settings(text: str, index: int) -> list[float]:
    """Return the ten settings of a stage."""
    rows = _parsed(text)
    assert isinstance(rows, list), "the text begins with a bracket"
    if index >= len(rows):
        raise RowRefusedError("contradiction", f"no stage {index} among settings")
    numbers = _numbers(rows[index], "settings")
    if len(numbers) != _MIST_SETTINGS or not all(
        n >= 1 and n.is_integer() for n in numbers[:3]
    ):
        raise RowRefusedError("uneven-plan", f"settings of stage {index} are not known")
    return numbers


def _one_of(values: Sequence[float], index: int, what: str) -> float:
    if index >= len(values):
        raise RowRefusedError("contradiction", f"no stage {index} among {what}")
    return values[index]


def _in_flight(reading: JobReading, index: int, num_stages: int, sequences: int) -> int:
    microbatches = -(-reading.needed("global_batch") // sequences)
    return min(num_stages - index, microbatches)


def _ends(num_layers: int, index: int, last: int) -> tuple[int, ...]:
    """Return the first layers of the chain, and those behind its blocks, if held.

    The chain has the embedding, the blocks, the final norm, and the head with its loss.
    """
    first = (0,) if index == 0 else ()
    return first + (
        tuple(range(num_layers + 1, num_layers + 3)) if index == last else ()
    )


def _mist(reading: JobReading, num_layers: int, index: int) -> SizedStage:
    notes = reading.row.words("notes")
    layers = _listed(notes, _MIST_LAYERS)
    match = re.search(r"=\s*(\[\[.*?\]\])", notes)
    if match is None:
        raise RowRefusedError("uneven-plan", "notes do not list settings of stages")
    num_blocks = _one_of(layers, index, "layers")
    recomputed = _one_of(_listed(notes, r"ckpt(?: layers)?"), index, "ckpt layers")
    settings = _settings(match[1], index)
    micro_batch, dp, tp = (int(size) for size in settings[:3])
    blocks = BlockStage(
        num_blocks=num_blocks,
        num_weights=num_blocks,
        recomputed=recomputed,
        ends=_ends(num_layers, index, len(layers) - 1),
        in_flight=_in_flight(reading, index, len(layers), micro_batch * dp),
        zero_stage=_mist_zero_stage(settings),
        group_size=dp,
        offload=_mist_offload(settings),
    )
    return SizedStage(Degrees(tp=tp, micro_batch_size=micro_batch), dp, blocks)


def _mist_zero_stage(settings: Sequence[float]) -> int:
    """Return the ZeRO stage of Mist's flags for weights, gradients and optimizer."""
    weights, gradients, optimizer = settings[3:6]
    return 3 if weights else 2 if gradients else 1 if optimizer else 0


def _mist_offload(settings: Sequence[float]) -> Offload:
    """Return what the host keeps of a stage."""
    offload = Offload(*settings[6:])
    if any(part > 1.0 for part in offload):
        raise RowRefusedError("uneven-plan", "notes list more than all as offloaded")
    return offload


def read_mist_plan(reading: JobReading, num_layers: int) -> Table | None:
    """Return the table [plan] of a row whose stages Mist describes; None without any.

    None as well where stages differ in tensor- or data-parallel size, which our plans
    do not.

    Raises
    ------
    RowRefusedError
        If the description contradicts itself.
    """
    if not _differ(reading) or not _MIST.search(reading.row.words("notes")):
        return None
    pp, notes = reading.needed("pp"), reading.row.words("notes")
    stages = [_mist(reading, num_layers, index) for index in range(pp)]
    sizes = {(sized.degrees, sized.dp) for sized in stages}
    counts = [sized.blocks.num_blocks for sized in stages]
    recomputed = [sized.blocks.recomputed for sized in stages]
    if len(sizes) > 1 or not all(n.is_integer() for n in (*counts, *recomputed)):
        return None
    if sum(counts) != num_layers or len(_listed(notes, _MIST_LAYERS)) != pp:
        raise RowRefusedError(
            "contradiction", f"stages hold {sum(counts):g} of {num_layers} layers"
        )
    ((degrees, dp),) = sizes
    table: Table = {
        "micro_batch_size": degrees.micro_batch_size,
        "tensor_model_parallel_size": degrees.tp,
        "pipeline_model_parallel_size": pp,
        "data_parallel_size": dp,
        "sequence_parallel": False,
        "recompute": "full" if any(recomputed) else "none",
        "zero_stage": [sized.blocks.zero_stage for sized in stages],
        "num_layers_per_pipeline_stage": [int(count) for count in counts],
    }
    if any(recomputed):
        table["recompute_num_layers"] = [int(count) for count in recomputed]
    for part in Offload._fields:
        kept = [float(getattr(sized.blocks.offload, part)) for sized in stages]
        table[f"offload_{part}"] = kept
    return table


_MIST_LAYERS = r"(?<!ckpt )layers"
"""Pattern of the name of the list of Mist's layers."""


def _aceso(reading: JobReading, num_layers: int, index: int) -> SizedStage:
    notes = reading.row.words("notes")
    counts = [int(count) for count in _listed(notes, "ops per stage")]
    if sum(counts) != _ACESO_OPERATORS * num_layers + 3:
        raise RowRefusedError(
            "uneven-plan", f"{sum(counts)} operators are not {num_layers} layers"
        )
    _one_of(counts, index, "ops per stage")
    part = _one_of(
        _listed(notes, "recomputed-op fraction per stage"), index, "fractions"
    )
    devices = int(_one_of(_listed(notes, "stage gpus"), index, "stage gpus"))
    begin = max(sum(counts[:index]) - 1, 0)
    end = min(sum(counts[: index + 1]) - 1, _ACESO_OPERATORS * num_layers)
    places = [place % _ACESO_OPERATORS for place in range(begin, end)]
    num_blocks = len(places) / _ACESO_OPERATORS
    core = _ACESO_CORE / _ACESO_OPERATORS
    redone = max(part - core, 0.0) / (1.0 - core)
    whole = max(2.0 * min(part / core, 1.0) - 1.0, 0.0)
    tp, dp = _split_of(reading, "tp", devices), _split_of(reading, "dp", devices)
    if tp * dp != devices:
        raise RowRefusedError("contradiction", f"tp {tp} x dp {dp} is not {devices}")
    micro_batch = reading.needed("micro_batch")
    if micro_batch < dp:
        raise RowRefusedError("contradiction", f"micro_batch {micro_batch} of dp {dp}")
    reading.assume(f"tp {tp} and dp {dp} in stage {index}")
    blocks = BlockStage(
        num_blocks=num_blocks,
        num_weights=sum(_ACESO_WEIGHTS.get(place, 0.0) for place in places),
        selective=num_blocks * (whole - redone),
        half_selective=num_blocks * (min(2.0 * part / core, 1.0) - whole),
        recomputed=num_blocks * redone,
        ends=_ends(num_layers, index, len(counts) - 1),
        in_flight=_in_flight(reading, index, len(counts), micro_batch),
    )
    return SizedStage(Degrees(tp=tp, micro_batch_size=micro_batch // dp), dp, blocks)


def _split_of(reading: JobReading, column: str, devices: int) -> int:
    """Return the size that the stage's devices can have of those listed."""
    text = reading.row.words(column) or "1"
    sizes = [int(float(size)) for size in text.split("/")]
    if min(sizes) > devices:
        raise RowRefusedError("contradiction", f"{column} {text} of {devices} devices")
    return max(size for size in sizes if size <= devices)


Deepened = Callable[[int], Workload]
"""Number of blocks -> the job with a model of that depth."""

Built = Callable[[FatTreeSpec], Network]
"""Description of a network -> as the job's library sees it."""


def uneven_step_time(
    deepened: Deepened,
    built: Built,
    network: FatTreeSpec,
    stages: Sequence[SizedStage],
) -> float:
    """Return the time of a step of a 1F1B pipeline [s].

    Parameters
    ----------
    deepened
        The job with as many blocks as asked for.
    built
        Makes networks.
    network
        What the job runs on.
    stages
        From the first to the last.

    Raises
    ------
    RowRefusedError
        If stages hide communication, have microbatches of unlike sizes, or unlike
        sizes on several nodes.
    """
    most = len(stages) * max(sized.degrees.tp * sized.dp for sized in stages)
    cluster = built(_with_devices(network, most))
    _check(deepened(len(stages)), stages)
    prices = [
        _stage_price(deepened, cluster, sized, index, len(stages))
        for index, sized in enumerate(stages)
    ]
    workload = deepened(len(stages))
    plan = _like_plan(workload, cluster, stages[0], len(stages), "none", blocks=1)
    rates = rates_of(cluster, workload, plan)
    directions = np.stack([rates.activation, rates.gradient], axis=-1)
    timeline = PlanTimeline(plan, prices, slowdown=1.0)
    replicas = np.unique(np.swapaxes(directions, 0, 1), axis=0)
    return step_ends([AlikeReplicas(timeline, replica) for replica in replicas]).step


def _with_devices(network: FatTreeSpec, count: int) -> FatTreeSpec:
    """Return a node with as many devices as plans of like stages have."""
    if count <= network.num_devices:
        return network
    if len(network.levels) > 1:
        raise RowRefusedError(
            "uneven-plan", "stages of unlike sizes are spread over several nodes"
        )
    return FatTreeSpec(levels=(replace(network.levels[0], fan_out=count),))


def _check(workload: Workload, stages: Sequence[SizedStage]) -> None:
    execution = workload.execution
    hidden = (
        execution.overlap_grad_reduce,
        execution.overlap_param_gather,
        execution.tp_comm_overlap,
    )
    if any(hidden):
        raise RowRefusedError("uneven-plan", "stages differ and hide communication")
    rounds = {sized.degrees.micro_batch_size * sized.dp for sized in stages}
    if len(rounds) > 1:
        raise RowRefusedError(
            "uneven-plan", f"stages work on {sorted(rounds)} sequences at once"
        )


def _like_plan(
    workload: Workload,
    network: Network,
    sized: SizedStage,
    num_stages: int,
    recompute: str,
    *,
    blocks: int,
) -> Plan:
    """Return the plan whose stages all have one stage's sizes, and so many blocks."""
    spec = PlanSpec(
        micro_batch_size=sized.degrees.micro_batch_size,
        tensor_model_parallel_size=sized.degrees.tp,
        data_parallel_size=sized.dp,
        pipeline_model_parallel_size=num_stages,
        recompute=recompute,
        zero_stage=sized.blocks.zero_stage,
        num_layers_per_pipeline_stage=(blocks,) * num_stages,
    )
    return build_plan(network, workload, spec)


def _stage_price(
    deepened: Deepened,
    network: Network,
    sized: SizedStage,
    index: int,
    num_stages: int,
) -> StagePrice:
    """Return the price of a stage with parts of blocks and a mixture of recompute."""

    def costs(recompute: str) -> tuple[StageCost, StageCost]:
        costs_of = []
        for blocks in (1, 2):
            workload = deepened(blocks * num_stages)
            plan = _like_plan(
                workload, network, sized, num_stages, recompute, blocks=blocks
            )
            costs_of.append(price_plan(network, workload, plan).stages[index])
        return costs_of[0], costs_of[1]

    held = sized.blocks
    first, second = costs("none")

    def total(of: Callable[[StageCost], float], count: float) -> float:
        return of(first) + (count - 1.0) * (of(second) - of(first))

    repeated = 0.0
    cores = held.selective + held.half_selective / 2.0
    for mode, count in (("selective", cores), ("full", held.recomputed)):
        if count:
            fewer, more = costs(mode)
            block = more.backward_time - fewer.backward_time
            plain = second.backward_time - first.backward_time
            repeated += count * (block - plain)
    forward = total(lambda cost: cost.forward_time, held.num_blocks)
    backward = total(lambda cost: cost.backward_time, held.num_blocks) + repeated
    reduce_time = total(lambda cost: cost.reduce_time, held.num_weights)
    gather_time = total(lambda cost: cost.gather_time, held.num_weights)
    cost = replace(
        first,
        forward_time=forward,
        backward_time=backward,
        chunk_times=(ChunkTimes(forward, backward),),
        reduce_time=reduce_time,
        gather_time=gather_time,
        optimizer_time=total(lambda cost: cost.optimizer_time, held.num_weights),
    )
    return StagePrice(cost, (), (), (), reduce_time, gather_time)
