"""Whole planning problems with every knob, spread out instead of small.

Hypothesis picks the shapes; numbers come from a seed, since those it draws itself are
mostly small ones, whose optima are trivial.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from estimators.constants import load_constants
from estimators.grouping import Grouping
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.software import IDEAL
from estimators.tracing.graph import LayerGraph
from estimators.training import TrainingSpec
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from tests.planner.strategies import accelerator, random_table, tiny_spec
from topologies import (
    FatTreeSpec,
    LevelSpec,
    Network,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
    build_network,
)


class Instance:
    """One problem: ``network, workload, spec = instance``."""

    def __init__(self, network: Network, workload: Workload, spec: SearchSpec) -> None:
        self.network, self.workload, self.spec = network, workload, spec

    def __iter__(self) -> Iterator[Network | Workload | SearchSpec]:
        return iter((self.network, self.workload, self.spec))

    def __repr__(self) -> str:
        """Return what it is like; the arrays would fill pages."""
        network, workload = self.network, self.workload
        return (
            f"<{network.kind} of {network.block_sizes}, kinds of layers "
            f"{workload.graph.kinds}, batch {workload.training.global_batch_size}, "
            f"memory {workload.accelerator.memory_bytes}, {self.spec}>"
        )


TREES = (
    *((n,) for n in (4, 6, 8, 12, 16)),
    *((2, 3), (2, 4), (3, 2), (4, 2), (3, 3), (2, 5), (5, 2), (6, 2), (2, 6), (3, 4)),
    *((4, 3), (7, 2), (5, 3), (3, 5), (4, 4), (8, 2), (2, 8)),
    *((2, 2, 2), (2, 3, 2), (2, 2, 3), (3, 2, 2), (2, 2, 4), (4, 2, 2), (2, 4, 2)),
)
"""Fan-outs of trees of up to three levels, and up to 16 devices."""

TORI = ((5,), (8,), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (2, 2, 2), (2, 2, 3))

MODES = ("none", "selective", "full", "stage")


class Knobs(NamedTuple):
    """What a scenario may say; a value that stands twice is drawn twice as often."""

    tp: tuple = ((1, 2, 4), (1, 2), (1, 2, 3, 4), (1, 3), (1,), (1,), (2,))
    cp: tuple = ((1, 2), (1,), (1, 2, 4), (1, 3))
    ep: tuple = ((1, 2), (1, 2, 4), (2,), (4,))
    b: tuple = ((1, 2), (1, 2, 4), (1,), (1, 3))
    v: tuple = (None, None, (1, 2), (1, 3), (1,))
    pp: tuple = (None, None, (2, 3), (3, 4), (4, 5))
    dp: tuple = (None, None, None, (1, 2, 3, 4), (1, 2, 6))
    recompute: tuple = (
        MODES,
        MODES,
        ("none", "full"),
        ("selective", "stage"),
        ("stage",),
    )
    zero: tuple = ((0, 1, 2, 3), (0, 1, 2, 3), (0, 3), (1, 2), (0,), (3,))


ANY = Knobs()
INTERLEAVED = Knobs(
    tp=((1,), (1, 2)),
    cp=((1,), (1, 2)),
    b=((1,), (1, 2)),
    v=((2,), (1, 2), (2, 3), None),
    pp=((2, 3), (2,), (3,), None),
    dp=(None, (1, 2)),
)
"""Mostly with virtual stages."""


@st.composite
def instances(draw, *, most_devices, blocks, least_devices=2, knobs=ANY):
    """Return a problem of so many devices, and one of some numbers of blocks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    network = draw(networks(rng, least_devices, most_devices))
    num_blocks = draw(st.sampled_from(blocks))
    has_experts = draw(st.booleans())
    said = Knobs(*(draw(st.sampled_from(values)) for values in knobs))
    spec = SearchSpec(
        tensor_model_parallel_sizes=said.tp,
        context_parallel_sizes=said.cp,
        expert_model_parallel_sizes=said.ep if has_experts else (1,),
        micro_batch_sizes=said.b,
        virtual_pipeline_model_parallel_sizes=said.v,
        pipeline_model_parallel_sizes=said.pp,
        data_parallel_sizes=said.dp,
        sequence_parallel=draw(st.sampled_from([None, True, False])),
        recompute=said.recompute,
        zero_stages=said.zero,
        keep_best=draw(st.sampled_from([1, 3, 8])),
        memory_reserve=draw(st.sampled_from([0.0, 0.0, 7.0])),
    )
    workload = random_workload(rng, spec, num_blocks, has_experts)
    return Instance(network, workload, spec)


def interleaved(*, most_devices):
    """Return a problem of chains that virtual stages divide, 6 or 8 layers long."""
    return instances(
        most_devices=most_devices, blocks=(4, 6), least_devices=4, knobs=INTERLEAVED
    )


def networks(rng, least_devices, most_devices):
    """Return a strategy of trees, rails and tori with random links.

    Half of the trees lose bandwidth from tier to tier and have no latency: then the
    slow tiers alone decide, as bounds assume. Bandwidths are no whole numbers, and tori
    have latency: otherwise rings and hierarchical collectives are often as fast.
    """
    fast = (1.0, 4.0, 16.0)[rng.integers(3)]
    is_steep = bool(rng.integers(2))

    def few(shapes):
        return [
            shape for shape in shapes if least_devices <= np.prod(shape) <= most_devices
        ]

    def bandwidth(tier=0):
        slope = 6.0**tier if is_steep else 1.0
        return fast * float(rng.uniform(1.0, 16.0)) / slope

    def latency():
        return 0.0 if is_steep else float(rng.integers(0, 4)) / fast

    def fat_tree(fan_outs):
        levels = tuple(
            LevelSpec(
                name=f"tier {index}",
                fan_out=fan_out,
                bandwidth=bandwidth(index),
                latency=latency(),
            )
            for index, fan_out in enumerate(fan_outs)
        )
        nic = ("node", "device")[rng.integers(2)]
        return build_network(FatTreeSpec(levels=levels, nic=nic))

    def switched(fan_outs):
        inner, middle, outer = (*fan_outs, 1, 1)[:3]
        shared = {
            "devices_per_node": inner,
            "node_bandwidth": bandwidth() + 4.0 * fast,
            "node_latency": latency(),
            "nic_bandwidth": bandwidth(1),
            "nic_latency": latency(),
            "spine_latency": latency(),
            "num_spines": int(rng.integers(1, 4)),
            "oversubscription": (1.0, 2.0, 4.0)[rng.integers(3)],
        }
        if rng.integers(2):
            pxn = bool(rng.integers(2))
            spec = RailSpec(**shared, nodes_per_unit=middle, num_units=outer, pxn=pxn)
            return build_network(spec)
        trunk = ("ideal", "ecmp")[rng.integers(2)]
        nic = ("node", "device")[rng.integers(2)]
        return build_network(
            SpineLeafSpec(
                **shared, nodes_per_leaf=middle, num_leaves=outer, trunk=trunk, nic=nic
            )
        )

    def torus(dimensions):
        return build_network(
            TorusSpec(
                dimensions=dimensions,
                wrap=tuple(bool(rng.integers(2)) for _ in dimensions),
                bandwidth=bandwidth(),
                latency=float(rng.integers(1, 4)) / fast,
            )
        )

    trees, tori = st.sampled_from(few(TREES)), st.sampled_from(few(TORI))
    switches = trees.map(fat_tree) | trees.map(switched)
    return switches.map(lambda network: ruled(network, rng)) | tori.map(torus)


def ruled(network, rng):
    """Return a tree; half of them have a library, switches that add up, or both."""
    rules = replace(
        network.rules,
        is_library=bool(rng.integers(3) == 0),
        adds_in_switches=bool(rng.integers(3) == 0),
    )
    return replace(network, rules=rules)


def random_workload(rng, spec, num_blocks, has_experts):
    """Return a job of which every table is drawn, and that may be short of memory.

    Tables shrink with the parallel degrees, as real ones do: otherwise one device would
    mostly do as well as many.
    """
    kinds = rng.integers(1, 1 + rng.integers(1, 4), num_blocks)
    last = int(kinds.max()) + 1
    kinds = np.unique([0, *kinds, last], return_inverse=True)[1].astype(np.int64)
    model = tiny_spec(num_blocks)
    if has_experts:
        model = replace(tiny_spec(num_blocks, family="mixtral"), num_moe_experts=4)
    # Most frameworks spread experts over all ranks of a stage, some over replicas.
    software = replace(IDEAL, experts_within_data=int(kinds.sum()) % 3 == 0)
    has_tied, boundary = bool(rng.integers(2)), float(rng.integers(0, 10))
    weight = (1.0, 5.0, 25.0)[rng.integers(3)]
    tables = {}
    for tp, cp, ep, b in product(
        spec.tensor_model_parallel_sizes,
        spec.context_parallel_sizes,
        spec.expert_model_parallel_sizes,
        spec.micro_batch_sizes,
    ):
        is_split = tp > 1 and spec.sequence_parallel is not False
        within = software.experts_within_data
        grouping = Grouping.of((tp, cp, ep), within_data=within)
        degrees = Degrees(tp, cp, ep, b, is_split, grouping)
        if divisibility_problem(model, degrees) is None:
            table = random_table(
                rng, kinds, degrees, boundary=boundary, has_tied=has_tied
            )
            tables[degrees] = shrunk(table, degrees, weight)
    workload = Workload(
        graph=LayerGraph(
            spec=model,
            names=("embedding", *(f"block {i}" for i in range(num_blocks)), "head"),
            kinds=tuple(kinds.tolist()),
            layers=(),
        ),
        training=random_training(rng),
        accelerator=accelerator(random_memory(rng, tables)),
        software=software,
        constants=random_constants(rng),
    )
    workload._tables.update(tables)
    return workload


def random_training(rng):
    """Return a batch, and number formats in memory and on the wire."""
    return TrainingSpec(
        global_batch_size=int(rng.choice([4, 6, 8, 12, 16, 24, 32])),
        gradient_precision=str(rng.choice(["fp32", "bf16"])),
        weights_in_fp32=bool(rng.integers(2)),
        gradient_copies=bool(rng.integers(2)),
        gather_precision=str(rng.choice(["", "fp32", "fp8"])),
        reduce_precision=str(rng.choice(["", "fp32", "bf16"])),
    )


def random_constants(rng):
    """Return constants of software and its memory, each nothing in half of all cases.

    What a step takes once, what each rank that shares shards adds, and what memory
    holds beside tensors.
    """
    most = {
        "software.ideal.iteration_time": 200.0,
        "software.ideal.shard_time": 20.0,
        "allocator.ideal.context": 5.0,
        "allocator.ideal.workspace": 5.0,
        "allocator.ideal.full_fragmentation": 0.2,
    }
    return load_constants().replaced(
        {
            name: float(rng.uniform(0.0, largest)) if rng.integers(2) else 0.0
            for name, largest in most.items()
        }
    )


def random_memory(rng, tables):
    """Return a memory that mostly matters [byte].

    Between the share of sixteen devices and all that one needs; with a fraction that no
    sum of the tables' numbers has, so that rounding decides nothing.
    """
    if rng.integers(4) == 0 or not tables:
        return 1e6
    whole = max(
        18.0 * table.parameters.sum() + table.saved_bytes["none"].sum()
        for table in tables.values()
    )
    return float(whole * 10 ** rng.uniform(-1.2, 0.0)) + 0.0123456789


def shrunk(table, degrees, weight):
    """Return the table with a device's share of everything.

    ``weight`` makes activations matter beside 18 bytes for each parameter.
    """
    tp, cp, _, b, *_ = degrees
    work, tokens = b / (tp * cp), b / cp

    def by_mode(columns, factor=work * weight):
        scaled = {mode: factor * values for mode, values in columns.items()}
        if "none" in scaled:
            # What the ends of the chain save has no attention core.
            ends = table.is_block == 0
            selective = np.where(ends, scaled["none"], scaled["selective"])
            scaled["selective"] = selective
        return scaled

    return replace(
        table,
        forward_time=work * table.forward_time,
        backward_time=work * table.backward_time,
        weight_gradient_time=work * table.weight_gradient_time,
        recompute_time=by_mode(table.recompute_time, work),
        parameters=table.parameters / tp,
        expert_parameters=table.expert_parameters / tp,
        tied_parameters=table.tied_parameters / tp,
        largest_parameters=table.largest_parameters / tp,
        saved_bytes=by_mode(table.saved_bytes),
        working_bytes=by_mode(table.working_bytes),
        weight_gradient_bytes=work * weight * table.weight_gradient_bytes,
        boundary_bytes=tokens * table.boundary_bytes,
        traffic=tuple(
            replace(
                item,
                forward_bytes=tokens * item.forward_bytes,
                backward_bytes=tokens * item.backward_bytes,
            )
            for item in table.traffic
        ),
    )
