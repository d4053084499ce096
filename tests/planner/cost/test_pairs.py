"""Passes beside each other: what they take, against closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.instructions import PAIRED_BACKWARD, PAIRED_FORWARD, paired_kind
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.planner.examples import eight_devices, tiny_job

NETWORK = eight_devices()


def priced(pairs, slowdown=1.0, **settings):
    """Price a mixture of experts on two replicas that share its experts."""
    job = tiny_job(80e9, family="mixtral")
    execution = replace(job.execution, expert_communication_slowdown=slowdown)
    job = replace(job, execution=execution)
    spec = PlanSpec(
        micro_batch_size=1,
        data_parallel_size=2,
        expert_model_parallel_size=2,
        overlap_moe_expert_parallel_comm=pairs,
        **settings,
    )
    return price_plan(NETWORK, job, build_plan(NETWORK, job, spec))


def test_one_stage_takes_a_pass_alone_then_pairs_then_a_pass_alone():
    paired, plain = priced(True), priced(False)
    m = paired.plan.num_microbatches
    assert m > 1
    ((forward, backward, _, first, second, _),) = paired.stages[0].chunk_times
    assert paired.pipeline_time == pytest.approx(
        forward + (m - 1) * (first + second) + backward
    )
    # Alone they are what they are without pairs.
    ((*alone, _, _, _, _),) = plain.stages[0].chunk_times
    assert (forward, backward) == pytest.approx(tuple(alone))


def test_a_pair_takes_what_is_sent_or_all_else_and_slows_down_what_is_beside():
    paired, plain = priced(True), priced(False)
    ((forward, backward, _, first, second, _),) = paired.stages[0].chunk_times
    sent = plain.stages[0].parts["expert all-to-all"]
    both, pair = forward + backward, first + second
    assert max(both - sent, sent) <= pair * (1.0 + 1e-12)
    assert pair < both
    ((_, _, _, slow_first, slow_second, _),) = priced(True, 1.5).stages[0].chunk_times
    assert pair < slow_first + slow_second <= pair + sent / 3.0 * (1.0 + 1e-9)


def test_what_pairs_hide_is_hidden_and_no_bubble():
    paired, plain = priced(True), priced(False)
    m = paired.plan.num_microbatches
    ((forward, backward, _, first, second, _),) = paired.stages[0].chunk_times
    saved = (m - 1) * (forward + backward - first - second)
    assert paired.terms["hidden"] == pytest.approx(-saved)
    assert paired.terms["bubble"] == pytest.approx(
        0.0, abs=1e-9 * paired.iteration_time
    )
    assert plain.terms["hidden"] == 0.0
    assert plain.terms["bubble"] == pytest.approx(0.0, abs=1e-9 * plain.iteration_time)


def test_a_layer_more_is_held_and_no_microbatch():
    paired, plain = (priced(pairs).stages[0].memory for pairs in (True, False))
    assert paired["activations"] == plain["activations"]
    more = paired["working"] - plain["working"]
    assert 0.0 < more < plain["activations"]


def pairs_of(name, p, m, v):
    """Return the microbatches of forward and backward passes in a row."""
    program = SCHEDULES[name].program(p, m, v)
    lists = np.split(program.kind, program.indptr[1:-1])
    written = np.concatenate([paired_kind(one, np.arange(one.size)) for one in lists])
    begins = np.flatnonzero(written == PAIRED_FORWARD)
    assert (written[begins + 1] == PAIRED_BACKWARD).all()
    return program.microbatch[begins], program.microbatch[begins + 1]


@failures.over("sizes", [(2, 4, 2), (4, 8, 3), (3, 3, 2), (8, 16, 2)])
def test_pairs_are_of_two_microbatches_as_they_are_not_without_one_pass_more(sizes):
    forward, backward = pairs_of("combined-interleaved-1f1b", *sizes)
    assert (forward != backward).all()
    forward, backward = pairs_of("interleaved-1f1b", *sizes)
    assert (forward == backward).any()


def test_a_stage_alone_has_pairs_of_all_microbatches_but_the_ends():
    forward, backward = pairs_of("combined-1f1b", 1, 5, 1)
    assert forward.tolist() == [1, 2, 3, 4]
    assert backward.tolist() == [0, 1, 2, 3]
