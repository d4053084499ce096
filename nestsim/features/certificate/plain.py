"""Bounds and memory of all configurations again, in plain numpy.

The search bounds a family of configurations in a compiled kernel
(`planner.kernels.family_bounds`). Here is the same closed form, written as
``docs/search.md`` has it, for whoever would not take the kernel's word.
"""

import numpy as np

from estimators.training import expert_data_size
from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.replayed.floors import relaxed_rates
from planner.search.replayed.orders import is_listed
from planner.search.replayed.space import ConfigurationFamily
from planner.step.ledger import GRADIENTS, LEDGER, OPTIMIZER, WEIGHTS
from planner.step.schedules import SCHEDULES
from topologies.arrays import FloatArray, IntArray

_SAFE = 1.0 - 1e-12
"""What bounds are multiplied with for their own rounding."""


def has_plain_bounds(candidates: LaunchableCandidates) -> bool:
    """Tell whether first bounds are the closed form of this module.

    They are not where devices differ or schedules put weight gradients off.
    """
    fleet = candidates.workload.fleet
    tried = candidates.listing.space.tried_schedules
    return (fleet is None or fleet.is_uniform) and not any(map(is_listed, tried))


def plain_first_bounds(candidates: LaunchableCandidates) -> FloatArray:
    """Return a lower bound of each configuration's replays, in their order [s]."""
    parts = [_family_bounds(candidates, family) for family in candidates.families]
    return np.concatenate([np.zeros(0), *parts])


def _family_bounds(
    candidates: LaunchableCandidates, family: ConfigurationFamily
) -> FloatArray:
    workload, is_plain = candidates.workload, _is_plain(candidates)
    end = float(workload.iteration_time)
    sizes = family.configuration(int(family.pp.argmax()))
    tensor = candidates.tensor_rates[sizes.tp]
    rates = relaxed_rates(candidates.relaxation, tensor, sizes)
    wire = candidates.bounds.least_wire(family.degrees, rates)
    bounds = np.zeros(len(family.pp))
    may_pair = (family.pairs > 0) | candidates.listing.space.pairs_chunks
    for pairs in (False, True):
        chosen = may_pair == pairs
        if not chosen.any():
            continue
        times = [
            candidates.bounds.pass_times(family.degrees, row, pairs=pairs)
            for row in rates
        ]
        both = [forward + backward for forward, backward in times]
        whole = min(float(layers.sum()) for layers in both)
        before = np.concatenate([[0.0], np.cumsum(np.min(both, axis=0))])
        single = [
            np.add(*candidates.bounds.pass_times(family.degrees, row)) for row in rates
        ]
        more = np.min([a - b for a, b in zip(single, both, strict=True)], axis=0)
        alone = np.concatenate([[0.0], np.cumsum(more)])
        for p, v in np.unique([family.pp[chosen], family.v[chosen]], axis=1).T.tolist():
            rows = chosen & (family.pp == p) & (family.v == v)
            b = family.degrees.micro_batch_size
            m = workload.training.global_batch_size // (b * family.dp[rows])
            messages = 2.0 * workload.messages_time(2) if p > 1 else 0.0
            cuts = candidates.listing.space.cuts(p, v)
            held = np.diff(before[cuts], axis=1) + messages
            passes = (
                held.reshape(-1, v, p),
                np.diff(alone[cuts], axis=1).reshape(-1, v, p) * pairs,
            )
            turns = v == 1 and is_plain and not pairs
            paths = _paths(passes, m, wire, takes_turns=turns) + end
            mean = _mean_stage(candidates, whole, m, p, v)
            bounds[rows] = np.maximum(mean, paths * _SAFE)
    return bounds


def _is_plain(candidates: LaunchableCandidates) -> bool:
    """Tell whether pipelines without chunks are 1F1B."""
    tried = candidates.listing.space.tried_schedules
    return {name for name in tried if not SCHEDULES[name].interleaves} <= {"1f1b"}


def _mean_stage(
    candidates: LaunchableCandidates, whole: float, m: IntArray, p: int, v: int
) -> FloatArray:
    """Bound by the work of the mean stage, and by the bubble without chunks [s]."""
    lead = candidates.workload.messages_time(2) if p > 1 else 0.0
    work = whole + 2.0 * v * p * lead
    share = 1.0 / (1.0 - (1.0 - 1.0 / m) ** p) if v == 1 else m / p
    return np.asarray(share * work * _SAFE)


def _paths(
    passes: tuple[FloatArray, FloatArray],
    m: IntArray,
    wire: float,
    *,
    takes_turns: bool,
) -> FloatArray:
    """Bound by the waits of the best layout, shape of ``m`` [s].

    Parameters
    ----------
    passes
        Passes and messages of each virtual stage, and what they take more with no other
        beside them, shape ``(Y, v, p)`` each [s].
    m
        Numbers of microbatches.
    wire
        Transfers over a boundary, forth and back [s].
    takes_turns
        Whether a stage that is ahead waits for a backward pass: 1F1B without chunks.
    """
    held, more = passes
    p, count = held.shape[2], m[:, None]
    work = held.sum(axis=1)
    step = held[:, 0] + more[:, 0] + wire
    arrival = np.cumsum(step, axis=1) - step
    last = np.minimum(p - 1, 2 * np.arange(p)[::-1] + 1)
    filling = p * more[:, :-1].sum(axis=1) + last * more[:, -1]
    longest = (arrival + count[..., None] * work + filling).max(axis=2)
    if takes_turns:
        turns, rest = np.divmod(count - 1, np.minimum(p, count))
        way = work.sum(axis=1) + (p - 1) * wire
        trips = (1.0 + turns) * way + rest * work.max(axis=1)
        longest = np.where(turns >= 1, np.maximum(longest, trips), longest)
    return np.asarray(longest.min(axis=1))


def plain_parameters(candidates: LaunchableCandidates, number: int) -> float:
    """Return what parameters fill of a device of the mean stage at least [byte].

    Of a configuration, by its number.
    """
    configuration = candidates[number]
    cp, pp, dp = configuration.cp, configuration.pp, configuration.dp
    place = int(np.searchsorted(candidates.starts, number, side="right")) - 1
    degrees = candidates.families[place].degrees
    table = candidates.workload.table(degrees)
    expert = float(np.sum(table.expert_parameters))
    dense = float(np.sum(table.parameters)) - expert - float(table.tied_parameters)
    sizes = configuration.sizes
    shard = dense / (dp * cp) + expert / expert_data_size(sizes, degrees.grouping)
    widths = candidates.workload.parameter_bytes
    bytes_of = {
        OPTIMIZER: widths.optimizer,
        GRADIENTS: widths.gradients,
        WEIGHTS: widths.weights,
    }
    return min(
        sum(
            width * (shard if tensor in LEDGER[zero].sharded else dense + expert)
            for tensor, width in bytes_of.items()
        )
        / pp
        for zero in candidates.spec.zero_stages
    )
