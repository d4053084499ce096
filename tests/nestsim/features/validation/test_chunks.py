"""What chunks gain, against runs that differ by nothing else.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), tables 3
and 4: Megatron-LM on 8 to 32 A100-80GB, a device for each stage, 1F1B beside
interleaved 1F1B with each block a chunk; embedding and head count as a block each. That
scores are kept follows from the memory that they print; the fabric is assumed to be an
adapter of 200 Gb/s for each device.
"""

import numpy as np
import pytest

from nestsim.features.validation.case import read_case
from nestsim.features.validation.predict import Predictor
from tests.nestsim.features.validation.validation_rows import gpt

# Blocks, heads, hidden size, stages, sequences of a microbatch.
MODELS = {
    "1.5B": (22, 24, 2304, 8, 6),
    "6.2B": (30, 32, 4096, 8, 3),
    "14.6B": (46, 40, 5120, 16, 1),
    "28.3B": (62, 48, 6144, 32, 1),
}

# Microbatches -> samples a second and device of 1F1B, and with chunks.
RATES = {
    "1.5B": {24: (11.8, 13.1), 32: (12.5, 13.4), 64: (13.6, 13.9)},
    "6.2B": {24: (3.50, 4.01), 32: (3.70, 4.08), 64: (4.03, 4.19)},
    "14.6B": {48: (1.40, 1.54), 64: (1.49, 1.59), 128: (1.64, 1.66)},
    "28.3B": {96: (0.76, 0.82), 128: (0.80, 0.85), 256: (0.88, 0.90)},
}


def run(name, microbatches, vpp):
    """Return the row of a model in a pipeline with so many chunks a stage."""
    blocks, heads, hidden, stages, size = MODELS[name]
    sizes = {
        "num_devices": stages,
        "layers": blocks,
        "hidden": hidden,
        "ffn": 4 * hidden,
        "heads": heads,
        "kv_heads": heads,
        "global_batch": microbatches * size,
        "micro_batch": size,
        "tp": 1,
        "pp": stages,
        "vpp": vpp,
        "dp": 1,
    }
    texts = {column: str(value) for column, value in sizes.items()}
    return gpt(recompute="none", **texts)


@pytest.fixture(scope="module")
def gains():
    """Return what chunks gain, measured and predicted, of each pair of runs."""
    predictor, found = Predictor(), []
    for name, (blocks, _, _, stages, _) in MODELS.items():
        for microbatches, (before, after) in RATES[name].items():
            plain, chunked = (
                predictor.planned_time(read_case(run(name, microbatches, vpp)))
                for vpp in (1, (blocks + 2) // stages)
            )
            found.append((after / before, plain / chunked))
    return np.log(found)


def test_chunks_of_one_block_gain_what_they_gained(gains):
    errors = gains[:, 1] - gains[:, 0]
    assert np.abs(errors).max() < 0.025
    assert np.abs(errors).mean() < 0.012
    assert abs(errors.mean()) < 0.005


def test_runs_that_gained_more_gain_more_as_predicted(gains):
    assert np.corrcoef(gains.T)[0, 1] > 0.95
