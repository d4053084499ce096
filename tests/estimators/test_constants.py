"""Constants: sources, names by their longest prefix, and values of a refit."""

from dataclasses import asdict, fields

from estimators.constants import (
    AcceleratorConstants,
    AllocatorConstants,
    SoftwareConstants,
    constant_entries,
    load_constants,
)
from estimators.operators.shape_tables import measured_relative
from planner.frameworks.framework import PRESETS
from tests import failures
from topologies.accelerators import accelerator_names, load_accelerator

KNOWN = load_constants()
SECTIONS = {
    "accelerator": AcceleratorConstants,
    "software": SoftwareConstants,
    "allocator": AllocatorConstants,
}


@failures.over("name", constant_entries())
def test_every_constant_has_a_value_and_a_source_and_a_name_that_is_read(name):
    entry = constant_entries()[name]
    group, _, constant = name.split(".")
    assert constant in {field.name for field in fields(SECTIONS[group])}
    assert entry["value"] >= 0
    assert entry["source"].strip()
    assert KNOWN.values[name] == entry["value"]


@failures.over(
    ("group", "constant"),
    [(group, field.name) for group, kind in SECTIONS.items() for field in fields(kind)],
)
def test_what_nothing_else_says_the_default_does(group, constant):
    assert f"{group}.default.{constant}" in KNOWN.values


def test_what_is_said_of_no_accelerator_of_the_catalogue_is_not_there():
    names = {name.split(".")[1] for name in KNOWN.values if name.startswith("acc")}
    presets = [preset.software.name for preset in PRESETS.values()]
    for name in names - {"default"}:
        prefix, _, software = name.partition("-with-")
        assert any(name.startswith(prefix) for name in accelerator_names()), name
        assert any(name.startswith(software) for name in presets), name


@failures.over("name", accelerator_names())
def test_no_accelerator_exceeds_isolated_kernels_by_much(name):
    """A chip that borrows tables may be better than the relative that has them."""
    device = load_accelerator(name)
    reached = KNOWN.accelerator(device.constants_name)
    owns_tables = measured_relative(device.constants_name) == device.constants_name
    for field in fields(reached):
        value = getattr(reached, field.name)
        assert 0.1 < value < (1.1 if owns_tables else 1.5), (field.name, value)


def test_the_longest_prefix_counts_constant_by_constant():
    named = KNOWN.replaced(
        {
            "accelerator.x.matmul": 0.5,
            "accelerator.x1.matmul": 0.25,
            "accelerator.x.memory": 0.75,
        }
    )
    assert named.accelerator("x10").matmul == 0.25
    assert named.accelerator("x10").memory == 0.75
    assert named.accelerator("x2").matmul == 0.5
    default = KNOWN.accelerator("default")
    assert named.accelerator("x10").flash_attention == default.flash_attention
    assert named.accelerator("y") == default


def test_a_framework_of_other_kernels_has_constants_of_its_own():
    named = KNOWN.replaced(
        {
            "accelerator.x.matmul": 0.5,
            "accelerator.x.memory": 0.75,
            "accelerator.x-with-fsdp.matmul": 0.25,
            "accelerator.x1.memory": 0.875,
        }
    )
    assert named.accelerator("x1").matmul == 0.5
    assert named.accelerator("x1", "fsdp").matmul == 0.25
    assert named.accelerator("x1", "fsdp-torchtitan").matmul == 0.25
    assert named.accelerator("x1", "megatron-core").matmul == 0.5
    assert named.accelerator("x1", "fsdp").memory == 0.875


def test_the_catalogue_has_names_that_share_constants():
    assert KNOWN.accelerator("gb200") == KNOWN.accelerator("gb200-nvl72")
    assert KNOWN.accelerator("tpu-v5p") != KNOWN.accelerator("tpu-v5e")
    assert KNOWN.accelerator("something else") == KNOWN.accelerator("default")


def test_replacing_leaves_the_shipped_ones_and_all_others_alone():
    changed = KNOWN.replaced({"software.default.layer_gap": 7.0})
    assert changed.software("anything").layer_gap == 7.0
    assert load_constants().software("anything").layer_gap != 7.0
    rest = {
        k: v for k, v in changed.values.items() if k != "software.default.layer_gap"
    }
    assert rest == {k: KNOWN.values[k] for k in rest}
    assert len(rest) == len(KNOWN.values) - 1


def test_an_ideal_host_takes_no_time_and_fuses_nothing():
    ideal = KNOWN.software("ideal")
    kept = {"elementwise_traffic", "score_traffic", "loss_traffic"}
    kept |= {"unaligned_slowdown", "unaligned_weight_slowdown"}
    kept |= {"kernels_per_expert"}
    for field in fields(ideal):
        assert getattr(ideal, field.name) == (1.0 if field.name in kept else 0.0)


def test_ideal_memory_holds_tensors_and_nothing_else():
    held = asdict(KNOWN.allocator("ideal"))
    assert held.pop("tensors") == 1.0
    assert set(held.values()) == {0.0}
