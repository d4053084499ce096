"""A plan: plain data, to and from JSON.

Stages run from the first (with the embedding) to the last (with the head). A stage
holds one closed interval of the model's chain, or with virtual stages several, its
chunks: chunk ``c`` of stage ``i`` is virtual stage ``c p + i`` with interleaved 1F1B;
in a V, whose chain comes back, the first stage holds both ends.

In JSON a stage's devices are a list of ranges, replica by replica, rank by rank; lists
of numbers, one for each replica, are read as well. ``"0-7"`` are devices 0 to 7,
``"0-62:2"`` every second one from 0 to 62, and ``"5"`` is device 5. A list of such
texts keeps the order of the devices, so that what is written is read back as it was. A
stage of 6,400 devices takes one text where they follow each other, and one for each
replica where they do not.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from estimators.grouping import PLAIN_GROUPING
from estimators.layers.saved_activations import RECOMPUTE_MODULES
from estimators.layers.work import Degrees
from estimators.training import ParallelismConfig
from planner.step.rounds import GROUP_SIZE
from planner.step.schedules import SCHEDULES, grouped_name
from topologies.arrays import IntArray
from topologies.errors import InputError, short_repr
from topologies.settings import NameChoice

MOST_DEVICES = 16_000_000
"""Most devices that a plan may name; more are slips of the keyboard."""

EXPECTED = 'a range of devices: "0-7", "0-62:2" (every second one) or "5"'

_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")


def to_ranges(devices: Iterable[int]) -> list[str]:
    """Write device numbers as ranges, in their order.

    Runs of the same distance are taken greedily from the front; two numbers make a
    range only if they follow each other. O(n).

    Examples
    --------
    >>> to_ranges([0, 1, 2, 3, 8, 9, 10, 11])
    ['0-3', '8-11']
    >>> to_ranges([0, 8, 16, 24, 5])
    ['0-24:8', '5']
    """
    numbers = np.fromiter(devices, np.int64)
    steps = np.diff(numbers)
    turns = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    ranges = []
    start = 0  # of what is not written yet
    for last in [*turns.tolist(), *[steps.size] * (steps.size > 0)]:
        step = int(steps[last - 1])
        if last > start and step > 0 and (last - start > 1 or step == 1):
            ranges.append(_range(int(numbers[start]), int(numbers[last]), step))
            start = last + 1
        else:
            ranges.extend(str(number) for number in numbers[start:last].tolist())
            start = max(start, last)
    return [*ranges, *(str(number) for number in numbers[start:].tolist())]


def _range(first: int, last: int, step: int) -> str:
    return f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"


def from_ranges(texts: Sequence[Any]) -> list[int]:
    """Read device numbers that `to_ranges` wrote.

    Raises
    ------
    InputError
        If one is no range, or all together are too many; ``where`` is its position.
    """
    return list(chain.from_iterable(parsed_ranges(texts)))


def parsed_ranges(texts: Sequence[Any]) -> list[range]:
    """Return each range, none of them empty, without naming the devices one by one.

    Raises
    ------
    InputError
        As `from_ranges`.
    """
    ranges: list[range] = []
    total = 0
    for position, text in enumerate(texts):
        match = _RANGE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _error("is not a range", position, text)
        first = int(match[1])
        last, step = int(match[2] or first), int(match[3] or 1)
        if last < first or step < 1 or (last - first) % step:
            raise _error("is a range that does not reach its end", position, text)
        ranges.append(range(first, last + 1, step))
        total += len(ranges[-1])
        if total > MOST_DEVICES:
            raise _error(f"names more than {MOST_DEVICES:,} devices", position, text)
    return ranges


def _error(problem: str, position: int, value: object) -> InputError:
    got = value[:40] if isinstance(value, str) else type(value).__name__
    return InputError(problem, where=f"[{position}]", got=got, expected=EXPECTED)


_PARALLEL_NAMES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
)


COUNTED_MODES = frozenset({"selective", "full"})
"""Recompute modes that stages may use for some of their blocks only."""


Recompute = Annotated[str, NameChoice(("none", "selective", "full", "stage"))]
RecomputeModule = Annotated[str, NameChoice(tuple(RECOMPUTE_MODULES))]
ZeroStage = Annotated[int, Ge(0), Le(3)]


class Offload(NamedTuple):
    """Fractions of what a stage's devices hold that their hosts keep, 0 to 1."""

    weights: float = 0.0
    """Fraction of the weights that the host keeps."""

    gradients: float = 0.0
    """Fraction of the accumulated gradients that the host keeps."""

    optimizer: float = 0.0
    """Fraction of the optimizer states that the host keeps."""

    activations: float = 0.0
    """Fraction of the saved activations that the host keeps between the passes."""

    @property
    def in_passes(self) -> bool:
        """Whether passes exchange anything with the host; its updates do not count."""
        return max(self.weights, self.gradients, self.activations) > 0.0


NO_OFFLOAD = Offload()
"""Everything stays on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage: its layers, its devices, and what it saves memory with."""

    chunks: tuple[tuple[int, int], ...]
    """First and last layer of the chain, both included, of each chunk in turn."""

    devices: tuple[tuple[int, ...], ...]
    """Device numbers: one row per data-parallel replica, one column per rank of the
    replica (context-parallel rank times the tensor-parallel size plus tensor-parallel
    rank)."""

    recompute: str
    """``"none"``, ``"selective"`` (the attention core), ``"full"`` (each block from its
    input) or ``"stage"`` (everything from the stage's input)."""

    zero_stage: int
    """Stage of ZeRO, 0 to 3."""

    sharding_group_size: int
    """Data-parallel ranks that share the shards of ZeRO: all of them, or those inside
    one block of the network (hybrid sharding). 1 with ZeRO-0."""

    recompute_num_layers: int | None = None
    """Blocks of each chunk, from its first one on, that `recompute` is about; None for
    all of them. Megatron's ``recompute_num_layers`` with ``recompute_method`` block."""

    offload: Offload = NO_OFFLOAD
    """What the hosts of the stage's devices keep for them."""

    zero_hpz_partition_size: int = 1
    """With ZeRO-3, data-parallel ranks next to each other that share a second copy of
    the weights (hpZ of ZeRO++, `planner.step.ledger`); 1 for no such copy."""

    reshard_after_forward: int | None = None
    """With ZeRO-3, data-parallel ranks next to each other that share the weights from
    each forward pass to its backward pass (FSDP2, `planner.step.ledger`); None for all
    that share shards."""

    __repr__ = short_repr

    @property
    def nearby_size(self) -> int:
        """Ranks next to each other that share what some passes gather; 1 for none."""
        return self.reshard_after_forward or self.zero_hpz_partition_size

    @property
    def layers(self) -> tuple[int, int]:
        """The first chunk's interval; the only one without virtual stages."""
        return self.chunks[0]


class StageSetting(NamedTuple):
    """How plans write down a choice that every stage makes for itself.

    A new choice is a field of `Stage` with a row of `STAGE_SETTINGS`, a setting of the
    same name in `planner.plans.spec.PlanSpec` and in the table [plan], and what it
    changes where that is counted: `planner.step.memory`, `planner.cost.stage`.
    """

    read: Callable[[Any], Any]
    """Value as it stands in a file -> the field of a stage."""

    usual: Any = ...
    """Value that is not written; ``...`` if all are."""

    least: int = 1
    """Smallest value, of a whole number."""

    most: int | None = None
    """Largest value, of a whole number; None for no limit of its own."""

    known: tuple[object, ...] = ()
    """All values that there are; none if they are not listed."""

    def written(self, value: Any) -> Any:
        """Return a stage's value as it stands in a file."""
        return value._asdict() if isinstance(value, Offload) else value


def _read_offload(parts: Mapping[str, Any]) -> Offload:
    return Offload(*map(float, Offload(**parts)))


STAGE_SETTINGS: Mapping[str, StageSetting] = MappingProxyType(
    {
        "recompute": StageSetting(str, known=("none", "selective", "full", "stage")),
        "zero_stage": StageSetting(int, least=0, most=3, known=(0, 1, 2, 3)),
        "sharding_group_size": StageSetting(int),
        "recompute_num_layers": StageSetting(int, None, least=0),
        "offload": StageSetting(_read_offload, NO_OFFLOAD),
        "zero_hpz_partition_size": StageSetting(int, 1),
        "reshard_after_forward": StageSetting(int, None, least=2),
    }
)
"""Field of a stage that is a choice of its own -> how plans write it, in the order of
files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one model is split and placed."""

    parallel: ParallelismConfig
    """Parallel sizes of the job."""

    virtual_pipeline_model_parallel_size: int
    """Chunks per stage; 1 without interleaving."""

    micro_batch_size: int
    """Sequences per microbatch."""

    num_microbatches: int
    """Microbatches per optimizer step and replica."""

    schedule: str
    """Name of the pipeline schedule, one of `planner.step.schedules.SCHEDULES`; it
    says the size of groups that are asked for (`grouped_name`)."""

    placement: str
    """The nesting of the parallel dimensions over device numbers, innermost first,
    e.g. ``"tp8 dp2 pp4"``."""

    gradient_algorithm: str
    """Algorithm of the gradient collectives, of `estimators.collectives.cost`:
    the search chooses ``"ring"`` or ``"hierarchical"``. Operations that it does not
    have are done by rings."""

    tensor_algorithm: str
    """Algorithm of the tensor-parallel collectives, of
    `estimators.collectives.cost`. Operations that it does not have are done by
    rings."""

    stages: tuple[Stage, ...]
    """Stages of the pipeline, from the first to the last."""

    recompute_modules: tuple[str, ...] = ()
    """What ``"selective"`` recompute of all stages runs again, keys of `estimators.
    layers.saved_activations.RECOMPUTE_MODULES`; none: as the software has it."""

    __repr__ = short_repr

    @property
    def degrees(self) -> Degrees:
        """What the plan's layer tables depend on."""
        sizes = self.parallel.sizes()
        return Degrees(
            tp=sizes.tp,
            cp=sizes.cp,
            ep=sizes.ep,
            micro_batch_size=self.micro_batch_size,
            sequence_parallel=self.parallel.sequence_parallel,
            grouping=self.parallel.grouping,
            recompute_modules=self.recompute_modules,
        )

    def on_devices(self, devices: IntArray) -> "Plan":
        """Return the plan with ``devices[k]`` in place of device ``k``."""
        return replace(
            self,
            stages=tuple(
                replace(
                    stage,
                    devices=tuple(
                        map(tuple, devices[np.array(stage.devices)].tolist())
                    ),
                )
                for stage in self.stages
            ),
        )

    @property
    def overlap_moe_expert_parallel_comm(self) -> bool:
        """Whether all-to-alls between experts go on beside another microbatch."""
        schedule = SCHEDULES.get(self.schedule)
        if schedule is None or not schedule.pairs_passes:
            return False
        # Pairs of chunks are paired with or without experts.
        experts = self.parallel.expert_model_parallel_size > 1
        return experts or not schedule.pairs_chunks

    @property
    def schedule_family(self) -> str:
        """Name of the schedule without its groups."""
        schedule = SCHEDULES.get(self.schedule)
        return self.schedule if schedule is None else schedule.family

    @property
    def microbatch_group_size_per_vp_stage(self) -> int | None:
        """Microbatches that go through a chunk in turn, where a size is asked for."""
        schedule = SCHEDULES.get(self.schedule)
        return None if schedule is None else schedule.group

    @property
    def has_second_copies(self) -> bool:
        """Whether devices of any stage hold a second copy of the weights."""
        return any(stage.zero_hpz_partition_size > 1 for stage in self.stages)

    @property
    def devices_used(self) -> int:
        """Devices with work to do."""
        return sum(len(row) for stage in self.stages for row in stage.devices)

    @property
    def joins_ends(self) -> bool:
        """Whether the first stage holds both ends of the chain.

        The only stage, or the first one of a V; it has a tied embedding once.
        """
        ends = [max(last for _, last in stage.chunks) for stage in self.stages]
        return ends[0] == max(ends)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values with stable keys."""
        return {
            **self.settings_json(),
            "stages": [
                {
                    "layers": list(stage.layers),
                    "chunks": [list(chunk) for chunk in stage.chunks],
                    "devices": to_ranges(chain.from_iterable(stage.devices)),
                    **_settings_json(stage),
                }
                for stage in self.stages
            ],
        }

    def settings_json(self) -> dict[str, Any]:
        """Return what `to_json` says of the plan as a whole, without its stages."""
        return {
            "parallel": {
                **{name: getattr(self.parallel, name) for name in _PARALLEL_NAMES},
                **_unusual_groups_json(self.parallel),
            },
            "virtual_pipeline_model_parallel_size": (
                self.virtual_pipeline_model_parallel_size
            ),
            "micro_batch_size": self.micro_batch_size,
            "num_microbatches": self.num_microbatches,
            "schedule": self.schedule_family,
            "recompute": _common([stage.recompute for stage in self.stages]),
            "zero_stage": _common([stage.zero_stage for stage in self.stages]),
            "placement": self.placement,
            "gradient_algorithm": self.gradient_algorithm,
            "tensor_algorithm": self.tensor_algorithm,
            **self._unusual_settings(),
        }

    def _unusual_settings(self) -> dict[str, Any]:
        """Return what few plans do: keys that are left out where they say nothing."""
        settings: dict[str, Any] = {}
        if self.overlap_moe_expert_parallel_comm:
            settings["overlap_moe_expert_parallel_comm"] = True
        if (group := self.microbatch_group_size_per_vp_stage) is not None:
            settings[GROUP_SIZE] = group
        if self.recompute_modules:
            settings["recompute_modules"] = list(self.recompute_modules)
        return settings

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """Read back what `to_json` wrote.

        Raises
        ------
        InputError
            If a key is missing or a value has the wrong form.
        """
        try:
            parallel = _parallel_from_json(data["parallel"])
            sizes = parallel.sizes()
            ranks = sizes.cp * sizes.tp
            return cls(
                parallel=parallel,
                virtual_pipeline_model_parallel_size=int(
                    data["virtual_pipeline_model_parallel_size"]
                ),
                micro_batch_size=int(data["micro_batch_size"]),
                num_microbatches=int(data["num_microbatches"]),
                schedule=_schedule_from_json(data),
                placement=str(data["placement"]),
                gradient_algorithm=str(data["gradient_algorithm"]),
                tensor_algorithm=str(data["tensor_algorithm"]),
                stages=tuple(
                    _stage_from_json(stage, ranks) for stage in data["stages"]
                ),
                recompute_modules=tuple(data.get("recompute_modules", ())),
            )
        except KeyError as error:
            raise InputError("setting is missing", where=str(error.args[0])) from None
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a plan: {error}") from None


def _unusual_groups_json(parallel: ParallelismConfig) -> dict[str, Any]:
    """Return how few plans form groups: keys that are left out where they say nothing.

    As `_settings_json` does it for stages.
    """
    written: dict[str, Any] = {}
    etp, levels = parallel.grouping.etp, parallel.hierarchical_context_parallel_sizes
    if etp:
        written["expert_tensor_parallel_size"] = etp
    if parallel.experts_within_data:
        written["experts_within_data"] = True
    if parallel.grouping.cp_comm_type != PLAIN_GROUPING.cp_comm_type:
        written["cp_comm_type"] = parallel.cp_comm_type
    if levels is not None:
        written["hierarchical_context_parallel_sizes"] = list(levels)
    return written


def _schedule_from_json(data: Mapping[str, Any]) -> str:
    group = data.get(GROUP_SIZE)
    name = str(data["schedule"])
    return name if group is None else grouped_name(name, int(group))


def _parallel_from_json(data: Mapping[str, Any]) -> ParallelismConfig:
    name = "hierarchical_context_parallel_sizes"
    levels = data.get(name)
    written = {} if levels is None else {name: tuple(levels)}
    return ParallelismConfig(**{**data, **written})


def _stage_from_json(data: Mapping[str, Any], num_ranks: int) -> Stage:
    return Stage(
        chunks=tuple((int(first), int(last)) for first, last in data["chunks"]),
        devices=_rows(data["devices"], num_ranks),
        **{
            name: setting.read(data[name])
            for name, setting in STAGE_SETTINGS.items()
            if setting.usual is ... or data.get(name) is not None
        },
    )


def _settings_json(stage: Stage) -> dict[str, Any]:
    """Return what a stage chooses, without what few stages do and this one does not."""
    values = {name: getattr(stage, name) for name in STAGE_SETTINGS}
    return {
        name: STAGE_SETTINGS[name].written(value)
        for name, value in values.items()
        if value != STAGE_SETTINGS[name].usual
    }


def _rows(devices: Sequence[Any], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return one row a replica, of ranges or of lists of numbers."""
    if not any(isinstance(entry, str) for entry in devices):
        return tuple(tuple(int(d) for d in row) for row in devices)
    numbers = from_ranges(devices)
    starts = range(0, len(numbers), num_ranks)
    return tuple(tuple(numbers[start : start + num_ranks]) for start in starts)


def _common(values: list[Any]) -> Any:
    """Return the value that all stages share, or ``"mixed"``."""
    return values[0] if len(set(values)) == 1 else "mixed"
