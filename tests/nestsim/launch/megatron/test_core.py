"""What is written, held to megatron-core's own classes (0.16.1).

Its configurations accept the values, its rank generator makes the groups that plans
have, its layouts and its own count of layers put the blocks where plans have them.
"""

import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from estimators.grouping import Grouping
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.options import (
    hybrid_letters,
    read_layout,
    read_list,
    write_layout,
    write_list,
)
from nestsim.launch.formats.megatron.settings import job_options
from nestsim.launch.job import LaunchJob
from nestsim.scenario.load import Scenario
from planner.cost.groups import StageGroups
from planner.frameworks.options import LaunchOption
from planner.search.placements import Extents, whole_dimensions
from tests import failures
from tests.nestsim.launch.megatron.small import CHANGED, small_scenario
from topologies.errors import InputError

with warnings.catch_warnings():
    # Transformer Engine and Apex need a GPU; the configurations do not need them.
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.parallel_state import RankGenerator
    from megatron.core.ssm.mamba_hybrid_layer_allocation import allocate_layers
    from megatron.core.transformer.pipeline_parallel_layer_layout import (
        PipelineParallelLayerLayout,
    )
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OF_TRAINING = frozenset(
    {
        "seq-length",
        "max-position-embeddings",
        "position-embedding-type",
        "rotary-percent",
        "untie-embeddings-and-output-weights",
        "micro-batch-size",
        "global-batch-size",
        "embed-layernorm",
        "moe-shared-expert-gate",
    }
)
"""Options of Megatron-LM's training loop or of its model classes, which configurations
of megatron-core do not have."""


def values_of(job: LaunchJob) -> dict[str, tuple[str, ...]]:
    return {
        name: words
        for group in job_options(job)
        for name, words in group.options.items()
    }


def composed(values: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return fields that Megatron-LM makes of several options, as it does.

    ``core_transformer_config_from_args`` of ``megatron/training/arguments.py``.
    """
    found: dict[str, Any] = {}

    def put(option: str, field: str, make: Any = str) -> None:
        if option in values:
            found[field] = make(values[option][0]) if values[option] else True

    put("swiglu", "gated_linear_unit")
    if "swiglu" in values:
        found["activation_func"] = functional.silu
    put("num-query-groups", "num_query_groups", int)
    put("window-size", "window_size", lambda one: tuple(map(int, one.split(","))))
    put("window-attn-skip-freq", "window_attn_skip_freq", _list)
    put("moe-layer-freq", "moe_layer_freq", _list)
    put("moe-grouped-gemm", "moe_grouped_gemm")
    put("moe-token-dispatcher-type", "moe_token_dispatcher_type")
    put("recompute-granularity", "recompute_granularity")
    put("recompute-method", "recompute_method")
    put("recompute-num-layers", "recompute_num_layers", int)
    if "recompute-modules" in values:
        found["recompute_modules"] = list(values["recompute-modules"])
    put(
        "num-virtual-stages-per-pipeline-rank",
        "virtual_pipeline_model_parallel_size",
        int,
    )
    put("pipeline-model-parallel-layout", "pipeline_model_parallel_layout")
    put("cp-comm-type", "cp_comm_type")
    if "hierarchical-context-parallel-sizes" in values:
        found["hierarchical_context_parallel_sizes"] = [
            int(one) for one in values["hierarchical-context-parallel-sizes"]
        ]
    put("fp8-format", "fp8")
    put("fp8-recipe", "fp8_recipe")
    put("cpu-offloading-num-layers", "cpu_offloading_num_layers", int)
    return found


def _list(text: str) -> object:
    return read_list(text, "")


def configure(job: LaunchJob) -> tuple[Any, Any, Any]:
    """Return megatron-core's configurations of a job."""
    values = values_of(job)
    transformer = composed(values)
    classes = (MLATransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
    names = [{one.name for one in fields(kind)} for kind in classes]
    given_fields: list[dict[str, Any]] = [transformer, {}, {}]
    for name, words in values.items():
        option = known.BY_NAME.get(name)
        if option is None or name in OF_TRAINING:
            continue
        value = value_of(option, words)
        field = option.attribute or name.replace("-", "_")
        holders = [n for n, one in enumerate(names) if field in one]
        assert holders, name
        for holder in holders:
            given_fields[holder].setdefault(field, value)
    precision = next((one for one in ("bf16", "fp16") if one in values), "fp32")
    dtype = TYPES[precision]
    if precision != "fp32":
        transformer[precision] = given_fields[2][precision] = True
    transformer |= {"params_dtype": dtype, "pipeline_dtype": dtype}
    latent = "multi-latent-attention" in values
    kind = MLATransformerConfig if latent else TransformerConfig
    plain = {one.name for one in fields(kind)}
    given_fields[1] |= {
        "use_distributed_optimizer": "use-distributed-optimizer" in values,
        "num_distributed_optimizer_instances": int(
            values.get("num-distributed-optimizer-instances", ("1",))[0]
        ),
        "use_megatron_fsdp": "use-megatron-fsdp" in values,
        "data_parallel_sharding_strategy": values.get(
            "data-parallel-sharding-strategy", ("no_shard",)
        )[0],
    }
    given_fields[2] |= {
        "use_distributed_optimizer": "use-distributed-optimizer" in values,
        "optimizer_cpu_offload": "optimizer-cpu-offload" in values,
        "optimizer_offload_fraction": float(
            values.get("optimizer-offload-fraction", ("0",))[0]
        ),
        "use_precision_aware_optimizer": False,  # asks for Transformer Engine
    }
    given_fields[2] = {
        name: value
        for name, value in given_fields[2].items()
        if not name.startswith(("exp_avg", "main_params"))
    }
    with warnings.catch_warnings():
        # Megatron's own notes: deprecated defaults, fused kernels that are not there.
        warnings.simplefilter("ignore")
        return (
            kind(**{name: one for name, one in transformer.items() if name in plain}),
            DistributedDataParallelConfig(**given_fields[1]),
            OptimizerConfig(**given_fields[2]),
        )


def value_of(option: LaunchOption, words: tuple[str, ...]) -> object:
    if option.is_flag:
        return option.words[""]
    if option.words:
        return words[0]
    return float(words[0]) if isinstance(option.default, float) else int(words[0])


def blocks_of(config: Any) -> tuple[int, ...]:
    """Return the blocks of each virtual stage, by megatron-core's own count."""
    stages = config.pipeline_model_parallel_size
    v = config.virtual_pipeline_model_parallel_size or 1
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        return tuple(
            sum(one.name == "decoder" for one in layout.layout[stage][chunk])
            for chunk in range(v)
            for stage in range(stages)
        )
    return tuple(
        get_num_layers_to_build(config, vp_stage=chunk, pp_rank=stage)
        for chunk in range(v)
        for stage in range(stages)
    )


def check(job: LaunchJob) -> None:
    transformer, ddp, optimizer = configure(job)
    plan = job.settings
    model = job.model
    assert transformer.num_layers == model.num_layers
    assert transformer.tensor_model_parallel_size == plan.tensor_model_parallel_size
    assert transformer.context_parallel_size == plan.context_parallel_size
    assert transformer.num_query_groups == model.num_query_groups
    assert transformer.ffn_hidden_size == model.ffn_hidden_size
    assert transformer.hidden_dropout == model.hidden_dropout
    assert ddp.use_distributed_optimizer == (max(plan.zero_stage_by_stage()) > 0)
    assert optimizer.optimizer == job.training.optimizer
    assert blocks_of(transformer) == job.blocks_by_virtual_stage()


def test_core_refuses_biases_of_experts_that_are_split() -> None:
    """What `gaps` tells, by the class itself."""
    for etp in (1, 2):
        plan = {"expert_model_parallel_size": 4, "expert_tensor_parallel_size": etp}
        job = LaunchJob.of(small_scenario(plan, model={"add_bias_linear": True}))
        if etp == 1:
            configure(job)
        else:
            with pytest.raises(AssertionError, match="ETP==1"):
                configure(job)


FITS = (
    "account_for_embedding_in_pipeline_split",
    "expert_tensor_parallel_size",
    "hierarchical_context_parallel_sizes",
    "num_layers_in_first_pipeline_stage",
    "pipeline_model_parallel_layout",
    "recompute_num_layers",
    "sharding_group_size",
    "virtual_pipeline_model_parallel_size",
)
# Hiding all-to-alls asks for Transformer Engine.
OTHERS = sorted({*CHANGED} - {*FITS, "overlap_moe_expert_parallel_comm"})


@pytest.mark.parametrize(
    "field",
    [*FITS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def test_configurations_of_core_accept_every_kind_of_plan(field: str) -> None:
    check(LaunchJob.of(small_scenario(CHANGED[field])))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted(Path("scenarios/published").glob("*.toml")), ids=lambda one: one.stem
)
def test_configurations_of_core_accept_published_plans(path: Path) -> None:
    check(LaunchJob.of(Scenario.from_file(path)))


@failures.over(
    "model",
    [
        {
            "kv_lora_rank": 64,
            "qk_pos_emb_head_dim": 32,
            "v_head_dim": 64,
            "kv_channels": 64,
        },
        {"window_size": 64, "window_attn_skip_freq": 2},
        {"moe_layer_freq": "[0]*3+[1]*5", "moe_router_score_function": "sigmoid"},
        {"mtp_num_layers": 1, "softmax_type": "learnable"},
    ],
)
def test_configurations_of_core_accept_every_kind_of_model(
    model: dict[str, Any],
) -> None:
    plan = {"pipeline_model_parallel_layout": [3, 5], "recompute": "full"}
    check(LaunchJob.of(small_scenario(plan, model=model)))


def test_fields_of_options_are_those_of_core() -> None:
    classes = (MLATransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
    names = {one.name for kind in classes for one in fields(kind)}
    for option in known.BY_NAME.values():
        field = option.attribute or option.name.replace("-", "_")
        assert field in names or option.name in OF_TRAINING, option.name


SIZES = st.tuples(*[st.sampled_from([1, 2, 3, 4])] * 4).filter(
    lambda sizes: sizes[0] * sizes[1] * sizes[2] * sizes[3] <= 64
)


@failures.over("order", ["tp-cp-ep-dp-pp", known.PP_INSIDE_ORDER])
@given(sizes=SIZES, ep=st.sampled_from([1, 2, 4]))
@settings(max_examples=40)
def test_ranks_form_the_groups_of_megatron(
    order: str, sizes: tuple[int, int, int, int], ep: int
) -> None:
    """Groups by `RankGenerator` are those of the axes of our placement."""
    tp, cp, dp, pp = sizes
    if order == known.PP_INSIDE_ORDER:
        # The only case that Megatron has: see `rank_order`.
        ep, cp = 1, 1
    grouping = Grouping.of((tp, cp, ep))
    dp *= grouping.replica_unit((tp, cp, ep))
    placed = 1 if grouping.is_folded else ep
    extents = Extents(tp, cp, placed, dp // placed, pp)
    placement = whole_dimensions(tuple(order.split("-")), extents)
    grid = placement.devices.reshape(pp, dp, cp, tp)
    ranks = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    for axis, name in enumerate(("pp", "dp", "cp", "tp")):
        ours = {tuple(row) for row in _rows(grid, axis)}
        assert ours == {tuple(group) for group in ranks.get_ranks(name)}
    experts = RankGenerator(tp=tp, ep=ep, dp=cp * dp // ep, pp=pp, cp=1, order=order)
    assert ranks.get_ranks("pp") == experts.get_ranks("pp")
    groups = StageGroups(placement.grid, grouping, ep)
    for name, found in (("ep", groups.experts()), ("dp", groups.expert_data())):
        ours = {tuple(sorted(one)) for one in found.reshape(-1, found.shape[2])}
        assert ours == {tuple(group) for group in experts.get_ranks(name)}


def _rows(grid: Any, axis: int) -> list[list[int]]:
    size = grid.shape[axis]
    rows: list[list[int]] = np.moveaxis(grid, axis, -1).reshape(-1, size).tolist()
    return rows


@given(
    blocks=st.lists(st.integers(0, 9), min_size=1, max_size=24),
    mtp=st.integers(0, 2),
)
@settings(max_examples=100)
def test_layouts_are_read_as_megatron_reads_them(blocks: list[int], mtp: int) -> None:
    text = write_layout(blocks, mtp)
    parsed = PipelineParallelLayerLayout(text, len(blocks))
    counted = [
        sum(one.name == "decoder" for one in stage[0]) for stage in parsed.layout
    ]
    assert counted == blocks
    parsed.validate_layer_layout(sum(blocks), mtp)
    assert read_layout(text, len(blocks)) == (tuple(blocks), mtp)


@failures.over(
    ("text", "stages", "blocks", "mtp"),
    [
        ("Et|(tt|)*30mL", 8, (1, *(2,) * 30, 0), 1),
        ("Et*2|(tt|)*22t|(tt|)*7mL", 8, (2, *(2,) * 22, 1, *(2,) * 7, 0), 1),
        ("Ettt|(tt|)*2,ttL", 2, (3, 2, 2, 2), 0),
    ],
)
def test_layouts_as_people_write_them(
    text: str, stages: int, blocks: tuple[int, ...], mtp: int
) -> None:
    assert read_layout(text, stages) == (blocks, mtp)
    parsed = PipelineParallelLayerLayout(text, stages)
    assert blocks == tuple(
        sum(one.name == "decoder" for one in parsed.layout[k % stages][k // stages])
        for k in range(len(blocks))
    )


@failures.over("text", ["", "E", "tL", "Et|x|L", "Em|tL", "(((", "t*99999*9"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_layout(text, 1)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
@settings(max_examples=50)
def test_lists_of_blocks_come_back(marks: list[int]) -> None:
    assert read_list(write_list(marks), "") == marks
    assert read_list(f"({write_list(marks)})*2", "") == marks * 2


@failures.over("text", ["", "[", "[2,", "([1]", "[1]*", "[1]+", "x" * 99])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_list(text, "--moe-layer-freq")


@given(
    num_layers=st.integers(1, 120),
    attention=st.floats(0.0, 0.5),
    mlp=st.floats(0.0, 0.5),
)
@settings(max_examples=200)
def test_hybrids_are_laid_out_as_megatron_does(
    num_layers: int, attention: float, mlp: float
) -> None:
    letters = allocate_layers(num_layers, attention, mlp)
    assert hybrid_letters(num_layers, attention, mlp) == "".join(letters)
