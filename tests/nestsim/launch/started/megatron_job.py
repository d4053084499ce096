"""What Megatron Core makes of the options that a launch gives it: started by torchrun.

Stands in for ``pretrain_gpt.py``: reads the options that say how ranks share the work,
makes the groups and the microbatches, counts the blocks of each chunk, and writes them
into the folder of the variable ``SEEN``.
"""

import argparse
import json
import os
import warnings
from pathlib import Path
from typing import Any


def options() -> argparse.Namespace:
    """Return the options that matter here, under the names of Megatron-LM."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    sizes = ("tensor-model", "pipeline-model", "context", "expert-model")
    for name in sizes:
        parser.add_argument(f"--{name}-parallel-size", type=int, default=1)
    for name in (
        *("expert-tensor-parallel-size", "num-virtual-stages-per-pipeline-rank"),
        *("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"),
    ):
        parser.add_argument(f"--{name}", type=int)
    for name in (
        *("num-layers", "hidden-size", "num-attention-heads"),
        *("micro-batch-size", "global-batch-size"),
    ):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--use-tp-pp-dp-mapping", action="store_true")
    return parser.parse_known_args()[0]


def main() -> None:
    """Make everything, and write it."""
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist
    from megatron.core import num_microbatches_calculator as batches
    from megatron.core import parallel_state as state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    asked = options()
    dist.init_process_group("gloo")
    state.initialize_model_parallel(
        tensor_model_parallel_size=asked.tensor_model_parallel_size,
        pipeline_model_parallel_size=asked.pipeline_model_parallel_size,
        context_parallel_size=asked.context_parallel_size,
        expert_model_parallel_size=asked.expert_model_parallel_size,
        expert_tensor_parallel_size=asked.expert_tensor_parallel_size,
        order="tp-cp-ep-pp-dp" if asked.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        create_gloo_process_groups=False,
    )
    chunks = asked.num_virtual_stages_per_pipeline_rank
    config = TransformerConfig(
        num_layers=asked.num_layers,
        hidden_size=asked.hidden_size,
        num_attention_heads=asked.num_attention_heads,
        pipeline_model_parallel_size=asked.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=chunks,
        pipeline_dtype=torch.float32,
        num_layers_in_first_pipeline_stage=asked.decoder_first_pipeline_num_layers,
        num_layers_in_last_pipeline_stage=asked.decoder_last_pipeline_num_layers,
    )
    stage = state.get_pipeline_model_parallel_rank()
    batches.init_num_microbatches_calculator(
        dist.get_rank(),
        None,
        asked.global_batch_size,
        asked.micro_batch_size,
        state.get_data_parallel_world_size(),
    )
    groups: dict[str, Any] = {
        "tp": state.get_tensor_model_parallel_group(),
        "cp": state.get_context_parallel_group(),
        "dp": state.get_data_parallel_group(),
        "dp-cp": state.get_data_parallel_group(with_context_parallel=True),
        "ep": state.get_expert_model_parallel_group(),
        "etp": state.get_expert_tensor_parallel_group(),
        "expert dp": state.get_expert_data_parallel_group(),
        "pp": state.get_pipeline_model_parallel_group(),
    }
    seen = {
        "groups": {
            kind: dist.get_process_group_ranks(group) for kind, group in groups.items()
        },
        "num_microbatches": batches.get_num_microbatches(),
        "stage": stage,
        "blocks": [
            get_num_layers_to_build(config, chunk if chunks else None, stage)
            for chunk in range(chunks or 1)
        ],
    }
    path = Path(os.environ["SEEN"], f"{dist.get_rank()}.json")
    path.write_text(json.dumps(seen), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
