"""Small files with several jobs: two nodes of two devices below each leaf."""

import copy
from typing import Any

MODEL = {
    "family": "gpt",
    "hidden_size": 256,
    "ffn_hidden_size": 1024,
    "num_layers": 2,
    "num_attention_heads": 4,
    "sequence_length": 128,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}

NETWORK = {
    "kind": "spine-leaf",
    "devices_per_node": 2,
    "node_bandwidth": "450 GB/s",
    "node_latency": "500 ns",
    "nic": "device",
    "nic_bandwidth": "400 Gbit/s",
    "nic_latency": "1 us",
    "nodes_per_leaf": 2,
    "num_leaves": 4,
    "num_spines": 2,
    "spine_latency": "500 ns",
    "oversubscription": 2.0,
}

PLAN = {"tensor_model_parallel_size": 2, "micro_batch_size": 1}


def job(name: str, devices: str | int, **settings: Any) -> dict[str, Any]:
    """Return a job on devices, or on so many."""
    where = "devices" if isinstance(devices, str) else "num_devices"
    return {"name": name, where: devices, **settings}


def document(*jobs: dict[str, Any], **tables: Any) -> dict[str, Any]:
    """Return a file with jobs on a small cluster."""
    return copy.deepcopy(
        {
            "name": "small",
            "model": MODEL,
            "training": {"global_batch_size": 8},
            "software": {"preset": "ideal"},
            "cluster": {"accelerator": "h100-sxm", "network": NETWORK},
            "plan": PLAN,
            **tables,
            "jobs": list(jobs),
        }
    )
