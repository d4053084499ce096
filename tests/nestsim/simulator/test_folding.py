import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.build import build_model
from nestsim.simulator.folding import Classes, fold, fold_links, numbered, unfolded
from nestsim.simulator.kernels import refine as kernels
from nestsim.simulator.replay import fold_model, replay
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import NONE, WHOLE, Incidence, Step, Steps, System
from nestsim.simulator.work import RingPhase
from tests import failures
from tests.nestsim.simulator.cases import (
    UNFOLDED,
    contended_step,
    pipeline,
)
from tests.nestsim.simulator.folding_cases import (
    grid,
    models,
    spine_leaf,
    steps,
    with_slow_actors,
    with_slow_link,
)


def assert_same_run(folding, system):
    """Compare every moment of every actor and channel, bit for bit."""
    found, expected = folding.unfolded(simulate(folding.system)), simulate(system)
    for name in ("span_starts", "span_ends", "posts", "departures", "arrivals"):
        pairs = zip(getattr(found, name), getattr(expected, name), strict=True)
        for number, (ours, theirs) in enumerate(pairs):
            assert ours.tobytes() == theirs.tobytes(), (name, number)
    assert found.end == expected.end
    assert found.bin_width == expected.bin_width
    assert found.bins.tobytes() == expected.bins.tobytes()


@settings(max_examples=60)
@given(model=models())
def test_a_folded_run_is_bit_for_bit_the_unfolded_one(model):
    assert_same_run(fold_model(model), model.system)


def many(shape, nesting, num_leaves, **changes):
    """Build GPT-like work for hundreds of devices, contended where anything is."""
    net = spine_leaf(num_leaves, **changes)
    devices = grid(range(net.num_devices), shape, nesting)
    p, d, _ = shape
    phases = tuple((RingPhase(devices[s].T, 2e9, 2 * (d - 1)),) for s in range(p))
    return build_model(
        net,
        pipeline(
            devices,
            6,
            forward_time=[1e-2] * (p - 1) + [1.1e-2],
            backward_time=[2e-2] * (p - 1) + [2.2e-2],
            boundary_bytes=[5e8] * (p - 1),
            reduce_phases=phases,
            gather_phases=phases,
            optimizer_time=[1e-3] * p,
        ),
    )


nestings = failures.over("nesting", ["pipeline inside", "data inside"])


@nestings
@failures.over("oversubscription", [1.0, 2.0, 8.0])
@failures.over("shape", [(4, 16, 8), (6, 85, 1), (7, 9, 8)])
def test_512_devices_fold_bit_for_bit(shape, nesting, oversubscription):
    model = many(shape, nesting, 16, oversubscription=oversubscription)
    assert_same_run(fold_model(model), model.system)


@nestings
@failures.over("oversubscription", [1.0, 4.0])
def test_512_aligned_devices_fold_to_one_actor_for_each_stage(
    nesting, oversubscription
):
    model = many((4, 16, 8), nesting, 16, oversubscription=oversubscription)
    folding = fold_model(model)
    assert folding.actors.sizes.tolist() == [16] * 4
    assert folding.actors.first.tolist() == [0, 16, 32, 48]
    assert folding.system.num_sources.tolist() == [1] * folding.channels.first.size
    assert folding.system.capacity.size < 40


@nestings
def test_1024_devices_fold_to_one_actor_for_each_stage(nesting):
    folding = fold_model(many((16, 8, 8), nesting, 32))
    assert folding.actors.sizes.tolist() == [8] * 16


@nestings
def test_one_slow_device_leaves_8_to_12_classes_of_512_devices(nesting):
    model = with_slow_actors(many((4, 16, 8), nesting, 16), [21], 1.5)
    folding = fold_model(model)
    assert 8 <= folding.actors.first.size <= 12
    assert_same_run(folding, model.system)


@nestings
def test_one_slow_link_leaves_few_classes_of_512_devices(nesting):
    model = with_slow_link(many((4, 16, 8), nesting, 16), 100, 0.25)
    folding = fold_model(model)
    assert 5 <= folding.actors.first.size <= 12
    assert_same_run(folding, model.system)


def test_misaligned_replicas_fold_as_far_as_they_are_alike():
    # 85 replicas of 6 devices lie in nodes of 8: three positions, four nodes a leaf.
    folding = fold_model(many((6, 85, 1), "pipeline inside", 16))
    assert folding.actors.first.size < 510 / 4


def test_hashed_trunks_fold_after_the_hash():
    shape = ((4, 16, 8), "data inside", 16)
    ideal = many(*shape, oversubscription=2.0)
    hashed = many(*shape, oversubscription=2.0, trunk="ecmp", num_spines=4)
    folding = fold_model(hashed)
    assert fold_model(ideal).actors.first.size == 4
    assert 4 < folding.actors.first.size <= 64
    assert_same_run(folding, hashed.system)


def naive_classes(system, actor_colours, channel_colours):
    """Refine with sets and counters until nothing changes; compare no hashes."""
    flow = np.repeat(
        np.arange(system.num_bytes.size), np.diff(system.incidence.indptr)
    ).tolist()
    links, weights = system.incidence.links.tolist(), system.incidence.weights.tolist()
    posts = [
        (actor, slot, channel)
        for actor, row in enumerate(system.ports.tolist())
        for slot, channel in enumerate(row)
        if channel != NONE
        and any(s.target == slot for s in system.programs[system.program[actor]])
    ]
    actors = list(zip(system.program.tolist(), actor_colours.tolist(), strict=True))
    channels = list(
        zip(
            system.num_bytes.tolist(),
            system.latency.tolist(),
            channel_colours.tolist(),
            strict=True,
        )
    )
    ends = list(system.capacity.tolist())
    count = 0
    while count < (count := len({*actors}) + len({*channels}) + len({*ends})):
        carried = [Counter() for _ in ends]
        crossed = [set() for _ in channels]
        for f, link, weight in zip(flow, links, weights, strict=True):
            carried[link][channels[f]] += weight
            crossed[f].add(ends[link])
        senders = [set() for _ in channels]
        for actor, slot, channel in posts:
            senders[channel].add((actors[actor], slot))
        ports = [
            tuple(channels[c] if c != NONE else NONE for c in row)
            for row in system.ports.tolist()
        ]
        # Classes are named by numbers again, so that names do not grow.
        actors = ranked(zip(actors, ports, strict=True))
        channels = ranked(
            (old, frozenset(sent), frozenset(over))
            for old, sent, over in zip(channels, senders, crossed, strict=True)
        )
        ends = ranked(
            (old, frozenset(load.items()))
            for old, load in zip(ends, carried, strict=True)
        )
    return actors, channels


def ranked(names):
    numbers = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


@settings(max_examples=30)
@given(model=models())
def test_classes_are_the_coarsest_stable_ones(model):
    stage = np.arange(model.system.program.size) // model.num_replicas
    flows = model.flows
    colours = numbered(flows.kind, flows.stage, flows.chunk)
    folding = fold(model.system, stage, colours)
    actors, channels = naive_classes(model.system, stage, colours)
    assert folding.actors.of.tolist() == ranked(actors)
    assert folding.channels.of.tolist() == ranked(channels)


@st.composite
def systems(draw):
    """Draw any graph of actors, channels and links; its programs need not end."""

    def numbers(values, count):
        drawn = st.lists(values, min_size=count, max_size=count)
        return np.array(draw(drawn), dtype=np.int64)

    num_actors, num_ports = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    num_channels, num_links = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    targets = draw(st.lists(st.sets(st.integers(0, num_ports - 1)), min_size=1))
    program = numbers(st.integers(0, len(targets) - 1), num_actors)
    ports = numbers(st.integers(NONE, num_channels - 1), num_actors * num_ports)
    ports = ports.reshape(num_actors, num_ports)
    posts = [ports[a, s] for a in range(num_actors) for s in targets[program[a]]]
    posts = np.array([c for c in posts if c != NONE], dtype=np.int64)
    weights = numbers(st.integers(0, 2), num_channels * num_links)
    crossed = weights.reshape(num_channels, num_links) > 0
    return System(
        programs=tuple(
            Steps.of(Step(1.0, NONE, 0, slot, WHOLE) for slot in sorted(one))
            for one in targets
        ),
        program=program,
        ports=ports,
        num_sources=np.maximum(np.bincount(posts, minlength=num_channels), 1),
        latency=numbers(st.integers(0, 1), num_channels).astype(float),
        num_bytes=numbers(st.integers(1, 2), num_channels).astype(float),
        incidence=Incidence(
            np.concatenate(([0], np.cumsum(crossed.sum(axis=1)))),
            np.ascontiguousarray(np.nonzero(crossed)[1]),
            weights[weights > 0] / 2.0,
        ),
        capacity=1.0 + numbers(st.integers(0, 1), num_links),
        tick=1.0,
        num_recorded=1,
    )


@settings(max_examples=80)
@given(system=systems())
def test_classes_of_any_graph_are_the_coarsest_stable_ones(system):
    nothing = np.zeros(system.program.size, np.int64)
    plain = np.zeros(system.num_bytes.size, np.int64)
    folding = fold(system, nothing, plain)
    actors, channels = naive_classes(system, nothing, plain)
    assert folding.actors.of.tolist() == ranked(actors)
    assert folding.channels.of.tolist() == ranked(channels)


def test_a_collision_of_hashes_costs_a_round_and_changes_nothing(monkeypatch):
    model = with_slow_actors(many((4, 16, 8), "data inside", 16), [21], 1.5)
    expected = fold_model(model)
    calls = itertools.count()

    def sometimes(*arguments):
        # As if all hashes had been equal.
        if next(calls) % 2:
            original(*arguments)

    original = kernels.refine
    monkeypatch.setattr(kernels, "refine", sometimes)
    found = fold_model(model)
    assert found.num_rounds == 2 * expected.num_rounds
    assert found.actors.of.tolist() == expected.actors.of.tolist()
    assert found.channels.of.tolist() == expected.channels.of.tolist()


def lonely_links():
    """Two flows; the first crosses two links, of which the second flow shares one."""
    return Incidence(np.array([0, 2, 3]), np.array([0, 1, 1]), np.ones(3))


@failures.over(
    ("actors", "channels", "links", "stable"),
    [
        # Actor a posts to channel a by slot 0.
        ((0, 1), (0, 1), (0, 1), True),
        ((0, 0), (0, 1), (0, 1), False),
        ((0, 1), (0, 0), (0, 1), False),
        ((0, 1), (0, 1), (0, 0), False),
        ((0, 0), (0, 0), (0, 1), False),
        ((0, 0), (0, 0), (0, 0), False),
    ],
)
def test_the_certificate_refuses_classes_that_are_not_stable(
    actors, channels, links, stable
):
    incidence = lonely_links()
    units = np.ones(3, np.int64)
    rows = kernels.by_link(incidence.indptr, incidence.links, units, 2)
    graph = kernels.ActorGraph(
        ports=np.array([[0], [1]]),
        senders=(np.array([0, 1, 2]), np.array([0, 1])),
        flow_links=(incidence.indptr, incidence.links),
        link_flows=rows,
    )
    classes = kernels.Partition(*map(np.array, (actors, channels, links)))
    found = kernels.certify(graph, classes)
    assert found == stable


def test_members_of_a_class_that_post_together_count_once():
    # Four actors post to one channel; two of them run another program.
    system = System(
        programs=tuple(Steps.of([Step(t, NONE, 0, 0, WHOLE)]) for t in (1.0, 2.0)),
        program=np.array([0, 1, 0, 1]),
        ports=np.zeros((4, 1), np.int64),
        num_sources=np.array([4]),
        latency=np.zeros(1),
        num_bytes=np.ones(1),
        incidence=Incidence(np.array([0, 1]), np.array([0]), np.array([4.0])),
        capacity=np.ones(1),
        tick=2.0**-40,
        num_recorded=1,
    )
    folding = fold(system, np.zeros(4, np.int64), np.zeros(1, np.int64))
    assert folding.actors.of.tolist() == [0, 1, 0, 1]
    assert folding.system.num_sources.tolist() == [2]
    assert_same_run(folding, system)
    apart = fold(system, np.arange(4), np.zeros(1, np.int64))
    assert apart.system.num_sources.tolist() == [4]


def test_a_flow_of_a_class_weighs_as_much_as_its_link_carries():
    # Three flows share a trunk, and have a link of their own each.
    system = System(
        programs=(
            Steps.of([Step(1.0, NONE, 0, 0, WHOLE), Step(0.0, 0, 1, NONE, WHOLE)]),
        ),
        program=np.zeros(3, np.int64),
        ports=np.arange(3)[:, None],
        num_sources=np.ones(3, np.int64),
        latency=np.zeros(3),
        num_bytes=np.full(3, 6.0),
        incidence=Incidence(
            np.array([0, 2, 4, 6]),
            np.array([0, 3, 1, 3, 2, 3]),
            np.array([1.0, 2.0] * 3),
        ),
        capacity=np.array([4.0, 4.0, 4.0, 12.0]),
        tick=2.0**-40,
        num_recorded=4,
    )
    folding = fold(system, np.zeros(3, np.int64), np.zeros(3, np.int64))
    assert folding.system.incidence.weights.tolist() == [1.0, 6.0]
    assert folding.system.capacity.tolist() == [4.0, 12.0]
    run = simulate(folding.system)
    # 12 bytes/s for six pairs: 2 bytes/s each.
    assert run.end == 1.0 + 6.0 / 2.0
    assert_same_run(folding, system)


def test_colours_keep_apart_what_behaves_alike():
    model = many((4, 16, 8), "data inside", 16)
    flows = model.flows
    replica = np.arange(model.system.program.size)
    folding = fold(model.system, replica, numbered(flows.kind, flows.stage))
    assert folding.actors.first.size == replica.size


def test_weights_must_be_sums_of_powers_of_two():
    incidence = Incidence(np.array([0, 1]), np.array([0]), np.array([1 / 3]))
    alone = Classes(np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(AssertionError, match="dyadic"):
        fold_links(incidence, alone, np.zeros(1))


@settings(max_examples=25)
@given(
    columns=st.lists(
        st.lists(st.sampled_from([-1.5, -0.0, 0.0, 2.0]), min_size=9, max_size=9),
        min_size=1,
        max_size=3,
    )
)
def test_equal_rows_have_equal_numbers_in_order_of_appearance(columns):
    found = numbered(*(np.array(column) for column in columns))
    assert found.tolist() == ranked(zip(*columns, strict=True))


def test_nothing_is_folded_by_the_folding_of_each_for_itself():
    model = build_model(*contended_step())
    alone = unfolded(model.system)
    run = simulate(alone.system)
    again = alone.unfolded(run)
    assert all(a is b for a, b in zip(run.arrivals, again.arrivals, strict=True))
    assert alone.actors.sizes.tolist() == [1] * 16


@settings(max_examples=25)
@given(step=steps())
def test_a_folded_replay_records_what_every_actor_did(step):
    net, work = step
    whole, all_of_it = replay(net, work, UNFOLDED), replay(net, work, every_actor=True)
    folded = replay(net, work)
    for name in ("spans", "transfers"):
        for ours, theirs in zip(
            getattr(all_of_it, name), getattr(whole, name), strict=True
        ):
            assert ours.tobytes() == theirs.tobytes()
    assert whole.memory == all_of_it.memory == folded.memory
    assert whole.representative.tolist() == all_of_it.representative.tolist()
    for result in (folded, all_of_it):
        assert result.iteration_time == whole.iteration_time
        assert result.pipeline_time == whole.pipeline_time
    np.testing.assert_allclose(
        folded.links.num_bytes, whole.links.num_bytes, rtol=1e-12
    )
    assert folded.span_multiplicity.sum() == whole.spans.start.size
    assert folded.transfer_multiplicity.sum() == whole.transfers.start.size
    # What a replica did is what its representative did.
    stage, replica = whole.spans.stage, whole.spans.replica
    found = {
        (s, r, kind, k, c): (start, end)
        for s, r, kind, k, c, start, end in zip(*folded.spans, strict=True)
    }
    representative = folded.representative[stage, replica]
    rows = zip(stage, representative, *whole.spans[2:], strict=True)
    for s, r, kind, k, c, start, end in rows:
        assert found[s, r, kind, k, c] == (start, end)


def test_folded_links_carry_what_unfolded_ones_do():
    net, work = contended_step(num_replicas=8)
    folded, whole = (
        replay(net, work, **how).links for how in ({}, {"settings": UNFOLDED})
    )
    assert folded.link_ids.size < whole.link_ids.size
    assert folded.bin_edges.tolist() == whole.bin_edges.tolist()
    used = folded.row >= 0
    assert used.tolist() == (whole.row >= 0).tolist()
    np.testing.assert_allclose(
        folded.rates[folded.row[used]], whole.rates[whole.row[used]], rtol=1e-9
    )
    assert folded.num_alike.sum() == used.sum()


def test_what_was_folded_is_said():
    net = spine_leaf(16)
    work = pipeline(grid(range(512), (4, 16, 8), "data inside"), 2)
    result = replay(net, work)
    assert (result.num_actors, result.num_classes) == (64, 4)
    (said,) = [each for each in result.notes if "alike" in each]
    assert said.startswith("4 of 64 actors")
    assert "a class of 16 " in said
    assert not [each for each in replay(net, work, UNFOLDED).notes if "alike" in each]
