"""Capacities of experts in launches, and assumptions about tokens that none needs."""

from pathlib import Path
from typing import Any

import pytest

from nestsim.launch.formats.deepspeed.writing import write_deepspeed
from nestsim.launch.formats.maxtext.writing import write_maxtext
from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.formats.megatron.writing import (
    SCRIPT,
    write_megatron,
    write_megatron_bridge,
)
from nestsim.launch.formats.torchtitan.writing import write_torchtitan
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import LaunchSource
from tests import failures
from tests.nestsim.launch.megatron.small import small_scenario

CAPACITY = {
    "moe_expert_capacity_factor": 1.25,
    "moe_pad_expert_input_to_capacity": True,
}
UNEVEN = {"moe_routing": "power-law", "moe_routing_exponent": 1.2}
DOCUMENTS = {"documents": "fixed", "document_length": 100}
WRITERS = {
    "Megatron-LM": write_megatron,
    "Megatron Bridge": write_megatron_bridge,
    "DeepSpeed": write_deepspeed,
    "torchtitan": write_torchtitan,
    "MaxText": write_maxtext,
}


def gaps(writer: str, model: dict[str, Any]) -> set[str]:
    job = LaunchJob.of(small_scenario({}, model=model))
    return {gap.setting.rpartition(".")[2] for gap in WRITERS[writer](job).gaps}


def test_megatron_s_capacity_comes_back() -> None:
    files = write_megatron(LaunchJob.of(small_scenario({}, model=CAPACITY)))
    text = files.files[SCRIPT]
    assert isinstance(text, str)
    assert "--moe-expert-capacity-factor 1.25" in text
    assert "--moe-pad-expert-input-to-capacity" in text
    model = read_megatron(LaunchSource(path=Path(SCRIPT), text=text)).tables["model"]
    assert {name: model[name] for name in CAPACITY} == CAPACITY


def test_a_negative_capacity_of_megatron_drops_nothing() -> None:
    files = write_megatron(LaunchJob.of(small_scenario({}, model=CAPACITY)))
    text = files.files[SCRIPT]
    assert isinstance(text, str)
    text = text.replace("--moe-pad-expert-input-to-capacity", "")
    text = text.replace("capacity-factor 1.25", "capacity-factor -1.0")
    model = read_megatron(LaunchSource(path=Path(SCRIPT), text=text)).tables["model"]
    assert not model.get("moe_expert_capacity_factor")


@failures.over("writer", ["DeepSpeed", "torchtitan", "MaxText"])
def test_others_say_that_they_drop_no_tokens(writer: str) -> None:
    assert "moe_expert_capacity_factor" in gaps(writer, CAPACITY)
    assert "moe_expert_capacity_factor" not in gaps(writer, {})


@failures.over("writer", sorted(WRITERS))
def test_all_say_that_they_place_no_experts_by_load(writer: str) -> None:
    placed = {**UNEVEN, "moe_expert_placement": "balanced"}
    assert gaps(writer, placed) == {*gaps(writer, {}), "moe_expert_placement"}


@failures.over("writer", sorted(WRITERS))
def test_what_data_is_like_is_nothing_that_a_launch_must_say(writer: str) -> None:
    assert gaps(writer, UNEVEN) == gaps(writer, {})
    assert gaps(writer, DOCUMENTS) == gaps(writer, {})


@pytest.mark.parametrize("writer", ["Megatron-LM", "Megatron Bridge"])
def test_capacities_are_no_gaps_of_megatron(writer: str) -> None:
    assert gaps(writer, CAPACITY) == gaps(writer, {})
