"""Latent attention without what its kernels do beside, from rows as published."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")

import pandas as pd

from estimators.operators.shape_tables import GRIDS
from nestsim.features.calibration import mixers
from topologies.accelerators import load_accelerator

CHIP = load_accelerator("h100-sxm")
HEADS, LENGTH = 16, 8192


def rows(**changes: object) -> dict[str, object]:
    known = {"system": "h100_sxm", "kv_cache_dtype": "bfloat16", "batch_size": 1}
    return {**known, "isl": LENGTH, "num_heads": HEADS, **changes}


def test_keys_and_values_are_taken_off_kernels_that_make_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A product at the datasheet's rate, and a copy of the keys at the memory's."""
    up = 2.0 * LENGTH * HEADS * 256 * 512 / CHIP.peak_flops["bf16"] + 3e-6
    copied = 4.0 * LENGTH * HEADS * 192 / CHIP.memory_bandwidth
    alone = 2.0 * HEADS * LENGTH * (LENGTH + 1) / 2 * 320 / CHIP.peak_flops["bf16"]
    both = alone + up + copied + 3e-6
    table = pd.DataFrame(
        [
            rows(kernel_source="vllm_flash_attn_mla", latency_ms=1e3 * both),
            rows(kernel_source="default", latency_ms=2e3 * both),
            rows(kernel_source="flash_attention", latency_ms=1e-3),
        ]
    )
    monkeypatch.setattr(pd, "read_parquet", lambda _path: table)
    monkeypatch.setattr(mixers, "CHIPS", {"h100_sxm": "h100-sxm"})
    flat = np.zeros([len(axis) for axis in GRIDS["product"]])
    ((name, shapes),) = mixers.latent_shapes(Path(), {"product/h100-sxm/bf16": flat})
    assert name == "attention/h100-sxm/160/latent"
    assert shapes.logs == pytest.approx([0.0], abs=1e-9)
    blocks = HEADS * LENGTH / 128 / CHIP.num_compute_units
    assert shapes.sizes == pytest.approx(np.array([[blocks, LENGTH, 1.0]]))
