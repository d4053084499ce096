"""The bytes of a parameter, one by one."""

import itertools

from estimators.training import OPTIMIZER_BYTES, OPTIMIZER_STATES, TrainingSpec
from tests import failures


def every_spec():
    for (optimizer, copied), gradients, copies, casts in itertools.product(
        OPTIMIZER_BYTES, ("fp32", "bf16"), (False, True), (False, True)
    ):
        for precision, kept in (("bf16", False), ("bf16", True), ("fp32", False)):
            if (precision != "fp32" and not kept) is copied:
                yield TrainingSpec(
                    global_batch_size=1,
                    optimizer=optimizer,
                    precision=precision,
                    weights_in_fp32=kept,
                    gradient_precision=gradients,
                    gradient_copies=copies,
                    casts_gradients=casts,
                )


def test_items_add_up_to_the_bytes_of_every_part():
    for spec in every_spec():
        parts = spec.parameter_bytes
        for part in ("weights", "gradients", "optimizer", "copies"):
            items = [item for item in spec.parameter_items if item.part == part]
            assert sum(item.num_bytes for item in items) == getattr(parts, part)
        assert all(item.reason for item in spec.parameter_items)


@failures.over(
    ("settings", "expected"),
    [
        # ZeRO (Rajbhandari et al., 2020), section 3.1: 2 + 2 + 12.
        ({"gradient_precision": "bf16"}, (2, 2, 12, 0)),
        # Megatron-LM: gradients in fp32, 18 bytes.
        ({}, (2, 4, 12, 0)),
        # DeepSpeed's ZeRO: 16 bytes, and 6 for its step.
        ({"gradient_precision": "bf16", "gradient_copies": True}, (2, 2, 12, 6)),
        ({"gradient_copies": True}, (2, 6, 12, 0)),
        ({"gradient_precision": "bf16", "casts_gradients": True}, (2, 2, 12, 4)),
        ({"weights_in_fp32": True}, (4, 4, 8, 0)),
        ({"precision": "fp32", "gradient_precision": "bf16"}, (4, 4, 8, 0)),
    ],
)
def test_bytes_of_frameworks(settings, expected):
    spec = TrainingSpec(global_batch_size=1, **settings)
    parts = spec.parameter_bytes
    found = (parts.weights, parts.gradients, parts.optimizer, parts.copies)
    assert found == expected


def test_states_have_distinct_names():
    for states in OPTIMIZER_STATES.values():
        assert len({name for name, _ in states}) == len(states)
