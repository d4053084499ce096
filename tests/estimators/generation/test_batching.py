"""Continuous batching from event to event against a loop over single tokens."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.generation.batching import (
    NUM_TOTALS,
    PEAK_BYTES,
    PEAK_SEQUENCES,
    PREFILL,
    PROMPT_TOKENS,
    PUT_OUT,
    SEQUENCE_TIME,
    STEPS,
    TIME,
    Answers,
    Costs,
    run_batches,
)


def make_work(prompts, answers, samples=1, *, shares=True):
    """Return ``samples`` responses to each prompt."""
    asked_once = np.repeat(np.array(prompts, dtype=np.int64), samples)
    number = len(asked_once)
    brings = np.ones(number, dtype=np.int64)
    if shares:
        brings[np.arange(number) % samples > 0] = 0
    return Answers(
        prompts=asked_once,
        responses=np.array(answers, dtype=np.int64),
        groups=np.arange(number, dtype=np.int64) // (samples if shares else 1),
        brings=brings,
    )


def make_costs(most, *, capacity=1e9, window=0, ranks=1.0, reserves=1, state=0.0):
    """Return steps of 1 ms and 0.1 ms a response, and a little for each key.

    A token keeps a byte, and another one in a window; a prompt of ``p`` tokens takes
    ``p^2`` us beside its layers.
    """
    rows = np.arange(most + 1) / ranks
    layers = np.array([1e-3, 1.2e-3, 2e-3, 6e-3])
    return Costs(
        base=1e-3 + 1e-4 * rows,
        tokens=np.array([1.0, 4.0, 16.0, 64.0]),
        layers=layers,
        full=float(layers[-1] / 64.0),
        lengths=np.array([0.0, 1000.0]),
        mixing=np.array([0.0, 1e-3]),
        per_key=2.0**-20,
        per_window_key=2.0**-19 if window else 0.0,
        window=window,
        ranks=ranks,
        capacity=capacity,
        token_bytes=1.0,
        window_bytes=1.0 if window else 0.0,
        state_bytes=state,
        reserves=reserves,
    )


def run(work, costs, function=run_batches):
    finished, totals = np.zeros(len(work.prompts)), np.zeros(NUM_TOTALS)
    stuck = function(work, costs, finished, totals)
    return stuck, finished, totals


def kept(costs, tokens):
    """Return what keys of a sequence take."""
    return costs.token_bytes * tokens + costs.window_bytes * min(tokens, costs.window)


def used(work, costs, lengths):
    """Return what responses of these lengths and their prompts keep together."""
    prompts = {int(work.groups[i]): work.prompts[i] for i in lengths}
    size = sum(kept(costs, prompt) for prompt in prompts.values())
    for i, length in lengths.items():
        size += kept(costs, length) - kept(costs, work.prompts[i]) + costs.state_bytes
    return size


def ahead(work, costs, running):
    """Return the lengths that need room: at the end, or after one more step."""
    if costs.reserves:
        return {i: work.prompts[i] + work.responses[i] for i in running}
    return {i: work.prompts[i] + done + 1 for i, done in running.items()}


def layers_time(costs, rows):
    """Return the time of all layers for a rank's tokens."""
    if rows >= costs.tokens[-1]:
        return costs.layers[-1] + (rows - costs.tokens[-1]) * costs.full
    return float(np.interp(rows, costs.tokens, costs.layers))


def step_time(work, costs, running, extra, mixing):
    """Return the time of one step, and the part of it that prompts add."""
    time = costs.base[len(running)]
    for i, done in running.items():
        keys = work.prompts[i] + done
        time += costs.per_key * keys
        time += costs.per_window_key * min(keys, costs.window)
    prefill = layers_time(costs, (len(running) + extra) / costs.ranks)
    prefill -= layers_time(costs, len(running) / costs.ranks)
    prefill += mixing / costs.ranks
    return time + prefill, prefill


def brought(work, i, done, *, shared):
    """Return the tokens that an admitted response adds, and the squares of lengths."""
    prompt = int(work.prompts[i])
    if done:
        whole, known = prompt + done, prompt if shared else 0
        return whole - known - 1, whole**2 - known**2
    return ((prompt - 1), prompt**2) if work.brings[i] else (0, 0)


def admit(work, costs, running, waiting, had):
    """Take up what has room; return tokens and squares that it adds."""
    tokens = squares = 0
    while waiting and len(running) < len(costs.base) - 1:
        i = waiting[0]
        after = {**running, i: had[i]}
        if used(work, costs, ahead(work, costs, after)) > costs.capacity:
            break
        groups = {work.groups[j] for j in running}
        more = brought(work, i, had[i], shared=work.groups[i] in groups)
        tokens, squares = tokens + more[0], squares + more[1]
        running[waiting.pop(0)] = had[i]
    return tokens, squares


def token_by_token(work, costs):
    """Return the same by a loop over steps and responses."""
    number = len(work.prompts)
    waiting, running, had = list(range(number)), {}, [0] * number
    finished, totals = np.zeros(number), np.zeros(NUM_TOTALS)
    while waiting or running:
        while not costs.reserves and running:
            if used(work, costs, ahead(work, costs, running)) <= costs.capacity:
                break
            last = list(running)[-1]
            if len(running) == 1:
                return last, finished, totals
            had[last] = running.pop(last)
            waiting.insert(0, last)
            totals[PUT_OUT] += 1
        fresh = [i for i in waiting if not had[i]]
        extra, squares = admit(work, costs, running, waiting, had)
        if not running:
            return waiting[0], finished, totals
        came = [i for i in fresh if i in running]
        time, prefill = step_time(work, costs, running, extra, 1e-6 * squares)
        totals[PREFILL] += prefill
        totals[PROMPT_TOKENS] += sum(work.prompts[i] * work.brings[i] for i in came)
        totals[PEAK_SEQUENCES] = max(totals[PEAK_SEQUENCES], len(running))
        size = used(work, costs, ahead(work, costs, running))
        totals[PEAK_BYTES] = max(totals[PEAK_BYTES], size)
        totals[TIME] += time
        totals[SEQUENCE_TIME] += len(running) * time
        totals[STEPS] += 1
        running = {i: done + 1 for i, done in running.items()}
        for i in [i for i, done in running.items() if done == work.responses[i]]:
            finished[i] = totals[TIME]
            del running[i]
    return number, finished, totals


@st.composite
def instances(draw):
    prompts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    samples = draw(st.integers(1, 4))
    number = len(prompts) * samples
    answers = draw(st.lists(st.integers(1, 30), min_size=number, max_size=number))
    work = make_work(prompts, answers, samples, shares=draw(st.booleans()))
    costs = make_costs(
        draw(st.integers(1, 8)),
        capacity=float(draw(st.integers(30, 400))),
        window=draw(st.sampled_from([0, 1, 8, 20, 100])),
        ranks=draw(st.sampled_from([1.0, 2.0])),
        reserves=draw(st.integers(0, 1)),
        state=draw(st.sampled_from([0.0, 8.0])),
    )
    return work, costs


@settings(max_examples=150, deadline=None)
@given(instances())
def test_events_give_what_single_tokens_give(instance):
    work, costs = instance
    stuck, finished, totals = run(work, costs)
    other, expected, sums = token_by_token(work, costs)
    assert stuck == other
    if stuck == len(work.prompts):
        assert finished == pytest.approx(expected, rel=1e-12)
        assert totals == pytest.approx(sums, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(instances())
def test_machine_code_gives_the_bits_of_python(instance):
    compiled = run(*instance)
    plain = run(*instance, function=run_batches.py_func)
    assert compiled[0] == plain[0]
    assert compiled[1].tobytes() == plain[1].tobytes()
    assert compiled[2].tobytes() == plain[2].tobytes()


def test_one_response_takes_its_prompt_and_a_step_for_each_token():
    work, costs = make_work([16], [10]), make_costs(4)
    _, finished, totals = run(work, costs)
    keys = sum(range(16, 26))
    prefill = 1e-6 * 16**2 + 2e-3 - 1e-3
    expected = prefill + 10 * 1.1e-3 + keys * 2.0**-20
    assert finished[0] == totals[TIME] == pytest.approx(expected)
    assert totals[PREFILL] == pytest.approx(prefill)


def test_equal_responses_go_in_waves():
    work, costs = make_work([1] * 12, [5] * 12), make_costs(4)
    _, finished, totals = run(work, costs)
    wave = 5 * 1.4e-3 + 4 * sum(range(1, 6)) * 2.0**-20 + 4 * 1e-6
    assert sorted(set(np.round(finished, 12))) == pytest.approx(
        [wave, 2 * wave, 3 * wave]
    )
    assert totals[STEPS] == 15
    assert totals[SEQUENCE_TIME] == pytest.approx(4 * totals[TIME])


def test_room_limits_how_many_run_at_a_time():
    work = make_work([10] * 8, [10] * 8)
    for capacity, most in ((20.0, 1), (59.0, 2), (60.0, 3), (1e3, 8)):
        _, _, totals = run(work, make_costs(8, capacity=capacity))
        assert totals[PEAK_SEQUENCES] == most
        assert totals[PEAK_BYTES] == 20.0 * most


def test_what_has_no_room_alone_is_told():
    work = make_work([10, 10], [10, 200])
    for reserves in (0, 1):
        costs = make_costs(8, capacity=100.0, reserves=reserves)
        assert run(work, costs)[0] == 1


def test_full_caches_put_out_the_last_that_came():
    work = make_work([10] * 2, [20] * 2)
    _, finished, totals = run(work, make_costs(8, capacity=40.0, reserves=0))
    # Both have ten tokens when 40 bytes are full; the second waits for the first, and
    # goes through the model with all its 20 tokens.
    assert totals[PUT_OUT] == 1
    assert totals[STEPS] == 30
    assert totals[PEAK_BYTES] == 40.0
    assert finished[0] < finished[1]
    first = layers_time(make_costs(8), 2 + 18) - layers_time(make_costs(8), 2)
    second = layers_time(make_costs(8), 20) - layers_time(make_costs(8), 1)
    assert totals[PREFILL] == pytest.approx(first + second + 2 * 1e-4 + 4e-4)


def test_shared_prompts_are_worked_on_and_kept_once():
    answers = [8] * 16
    shared = run(make_work([30] * 2, answers, 8), make_costs(16))[2]
    apart = run(make_work([30] * 2, answers, 8, shares=False), make_costs(16))[2]
    assert shared[PROMPT_TOKENS] == 60
    assert apart[PROMPT_TOKENS] == 480
    assert shared[PEAK_BYTES] == 2 * 30 + 16 * 8
    assert apart[PEAK_BYTES] == 16 * 38
    assert shared[TIME] < apart[TIME]


def test_work_grows_with_events_and_not_with_tokens():
    # A billion steps, a trillion tokens: a loop over them would take days.
    work = make_work([1000] * 64, [10**9 + 7 * i for i in range(64)] * 16, 16)
    _, finished, totals = run(work, make_costs(256, capacity=math.inf))
    assert totals[STEPS] > 10**9
    assert finished.max() == totals[TIME]
