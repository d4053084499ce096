"""Random training steps on trees and tori, aligned and not, with and without faults."""

import dataclasses
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from nestsim.simulator.build import build_model
from nestsim.simulator.system import NONE, quantise
from nestsim.simulator.work import (
    Bucket,
    LayerTraffic,
    LockstepRingPhase,
    LockstepTraffic,
    Move,
    RingPhase,
)
from planner.step.instructions import BACKWARD, FORWARD
from tests.nestsim.simulator.cases import pipeline
from topologies.builders import build_network
from topologies.joined_specs import DragonflySpec, HyperXSpec, PodsSpec
from topologies.specs import FatTreeSpec, LevelSpec, SpineLeafSpec, TorusSpec


def spine_leaf(num_leaves, **changes):
    """Nodes of 8 with a NIC for each device, 4 nodes to a leaf."""
    return build_network(
        SpineLeafSpec(
            **{
                "devices_per_node": 8,
                "node_bandwidth": 450e9,
                "node_latency": 500e-9,
                "nodes_per_leaf": 4,
                "num_leaves": num_leaves,
                "nic_bandwidth": 50e9,
                "nic_latency": 1e-6,
                "spine_latency": 500e-9,
                **changes,
            }
        )
    )


SWITCH = FatTreeSpec(
    levels=(
        LevelSpec(name="node", fan_out=2, latency=1e-6, bandwidth=50e9),
        LevelSpec(name="switch", fan_out=1, latency=1e-6, bandwidth=10e9),
    ),
    nic="device",
)

DRAGONFLY = DragonflySpec(
    below=SWITCH,
    switches_per_group=2,
    num_groups=4,
    global_links=2,
    local_bandwidth=10e9,
    local_latency=1e-6,
    global_bandwidth=5e9,
    global_latency=2e-6,
)

JOINED = {
    "pods": PodsSpec(
        pod=TorusSpec(
            dimensions=(2, 4), wrap=(True, True), bandwidth=10e9, latency=1e-6
        ),
        num_pods=3,
        nic_bandwidth=5e9,
        nic_latency=2e-6,
        latency=5e-6,
        devices_per_nic=4,
        oversubscription=2.0,
    ),
    "dragonfly": DRAGONFLY,
    "valiant": replace(DRAGONFLY, routing="valiant"),
    "dragonfly+": replace(DRAGONFLY, spines_per_group=2, global_links=3),
    "hyperx": HyperXSpec(
        below=SWITCH, dimensions=(2, 4), bandwidths=(10e9, 5e9), latency=1e-6
    ),
}


@st.composite
def networks(draw):
    kinds = ["fat-tree", "spine-leaf", "ecmp", "torus", "mesh", *JOINED]
    kind = draw(st.sampled_from(kinds))
    if kind in JOINED:
        return build_network(JOINED[kind])
    if kind == "fat-tree":
        levels = tuple(
            LevelSpec(name=name, fan_out=fan_out, latency=1e-6, bandwidth=bandwidth)
            for name, fan_out, bandwidth in zip(
                ("node", "leaf", "spine"),
                draw(st.sampled_from([(4, 2, 3), (2, 4, 4), (8, 3, 2)])),
                draw(st.sampled_from([(100e9, 20e9, 40e9), (50e9, 50e9, 50e9)])),
                strict=True,
            )
        )
        return build_network(FatTreeSpec(levels=levels, nic="node"))
    if kind in {"torus", "mesh"}:
        dimensions = draw(st.sampled_from([(8,), (4, 4), (3, 5), (2, 3, 4)]))
        return build_network(
            TorusSpec(
                dimensions=dimensions,
                wrap=(kind == "torus",) * len(dimensions),
                bandwidth=10e9,
                latency=1e-6,
            )
        )
    changes = {"trunk": "ecmp", "num_spines": 3} if kind == "ecmp" else {}
    return spine_leaf(
        draw(st.integers(1, 3)),
        devices_per_node=draw(st.sampled_from([2, 4])),
        nodes_per_leaf=draw(st.integers(1, 3)),
        oversubscription=draw(st.sampled_from([1.0, 2.0, 8.0])),
        **changes,
    )


def grid(devices, shape, nesting):
    """Place (stages, replicas, ranks); what the nesting names last lies closest."""
    p, d, t = shape
    devices = np.asarray(devices[: p * d * t])
    if nesting == "pipeline inside":
        return devices.reshape(d, p, t).transpose(1, 0, 2)
    return devices.reshape(p, d, t)


@st.composite
def steps(draw):
    """Return a network and a step on all or most of its devices."""
    net = draw(networks())
    n = net.num_devices
    t = draw(st.sampled_from([t for t in (1, 2, 4) if 2 * t <= n]))
    p = draw(st.integers(1, min(6, n // (2 * t))))
    d = max(1, min(12, n // (p * t)) - draw(st.sampled_from([0, 0, 1])))
    order = list(range(n))
    nesting = draw(st.sampled_from(["pipeline inside", "data inside", "random"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if nesting == "random":
        rng.shuffle(order)
    return net, work_on(draw, rng, grid(order, (p, d, t), nesting))


def work_on(draw, rng, devices):
    """Return a step with passes and messages of about equal length."""
    p, d, _ = devices.shape
    v = draw(st.sampled_from([1, 1, 2])) if p > 1 else 1
    alike = draw(st.booleans())

    def times(low, high, count):
        return rng.uniform(low, high, 1 if alike else count) * np.ones(count)

    tied = ()
    if p > 1 and draw(st.booleans()):
        pairs = np.stack([devices[0].ravel(), devices[-1].ravel()], axis=1)
        tied = (RingPhase(pairs, 2e6, 2),)
    sizes = times(1e6, 1e8, 2) if d > 1 else ()
    phases = tuple(
        tuple(RingPhase(devices[stage].T, size, d - 1) for size in sizes)
        for stage in range(p)
    )
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"]))
    buckets = (0.5, 1.0) if d > 1 and draw(st.booleans()) else ()
    # Level by level the first phase of an all-reduce comes back as the last one.
    levels = phases
    if buckets and draw(st.booleans()):
        levels = tuple((*own, own[0]) for own in phases)
    gathered = buckets if draw(st.booleans()) else ()
    slowdown = np.ones((p, d))
    if draw(st.sampled_from([False, False, True])):
        slowdown[rng.integers(p), rng.integers(d)] = 1.5
    return pipeline(
        devices,
        p * draw(st.integers(1, 2)) if v > 1 else draw(st.integers(1, 6)),
        num_chunks=v,
        schedule=schedule if v == 1 else "interleaved-1f1b",
        forward_time=times(1e-3, 3e-3, v * p),
        backward_time=times(2e-3, 6e-3, v * p),
        weight_time=times(1e-3, 3e-3, v * p),
        layers=draw(st.sampled_from([None, layers_of(devices, v, alike)])),
        boundary_bytes=times(1e6, 1e8, v * p - 1),
        blocking_transfers=draw(st.booleans()),
        reduce_buckets=tuple(
            tuple(Bucket(c, at, own) for c in reversed(range(v)) for at in buckets)
            for own in levels
        ),
        reduce_phases=phases,
        optimizer_time=times(1e-4, 1e-3, p),
        gather_phases=phases,
        gather_buckets=tuple(
            tuple(Bucket(c, at - 0.5, own) for c in range(v) for at in gathered)
            for own in levels
        ),
        tied_phases=tied,
        slowdown=slowdown,
        interference=draw(st.sampled_from([1.0, 1.25])),
    )


def layers_of(devices, num_chunks, alike):
    """Let passes send within each replica, and among pairs of replicas."""
    p, d, t = devices.shape
    pairs = np.arange(d) // 2
    collectives = []
    for stage in range(p):
        inside = LockstepRingPhase(devices[stage], np.arange(d), 1e7, t - 1)
        among = LockstepRingPhase(devices[stage], pairs, 2e7, t - 1)
        collectives.append(
            (
                LockstepTraffic("tensor", np.arange(d), (inside,)),
                LockstepTraffic("expert", pairs, (among, among)),
            )
        )
    longer = [1.0 if alike else 1.0 + k / 9 for k in range(p * num_chunks)]
    moves = {
        kind: tuple(
            (Move(NONE, time, 0), Move(0, time * factor, 1), Move(1, time, NONE))
            for factor in longer
        )
        for kind, time in ((FORWARD, 4e-4), (BACKWARD, 9e-4))
    }
    return LayerTraffic(collectives=tuple(collectives), passes=moves)


def with_slow_actors(model, actors, factor):
    """Let some actors run a slower copy of their program."""
    system = model.system
    programs, meanings = list(system.programs), list(model.programs)
    program = system.program.copy()
    for actor in actors:
        steps = programs[program[actor]]
        longer = quantise(steps.duration * factor, system.tick)
        slow = dataclasses.replace(steps, duration=longer)
        meanings.append(meanings[program[actor]]._replace(steps=slow))
        program[actor] = len(programs)
        programs.append(slow)
    system = dataclasses.replace(system, programs=tuple(programs), program=program)
    return model._replace(system=system, programs=tuple(meanings))


def with_slow_link(model, link, factor):
    """Let a link carry less."""
    capacity = model.system.capacity.copy()
    capacity[link] *= factor
    return model._replace(system=dataclasses.replace(model.system, capacity=capacity))


@st.composite
def models(draw):
    """Return a step ready for the engine, perhaps with slow actors or a slow link."""
    model = build_model(*draw(steps()))
    fault = draw(st.sampled_from(["none", "none", "slow actors", "slow link"]))
    if fault == "slow actors":
        actors = st.integers(0, model.system.program.size - 1)
        slow = draw(st.sets(actors, min_size=1, max_size=2))
        return with_slow_actors(model, sorted(slow), 1.5)
    if fault == "slow link" and model.system.capacity.size:
        link = draw(st.integers(0, model.system.capacity.size - 1))
        return with_slow_link(model, link, draw(st.sampled_from([0.1, 0.5])))
    return model
