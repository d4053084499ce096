"""Continuous batching on one replica, from event to event.

Responses wait in their order, and are admitted while fewer than the most are being
worked on and there is room: for all that a response will ever keep (TensorRT-LLM's
GUARANTEED_NO_EVICT), or for what it keeps now and a step of all (vLLM). In the latter
case caches may become full; then the response that was admitted last is put out, waits
in front of all others, and later takes all its tokens through the model again.

Every step gives each response its next token; in its first step a response that brings
its prompt takes the prompt's tokens through the model as well. Between events (an
admission, a response that ends or is put out, one whose window is full) the batch stays
as it is and keys grow by one a step for each response, so that ``m`` steps of ``b``
responses with ``K`` keys take

    m base(b) + per_key (m K + b m (m - 1) / 2)

and windows likewise: time O(events), not O(tokens).

Letters: ``N`` responses, ``B`` the most at a time, ``T`` priced steps, ``L`` priced
prompts.
"""

import heapq
from typing import NamedTuple

from topologies.arrays import FloatVector, IntVector
from topologies.compiling import kernel, subkernel

# What `run_batches` notes in ``totals``.
TIME = 0
PREFILL = 1
PEAK_SEQUENCES = 2
PEAK_BYTES = 3
SEQUENCE_TIME = 4
STEPS = 5
PROMPT_TOKENS = 6
PUT_OUT = 7
NUM_TOTALS = 8


class Answers(NamedTuple):
    """What there is to answer, in the order in which it waits."""

    prompts: IntVector
    """Tokens of each response's prompt, shape ``(N,)``."""

    responses: IntVector
    """Tokens of each response, at least 1, shape ``(N,)``."""

    groups: IntVector
    """Number of each response's prompt, less than ``N``, shape ``(N,)``."""

    brings: IntVector
    """1 for responses that take their prompt through the model, shape ``(N,)``."""


class Costs(NamedTuple):
    """What steps take, and how much has room."""

    base: FloatVector
    """Time of a step with so many responses, without keys, shape ``(B + 1,)`` [s]."""

    tokens: FloatVector
    """Tokens of priced steps, rising, shape ``(T,)``."""

    layers: FloatVector
    """Time of all layers for these, shape ``(T,)`` [s]."""

    full: float
    """Time of a token beyond the last of ``tokens`` [s]."""

    lengths: FloatVector
    """Lengths of priced prompts, rising, shape ``(L,)`` [tokens]."""

    mixing: FloatVector
    """Time for a token of these to see the others, shape ``(L,)`` [s]."""

    per_key: float
    """Time of a key, all ranks reading together [s]."""

    per_window_key: float
    """Time of a key within windows, likewise [s]."""

    window: int
    """Most keys that layers with windows read; 0 without such."""

    ranks: float
    """Ranks that share responses evenly."""

    capacity: float
    """Room for caches of all ranks [byte]."""

    token_bytes: float
    """What a token leaves in layers that keep all [byte]."""

    window_bytes: float
    """What a token of a window leaves in layers that keep no more [byte]."""

    state_bytes: float
    """What a response has whatever its length [byte]."""

    reserves: int
    """1 if a response needs room for all that it will ever keep."""


@subkernel
def _line(nodes: FloatVector, values: FloatVector, place: float) -> float:
    """Return what lies between the nodes on a line, and at the nearest beyond them."""
    low, high = 0, len(nodes) - 1
    if place <= nodes[low]:
        return float(values[low])
    if place >= nodes[high]:
        return float(values[high])
    while high - low > 1:
        middle = (low + high) // 2
        if nodes[middle] <= place:
            low = middle
        else:
            high = middle
    part = (place - nodes[low]) / (nodes[high] - nodes[low])
    return float(values[low] + part * (values[high] - values[low]))


@subkernel
def _kept(costs: Costs, tokens: int) -> float:
    """Return what the keys of so many tokens of one sequence take [byte]."""
    windowed = min(tokens, costs.window)
    return costs.token_bytes * tokens + costs.window_bytes * windowed


@kernel
def run_batches(
    work: Answers, costs: Costs, finished: FloatVector, totals: FloatVector
) -> int:
    """Answer everything on one replica; return ``N``, or who has no room even alone.

    Parameters
    ----------
    work
        What there is to answer.
    costs
        What steps take.
    finished
        Filled with when each response is done, shape ``(N,)`` [s].
    totals
        Zeros that are filled, shape ``(NUM_TOTALS,)``.
    """
    number = len(work.prompts)
    most = len(costs.base) - 1
    # Heaps of moments times N plus the response, some of which were put out since.
    ends = [number]
    ends.pop()
    fills = [number]
    fills.pop()
    # Stacks of responses: as they were admitted, and those that were put out.
    order = [number]
    order.pop()
    again = [number]
    again.pop()
    active = work.groups * 0
    had = work.groups * 0
    end_of = work.groups * 0 - 1
    fill_of = work.groups * 0 - 1
    step, now, used = 0, 0.0, 0.0
    keys = window_keys = below = batch = fresh = 0
    while fresh < number or batch > 0 or len(again) > 0:
        while costs.reserves == 0 and batch > 0:
            growth = costs.token_bytes * batch + costs.window_bytes * below
            if used + growth <= costs.capacity:
                break
            while end_of[order[-1]] < 0:
                order.pop()
            last = order.pop()
            if batch == 1:
                return last
            length = work.prompts[last] + work.responses[last] - (end_of[last] - step)
            had[last] = length - work.prompts[last]
            keys -= length
            window_keys -= min(length, costs.window)
            if length < costs.window:
                below -= 1
            used -= _kept(costs, length) - _kept(costs, work.prompts[last])
            used -= costs.state_bytes
            group = work.groups[last]
            active[group] -= 1
            if active[group] == 0:
                used -= _kept(costs, work.prompts[last])
            end_of[last] = fill_of[last] = -1
            batch -= 1
            again.append(last)
            totals[PUT_OUT] += 1
        extra, mixing, came = 0, 0.0, 0
        while batch < most and (len(again) > 0 or fresh < number):
            response = again[-1] if len(again) > 0 else fresh
            prompt, group = work.prompts[response], work.groups[response]
            whole = prompt + work.responses[response]
            length = prompt + had[response]
            shared = active[group] > 0
            need = costs.state_bytes - _kept(costs, prompt)
            spare = 0.0
            if costs.reserves > 0:
                need += _kept(costs, whole)
            else:
                need += _kept(costs, length)
                spare = costs.token_bytes * (batch + 1)
                spare += costs.window_bytes * (below + (length < costs.window))
            if not shared:
                need += _kept(costs, prompt)
            if used + need + spare > costs.capacity:
                if batch == 0:
                    return response
                break
            used += need
            active[group] += 1
            batch += 1
            came += 1
            keys += length
            order.append(response)
            end_of[response] = step + whole - length
            heapq.heappush(ends, end_of[response] * number + response)
            window_keys += min(length, costs.window)
            if length < costs.window:
                below += 1
                if costs.window < whole:
                    fill_of[response] = step + costs.window - length
                    heapq.heappush(fills, fill_of[response] * number + response)
            if len(again) > 0:
                again.pop()
                extra += length - 1
                mixing += length * _line(costs.lengths, costs.mixing, float(length))
                if shared:
                    extra -= prompt
                    mixing -= prompt * _line(costs.lengths, costs.mixing, float(prompt))
            else:
                fresh += 1
                if work.brings[response] > 0:
                    extra += prompt - 1
                    mixing += prompt * _line(costs.lengths, costs.mixing, float(prompt))
                    totals[PROMPT_TOKENS] += prompt
        if came > 0:
            # What prompts add to the step that also gives all others a token.
            prefill = mixing / costs.ranks
            for rows, sign in ((batch + extra, 1.0), (batch, -1.0)):
                place = rows / costs.ranks
                beyond = max(0.0, place - costs.tokens[-1])
                time = _line(costs.tokens, costs.layers, place) + beyond * costs.full
                prefill += sign * time
            now += prefill
            totals[PREFILL] += prefill
            totals[SEQUENCE_TIME] += prefill * batch
        while end_of[ends[0] % number] != ends[0] // number:
            heapq.heappop(ends)
        while len(fills) > 0 and fill_of[fills[0] % number] != fills[0] // number:
            heapq.heappop(fills)
        steps = ends[0] // number - step
        if len(fills) > 0:
            steps = min(steps, fills[0] // number - step)
        if costs.reserves == 0:
            growth = costs.token_bytes * batch + costs.window_bytes * below
            if used + growth * steps > costs.capacity:
                steps = max(1, int((costs.capacity - used) // growth))
            used += growth * steps
        totals[PEAK_SEQUENCES] = max(totals[PEAK_SEQUENCES], batch)
        totals[PEAK_BYTES] = max(totals[PEAK_BYTES], used)
        count = float(steps)
        pairs = count * (count - 1.0) / 2.0
        time = count * costs.base[batch]
        time += costs.per_key * (count * keys + batch * pairs)
        time += costs.per_window_key * (count * window_keys + below * pairs)
        now += time
        totals[SEQUENCE_TIME] += time * batch
        step += steps
        keys += steps * batch
        window_keys += steps * below
        while len(fills) > 0 and fills[0] // number == step:
            filled = heapq.heappop(fills) % number
            if fill_of[filled] == step:
                fill_of[filled] = -1
                below -= 1
        while len(ends) > 0 and ends[0] // number == step:
            done = heapq.heappop(ends) % number
            if end_of[done] != step:
                continue
            finished[done] = now
            end_of[done] = -1
            prompt, group = work.prompts[done], work.groups[done]
            length = prompt + work.responses[done]
            keys -= length
            window_keys -= min(length, costs.window)
            if prompt + had[done] < costs.window and length <= costs.window:
                below -= 1
            used -= _kept(costs, length) - _kept(costs, prompt) + costs.state_bytes
            active[group] -= 1
            if active[group] == 0:
                used -= _kept(costs, prompt)
            batch -= 1
    totals[TIME] = now
    totals[STEPS] = step
    return number
