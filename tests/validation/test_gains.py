"""How far predictions of one job under two settings are off, on public runs."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nestsim
from nestsim.features.advise.job import GAIN_ERROR

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "measurements" / "throughput.csv"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_file(), reason="needs the public measurements"),
]

JOB = [
    *("source_key", "accelerator", "num_devices", "devices_per_node"),
    *("intra_node_link", "inter_node_net", "software", "model", "layers", "hidden"),
    *("vocab", "seq_len", "global_batch", "precision"),
]
"""Columns that are the job and its machines."""

SETTINGS = [
    *("micro_batch", "tp", "pp", "vpp", "cp", "ep", "sequence_parallel"),
    *("zero_or_fsdp", "recompute"),
]
"""Columns that somebody may set otherwise."""


def test_the_band_of_gains_is_that_of_public_pairs() -> None:
    """Pairs that differ in up to three settings; each source counts alike."""
    predicted = nestsim.validate(DATA).to_frame()
    rows = predicted[predicted.status == "scored"].merge(
        pd.read_csv(DATA, dtype=str).fillna("-"), on="row_id", suffixes=("_v", "")
    )
    errors: dict[str, list[float]] = {}
    for _, group in rows.groupby(JOB):
        for (_, first), (_, second) in combinations(group.iterrows(), 2):
            changes = sum(first[name] != second[name] for name in SETTINGS)
            gain = np.log(first.predicted / second.predicted)
            if 1 <= changes <= 3 and abs(gain) < 0.3:
                measured = np.log(first.measured / second.measured)
                errors.setdefault(first.source_key, []).append(abs(gain - measured))
    assert len(errors) >= 8
    every = np.concatenate(list(errors.values()))
    weights = np.concatenate([np.full(len(e), 1 / len(e)) for e in errors.values()])
    order = np.argsort(every)
    shares = np.cumsum(weights[order]) / weights.sum()
    width = every[order][np.searchsorted(shares, 0.8)]
    assert width == pytest.approx(GAIN_ERROR, rel=0.15)
