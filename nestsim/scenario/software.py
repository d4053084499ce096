"""The table [software]: which framework runs the job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from estimators.layers.saved_activations import ATTENTION_CORE, RECOMPUTE_MODULES
from estimators.software import GRAPH_MODULES, GRAPHS, Software
from estimators.user_files import (
    UserConstants,
    UserLinks,
    read_user_constants,
    read_user_links,
)
from nestsim.scenario.base import input_file
from nestsim.scenario.errors import checked
from planner.frameworks.framework import PRESETS, Preset
from planner.step.execution import Execution
from topologies.errors import InputError, located
from topologies.settings import Count, Examples, Listed, NameChoice, Text

_T = TypeVar("_T")

DEFAULT_PRESET = "megatron-core"
"""What a scenario that names no framework assumes, and is told that it does."""

EXECUTION = tuple(field.name for field in fields(Execution))
"""Settings that say how the framework executes a step."""


def _graphs_of(value: Any) -> Any:
    """Return the name of what graphs capture; files of old have true and false."""
    return GRAPHS[-1 if value else 0] if isinstance(value, bool) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareTable(Execution):
    """Which framework runs the job: what the scenario leaves out is as it does it.

    Kernels, host time, overlaps, and defaults of [training], [search] and [plan].
    """

    preset: Annotated[str, NameChoice(tuple(PRESETS))] = DEFAULT_PRESET
    """Framework whose defaults hold and whose host time is added; "ideal" adds nothing
    to the device's own time: no launches, no allocator, and reports say so."""

    release: Annotated[Text | None, Examples("0.15")] = None
    """Release of the framework whose rules say what can be launched. Left out, the
    preset's usual one, which reports name."""

    attention_kernel: Annotated[Literal["flash", "fused"] | None, Examples("fused")] = (
        None
    )
    """Which fused attention runs: FlashAttention-2 and its like, or the vendor's own,
    such as cuDNN's. Left out, the preset's."""

    compiled: Annotated[bool | None, Examples(True)] = None
    """Whether layers are one program (XLA), so that kernels take no time of the host.
    Left out, the preset's."""

    cuda_graphs: Annotated[
        Annotated[str, NameChoice(GRAPHS, check=_graphs_of)] | None, Examples("layers")
    ] = None
    """What CUDA graphs capture once and replay: "none"; "layers", what each layer does
    with sizes that the host knows (`cuda_graph_modules`), a graph a layer and pass;
    "full_iteration", forward and backward passes of a whole step. Kernels and
    collectives of a graph do not wait for the host, all others do. true and false stand
    for "full_iteration" and "none". Left out, the preset's; all presets launch kernels
    one by one."""

    cuda_graph_modules: Annotated[
        tuple[Annotated[str, NameChoice(GRAPH_MODULES)], ...],
        Listed(most=None),
        Examples(["attn", "moe_router", "moe_preprocess"]),
    ] = GRAPH_MODULES
    """Megatron's option: what `cuda_graphs` = "layers" captures. "attn" is attention
    with its norm, "mlp" the feed-forward part of a dense block, "mamba" a Mamba block,
    "moe_router" norm, router and shared experts of a block with experts,
    "moe_preprocess" what puts tokens in order for the dispatch. Dispatch, experts and
    combination are launched kernel by kernel: how many tokens come is known on the
    device alone."""

    expandable_segments: Annotated[bool | None, Examples(True)] = None
    """Whether PyTorch's allocator grows its segments
    (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True): a full device loses a percent to
    fragments then, else some percent and now and then a third. Left out, the preset's;
    torchtitan's start script sets it."""

    saves_products: Annotated[bool | None, Examples(True)] = None
    """Whether selective recompute saves every second matrix product and repeats the
    rest of a layer (torchtitan) instead of repeating the attention core only
    (Megatron). Left out, the preset's."""

    torch_compile: Annotated[bool | None, Examples(True)] = None
    """Whether torch.compile has made the blocks: what norms and activations make is not
    kept where products can make it again, nor what no derivative reads. Preset
    "torchtitan" compiles its loss with them, as releases from 0.2 on do. Left out, the
    preset's: none does."""

    fuses_loss: Annotated[bool | None, Examples(True)] = None
    """Whether the loss keeps 16-bit logits and makes nothing else of their size: fused
    kernels (Liger's, FlashAttention's, Transformer Engine's) and a loss that
    torch.compile has made. Left out, the preset's."""

    recompute_modules: Annotated[
        tuple[Annotated[str, NameChoice(tuple(RECOMPUTE_MODULES))], ...],
        Listed(most=None),
        Examples(["layernorm", "mla_up_proj"]),
    ] = ATTENTION_CORE
    """Megatron's option: what selective recompute runs again where it does not save
    products. "core_attn" is the core of attention, "layernorm" the norms in front of a
    block's branches, "mla_up_proj" the up-projections of latent attention with their
    norms and rotary channels, "moe_act" the activation of routed experts, "mlp" dense
    feed-forward layers, "shared_experts" what all tokens go to beside routed experts,
    and "moe" layers of experts as a whole, which sends their tokens again."""

    activation_func_fp8_input_store: Annotated[bool, Examples(True)] = False
    """Megatron's option: what gated activations (SwiGLU) read is kept in fp8 for the
    backward pass, where the framework fuses them ("megatron-core", "nemo").
    What "moe_act" runs again keeps its input as it is. A field of TransformerConfig,
    which Megatron-LM's command line leaves out."""

    fp8_dot_product_attention: Annotated[bool, Examples(True)] = False
    """Megatron's option: fused attention multiplies in 8 bits. As fast as cuDNN's
    kernels for MXFP8 were measured on Blackwell, and as in 16 bits on other devices;
    what it keeps is counted in 16 bits. A field of TransformerConfig, which the command
    line of Megatron-LM leaves out."""

    collective_library: Annotated[bool | None, Examples(True)] = None
    """Whether collectives inside layers cost what a library such as NCCL adds to their
    time on the wire. Left out, the preset's."""

    gradient_accumulation_fusion: Annotated[bool | None, Examples(False)] = None
    """Megatron's option: gradients of weights are added to what is accumulated inside
    the product, which leaves an empty tensor for each shape of a block's weights.
    Megatron FSDP wants it off. Left out, the preset's: on with "megatron-core" and
    "nemo"."""

    moe_token_dispatcher_type: Annotated[
        Literal["alltoall", "allgather", "flex"] | None, Examples("alltoall")
    ] = None
    """Megatron's option: "alltoall" sends a token to each of its experts, "flex"
    (DeepEP, HybridEP) once to each rank that has some, and once to each such node,
    "allgather" to all ranks. Left out, the preset's: "flex" with "megatron-core" and
    "nemo", "alltoall" with all others."""

    moe_flex_dispatcher_num_sms: Annotated[Count | None, Examples(24)] = None
    """Megatron's option: multiprocessors that "flex" sends tokens with, on which
    nothing computes meanwhile. Left out, 20 with DeepEP, and 32 where a rack has NVLink
    (HybridEP, as NVIDIA's recipes have it)."""

    constants: Annotated[Text | None, Examples("my_constants.toml")] = None
    """File of constants that `nestsim calibrate` fitted to your own runs, relative to
    the scenario's folder; they hold in place of those that nestsim comes with."""

    links: Annotated[Text | None, Examples("my_links.toml")] = None
    """File of what `nestsim profile-links` measured of your own links, relative to
    the scenario's folder: launches and ramp of collectives inside layers, and the
    efficiency of links for which the network says none."""

    @property
    def defaults(self) -> Preset:
        """What holds where the scenario is silent."""
        return PRESETS[self.preset]

    def build(self) -> Software:
        """Return the software for the estimators.

        Raises
        ------
        InputError
            If a setting would not be heeded beside another one.
        """
        written: dict[str, Any] = {
            "attention_kernel": self.attention_kernel,
            "compiled": self.compiled,
            "cuda_graphs": self.cuda_graphs,
            "cuda_graph_modules": self.cuda_graph_modules,
            "saves_products": self.saves_products,
            "expandable_segments": self.expandable_segments,
            "keeps_empty_gradients": self.gradient_accumulation_fusion,
            "fuses_loss": self.fuses_loss,
            "library": self.collective_library,
            "moe_token_dispatcher_type": self.moe_token_dispatcher_type,
            "moe_flex_dispatcher_num_sms": self.moe_flex_dispatcher_num_sms,
            "recompute_modules": self.recompute_modules,
            "activation_func_fp8_input_store": self.activation_func_fp8_input_store,
            "fp8_dot_product_attention": self.fp8_dot_product_attention,
        }
        given = {name: value for name, value in written.items() if value is not None}
        software = self.defaults.software
        if self.torch_compile:
            compiled = {"repeats_elementwise": True}
            if software.compiles_loss:
                compiled["fuses_loss"] = True
            given = compiled | given
        software = replace(software, **given)
        if software.saves_products and self.recompute_modules != ATTENTION_CORE:
            raise InputError(
                "is not heeded where selective recompute repeats operators",
                where="software.recompute_modules",
                got=list(self.recompute_modules),
                expected="to be left out, or saves_products = false beside it",
            )
        return software

    def read_constants(self, folder: Path) -> UserConstants | None:
        """Return the user's own constants, None if there are none.

        ``folder`` is the scenario file's.
        """
        return self._read("constants", "calibrate", read_user_constants, folder)

    def read_links(self, folder: Path) -> UserLinks | None:
        """Return what the user measured of links, None if nothing.

        ``folder`` is the scenario file's.
        """
        return self._read("links", "profile-links", read_user_links, folder)

    def _read(
        self, setting: str, command: str, read: Callable[[Path], _T], folder: Path
    ) -> _T | None:
        """Return what a file holds that a command wrote; None if there is none."""
        name = getattr(self, setting)
        if name is None:
            return None
        expected = f"a file that nestsim {command} wrote, in the scenario's folder"
        path = input_file(folder, name, setting, expected)
        with located(setting, ": "):
            return read(path)

    @property
    def execution(self) -> Execution:
        """How a step is executed."""
        return Execution(**{name: getattr(self, name) for name in EXECUTION})


def with_software_defaults(
    table: Mapping[str, object], defaults: Preset
) -> dict[str, Any]:
    """Return a table [software] in which no overlap is left to the framework.

    Parameters
    ----------
    table
        The table, as it is written.
    defaults
        What holds where it is silent.
    """
    return {name: getattr(defaults.execution, name) for name in EXECUTION} | {**table}


def checked_software(table: Mapping[str, object]) -> SoftwareTable:
    """Check a table [software] by itself.

    Raises
    ------
    InputError
        If something in it is wrong.
    """
    preset = PRESETS[str(table.get("preset", DEFAULT_PRESET))]
    return checked(SoftwareTable, with_software_defaults(table, preset))
