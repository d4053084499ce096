"""What hosts keep, in the search for the least planned time: against all plans."""

from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimators.training import ParallelismConfig
from planner.cost.choices import goes_with
from planner.cost.pricing import price_plan
from planner.search.best_first import search
from planner.step.plan import NO_OFFLOAD, Offload, Plan, Stage
from tests.planner.brute_force import BruteForce
from tests.planner.instances import Knobs, instances
from tests.planner.naive_placements import naive_grids
from topologies.accelerators import Host

MOST_PLANS = 1500

FEW = Knobs(
    tp=((1,), (1, 2)),
    cp=((1,),),
    ep=((2,),),
    b=((1,), (1, 2)),
    v=((1,), (1, 2)),
    pp=((1, 2), (2,)),
    dp=((1, 2), (2,), (1,)),
    recompute=(("none", "full"), ("selective",), ("none", "stage")),
    zero=((0, 1), (1, 3), (2,), (3,)),
)

OFFLOADS = (
    Offload(optimizer=1.0),
    Offload(optimizer=0.5, gradients=0.25),
    Offload(activations=0.5),
    Offload(weights=1.0, gradients=1.0, optimizer=1.0, activations=1.0),
    Offload(weights=0.5),
)

hosts = st.builds(
    Host,
    to_device=st.floats(0.5, 200.0),
    to_host=st.floats(0.5, 200.0),
    latency=st.sampled_from([0.0, 0.5]),
    devices_per_link=st.sampled_from([1, 2]),
    memory=st.sampled_from([1e9, 1e9, 40.0]),
    adam_rate=st.floats(0.05, 10.0),
)


def every_plan(force: BruteForce, offloads):
    """Yield all plans of a space, whether they fit or not."""
    space = force.space
    for sizes in force.configurations:
        grids = naive_grids(
            space.extents(sizes), space.network.num_devices, space.network.block_sizes
        )
        for grid in grids:
            rates, job = force.priced(sizes, grid)[0], force.job(sizes)
            lanes = grid.reshape(sizes.pp, sizes.dp, sizes.cp * sizes.tp)
            savings = [
                (mode, zero, option.group_size if zero else 1, offload)
                for mode, zero, offload in product(job.modes, job.zeros, offloads)
                for option in (rates[0].shardings if zero else rates[0].shardings[:1])
                if goes_with(mode, offload)
            ]
            for split in force.pieces(sizes)[0]:
                for chosen in product(savings, repeat=sizes.pp):
                    yield written(force, sizes, lanes, split, chosen)


def written(force, sizes, lanes, split, chosen) -> Plan:
    """Write a plan out."""
    stages = tuple(
        Stage(
            chunks=tuple((first, end - 1) for first, end in piece),
            devices=tuple(tuple(row) for row in devices),
            recompute=mode,
            zero_stage=zero,
            sharding_group_size=group,
            offload=offload,
        )
        for piece, devices, (mode, zero, group, offload) in zip(
            split, lanes.tolist(), chosen, strict=True
        )
    )
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=sizes.tp,
            pipeline_model_parallel_size=sizes.pp,
            data_parallel_size=sizes.dp,
            context_parallel_size=sizes.cp,
            expert_model_parallel_size=sizes.ep,
            sequence_parallel=force.space.degrees(sizes).sequence_parallel,
            experts_within_data=force.space.workload.software.experts_within_data,
        ),
        virtual_pipeline_model_parallel_size=sizes.v,
        micro_batch_size=sizes.b,
        num_microbatches=force.space.num_microbatches(sizes),
        schedule="1f1b" if sizes.v == 1 else "interleaved-1f1b",
        placement="",
        gradient_algorithm="auto",
        tensor_algorithm="auto",
        stages=stages,
    )


def best_time(network, workload, spec, plans) -> float:
    """Return the least planned time of those that fit, infinity without any [s]."""
    memory = workload.tensor_memory(spec.memory_reserve) * (1.0 + 1e-9)
    least = np.inf
    for plan in plans:
        priced = price_plan(network, workload, plan)
        fits = max(stage.peak_memory for stage in priced.stages) <= memory
        if fits and priced.host_memory <= network.host.memory * (1.0 + 1e-9):
            least = min(least, priced.closed_form_time)
    return least


@given(
    instances(most_devices=4, blocks=(1, 2), knobs=FEW),
    hosts,
    st.lists(st.sampled_from(OFFLOADS), min_size=1, max_size=2, unique=True),
    st.booleans(),
)
@settings(max_examples=12)
def test_the_search_finds_the_best_of_all_plans(instance, host, offloads, cpu_adam):
    network = instance.network.with_host(host)
    execution = replace(instance.workload.execution, cpu_adam=cpu_adam)
    workload = replace(instance.workload, execution=execution)
    workload._tables.update(instance.workload._tables)
    spec = replace(instance.spec, offload=(NO_OFFLOAD, *offloads), keep_best=1)
    force = BruteForce(network, workload, spec)
    plans = list(islice(every_plan(force, spec.offload), MOST_PLANS + 1))
    assume(len(plans) <= MOST_PLANS)
    expected = best_time(network, workload, spec, plans)
    found = search(network, workload, spec).plans
    if np.isinf(expected):
        assert not found
    else:
        assert found[0].closed_form_time == pytest.approx(expected, rel=1e-9)
