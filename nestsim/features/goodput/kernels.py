"""One job through failures, checkpoints, restarts and repairs, event by event.

Time is counted in whole ticks, so that all of it is accounted for exactly. The job is
in one state at a time; all but `TRAINING` are lost to it. What is trained belongs to a
checkpoint that is complete (*trained*), to one that is being written (*in flight*), or
to none (*unsaved*); a failure takes the last two.

A failure that hits a job that is already being detected, waits or is in maintenance
only breaks its node; one that hits a restart makes the restart begin anew. Nodes that
break are repaired side by side, each in the same time; one that is repaired is a spare.

Letters: ``E`` events, ``R`` replicas of the model, ``M`` marks.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatVector, IntVector
from topologies.compiling import kernel

# States of the job, and what their time is lost to; the work that failures undo stands
# at the first one.
TRAINING = 0
COPYING = 1
WRITING = 2
DETECTING = 3
WAITING = 4
RESTARTING = 5
MAINTAINING = 6
NUM_STATES = 7

# Bits of an event's kind.
TAKES_NODE = 1
HANGS = 2
PLANNED = 4

# What `Ledger.counts` counts.
INTERRUPTIONS = 0
CHECKPOINTS = 1
STOPS = 2
RESIZES = 3
NUM_COUNTS = 4

# Why a job stops at a complete checkpoint.
_FOR_MAINTENANCE = 1
_TO_GROW = 2

_NEVER = 2**62


class JobHabits(NamedTuple):
    """What the job does about failures; times in ticks, all whole numbers."""

    interval: int
    """Training between the beginnings of two checkpoints [tick]."""

    copy: int
    """Stall of a checkpoint that is written beside the training [tick]."""

    write: int
    """From the beginning of a checkpoint until it counts, at least `copy` [tick]."""

    is_asynchronous: int
    """1 if checkpoints are written beside the training."""

    detection: int
    """From a failure until the job is stopped [tick]."""

    hang_detection: int
    """The same where the job hangs and nobody says why [tick]."""

    restart: int
    """From enough nodes until training goes on [tick]."""

    repair: int
    """Until a broken node is a spare [tick]."""

    maintenance: int
    """Length of a planned stop, without the restart [tick]."""

    num_nodes: int
    """Nodes of the job and its spares."""

    nodes_per_replica: int
    """Nodes that one replica of the model needs."""

    num_replicas: int
    """Replicas of the whole job."""

    fewest_replicas: int
    """Replicas that the job goes on with."""

    outlook: int
    """Time for which more replicas are taken to be an advantage: that to the next
    failure, whose restart brings them anyway [tick]."""


class Ledger(NamedTuple):
    """What became of the time; the kernel adds to it."""

    causes: IntVector
    """By state of the job; undone work at `TRAINING`, shape ``(NUM_STATES,)``
    [tick]."""

    trained: IntVector
    """Training that was kept, by number of replicas, shape ``(R + 1,)`` [tick]."""

    counts: IntVector
    """Shape ``(NUM_COUNTS,)``."""

    progress: FloatVector
    """Training of the whole job that is there at each mark, undone later or not, shape
    ``(M,)`` [tick]."""


@kernel
def run_job(
    habits: JobHabits,
    times: IntVector,
    kinds: IntVector,
    marks: IntVector,
    speeds: FloatVector,
    ledger: Ledger,
) -> None:
    """Run the job from 0 to the last mark.

    Takes O(E + M R) time, and that of checkpoints while replicas are missing. Where
    several things happen in one tick, marks come first, then failures in their order,
    then repairs. A job without some replicas takes them back at a checkpoint if that is
    worth the restart.

    Parameters
    ----------
    habits
        What the job does.
    times, kinds
        Moments of failures and planned stops in ascending order [tick], and what they
        are, shape ``(E,)``.
    marks
        When progress is noted, ascending, shape ``(M,)`` [tick].
    speeds
        Throughput of each number of replicas over that of all, shape ``(R + 1,)``.
    ledger
        Zeros, which are added to.
    """
    num_events, num_marks = len(times), len(marks)
    repairs = np.empty(num_events, np.int64)
    first_repair = num_repairs = broken = 0
    state, now, until = TRAINING, 0, 0
    level = habits.num_replicas
    unsaved = in_flight = since = 0
    is_writing, written, stop_for = False, 0, 0
    event = mark = 0
    waits = habits.write if not habits.is_asynchronous else habits.copy
    background = habits.write - waits
    training = max(habits.interval, background)
    while mark < num_marks:
        at_rest = state == TRAINING and since == 0 and unsaved == 0
        if at_rest and level == habits.num_replicas:
            # Whole periods before anything else happens: all alike.
            ahead = marks[mark]
            if event < num_events:
                ahead = min(ahead, times[event])
            periods = (ahead - now - 1) // (training + waits)
            if periods > 0 and (is_writing or not habits.is_asynchronous):
                ledger.counts[CHECKPOINTS] += periods
                now += periods * (training + waits)
                if habits.is_asynchronous:
                    ledger.causes[COPYING] += periods * waits
                    ledger.trained[level] += in_flight + (periods - 1) * training
                    in_flight, written = training, now + background
                else:
                    ledger.causes[WRITING] += periods * waits
                    ledger.trained[level] += periods * training
        if state == TRAINING:
            then = written if is_writing else now + max(habits.interval - since, 0)
        elif state == WAITING:
            then = repairs[first_repair] if first_repair < num_repairs else _NEVER
        else:
            then = until
        is_hit = event < num_events and times[event] <= then
        if is_hit:
            then = times[event]
        is_mark = marks[mark] <= then
        if is_mark:
            then = marks[mark]
        if state == TRAINING:
            unsaved += then - now
            since += then - now
        else:
            ledger.causes[state] += then - now
        now = then
        if is_mark:
            done = float(unsaved + in_flight) * speeds[level]
            for replicas in range(len(speeds)):
                done += float(ledger.trained[replicas]) * speeds[replicas]
            ledger.progress[mark] = done
            mark += 1
            continue
        repaired = now - 1 if is_hit else now
        while first_repair < num_repairs and repairs[first_repair] <= repaired:
            first_repair += 1
            broken -= 1
        if is_hit:
            kind = kinds[event]
            event += 1
            if kind & PLANNED:
                if state <= WRITING and stop_for != _FOR_MAINTENANCE:
                    stop_for = _FOR_MAINTENANCE
                    if state != WRITING:
                        state, until = WRITING, now + habits.write
                continue
            if kind & TAKES_NODE and broken < habits.num_nodes:
                broken += 1
                repairs[num_repairs] = now + habits.repair
                num_repairs += 1
            if state in (DETECTING, WAITING, MAINTAINING):
                continue
            if is_writing and written < now:  # complete before a planned stop's own
                ledger.trained[level] += in_flight
                ledger.counts[CHECKPOINTS] += 1
                in_flight = 0
            ledger.causes[TRAINING] += unsaved + in_flight
            ledger.counts[INTERRUPTIONS] += 1
            unsaved = in_flight = since = 0
            is_writing, stop_for = False, 0
            state, until = DETECTING, now + habits.detection
            if kind & HANGS:
                until = now + habits.hang_detection
            continue
        runnable = min(
            habits.num_replicas,
            (habits.num_nodes - broken) // habits.nodes_per_replica,
        )
        if state == TRAINING and is_writing:
            is_writing = False
            ledger.trained[level] += in_flight
            in_flight = 0
            ledger.counts[CHECKPOINTS] += 1
        elif state == TRAINING:
            gained = (speeds[runnable] - speeds[level]) * float(habits.outlook)
            if runnable > level and gained > habits.write + habits.restart:
                stop_for = _TO_GROW
                state, until = WRITING, now + habits.write
            elif habits.is_asynchronous:
                state, until = COPYING, now + habits.copy
            else:
                state, until = WRITING, now + habits.write
        elif state == COPYING:
            in_flight, unsaved, since = unsaved, 0, 0
            is_writing, written = True, now + habits.write - habits.copy
            state = TRAINING
        elif state == WRITING:
            ledger.trained[level] += unsaved + in_flight
            ledger.counts[CHECKPOINTS] += 1
            unsaved = in_flight = since = 0
            is_writing = False
            state = TRAINING
            if stop_for == _FOR_MAINTENANCE:
                ledger.counts[STOPS] += 1
                state, until = MAINTAINING, now + habits.maintenance
            elif stop_for == _TO_GROW:
                ledger.counts[RESIZES] += 1
                state = WAITING
            stop_for = 0
        elif state == RESTARTING:
            state = TRAINING
        else:
            state = WAITING
        if state == WAITING and runnable >= habits.fewest_replicas:
            level = runnable
            state, until = RESTARTING, now + habits.restart
    ledger.trained[level] += unsaved + in_flight
