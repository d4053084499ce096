"""What hidden collectives add to a step as they span nodes, against prices by hand."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.collectives.transports import transports
from estimators.platform import Platform
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from planner.cost.crowding import spanned_nodes
from planner.cost.pricing import price_plan
from tests.planner.cost.test_pricing import TREE, plan, workload
from tests.planner.cost.test_second_copies import gather
from tests.planner.examples import executed

WAIT, CROWDING = 0.01, 0.1
HIDDEN = {"overlap_param_gather": True, "overlap_grad_reduce": True}


@pytest.fixture(autouse=True)
def fabric(monkeypatch):
    """Let what a fabric's collectives cost when they are hidden be `CROWDING`."""
    usual = replace(transports()["default-fabric"], crowding=CROWDING)
    monkeypatch.setattr(Platform, "transport", lambda *_, **__: usual)


def crowded(wait=WAIT, library=True, **overlaps):
    job = executed(workload(), **overlaps)
    constants = job.constants.replaced({"software.ideal.node_wait": wait})
    software = replace(job.software, library=library)
    other = replace(job, constants=constants, software=software)
    other._tables.update(job._tables)
    return other


def sharded(*devices, zero=3, m=3, **changes):
    whole = plan([[[device] for device in devices]], (), m=m, zero=zero)
    return replace(whole, stages=(replace(whole.stages[0], **changes),))


def added(overlaps, devices, **changes):
    """Return what the term adds to a step, and to its replay."""
    times = []
    for costs in ({}, {"wait": 0.0, "library": False}):
        with_term = crowded(**costs, **overlaps)
        priced = price_plan(TREE, with_term, sharded(*devices, **changes))
        work = lower_plan(TREE, with_term, priced, ReplaySettings())
        done = replay(TREE, work, ReplaySettings())
        times.append((priced.iteration_time, done.iteration_time))
    return tuple(np.subtract(*times))


def test_a_group_spans_the_nodes_of_its_members():
    groups = np.array([[0, 1, 4, 5], [2, 3, 6, 7]])
    assert spanned_nodes(groups, 4) == 2
    assert spanned_nodes(groups, 8) == spanned_nodes(groups[:, :2], 4) == 1
    assert spanned_nodes(groups[:, ::-1], 1) == 4


def test_hidden_collectives_of_layers_wait_for_nodes_and_cost_a_part_of_their_time():
    """Two gathers and a reduction of three layers in each of three microbatches."""
    whole = [gather(2 * one, nearby=False) for one in (10, 20, 10)]
    reduced = [gather(4 * one, nearby=False) for one in (10, 20, 10)]
    sent = 2 * sum(whole) + sum(reduced)
    # 21 s of compute in a microbatch hide no more than a part of them.
    part = 21.0 / sent
    expected = 3 * part * (3 * 3 * WAIT + CROWDING * (2**0.5 - 1.0) * sent)
    priced, replayed = added(HIDDEN, (0, 1, 4, 5))
    assert priced == pytest.approx(expected)
    assert replayed == pytest.approx(expected)


def test_what_stays_in_a_node_or_is_not_hidden_adds_nothing():
    for overlaps, devices in ((HIDDEN, (0, 1)), ({}, (0, 1, 4, 5))):
        assert added(overlaps, devices) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_the_term_grows_with_each_collective_that_is_hidden():
    """ZeRO-1 reduces and gathers once in a step, however many microbatches it has."""
    both, _ = added(HIDDEN, (0, 1, 4, 5), zero=1)
    gathers, _ = added({"overlap_param_gather": True}, (0, 1, 4, 5), zero=1)
    assert 0.0 < gathers < both
    more, _ = added({"overlap_param_gather": True}, (0, 1, 4, 5), zero=1, m=6)
    assert more == pytest.approx(gathers)


def test_the_closed_form_hides_nothing_and_leaves_it_out():
    job, plain = crowded(**HIDDEN), crowded(0.0, False, **HIDDEN)
    spread = sharded(0, 1, 4, 5)
    with_term, without = price_plan(TREE, job, spread), price_plan(TREE, plain, spread)
    assert with_term.closed_form_time == without.closed_form_time
    assert with_term.stages[0].crowding_time > 0.0 == without.stages[0].crowding_time
    for priced, expected in ((with_term, 1), (without, 0)):
        notes = lower_plan(TREE, job, priced, ReplaySettings()).notes
        assert sum("because they span nodes" in note for note in notes) == expected
