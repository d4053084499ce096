"""What megatron-core makes of a recipe of Megatron Bridge, which is executed.

Called: ``TransformerConfig`` or ``MLATransformerConfig``,
``DistributedDataParallelConfig`` and ``OptimizerConfig`` with their checks,
``initialize_model_parallel`` on each rank, and what ``megatron_launch`` calls.
Stubbed: Megatron Bridge, whose classes here only keep what the recipe gives them.
"""

import re
import runpy
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from answering import Facts, answer_all
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import transformer_config
from megatron_launch import initialize, launch_facts

OF_ALL = ("mixed_precision", "comm_overlap")
"""Sections whose fields Megatron Bridge copies into the others' configurations."""


class Section:
    """A configuration of Megatron Bridge, which keeps what it is given."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self).setdefault(name, Section())


def recipe() -> Section:
    """Return the container that the recipe fills."""
    text = Path("recipe.py").read_text("utf-8")
    for name, kind in re.findall(
        r"^from (megatron\.bridge\S*) import (\w+)", text, re.M
    ):
        parts = name.split(".")
        for end in range(2, len(parts) + 1):
            package = ".".join(parts[:end])
            sys.modules.setdefault(package, ModuleType(package))
        setattr(sys.modules[name], kind, type(kind, (Section,), {}))
    filled: Section = runpy.run_path("recipe.py")["pretrain_config"]()
    return filled


def launch(world: int) -> Facts:
    """Configure what the recipe has, and return what it is."""
    job = recipe()
    is_latent = type(job.model).__name__ == "MLAModelProvider"
    kind = "MLATransformerConfig" if is_latent else "TransformerConfig"
    model = configured(getattr(transformer_config, kind), job, "model")
    ddp = configured(DistributedDataParallelConfig, job, "ddp")
    configured(OptimizerConfig, job, "optimizer")
    instances = vars(job.ddp).get("num_distributed_optimizer_instances", 1)
    inside = "use_tp_pp_dp_mapping" in vars(job.dist)
    return launch_facts(
        world,
        model,
        ddp,
        lambda: initialize(
            model,
            num_distributed_optimizer_instances=instances,
            order="tp-cp-ep-pp-dp" if inside else "tp-cp-ep-dp-pp",
        ),
        micro_batch_size=job.train.micro_batch_size,
        global_batch_size=job.train.global_batch_size,
        seq_length=job.model.seq_length,
        instances=instances,
        optimizer_part=vars(job.optimizer).get("optimizer_offload_fraction", 0.0),
    )


def configured(kind: type, job: Section, name: str) -> Any:
    """Return a configuration from its section, and what others have for it."""
    known = {field.name for field in fields(kind)}
    sections = (vars(getattr(job, section)) for section in (*OF_ALL, name))
    return kind(**{f: v for given in sections for f, v in given.items() if f in known})


if __name__ == "__main__":
    answer_all(launch)
