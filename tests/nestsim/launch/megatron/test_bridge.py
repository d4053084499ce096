"""Recipes of Megatron Bridge: their fields are those of its classes.

Megatron Bridge itself needs Transformer Engine and a GPU's libraries. Its fields are
facts of megatron-bridge 0.3.1 here; those that it has from megatron-core are held to
the real classes.
"""

import ast
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from nestsim.launch.formats.megatron.options import TABLE
from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.formats.megatron.writing import (
    RECIPE,
    SCRIPT,
    write_megatron_bridge,
)
from nestsim.launch.job import RANK_MAP, LaunchJob
from nestsim.launch.read import LaunchSource
from tests import failures
from tests.nestsim.launch.megatron.small import CHANGED, small_scenario
from topologies.errors import InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig


def _names(kind: Any) -> set[str]:
    return {one.name for one in fields(kind)}


KNOWN: dict[str, set[str]] = {
    # models/gpt_provider.py, models/mamba/mamba_provider.py, beside megatron-core's.
    "model": _names(MLATransformerConfig)
    | {
        "position_embedding_type",
        "rotary_percent",
        "share_embeddings_and_output_weights",
        "seq_length",
        "rotary_base",
        "vocab_size",
        "should_pad_vocab",
        "hybrid_override_pattern",
    },
    "ddp": _names(DistributedDataParallelConfig),
    "optimizer": _names(OptimizerConfig),
    # training/config.py
    "train": {
        "micro_batch_size",
        "global_batch_size",
        "rampup_batch_size",
        "train_iters",
    },
    "dist": {"use_tp_pp_dp_mapping", "use_megatron_fsdp"},
    "checkpoint": {"ckpt_format"},
    "rng": {"te_rng_tracker"},
    "rerun_state_machine": {"check_for_nan_in_loss"},
    "dataset": {"seq_length"},
    # training/tokenizers/config.py
    "tokenizer": {"tokenizer_type", "vocab_size"},
    # training/comm_overlap.py
    "comm_overlap": {
        "tp_comm_overlap",
        "overlap_p2p_comm",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "overlap_moe_expert_parallel_comm",
        "delay_wgrad_compute",
    },
    # training/mixed_precision.py
    "mixed_precision": {
        "bf16",
        "fp16",
        "params_dtype",
        "pipeline_dtype",
        "grad_reduce_in_fp32",
        "fp8",
        "fp8_recipe",
        "fp8_param_gather",
        "fp4",
        "fp4_recipe",
    },
}
"""Section of a `ConfigContainer` -> its fields, of megatron-bridge 0.3.1."""


def written_fields(recipe: str) -> dict[str, dict[str, ast.expr]]:
    """Return the fields that a recipe sets, by section."""
    found: dict[str, dict[str, ast.expr]] = {}
    for node in ast.walk(ast.parse(recipe)):
        if not isinstance(node, ast.Assign) or not isinstance(
            target := node.targets[0], ast.Attribute
        ):
            continue
        inner = target.value
        if isinstance(inner, ast.Attribute):  # cfg.section.name = ..
            found.setdefault(inner.attr, {})[target.attr] = node.value
        elif isinstance(node.value, ast.Call):  # cfg.section = Kind(name=..)
            for one in node.value.keywords:
                assert one.arg is not None
                found.setdefault(target.attr, {})[one.arg] = one.value
    return found


@failures.over(
    "field", ["recompute_num_layers", "offload_optimizer", "cp_comm_type", "zero_stage"]
)
def test_fields_are_those_of_megatron_bridge(field: str) -> None:
    job = LaunchJob.of(small_scenario(CHANGED[field]))
    files = write_megatron_bridge(job)
    found = written_fields(str(files.files[RECIPE]))
    # No option of the job is without a field.
    assert [gap for gap in files.gaps if gap.setting.startswith("--")] == []
    assert set(found) <= set(KNOWN)
    for section, names in found.items():
        assert set(names) <= KNOWN[section]
    plan, model = job.settings, found["model"]
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        assert ast.literal_eval(model[name]) == getattr(plan, name)
    micro = ast.literal_eval(found["train"]["micro_batch_size"])
    assert micro == plan.micro_batch_size


def test_fields_of_options_are_known() -> None:
    for places in TABLE.facts["bridge"].values():
        for path in places:
            section, _, name = path.partition(".")
            assert name in KNOWN[section], path


def test_layouts_recompute_and_order_are_fields() -> None:
    plan = {
        "virtual_pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": [1, 3, 3, 1],
        "recompute": "full",
        "order": "tp-cp-ep-pp-dp",
    }
    files = write_megatron_bridge(LaunchJob.of(small_scenario(plan)))
    found = written_fields(str(files.files[RECIPE]))
    model = {name: ast.unparse(one) for name, one in found["model"].items()}
    assert model["pipeline_model_parallel_layout"] == "'Et|(ttt|)*2tL'"
    assert model["virtual_pipeline_model_parallel_size"] == "2"
    assert model["recompute_granularity"] == "'full'"
    assert ast.unparse(found["dist"]["use_tp_pp_dp_mapping"]) == "True"


def test_gaps_and_rank_maps_are_those_of_megatron() -> None:
    files = write_megatron_bridge(LaunchJob.of(small_scenario(CHANGED["placement"])))
    assert [gap.setting for gap in files.gaps] == ["placement"]
    assert set(files.files) == {RECIPE, SCRIPT, RANK_MAP}


def test_the_start_of_a_recipe_is_no_command_line_of_megatron() -> None:
    files = write_megatron_bridge(LaunchJob.of(small_scenario({})))
    source = LaunchSource(path=Path(SCRIPT), text=str(files.files[SCRIPT]))
    with pytest.raises(InputError, match="no command that trains"):
        read_megatron(source)
