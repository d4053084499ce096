"""The groups of Megatron Core's ranks, by its own program: started as a script.

Reads a list of arguments of ``initialize_model_parallel``, and how many of them are run
over gloo as well; writes the groups of each rank, by kind. For gloo each rank is a
process. Else there is one process with a process group that only keeps books, which is
torch's own for tests: groups of gloo keep their threads, and forty plans are hundreds
of groups.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

WORLD = 8
"""Ranks."""

Groups = dict[str, list[int]]


def rank_groups(parallel_state: Any, arguments: dict[str, Any]) -> Groups:
    """Return the groups that this rank is in."""
    from torch.distributed import get_process_group_ranks

    parallel_state.initialize_model_parallel(
        **arguments, create_gloo_process_groups=False
    )
    found = {
        "tp": parallel_state.get_tensor_model_parallel_group(),
        "cp": parallel_state.get_context_parallel_group(),
        "dp": parallel_state.get_data_parallel_group(),
        "dp-cp": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "ep": parallel_state.get_expert_model_parallel_group(),
        "etp": parallel_state.get_expert_tensor_parallel_group(),
        "expert dp": parallel_state.get_expert_data_parallel_group(),
        "pp": parallel_state.get_pipeline_model_parallel_group(),
    }
    ranks = {name: get_process_group_ranks(group) for name, group in found.items()}
    parallel_state.destroy_model_parallel()
    return ranks


def in_books(parallel_state: Any, arguments: dict[str, Any]) -> list[Groups]:
    """Return the groups of all ranks, one after another in this process."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = []
    for rank in range(WORLD):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=WORLD)
        found.append(rank_groups(parallel_state, arguments))
        dist.destroy_process_group()
    return found


def over_gloo(parallel_state: Any, arguments: dict[str, Any]) -> list[Groups]:
    """Return the groups of all ranks, each in a process of its own."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                try:
                    store = f"file://{folder}/store"
                    dist.init_process_group("gloo", store, rank=rank, world_size=WORLD)
                    found = rank_groups(parallel_state, arguments)
                    Path(folder, f"{rank}").write_text(json.dumps(found), "utf-8")
                    dist.destroy_process_group()
                finally:
                    os._exit(0)  # what is missing is seen below
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return [
            json.loads(Path(folder, f"{rank}").read_text("utf-8"))
            for rank in range(WORLD)
        ]


def main() -> None:
    """Read what is asked for, and write what is found."""
    asked = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state

    plans = asked["plans"]
    found = {
        "books": [in_books(parallel_state, plan) for plan in plans],
        "gloo": [over_gloo(parallel_state, plan) for plan in plans[: asked["gloo"]]],
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
