"""Rows of measurements to start from."""

from collections.abc import Mapping
from pathlib import Path

from nestsim.features.validation.columns import Row

GPT = {
    "row_id": "one",
    "source_key": "own",
    "accelerator": "A100-80GB-SXM",
    "num_devices": "16",
    "devices_per_node": "8",
    "intra_node_link": "NVLink3",
    "inter_node_net": "8x200 Gb/s HDR InfiniBand",
    "software": "Megatron-LM",
    "model": "GPT",
    "layers": "8",
    "hidden": "1024",
    "ffn": "4096",
    "heads": "16",
    "kv_heads": "16",
    "head_dim": "",
    "vocab": "51200",
    "seq_len": "1024",
    "num_experts": "",
    "gated_mlp": "no",
    "global_batch": "32",
    "micro_batch": "2",
    "tp": "2",
    "pp": "2",
    "vpp": "1",
    "dp": "4",
    "cp": "1",
    "sequence_parallel": "no",
    "zero_or_fsdp": "none",
    "recompute": "full",
    "precision": "fp16",
    "flash_attention": "no",
    "iter_time_s": "0.25",
}
"""A row about time in which nothing is left open but dropout and optimizer."""

MEMORY = {
    **{name: text for name, text in GPT.items() if name != "iter_time_s"},
    "where": "stage 0",
    "metric": "torch max allocated",
    "value_gib": "3.5",
    "unit": "GiB",
}
"""A row about memory."""


def gpt(**changed: str) -> Row:
    """Return the row about time with other cells."""
    return _row({**GPT, **changed})


def memory(**changed: str) -> Row:
    """Return the row about memory with other cells."""
    return _row({**MEMORY, **changed})


def _row(values: Mapping[str, str]) -> Row:
    return Row(row_id=values["row_id"], source=values["source_key"], values=values)


def write_csv(path: Path, *rows: Mapping[str, str]) -> Path:
    """Write rows with the columns of the first one."""
    lines = [",".join(rows[0])] + [",".join(row.values()) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
