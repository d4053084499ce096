"""Closed forms of a pipeline's pace: what one more microbatch costs, uncontended.

A schedule whose lists repeat, one unit for each microbatch, is a timed event graph: its
pace, the cycle time, is the largest mean of a cycle, durations over microbatches [1]_.
For the schedules below it has a closed form in the durations of the stages.

Letters: ``p`` stages, ``m`` microbatches; for stage ``s`` the durations ``f``
(forward), ``b`` (backward; gradients of activations alone where weight gradients are
apart) and ``w`` (weight gradients, 0 where they are not); ``t = f + b + w``; for the
boundary between stages ``s`` and ``s + 1`` the round trip ``c``: wire and latency of
activation and gradient.

Interval means. In the graph of 1F1B a closed walk that visits the forward (and so the
backward) pass of stage ``s`` ``v_s`` times, and crosses boundary ``s`` ``d_s`` times
each way, takes ``sum v_s t_s + sum d_s c_s`` for ``sum v_s`` microbatches, with ``d_s``
at most ``v_s`` and ``v_{s+1}``. Cut into layers of equal height, such a walk is a sum
of intervals ``i..j`` that are visited once, so that the best mean is that of one
interval. The graph's other cycles are the channels: no more than one message is on a
wire at once.

Finite ``m``. What ends last is the end of a chain of causes. Until its last forward
pass, of microbatch ``k`` on stage ``i``, the chain takes at most ``f`` and the
transfers down to there once, and ``k`` times the cycle time: every detour is a cycle.
On stage ``i`` the next backward pass belongs to a microbatch ``a_i = min(m - 1, p - 1 -
i)`` earlier. From there the chain goes backward only: the passes and transfers on its
way once, and for each microbatch that it still has to gain no more than the longest of
them, which the cycle time exceeds. So ``k = m - 1`` is the worst case. For 1F1B::

    T <= (m - 1) lambda + max_i ( sum_{s<=i} t_s + sum_{s<i} c_s + a_i max_{s<=i} b_s )

where ``max b`` includes the gradients' wires. The last stage, ``a_i = 0``, gives ``sum
t + sum c``, and is the largest unless some stages are much longer backward, compared to
forward, than others. That this term alone does not do: stages with ``f = 1, 0, 0`` and
``b = 0, 1, 0`` need 4 for two microbatches, not 3.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, sections 2.5 and 3.2.
.. [2] Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, IntArray


class PipelineTimes(NamedTuple):
    """Durations of one microbatch, one chunk for each stage [s]."""

    forward: FloatArray
    """Shape ``(p,)``."""

    backward: FloatArray
    """Weight gradients included unless the schedule splits them off, shape ``(p,)``."""

    weight: FloatArray
    """Weight gradients where the schedule splits them off, else 0, shape ``(p,)``."""

    forward_wire: FloatArray
    """Bytes over bandwidth of the activation at each boundary, shape ``(p - 1,)``."""

    backward_wire: FloatArray
    """Bytes over bandwidth of the gradient at each boundary, shape ``(p - 1,)``."""

    forward_latency: FloatArray
    """Added after the last byte, shape ``(p - 1,)``."""

    backward_latency: FloatArray
    """Added after the last byte, shape ``(p - 1,)``."""

    @property
    def work(self) -> FloatArray:
        """All passes of each stage, shape ``(p,)``."""
        return self.forward + self.backward + self.weight

    @property
    def there(self) -> FloatArray:
        """An activation's way over each boundary, shape ``(p - 1,)``."""
        return self.forward_wire + self.forward_latency

    @property
    def back(self) -> FloatArray:
        """A gradient's way over each boundary, shape ``(p - 1,)``."""
        return self.backward_wire + self.backward_latency

    @property
    def wire(self) -> float:
        """The longest message of either direction; 0 with one stage."""
        messages = np.concatenate((self.forward_wire, self.backward_wire))
        return float(messages.max(initial=0.0))


class ClosedForm(NamedTuple):
    """What a formula says of a pipeline without contention."""

    cycle_time: float
    """What one more microbatch costs when there are many; exact [s]."""

    time: float
    """Upper bound of the time of all microbatches [s]."""


def largest_interval_mean(loads: FloatArray, links: FloatArray) -> float:
    """Return ``max_{i<=j} (sum loads_i..j + sum links_i..j-1) / (j - i + 1)``. O(p^2).

    Parameters
    ----------
    loads
        Of each stage, shape ``(p,)`` [s].
    links
        Between neighbours, shape ``(p - 1,)``; may be negative [s].
    """
    ends = np.cumsum(loads) + _after(links)
    begins = ends - loads
    place = np.arange(loads.size)
    size = place[:, None] - place + 1
    sums = ends[:, None] - begins
    return float((sums[size > 0] / size[size > 0]).max())


def one_f_one_b(times: PipelineTimes, num_microbatches: int) -> ClosedForm:
    """Return the closed form of 1F1B, transfers being asynchronous.

    The cycle time is the largest interval mean of ``t`` and ``c``, or the longest
    message: transfers show almost fully, although nothing waits for a send. For the
    bound see above.
    """
    trips = times.there + times.back
    mean = largest_interval_mean(times.work, trips)
    pace = max(mean, times.wire)
    once = np.cumsum(times.work) + _after(trips)
    once += _gained(times, num_microbatches) * _longest_so_far(times)
    return ClosedForm(pace, float((num_microbatches - 1) * pace + once.max()))


def zb_h1(times: PipelineTimes, num_microbatches: int) -> ClosedForm:
    """Return the closed form of ZB-H1, transfers being asynchronous [2]_.

    The cycle time is that of 1F1B with ``c_s - w_{s+1}`` in place of ``c_s``: while a
    stage waits for the next one's gradient that one's weight gradients are not in the
    way, which hides a round trip as long as they are.

    For the bound, the chain ends with the last weight gradients of some stage ``s``, as
    many as that stage is behind, and backward passes may be followed by weight
    gradients on their way from ``i`` to ``s``::

        T <= (m - 1) lambda + max_{s<=i} ( sum_{r<=i} f_r + sum_{s<=r<=i} b_r
             + the transfers between + a_i max_{s<=r<=i} (b_r + w_r) + min(m, s+1) w_s )
    """
    m = num_microbatches
    mean = largest_interval_mean(
        times.work, times.there + times.back - times.weight[1:]
    )
    pace = max(mean, times.wire)
    down = np.cumsum(times.forward) + _after(times.there)
    both = times.backward + times.weight
    gained = _gained(times, m)
    once = 0.0
    for s, last in enumerate(np.minimum(m, np.arange(1, both.size + 1)) * times.weight):
        back = np.cumsum(times.backward[s:]) + _after(times.back[s:])
        wires = np.concatenate(([0.0], times.backward_wire[s:]))
        longest = np.maximum.accumulate(np.maximum(both[s:], wires))
        once = max(once, float((down[s:] + back + gained[s:] * longest).max() + last))
    return ClosedForm(pace, (m - 1) * pace + once)


def gpipe(times: PipelineTimes, num_microbatches: int) -> ClosedForm:
    """Return the closed form of GPipe; its time is exact.

    Two waves: each microbatch follows the one before at the pace of the slowest stage
    or message, once on its way forward and once on its way back.
    """
    forward = max(times.forward.max(), times.forward_wire.max(initial=0.0))
    backward = max(times.backward.max(), times.backward_wire.max(initial=0.0))
    once = times.work.sum() + times.there.sum() + times.back.sum()
    pace = float(forward + backward)
    return ClosedForm(pace, float(once + (num_microbatches - 1) * pace))


def blocking_cycle_time(work: FloatArray, exchange: FloatArray) -> float:
    """Return the cycle time of 1F1B whose messages stop both their ends [s].

    Megatron-LM without overlapped point-to-point communication: a stage swaps an
    activation and a gradient with either neighbour, both at once, and does not compute
    meanwhile: ``max_s (t_s + x_{s-1} + x_s)``.

    Parameters
    ----------
    work
        ``t``, shape ``(p,)`` [s].
    exchange
        ``x``: one swap at each boundary, shape ``(p - 1,)`` [s].
    """
    around = np.concatenate(([0.0], exchange)) + np.concatenate((exchange, [0.0]))
    return float((work + around).max())


def pause_of_equal_passes(schedule: str, stage: int, num_stages: int) -> int:
    """Return how long a stage pauses between its first and its last pass.

    In passes, which all take the same and are sent in no time: F = B = W, of each
    chunk. There must be as many microbatches as fill the pipeline. All stages work for
    ``3 v m`` beside, and the last one begins at ``p - 1``. ZB-H1 leaves ``(p - 1)(F +
    B - W)`` of 1F1B's bubble in the first stage, ZB-H2 and ZB-V nothing [2]_.
    """
    if schedule in {"zb-h2", "zb-v"}:
        return 0
    assert schedule in {"zb-h1", "dualpipe-v"}
    return num_stages - 1 - stage


CLOSED_FORMS: Mapping[str, Callable[[PipelineTimes, int], ClosedForm]] = (
    MappingProxyType({"1f1b": one_f_one_b, "gpipe": gpipe, "zb-h1": zb_h1})
)
"""Schedule -> closed form of the durations and the number of microbatches ``m``.
Interleaved 1F1B has none: its cycle time is that of its stages' work as long as
messages are no longer than a chunk's forward pass, and irregular beyond."""


def _after(links: FloatArray) -> FloatArray:
    """Return the sum of the links before each stage, shape ``(p,)``."""
    return np.concatenate(([0.0], np.cumsum(links)))


def _gained(times: PipelineTimes, num_microbatches: int) -> IntArray:
    """Return ``a_i``: how far forward passes are ahead of backward passes."""
    p = times.work.size
    return np.minimum(num_microbatches - 1, np.arange(p - 1, -1, -1))


def _longest_so_far(times: PipelineTimes) -> FloatArray:
    """Return the longest backward pass or gradient's wire up to each stage."""
    wires = np.concatenate(([0.0], times.backward_wire))
    return np.maximum.accumulate(np.maximum(times.backward, wires))
