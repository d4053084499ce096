"""Small networks built by hand, and training steps to replay on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from nestsim.simulator.work import (
    ActorTimes,
    Held,
    PipelineWork,
    RingPhase,
    StageMemory,
)
from planner.step.instructions import BACKWARD, FORWARD
from planner.step.rounds import group_takes
from planner.step.schedules import SCHEDULES
from topologies.network import Level, Links, Network, Routes

PASS_TIMES = ("forward_time", "backward_time", "weight_time")


@dataclass(frozen=True)
class FunctionRouting:
    """Routes given by a function of two different devices."""

    route: Callable[[int, int], Sequence[int]]

    def routes(self, sources, targets):
        lists = [
            [] if a == b else list(self.route(int(a), int(b)))
            for a, b in zip(sources, targets, strict=True)
        ]
        lengths = [0, *(len(one) for one in lists)]
        flat = [link for one in lists for link in one]
        return Routes(np.cumsum(lengths), np.array(flat, dtype=np.int64))

    def levels(self, sources, targets):
        return np.zeros(len(sources), dtype=np.int64)


def network(num_devices, num_vertices, links, route):
    """Build a network from (source, target, bandwidth, latency) and a route rule."""
    source, target, bandwidth, latency = (list(c) for c in zip(*links, strict=True))
    level = Level(
        name="all",
        block_size=num_devices,
        num_blocks=1,
        bandwidth=max(bandwidth),
        latency=max(latency),
        uplink_bandwidth=float("inf"),
        oversubscription=1.0,
    )
    return Network(
        kind="custom",
        num_devices=num_devices,
        vertex_names=tuple(f"v{i}" for i in range(num_vertices)),
        links=Links(
            source=source,
            target=target,
            bandwidth=bandwidth,
            latency=latency,
            level=[0] * len(links),
            num_parallel=[1] * len(links),
        ),
        levels=(level,),
        block_sizes=(num_devices,),
        routing=FunctionRouting(route),
    )


def full_mesh(num_devices, bandwidth=100e9, latency=0.0):
    """Give every ordered pair a link of its own; link ``a * n + b``."""
    n = num_devices
    links = [
        (
            a,
            b,
            bandwidth(a, b) if callable(bandwidth) else bandwidth,
            latency(a, b) if callable(latency) else latency,
        )
        for a in range(n)
        for b in range(n)
    ]
    return network(n, n, links, lambda a, b: [a * n + b])


def switch(num_devices, bandwidth=100e9, latency=0.0):
    """Join all devices by one switch; links up ``i``, down ``n + i``."""
    n = num_devices
    up = [(i, n, bandwidth, latency) for i in range(n)]
    down = [(n, i, bandwidth, latency) for i in range(n)]
    return network(n, n + 1, up + down, lambda a, b: [a, n + b])


def two_tiers(num_nodes, per_node, *, bandwidth=1e9, uplink=1e9, latency=1e-6):
    """Tree: devices below node switches below one core."""
    n = num_nodes * per_node
    core = n + num_nodes
    links = [(i, n + i // per_node, bandwidth, latency) for i in range(n)]
    links += [(n + i // per_node, i, bandwidth, latency) for i in range(n)]
    links += [(n + j, core, uplink, latency) for j in range(num_nodes)]
    links += [(core, n + j, uplink, latency) for j in range(num_nodes)]

    def route(a, b):
        i, j = a // per_node, b // per_node
        middle = [] if i == j else [2 * n + i, 2 * n + num_nodes + j]
        return [a, *middle, n + b]

    return network(n, core + 1, links, route)


UNFOLDED = ReplaySettings(folding=False)


def replay_all(net, work):
    """Simulate and record every actor."""
    return replay(net, work, UNFOLDED)


@st.composite
def step_sizes(draw, schedule, *, most_stages=5, most_microbatches=9):
    """Stages, microbatches and chunks that the schedule takes."""
    if not SCHEDULES[schedule].interleaves:
        p, m = (
            draw(st.integers(1, most_stages)),
            draw(st.integers(1, most_microbatches)),
        )
        return p, m, 1
    one = SCHEDULES[schedule]
    p = draw(st.integers(2, min(4, most_stages)))
    v = one.num_chunks or draw(st.integers(2, 3))
    least = max(one.least_rounds, 1)
    if one.group is not None:
        p = min(p, one.group)
        numbers = [m for m in range(p, 20) if group_takes(one.group, p, m)]
        return p, draw(st.sampled_from(numbers)), v
    if one.deals_rounds:
        return p, p * draw(st.integers(least, most_microbatches // p)), v
    return p, draw(st.integers(least * p, max(most_microbatches, least * p))), v


def stage_memory(static, saved, *, forward=0.0, backward=0.0):
    """Build the account of a stage that keeps ``saved`` of each chunk's passes."""
    held = []
    for chunk, kept in enumerate(saved):
        held += [
            Held("activations", chunk, FORWARD, BACKWARD, kept),
            Held("working", chunk, FORWARD, FORWARD, forward),
            Held("working", chunk, BACKWARD, BACKWARD, backward),
        ]
    return StageMemory(static=static, held=tuple(held))


def pipeline(devices, num_microbatches, *, num_chunks=1, **changes):
    """Build work with nothing but passes of 1 s; ``changes`` replace fields.

    ``slowdown`` is what the compute of each actor takes times as long.
    """
    slowdown = changes.pop("slowdown", None)
    devices = np.array(devices, dtype=np.int64)
    p, v = devices.shape[0], num_chunks
    fields = {
        "schedule": "1f1b" if v == 1 else "interleaved-1f1b",
        "num_chunks": v,
        "num_microbatches": num_microbatches,
        "devices": devices,
        "forward_time": np.ones(v * p),
        "backward_time": np.ones(v * p),
        "weight_time": np.zeros(v * p),
        "sent_time": {},
        "layers": None,
        "boundary_bytes": np.zeros(v * p - 1),
        "blocking_transfers": False,
        "reduce_buckets": ((),) * p,
        "reduce_phases": ((),) * p,
        "optimizer_time": np.zeros(p),
        "gather_phases": ((),) * p,
        "gather_buckets": ((),) * p,
        "tied_phases": (),
        "kind": np.zeros(devices.shape[:2], dtype=np.int64),
        "interference": 1.0,
        "memory": (StageMemory(static={"weights": 0.0}, held=()),) * p,
        "notes": (),
    }
    fields.update(changes)
    for name in (*PASS_TIMES, "boundary_bytes", "optimizer_time"):
        fields[name] = np.array(fields[name], dtype=np.float64)
    work = PipelineWork(**fields)
    return work if slowdown is None else slowed(work, slowdown)


def actor_slowdowns(devices, slowdown):
    """Return each actor's factor, that of its slowest device."""
    return np.asarray(slowdown)[devices].max(axis=2)


def slowed(work, slowdown):
    """Let the compute of each actor, as of kind 0, take so many times as long."""
    slowdown = np.array(slowdown, dtype=np.float64)
    kind, values = np.zeros(slowdown.shape, dtype=np.int64), []
    for stage, factors in enumerate(slowdown):
        distinct, kind[stage] = np.unique(factors, return_inverse=True)
        values.append(distinct)
    factors = [
        np.array([own[n if n < len(own) else 0] for own in values])
        for n in range(max(map(len, values)))
    ]
    first, *others = [_stretched(work, each) for each in factors]
    own = {name: getattr(first, name) for name in (*TIMES, "optimizer_time")}
    layers = work.layers and replace(work.layers, passes=first.passes)
    return replace(work, **own, layers=layers, kind=kind, others=tuple(others))


TIMES = ("forward_time", "backward_time", "weight_time", "unusual_time", "sent_time")


def _stretched(work, factors):
    """Return the times of actors whose compute is slower, stage by stage."""
    each = factors[work.virtual_stages().stage]

    def whole(kind, times):
        sent = work.sent_time.get(kind, 0.0)
        return sent + each * (times - sent)

    names = ("forward_time", "backward_time", "weight_time")
    passes = None
    if work.layers is not None:
        passes = {
            kind: tuple(
                tuple(move._replace(duration=factor * move.duration) for move in moves)
                for factor, moves in zip(each, by_stage, strict=True)
            )
            for kind, by_stage in work.layers.passes.items()
        }
    return ActorTimes(
        **{name: whole(kind, getattr(work, name)) for kind, name in enumerate(names)},
        unusual_time={kind: whole(kind, t) for kind, t in work.unusual_time.items()},
        sent_time=work.sent_time,
        optimizer_time=factors * work.optimizer_time,
        passes=passes,
        reduce_at=tuple(tuple(b.at for b in own) for own in work.reduce_buckets),
        gather_at=tuple(tuple(b.at for b in own) for own in work.gather_buckets),
    )


def ring_all_reduce(members, size):
    """Build one ring's all-reduce of ``size`` bytes over ``members``."""
    n = len(members)
    return RingPhase(np.array([members]), 2 * (n - 1) / n * size, 2 * (n - 1))


def contended_step(
    *, num_replicas=4, num_stages=4, num_microbatches=6, ranks=2, num_chunks=1
):
    """Build a network and a step in which nearly everything shares links.

    Stages lie across nodes, so that the replicas' messages and gradient rings meet on
    the nodes' uplinks; passes differ, so that they meet at odd moments. Chunks share
    the work of their stage.
    """
    v, num_virtual = num_chunks, num_chunks * num_stages
    size = num_stages * num_replicas * ranks
    net = two_tiers(size // 4, 4, bandwidth=2e9, uplink=3e9, latency=2e-6)
    devices = np.arange(size).reshape(num_replicas, num_stages, ranks)
    devices = devices.transpose(1, 0, 2)
    rings = [devices[s].T for s in range(num_stages)]
    memory = tuple(
        stage_memory(
            {"weights": 100.0 + s, "optimizer": 600.0},
            [7.0 + s + 2.0 * c for c in range(v)],
            forward=3.0,
            backward=5.0 + s,
        )
        for s in range(num_stages)
    )
    tied = RingPhase(
        np.stack([devices[0].ravel(), devices[-1].ravel()], axis=1), 1e6, 2
    )
    return net, pipeline(
        devices,
        num_microbatches,
        num_chunks=v,
        forward_time=[1e-3 * (1 + 0.1 * s) / v for s in range(num_virtual)],
        backward_time=[2e-3 * (1 + 0.07 * s) / v for s in range(num_virtual)],
        boundary_bytes=[1e6 * (1 + s) for s in range(num_virtual - 1)],
        reduce_phases=tuple(
            (RingPhase(r, 3e6, num_replicas - 1), RingPhase(r, 2e6, num_replicas - 1))
            for r in rings
        ),
        optimizer_time=[1e-4] * num_stages,
        gather_phases=tuple((RingPhase(r, 1e6, num_replicas - 1),) for r in rings),
        tied_phases=(tied,),
        memory=memory,
        notes=("Tensor collectives are in the durations.",),
    )
