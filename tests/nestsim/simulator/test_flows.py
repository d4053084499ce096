import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.lowering.collectives import find_lockstep_groups
from nestsim.simulator.compiled import max_min_rates
from nestsim.simulator.flows import SIGNAL, build_flows
from nestsim.simulator.folding import binding as find_binding
from nestsim.simulator.folding import seams_of
from nestsim.simulator.replay import replay
from nestsim.simulator.system import TRANSFER_KINDS, Incidence
from nestsim.simulator.work import Bucket, RingPhase
from tests.nestsim.simulator.cases import (
    contended_step,
    full_mesh,
    network,
    pipeline,
    replay_all,
    switch,
    two_tiers,
)
from topologies.network import Routes


def crossed(flows, flow):
    """Return link -> weight of one flow."""
    part = slice(flows.incidence.indptr[flow], flows.incidence.indptr[flow + 1])
    return dict(
        zip(flows.incidence.links[part], flows.incidence.weights[part], strict=True)
    )


def test_a_bundle_weighs_as_many_lanes_as_cross_a_link():
    net = two_tiers(2, 2, latency=1e-6)
    flows = build_flows(net, pipeline([[[0, 1]], [[2, 3]]], 1, boundary_bytes=[8.0]))
    # Device links up 0..3, down 4..7; node links up 8, 9, down 10, 11.
    forward = crossed(flows, flows.activation[0, 0])
    assert forward == {0: 1, 1: 1, 8: 2, 11: 2, 6: 1, 7: 1}
    backward = crossed(flows, flows.gradient[0, 0])
    assert backward == {2: 1, 3: 1, 9: 2, 10: 2, 4: 1, 5: 1}
    assert flows.latency.tolist() == [4e-6, 4e-6]


def test_lanes_that_stay_on_their_device_use_no_link():
    flows = build_flows(
        switch(3, latency=1.0), pipeline([[[0, 1]], [[0, 2]]], 1, boundary_bytes=[8.0])
    )
    assert crossed(flows, flows.activation[0, 0]) == {1: 1, 5: 1}
    assert flows.latency[flows.activation[0, 0]] == 2.0


def test_a_collective_weighs_as_many_ring_edges_as_cross_a_link():
    net = two_tiers(2, 2, latency=1e-6)
    rings = np.array([[0, 2], [1, 3]])
    work = pipeline([[[0, 1], [2, 3]]], 1, reduce_phases=((RingPhase(rings, 5.0, 2),),))
    flows = build_flows(net, work)
    (reduce,) = flows.reduce[0]
    assert crossed(flows, reduce) == dict.fromkeys(range(8), 1) | dict.fromkeys(
        range(8, 12), 2
    )
    assert flows.latency[reduce] == pytest.approx(2 * 4e-6)
    assert flows.num_sources[reduce] == 2


def test_every_flow_is_listed_once_with_its_bytes_and_senders():
    net, work = contended_step(num_replicas=3, num_stages=4, ranks=1)
    flows = build_flows(net, work)
    listed = [
        *flows.activation.ravel(),
        *flows.gradient.ravel(),
        *(f for phases in (*flows.reduce, *flows.gather) for f in phases),
        *flows.tied,
    ]
    assert flows.in_passes == ((),) * 4
    assert sorted(listed) == list(range(len(flows)))
    for boundary in range(3):
        for flow in (*flows.activation[boundary], *flows.gradient[boundary]):
            assert flows.num_bytes[flow] == work.boundary_bytes[boundary]
    assert [TRANSFER_KINDS[flows.kind[f]] for f in flows.tied] == ["tied"]
    assert flows.num_sources[list(flows.tied)].tolist() == [6]
    assert (
        flows.num_bytes[flows.reduce[2][1]] == work.reduce_phases[2][1].bytes_per_member
    )
    assert flows.stage[flows.gradient[0, 0]] == 1


def test_eight_gradient_groups_share_the_uplink_of_their_node():
    # Rank i of one node reduces with rank i of the other: 8 rings of two that send
    # 6 bytes each over an uplink of 2 byte/s, though each device has 1 byte/s.
    net = two_tiers(2, 8, bandwidth=1.0, uplink=2.0, latency=0.0)
    devices = np.arange(16).reshape(1, 2, 8)
    work = pipeline(devices, 1, reduce_phases=((RingPhase(devices[0].T, 6.0, 2),),))
    assert replay(net, work).iteration_time == 2.0 + 6.0 / (2.0 / 8)
    wide = two_tiers(2, 8, bandwidth=1.0, uplink=8.0, latency=0.0)
    assert replay(wide, work).iteration_time == 2.0 + 6.0


def test_an_incast_is_limited_by_the_link_to_its_receiver():
    # Three replicas send 2 bytes each to the one device that has all last stages; the
    # third one is ready later. 2 byte/s is shared: by two until 3 s, then by three.
    work = pipeline(
        [[[0], [1], [2]], [[3], [3], [3]]],
        1,
        boundary_bytes=[4.0],
        slowdown=[[1.0, 1.0, 3.0], [1.0, 1.0, 1.0]],
    )
    sent = replay_all(switch(4, bandwidth=2.0), work).transfers
    forward = sent.kind == TRANSFER_KINDS.index("activation")
    # Two send 2 of their 4 bytes in 2 s; then the three have 2/3 byte/s each: the two
    # end at 6 s, when the third has sent 2 bytes and gets the whole link.
    assert sent.start[forward].tolist() == [1.0, 1.0, 3.0]
    assert sent.end[forward].tolist() == [6.0, 6.0, 7.0]


@settings(max_examples=30)
@given(st.data())
def test_replicas_that_share_a_group_are_one_team(data):
    d, t = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    order = data.draw(st.permutations(range(d * t)))
    size = data.draw(
        st.sampled_from([n for n in range(1, d * t + 1) if d * t % n == 0])
    )
    devices = np.arange(d * t).reshape(d, t)
    lockstep = find_lockstep_groups(devices, np.array(order).reshape(-1, size))
    assert sorted(map(tuple, lockstep.groups.tolist())) == sorted(
        tuple(order[k : k + size]) for k in range(0, d * t, size)
    )
    # By repeated union, the other way round.
    together = [{replica} for replica in range(d)]
    for group in lockstep.groups.tolist():
        joined = set().union(*(together[device // t] for device in group))
        for replica in joined:
            together[replica] = joined
    for one in range(d):
        for other in range(d):
            same = lockstep.of_replica[one] == lockstep.of_replica[other]
            assert same == (other in together[one])
    assert lockstep.of_group.tolist() == sorted(lockstep.of_group.tolist())
    for group, number in zip(lockstep.groups.tolist(), lockstep.of_group, strict=True):
        assert {lockstep.of_replica[device // t] for device in group} == {number}


def test_buckets_of_one_size_share_a_flow():
    ring = RingPhase(np.array([[0, 1]]), 4.0, 1)
    rest = RingPhase(np.array([[0, 1]]), 1.0, 1)
    buckets = tuple(
        Bucket(0, at, (phase,)) for at, phase in ((0.3, ring), (0.6, ring), (1.0, rest))
    )
    work = pipeline([[[0], [1]]], 1, reduce_buckets=(buckets,))
    flows = build_flows(switch(2), work)
    (first, again, last) = (numbers for (numbers,) in flows.reduce_buckets[0])
    assert first == again != last
    assert flows.kind[flows.signal[0]].tolist() == [SIGNAL, SIGNAL]
    assert len(flows) == 4


def test_equal_routes_have_bitwise_equal_latencies():
    net = two_tiers(64, 4, latency=1e-6 / 3)
    devices = np.arange(256).reshape(2, 128, 1)
    flows = build_flows(net, pipeline(devices, 1, boundary_bytes=[8.0]))
    assert len(set(flows.latency.tolist())) == 1


def test_a_step_on_one_device_has_no_flows():
    assert len(build_flows(switch(1), pipeline([[[0]]], 3))) == 0


def test_the_bound_of_a_transfer_holds_when_everything_is_active():
    net, work = contended_step()
    flows = build_flows(net, work)
    levels = max_min_rates(flows.incidence, np.array(net.links.bandwidth))
    weights = flows.weights(len(net.links))
    slowest = flows.slowest_times(net.links, weights) - flows.latency
    assert np.all(flows.num_bytes / levels <= slowest * (1 + 1e-12))


def test_full_bisection_uplinks_are_left_out_and_oversubscribed_ones_kept():
    work = pipeline([[[d] for d in range(4)], [[4 + d] for d in range(4)]], 1)
    for uplink, kept in ((4e9, 0), (3.9e9, 1)):
        net = two_tiers(2, 4, bandwidth=1e9, uplink=uplink)
        flows = build_flows(net, work)
        # Node links: up 16, 17, down 18, 19. One way is 16 and then 19, with the same
        # traffic and capacity, so that one of them is enough.
        binding = find_binding([flows.seams], net.links)
        assert binding[[16, 19]].sum() == kept
        assert binding[[17, 18]].sum() == kept
        assert binding[:16].all()


def test_links_in_a_row_are_not_left_out_on_account_of_each_other():
    # All of one capacity: each limits as much as its neighbours, so one must stay.
    chain = [(i, i + 1, 5.0, 0.0) for i in range(4)]
    back = [(4, 0, 5.0, 0.0)]
    net = network(5, 5, chain + back, lambda a, b: range(4) if a == 0 else [4])
    flows = build_flows(net, pipeline([[[0]], [[4]]], 1, boundary_bytes=[1.0]))
    assert find_binding([flows.seams], net.links)[:4].sum() == 1


@st.composite
def random_routes(draw):
    num_links = draw(st.integers(2, 10))
    routes = draw(
        st.lists(
            st.permutations(range(num_links)).flatmap(
                lambda order: st.integers(1, len(order)).map(lambda n: order[:n])
            ),
            min_size=1,
            max_size=8,
        )
    )
    capacity = draw(st.lists(st.integers(1, 6), min_size=num_links, max_size=num_links))
    return routes, np.array(capacity, dtype=np.float64)


@settings(max_examples=100)
@given(random_routes(), st.data())
def test_leaving_links_out_changes_no_rate(case, data):
    routes, capacity = case
    lengths = [0, *(len(route) for route in routes)]
    flat = np.array([link for route in routes for link in route], dtype=np.int64)
    net = full_mesh(1)
    links = type(net.links)(
        source=np.zeros(capacity.size),
        target=np.zeros(capacity.size),
        bandwidth=capacity,
        latency=np.zeros(capacity.size),
        level=np.zeros(capacity.size),
        num_parallel=np.ones(capacity.size),
    )
    binding = find_binding(
        [seams_of(Routes(np.cumsum(lengths), flat), len(links))], links
    )
    # Any part of the flows may be active.
    active = data.draw(st.sets(st.integers(0, len(routes) - 1), min_size=1))
    chosen = [routes[f] for f in sorted(active)]
    rates = []
    for kept in (np.ones(capacity.size, dtype=bool), binding):
        lists = [sorted(link for link in route if kept[link]) for route in chosen]
        assert all(lists)
        flat = np.array([link for one in lists for link in one])
        indptr = np.cumsum([0, *(len(one) for one in lists)])
        rates.append(
            max_min_rates(Incidence(indptr, flat, np.ones(flat.size)), capacity)
        )
    np.testing.assert_allclose(rates[1], rates[0], rtol=1e-12)
