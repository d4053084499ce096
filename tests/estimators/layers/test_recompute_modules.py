"""Selective recompute module by module: what is kept, and what is run again."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from estimators.chain import KnownCosts, build_layer_table
from estimators.layers.saved_activations import (
    EVERYTHING,
    RECOMPUTE_MODULES,
    runs_again,
)
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, InLayerTraffic, LayerTable
from estimators.models.changed import (
    with_num_layers,
)
from estimators.models.library import load_model
from estimators.platform import Platform
from estimators.software import Software
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from topologies.accelerators import load_accelerator

LENGTH = 256
GRAPH = trace_model(
    with_num_layers(load_model("deepseek-v3", sequence_length=LENGTH), 5)
)
SPEC = GRAPH.spec
EXPERT_BLOCK = GRAPH.kinds[GRAPH.names.index("block 4")]
DENSE_BLOCK = GRAPH.kinds[GRAPH.names.index("block 0")]
BYTES = 2


def saved(*modules: str, kind: int = EXPERT_BLOCK) -> float:
    keeping = EVERYTHING._replace(recompute_modules=modules)
    return layer_work(GRAPH, kind, Degrees(), BYTES, keeping).saved_bytes["selective"]


def per_token(number_of_bytes: float) -> float:
    return number_of_bytes / (LENGTH * BYTES)


def test_nothing_run_again_keeps_what_autograd_does() -> None:
    whole = layer_work(GRAPH, EXPERT_BLOCK, Degrees(), BYTES).saved_bytes["none"]
    assert saved() == whole


def test_norms_in_front_of_branches_are_not_kept() -> None:
    # Their inputs are hidden states, which they keep in any case.
    assert per_token(saved() - saved("layernorm")) == 2 * SPEC.hidden_size


def test_up_projections_give_way_to_what_they_are_made_of() -> None:
    heads = SPEC.num_attention_heads
    query = heads * (SPEC.kv_channels + SPEC.qk_pos_emb_head_dim)
    value = heads * SPEC.v_head_dim
    # Norms of latents have kept these; what they made of them is gone, too.
    latents = SPEC.q_lora_rank + SPEC.kv_lora_rank
    # The rotary channels of keys, which all heads share, are read.
    shared = SPEC.qk_pos_emb_head_dim
    less = per_token(saved() - saved("mla_up_proj"))
    assert less == 2 * query + value + latents - shared


def test_the_activation_of_experts_is_not_kept_for_what_follows() -> None:
    width = SPEC.moe_router_topk * SPEC.moe_ffn_hidden_size
    # What gate and nonlinearity made, and their product; both halves of the product
    # with the first weight are read.
    assert per_token(saved() - saved("moe_act")) == pytest.approx(2 * width)
    assert saved("moe_act", kind=DENSE_BLOCK) == saved(kind=DENSE_BLOCK)


def test_a_dense_layer_as_a_module_keeps_its_input_alone() -> None:
    width, whole = SPEC.ffn_hidden_size, saved(kind=DENSE_BLOCK)
    # Both halves of the first product and what is made of them: by autograd four.
    assert per_token(whole - saved("mlp", kind=DENSE_BLOCK)) == 4 * width
    assert saved("mlp") == saved()


def test_a_layer_of_experts_as_a_module_keeps_its_input_alone() -> None:
    norms_output = SPEC.hidden_size
    outside = saved("mla_up_proj") - saved("mla_up_proj", "moe")
    assert outside == saved() - saved("moe")
    without = saved("layernorm", "moe")
    assert per_token(saved("layernorm") - without) == pytest.approx(per_token(outside))
    assert per_token(saved("moe") - without) == 2 * norms_output
    width = SPEC.moe_shared_expert_intermediate_size
    assert per_token(saved() - saved("shared_experts")) == 4 * width
    assert saved("moe", "shared_experts", "moe_act") == saved("moe")
    assert saved("moe", kind=DENSE_BLOCK) == saved(kind=DENSE_BLOCK)


@failures.over("modules", [("core_attn",), ("moe",), ("mla_up_proj", "mlp")])
def test_what_modules_send_is_sent_again(modules: tuple[str, ...]) -> None:
    degrees = Degrees(tp=2, cp=2, ep=4, sequence_parallel=True)
    keeping = EVERYTHING._replace(recompute_modules=modules)
    repeated = {
        (work.group, work.operation): (work.repeated_count, work.repeated_bytes)
        for kind in (DENSE_BLOCK, EXPERT_BLOCK)
        for work in layer_work(GRAPH, kind, degrees, BYTES, keeping).collectives
        if work.repeated_count
    }
    forward = {
        (work.group, work.operation): (work.forward_count, work.forward_bytes)
        for work in layer_work(GRAPH, EXPERT_BLOCK, degrees, BYTES).collectives
    }
    experts = "expert", "all_to_all"
    assert (experts in repeated) == ("moe" in modules)
    if "moe" in modules:
        assert repeated[experts] == forward[experts]
    assert (("context", "send_recv") in repeated) == ("core_attn" in modules)
    gathers = ("tensor", "all_gather") in repeated
    assert gathers == (modules != ("core_attn",))


@failures.over("name", RECOMPUTE_MODULES)
def test_every_module_is_in_its_block(name: str) -> None:
    block = DENSE_BLOCK if name == "mlp" else EXPERT_BLOCK
    assert any(runs_again(GRAPH.layers[block], (name,)))


def test_more_modules_keep_less_and_take_longer() -> None:
    training = TrainingSpec(global_batch_size=8)
    found = []
    names = tuple(name for name in RECOMPUTE_MODULES if name != "mlp")
    for count in range(len(names) + 1):
        modules = names[:count]
        platform = Platform(
            accelerator=load_accelerator("h800"),
            software=replace(Software(name="ideal"), recompute_modules=modules),
        )
        table = build_layer_table(
            GRAPH, degrees=Degrees(), training=training, platform=platform
        )
        block = table.names.index("block 4")
        found.append(
            (
                -table.saved_bytes["selective"][block],
                table.recompute_time["selective"][block],
            )
        )
    assert found[0][1] == 0.0
    assert all(
        more > less
        for one, other in pairwise(found[1:])
        for less, more in zip(one, other, strict=True)
    )


@failures.over(
    "software",
    [
        Software(name="ideal"),
        Software(name="megatron-core", keeps_gathered=True, keeps_narrow_inputs=True),
        Software(name="torchtitan", saves_products=True, repeats_elementwise=True),
    ],
)
def test_tables_of_other_modules_are_those_that_are_made_alone(
    software: Software,
) -> None:
    """What tables have in common is worked out once, and is the same to the bit."""
    known = KnownCosts()
    make = partial(
        build_layer_table,
        GRAPH,
        training=TrainingSpec(global_batch_size=8),
        platform=Platform(accelerator=load_accelerator("h800"), software=software),
    )
    names = tuple(RECOMPUTE_MODULES)
    for count in range(len(names) + 1):
        degrees = Degrees(tp=2, ep=4, recompute_modules=names[:count])
        alone, shared = make(degrees=degrees), make(degrees=degrees, known=known)
        assert plain(shared) == plain(alone)
    assert len(known.tables) == 1


def plain(value: object) -> object:
    """Return tables, mappings and arrays as dicts and lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, LayerTable | InLayerTraffic):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    return [plain(part) for part in value] if isinstance(value, tuple) else value
