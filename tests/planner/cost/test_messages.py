"""Messages between stages cost host time: in prices, searches and replays alike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from nestsim.features.run.statistics import iteration_causes, stage_breakdowns
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replay
from planner.cost.objective import HOST
from planner.cost.pricing import price_plan
from planner.search.best_first import search
from tests import failures
from tests.nestsim.lowering.test_lower import real
from tests.planner.examples import executed
from tests.planner.instances import interleaved

MESSAGE = 3e-3


def pipelines(chunks):
    """Return a job of two stages without and with message times, and its plan."""
    net, job, priced = real(
        "tensor",
        virtual_pipeline_model_parallel_size=chunks,
    )
    return net, executed(job), executed(job, MESSAGE), priced.plan


@failures.over("chunks", [1, 2])
def test_each_pass_of_each_chunk_pays_for_a_message_in_and_one_out(chunks):
    net, free, charged, plan = pipelines(chunks)
    m, p = plan.num_microbatches, len(plan.stages)
    before, after = (price_plan(net, job, plan) for job in (free, charged))
    # Narayanan et al., SC'21, section 2.2: m passes of all chunks of the slowest stage,
    # and (p - 1) / v of them in the bubble; a pass pays for two messages.
    expected = 4 * MESSAGE * chunks * (m + (p - 1) / chunks)
    added = after.closed_form_time - before.closed_form_time
    assert added == pytest.approx(expected, rel=1e-9)
    assert after.terms[HOST] == pytest.approx(4 * MESSAGE * chunks * m)
    assert before.terms[HOST] == 0.0
    assert after.terms["compute"] == pytest.approx(before.terms["compute"])
    done = replay(net, lower_plan(net, charged, after))
    assert done.iteration_time == pytest.approx(after.iteration_time, rel=1e-3)


def test_what_devices_wait_for_hosts_is_part_of_the_replayed_step():
    net, _, charged, plan = pipelines(2)
    done = replay(net, lower_plan(net, charged, price_plan(net, charged, plan)))
    causes = iteration_causes(done, plan.schedule, plan.num_microbatches)
    host = 4 * MESSAGE * 2 * plan.num_microbatches
    assert causes["host"] == pytest.approx(host)
    assert sum(causes.values()) == pytest.approx(done.iteration_time, rel=1e-12)
    for row in stage_breakdowns(done):
        assert row.host == pytest.approx(host)
        assert sum(row) == pytest.approx(done.iteration_time, rel=1e-12)


def test_what_hosts_take_once_in_a_step_is_theirs_and_not_the_optimizers():
    net, free, _, plan = pipelines(1)
    named = {"software.ideal.iteration_time": 0.25}
    job = replace(executed(free), constants=free.constants.replaced(named))
    before, after = (price_plan(net, work, plan) for work in (executed(free), job))
    assert after.terms[HOST] == 0.25
    assert after.terms["tail"] == pytest.approx(before.terms["tail"])
    assert sum(after.terms.values()) == pytest.approx(after.iteration_time)
    replays = [
        replay(net, lower_plan(net, work, price_plan(net, work, plan)))
        for work in (executed(free), job)
    ]
    plain, causes = (
        iteration_causes(done, plan.schedule, plan.num_microbatches) for done in replays
    )
    assert causes["host"] == 0.25
    assert causes["optimizer"] == pytest.approx(plain["optimizer"])
    for plain_row, row in zip(*map(stage_breakdowns, replays), strict=True):
        assert row.host == 0.25
        assert row.optimizer == pytest.approx(plain_row.optimizer)
        assert sum(row) == pytest.approx(replays[1].iteration_time)


@settings(max_examples=25)
@given(interleaved(most_devices=8))
def test_the_search_with_the_planned_objective_sees_what_prices_see(problem):
    network, job, spec = problem
    found = search(network, executed(job, 0.75), replace(spec, keep_best=1))
    for priced in found.plans:
        assert found.lower_bound == pytest.approx(priced.closed_form_time, rel=1e-9)
    assert np.isfinite(found.lower_bound) or not found.plans
