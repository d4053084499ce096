"""The table [software]: which framework runs the job."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from estimators.layers.saved_activations import ATTENTION_CORE, RECOMPUTE_MODULES
from estimators.software import Software
from estimators.user_files import (
    UserConstants,
    UserLinks,
    read_user_constants,
    read_user_links,
)
from nestsim.scenario.base import Table, input_file
from planner.frameworks.framework import PRESETS, Preset
from planner.step.execution import Execution
from topologies.errors import InputError
from topologies.settings import Factor, NameChoice, Text

DEFAULT_PRESET = "megatron-core"
"""What a scenario that names no framework assumes, and is told that it does."""

EXECUTION = tuple(field.name for field in fields(Execution))
"""Settings that say how the framework executes a step."""


class SoftwareTable(Table):
    """Which framework runs the job: what the scenario leaves out is as it does it.

    Kernels, host time, overlaps, and defaults of [training], [search] and [plan].
    """

    preset: Annotated[str, NameChoice(tuple(PRESETS))] = DEFAULT_PRESET
    """Framework whose defaults hold and whose host time is added; "ideal" adds nothing
    to the device's own time: no launches, no allocator, and reports say so."""

    release: Text | None = Field(None, examples=["0.15"])
    """Release of the framework whose rules say what can be launched. Left out, the
    preset's usual one, which reports name."""

    attention_kernel: Literal["flash", "fused"] | None = Field(None, examples=["fused"])
    """Which fused attention runs: FlashAttention-2 and its like, or the vendor's own,
    such as cuDNN's. Left out, the preset's."""

    compiled: bool | None = Field(None, examples=[True])
    """Whether layers are one program (XLA), so that kernels take no time of the host.
    Left out, the preset's."""

    cuda_graphs: bool | None = Field(None, examples=[True])
    """Whether a whole step is captured once and launched as one CUDA graph: neither
    kernels nor collectives of layers wait for the host. Left out, the preset's; all
    presets launch kernels one by one."""

    saves_products: bool | None = Field(None, examples=[True])
    """Whether selective recompute saves every second matrix product and repeats the
    rest of a layer (torchtitan) instead of repeating the attention core only
    (Megatron). Left out, the preset's."""

    recompute_modules: list[Annotated[str, NameChoice(tuple(RECOMPUTE_MODULES))]] = (
        Field(list(ATTENTION_CORE), examples=[["layernorm", "mla_up_proj"]])
    )
    """Megatron's option: what selective recompute runs again where it does not save
    products. "core_attn" is the core of attention, "layernorm" the norms in front of a
    block's branches, "mla_up_proj" the up-projections of latent attention with their
    norms and rotary channels, "moe_act" the activation of routed experts."""

    activation_func_fp8_input_store: bool = Field(False, examples=[True])
    """Megatron's option: what gated activations (SwiGLU) read is kept in fp8 for the
    backward pass, where the framework fuses them ("megatron-core", "nemo").
    What "moe_act" runs again keeps its input as it is. A field of TransformerConfig,
    which Megatron-LM's command line leaves out."""

    collective_library: bool | None = Field(None, examples=[True])
    """Whether collectives inside layers cost what a library such as NCCL adds to their
    time on the wire. Left out, the preset's."""

    overlap_grad_reduce: bool | None = Field(None, examples=[True])
    """Megatron's option: gradients are reduced bucket by bucket behind the last
    backward pass, instead of after it. Left out, the preset's; "ideal" does not."""

    overlap_param_gather: bool | None = Field(None, examples=[True])
    """Megatron's option: parameters are gathered bucket by bucket behind the next
    forward pass, instead of after the optimizer step. Left out, the preset's; "ideal"
    does not."""

    frees_gradients: bool | None = Field(None, examples=[True])
    """Whether with ZeRO-1 and chunks the whole gradients of a chunk are there only from
    its first backward pass to their reduction, as FSDP under a pipeline has it
    (Llama 3); matters where a step has no more microbatches than stages. A search
    counts all of them, as without it. Left out, the preset's; none does."""

    overlap_p2p_comm: bool | None = Field(None, examples=[False])
    """Megatron's option: transfers between stages do not stop the stages' work. Left
    out, the preset's; all presets do."""

    tp_comm_overlap: bool | None = Field(None, examples=[True])
    """Megatron's option: tensor-parallel collectives run behind the products next to
    them, where all ranks of a group are in one node: its user buffers are memory that
    they share. Left out, the preset's: "nemo" does, all others do not."""

    cpu_adam: bool | None = Field(None, examples=[False])
    """Whether the host updates the parameters whose optimizer states it keeps, as
    DeepSpeed and Megatron do, or the states come to the device for its update, as Mist
    has it. Left out, the preset's; all presets let the host do it."""

    communication_slowdown: Factor | None = Field(None, examples=[1.1])
    """Factor on the duration of compute while one of the framework's overlaps has the
    same device communicate beside it; not beside transfers between stages. Left out,
    the preset's; 1 with all of them: communication never slows compute down, which is
    too good where both want the same memory or the same processors of a device."""

    expert_communication_slowdown: Factor | None = Field(None, examples=[1.1])
    """Factor on the duration of compute while all-to-alls between experts go on beside
    it, where a plan has overlap_moe_expert_parallel_comm. Left out, the preset's:
    132/112 with "megatron-core" and "nemo", the multiprocessors of an H800 over those
    that DeepSeek-V3 leaves to its compute; 1 with all others."""

    moe_token_dispatcher_type: Literal["alltoall", "flex"] | None = Field(
        None, examples=["alltoall"]
    )
    """Megatron's option: "flex" (DeepEP, HybridEP) sends a token once to each node that
    has experts for it, "alltoall" once to each of its experts. Left out, the preset's:
    "flex" with "megatron-core" and "nemo", "alltoall" with all others."""

    expert_skew: Factor | None = Field(None, examples=[1.5])
    """Tokens that the busiest expert-parallel rank receives, over the mean. Left out,
    the preset's; 1 with all of them."""

    constants: Text | None = Field(None, examples=["my_constants.toml"])
    """File of constants that `nestsim calibrate` fitted to your own runs, relative to
    the scenario's folder; they hold in place of those that nestsim comes with."""

    links: Text | None = Field(None, examples=["my_links.toml"])
    """File of what `nestsim profile --links` measured of your own links, relative to
    the scenario's folder: launches and ramp of collectives inside layers, and the
    efficiency of links for which the network says none."""

    @property
    def defaults(self) -> Preset:
        """What holds where the scenario is silent."""
        return PRESETS[self.preset]

    def build(self) -> Software:
        """Return the software for the estimators."""
        written: dict[str, Any] = {
            "attention_kernel": self.attention_kernel,
            "compiled": self.compiled,
            "cuda_graphs": self.cuda_graphs,
            "saves_products": self.saves_products,
            "library": self.collective_library,
            "moe_token_dispatcher_type": self.moe_token_dispatcher_type,
        }
        given = {name: value for name, value in written.items() if value is not None}
        given["recompute_modules"] = tuple(self.recompute_modules)
        stores = self.activation_func_fp8_input_store
        given["activation_func_fp8_input_store"] = stores
        return replace(self.defaults.software, **given)

    def read_constants(self, folder: Path) -> UserConstants | None:
        """Return the user's own constants, None if there are none.

        Parameters
        ----------
        folder
            The scenario file's.
        """
        if self.constants is None:
            return None
        expected = "a file that nestsim calibrate wrote, in the scenario's folder"
        path = input_file(folder, self.constants, "constants", expected)
        try:
            return read_user_constants(path)
        except InputError as error:
            raise error.at("constants", ": ") from None

    def read_links(self, folder: Path) -> UserLinks | None:
        """Return what the user measured of links, None if nothing.

        Parameters
        ----------
        folder
            The scenario file's.
        """
        if self.links is None:
            return None
        expected = "a file that nestsim profile --links wrote, in the scenario's folder"
        path = input_file(folder, self.links, "links", expected)
        try:
            return read_user_links(path)
        except InputError as error:
            raise error.at("links", ": ") from None

    def build_execution(self, moved: Mapping[str, Any]) -> Execution:
        """Return how a step is executed.

        Parameters
        ----------
        moved
            Settings of this table that stand in [simulation], where they were before.

        Raises
        ------
        InputError
            If one of them stands here, too.
        """
        written = {
            name: value
            for name in EXECUTION
            if (value := getattr(self, name)) is not None
        }
        for name, value in moved.items():
            if name in written:
                raise InputError(
                    "is set in [software], too, where it has moved to",
                    where=f"simulation.{name}",
                    got=value,
                    expected=f"left out, as software.{name} is set",
                )
        return replace(self.defaults.execution, **moved, **written)
