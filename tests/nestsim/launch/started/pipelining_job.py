"""A pipeline of torch as a plan has it, on gloo: started by torchrun.

Takes ``groups.json``, whose ranks are stages of one pipeline. Each virtual stage is as
many small blocks as were priced; a hook counts what passes through each, forward and
backward, and it is written into the folder of the variable ``SEEN``.
"""

import json
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleInterleaved1F1B,
)

WIDTH = 4


def count_pass(passes: Counter[str], name: str, *_: object) -> None:
    """Count what passes through a block."""
    passes[name] += 1


def main() -> None:
    """Run two steps, and write what was counted in the second."""
    priced = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    blocks, batch = priced["blocks"], priced["batch"]
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    passes: Counter[str] = Counter()
    made = []
    for place in range(rank, len(blocks), stages):
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(blocks[place])]
        for number, layer in enumerate(layers):
            name = f"{place}.{number}"
            layer.register_forward_hook(partial(count_pass, passes, f"f{name}"))
            layer.register_full_backward_hook(partial(count_pass, passes, f"b{name}"))
        cpu = torch.device("cpu")
        made.append(PipelineStage(nn.Sequential(*layers), place, len(blocks), cpu))
    count = batch["num_microbatches"]
    if len(made) == 1:
        schedule = Schedule1F1B(made[0], count, loss_fn=nn.functional.mse_loss)
    else:
        schedule = ScheduleInterleaved1F1B(made, count, loss_fn=nn.functional.mse_loss)
    rows = batch["micro_batch_size"] * count
    inputs = (torch.ones(rows, WIDTH),) if rank == 0 else ()
    last = (len(blocks) - 1) % stages == rank
    losses: list[torch.Tensor] = []
    target = torch.zeros(rows, WIDTH) if last else None
    for _ in range(2):  # the first one begins with a trial of shapes
        passes.clear()
        losses.clear()
        schedule.step(*inputs, target=target, losses=losses if last else None)
    seen = {"passes": passes, "losses": len(losses)}
    path = Path(os.environ["SEEN"], f"{rank}.json")
    path.write_text(json.dumps(seen), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
