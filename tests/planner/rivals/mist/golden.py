"""Mist's own answers, and its inputs for GPT-1.3B on L4 as profiles."""

import csv
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from planner.rivals.mist.cluster import (
    GIGABYTE,
    PCIE_FACTORS,
    DeviceRates,
    HostTransfers,
    LayerProfile,
    LinkTable,
    Mesh,
    ModelProfile,
)
from planner.rivals.mist.stage_costs import Strategies

FOLDER = Path(__file__).parents[5] / "shared" / "data" / "mist"

needs_golden = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no ../shared golden values of Mist here"
)

MB = 2.0**20

L4_MEMORY = 22.488 * 2.0**30
"""Memory of an L4 as Mist has it [byte]."""

_PAIRS = np.array(
    [
        *(4.5, 0.0, 2.964, 0.0001, 4.1635, 0.0004, 4.6832, 0.0003),
        *(0.4895, 0.0045, 0.9791, 0.0076, 1.7183, 0.0, 3.3215, 0.0013),
        *(0.4609, 0.0102, 0.9195, 0.0008, 1.6759, 0.0045, 2.9659, 0.003),
        *(4.5, 0.0, 4.5, 0.0, 4.5, 0.0, 4.5, 0.0),
    ]
).reshape(4, 4, 2)
"""Mist's link table of L4 machines, pairs of gigabytes a second and seconds:
specs/baselines.md, section 5.8."""

L4 = DeviceRates(
    links=LinkTable(_PAIRS[..., 0] * GIGABYTE, _PAIRS[..., 1].copy()),
    interference=PCIE_FACTORS,
    host=HostTransfers(
        to_device=5.7546 * GIGABYTE,
        to_host=6.1252 * GIGABYTE,
        to_device_bias=0.0004,
        to_host_bias=0.0004,
    ),
)


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a golden file."""
    with (FOLDER / name).open() as file:
        return list(csv.DictReader(file))


@cache
def _inputs():
    return json.loads((FOLDER / "mist_golden_inputs.json").read_text())


def _layer(data) -> LayerProfile:
    def size(name: str) -> float:
        return (data[name] or 0.0) * MB

    return LayerProfile(
        forward_time=data["fwd_s"],
        backward_time=data["bwd_s_excl_grad_accum"],
        accumulation_time=data["grad_accum_add_s"],
        weights=size("weights_MB"),
        gradients=size("grads_MB"),
        optimizer=size("opts_MB"),
        saved=size("saved_nockpt_MB"),
        saved_recomputed=size("saved_ckpt_MB"),
        forward_peak=size("fwd_peak_MB"),
        backward_peak=size("bwd_peak_MB"),
        output=size("output_MB"),
    )


@cache
def profile(micro_batch_size: int, *, flash: bool = False) -> ModelProfile:
    """Return GPT-1.3B as Mist's analyzer saw it on an L4."""
    data = _inputs()[f"flash={flash},b={micro_batch_size}"]
    maps = 0.0 if flash else 2.0 * micro_batch_size * 16 * 2048**2
    return ModelProfile(
        embedding=_layer(data["pre"]),
        block=_layer(data["block"]),
        head=_layer(data["post"]),
        num_layers=24,
        hidden_size=2048,
        seq_length=2048,
        micro_batch_size=micro_batch_size,
        tensor_size=1,
        attention_maps=maps,
    )


class GoldenStage(NamedTuple):
    """One row of the golden stage costs, and what it asks for."""

    row: dict[str, str]
    profile: ModelProfile
    mesh: Mesh
    replicas: int
    strategies: Strategies

    def number(self, name: str) -> int:
        return int(self.row[name])

    @classmethod
    def of(cls, row: dict[str, str]) -> "GoldenStage":
        b, dp, tp, *told = json.loads(row["strategy"])
        assert tp == 1
        return cls(
            row,
            profile(b, flash=row["flash"] == "True"),
            Mesh(int(row["nodes"]), int(row["gpus_per_node"])),
            dp,
            Strategies.of_rows(np.array([told])),
        )
