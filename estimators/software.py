"""How a framework runs a model: which kernels, and what the host costs.

References
----------
.. [1] Megatron Core, ``core/transformer/transformer_config.py``, ``cuda_graph_impl``
   and ``cuda_graph_modules`` (``cuda_graph_scope`` before);
   docs/user-guide/features/cuda_graph.md (d98e8a6).
"""

from dataclasses import dataclass

GRAPHS = ("none", "layers", "full_iteration")
"""What CUDA graphs hold of a step: nothing, parts of each layer, or the whole step but
for the optimizer."""

GRAPH_MODULES = ("attn", "mlp", "mamba", "moe_router", "moe_preprocess")
"""Parts of layers that graphs can hold, by Megatron's names [1]_: what mixes tokens;
the feed-forward part of a dense block; a Mamba block; of a block with experts norm,
router and shared experts, and what prepares the dispatch. How many tokens come to an
expert is known on the device alone, so that dispatch, experts and combination stay
outside. Megatron's ``moe``, which pads every expert, is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What of a framework changes operator times."""

    name: str
    """Name of the framework, whose constants (`estimators.constants`) hold; ``"ideal"``
    costs nothing."""

    attention_kernel: str = "fused"
    """Kernel of fused attention: ``"flash"`` (FlashAttention-2, Triton, PyTorch's) or
    ``"fused"`` (the vendor's, such as cuDNN's)."""

    expandable_segments: bool = False
    """Whether segments of PyTorch's caching allocator grow, so that a full device
    loses less to fragments."""

    compiled: bool = False
    """Whether layers are one program (XLA): the host launches no kernels of theirs."""

    cuda_graphs: str = "none"
    """What is captured once and replayed, one of `GRAPHS`: inside of a graph kernels
    and collectives follow each other without the host."""

    cuda_graph_modules: tuple[str, ...] = GRAPH_MODULES
    """Parts of each layer that ``"layers"`` captures, of `GRAPH_MODULES`."""

    saves_products: bool = False
    """Whether ``"selective"`` recompute saves every second product with a weight and
    fused attention, and repeats the rest of each block, as torchtitan's policy of
    operators does; else it repeats the attention core only, as Megatron-LM does."""

    recompute_modules: tuple[str, ...] = ("core_attn",)
    """What ``"selective"`` recompute runs again where it does not save products: keys
    of `estimators.layers.saved_activations.RECOMPUTE_MODULES`."""

    plain_loss: bool = False
    """Whether the loss is PyTorch's, of logits cast to fp32: their gradients are there
    in fp32, too, before they are cast back."""

    keeps_empty_gradients: bool = False
    """Whether an empty tensor stays for each shape of the blocks' weights: products add
    their weights' gradients to what is accumulated and hand that back in its place."""

    fuses_activation: bool = False
    """Whether gated activations are one kernel, which keeps what it reads and no
    more."""

    weighs_in_activation: bool = False
    """Whether the kernel of gated activations weighs the results of experts, too: what
    they return is not kept."""

    activation_func_fp8_input_store: bool = False
    """Whether what fused gated activations read is kept in 8 bits, but for those that
    selective recompute runs again. Casts take no time."""

    fp8_dot_product_attention: bool = False
    """Whether fused attention multiplies in 8 bits; casts take no time."""

    repeats_elementwise: bool = False
    """Whether what norms and activations make for products is made again where the
    backward pass reads it: a compiler fuses it into the product."""

    omits_unread: bool = False
    """Whether full recompute leaves out the end of a block, which makes its result and
    nothing that a derivative reads; what is sent there is sent all the same."""

    sorts_copies: bool = False
    """Whether tokens are written once for each of their experts and then sorted, and
    results sorted back before they are weighed: gathers that no compiler fuses, of
    three reads and writes of all copies in place of one, forward and backward."""

    gathers_by_weight: bool = False
    """Whether weights that are sharded are gathered one by one as they are used; else
    layer by layer."""

    fuses_loss: bool = False
    """Whether the loss keeps 16-bit logits in place of a softmax in fp32."""

    compiles_loss: bool = False
    """Whether torch.compile, where it is asked for, makes the loss, too."""

    keeps_narrow_inputs: bool = False
    """Whether products in a narrow format keep their inputs in it, as Transformer
    Engine's do; else they keep what they cast."""

    ranks_per_node: int = 0
    """Devices of a node; 0 if that is not known, as if all were in one."""

    moe_token_dispatcher_type: str = ""
    """How tokens travel to experts, one of `estimators.dispatch.DISPATCHERS`; ``""`` as
    the preset has it, for which ``"alltoall"`` stands here."""

    moe_flex_dispatcher_num_sms: int = 0
    """Multiprocessors that the dispatcher ``"flex"`` sends with; 0 as `estimators.
    dispatch` has it."""

    keeps_gathered: bool = False
    """Whether with sequence parallelism, what products gather is kept for the backward
    pass, as PyTorch's tensor parallelism does; Megatron-LM gathers it again."""

    scatters_transfers: bool = False
    """Whether tensor-parallel ranks that all hold the hidden states send a part each to
    the next stage, which gathers it inside the node (Narayanan et al., SC'21, section
    4.1; DeepSpeed's ``is_pipe_partitioned``). What gathering takes is left out."""

    experts_within_data: bool = False
    """Whether experts are spread over data-parallel ranks alone, so that each context-
    parallel rank has groups of its own; else they count the ranks of a stage anew
    (`estimators.grouping.Grouping`)."""

    sums_in_nodes: bool = False
    """Whether links of a node charge all-reduces as sums in its switches (NVLS), rather
    than as rings."""

    node_step: float = 0.0
    """Latency that links charge from one device of a node to another, at each step of a
    collective [s]."""

    num_ranks: int = 1
    """Devices of the job, all of which wait for the slowest one."""

    many_nodes: bool = False
    """Whether a job's processes on several nodes meet at every step."""

    node_transports: tuple[tuple[int, str], ...] = ()
    """Devices that each level of a node joins, and its transport (a table of
    ``transports.toml``), from the inside out; empty: the accelerator's usual one."""

    fabric_transport: str = ""
    """Transport between nodes (a table of ``transports.toml``); empty: the
    accelerator's usual one."""

    library: bool = True
    """Whether collectives of layers are a library's, with its launches and its ramp
    (`estimators.collectives.transports`), rather than the time on the wire alone."""

    @property
    def captures_step(self) -> bool:
        """Whether the host launches a step as one graph."""
        return self.cuda_graphs == "full_iteration"


IDEAL = Software(name="ideal", library=False)
"""A framework that takes no time: the device's own time and nothing else."""
