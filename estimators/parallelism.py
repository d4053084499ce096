"""How a job is split over devices: Megatron's names outside, short letters inside."""

from dataclasses import dataclass, fields
from typing import NamedTuple

from topologies.errors import InputError


class Sizes(NamedTuple):
    """The parallel degrees, as formulas and kernels call them."""

    tp: int
    cp: int
    ep: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismConfig:
    """Parallel degrees of one training job."""

    tensor_model_parallel_size: int = 1
    """Devices that share each layer's matrices."""

    pipeline_model_parallel_size: int = 1
    """Pipeline stages."""

    data_parallel_size: int = 1
    """Replicas of the pipeline, each with its own part of the batch."""

    context_parallel_size: int = 1
    """Devices that share each sequence."""

    expert_model_parallel_size: int = 1
    """Devices that share the experts of a mixture-of-experts layer."""

    sequence_parallel: bool = False
    """Whether norms, dropouts and residuals are split over the tensor-parallel group
    along the sequence (Korthikanti et al., 2022)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if field.name != "sequence_parallel" and not size >= 1:
                raise InputError(
                    "must be at least 1",
                    where=field.name,
                    got=size,
                    expected="a positive whole number, e.g. 8",
                )

    def sizes(self) -> Sizes:
        """Return the degrees under their short names."""
        return Sizes(
            tp=self.tensor_model_parallel_size,
            cp=self.context_parallel_size,
            ep=self.expert_model_parallel_size,
            dp=self.data_parallel_size,
            pp=self.pipeline_model_parallel_size,
        )

    @property
    def num_devices(self) -> int:
        """Devices in use; experts are spread over data-parallel ranks."""
        sizes = self.sizes()
        return sizes.tp * sizes.cp * sizes.dp * sizes.pp
