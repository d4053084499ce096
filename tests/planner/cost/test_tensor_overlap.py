"""Tensor-parallel collectives hide behind products inside of a node, and only there."""

import pytest

from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from planner.cost.pricing import price_plan
from planner.frameworks.framework import FRAMEWORKS, PRESETS
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.space import SearchSpec
from planner.work import Work
from tests.nestsim.lowering.test_lower import eight_devices
from tests.planner.examples import executed, tiny_job

LAYERS = ReplaySettings(granularity="layer")


def times(tp, *, hides):
    """Return a step as planned and as replayed by stages and by layers [s]."""
    network, job = eight_devices(), tiny_job(2.0**40)
    job = executed(job, tp_comm_overlap=hides)
    spec = PlanSpec(micro_batch_size=1, tensor_model_parallel_size=tp)
    priced = price_plan(network, job, build_plan(network, job, spec))
    replays = [
        replay(network, lower_plan(network, job, priced, how), how).iteration_time
        for how in (ReplaySettings(), LAYERS)
    ]
    return [priced.iteration_time, *replays]


def bound(tp, *, hides):
    """Return the bound of the plans of one tensor-parallel size [s]."""
    network, job = eight_devices(), tiny_job(2.0**40)
    found = LaunchableCandidates.enumerate(
        network,
        executed(job, tp_comm_overlap=hides),
        SearchSpec(
            rules=FRAMEWORKS["ideal"].rules,
            tensor_model_parallel_sizes=(tp,),
            pipeline_model_parallel_sizes=(1,),
        ),
        by_layer=False,
        work=Work(),
    )
    every = map(found.first_bounds, range(len(found.families)))
    return float(min(bounds.min() for bounds in every))


def test_nothing_hides_in_groups_that_leave_their_node():
    # Two nodes of four devices: user buffers are memory that NVLink joins.
    assert times(6, hides=True) == pytest.approx(times(6, hides=False), rel=1e-12)
    assert bound(6, hides=True) == bound(6, hides=False)
    for hidden, plain in zip(times(4, hides=True), times(4, hides=False), strict=True):
        assert hidden < plain
    assert bound(4, hides=True) < bound(4, hides=False)


def test_presets_overlap_what_megatron_core_does_by_default():
    config = pytest.importorskip("megatron.core.model_parallel_config")
    default = config.ModelParallelConfig().tp_comm_overlap
    for name in ("megatron-lm", "megatron-core"):
        assert PRESETS[name].execution.tp_comm_overlap is default
