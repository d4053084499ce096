"""What holds of every training step: all that is sent arrives, and in time.

A statement of its own, from records alone: neither engine nor programs are asked.
"""

from itertools import product

import numpy as np

from nestsim.simulator.replay import fold_model, replay, run_system
from nestsim.simulator.system import SPAN_KINDS, TRANSFER_KINDS, ReplaySettings
from planner.step.instructions import FORWARD

FORMS = tuple(
    ReplaySettings(folding=folding, engine=engine, skipping=skipping)
    for folding, engine, skipping in product(
        (False, True), ("simpy", "compiled"), (False, True)
    )
)
"""All ways to run one step."""


def assert_nothing_is_left(network, work):
    """Replay a step in all ways, and look at what was sent and what waited for it."""
    results = [replay(network, work, form, every_actor=True) for form in FORMS]
    assert_in_time(work, results[0])
    for result in results[1:]:
        assert result.iteration_time == results[0].iteration_time
        for name in ("spans", "transfers"):
            for ours, plain in zip(
                getattr(result, name), getattr(results[0], name), strict=True
            ):
                assert ours.tobytes() == plain.tobytes()
    return results[0]


def assert_all_arrives(model):
    """Run a model in all ways: every message posted departs, and arrives."""
    for form in FORMS:
        system = fold_model(model).system if form.folding else model.system
        run = run_system(system, form)
        for posts, departures, arrivals in zip(
            run.posts, run.departures, run.arrivals, strict=True
        ):
            assert posts.size == departures.size == arrivals.size
            assert (posts <= departures).all()
            assert (departures <= arrivals).all()
            assert arrivals.max(initial=0.0) <= run.end


def assert_in_time(work, result):
    """Look at what waits for collectives: optimizer steps and first forward passes."""
    spans, sent = result.spans, result.transfers
    assert sent.end.max(initial=0.0) <= result.iteration_time
    assert spans.end.max() <= result.iteration_time
    assert collectives_sent(sent) == collectives_due(work)
    num_stages = work.devices.shape[0]
    for stage in range(num_stages):
        here = spans.stage == stage
        optimizer = here & (spans.kind == SPAN_KINDS.index("optimizer"))
        begin = spans.start[optimizer].min()
        needed = np.isin(sent.kind, [of("reduce"), of("layer reduce")])
        needed &= sent.stage == stage
        if stage in {0, num_stages - 1}:
            needed |= sent.kind == of("tied")
        assert sent.end[needed].max(initial=0.0) <= begin
        assert_gathered(work, result, stage)


def assert_gathered(work, result, stage):
    """Look at what the first forward pass of each chunk does with its parameters.

    Once a bucket has come, as much of the pass is left as needs it.
    """
    spans, sent = result.spans, result.transfers
    num_stages, num_replicas, _ = work.devices.shape
    ends = np.sort(sent.end[(sent.kind == of("gather")) & (sent.stage == stage)])
    arrived = 0
    for bucket in work.gather_buckets[stage]:
        arrived += len(bucket.phases)
        moves = work.pass_moves(FORWARD, bucket.chunk * num_stages + stage)
        left = (1.0 - bucket.at) * sum(move.duration for move in moves)
        passes = (spans.stage == stage) & (spans.kind == FORWARD)
        passes &= spans.chunk == bucket.chunk
        for replica in range(num_replicas):
            first = spans.end[passes & (spans.replica == replica)].min()
            assert ends[arrived - 1] + left <= first * (1 + 1e-9) + 1e-9


def collectives_sent(sent):
    """Count the messages of collectives around the optimizer step by kind and stage."""
    return {
        (name, int(stage)): int(((sent.kind == of(name)) & (sent.stage == stage)).sum())
        for name in ("reduce", "gather", "tied")
        for stage in np.unique(sent.stage[sent.kind == of(name)])
    }


def collectives_due(work):
    """Count the phases of what a step has to send around its optimizer step."""
    found = {}
    buckets = {"reduce": work.reduce_buckets, "gather": work.gather_buckets}
    whole = {"reduce": work.reduce_phases, "gather": work.gather_phases}
    for name, stage in product(buckets, range(work.devices.shape[0])):
        count = sum(len(one.phases) for one in buckets[name][stage])
        found[name, stage] = count + len(whole[name][stage])
    found["tied", 0] = len(work.tied_phases)
    return {key: count for key, count in found.items() if count}


def of(name):
    """Return the number of a kind of transfer."""
    return TRANSFER_KINDS.index(name)
