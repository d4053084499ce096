"""What a job's habits are to the closed forms, and what each is worth by them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from nestsim.features.goodput.cycle import Cycle, Outage, PeerCycle
from nestsim.features.goodput.draws import FailureKind
from nestsim.features.goodput.simulate import RecoveryHabits


def expected_cycle(habits: RecoveryHabits, kinds: Sequence[FailureKind]) -> Cycle:
    """Return what repeats between the failures of a job.

    Parameters
    ----------
    habits
        What the job does about failures.
    kinds
        What fails, taken to be at constant rates.
    """
    slow, peers = habits.slow, habits.peers
    slow_rate = 0.0
    if slow is not None:
        slow_rate = slow.share * sum(
            kind.total_rate for kind in kinds if kind.may_be_slow
        )
    drained = slow_rate if slow is not None and slow.is_drained else 0.0
    rates, losing = [0.0] * 3, [0.0] * 3
    for kind in kinds:
        rate = kind.total_rate
        if drained and slow is not None and kind.may_be_slow:
            rate *= 1.0 - slow.share
        loss = kind.memory_loss
        if peers is None:
            loss = 1.0
        elif kind.may_be_slow:
            loss = 1.0 - peers.kept[1]
        warm = rate * kind.warm_share
        for place, part in ((0, warm), (1 if kind.breaks_node else 2, rate - warm)):
            rates[place] += part
            losing[place] += part * loss
    total = sum(rates)
    read = habits.read if peers is None else peers.read
    outages = tuple(
        Outage(
            detection=habits.mean_detection + (habits.diagnosis if place else 0.0),
            restart=restart + habits.read,
            peer_restart=restart + read,
            share=rates[place] / total,
            memory_loss=losing[place] / rates[place],
        )
        for place, restart in enumerate(
            (habits.warm_restart, habits.on_spares, habits.restart)
        )
        if rates[place]
    )
    swaps = drained * (habits.write + habits.on_spares + read)
    slowed = 0.0
    if slow is not None:
        slowed = (1.0 - slow.speed) * -math.expm1(-slow_rate * slow.window)
    return Cycle(
        mtti=1.0 / total if total else math.inf,
        stall=habits.stall,
        background=habits.background,
        outages=outages,
        peers=peers and PeerCycle(peers.interval, peers.stall, peers.write),
        stopped=habits.stopped + swaps,
        slowed=slowed,
    )


def without_each(
    habits: RecoveryHabits,
    kinds: Sequence[FailureKind],
    usual: Callable[[Cycle], float],
) -> dict[str, float]:
    """Return goodput by the closed form without each of a job's particular habits.

    Parameters
    ----------
    habits, kinds
        As for `expected_cycle`.
    usual
        What returns the interval between checkpoints in the storage.
    """
    others: dict[str, tuple[RecoveryHabits, Sequence[FailureKind]]] = {}
    if habits.peers is not None:
        others["checkpoints in the memory of peers"] = (
            replace(habits, peers=None),
            kinds,
        )
    if habits.hot_restart is not None:
        others["spare nodes with processes"] = replace(habits, hot_restart=None), kinds
    if any(kind.warm_share for kind in kinds):
        cold = [replace(kind, warm_share=0.0) for kind in kinds]
        others["restarts in the same processes"] = habits, cold
    if habits.slow is not None:
        if habits.slow.is_drained:
            unseen = habits.slow._replace(detection=math.inf)
            others["watching for slow nodes"] = replace(habits, slow=unseen), kinds
        others["slow nodes"] = replace(habits, slow=None), kinds
    cycles = {name: expected_cycle(*other) for name, other in others.items()}
    return {name: cycle.goodput(usual(cycle)) for name, cycle in cycles.items()}
