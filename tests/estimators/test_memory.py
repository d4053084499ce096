"""Bytes of a parameter, and what an optimizer step moves."""

from estimators.platform import optimizer_step_bytes
from estimators.training import TrainingSpec
from tests import failures


@failures.over(
    ("job", "expected"),
    [
        ({}, (2, 4, 12, 2, 4)),
        ({"gradient_precision": "bf16"}, (2, 2, 12, 2, 2)),
        ({"precision": "fp32"}, (4, 4, 8, 4, 4)),
        ({"optimizer": "sgd"}, (2, 4, 8, 2, 4)),
        ({"optimizer": "adam-bf16", "gradient_precision": "bf16"}, (2, 2, 4, 2, 2)),
        # FSDP: a copy in fp32 is what is sharded, bf16 is what is sent.
        ({"weights_in_fp32": True}, (4, 4, 8, 2, 4)),
        ({"weights_in_fp32": True, "gather_precision": "fp32"}, (4, 4, 8, 4, 4)),
        ({"gather_precision": "fp8", "reduce_precision": "bf16"}, (2, 4, 12, 1, 2)),
        # Weights that are in fp32 anyway have no copy to do without.
        ({"precision": "fp32", "weights_in_fp32": True}, (4, 4, 8, 4, 4)),
    ],
)
def test_bytes_per_parameter(job, expected):
    assert TrainingSpec(global_batch_size=1, **job).parameter_bytes[:5] == expected


def test_an_adam_step_moves_thirty_bytes_per_parameter():
    assert optimizer_step_bytes(TrainingSpec(global_batch_size=1).parameter_bytes) == 30
