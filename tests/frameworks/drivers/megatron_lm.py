"""What Megatron-LM's own arguments make of a script; takes a checkout of it.

Called, of the checkout: ``parse_args``, ``validate_args``,
``core_transformer_config_from_args``, ``OptimizerConfig`` of the arguments that have
its fields' names, as ``training.py`` makes it, ``_initialize_distributed`` on each
rank, and what ``megatron_launch`` calls. Stubbed: Triton; properties of the GPU, which
are those of a node of eight H100s; ``torch.compile``; the rank before there are groups.
"""

import importlib.machinery
import os
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

CHECKOUT = sys.argv[1] if len(sys.argv) > 1 else "."
sys.path.insert(0, CHECKOUT)


def stand_in(name: str) -> None:
    """Let a package be imported that needs a GPU to be installed."""
    module = MagicMock(name=name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__version__ = "3.4.0"
    module.jit = lambda function=None, **_: function or (lambda later: later)
    sys.modules[name] = module


for package in ("triton", "triton.language"):
    stand_in(package)
H100 = SimpleNamespace(
    major=9, minor=0, multi_processor_count=132, total_memory=80 * 2**30
)
torch.cuda.get_device_properties = lambda *_: H100
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_name = lambda *_: "NVIDIA H100"
torch.cuda.device_count = lambda: 8
torch.cuda.current_device = lambda: "cpu"
torch.cuda.set_device = lambda *_: None
torch.Tensor.cuda = lambda tensor: tensor
torch.compile = lambda function=None, **_: function or (lambda later: later)
ASKED_RANK = torch.distributed.get_rank
torch.distributed.get_rank = lambda group=None: (
    ASKED_RANK(group) if torch.distributed.is_initialized() else 0
)

from answering import Facts, answer_all, launched_words  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.training import arguments, global_vars, initialize  # noqa: E402
from megatron_launch import known_arguments, launch_facts  # noqa: E402

Options = dict[str, list[str]]
SOURCE = Path(arguments.__file__).read_text("utf-8")
WITHOUT_WEIGHT = ("attention-backend", "softmax-type", "moe-router-dtype")
"""Options that no rule is about, left out where they are not known."""


def is_known(name: str) -> bool:
    """Return whether this release has an option; newest ones make them of fields."""
    return "ArgumentGroupFactory" in SOURCE or f"'--{name}'" in SOURCE


def spelled(script: list[str]) -> list[str]:
    """Return words as this release spells them; nestsim writes those of Core 0.16."""
    options: Options = {}
    for word in script:
        if word.startswith("--"):
            words = options.setdefault(word.removeprefix("--"), [])
        else:
            words.append(word)
    older = older_options(options)
    for name in [name for name in options if name in older and not is_known(name)]:
        del options[name]
        options |= older[name]
    if "fsdp_dtensor" not in SOURCE:
        options.pop("ckpt-format", None)
    return [word for name, words in options.items() for word in (f"--{name}", *words)]


def older_options(options: Options) -> dict[str, Options]:
    """Return what options were before there were such, none where nothing else was."""
    tp = options.get("tensor-model-parallel-size", ["1"])
    stages = int(options.get("pipeline-model-parallel-size", ["1"])[0])
    chunks = int(options.get("num-virtual-stages-per-pipeline-rank", ["1"])[0])
    number = max(int(options["num-layers"][0]) // (stages * chunks), 1)
    flex: Options = {"moe-token-dispatcher-type": ["alltoall"]}
    usual = {
        "cp-comm-type": ["p2p"],
        "expert-tensor-parallel-size": tp,
        "moe-ffn-hidden-size": options["ffn-hidden-size"],
    }
    return {
        **{name: {} for name in WITHOUT_WEIGHT},
        **{name: {} for name, words in usual.items() if options.get(name) == words},
        "use-megatron-fsdp": {"use-custom-fsdp": []},
        "moe-flex-dispatcher-backend": (
            {"moe-enable-deepep": []} if is_known("moe-enable-deepep") else flex
        ),
        "num-virtual-stages-per-pipeline-rank": {
            "num-layers-per-virtual-pipeline-stage": [str(number)]
        },
    }


def launch(world: int) -> Facts:
    """Parse, check and start what the script starts, and return what it is."""
    os.environ |= {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0"}
    words = launched_words("launch.sh", "pretrain_gpt.py")
    sys.argv = ["pretrain_gpt.py", *spelled(words)]
    args = arguments.parse_args()
    args = arguments.validate_args(args, {}) or args
    model = arguments.core_transformer_config_from_args(args)
    of_optimizer = (field.name for field in fields(OptimizerConfig))
    OptimizerConfig(**{n: getattr(args, n) for n in of_optimizer if hasattr(args, n)})
    global_vars._GLOBAL_ARGS = args
    start = initialize._initialize_distributed
    names = ("get_embedding_ranks", "get_position_embedding_ranks", "store")
    offloads = getattr(args, "optimizer_cpu_offload", False)
    return launch_facts(
        world,
        model,
        args,
        lambda: start(**known_arguments(start, **dict.fromkeys(names))),
        micro_batch_size=args.micro_batch_size,
        global_batch_size=args.global_batch_size,
        seq_length=args.seq_length,
        instances=getattr(args, "num_distributed_optimizer_instances", 1),
        optimizer_part=args.optimizer_offload_fraction if offloads else 0.0,
    )


if __name__ == "__main__":
    answer_all(launch)
