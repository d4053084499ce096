"""How busy the busiest rank of experts is, against routing that is simulated."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.dispatch import exchanged_load
from estimators.grouping import Grouping
from estimators.layers.routing import (
    EVEN,
    expert_load,
    largest_normal,
    packed_loads,
)
from estimators.layers.sharding import kept_tensors, layer_work
from estimators.layers.shares import device_shares
from estimators.layers.work import Degrees
from estimators.models.layer_loads import LayerLoads
from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from estimators.software import IDEAL, Software
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError

MIXTRAL = load_model("mixtral-8x7b")
BLOCK = 1
DATA = Path(__file__).parents[4] / "shared" / "data" / "silicon"
SILICON = DATA / "experts_forward.parquet"


@cache
def graph() -> LayerGraph:
    return trace_model(MIXTRAL)


def model(experts: int, copies: int, length: int, **routing: Any) -> TransformerSpec:
    return replace(
        MIXTRAL,
        num_moe_experts=experts,
        moe_router_topk=copies,
        sequence_length=length,
        **routing,
    )


def chosen(rng: np.random.Generator, tokens: int, experts: int, copies: int) -> Any:
    """Return experts of each token, any alike and each once, ``(tokens, copies)``."""
    return np.argsort(rng.random((tokens, experts)), axis=1)[:, :copies]


# Nothing uneven.


def test_balanced_routing_is_today_s_to_the_bit() -> None:
    for degrees in (Degrees(ep=8), Degrees(tp=2, ep=4, sequence_parallel=True)):
        assert expert_load(MIXTRAL, degrees) == EVEN
        shares = device_shares(MIXTRAL, degrees)
        for share in shares.tensors.values():
            assert share.load == 1.0
            count = MIXTRAL.sequence_length * 4096
            assert share.of(count) == count * share.numerator / share.denominator


def test_experts_of_a_single_rank_are_as_busy_as_all() -> None:
    for routing in ({"moe_routing": "random"}, POWER):
        assert expert_load(model(8, 2, 4096, **routing), Degrees()) == EVEN


def test_a_dense_model_has_no_busiest_rank() -> None:
    assert expert_load(load_model("llama3-8b"), Degrees()) == EVEN


# Against routing token by token.

POWER = {"moe_routing": "power-law", "moe_routing_exponent": 1.2}


@failures.over(
    ["experts", "copies", "ranks", "length"],
    [(8, 2, 8, 512), (64, 6, 8, 256), (64, 8, 64, 64), (16, 1, 4, 300)],
)
def test_random_routing_is_that_of_tokens_which_choose_any_experts_alike(
    experts: int, copies: int, ranks: int, length: int
) -> None:
    spec = model(experts, copies, length, moe_routing="random")
    load = expert_load(spec, Degrees(ep=ranks))
    rng, tokens = np.random.default_rng(1), ranks * length
    busiest = []
    for _ in range(60):
        counts = np.bincount(
            chosen(rng, tokens, experts, copies).ravel(), minlength=experts
        )
        busiest.append(counts.reshape(ranks, -1).sum(axis=1).max())
    assert load.mean == 1.0
    expected = np.mean(busiest) / (length * copies)
    assert load.busiest - 1.0 == pytest.approx(expected - 1.0, rel=0.12)


@failures.over("factor", [0.5, 0.9, 1.0, 1.1, 1.5, 3.0])
def test_a_capacity_drops_what_experts_cannot_take_of_a_rank(factor: float) -> None:
    experts, copies, ranks, length = 16, 2, 4, 200
    spec = model(
        experts,
        copies,
        length,
        moe_routing="random",
        moe_expert_capacity_factor=factor,
    )
    load = expert_load(spec, Degrees(ep=ranks))
    rng = np.random.default_rng(2)
    most = math.ceil(factor * length * copies / experts)
    kept, busiest = [], []
    for _ in range(400):
        taken = np.zeros(experts)
        for _ in range(ranks):
            counts = np.bincount(
                chosen(rng, length, experts, copies).ravel(), minlength=experts
            )
            taken += np.minimum(counts, most)
        held = taken.reshape(ranks, -1).sum(axis=1) / (length * copies)
        kept.append(held.mean())
        busiest.append(held.max())
    assert load.mean == pytest.approx(np.mean(kept), rel=2e-3)
    assert load.busiest == pytest.approx(np.mean(busiest), rel=8e-3)


def drawn_loads(
    rng: np.random.Generator, tokens: int, experts: int, exponent: float
) -> Any:
    """Draw loads of experts as AIConfigurator's collector does (`sample_power_law`)."""
    low, high = 1.0, 0.8 * tokens
    u = rng.random(experts)
    power = 1.0 - exponent
    return ((high**power - low**power) * u + low**power) ** (1.0 / power)


@failures.over(
    ["experts", "copies", "ranks", "exponent"],
    [
        (8, 2, 4, 1.2),
        (64, 6, 8, 1.01),
        (128, 8, 16, 1.2),
        (256, 8, 32, 1.01),
        (256, 8, 8, 2.5),
    ],
)
def test_a_power_law_is_that_of_loads_drawn_by_aiconfigurator(
    experts: int, copies: int, ranks: int, exponent: float
) -> None:
    spec = model(
        experts,
        copies,
        1024,
        moe_routing="power-law",
        moe_routing_exponent=exponent,
    )
    load = expert_load(spec, Degrees(ep=ranks))
    rng, tokens = np.random.default_rng(3), ranks * 1024
    busiest = []
    for _ in range(4000):
        loads = drawn_loads(rng, tokens, experts, exponent)
        counts = loads / loads.sum() * tokens * copies
        while counts.max() > tokens * (1 + 1e-9):
            full = counts >= tokens * (1 - 1e-12)
            left = tokens * copies - full.sum() * tokens
            counts = np.where(full, tokens, counts * left / counts[~full].sum())
            counts = np.minimum(counts, tokens) if full.any() else counts
        busiest.append(counts.reshape(ranks, -1).sum(axis=1).max() / (1024 * copies))
    assert load.busiest == pytest.approx(np.mean(busiest), rel=0.03)
    assert load.mean == pytest.approx(1.0, rel=1e-9)


@failures.over(
    ["experts", "copies", "ranks", "sigma"],
    [(8, 2, 4, 0.2), (64, 6, 8, 0.4), (256, 8, 32, 0.4), (128, 1, 128, 1.0)],
)
def test_a_log_normal_is_that_of_loads_drawn_from_it(
    experts: int, copies: int, ranks: int, sigma: float
) -> None:
    spec = model(
        experts, copies, 1024, moe_routing="log-normal", moe_routing_sigma=sigma
    )
    load = expert_load(spec, Degrees(ep=ranks))
    loads = np.random.default_rng(6).lognormal(0.0, sigma, (4000, experts))
    shares = loads / loads.sum(axis=1, keepdims=True)
    assert np.quantile(shares.max(axis=1), 0.99) < 1 / copies
    busiest = ranks * shares.reshape(4000, ranks, -1).sum(axis=2).max(axis=1)
    assert load.busiest - 1.0 == pytest.approx(busiest.mean() - 1.0, rel=0.03)
    assert load.mean == pytest.approx(1.0, rel=1e-9)


@failures.over(
    ["gini", "sigma"], [(0.105, 0.187), (0.150, 0.267), (0.24, 0.432), (0.38, 0.701)]
)
def test_published_gini_coefficients_are_those_of_the_guide_s_deviations(
    gini: float, sigma: float
) -> None:
    """Ma et al., "Diagnosing Overhead in Dispatch Operations", arXiv 2605.20982."""
    assert math.erf(sigma / 2) == pytest.approx(gini, abs=5e-4)
    loads = np.sort(np.random.default_rng(7).lognormal(0.0, sigma, 200_000))
    count = len(loads)
    place = 2 * np.arange(1, count + 1) - count - 1
    assert place @ loads / (count * loads.sum()) == pytest.approx(gini, abs=2e-3)


def test_measured_loads_are_added_up_rank_by_rank() -> None:
    loads = (5.0, 1.0, 1.0, 3.0, 2.0, 2.0, 1.0, 1.0)
    spec = model(8, 2, 4096, moe_routing="measured", moe_expert_loads=loads)
    for ranks, largest in ((2, 10), (4, 6), (8, 5)):
        load = expert_load(spec, Degrees(ep=ranks))
        assert load.busiest == pytest.approx(largest * ranks / 16)
        assert load.mean == pytest.approx(1.0)
    capped = replace(spec, moe_expert_capacity_factor=1.25)
    load = expert_load(capped, Degrees(ep=4))
    taken = np.minimum(np.array(loads) / 2.0, 1.25)
    assert load.mean == pytest.approx(taken.mean())
    assert load.busiest == pytest.approx(taken.reshape(4, 2).mean(axis=1).max())


# Experts placed by load.

EXAMPLE = (
    (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
    (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
)
"""Loads of two layers, the example of EPLB's README."""


@failures.over(
    ["ranks", "busiest"],
    [(2, (529, 583)), (3, (355, 396)), (4, (277, 292)), (6, (204, 213))],
)
def test_experts_are_packed_as_eplb_packs_them(
    ranks: int, busiest: tuple[int, int]
) -> None:
    """What ``balanced_packing`` of EPLB at d52c72d5 leaves the busiest rank."""
    held = packed_loads(np.array(EXAMPLE, dtype=float), ranks).reshape(2, ranks, -1)
    assert tuple(held.sum(axis=2).max(axis=1)) == busiest


def packed_one_by_one(loads: list[int], ranks: int) -> list[int]:
    """Return what ranks hold: the heaviest first, to the lightest that has room."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    for load in sorted(loads, reverse=True):
        free = [rank for rank in held if len(rank) < len(loads) // ranks]
        min(free, key=sum).append(load)
    return [sum(rank) for rank in held]


def least_busiest(loads: list[int], ranks: int) -> int:
    """Try all ways to give ranks as many experts each."""
    if ranks == 1:
        return sum(loads)
    first, *others = range(len(loads))
    least = sum(loads)
    for chosen in combinations(others, len(loads) // ranks - 1):
        left = [loads[number] for number in others if number not in chosen]
        held = loads[first] + sum(loads[number] for number in chosen)
        least = min(least, max(held, least_busiest(left, ranks - 1)))
    return least


@given(
    st.sampled_from([(2, 2), (2, 3), (2, 4), (3, 2), (4, 2), (3, 3)]),
    st.lists(st.integers(0, 50), min_size=9, max_size=9),
)
@settings(max_examples=150, deadline=None)
def test_packing_is_between_the_order_and_the_optimum(
    shape: tuple[int, int], drawn: list[int]
) -> None:
    ranks, loads = shape[0], drawn[: math.prod(shape)]
    packed = packed_loads(np.array([loads], dtype=float), ranks)
    assert sorted(packed[0]) == sorted(loads)
    busiest = packed.reshape(shape).sum(axis=1).max()
    linear = np.reshape(loads, shape).sum(axis=1).max()
    assert busiest == min(linear, max(packed_one_by_one(loads, ranks)))
    assert least_busiest(loads, ranks) <= busiest <= linear


def test_packing_may_be_worse_than_neighbours_which_then_stay() -> None:
    loads = [5, 2, 2, 3, 3, 3]
    assert max(packed_one_by_one(loads, 2)) == 10
    assert packed_loads(np.array([loads], dtype=float), 2).tolist() == [loads]


def test_placement_evens_out_measured_loads_and_those_of_a_power_law() -> None:
    loads = (8.0, 7.0, 1.0, 2.0, 3.0, 1.0, 1.0, 1.0)
    known = {"moe_routing": "measured", "moe_expert_loads": loads}
    placed: dict[str, Any] = {**known, "moe_expert_placement": "balanced"}
    spec = model(8, 2, 4096, **placed)
    # 8, 7, 3 and 2 first, then four of 1.
    for ranks, busiest in ((2, 12), (4, 9), (8, 8)):
        load = expert_load(spec, Degrees(ep=ranks))
        assert load.busiest == pytest.approx(busiest * ranks / 24)
        assert load.mean == pytest.approx(1.0)
    # Nodes hold what their ranks hold: 9 and 8, or 4 and 3.
    assert expert_load(spec, Degrees(ep=4), 2).busiest == pytest.approx(17 * 2 / 24)
    linear, balanced = (
        expert_load(model(128, 8, 4096, **POWER, **how), Degrees(ep=16)).busiest
        for how in ({}, {"moe_expert_placement": "balanced"})
    )
    assert 1.0 < balanced < 0.6 * linear


def test_the_largest_of_normal_numbers_is_that_of_draws() -> None:
    # Of two: 1 / sqrt(pi). Of one: none is larger.
    assert largest_normal(1) == pytest.approx(0.0, abs=1e-6)
    assert largest_normal(2) == pytest.approx(1.0 / math.sqrt(math.pi), abs=1e-6)
    drawn = np.random.default_rng(4).standard_normal((20_000, 64)).max(axis=1)
    assert largest_normal(64) == pytest.approx(drawn.mean(), rel=5e-3)


def test_padding_gives_all_ranks_as_much_whatever_came() -> None:
    for routing in ({}, {"moe_routing": "random"}, POWER):
        spec = model(
            8,
            2,
            1000,
            moe_expert_capacity_factor=1.25,
            moe_pad_expert_input_to_capacity=True,
            **routing,
        )
        for ranks in (1, 2, 8):
            load = expert_load(spec, Degrees(ep=ranks))
            # 250 tokens an expert, 312.5 with the factor, of which there is a whole
            # number.
            assert load == (313 / 250, 313 / 250, None)


def test_ranks_that_split_experts_have_the_tokens_of_all_of_them() -> None:
    spec = model(64, 6, 4096, **POWER)
    folded = Degrees(
        tp=4, ep=8, sequence_parallel=True, grouping=Grouping(etp=1, folds=True)
    )
    alone = Degrees(ep=8, cp=4)
    assert expert_load(spec, folded).busiest == expert_load(spec, alone).busiest


# Layers that differ.


@given(
    st.lists(
        st.lists(st.integers(1, 20), min_size=8, max_size=8), min_size=2, max_size=4
    ),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(["linear", "balanced"]),
)
@settings(max_examples=60, deadline=None)
def test_layers_together_have_the_load_of_each_by_itself(
    rows: list[list[int]], ranks: int, placement: str
) -> None:
    """A chain of the mean takes what its layers take; none keeps more than is kept."""
    known = {"moe_routing": "measured", "moe_expert_placement": placement}
    every = [
        expert_load(model(8, 1, 4096, **known, moe_expert_loads=row), Degrees(ep=ranks))
        for row in map(tuple, rows)
    ]
    tokens = tuple(tuple(map(float, row)) for row in rows)
    loads = LayerLoads(tuple(range(len(rows))), tokens)
    load = expert_load(
        model(8, 1, 4096, **known, moe_layer_loads=loads), Degrees(ep=ranks)
    )
    busiest = [layer.busiest for layer in every]
    assert load.busiest * len(rows) == pytest.approx(sum(busiest))
    assert load.kept == max(busiest)
    assert load.layers == (
        (min(busiest), max(busiest)) if len({*busiest}) > 1 else None
    )


def test_a_rank_works_for_the_mean_layer_and_keeps_for_the_busiest() -> None:
    calm, busy = (1.0,) * 8, (4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    spec = model(8, 2, 4096, moe_routing="measured", moe_expert_loads=busy)
    loads = LayerLoads((0, 1), (calm, busy))
    mixed = replace(spec, moe_expert_loads=(), moe_layer_loads=loads)
    degrees = Degrees(ep=4)
    assert expert_load(mixed, degrees).busiest == 1.5
    works = {
        name: layer_work(replace(graph(), spec=some), BLOCK, degrees, 2)
        for name, some in {
            "busy": spec,
            "mixed": mixed,
            "mean": replace(MIXTRAL, moe_expert_skew=1.5),
        }.items()
    }
    assert works["mixed"].operators == works["mean"].operators
    assert works["mixed"].collectives == works["mean"].collectives
    assert works["mixed"].saved_bytes == works["busy"].saved_bytes
    assert works["mixed"].working_bytes == works["busy"].working_bytes
    assert works["mean"].saved_bytes["none"] < works["busy"].saved_bytes["none"]
    kept = kept_tensors(replace(graph(), spec=mixed), BLOCK, degrees, 2)["selective"]
    total = sum(tensor.num_bytes for tensor in kept)
    assert total == pytest.approx(works["busy"].saved_bytes["selective"])


# What follows from it.


def test_compute_memory_and_collectives_are_those_of_the_busiest_rank() -> None:
    degrees = Degrees(tp=2, ep=4, sequence_parallel=True)
    even = layer_work(graph(), BLOCK, degrees, 2)
    spec = replace(MIXTRAL, moe_expert_skew=1.5)
    skewed = layer_work(replace(graph(), spec=spec), BLOCK, degrees, 2)
    between = {"mlp.activation", "mlp.mul"}
    for before, after in zip(even.operators, skewed.operators, strict=True):
        factor = 1.5 if before.is_grouped else 1.0
        assert after.forward_flops == pytest.approx(factor * before.forward_flops)
        factor = 1.5 if before.name in between else 1.0
        if not before.is_grouped and before.name != "mlp.dispatch":
            assert after.forward_bytes == pytest.approx(factor * before.forward_bytes)
    # What comes to the experts, and four tensors of their inner width, split in two:
    # two copies of each of 4,096 tokens, in 2 bytes.
    kept = 2 * 4096 * (4096 + 4 * 14336 // 2) * 2
    more = skewed.saved_bytes["none"] - even.saved_bytes["none"]
    assert more == pytest.approx(0.5 * kept)
    assert skewed.saved_bytes["full"] == even.saved_bytes["full"]
    assert skewed.parameters == even.parameters
    assert skewed.model_flops == even.model_flops


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.floats(1.0, 9.0), min_size=2, max_size=2).map(sorted),
)
@settings(max_examples=20, deadline=None)
def test_more_skew_never_takes_less(ranks: int, skews: list[float]) -> None:
    works = [
        layer_work(
            replace(graph(), spec=replace(MIXTRAL, moe_expert_skew=skew)),
            BLOCK,
            Degrees(ep=ranks),
            2,
        )
        for skew in skews
    ]
    for low, high in zip(works[0].operators, works[1].operators, strict=True):
        assert low.forward_flops <= high.forward_flops
        assert low.backward_flops <= high.backward_flops
        assert low.forward_bytes <= high.forward_bytes
        assert low.backward_bytes <= high.backward_bytes
    for mode, size in works[0].saved_bytes.items():
        assert size <= works[1].saved_bytes[mode]


@given(
    st.lists(st.floats(0.05, 1.0), min_size=8, max_size=8),
    st.lists(st.floats(0.0, 1.5), min_size=2, max_size=2).map(sorted),
)
@settings(max_examples=40, deadline=None)
def test_more_uneven_loads_never_make_the_busiest_rank_idler(
    shares: list[float], powers: list[float]
) -> None:
    """Powers of shares are the more uneven the larger the power (majorisation)."""
    busiest = []
    for power in powers:
        loads = tuple(share**power for share in shares)
        if max(loads) * 2 > sum(loads):
            return
        spec = model(8, 2, 4096, moe_routing="measured", moe_expert_loads=loads)
        busiest.append(expert_load(spec, Degrees(ep=8)).busiest)
    assert busiest[0] <= busiest[1] * (1 + 1e-12)


@given(
    st.sampled_from(["random", "power-law"]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([0.0, 0.7, 1.0, 1.3, 2.0]),
    st.sampled_from([32, 1000, 4096]),
)
@settings(max_examples=60, deadline=None)
def test_loads_keep_within_what_ranks_can_get(
    routing: str, ranks: int, factor: float, length: int
) -> None:
    powers = {"moe_routing_exponent": 1.01} if routing == "power-law" else {}
    spec = model(
        16,
        4,
        length,
        moe_routing=routing,
        moe_expert_capacity_factor=factor,
        **powers,
    )
    load = expert_load(spec, Degrees(ep=ranks))
    assert 0.0 < load.mean <= 1.0 + 1e-9
    assert load.mean <= load.busiest * (1 + 1e-12)
    assert load.busiest <= min(ranks, 16 / 4) * (1 + 1e-9)
    if factor:
        even = length * 4 / 16
        assert load.busiest <= math.ceil(factor * even) / even * (1 + 1e-9)


# Dispatchers.


def test_all_to_alls_bring_the_busiest_rank_what_its_experts_compute() -> None:
    spec, degrees = model(64, 6, 4096, **POWER), Degrees(ep=8)
    assert exchanged_load(spec, degrees, IDEAL) == expert_load(spec, degrees)
    gathers = replace(IDEAL, moe_token_dispatcher_type="allgather")
    assert exchanged_load(spec, degrees, gathers) == EVEN


def test_a_token_that_comes_once_evens_out_what_the_busiest_rank_gets() -> None:
    ranks, length, copies = 8, 400, 6
    rng = np.random.default_rng(5)
    loads = 1.0 / np.arange(2, 66)
    order = rng.permutation(64)
    spec = model(
        64,
        copies,
        length,
        moe_routing="measured",
        moe_expert_loads=tuple(loads[order].tolist()),
    )
    flex = replace(IDEAL, moe_token_dispatcher_type="flex")
    load = exchanged_load(spec, Degrees(ep=ranks), flex)
    assert 1.0 < load.busiest < expert_load(spec, Degrees(ep=ranks)).busiest
    # Copies of a token are drawn one by one here, so that some coincide.
    shares = loads[order] / loads.sum()
    tokens = rng.choice(64, size=(ranks * length, copies), p=shares) // 8
    came = np.array([(tokens == rank).any(axis=1).mean() for rank in range(ranks)])
    even = 1.0 - (1.0 - 1.0 / ranks) ** copies
    assert load.busiest == pytest.approx(came.max() / even, rel=0.02)


def test_nodes_are_as_busy_as_their_ranks_together() -> None:
    spec = model(64, 6, 4096, **POWER)
    flex: Software = replace(IDEAL, moe_token_dispatcher_type="flex", ranks_per_node=8)
    wide = exchanged_load(spec, Degrees(ep=32), flex)
    alone = exchanged_load(spec, Degrees(ep=32), replace(flex, ranks_per_node=0))
    assert 1.0 < wide.busiest < alone.busiest


# Errors.


@failures.over(
    ["routing", "where"],
    [
        ({"moe_routing": "power-law"}, "moe_routing_exponent"),
        ({"moe_routing_exponent": 1.2}, "moe_routing_exponent"),
        ({"moe_routing": "log-normal"}, "moe_routing_sigma"),
        ({**POWER, "moe_routing_sigma": 0.3}, "moe_routing_sigma"),
        ({"moe_routing": "measured"}, "moe_expert_loads"),
        ({"moe_expert_loads": (1.0,) * 8}, "moe_expert_loads"),
        (
            {"moe_routing": "measured", "moe_expert_loads": (1.0,) * 7},
            "moe_expert_loads",
        ),
        (
            {"moe_routing": "measured", "moe_expert_loads": (9.0,) + (1.0,) * 7},
            "moe_expert_loads",
        ),
        (
            {"moe_routing": "measured", "moe_expert_loads": (0.0,) * 8},
            "moe_expert_loads",
        ),
        (
            {"moe_pad_expert_input_to_capacity": True},
            "moe_pad_expert_input_to_capacity",
        ),
        ({"moe_routing": "uniform"}, "moe_routing"),
        ({"moe_expert_placement": "balanced"}, "moe_expert_placement"),
        (
            {"moe_routing": "random", "moe_expert_placement": "balanced"},
            "moe_expert_placement",
        ),
        (
            {
                **POWER,
                "moe_expert_placement": "balanced",
                "moe_expert_capacity_factor": 1.0,
                "moe_pad_expert_input_to_capacity": True,
            },
            "moe_expert_placement",
        ),
        ({"moe_routing": "random", "moe_expert_skew": 2.0}, "moe_expert_skew"),
    ],
)
def test_routing_that_is_not_all_said_is_refused(
    routing: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        model(8, 2, 4096, **routing)
    assert caught.value.where == where


@failures.over(
    "routing", [{"moe_routing": "random"}, {"moe_expert_capacity_factor": 1}]
)
def test_a_dense_model_has_nowhere_to_send_tokens(routing: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="the model has none"):
        replace(load_model("llama3-8b"), **routing)


# Against silicon.


@pytest.mark.slow
@pytest.mark.skipif(not SILICON.exists(), reason="needs the measured layers of experts")
def test_uneven_layers_take_what_even_ones_with_the_busiest_ranks_tokens_take() -> None:
    """Eight experts of AIConfigurator's tables, from 256 rows an expert on.

    What the busiest rank takes is what an even layer takes with as many times the
    tokens: medians of all kernels and chips, one draw of routing each.
    """
    pd = pytest.importorskip("pandas")
    rows = pd.read_parquet(SILICON)
    ranks = rows.moe_ep_size.isin([2, 4])
    rows = rows[(rows.num_experts == 8) & ranks & (rows.moe_tp_size == 1)]
    rows = rows[rows.num_tokens * rows.topk >= 8 * 256]
    shape = ["system", "framework", "version", "kernel_source", "moe_dtype"]
    shape += ["hidden_size", "inter_size", "topk", "moe_ep_size"]
    errors = []
    for key, measured in rows.groupby(shape):
        even = measured[measured.distribution == "balanced"]
        known = even.groupby("num_tokens").latency_ms.min()
        if len(known) < 4:
            continue
        for row in measured[measured.distribution != "balanced"].itertuples():
            spec = model(
                8,
                int(row.topk),
                int(row.num_tokens // key[-1]),
                moe_routing="power-law",
                moe_routing_exponent=float(row.distribution.rpartition("_")[2]),
            )
            tokens = (
                row.num_tokens * expert_load(spec, Degrees(ep=int(key[-1]))).busiest
            )
            if tokens <= known.index.max():
                logs = np.log(known.index.to_numpy(float)), np.log(known.to_numpy())
                expected = math.exp(np.interp(math.log(tokens), *logs))
                errors.append(row.latency_ms / expected)
    assert len(errors) > 500
    assert np.median(errors) == pytest.approx(1.0, abs=0.05)
