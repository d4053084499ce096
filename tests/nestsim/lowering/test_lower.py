"""What a plan works, sends and holds, layer by layer, beside what the planner says."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nestsim.lowering.collectives import KeptPhases, LockstepGroups, all_to_all_phase
from nestsim.lowering.lower import _stages, lower_plan
from nestsim.lowering.notes import left_out_level_notes
from nestsim.lowering.passes import Pass
from nestsim.simulator.replay import replay
from nestsim.simulator.system import NONE, SPAN_KINDS, TRANSFER_KINDS, ReplaySettings
from nestsim.simulator.work import Move
from planner.cost.pricing import plan_degrees, plan_kinds, price_plan, rates_of
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.search.best_first import search
from planner.step.instructions import BACKWARD, FORWARD, USUAL_KIND, WEIGHT
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.planner.cost.test_pricing import TREE, plan, workload
from tests.planner.examples import eight_devices, executed, tiny_job
from tests.planner.fleets import executed_on, slow_fleet
from tests.planner.instances import instances, interleaved
from topologies import FatTreeSpec, LevelSpec, build_network

BY_LAYER = ReplaySettings(granularity="layer")

IN_BUCKETS = {"overlap_grad_reduce": True, "overlap_param_gather": True}

relaxed = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


SMALL = st.one_of(
    instances(most_devices=8, blocks=(1, 2, 3, 4)), interleaved(most_devices=8)
)


@st.composite
def priced_plans(draw, problems=SMALL):
    """A network, a job and a plan that a search found, under any schedule."""
    network, job, spec = draw(problems)
    found = search(network, job, replace(spec, keep_best=3)).plans
    assume(found)
    priced = draw(st.sampled_from(found))
    if priced.plan.virtual_pipeline_model_parallel_size == 1:
        table = job.table(plan_degrees(priced.plan))
        # Tables are drawn column by column.
        splits = bool((table.weight_gradient_time <= table.backward_time).all())
        names = [
            name
            for name, one in SCHEDULES.items()
            if not one.interleaves and (splits or not one.splits_backward)
        ]
        changed = replace(priced.plan, schedule=draw(st.sampled_from(names)))
        priced = price_plan(network, job, changed)
    return network, job, priced


# Durations.


@given(priced_plans())
@relaxed
def test_passes_take_as_long_as_the_planner_says(case):
    network, job, priced = case
    by_stage = lower_plan(network, job, priced)
    v = priced.plan.virtual_pipeline_model_parallel_size
    expected = [stage.chunk_times[c] for c in range(v) for stage in priced.stages]
    times = by_stage.forward_time, by_stage.backward_time, by_stage.weight_time
    nothing = np.zeros(len(expected))
    pairs = [by_stage.unusual_time.get(kind, nothing) for kind in sorted(USUAL_KIND)]
    written = list(zip(*times, *pairs, strict=True))
    # Pairs are written layer by layer; all else as it is charged.
    exact = not priced.plan.overlap_moe_expert_parallel_comm
    assert written == (expected if exact else pytest.approx(np.array(expected)))
    # Layer by layer, if every collective takes the planner's price.
    rates = rates_of(network, job, priced.plan)
    kinds = plan_kinds(job, priced.plan)
    stages = [
        stage for (stage,) in _stages(KeptPhases(network), job, priced, rates, kinds)
    ]
    for stage, cost in zip(stages, priced.stages, strict=True):
        prices = stage.traffic.times(rates)
        total = np.zeros(6)
        for passes, planned in zip(stage.passes, cost.chunk_times, strict=True):
            found = [passes[k].time(prices) if k in passes else 0.0 for k in range(6)]
            total += found
            # ZeRO's bytes go by the parameters of a chunk, the planner's by its layers.
            if v == 1:
                assert found == pytest.approx(planned, rel=1e-9)
        whole = (cost.forward_time, cost.backward_time, cost.weight_gradient_time)
        assert total[:3] == pytest.approx(whole, rel=1e-9)
        compute = sum(
            one.worked
            for own in stage.passes
            for kind, one in own.items()
            if kind not in USUAL_KIND
        )
        assert compute >= cost.parts["compute"] * (1 - 1e-9)


REAL = {
    "second copies": (
        "llama",
        {"zero_stage": 3, "zero_hpz_partition_size": 2, "recompute": "selective"},
    ),
    "tensor": ("gpt", {"tensor_model_parallel_size": 4}),
    "sequence": (
        "gpt",
        {"tensor_model_parallel_size": 4, "sequence_parallel": True},
    ),
    "full": ("gpt", {"tensor_model_parallel_size": 4, "recompute": "full"}),
    "context": ("llama", {"context_parallel_size": 2, "data_parallel_size": 1}),
    "experts": (
        "mixtral",
        {
            "tensor_model_parallel_size": 2,
            "data_parallel_size": 2,
            "expert_model_parallel_size": 2,
            "recompute": "selective",
        },
    ),
    "experts on context ranks": (
        "mixtral",
        {
            "context_parallel_size": 2,
            "data_parallel_size": 2,
            "expert_model_parallel_size": 2,
            "zero_stage": 1,
        },
    ),
    "gathered keys": (
        "llama",
        {"context_parallel_size": 4, "cp_comm_type": "all_gather"},
    ),
    "ulysses": (
        "llama",
        {"context_parallel_size": 4, "cp_comm_type": "a2a", "recompute": "selective"},
    ),
    "two levels": (
        "llama",
        {
            "context_parallel_size": 4,
            "cp_comm_type": "a2a+p2p",
            "hierarchical_context_parallel_sizes": (2, 2),
        },
    ),
    "experts on tensor ranks": (
        "mixtral",
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "expert_model_parallel_size": 2,
            "expert_tensor_parallel_size": 1,
            "zero_stage": 1,
        },
    ),
    "halved experts": (
        "mixtral",
        {
            "tensor_model_parallel_size": 4,
            "sequence_parallel": True,
            "expert_model_parallel_size": 2,
            "expert_tensor_parallel_size": 2,
            "recompute": "full",
        },
    ),
    "replicated experts": (
        "mixtral",
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "expert_tensor_parallel_size": 1,
            "zero_stage": 3,
        },
    ),
    "zero-2": ("gpt", {"data_parallel_size": 4, "zero_stage": 2}),
    "zero-3": (
        "mixtral",
        {
            "data_parallel_size": 4,
            "expert_model_parallel_size": 2,
            "zero_stage": 3,
            "recompute": "stage",
        },
    ),
    "split": (
        "gpt",
        {"data_parallel_size": 4, "zero_stage": 3, "schedule": "zb-h1"},
    ),
}


def real(name, **changes):
    """Price a real model on two nodes of four, two stages."""
    family, sizes = REAL[name]
    net, job = eight_devices(), tiny_job(2.0**40, family=family)
    spec = PlanSpec(
        **{"micro_batch_size": 1, "pipeline_model_parallel_size": 2, **sizes, **changes}
    )
    return net, job, price_plan(net, job, build_plan(net, job, spec))


def pass_times(result):
    """Return the length of the passes of each stage and kind."""
    spans = result.spans
    found = {}
    for stage, kind in product(np.unique(spans.stage), range(3)):
        own = (spans.stage == stage) & (spans.kind == kind)
        if own.any():
            found[int(stage), kind] = np.sort((spans.end - spans.start)[own])
    return found


@failures.over("name", list(REAL))
def test_layer_by_layer_a_real_model_takes_as_long_where_nothing_is_shared(name):
    net, job, priced = real(name)
    # One microbatch: no transfer meets a collective.
    priced = price_plan(net, job, replace(priced.plan, num_microbatches=1))
    whole = replay(net, lower_plan(net, job, priced))
    split = replay(net, lower_plan(net, job, priced, BY_LAYER))
    in_layers = split.transfers.kind >= TRANSFER_KINDS.index("tensor")
    assert in_layers.any()
    # Every move and every collective is rounded to a tick.
    rounding = 2.0**-40 * 2 * (in_layers.sum() + 10)
    assert split.iteration_time == pytest.approx(whole.iteration_time, abs=rounding)
    expected = pass_times(whole)
    for key, lengths in pass_times(split).items():
        assert lengths == pytest.approx(expected[key], abs=rounding)


@failures.over("name", list(REAL))
def test_compute_varies_by_layer_and_between_collectives(name):
    net, job, priced = real(name)
    whole, split = lower_plan(net, job, priced), lower_plan(net, job, priced, BY_LAYER)
    for kind, moves in split.layers.passes.items():
        for virtual, one in enumerate(moves):
            segments = whole.segments_in(kind, virtual)
            assert split.segments_in(kind, virtual) == segments
            # Layers that follow each other without a collective are one move.
            first, last = priced.plan.stages[virtual].layers
            worked = sum(move.duration > 0.0 for move in one)
            assert worked <= segments <= worked + last + 1 - first


def test_what_nobody_shares_varies_by_layer():
    net, job = eight_devices(), tiny_job(2.0**40)
    spec = PlanSpec(micro_batch_size=1, pipeline_model_parallel_size=2)
    priced = price_plan(net, job, build_plan(net, job, spec))
    work = lower_plan(net, job, priced)
    table = job.table(plan_degrees(priced.plan))
    for stage, one in enumerate(priced.plan.stages):
        layers = slice(one.layers[0], one.layers[1] + 1)
        for kind, times in (
            (FORWARD, table.forward_time),
            (BACKWARD, table.backward_time),
        ):
            assert work.segments_in(kind, stage) == (times[layers] > 0.0).sum()


def test_every_collective_of_every_layer_is_sent():
    net, job, priced = real("sequence")
    m = priced.plan.num_microbatches
    sent = replay(net, lower_plan(net, job, priced, BY_LAYER)).transfers
    tensor = sent.kind == TRANSFER_KINDS.index("tensor")
    table = job.table(plan_degrees(priced.plan))
    for stage, one in enumerate(priced.plan.stages):
        span = slice(one.layers[0], one.layers[1] + 1)
        count = sum(
            item.forward_count[span].sum() + item.backward_count[span].sum()
            for item in table.traffic
        )
        assert (tensor & (sent.stage == stage)).sum() == m * count
    assert set(sent.replica[tensor].tolist()) == {0}
    assert set(sent.microbatch[tensor].tolist()) == set(range(m))


@given(priced_plans())
@settings(relaxed, max_examples=15)
def test_any_plan_is_replayed_layer_by_layer(case):
    network, job, priced = case
    result = replay(network, lower_plan(network, job, priced, BY_LAYER))
    whole = replay(network, lower_plan(network, job, priced))
    assert result.span_multiplicity.sum() == whole.span_multiplicity.sum()
    assert result.links.num_bytes.sum() >= whole.links.num_bytes.sum() * (1 - 1e-12)
    # What went over each link is what its load adds up to.
    used = result.links
    moved = used.rates @ np.diff(used.bin_edges)
    np.testing.assert_allclose(moved, used.num_bytes[used.link_ids], rtol=1e-9)
    assert [one.peak for one in result.memory] == [one.peak for one in whole.memory]


@given(priced_plans(), st.tuples(*[st.booleans()] * 5), st.floats(1.0, 30.0))
@settings(relaxed, max_examples=20)
def test_folding_and_skipping_change_nothing_whatever_overlaps(case, switches, size):
    network, job, priced = case
    by_layer, reduce, gather, p2p, tensor = switches
    chosen = BY_LAYER if by_layer else ReplaySettings()
    job = executed(
        job,
        overlap_grad_reduce=reduce,
        overlap_param_gather=gather,
        overlap_p2p_comm=p2p,
        tp_comm_overlap=tensor,
        communication_slowdown=1.25,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nestsim.lowering.lower.bucket_parameters", lambda _: size)
        work = lower_plan(network, job, priced, chosen)
    plain = replace(chosen, folding=False, skipping=False)
    whole = replay(network, work, plain)
    found = replay(network, work, chosen, every_actor=True)
    assert found.iteration_time == whole.iteration_time
    for name in ("spans", "transfers"):
        for ours, theirs in zip(
            getattr(found, name), getattr(whole, name), strict=True
        ):
            assert ours.tobytes() == theirs.tobytes()


# The small language of passes.

operations = st.lists(
    st.one_of(
        st.integers(0, 4).map(lambda n: ("work", float(n))),
        st.integers(0, 2).map(lambda n: ("exchange", n)),
        st.integers(0, 2).map(lambda n: ("beside", n)),
    ),
    max_size=8,
)


@given(operations)
def test_moves_say_the_same_as_the_pass(drawn):
    one = Pass()
    expected = []
    for name, value in drawn:
        if name == "work":
            one.work(value)
            expected += [("work", value)] * (value > 0)
        elif name == "exchange":
            one.exchange([value])
            expected += [("send", value), ("wait", value)]
        else:
            one.send(value)
            one.work(3.0)
            one.wait(value)
            expected += [("send", value), ("work", 3.0), ("wait", value)]
    said = []
    moves = one.moves()
    for wait, duration, post in moves:
        said += [("wait", wait)] * (wait != NONE)
        said += [("work", duration)] * (duration > 0)
        said += [("send", post)] * (post != NONE)
    assert moves
    assert joined(said) == joined(expected)
    assert one.worked == sum(value for name, value in expected if name == "work")


def joined(said):
    """Join work that follows work."""
    found = []
    for name, value in said:
        if name == "work" and found and found[-1][0] == "work":
            found[-1] = ("work", found[-1][1] + value)
        else:
            found.append((name, value))
    return found


# Overlaps, by hand: the layers of `tests.planner.cost.test_pricing`.


def by_hand(devices, job, settings, *, zero=0, **overlaps):
    one = plan(devices, (), m=1, zero=zero)
    job = executed(job, **overlaps)
    return lower_plan(TREE, job, price_plan(TREE, job, one), settings)


def test_tensor_collectives_follow_the_compute_of_their_layer():
    work = by_hand([[[0, 1]]], workload(tp=2, global_batch=1), BY_LAYER)
    # Compute of 1, 4 and 2 s forward; 8 bytes through each port at 8 byte/s, and
    # two steps of 1 s latency.
    (forward,) = work.layers.passes[FORWARD]
    assert forward == (
        Move(NONE, 1.0, 0),
        Move(0, 4.0, 0),
        Move(0, 2.0, 0),
        Move(0, 0.0, NONE),
    )
    spans = replay(TREE, work).spans
    assert (spans.end - spans.start)[0] == 1.0 + 4.0 + 2.0 + 3 * 3.0


@failures.over("granularity", ["stage", "layer"])
@failures.over(("factor", "expected"), [(1.0, 3 + 4 + 3), (2.0, 12.0)])
def test_tensor_collectives_beside_compute_take_the_longer_time(
    granularity, factor, expected
):
    # Twice as slow beside 3 s of communication: 1 s becomes 2 s; 4 s become 5.5 s,
    # since 1.5 s of work are done meanwhile, and 2 s become 3.5 s.
    work = by_hand(
        [[[0, 1]]],
        workload(tp=2, global_batch=1),
        ReplaySettings(granularity=granularity),
        tp_comm_overlap=True,
        communication_slowdown=factor,
    )
    spans = replay(TREE, work).spans
    assert (spans.end - spans.start)[0] == pytest.approx(expected)


@failures.over("granularity", ["stage", "layer"])
def test_weights_are_gathered_and_gradients_reduced_beside_the_neighbouring_layers(
    granularity,
):
    def lengths(**overlap):
        work = by_hand(
            [[[0], [1]]],
            workload(global_batch=2),
            ReplaySettings(granularity=granularity),
            zero=3,
            **overlap,
        )
        spans = replay(TREE, work).spans
        return (spans.end - spans.start)[:2]

    # Gathers of 2.25, 3.5 and 2.25 s; compute of 1, 4, 2 s and 2, 8, 4 s; reductions
    # twice the bytes of a gather: 3.5, 6 and 3.5 s.
    forward, backward = lengths()
    assert forward == pytest.approx(7 + 8)
    assert backward == pytest.approx(14 + 8 + 13)
    forward, backward = lengths(overlap_param_gather=True)
    assert forward == pytest.approx(2.25 + 3.5 + 4 + 2)
    # Each reduction is waited for before the next layer begins.
    assert backward == pytest.approx(2.25 + 4 + 3.5 + 8 + 6 + 2 + 3.5)
    forward, backward = lengths(overlap_param_gather=True, overlap_grad_reduce=True)
    assert backward == pytest.approx(2.25 + 4 + 8 + 6 + 3.5)


def test_gradient_buckets_are_full_when_their_parameters_are_done(monkeypatch):
    monkeypatch.setattr("nestsim.lowering.lower.bucket_parameters", lambda _: 16.0)
    work = by_hand(
        [[[0], [1]]],
        workload(global_batch=2),
        ReplaySettings(),
        zero=1,
        **IN_BUCKETS,
    )
    # Backward: 10 parameters in 4 s, 20 in 8 s, 10 in 2 s.
    (reduces,) = work.reduce_buckets
    assert [one.at * 14 for one in reduces] == pytest.approx([6.4, 12.4, 14.0])
    sizes = [one.phases[0].bytes_per_member for one in reduces]
    assert sizes == [16 * 4 / 2, 16 * 4 / 2, 8 * 4 / 2]
    # Forward: 10 in 1 s, 20 in 4 s, 10 in 2 s.
    (gathers,) = work.gather_buckets
    assert [one.at * 7 for one in gathers] == pytest.approx([0.0, 2.2, 5.4])
    assert work.reduce_phases == work.gather_phases == ((),)
    later = lower_plan(
        TREE,
        workload(global_batch=2),
        price_plan(TREE, workload(global_batch=2), plan([[[0], [1]]], (), m=1, zero=1)),
    )
    assert later.reduce_buckets == later.gather_buckets == ((),)
    assert sum(sizes) == later.reduce_phases[0][0].bytes_per_member
    net_times = [replay(TREE, one).iteration_time for one in (work, later)]
    assert net_times[0] < net_times[1]


def num_senders(phase):
    """Return how many messages a phase has."""
    return phase.ends()[0].size


@given(priced_plans(), st.floats(1.0, 30.0))
@settings(relaxed, max_examples=15)
def test_buckets_move_the_bytes_of_the_whole_collectives(case, size):
    network, job, priced = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nestsim.lowering.lower.bucket_parameters", lambda _: size)
        hidden = lower_plan(network, executed(job, **IN_BUCKETS), priced)
    shown = lower_plan(network, job, priced)
    pairs = (
        (hidden.reduce_buckets, shown.reduce_phases),
        (hidden.gather_buckets, shown.gather_phases),
    )
    for found, expected in pairs:
        for buckets, phases in zip(found, expected, strict=True):
            volume = sum(p.bytes_per_member * num_senders(p) for p in phases)
            parts = [p for one in buckets for p in one.phases]
            moved = sum(p.bytes_per_member * num_senders(p) for p in parts)
            assert moved == pytest.approx(volume, rel=1e-9)
            for chunk in {one.chunk for one in buckets}:
                places = [one.at for one in buckets if one.chunk == chunk]
                assert places == sorted(places)
                assert 0.0 <= places[0] <= places[-1] <= 1.0 + 1e-12
    result = replay(network, hidden)
    kind = [TRANSFER_KINDS.index(name) for name in ("reduce", "gather")]
    count = sum(len(b.phases) for pair in pairs for own in pair[0] for b in own)
    sent = np.isin(result.transfers.kind, kind)
    assert result.transfer_multiplicity[sent].sum() == count


# Experts.


@given(st.integers(2, 9), st.floats(1.0, 9.0), st.booleans())
def test_the_busiest_rank_gets_its_share_and_the_others_the_rest(n, skew, combine):
    skew = min(skew, float(n))
    lockstep = LockstepGroups(
        np.arange(n)[None], np.zeros(1, np.int64), np.zeros(1, np.int64)
    )
    phase = all_to_all_phase(lockstep, float(n), skew, combine=combine)
    weights = np.ones(phase.rings.shape) if phase.weights is None else phase.weights
    receivers = np.roll(phase.rings, -1, axis=1)
    ends = phase.rings if combine else receivers
    each = np.bincount(ends.ravel(), weights.ravel(), minlength=n)
    assert each[0] == pytest.approx((n - 1) * skew, abs=1e-4)
    assert each.sum() == pytest.approx(n * (n - 1), abs=1e-3)
    assert set(zip(phase.rings.ravel(), receivers.ravel(), strict=True)) == {
        (a, b) for a in range(n) for b in range(n) if a != b
    }
    assert np.array_equal(weights * 2.0**20, np.round(weights * 2.0**20))


@failures.over("granularity", ["stage", "layer"])
def test_a_skewed_routing_makes_passes_longer(granularity):
    net, job, priced = real("experts")
    times = []
    for skew in (1.0, 1.25, 1.5, 2.0, 9.0):
        skewed = executed(job, expert_skew=skew)
        again = price_plan(net, skewed, priced.plan)
        settings = ReplaySettings(granularity=granularity)
        work = lower_plan(net, skewed, again, settings)
        times.append(replay(net, work).pipeline_time)
        held = max(cost.peak_memory for cost in again.stages)
        assert held >= max(cost.peak_memory for cost in priced.stages)
    assert times[:4] == sorted(set(times[:4]))
    # Two ranks: all tokens to one of them is twice the mean.
    assert times[3] == times[4]


# Memory.


@given(priced_plans())
@settings(relaxed, max_examples=25)
def test_the_peak_is_never_above_the_planners_bound(case):
    network, job, priced = case
    result = replay(network, lower_plan(network, job, priced))
    for found, cost in zip(result.memory, priced.stages, strict=True):
        assert found.peak <= cost.peak_memory * (1 + 1e-12)
        assert sum(found.peak_parts.values()) == pytest.approx(found.peak, rel=1e-12)
        kept = ("weights", "gradients", "optimizer", "frozen weights")
        static = sum(cost.memory.get(name, 0.0) for name in kept)
        # What the optimizer makes for its step follows the last pass.
        each = job.parameter_bytes
        copies = cost.memory["optimizer"] * each.copies / each.optimizer
        assert found.total[-1] == pytest.approx(static + copies, rel=1e-12)


@failures.over("name", list(REAL))
def test_with_one_chunk_and_its_backward_pass_whole_the_bound_is_met(name):
    net, job, priced = real(name)
    if SCHEDULES[priced.plan.schedule].splits_backward:
        return
    result = replay(net, lower_plan(net, job, priced))
    for found, cost in zip(result.memory, priced.stages, strict=True):
        assert found.peak == pytest.approx(cost.peak_memory, rel=1e-9)


def test_what_is_held_has_a_name_and_its_passes():
    net, job, priced = real("zero-3")
    memory = lower_plan(net, job, priced).memory
    for stage in memory:
        passes = {
            part: {(one.begin, one.end) for one in stage.held if one.part == part}
            for part in ("gathered layers", "gradient bucket", "recomputed")
        }
        assert passes == {
            "gathered layers": {(FORWARD, FORWARD), (BACKWARD, BACKWARD)},
            "gradient bucket": {(BACKWARD, BACKWARD)},
            "recomputed": {(BACKWARD, BACKWARD)},
        }


def test_nothing_but_memory_is_left_out_when_nobody_asks_for_it():
    net, job, priced = real("tensor")
    whole, without = (lower_plan(net, job, priced, memory=m) for m in (True, False))
    assert whole.memory
    assert without.memory == ()
    assert replay(net, without).iteration_time == replay(net, whole).iteration_time


def test_a_cluster_that_is_slow_everywhere_is_noted():
    net, job, priced = real("tensor")
    for factor in (1.0, 2.0):
        fleet = slow_fleet(job, np.full(net.num_devices, factor))
        slow = executed_on(job, fleet)
        work = lower_plan(net, slow, price_plan(net, slow, priced.plan))
        noted = any("slow devices" in one for one in work.notes)
        assert noted == (factor > 1.0)


def test_the_logits_are_held_by_the_last_stage_alone():
    net, job, priced = real("tensor")
    first, last = replay(net, lower_plan(net, job, priced)).memory
    assert "logits" not in first.peak_parts
    table = job.table(plan_degrees(priced.plan))
    head = table.saved_bytes["none"][-1] + table.working_bytes["none"][-1]
    assert last.peak_parts["logits"] == head


def test_weight_gradients_keep_what_they_need():
    net, job, priced = real("split")
    (_, stage) = lower_plan(net, job, priced).memory
    assert {(one.begin, one.end) for one in stage.held} >= {(FORWARD, WEIGHT)}
    bucket = [one for one in stage.held if one.part == "gradient bucket"]
    assert {(one.begin, one.end) for one in bucket} == {(WEIGHT, WEIGHT)}
    assert SPAN_KINDS[WEIGHT] == "weight"


# What is folded is said.


def test_levels_that_hierarchical_collectives_leave_out_are_noted():
    # Nodes of 4: six replicas are 4 and 2 of one stage, then 2 and 4 of the other.
    twelve = build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=4, bandwidth=8.0, latency=0.5),
                LevelSpec(name="leaf", fan_out=3, bandwidth=2.0, latency=1.0),
            )
        )
    )
    devices = np.arange(12).reshape(2, 6, 1)
    flat = plan(devices, (2,), m=1, zero=1)
    levels = replace(flat, gradient_algorithm="hierarchical")
    assert left_out_level_notes(twelve, flat) == ()
    assert left_out_level_notes(twelve, levels) == (
        "Data-parallel collectives of stages 0, 1 leave out the node level: its "
        "blocks do not hold as many members of a group each.",
    )
    even = replace(
        plan(devices.reshape(3, 4, 1), (1, 2), m=1, zero=1),
        gradient_algorithm="hierarchical",
    )
    assert left_out_level_notes(twelve, even) == ()
    job = workload(global_batch=6)
    folded = lower_plan(twelve, job, price_plan(twelve, job, levels)).notes
    assert any("leave out the node level" in one for one in folded)


def test_what_is_in_durations_and_modelled_is_noted():
    net, job, priced = real("zero-2")
    by_stage = lower_plan(net, job, priced).notes
    assert any("not hidden behind compute" in one for one in by_stage)
    job = executed(
        job, overlap_p2p_comm=False, communication_slowdown=1.5, expert_skew=2.0
    )
    everything = lower_plan(net, job, priced, BY_LAYER).notes
    assert not any("part of the stage times" in one for one in everything)
    for words in ("both sides are ready", "slowed down beside"):
        assert any(words in one for one in everything)
    assert not any("busiest" in one for one in everything), "it has no experts"
    net, job, priced = real("experts")
    skewed = executed(job, expert_skew=1.5)
    notes = lower_plan(net, skewed, price_plan(net, skewed, priced.plan)).notes
    assert any("compute and keep 1.5 times an even share" in one for one in notes)
