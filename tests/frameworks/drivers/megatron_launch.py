"""What Megatron Core makes of a configuration: groups, blocks, microbatches, schedule.

Called: the getters of ``parallel_state`` on each rank, ``get_num_layers_to_build`` or
the layout, the calculator of microbatches, and the interleaved schedule up to its first
forward pass. Stubbed: the version of Transformer Engine and its rotary kernels, which
need a GPU to be installed; the backend of groups; devices of tensors.

Takes versions of Megatron Core from 0.8 on: what older ones do not have is left out.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from answering import AT_END, Facts, all_groups, as_rank
from megatron.core import num_microbatches_calculator, parallel_state, utils
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from packaging.version import Version
from torch.overrides import TorchFunctionMode

Initialize = Callable[[], None]
"""Makes the groups of this process' rank."""

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
GROUPS = {
    "tp": "tensor_model_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "pp": "pipeline_model_parallel",
    "ep": "expert_model_parallel",
    "etp": "expert_tensor_parallel",
    "expert dp": "expert_data_parallel",
}
"""Kind of group -> what ``parallel_state`` calls it."""

utils._te_version = Version("2.10.0")
EMBEDDINGS = "megatron.core.models.common.embeddings"
for module in ("rope_utils", "rotary_pos_embedding"):
    if find_spec(f"{EMBEDDINGS}.{module}"):
        rotating = import_module(f"{EMBEDDINGS}.{module}")
        rotating.fused_apply_rotary_pos_emb = lambda *_: None
        rotating.fused_apply_rotary_pos_emb_thd = lambda *_: None

AT_END.append(parallel_state.destroy_model_parallel)
new_group = torch.distributed.new_group
torch.distributed.new_group = lambda *args, **given: new_group(
    *args, **{**given, "backend": None}
)


class ForwardReachedError(Exception):
    """The schedule took its sizes, and starts the first forward pass."""


class OnHost(TorchFunctionMode):
    """Puts on the host what is asked for on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class Chunk(torch.nn.Module):
    """A chunk of a model, which schedules only look at."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder

    def set_input_tensor(self, _: Any) -> None:
        """Take the input of the chunk."""


def known_arguments(function: Callable[..., Any], **given: Any) -> Facts:
    """Return the arguments that this version's function has."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in known}


def initialize(model: Any, **given: Any) -> None:
    """Make the groups of this rank, as Megatron-LM's ``initialize.py`` does."""
    names = (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        *("virtual_pipeline_model_parallel_size", "context_parallel_size"),
        *("hierarchical_context_parallel_sizes", "expert_model_parallel_size"),
        "expert_tensor_parallel_size",
    )
    of_model = {name: getattr(model, name) for name in names}
    start = parallel_state.initialize_model_parallel
    start(
        **known_arguments(start, **of_model, **given, create_gloo_process_groups=False)
    )


def launch_facts(
    world: int,
    model: Any,
    ddp: Any,
    start: Initialize,
    *,
    micro_batch_size: int,
    global_batch_size: int,
    seq_length: int,
    instances: int,
    optimizer_part: float,
) -> Facts:
    """Return what a configuration is when it is launched.

    Parameters
    ----------
    world
        Devices.
    model, ddp
        Configurations: of a transformer, and of what replicas share.
    start
        Makes the groups of a rank.
    micro_batch_size, global_batch_size, seq_length
        As given.
    instances
        Copies of the sharded optimizer.
    optimizer_part
        Part of the optimizer's states that hosts keep.
    """

    def of_rank() -> Facts:
        start()
        getters = {
            kind: getattr(parallel_state, f"get_{name}_group", None)
            for kind, name in GROUPS.items()
            if model.num_moe_experts or not kind.startswith("e")
        }
        whole = parallel_state.get_data_parallel_group(with_context_parallel=True)
        groups = {"dp-cp": whole} | {k: get() for k, get in getters.items() if get}
        # 0.9 and 0.10 have several pipelines where an encoder has one of its own.
        return {k: g[0] if isinstance(g, list) else g for k, g in groups.items()}

    replica = (
        model.tensor_model_parallel_size
        * model.pipeline_model_parallel_size
        * model.context_parallel_size
    )
    facts = all_groups(world, of_rank)
    facts["blocks"] = block_counts(world, model, start)
    calculator = num_microbatches_calculator
    calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR = None
    calculator.init_num_microbatches_calculator(
        0, None, global_batch_size, micro_batch_size, world // replica
    )
    number = int(calculator.get_num_microbatches())
    sizes = {"seq_length": seq_length, "micro_batch_size": micro_batch_size}
    start_schedule(world, model, start, num_microbatches=number, **sizes)
    stage = int(ddp.use_distributed_optimizer)
    if getattr(ddp, "use_megatron_fsdp", False):
        stage = SHARDING[ddp.data_parallel_sharding_strategy]
    mode = model.recompute_granularity or "none"
    is_counted = mode == "full" and model.recompute_method == "block"
    layers = model.cpu_offloading_num_layers if model.cpu_offloading else 0
    return {
        **facts,
        "num_microbatches": number,
        "recompute": [mode],
        "recompute_num_layers": [model.recompute_num_layers if is_counted else None],
        "zero_stage": [stage],
        "instances": [instances] if stage else [],
        "offload": [[0.0, 0.0, float(optimizer_part), layers / model.num_layers]],
    }


def block_counts(world: int, model: Any, start: Initialize) -> list[int]:
    """Return the blocks of each virtual stage, in the order of the chain."""
    layout = getattr(model, "pipeline_model_parallel_layout", None)
    chunks = model.virtual_pipeline_model_parallel_size
    stages = range(model.pipeline_model_parallel_size)
    places = [(chunk, stage) for chunk in range(chunks or 1) for stage in stages]
    if layout is not None:
        return [
            sum(layer.name == "decoder" for layer in layout.layout[stage][chunk])
            for chunk, stage in places
        ]
    counts = []
    with as_rank(0, world):
        start()
        for chunk, stage in places:
            # Versions before 0.15 ask for the rank that the process is.
            parallel_state.set_pipeline_model_parallel_rank(stage)
            if chunks:
                parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
            where = known_arguments(
                get_num_layers_to_build,
                vp_stage=chunk if chunks else None,
                pp_rank=stage,
            )
            counts.append(get_num_layers_to_build(model, **where))
        parallel_state.set_pipeline_model_parallel_rank(None)
    return counts


def start_schedule(world: int, model: Any, start: Initialize, **sizes: int) -> None:
    """Start the schedule of chunks on the first rank, up to its first forward pass."""
    chunks = model.virtual_pipeline_model_parallel_size
    if not chunks or getattr(model, "overlap_moe_expert_parallel_comm", False):
        return

    def forward(*_: Any, **__: Any) -> None:
        raise ForwardReachedError

    with as_rank(0, world), OnHost():
        start()
        model.overlap_p2p_comm = model.batch_p2p_comm = False
        try:
            schedules.forward_backward_pipelining_with_interleaving(
                forward_step_func=forward,
                data_iterator=[None] * chunks,
                model=[Chunk(model) for _ in range(chunks)],
                **sizes,
            )
        except ForwardReachedError:
            return
