"""One job through failures, checkpoints, restarts and repairs, event by event.

Time is counted in whole ticks, so that all of it is accounted for exactly. The job is
in one state at a time; all but `TRAINING` are lost to it. While it trains, a share of
the time is lost as well if checkpoints in memory stall it or a node is slow; only the
rest is progress, of which intervals between checkpoints are counted. What is trained
belongs to a checkpoint in the storage that is complete (*trained*), to one that is
being written there (*in flight*), or to none (*unsaved*). A failure takes the last two,
or, with checkpoints in the memory of peers, what is younger than the last one there.

A failure that hits a job that is already being detected, waits or is in maintenance
only breaks its node; one that hits a restart makes the restart begin anew. Either may
take the last copy in memory of what is not in the storage. Nodes that break are
repaired side by side; one that is repaired is a spare.

Letters: ``E`` events, ``R`` replicas of the model, ``M`` marks, ``K`` lost nodes.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatVector, IntVector
from topologies.compiling import kernel

# States of the job, and what their time is lost to; the work that failures undo stands
# at the first one. The last two are no states: what a job that trains loses to them.
TRAINING = 0
COPYING = 1
WRITING = 2
DETECTING = 3
WAITING = 4
RESTARTING = 5
MAINTAINING = 6
SAVING_TO_PEERS = 7
SLOWED = 8
NUM_STATES = 9

# Bits of an event's kind.
TAKES_NODE = 1
HANGS = 2
PLANNED = 4
WARM = 8
LOSES_MEMORY = 16
SLOWS = 32
ENDS_SLOW = 64
DRAINS = 128

# What `Ledger.counts` counts.
INTERRUPTIONS = 0
CHECKPOINTS = 1
STOPS = 2
RESIZES = 3
DRAINED = 4
MEMORY_LOST = 5
NUM_COUNTS = 6

# Why a job stops at a complete checkpoint.
_FOR_MAINTENANCE = 1
_TO_GROW = 2
_TO_DRAIN = 3

# How a job restarts, the quickest first.
_IN_PROCESS = 0
_ON_SPARES = 1
_RELAUNCHED = 2

SPEED = 1_000_000_000
"""What `JobHabits.speed` is of."""

_NEVER = 2**62


class JobHabits(NamedTuple):
    """What the job does about failures; times in ticks, all whole numbers."""

    interval: int
    """Progress between the beginnings of two checkpoints in the storage [tick]."""

    copy: int
    """Stall of a checkpoint that is written beside the training [tick]."""

    write: int
    """From the beginning of a checkpoint until it counts, at least `copy` [tick]."""

    is_asynchronous: int
    """1 if checkpoints are written beside the training."""

    peer_interval: int
    """Progress between two checkpoints in the memory of peers; 0 without them
    [tick]."""

    peer_write: int
    """Progress while one of these is sent, at most `peer_interval` [tick]."""

    speed: int
    """Progress in `SPEED` ticks of training."""

    slow_speed: int
    """The same while a node is slow."""

    detection: int
    """From a failure until the job is stopped [tick]."""

    hang_detection: int
    """The same where the job hangs and nobody says why [tick]."""

    diagnosis: int
    """From there until it is known what to leave out; none for a restart in the same
    processes [tick]."""

    restart: int
    """From enough nodes until a job that is launched anew reads its checkpoint
    [tick]."""

    hot_restart: int
    """The same where spare nodes took over with processes that were ready [tick]."""

    warm_restart: int
    """The same in the processes that are there [tick]."""

    read: int
    """To read a checkpoint from the storage [tick]."""

    peer_read: int
    """To read one from the memory of peers [tick]."""

    maintenance: int
    """Length of a planned stop, without the restart [tick]."""

    num_nodes: int
    """Nodes of the job and its spares."""

    nodes_per_replica: int
    """Nodes that one replica of the model needs."""

    num_replicas: int
    """Replicas of the whole job; 1 with checkpoints in the memory of peers."""

    fewest_replicas: int
    """Replicas that the job goes on with."""

    outlook: int
    """Time for which more replicas are taken to be an advantage: that to the next
    failure, whose restart brings them anyway [tick]."""


class Events(NamedTuple):
    """Failures, planned stops and slow nodes of a job, by time."""

    times: IntVector
    """When, ascending, shape ``(E,)`` [tick]."""

    kinds: IntVector
    """Bits that say what, shape ``(E,)``."""

    repairs: IntVector
    """Time until a node that it takes is a spare, shape ``(E,)`` [tick]."""

    luck: FloatVector
    """Random number below 1; the memory of peers is lost with a node whose number is
    not below the chance that it is kept, shape ``(E,)``."""


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
    events: Events,
    kept: FloatVector,
    marks: IntVector,
    speeds: FloatVector,
    ledger: Ledger,
) -> None:
    """Run the job from 0 to the last mark.

    Takes O(E (1 + nodes in repair) + M R) time, and that of checkpoints while replicas
    are missing, a node is slow, or work of an earlier run is in memory only. Where
    several things happen in one tick, marks come first, then failures in their order,
    then repairs. A job without some replicas takes them back at a checkpoint if that is
    worth the restart.

    Parameters
    ----------
    habits
        What the job does.
    events
        What happens to it.
    kept
        Chance that the memory of peers is still whole when the k-th node is lost
        before the job trains again, if it was with one less, shape ``(K + 1,)``; the
        last one is that of all others.
    marks
        When progress is noted, ascending, shape ``(M,)`` [tick].
    speeds
        Throughput of each number of replicas over that of all, shape ``(R + 1,)``.
    ledger
        Zeros, which are added to.
    """
    times, kinds = events.times, events.kinds
    num_events, num_marks = len(times), len(marks)
    repairs = np.empty(num_events, np.int64)
    first_repair = num_repairs = broken = 0
    state, now, until = TRAINING, 0, 0
    level = habits.num_replicas
    # Progress since the last checkpoint in the storage, and where the job went on.
    unsaved = in_flight = base = 0
    is_writing, written, stop_for = False, 0, 0
    slow = lost = 0
    restart, from_storage = _RELAUNCHED, habits.peer_interval == 0
    event = mark = 0
    waits = habits.write if not habits.is_asynchronous else habits.copy
    background = habits.write - waits
    # A whole period: until the last one is written, and what is left then.
    progress = background // SPEED * habits.speed
    progress += background % SPEED * habits.speed // SPEED
    whole, rest = divmod(max(habits.interval - progress, 0), habits.speed)
    training = background + whole * SPEED - (-rest * SPEED) // habits.speed
    progress = max(progress, habits.interval)
    while mark < num_marks:
        at_rest = state == TRAINING and unsaved == 0 and slow == 0
        if at_rest and level == habits.num_replicas:
            # Whole periods before anything else happens: all alike.
            ahead = marks[mark]
            if event < num_events:
                ahead = min(ahead, times[event])
            periods = (ahead - now - 1) // (training + waits)
            if habits.is_asynchronous and not (
                is_writing and written == now + background
            ):
                periods = 0
            if periods > 0:
                ledger.counts[CHECKPOINTS] += periods
                ledger.causes[SAVING_TO_PEERS] += periods * (training - progress)
                now += periods * (training + waits)
                if habits.is_asynchronous:
                    ledger.causes[COPYING] += periods * waits
                    ledger.trained[level] += in_flight + (periods - 1) * progress
                    in_flight, written = progress, now + background
                else:
                    ledger.causes[WRITING] += periods * waits
                    ledger.trained[level] += periods * progress
        speed = habits.slow_speed if slow > 0 else habits.speed
        if state == TRAINING and is_writing:
            then = max(written, now)
        elif state == TRAINING:
            whole, rest = divmod(max(habits.interval - unsaved, 0), speed)
            then = now + whole * SPEED - (-rest * SPEED) // speed
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
        spent = then - now
        if state == TRAINING:
            gained = spent // SPEED * speed + spent % SPEED * speed // SPEED
            healthy = spent // SPEED * habits.speed
            healthy += spent % SPEED * habits.speed // SPEED
            unsaved += gained
            ledger.causes[SLOWED] += healthy - gained
            ledger.causes[SAVING_TO_PEERS] += spent - healthy
        else:
            ledger.causes[state] += spent
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
            kind, luck = kinds[event], events.luck[event]
            repair = events.repairs[event]
            event += 1
            if kind & SLOWS:
                slow += 1
                continue
            if kind & PLANNED:
                if state <= WRITING and stop_for != _FOR_MAINTENANCE:
                    stop_for = _FOR_MAINTENANCE
                    if state != WRITING:
                        state, until = WRITING, now + habits.write
                continue
            if kind & ENDS_SLOW:
                slow -= 1
            if kind & TAKES_NODE and broken < habits.num_nodes:
                broken += 1
                place, due = num_repairs, now + repair
                while place > first_repair and repairs[place - 1] > due:
                    repairs[place] = repairs[place - 1]
                    place -= 1
                repairs[place] = due
                num_repairs += 1
            if kind & DRAINS and state <= WRITING:
                if stop_for != _FOR_MAINTENANCE:
                    stop_for = _TO_DRAIN
                    if state != WRITING:
                        state, until = WRITING, now + habits.write
                continue
            forgets = habits.peer_interval == 0 or kind & LOSES_MEMORY != 0
            if kind & TAKES_NODE:
                lost += 1
                if luck >= kept[min(lost, len(kept) - 1)]:
                    forgets = True
            if is_writing and written < now:  # complete before a planned stop's own
                ledger.trained[level] += in_flight
                ledger.counts[CHECKPOINTS] += 1
                is_writing, in_flight = False, 0
            if forgets:
                ledger.counts[MEMORY_LOST] += not from_storage
                ledger.causes[TRAINING] += unsaved + in_flight
                unsaved = in_flight = base = 0
                is_writing, from_storage = False, True
            if state in (DETECTING, WAITING, MAINTAINING):
                continue
            if unsaved > base:
                if unsaved - base > habits.peer_write:
                    sent = unsaved - base - habits.peer_write
                    base += sent // habits.peer_interval * habits.peer_interval
                ledger.causes[TRAINING] += unsaved - base
                unsaved = base
            quickest = _RELAUNCHED
            if kind & WARM:
                quickest = _IN_PROCESS
            elif kind & TAKES_NODE:
                quickest = _ON_SPARES
            if state == RESTARTING:
                quickest = max(quickest, restart)
            restart = quickest
            ledger.counts[INTERRUPTIONS] += 1
            stop_for = 0
            state, until = DETECTING, now + habits.detection
            if kind & HANGS:
                until = now + habits.hang_detection
            if not kind & WARM:
                until += habits.diagnosis
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
            worth = (speeds[runnable] - speeds[level]) * float(habits.outlook)
            if runnable > level and worth > habits.write + habits.restart + habits.read:
                stop_for = _TO_GROW
                state, until = WRITING, now + habits.write
            elif habits.is_asynchronous:
                state, until = COPYING, now + habits.copy
            else:
                state, until = WRITING, now + habits.write
        elif state == COPYING:
            in_flight, unsaved, base = unsaved, 0, 0
            is_writing, written = True, now + habits.write - habits.copy
            state = TRAINING
        elif state == WRITING:
            ledger.trained[level] += unsaved + in_flight
            ledger.counts[CHECKPOINTS] += 1
            unsaved = in_flight = base = 0
            is_writing = False
            state = TRAINING
            if stop_for == _FOR_MAINTENANCE:
                ledger.counts[STOPS] += 1
                state, until = MAINTAINING, now + habits.maintenance
            elif stop_for == _TO_GROW:
                ledger.counts[RESIZES] += 1
                state = WAITING
            elif stop_for == _TO_DRAIN:
                ledger.counts[DRAINED] += 1
                state = WAITING
            if stop_for:
                restart = _ON_SPARES if stop_for == _TO_DRAIN else _RELAUNCHED
                from_storage = habits.peer_interval == 0 or stop_for != _TO_DRAIN
            stop_for = 0
        elif state == RESTARTING:
            state = TRAINING
            lost, from_storage = 0, habits.peer_interval == 0
        else:
            state = WAITING
        if state == WAITING:
            if runnable >= habits.fewest_replicas:
                level = runnable
                state, until = RESTARTING, now + habits.restart
                if restart == _IN_PROCESS:
                    until = now + habits.warm_restart
                elif restart == _ON_SPARES:
                    until = now + habits.hot_restart
                until += habits.read if from_storage else habits.peer_read
            else:
                restart = _RELAUNCHED
    ledger.trained[level] += unsaved + in_flight
