"""The table [software]: which framework runs the job."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from estimators.software import Software
from nestsim.presets import NAMED_PRESETS, Preset
from nestsim.scenario.base import Choice, Table

DEFAULT_PRESET = "ideal"
"""What a scenario without [software] assumes."""


class SoftwareTable(Table):
    """Which framework runs the job: what other tables leave out is as it does it.

    Kernels, host time, and defaults of [training], [simulation], [search] and [plan].
    """

    preset: Annotated[str, Choice(tuple(NAMED_PRESETS))] = DEFAULT_PRESET
    """The framework whose defaults hold and whose host time is added; "ideal" adds
    nothing to the device's own time."""

    attention_kernel: Literal["flash", "fused"] | None = Field(None, examples=["fused"])
    """Which fused attention runs: FlashAttention-2 and its like, or the vendor's own,
    such as cuDNN's. Left out, the preset's."""

    compiled: bool | None = Field(None, examples=[True])
    """Whether layers are launched as one graph (XLA, CUDA graphs), so that kernels take
    no time of the host. Left out, the preset's."""

    saves_products: bool | None = Field(None, examples=[True])
    """Whether selective recompute saves every second matrix product and repeats the
    rest of a layer (torchtitan) instead of repeating the attention core only
    (Megatron). Left out, the preset's."""

    collective_library: bool | None = Field(None, examples=[True])
    """Whether collectives inside layers cost what a library such as NCCL adds to their
    time on the wire. Left out, the preset's."""

    @property
    def defaults(self) -> Preset:
        """What holds where the scenario is silent."""
        return NAMED_PRESETS[self.preset]

    def build(self) -> Software:
        """Return the software for the estimators."""
        written: dict[str, Any] = {
            "attention_kernel": self.attention_kernel,
            "compiled": self.compiled,
            "saves_products": self.saves_products,
            "library": self.collective_library,
        }
        given = {name: value for name, value in written.items() if value is not None}
        return replace(self.defaults.software, **given)
