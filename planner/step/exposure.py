"""What of a transfer stays visible behind the passes that it goes on beside.

A pass is a list of layers, each of which computes and sends. What is hidden goes on
beside compute, and only what is left when the compute is over makes the pass longer:

* a tensor-parallel collective beside the part of its layer's compute that comes with
  it: the layer's compute is divided evenly between its collectives;
* the weights that ZeRO-3 gathers of the next layer beside a layer, and the gradients
  that ZeRO-2 and 3 reduce of the layer before;
* all-to-alls between experts in a pass that has a pass of another microbatch beside it
  in two windows [2]_: half of them behind as much as the layer does outside of experts,
  half behind its experts. They are the other pass's: it sends as much, and hides this
  pass's likewise. Both slow each other down (`beside_each_other`);
* gradients in buckets behind the passes that complete them, one bucket after another;
  parameters in buckets behind the first forward passes, likewise.

Sizes of buckets are Megatron-LM's [1]_. A layer's parameters are taken to be spread
evenly over its compute. Dense parameters and experts have buckets of their own, and so
has each chunk.

References
----------
.. [1] Megatron-LM, ``DistributedDataParallelConfig``: ``bucket_size`` "max(40000000,
   1000000 * dp_size) parameters (larger DP sizes need larger buckets to ensure
   collectives do not become latency-bound)"; the data-parallel size includes context
   parallelism.
.. [2] Megatron-LM, ``core/models/common/model_chunk_schedule_plan.py``,
   ``TransformerLayerSchedulePlan.run``: "comm_stream: combine_bwd | dispatch_fwd ->
   dispatch_bwd | combine_fwd, comp_stream: pre_dispatch_fwd | mlp_bwd -> mlp_bwd_dw ->
   mlp_fwd | pre_dispatch_bwd", weight gradients of what is in front of the dispatch
   behind it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from estimators.dispatch import Sharing
from topologies.arrays import FloatArray


class InLayers(NamedTuple):
    """Collectives of one kind inside of layers, shape ``(L,)``."""

    number: FloatArray
    """Number of collectives in each layer."""

    price: FloatArray
    """Time of each of those collectives [s]."""

    is_hidden: bool
    """Whether those collectives go on beside their layer's compute."""


class LayerPassTimes(NamedTuple):
    """What layers take in a kind of pass, shape ``(L,)``."""

    whole: FloatArray
    """Time from the begin of each layer to its end [s]."""

    worked: FloatArray
    """Compute in that time [s]."""

    def reordered(self, order: slice) -> "LayerPassTimes":
        """Return some of the layers, or another order of them."""
        return LayerPassTimes(self.whole[order], self.worked[order])


class PassTimes(NamedTuple):
    """One pass through the layers of a chunk."""

    whole: float
    """Time from the begin of the pass to its end [s]."""

    worked: float
    """Compute of the pass [s]."""

    begin: FloatArray
    """Compute of the pass before each of its layers [s]."""

    end: FloatArray
    """Compute of the pass once each of its layers is done [s]."""


class Behind(NamedTuple):
    """What a framework hides of what passes send for parameters."""

    gathers_ahead: bool
    """Whether the weights of the next layer are gathered beside a layer."""

    reduces_behind: bool
    """Whether the gradients of the layer before are reduced beside a layer."""

    slowdown: float
    """Factor on compute for as long as the device communicates beside it."""


def slowed(
    compute: FloatArray | float, beside: FloatArray | float, slowdown: float
) -> FloatArray:
    """Return how much longer compute takes beside communication of some length [s]."""
    longest = np.asarray(beside) * (1.0 - 1.0 / slowdown)
    return np.minimum(np.asarray(compute) * (slowdown - 1.0), longest)


def layer_times(
    compute: FloatArray, sent: Sequence[InLayers], slowdown: float = 1.0
) -> LayerPassTimes:
    """Return what layers take that divide their compute between collectives.

    Parameters
    ----------
    compute
        Of each layer, shape ``(L,)`` [s].
    sent
        What layers send.
    slowdown
        Factor on compute while something is sent beside it.
    """
    total = sum(
        (collectives.number for collectives in sent), start=np.zeros(compute.size)
    )
    part = compute / np.maximum(total, 1.0)
    whole = np.where(total > 0.0, 0.0, compute)
    worked = whole.copy()
    for collectives in sent:
        compute_part, lasts = part, part + collectives.price
        if collectives.is_hidden:
            compute_part = part + slowed(part, collectives.price, slowdown)
            lasts = np.maximum(compute_part, collectives.price)
        whole += collectives.number * lasts
        worked += collectives.number * compute_part
    return LayerPassTimes(whole, worked)


def beside_each_other(
    layers: LayerPassTimes,
    beside: FloatArray,
    contention: Sharing,
    *,
    reserves: bool = False,
) -> LayerPassTimes:
    """Return what layers take that have something sent beside all that they do.

    While both go on, compute goes ``s`` times and what is sent ``k`` times as slowly:
    ``C`` of the one and ``X`` of the other begin together, and end after ::

        max(C + k X (1 - 1 / s), X + s C (1 - 1 / k))

    Parameters
    ----------
    layers
        What they take without.
    beside
        How long it is on its way alone in each layer, shape ``(L,)`` [s].
    contention
        How they slow each other down.
    reserves
        Whether compute does without what sending takes in all of a layer that sends.
    """
    slowdown = contention.compute
    more = slowed(layers.worked, contention.sending * beside, slowdown)
    if reserves:
        more = layers.worked * (slowdown - 1.0) * (beside > 0.0)
    sent = beside + sending_delay(layers.worked, beside, contention)
    return LayerPassTimes(np.maximum(layers.whole + more, sent), layers.worked + more)


def sending_delay(
    compute: FloatArray | float, beside: FloatArray | float, contention: Sharing
) -> FloatArray:
    """Return how much longer something is on its way beside compute [s].

    Parameters as in `beside_each_other`.
    """
    longest = (
        np.asarray(compute) * contention.compute * (1.0 - 1.0 / contention.sending)
    )
    return np.minimum(np.asarray(beside) * (contention.sending - 1.0), longest)


def delayed_gradients(
    compute: FloatArray,
    gradients: FloatArray,
    beside: FloatArray,
    contention: Sharing,
) -> FloatArray:
    """Return which weight gradients wait to be beside what the next pass sends [s].

    As many as that would wait for otherwise, and no more than there are: a pair then
    takes what both passes' compute takes as one window. Megatron-LM's
    ``delay_wgrad_compute`` [2]_.

    Parameters
    ----------
    compute
        Compute of the forward pass beside what is sent, shape ``(L,)`` [s].
    gradients
        Weight gradients of the backward pass in its window, shape ``(L,)`` [s].
    beside, contention
        As in `beside_each_other`.
    """
    least = beside * contention.sending / contention.compute - compute
    return np.clip(least, 0.0, gradients)


class PairedCompute(NamedTuple):
    """Compute of passes that have another one beside them, window by window.

    Outside of experts, and of experts, shape ``(2, L)``.
    """

    forward: FloatArray
    """Compute of a forward pass [s]."""

    backward: FloatArray
    """Compute of a backward pass [s]."""


def paired_compute(
    compute: FloatArray,
    experts: FloatArray,
    beside: FloatArray,
    contention: Sharing,
    *,
    delays: bool,
) -> PairedCompute:
    """Return what two passes beside each other compute in each window.

    Parameters
    ----------
    compute
        Forward, backward, and the part of the latter that weight gradients are, shape
        ``(3, L)`` [s].
    experts
        Part of it between dispatch and combine, alike; all of it where it is less.
    beside
        How long what is sent beside a window is on its way alone, ``(L,)`` [s].
    contention
        How compute and what is sent slow each other down.
    delays
        Whether weight gradients wait where forward passes are too short.
    """
    inside = np.minimum(experts, compute)
    parts = np.stack((compute - inside, inside), axis=1)
    forward, backward, gradients = parts
    if delays:
        waits = delayed_gradients(forward, gradients, beside, contention)
        forward, backward = forward + waits, backward - waits
    return PairedCompute(forward, backward)


def join_times(parts: Iterable[LayerPassTimes]) -> LayerPassTimes:
    """Return layers that do several things one after another."""
    whole, worked = zip(*parts, strict=True)
    return LayerPassTimes(np.sum(whole, axis=0), np.sum(worked, axis=0))


def pass_times(
    layers: LayerPassTimes,
    gathers: FloatArray,
    reduces: FloatArray,
    behind: Behind,
    *,
    lead: float = 0.0,
    before: LayerPassTimes | None = None,
) -> PassTimes:
    """Return a pass through layers that also send for their parameters.

    Parameters
    ----------
    layers
        Those of a chunk, in the order of the pass.
    gathers, reduces
        Price of each collective of weights and of gradients, shape ``(L, n)`` [s].
        Collectives of one column and price are of one kind and follow each other; all
        others may be under way at once.
    behind
        What is hidden of them.
    lead
        What the host takes for the pass's messages before all else [s].
    before
        What the pass does before its first layer, all weights being there: it gathers
        them first, one after another, and none later.
    """
    now, worked = lead, lead
    if before is not None:
        now += float(gathers.sum() + before.whole.sum())
        worked += float(before.worked.sum())
        gathers = gathers[:, :0]
        behind = behind._replace(gathers_ahead=False)
    if gathers.size or reduces.size:
        return _queued_pass(_Queue(now), worked, layers, gathers, reduces, behind)
    end = worked + np.cumsum(layers.worked)
    now += float(layers.whole.sum())
    worked += float(layers.worked.sum())
    return PassTimes(now, worked, end - layers.worked, end)


class _Queue:
    """What a pass has sent so far, and when it arrives.

    Parameters
    ----------
    now
        Time of the pass [s].
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self._arrivals: dict[tuple[str, int, float], float] = {}

    def send(self, tensor: str, prices: list[float]) -> None:
        """Start collectives; alike ones follow each other."""
        for column, price in enumerate(prices):
            key = tensor, column, price
            free = self._arrivals.get(key, self.now)
            self._arrivals[key] = max(self.now, free) + price

    def wait(self, tensor: str, prices: list[float]) -> None:
        """Wait until all collectives like these have arrived."""
        for column, price in enumerate(prices):
            self.now = max(self.now, self._arrivals[tensor, column, price])


def _queued_pass(
    queue: _Queue,
    worked: float,
    layers: LayerPassTimes,
    gathers: FloatArray,
    reduces: FloatArray,
    behind: Behind,
) -> PassTimes:
    """Return a pass through layers that send, from a moment of the pass on."""
    moments = []
    waiting: list[float] = []
    needed: list[list[float]] = [*gathers.tolist(), []]
    if behind.gathers_ahead:
        queue.send("weights", needed[0])
    columns = needed, needed[1:], reduces.tolist(), layers.whole, layers.worked
    for gathered, following, reduced, whole, work in zip(*columns, strict=False):
        if behind.gathers_ahead:
            queue.wait("weights", gathered)
            queue.send("weights", following)
        else:
            queue.now += sum(gathered)
        ahead = sum(following) if behind.gathers_ahead else 0.0
        more = float(slowed(work, ahead + sum(waiting), behind.slowdown))
        moments.append((worked, worked + work + more))
        queue.now += float(whole) + more
        worked += float(work) + more
        queue.wait("gradients", waiting)
        if behind.reduces_behind:
            queue.send("gradients", reduced)
            waiting = reduced
        else:
            queue.now += sum(reduced)
    queue.wait("gradients", waiting)
    return PassTimes(queue.now, worked, *np.array(moments).T)


class PassProgress(NamedTuple):
    """Layers of one chunk in the order of a pass, and when the pass is at each."""

    chunk: int
    """Number of the chunk."""

    dense: Sequence[float]
    """Parameters of each layer outside of experts."""

    expert: Sequence[float]
    """Parameters of each layer's experts."""

    begin: Sequence[float]
    """Share of the pass's compute that is done before each layer."""

    end: Sequence[float]
    """Share of the pass's compute that is done after each layer."""


class ParameterBucket(NamedTuple):
    """Parameters that are reduced or gathered together."""

    at: float
    """Share of the pass's compute at which the pass has filled the bucket, or needs
    it."""

    dense: float
    """Parameters in the bucket outside of experts; 0 in a bucket of experts."""

    expert: float
    """Parameters of experts in the bucket; 0 in a bucket of others."""


def bucket_parameters(num_ranks: int) -> float:
    """Return Megatron's default size of a bucket in parameters [1]_.

    ``num_ranks`` hold the same dense parameters.
    """
    return max(40e6, 1e6 * num_ranks)


def parameter_buckets(
    progress: PassProgress, size: float, *, first: bool
) -> tuple[ParameterBucket, ...]:
    """Return the buckets of a chunk in the order in which a pass is at them.

    Those of alike chunks are made once, whatever their numbers.

    Parameters
    ----------
    progress
        The pass.
    size
        Parameters of a bucket; the last one may have fewer.
    first
        Whether a bucket counts as reached with its first parameter, which needs it, or
        with its last one, which fills it.
    """
    alike = PassProgress(0, *map(tuple, progress[1:]))
    return _parameter_buckets(alike, size, first=first)


# As many as have room on a device that is full of weights take 40 MB.
@lru_cache(maxsize=256)
def _parameter_buckets(
    progress: PassProgress, size: float, *, first: bool
) -> tuple[ParameterBucket, ...]:
    buckets = []
    for experts, column in enumerate((progress.dense, progress.expert)):
        edges = _bucket_edges(sum(column), size)
        places = [begin if first else end for begin, end in edges]
        moments = _moments(progress, column, places, first=first)
        for at, (begin, end) in zip(moments, edges, strict=True):
            count = end - begin
            counts = (0.0, count) if experts else (count, 0.0)
            buckets.append(ParameterBucket(at, *counts))
    return tuple(sorted(buckets, key=lambda bucket: bucket.at))


def timed_buckets(
    chunks: Iterable[PassProgress],
    size: float,
    time: Callable[[float, float], float],
    *,
    first: bool,
) -> "tuple[TimedBucket, ...]":
    """Return the `parameter_buckets` of chunks that take time, in their order.

    Parameters
    ----------
    chunks, size, first
        As of `parameter_buckets`; alike chunks have alike buckets.
    time
        Function of the parameters of a bucket outside of experts and inside [s].
    """
    times = cache(time)  # most buckets have as many parameters as others
    timed: list[TimedBucket] = []
    for progress in chunks:
        for at, dense, expert in parameter_buckets(progress, size, first=first):
            seconds = times(dense, expert)
            if seconds > 0.0:
                timed.append(TimedBucket(progress.chunk, at, seconds))
    return tuple(timed)


def _bucket_edges(total: float, size: float) -> list[tuple[float, float]]:
    """Return the parameters at which each bucket begins and ends."""
    count = int(np.ceil(total / size))
    edges = [min(number * size, total) for number in range(count + 1)]
    return list(pairwise(edges))


def _moments(
    progress: PassProgress,
    column: Sequence[float],
    places: Sequence[float],
    *,
    first: bool,
) -> list[float]:
    """Return when a pass is at parameters, as fractions of its work.

    Parameters
    ----------
    progress
        The pass.
    column
        Parameters of each layer.
    places
        How many come before each of them, rising.
    first
        Whether the parameter itself is meant, or the one before it.
    """
    layers = zip(column, progress.begin, progress.end, strict=True)
    count = before = after = begin = end = 0.0
    moments = []
    for place in places:
        while not (place < after or (place == after and not first and after)):
            before = after
            try:
                count, begin, end = next(layers)
            except StopIteration:
                count, begin, end, after = 0.0, 1.0, 1.0, math.inf
                break
            after = before + count
        share = (place - before) / count if count else 0.0
        moments.append(begin + share * (end - begin))
    return moments


class TimedBucket(NamedTuple):
    """A bucket on its way."""

    chunk: int
    """Number of the chunk whose parameters it holds."""

    at: float
    """Share of the pass's compute at which the pass has filled the bucket, or needs
    it."""

    time: float
    """Time of the bucket's collective [s]."""


def gathered_at(buckets: Sequence[TimedBucket]) -> FloatArray:
    """Return when each bucket is there, all leaving from the step's begin on [s]."""
    return np.cumsum([bucket.time for bucket in buckets])


def first_pass_end(
    duration: float, buckets: Sequence[TimedBucket], arrivals: FloatArray, chunk: int
) -> float:
    """Return before which moment a chunk's first forward pass cannot end [s].

    It waits where it needs each bucket, and goes on with what is left.
    """
    return max(
        (
            float(arrival) + (1.0 - bucket.at) * duration
            for bucket, arrival in zip(buckets, arrivals, strict=True)
            if bucket.chunk == chunk
        ),
        default=0.0,
    )


def reduced_at(
    buckets: Sequence[TimedBucket], filled: FloatArray, free: float
) -> float:
    """Return when the last bucket has been reduced [s].

    Parameters
    ----------
    buckets
        In the order in which they leave, one after another.
    filled
        When each has been filled, on all ranks [s].
    free
        When nothing else is under way any more [s].
    """
    now = free
    for bucket, moment in zip(buckets, filled.tolist(), strict=True):
        now = max(now, moment) + bucket.time
    return now
