"""A plan: plain data, to and from JSON.

Stages run from the first (with the embedding) to the last (with the head). A stage
holds one closed interval of the model's chain, or with virtual stages (interleaved
1F1B) several, its chunks: chunk ``c`` of stage ``i`` is virtual stage ``c p + i``.

In JSON a stage's devices are a list of ranges (`planner.device_ranges`), replica by
replica, lane by lane; lists of numbers, one for each replica, are read as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from estimators.layers.work import Degrees
from estimators.training import ParallelismConfig
from planner.device_ranges import from_ranges, to_ranges
from topologies import InputError

_PARALLEL_NAMES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage: its layers, its devices, and what it saves memory with."""

    chunks: tuple[tuple[int, int], ...]
    """First and last layer of the chain, both included, of each chunk in turn."""

    devices: tuple[tuple[int, ...], ...]
    """Device numbers: one row per data-parallel replica, one column per lane
    (context-parallel rank times the tensor-parallel size plus tensor-parallel rank)."""

    recompute: str
    """``"none"``, ``"selective"`` (the attention core), ``"full"`` (each block from its
    input) or ``"stage"`` (everything from the stage's input)."""

    zero_stage: int
    """0 to 3."""

    sharding_group_size: int
    """Data-parallel ranks that share the shards of ZeRO: all of them, or those inside
    one block of the network (hybrid sharding). 1 with ZeRO-0."""

    @property
    def layers(self) -> tuple[int, int]:
        """The first chunk's interval; the only one without virtual stages."""
        return self.chunks[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one model is split and placed."""

    parallel: ParallelismConfig
    """The parallel degrees."""

    virtual_pipeline_model_parallel_size: int
    """Chunks per stage; 1 without interleaving."""

    micro_batch_size: int
    """Sequences per microbatch."""

    num_microbatches: int
    """Microbatches per optimizer step and replica."""

    schedule: str
    """A name of `planner.schedules.SCHEDULES`."""

    placement: str
    """The nesting of the parallel dimensions over device numbers, innermost first,
    e.g. ``"tp8 dp2 pp4"``."""

    gradient_algorithm: str
    """Algorithm of the gradient collectives, of `estimators.collectives.algorithms`:
    the search chooses ``"ring"`` or ``"hierarchical"``. Operations that it does not
    have are done by rings."""

    tensor_algorithm: str
    """Algorithm of the tensor-parallel collectives, likewise."""

    stages: tuple[Stage, ...]
    """From the first to the last."""

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
        )

    @property
    def devices_used(self) -> int:
        """Devices with work to do."""
        return sum(len(row) for stage in self.stages for row in stage.devices)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values with stable keys."""
        return {
            **self.settings_json(),
            "stages": [
                {
                    "layers": list(stage.layers),
                    "chunks": [list(chunk) for chunk in stage.chunks],
                    "devices": to_ranges(chain.from_iterable(stage.devices)),
                    "recompute": stage.recompute,
                    "zero_stage": stage.zero_stage,
                    "sharding_group_size": stage.sharding_group_size,
                }
                for stage in self.stages
            ],
        }

    def settings_json(self) -> dict[str, Any]:
        """Return what `to_json` says of the plan as a whole, without its stages."""
        return {
            "parallel": {
                name: getattr(self.parallel, name) for name in _PARALLEL_NAMES
            },
            "virtual_pipeline_model_parallel_size": (
                self.virtual_pipeline_model_parallel_size
            ),
            "micro_batch_size": self.micro_batch_size,
            "num_microbatches": self.num_microbatches,
            "schedule": self.schedule,
            "recompute": _common([stage.recompute for stage in self.stages]),
            "zero_stage": _common([stage.zero_stage for stage in self.stages]),
            "placement": self.placement,
            "gradient_algorithm": self.gradient_algorithm,
            "tensor_algorithm": self.tensor_algorithm,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """Read back what `to_json` wrote.

        Raises
        ------
        InputError
            If a key is missing or a value has the wrong form.
        """
        try:
            parallel = ParallelismConfig(**data["parallel"])
            sizes = parallel.sizes()
            lanes = sizes.cp * sizes.tp
            return cls(
                parallel=parallel,
                virtual_pipeline_model_parallel_size=int(
                    data["virtual_pipeline_model_parallel_size"]
                ),
                micro_batch_size=int(data["micro_batch_size"]),
                num_microbatches=int(data["num_microbatches"]),
                schedule=str(data["schedule"]),
                placement=str(data["placement"]),
                gradient_algorithm=str(data["gradient_algorithm"]),
                tensor_algorithm=str(data["tensor_algorithm"]),
                stages=tuple(
                    _stage_from_json(stage, lanes) for stage in data["stages"]
                ),
            )
        except KeyError as error:
            raise InputError("setting is missing", where=str(error.args[0])) from None
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a plan: {error}") from None


def _stage_from_json(data: Mapping[str, Any], lanes: int) -> Stage:
    return Stage(
        chunks=tuple((int(first), int(last)) for first, last in data["chunks"]),
        devices=_rows(data["devices"], lanes),
        recompute=str(data["recompute"]),
        zero_stage=int(data["zero_stage"]),
        sharding_group_size=int(data["sharding_group_size"]),
    )


def _rows(devices: Sequence[Any], lanes: int) -> tuple[tuple[int, ...], ...]:
    """Return one row a replica, of ranges or of lists of numbers."""
    if not any(isinstance(entry, str) for entry in devices):
        return tuple(tuple(int(d) for d in row) for row in devices)
    numbers = from_ranges(devices)
    starts = range(0, len(numbers), lanes)
    return tuple(tuple(numbers[start : start + lanes]) for start in starts)


def _common(values: list[Any]) -> Any:
    """Return the value that all stages share, or ``"mixed"``."""
    return values[0] if len(set(values)) == 1 else "mixed"
