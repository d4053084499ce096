"""What kinds of context parallelism, and experts split by themselves, send and hold."""

from dataclasses import replace

import pytest

from estimators.grouping import Grouping
from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import CollectiveWork, Degrees, LayerWork
from estimators.models.library import load_model
from estimators.tracing.trace import trace_model
from tests import failures

LLAMA, MIXTRAL = (
    trace_model(load_model(name)) for name in ("llama3-8b", "mixtral-8x7b")
)
BLOCK = 1
LENGTH = LLAMA.spec.sequence_length
QUERIES = 2 * LENGTH * LLAMA.spec.hidden_size
KEYS = 2 * 2 * LENGTH * LLAMA.spec.num_query_groups * LLAMA.spec.kv_channels
"""Bytes of queries, and of keys and values together, of a whole sequence."""


def llama(cp: int, kind: str, *, a2a: int = 0, tp: int = 1) -> LayerWork:
    grouping = Grouping(cp_comm_type=kind, a2a=a2a)
    return layer_work(LLAMA, BLOCK, Degrees(tp=tp, cp=cp, grouping=grouping), 2)


def mixtral(tp: int, ep: int, etp: int) -> LayerWork:
    grouping = Grouping.of((tp, 1, ep), etp=etp)
    degrees = Degrees(tp=tp, ep=ep, sequence_parallel=tp > 1, grouping=grouping)
    return layer_work(MIXTRAL, BLOCK, degrees, 2)


def sent(layer: LayerWork) -> dict[tuple[str, str], CollectiveWork]:
    return {(item.operation, item.group): item for item in layer.collectives}


@failures.over("cp", [2, 4, 8])
def test_gathered_keys_and_values_are_whole_and_their_gradients_scattered(
    cp: int,
) -> None:
    found = sent(llama(cp, "all_gather"))
    assert set(found) == {("all_gather", "context"), ("reduce_scatter", "context")}
    assert found["all_gather", "context"][2:6] == (2, KEYS, 2, KEYS)
    assert found["reduce_scatter", "context"][2:6] == (0, 0, 2, KEYS)


@failures.over("cp", [2, 4, 8])
def test_ulysses_exchanges_queries_keys_values_and_the_context(cp: int) -> None:
    """Each 1 / cp of a sequence; with as many groups as heads 4 N h / P elements."""
    each = (2 * QUERIES + KEYS) / cp
    found = sent(llama(cp, "a2a"))
    assert set(found) == {("all_to_all", "context")}
    assert found["all_to_all", "context"][2:6] == (4, each, 4, each)


def test_ulysses_sends_less_on_more_ranks_and_a_ring_does_not() -> None:
    exchanged = [
        sent(llama(cp, "a2a"))["all_to_all", "context"].forward_bytes * (cp - 1) / cp
        for cp in (2, 4, 8)
    ]
    assert exchanged == sorted(exchanged, reverse=True)
    ring = [
        sent(llama(cp, "p2p"))["send_recv", "context"].forward_bytes for cp in (2, 4, 8)
    ]
    assert ring == sorted(ring)
    assert ring == [KEYS * (cp - 1) / cp for cp in (2, 4, 8)]


def test_two_levels_exchange_inside_and_turn_outside() -> None:
    found = sent(llama(8, "a2a+p2p", a2a=4))
    each = (2 * QUERIES + KEYS) / 8
    assert found["all_to_all", "context"][2:6] == (4, each, 4, each)
    assert found["send_recv", "context"][2:6] == (1, KEYS / 8, 2, 2 * KEYS / 8)


def test_ends_of_two_levels_are_the_two_kinds() -> None:
    assert llama(8, "a2a+p2p", a2a=8) == llama(8, "a2a")
    assert llama(8, "a2a+p2p", a2a=1) == llama(8, "p2p")


@failures.over("kind", ["all_gather", "a2a"])
def test_compute_is_the_ring_s_with_more_keys_at_a_time(kind: str) -> None:
    ring, other = llama(4, "p2p"), llama(4, kind)
    assert other.model_flops == ring.model_flops
    assert other.parameters == ring.parameters
    for one, two in zip(ring.operators, other.operators, strict=True):
        assert one.forward_flops == two.forward_flops
    passed, whole = (
        {work.n for work in layer.operators if work.kind == "attention"}
        for layer in (ring, other)
    )
    assert (passed, whole) == ({LENGTH / 4}, {LENGTH})


def test_gathered_keys_are_held_beside_their_gradients() -> None:
    """On many ranks they are larger than what else is alive; saved is no more."""
    few, many = llama(2, "all_gather"), llama(64, "all_gather")
    assert many.working_bytes == 2 * KEYS
    assert few.working_bytes == llama(2, "p2p").working_bytes
    assert many.saved_bytes == llama(64, "p2p").saved_bytes


def test_query_groups_are_copied_where_more_ranks_exchange() -> None:
    """8 groups on 16 ranks: each twice, on the wire and in memory."""
    grouped, copied = llama(8, "a2a"), llama(16, "a2a")
    size = sent(copied)["all_to_all", "context"].forward_bytes
    assert size == (2 * QUERIES + 2 * KEYS) / 16
    plain = llama(16, "p2p").saved_bytes
    assert copied.saved_bytes["none"] == plain["none"] + KEYS / 16
    assert copied.saved_bytes["selective"] == plain["selective"]
    assert grouped.saved_bytes == llama(8, "p2p").saved_bytes


def test_heads_must_divide_among_those_who_exchange_them() -> None:
    def problem(cp: int, kind: str, tp: int = 1, a2a: int = 0) -> str | None:
        grouping = Grouping(cp_comm_type=kind, a2a=a2a)
        spec = replace(LLAMA.spec, sequence_length=3 * LENGTH)
        return divisibility_problem(spec, Degrees(tp=tp, cp=cp, grouping=grouping))

    assert problem(32, "a2a") is None
    assert "32 heads" in (problem(64, "a2a") or "")
    assert "8 heads" in (problem(16, "a2a", tp=4) or "")
    assert problem(64, "p2p") is None
    assert problem(64, "a2a+p2p", a2a=8) is None
    assert "32 heads" in (problem(3, "a2a") or "")
    assert "do not divide" in (problem(8, "a2a+p2p", a2a=3) or "")


@failures.over("ep", [1, 2, 8])
def test_as_many_for_experts_as_for_the_rest_is_what_was(ep: int) -> None:
    assert Grouping.of((4, 1, ep), etp=4) == Grouping()
    degrees = Degrees(tp=4, ep=ep, sequence_parallel=True)
    assert mixtral(4, ep, 4) == layer_work(MIXTRAL, BLOCK, degrees, 2)


@failures.over(("tp", "etp"), [(4, 1), (4, 2), (8, 2)])
def test_experts_are_split_over_their_own_ranks(tp: int, etp: int) -> None:
    whole, split = mixtral(1, 1, 1), mixtral(tp, 2, etp)
    assert split.expert_parameters == whole.expert_parameters / (2 * etp)
    assert split.model_flops == whole.model_flops
    # All ranks of a stage together do all of the products.
    flops = {one.name: one.forward_flops for one in whole.operators if one.is_grouped}
    for one in split.operators:
        if one.is_grouped:
            assert one.forward_flops == pytest.approx(flops[one.name] / tp)


@failures.over(("tp", "etp"), [(4, 1), (4, 2), (8, 2)])
def test_each_tensor_rank_dispatches_its_own_tokens(tp: int, etp: int) -> None:
    spec = MIXTRAL.spec
    copies = 2.0 * spec.sequence_length * 2 * spec.hidden_size
    found = sent(mixtral(tp, 8, etp))
    exchanged = found["all_to_all", "expert"]
    assert exchanged[2:6] == (2, 2 * copies / tp, 2, 2 * copies / tp)
    # What is left of the tensor group is attention's pair.
    hidden = 2.0 * spec.sequence_length * spec.hidden_size
    assert found["reduce_scatter", "tensor"].forward_bytes == hidden
    gathered = etp * copies / tp
    if etp == 1:
        assert ("all_gather", "expert tensor") not in found
        return
    assert found["all_gather", "expert tensor"][2:6] == (1, gathered, 1, gathered)
    assert found["reduce_scatter", "expert tensor"][2:6] == (1, gathered, 1, gathered)


def test_own_tensor_ranks_for_experts_need_experts_and_sequence_parallelism() -> None:
    grouping = Grouping(etp=1)
    alone = Degrees(tp=4, grouping=grouping)
    assert "sequence_parallel" in (divisibility_problem(MIXTRAL.spec, alone) or "")
    split = alone._replace(sequence_parallel=True)
    assert divisibility_problem(MIXTRAL.spec, split) is None
    assert "no experts" in (divisibility_problem(LLAMA.spec, split) or "")


def test_experts_are_spread_over_ranks_or_folded_into_others() -> None:
    assert not Degrees(tp=2, cp=2).spreads_experts
    assert Degrees(ep=2).spreads_experts
    folded = Degrees(tp=2, grouping=Grouping.of((2, 1, 1), etp=1))
    assert folded.spreads_experts == folded.grouping.is_folded
    assert (Degrees(tp=4).etp, folded.etp) == (4, 1)
