"""What a training job is: its batch, number formats, states, and how it is split.

An element in 8 or 4 bits says little without a scale, and formats differ in how many
elements share one::

    bytes = (bits + scale bits / elements that share a scale) / 8

One scale for a whole tensor costs nothing; neither does NVFP4's second one, in fp32,
for a whole tensor. Weights that are scaled in squares share a scale among more elements
than activations do.

Sizes of parallel groups have Megatron's names outside, and short letters inside, and so
have the formats of what optimizers keep [6]_.

References
----------
.. [1] Micikevicius et al., "FP8 Formats for Deep Learning", 2022: one scale for a
   tensor.
.. [2] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.2: activations in
   tiles of 1 x 128, weights in blocks of 128 x 128, scales in fp32.
.. [3] Open Compute Project, "OCP Microscaling Formats (MX) Specification" v1.0, 2023,
   table 1: MXFP8 and MXFP4, an 8-bit scale (E8M0) for 32 elements.
.. [4] NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, section 2: an 8-bit
   scale (E4M3) for 16 elements, and one in fp32 for the tensor; weights that share
   one among 16 x 16 repeat it for each 16, as products ask for.
.. [5] Transformer Engine documentation, "MXFP8", "NVFP4" and "FP8 Blockwise Scaling",
   2026: products read both operands along their inner dimension, for which a quantised
   tensor is kept twice, by rows and by columns.
.. [6] Megatron Core, ``core/optimizer/optimizer_config.py``: ``main_params_dtype``,
   ``exp_avg_dtype``, ``exp_avg_sq_dtype`` of its precision-aware optimizer, and
   ``core/transformer/transformer_config.py``: ``fp8_param``.
.. [7] Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022; the
   blocks of 256 are those of bitsandbytes since 0.45, ``optim/optimizer.py``.
.. [8] Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024;
   Liu et al., "Muon is Scalable for LLM Training", 2025, sections 2.3 and 3.1: one
   momentum for matrices; embeddings, heads and vectors stay with AdamW.
.. [9] Megatron-LM, pull request 5470, "Muon fp8 param gather for decoupled layout",
   2026: scales by rows and by columns do not follow from each other, so that weights
   travel in 16 bits where they have such, and are quantised where they arrive.
.. [10] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.3: tokens, and
   gradients of what experts return, are dispatched in fp8; what is combined stays in
   bf16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, NamedTuple

from annotated_types import Ge, Le

from estimators.grouping import CP_COMM_TYPES, Grouping, ParallelDegrees
from estimators.rampup import BatchRamp, GlobalBatch, batch_sizes
from topologies.errors import InputError
from topologies.settings import Derived, Distinct, Examples, NameChoice, Spec, Text


class NumberFormat(NamedTuple):
    """A narrow format of the operands of products."""

    bits: int
    """Bits of an element."""

    rate: str
    """Name of the format in `topologies.accelerators.Accelerator.peak_flops`."""

    scale_bits: int = 0
    """Bits of a scale that a block of elements shares; 0 if a tensor has one."""

    block: int = 1
    """Elements of an activation that share a scale."""

    weight_block: int = 1
    """Elements of a weight that share a scale."""

    is_square: bool = True
    """Whether the scales of a weight are the same by rows and by columns."""

    @property
    def activation_bytes(self) -> float:
        """Size of an element of an activation with its part of a scale [byte]."""
        return (self.bits + self.scale_bits / self.block) / 8

    @property
    def weight_bytes(self) -> float:
        """Size of an element of a weight with its part of a scale [byte]."""
        return (self.bits + self.scale_bits / self.weight_block) / 8


NARROW_FORMATS: Mapping[str, NumberFormat] = MappingProxyType(
    {
        # One scale for a tensor [1]_.
        "fp8": NumberFormat(8, "fp8"),
        # DeepSeek-V3's, and Megatron's fp8_recipe "blockwise" [2]_.
        "fp8-blockwise": NumberFormat(8, "fp8", 32, 128, 128 * 128),
        "mxfp8": NumberFormat(8, "mxfp8", 8, 32, 32, is_square=False),  # [3]_
        "int8": NumberFormat(8, "int8"),
        # 4 bits as the device has them; scales as NVFP4's.
        "fp4": NumberFormat(4, "fp4", 8, 16, 16, is_square=False),
        "nvfp4": NumberFormat(4, "nvfp4", 8, 16, 16, is_square=False),  # [4]_
    }
)
"""Name that settings have for a narrow format -> what it is."""

NARROW = tuple(NARROW_FORMATS)
"""Names of the narrow formats."""


_WIDTH: Mapping[str, float] = MappingProxyType(
    {
        **{name: known.weight_bytes for name, known in NARROW_FORMATS.items()},
        "fp32": 4,
        "bf16": 2,
        "fp16": 2,
        "fp8": 1,
    }
)
"""Number format -> bytes of a weight with its part of a scale."""


class ParameterBytes(NamedTuple):
    """Bytes that a device keeps and sends for each of its parameters [byte]."""

    weights: float
    """Weights, kept for the whole step [byte]."""
    gradients: float
    """Gradients, kept while they are accumulated over microbatches [byte]."""
    optimizer: float
    """States of the optimizer, kept for the whole step [byte]."""
    gather: float
    """Weights on the wire when they are gathered [byte]."""
    reduce: float
    """Gradients on the wire when they are reduced [byte]."""
    copies: float = 0
    """Copies that the optimizer makes of its share for its step alone [byte]."""
    frozen: float = 0
    """Part of `weights`, and of `gather`, that no step changes [byte]."""


class ParameterItem(NamedTuple):
    """One of the numbers that a device keeps for each of its parameters."""

    part: str
    """Field of `ParameterBytes` that it belongs to."""
    name: str
    """What it is."""
    num_bytes: float
    """Its size [byte]."""
    reason: str
    """Why it is kept."""


_MASTER = ("master copy", 4)
_MOMENTUM = ("momentum", 4)
_VARIANCE = ("variance", 4)
_BLOCKWISE = 1 + 4 / 256

OPTIMIZER_STATES: Mapping[tuple[str, bool], tuple[tuple[str, float], ...]] = (
    MappingProxyType(
        {
            # Master copy, momentum and variance in fp32: Rajbhandari et al., "ZeRO",
            # 2020, section 3.1 (K = 12).
            ("adam", True): (_MASTER, _MOMENTUM, _VARIANCE),
            ("adam", False): (_MOMENTUM, _VARIANCE),
            # Master copy and momentum in fp32.
            ("sgd", True): (_MASTER, _MOMENTUM),
            ("sgd", False): (_MOMENTUM,),
            # Momentum and variance in bf16, no master copy.
            ("adam-bf16", True): (("momentum", 2), ("variance", 2)),
            # Momentum and variance in 8 bits, an fp32 scale for each 256, no master
            # copy [7]_.
            ("adam8bit", True): (("momentum", _BLOCKWISE), ("variance", _BLOCKWISE)),
            ("adam8bit", False): (("momentum", _BLOCKWISE), ("variance", _BLOCKWISE)),
            # Master copy and momentum in fp32, of matrices; other parameters have
            # Adam's states [8]_.
            ("muon", True): (_MASTER, _MOMENTUM),
            ("muon", False): (_MOMENTUM,),
        }
    )
)
"""(optimizer, whether the weights are in 16 bits) -> name and bytes per parameter of
each state, in fp32 where there is a choice."""

OPTIMIZER_BYTES: Mapping[tuple[str, bool], float] = MappingProxyType(
    {
        key: sum(num_bytes for _, num_bytes in states)
        for key, states in OPTIMIZER_STATES.items()
    }
)
"""(optimizer, whether the weights are in 16 bits) -> bytes per parameter, with states
in fp32 where there is a choice."""

_STATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "adam": ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
        "sgd": ("main_params_dtype", "exp_avg_dtype"),
        "muon": ("main_params_dtype", "exp_avg_dtype"),
    }
)
"""Optimizer -> settings that say in which format each of its states is."""


def states_of(optimizer: str) -> tuple[str, ...]:
    """Return the settings of the formats of an optimizer's states."""
    if optimizer == "muon":
        optimizer = "adam"  # which updates what Muon does not
    return _STATES.get(optimizer, ())


_FORMAT_OF_STATE: Mapping[str, str] = MappingProxyType(
    {
        "master copy": "main_params_dtype",
        "momentum": "exp_avg_dtype",
        "variance": "exp_avg_sq_dtype",
    }
)
"""State of an optimizer -> setting that says in which format it is."""

_STATE_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "master copy": "the optimizer updates the weights in fp32",
        "momentum": "mean of the gradients",
        "variance": "mean of the squared gradients",
    }
)
"""State of an optimizer -> why it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec(Spec):
    """What is trained at once, and in which precision."""

    global_batch_size: GlobalBatch
    """Sequences of one optimizer step."""

    rampup_batch_size: BatchRamp = ()
    """Megatron's option: the first batch, how much larger batches get, and how many
    sequences are trained until they have `global_batch_size`, for which plans are
    searched. Left out, all batches have."""

    precision: Annotated[str, NameChoice(("bf16", "fp16", "fp32"))] = "bf16"
    """Number format of weights, activations and products."""

    optimizer: Annotated[
        str, NameChoice(("adam", "sgd", "adam-bf16", "adam8bit", "muon"))
    ] = "adam"
    """The optimizer: mixed-precision Adam, SGD with momentum, Adam with its states in
    bf16 and no master copy of the weights, Adam with its states in blocks of 8 bits and
    no master copy (bitsandbytes), or Muon, which keeps one momentum for the matrices of
    blocks and leaves other parameters to Adam: counted on average over the model's
    parameters, with five Newton-Schulz iterations in each step."""

    main_params_dtype: Annotated[str, NameChoice(("fp32", "fp16"))] = "fp32"
    """Megatron's option: number format of the master copy of 16-bit weights, with the
    optimizers "adam", "sgd" and "muon"."""

    exp_avg_dtype: Annotated[str, NameChoice(("fp32", "bf16", "fp16", "fp8"))] = "fp32"
    """Megatron's option: number format of the optimizer's momentum, with "adam", "sgd"
    and "muon"."""

    exp_avg_sq_dtype: Annotated[str, NameChoice(("fp32", "bf16", "fp16", "fp8"))] = (
        "fp32"
    )
    """Megatron's option: number format of the optimizer's variance, with "adam", and
    with "muon" for what it leaves to Adam."""

    matmul_precision: Annotated[
        Annotated[
            str, NameChoice(("fp8", "fp8-blockwise", "mxfp8", "int8", "fp4", "nvfp4"))
        ],
        Examples("fp8", default=None),
    ] = ""
    """Number format of products with weights, whose operands are cast before each:
    "fp8" with one scale for a tensor, "fp8-blockwise" with one in fp32 for 128 elements
    (DeepSeek-V3), "mxfp8" with one in 8 bits for 32, "nvfp4" with one in 8 bits for 16;
    "int8", "fp4" as the device has them. Left out, `precision`."""

    fp8_param_gather: bool = False
    """Megatron's option: the matrices of blocks are kept in `matmul_precision` beside
    their master copy, and gathered in it where its scales are the same by rows and by
    columns ("fp8", "fp8-blockwise"); else they travel in `precision` and are quantised
    where they arrive. Counted on average over the model's parameters."""

    keep_fp8_transpose_cache: bool = True
    """Megatron's option: weights that `fp8_param_gather` keeps are there twice, by rows
    and by columns, as products read them; else they are transposed at each use, which
    is taken to cost nothing."""

    moe_dispatch_precision: Annotated[
        Annotated[str, NameChoice(("fp8", "fp8-blockwise", "mxfp8"))],
        Examples("fp8-blockwise", default=None),
    ] = ""
    """Number format of tokens on their way to experts, and of the gradients of what
    experts return (DeepSeek-V3, DeepEP); what is combined stays in `precision`. Left
    out, `precision`."""

    adapter: Annotated[str, NameChoice(("none", "lora", "qlora"))] = "none"
    """Fine-tuning: "lora" freezes the model and trains a low-rank adapter beside each
    of `adapter_targets`; "qlora" keeps the weights of products in blocks in 4 bits
    (NF4), too. "none" trains all parameters."""

    adapter_rank: Annotated[int, Ge(1), Le(8192)] = 32
    """Rank of each adapter: `dim` of Megatron Bridge, which has 32 unless told
    otherwise, `r` of Hugging Face's PEFT, which has 8."""

    adapter_targets: Annotated[
        Distinct[Text], Examples(["q_proj", "k_proj", "v_proj", "o_proj"])
    ] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    """Products that get adapters, by Megatron's names, or by Hugging Face's, which are
    parts of them. Routed experts get none."""

    gradient_precision: Annotated[
        Annotated[str, NameChoice(("fp32", "bf16"))], Examples("fp32", default=None)
    ] = "fp32"
    """Number format of accumulated and reduced gradients. Left out, as
    `software.preset` has it; fp32 with "ideal" and with Megatron-LM."""

    weights_in_fp32: Annotated[bool, Examples(True, default=None)] = False
    """Whether weights are kept in fp32 and cast when they are used, with no master copy
    beside them, as FSDP does. Left out, as `software.preset` has it."""

    gradient_copies: Annotated[bool, Examples(True, default=None)] = False
    """Whether the optimizer works on copies of the gradients, as DeepSpeed's do. Left
    out, as `software.preset` has it."""

    gather_precision: Annotated[
        Annotated[
            str, NameChoice(("fp32", "bf16", "fp16", "fp8", "fp8-blockwise", "mxfp8"))
        ],
        Examples("fp8", default=None),
    ] = ""
    """Number format of weights on the wire. Left out, as `fp8_param_gather` or else
    `software.preset` has it, or else `precision`."""

    reduce_precision: Annotated[
        Annotated[str, NameChoice(("fp32", "bf16", "fp16"))],
        Examples("bf16", default=None),
    ] = ""
    """Number format of gradients on the wire. Left out, as `software.preset` has it, or
    else `gradient_precision`."""

    casts_gradients: Annotated[bool, Derived()] = False
    """Whether the optimizer casts 16-bit gradients of its share to fp32 for its step,
    and keeps them to the next one, as Megatron's does."""

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batches of a run in sequences, rising: the last is `global_batch_size`."""
        return batch_sizes(self.rampup_batch_size, self.global_batch_size)

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def dispatch_share(self) -> float:
        """Bytes of the all-to-alls of experts over those in `precision`.

        Of the two of each pass one is in `moe_dispatch_precision` [10]_.
        """
        if not self.moe_dispatch_precision:
            return 1.0
        narrow = NARROW_FORMATS[self.moe_dispatch_precision].activation_bytes
        return (narrow / self.element_bytes + 1.0) / 2.0

    @property
    def tells_matrices_apart(self) -> bool:
        """Whether the matrices of blocks are kept otherwise than other parameters."""
        return self.fp8_param_gather or self.optimizer == "muon"

    @property
    def parameter_items(self) -> tuple[ParameterItem, ...]:
        """Weights, gradients, optimizer states and copies, one by one.

        Of a matrix of a block, where these are told apart.
        """
        narrow = self.precision != "fp32"
        copied = self._has_master
        return (
            self._weights_item(copied=copied),
            *self._gradient_items(narrow=narrow, copied=copied),
            *(
                ParameterItem(
                    "optimizer",
                    name,
                    self._state_bytes(name, size),
                    _STATE_REASONS.get(name, name),
                )
                for name, size in OPTIMIZER_STATES[self.optimizer, copied]
            ),
        )

    def _weights_item(self, *, copied: bool) -> ParameterItem:
        if self.fp8_param_gather:
            known = NARROW_FORMATS[self.matmul_precision]
            twice = ", by rows and by columns" if self.keep_fp8_transpose_cache else ""
            return ParameterItem(
                "weights",
                "weights",
                (1 + self.keep_fp8_transpose_cache) * known.weight_bytes,
                f"in {self.matmul_precision}{twice}, as products read them",
            )
        reason = f"in {self.precision}, as forward and backward passes read them"
        if not copied and self.precision != "fp32":
            reason = "in fp32, cast when they are read; no master copy beside them"
        return ParameterItem(
            "weights", "weights", self.element_bytes if copied else 4, reason
        )

    def _gradient_items(
        self, *, narrow: bool, copied: bool
    ) -> tuple[ParameterItem, ...]:
        wide = self.gradient_precision == "fp32" or not narrow
        summed = ParameterItem(
            "gradients",
            "gradients",
            4 if wide else 2,
            f"in {'fp32' if wide else 'bf16'}, summed over microbatches",
        )
        size, cast = self.element_bytes, "the optimizer works on its share in fp32"
        if self.gradient_copies and wide:
            beside = "as backward passes make them, beside the sum in fp32"
            return summed, ParameterItem("gradients", "new gradients", size, beside)
        if self.gradient_copies:
            flat = "the optimizer lays its share side by side for its step"
            return (
                summed,
                ParameterItem("copies", "flat gradients", size, flat),
                ParameterItem("copies", "gradients in fp32", 4, cast),
            )
        if self.casts_gradients and copied and not wide:
            return summed, ParameterItem("copies", "gradients in fp32", 4, cast)
        return (summed,)

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states of one parameter [byte].

        Of a matrix of a block, where these are told apart.
        """
        kept = dict.fromkeys(ParameterBytes._fields, 0.0)
        for item in self.parameter_items:
            kept[item.part] += item.num_bytes
        summed = 4 if self.gradient_precision == "fp32" else self.element_bytes
        return ParameterBytes(
            weights=kept["weights"],
            gradients=kept["gradients"],
            optimizer=kept["optimizer"],
            gather=_WIDTH.get(self.gather_precision, self._gather_bytes),
            reduce=_WIDTH.get(self.reduce_precision, summed),
            copies=kept["copies"],
        )

    def mean_parameter_bytes(self, matrices: float) -> ParameterBytes:
        """Return what the parameters of a model take on average [byte].

        Parameters
        ----------
        matrices
            Part of them that are matrices of blocks.
        """
        of_matrix = self.parameter_bytes
        if not self.tells_matrices_apart:
            return of_matrix
        name = "adam" if self.optimizer == "muon" else self.optimizer
        others = replace(self, optimizer=name, fp8_param_gather=False).parameter_bytes
        return ParameterBytes(
            *(
                matrices * matrix + (1.0 - matrices) * other
                for matrix, other in zip(of_matrix, others, strict=True)
            )
        )

    @property
    def _has_master(self) -> bool:
        """Whether a master copy can stand beside the weights."""
        return self.precision != "fp32" and not self.weights_in_fp32

    @property
    def _gather_bytes(self) -> float:
        """Bytes of a weight on the wire, if not `gather_precision` [9]_ [byte]."""
        if self.fp8_param_gather:
            known = NARROW_FORMATS[self.matmul_precision]
            if known.is_square:
                return known.weight_bytes
        return self.element_bytes

    def _state_bytes(self, name: str, num_bytes: float) -> float:
        """Return a state's bytes in the format that was chosen for it [byte]."""
        setting = _FORMAT_OF_STATE[name]
        if setting in _STATES.get(self.optimizer, ()):
            return _WIDTH[getattr(self, setting)]
        return num_bytes


class Sizes(NamedTuple):
    """The parallel degrees, as formulas and kernels call them."""

    tp: int
    """Tensor-parallel size."""
    cp: int
    """Context-parallel size."""
    ep: int
    """Expert-parallel size."""
    dp: int
    """Replicas, those that share experts included."""
    pp: int
    """Pipeline stages."""


def expert_data_size(sizes: Sizes, grouping: Grouping) -> int:
    """Return how many ranks of a stage hold the same experts.

    Megatron-LM counts the ranks of a stage in two ways (``RankGenerator`` in
    ``megatron/core/parallel_state.py``): ``tp cp dp``, and ``etp ep`` times this.
    """
    tp, cp, ep, dp, _ = sizes
    return tp * cp * dp // (ep * (grouping.etp or tp))


_DEGREES = (
    *("tensor_model_parallel", "pipeline_model_parallel", "data_parallel"),
    *("context_parallel", "expert_model_parallel"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismConfig(ParallelDegrees):
    """Parallel degrees of one training job."""

    data_parallel_size: int = 1
    """Replicas of the pipeline, each with its own part of the batch."""

    experts_within_data: bool = False
    """Whether experts that are split as other layers are spread over data-parallel
    ranks alone, as `estimators.software.Software` has it; else over all ranks of a
    stage."""

    def __post_init__(self) -> None:
        for name in (f"{what}_size" for what in _DEGREES):
            size = getattr(self, name)
            if not size >= 1:
                raise InputError(
                    "must be at least 1",
                    where=name,
                    got=size,
                    expected="a positive whole number, e.g. 8",
                )
        self._check_experts()
        self._check_context()
        self._check_replicas()

    def _check_experts(self) -> None:
        """Refuse experts that tensor-parallel ranks do not share evenly."""
        tp, etp = self.tensor_model_parallel_size, self.expert_tensor_parallel_size
        if etp is not None and (etp < 1 or tp % etp):
            raise InputError(
                "does not divide the tensor-parallel ranks",
                where="expert_tensor_parallel_size",
                got=etp,
                expected=f"a divisor of tensor_model_parallel_size, which is {tp}",
            )

    def _check_replicas(self) -> None:
        """Refuse expert groups that do not go round the ranks of a stage."""
        tp, cp, ep, dp, _ = self.sizes()
        grouping = self.grouping
        if dp % grouping.replica_unit((tp, cp, ep)) == 0:
            return
        folded, etp = grouping.is_folded, grouping.etp or tp
        raise InputError(
            "does not divide the ranks that experts are spread over"
            if folded
            else "does not divide the replicas that experts are spread over",
            where="expert_model_parallel_size",
            got=ep,
            expected="a divisor of tensor x context x data / expert tensor, which is "
            f"{tp * cp * dp} / {etp}"
            if folded
            else f"a divisor of data_parallel_size, which is {dp}",
        )

    def _check_context(self) -> None:
        """Refuse a kind of context parallelism that there is not."""
        cp, kind = self.context_parallel_size, self.cp_comm_type
        if kind not in CP_COMM_TYPES:
            raise InputError(
                "is not one of the known values",
                where="cp_comm_type",
                got=kind,
                expected=", ".join(f'"{name}"' for name in CP_COMM_TYPES),
            )
        levels = self.hierarchical_context_parallel_sizes
        if (kind == "a2a+p2p" and cp > 1) != (levels is not None):
            raise InputError(
                'goes with cp_comm_type "a2a+p2p", and only with that',
                where="hierarchical_context_parallel_sizes",
                got=None if levels is None else list(levels),
                expected="the ranks of an all-to-all and those of a ring, e.g. [2, 4]"
                if levels is None
                else "no such sizes",
            )
        if levels is not None and not (
            len(levels) == 2 and min(levels) > 1 and levels[0] * levels[1] == cp
        ):
            raise InputError(
                "are not the two levels of the context-parallel ranks",
                where="hierarchical_context_parallel_sizes",
                got=list(levels),
                expected=f"two sizes above 1 whose product is {cp}",
            )

    @property
    def grouping(self) -> Grouping:
        """How the ranks of a stage form groups."""
        levels = self.hierarchical_context_parallel_sizes
        return Grouping.of(
            self.sizes()[:3],
            etp=self.expert_tensor_parallel_size or 0,
            within_data=self.experts_within_data,
            cp_comm_type=self.cp_comm_type,
            a2a=levels[0] if levels else 0,
        )

    @property
    def placed_expert_size(self) -> int:
        """Replicas that share experts along an axis of their own."""
        return 1 if self.grouping.is_folded else self.expert_model_parallel_size

    @property
    def expert_data_size(self) -> int:
        """Ranks of a stage that hold the same experts."""
        return expert_data_size(self.sizes(), self.grouping)

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
