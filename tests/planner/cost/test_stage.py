"""What one stage costs, from the layers' table and the rates of its placement."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from estimators.platform import optimizer_step_bytes
from planner.cost.pricing import price_plan, rates_of
from planner.cost.stage import passes_differ, stage_price
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.memory import expert_group_size
from tests.planner.cost.test_pricing import TREE, plan, table, workload
from tests.planner.examples import eight_devices, executed, tiny_job
from topologies.accelerators import Host

HOST = Host(to_device=2e9, to_host=1e9, latency=1e-6, memory=1e15, adam_rate=1e8)
ONCE, SHARD = 2e-3, 1e-4
"""What a step takes once, and once for each rank of a shard's group [s]."""


def trained(family, *, cpu_adam):
    """Return a job whose steps have every part that they may have."""
    job = tiny_job(2.0**40, family=family)
    constants = job.constants.replaced(
        {"software.ideal.iteration_time": ONCE, "software.ideal.shard_time": SHARD}
    )
    execution = replace(job.execution, cpu_adam=cpu_adam)
    return replace(job, constants=constants, execution=execution)


@pytest.mark.parametrize("family", ["gpt", "mixtral"])
@pytest.mark.parametrize("cpu_adam", [False, True])
def test_the_step_updates_what_devices_and_hosts_hold(family, cpu_adam):
    job, network = trained(family, cpu_adam=cpu_adam), eight_devices().with_host(HOST)
    each = job.parameter_bytes
    pace = optimizer_step_bytes(each) / job.memory_rate()
    ep = 2 if family == "mixtral" else 1
    for zero, away in product(range(4), (0.0, 0.25, 1.0)):
        spec = PlanSpec(
            micro_batch_size=1,
            data_parallel_size=4,
            pipeline_model_parallel_size=2,
            expert_model_parallel_size=ep,
            zero_stage=zero,
            offload_optimizer=away,
        )
        made = build_plan(network, job, spec)
        chain = job.table(made.degrees)
        for stage, cost in zip(
            made.stages, price_plan(network, job, made).stages, strict=True
        ):
            ((first, last),) = stage.chunks
            expert = chain.expert_parameters[first : last + 1].sum()
            dense = chain.parameters[first : last + 1].sum() - expert
            group = stage.sharding_group_size
            if zero:
                dense, expert = dense / group, expert / expert_group_size(made)
            held = dense + expert
            on_host = away * held if cpu_adam else 0.0
            expected = (held - on_host) * pace + on_host / HOST.adam_rate + ONCE
            # Shards are gathered after the step, but where each pass does so.
            expected += SHARD * group * (zero in {1, 2})
            assert cost.optimizer_time == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2)])
def test_passes_that_are_split_take_together_what_whole_ones_take(zero, cuts):
    p, job, chain = len(cuts) + 1, workload(), table()
    devices = [[[2 * d], [2 * d + 1]] for d in range(p)]
    whole = plan(devices, cuts, m=4, zero=zero)
    split = replace(whole, schedule="zb-h1")
    for index, stage in enumerate(whole.stages):
        ((first, last),) = stage.chunks
        layers = slice(first, last + 1)
        joined, parted = (
            stage_price(job, rates_of(TREE, job, made), made, index).cost
            for made in (whole, split)
        )
        assert parted.forward_time == joined.forward_time
        assert joined.weight_gradient_time == 0.0
        together = parted.backward_time + parted.weight_gradient_time
        assert together == pytest.approx(joined.backward_time, rel=1e-12)
        compute = {
            "forward": chain.forward_time[layers].sum(),
            "backward": (chain.backward_time - chain.weight_gradient_time)[
                layers
            ].sum(),
            "weight_gradient": chain.weight_gradient_time[layers].sum(),
        }
        extra = {
            name: getattr(parted, f"{name}_time") - time
            for name, time in compute.items()
        }
        # ZeRO-2 reduces gradients in each microbatch, ZeRO-3 gathers weights as well.
        sends = {
            "forward": zero == 3,
            "backward": zero == 3,
            "weight_gradient": zero >= 2,
        }
        for name, time in extra.items():
            assert (time > 0.0) == sends[name], name
        assert sum(extra.values()) == pytest.approx(
            joined.parts["zero gathers"], abs=1e-12
        )
        assert joined.parts["compute"] == pytest.approx(sum(compute.values()))
        assert np.isclose(joined.charged_time, sum(joined.parts.values()))
        assert joined.charged_time == pytest.approx(
            joined.forward_time + joined.backward_time
        )


@pytest.mark.parametrize("family", ["gpt", "mixtral"])
def test_what_is_sent_at_the_ends_is_sent_whole_or_in_buckets(family):
    network = eight_devices()
    # Expert groups of several ranks leave no choice of sharding groups.
    for zero, size in product(range(4), (2, 4, 8) if family == "gpt" else (8,)):
        spec = PlanSpec(
            micro_batch_size=1,
            data_parallel_size=8,
            expert_model_parallel_size=2 if family == "mixtral" else 1,
            zero_stage=zero,
            **({"sharding_group_size": size} if zero else {}),
        )
        for behind, ahead in product((False, True), (False, True)):
            job = executed(
                tiny_job(2.0**40, family=family),
                overlap_grad_reduce=behind,
                overlap_param_gather=ahead,
            )
            made = build_plan(network, job, spec)
            price = stage_price(job, rates_of(network, job, made), made, 0)
            assert price.reduce_time == (0.0 if behind else price.cost.reduce_time)
            assert price.gather_time == (0.0 if ahead else price.cost.gather_time)
            is_sent = price.cost.reduce_time > 0.0, price.cost.gather_time > 0.0
            assert bool(price.reduces) == (behind and is_sent[0])
            assert bool(price.gathers) == (ahead and is_sent[1])
            # Buckets move the same bytes; each begins anew.
            for buckets, whole in (
                (price.reduces, price.cost.reduce_time),
                (price.gathers, price.cost.gather_time),
            ):
                if buckets:
                    assert sum(bucket.time for bucket in buckets) >= whole * 0.999
                if len(buckets) == 1:
                    assert buckets[0].time == pytest.approx(whole, rel=1e-12)
            # Layer by layer where passes wait for what they send and hide it.
            differs = (ahead and zero == 3) or (behind and zero >= 2)
            assert passes_differ(job, made) == differs
