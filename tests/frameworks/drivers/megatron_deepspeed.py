"""What Megatron-DeepSpeed makes of a script and its JSON; takes a checkout of it.

Called: ``parse_args``, ``validate_args``, ``core_transformer_config_from_args`` and
``initialize_model_parallel`` of Megatron-DeepSpeed on each rank, the building of one
``ParallelTransformerLayer`` and of the layer specifications of ``GPTModelPipe``;
``DeepSpeedConfig``, ``ProcessTopology`` and ``PipelineModule._partition_layers`` (with
``partition_balanced``) of DeepSpeed. Stubbed: flash attention and fused accumulation,
which need a GPU; the building of a stage's modules.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, sys.argv.pop(1))

from answering import AT_END, Facts, all_groups, answer_all, as_rank, launched_words
from deepspeed import comm
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.topology import ProcessTopology
from megatron import arguments, global_vars
from megatron.core import parallel_state
from megatron.model import gpt_model, transformer

GROUPS = {
    "tp": parallel_state.get_tensor_model_parallel_group,
    "cp": parallel_state.get_sequence_parallel_group,
    "dp": parallel_state.get_data_parallel_group,
    "dp-cp": parallel_state.get_sequence_data_parallel_group,
    "pp": parallel_state.get_pipeline_model_parallel_group,
}


def launch(world: int) -> Facts:
    """Parse what the script starts, and return what it is."""
    args = parsed(launched_words("launch.sh", "pretrain_gpt.py"), world)

    def of_rank() -> Facts:
        start_rank(args)
        return {kind: group() for kind, group in GROUPS.items()}

    facts = all_groups(world, of_rank)
    with as_rank(0, world):
        start_rank(args)
        config = json.loads(Path("ds_config.json").read_text("utf-8"))
        sizes = DeepSpeedConfig(config, mpu=parallel_state)
        facts |= stages_of(args)
    return {
        **facts,
        "num_microbatches": sizes.gradient_accumulation_steps,
        "micro_batch_size": sizes.train_micro_batch_size_per_gpu,
        "global_batch_size": sizes.train_batch_size,
        "zero_stage": [int(sizes.zero_optimization_stage)],
        "sequence_parallel": bool(args.sequence_parallel),
        "context": ["a2a"] if args.ds_sequence_parallel_size > 1 else [],
    }


def parsed(words: list[str], world: int) -> Any:
    """Return the arguments, as the program would have them."""
    os.environ |= {"WORLD_SIZE": f"{world}", "RANK": "0", "LOCAL_RANK": "0"}
    sys.argv = ["pretrain_gpt.py", *words]
    args = arguments.parse_args()
    args.deepspeed_config_dict = {}
    arguments.validate_args(args)
    args.use_flash_attn = args.use_flash_attn_v1 = args.use_flash_attn_v2 = False
    args.gradient_accumulation_fusion = False
    args.padded_vocab_size = args.vocab_size
    args.use_cpu_initialization = True
    global_vars._GLOBAL_ARGS = args
    return args


def start_rank(args: Any) -> None:
    """Make the groups of this rank, as ``megatron/initialize.py`` does."""
    comm.comm.cdb = comm.comm.cdb or comm.comm.TorchBackend("fake", None, None)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.ds_sequence_parallel_size,
        args.virtual_pipeline_model_parallel_size,
        args.pipeline_model_parallel_split_rank,
        use_distributed_optimizer=args.use_distributed_optimizer,
    )


def forget_groups() -> None:
    """Forget the groups of this rank, those that its own code leaves, too."""
    parallel_state.destroy_model_parallel()
    for name in vars(parallel_state):
        if name.startswith("_SEQUENCE") or name == "_GLOBAL_MEMORY_BUFFER":
            setattr(parallel_state, name, None)


AT_END.append(forget_groups)


def stages_of(args: Any) -> Facts:
    """Build a block, and return how the pipeline shares out the blocks."""
    config = arguments.core_transformer_config_from_args(args)
    transformer.ParallelTransformerLayer(
        config, 0, self_attn_mask_type=transformer.AttnMaskType.causal
    )
    if args.no_pipeline_parallel:
        counted = args.recompute_granularity == "full" and args.recompute_method
        number = args.recompute_num_layers if counted == "block" else args.num_layers
        whole = counted or args.checkpoint_activations
        return {"blocks": [args.num_layers], "again whole": [number if whole else 0]}
    asked: dict[str, Any] = {}

    def record(_: Any, **options: Any) -> None:
        asked.update(options)

    with mock.patch.object(PipelineModule, "__init__", record):
        gpt_model.GPTModelPipe(config)
    stages = args.pipeline_model_parallel_size
    kinds = [getattr(spec, "typename", None) for spec in asked["layers"]]
    blocks = []
    for stage in range(stages):
        module: Any = SimpleNamespace(
            num_stages=stages,
            global_rank=stage,
            _layer_specs=list(asked["layers"]),
            _topo=ProcessTopology(axes=["pipe"], dims=[stages]),
            _set_bounds=mock.Mock(),
            loss_fn=None,
        )
        module._topo.get_coord = lambda rank: SimpleNamespace(pipe=rank)
        module._find_layer_type = lambda kind, module=module: (
            PipelineModule._find_layer_type(module, kind)
        )
        PipelineModule._partition_layers(module, method=asked["partition_method"])
        bounds = module._set_bounds.call_args.kwargs
        of_stage = kinds[bounds["start"] : bounds["stop"]]
        blocks.append(of_stage.count(gpt_model.ParallelTransformerLayerPipe))
    again = blocks if asked["activation_checkpoint_interval"] else [0] * stages
    return {"blocks": blocks, "again whole": again}


if __name__ == "__main__":
    answer_all(launch)
