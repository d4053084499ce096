"""What DeepSpeed makes of a launch: started by torchrun on gloo.

Stands in for Megatron-DeepSpeed's ``pretrain_gpt.py``: DeepSpeed's own pipeline module
of as many small blocks as the model has, and its engine with the JSON of the launch.
Writes stages, batch and groups into the folder of the variable ``SEEN``.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 4


class ParallelTransformerLayer(nn.Linear):
    """A block: DeepSpeed shares them out by their name (``type:transformer``)."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)


def main() -> None:
    """Start the engine, and write what it has."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("tensor-model", "pipeline-model"):
        parser.add_argument(f"--{name}-parallel-size", type=int, default=1)
    parser.add_argument("--num-layers", type=int, required=True)
    parser.add_argument("--deepspeed_config", required=True)
    asked, _ = parser.parse_known_args()
    tp, pp = asked.tensor_model_parallel_size, asked.pipeline_model_parallel_size
    deepspeed.init_distributed("gloo")
    dp = dist.get_world_size() // (tp * pp)
    model = PipelineModule(
        layers=[LayerSpec(ParallelTransformerLayer) for _ in range(asked.num_layers)],
        topology=PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp),
        loss_fn=nn.functional.mse_loss,
        partition_method="type:transformer",
    )
    config = json.loads(Path(asked.deepspeed_config).read_text(encoding="utf-8"))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        config=config,
    )
    grid = engine.grid
    seen = {
        "groups": {
            "tp": list(grid.slice_group),
            "dp": list(grid.dp_group),
            "pp": list(grid.pp_group),
        },
        "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
        "num_microbatches": engine.micro_batches,
        "global_batch_size": engine.train_batch_size(),
        "stage": engine.stage_id,
        "blocks": len(model.forward_funcs),
    }
    path = Path(os.environ["SEEN"], f"{dist.get_rank()}.json")
    path.write_text(json.dumps(seen), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
