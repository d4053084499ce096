"""A job through failures as an agenda of entries that are cancelled: plain Python."""

import heapq
from fractions import Fraction
from itertools import count
from math import ceil, floor

from nestsim.features.goodput.kernels import (
    COPYING,
    DETECTING,
    DRAINS,
    ENDS_SLOW,
    HANGS,
    LOSES_MEMORY,
    MAINTAINING,
    NUM_STATES,
    PLANNED,
    RESTARTING,
    SAVING_TO_PEERS,
    SLOWED,
    SLOWS,
    SPEED,
    TAKES_NODE,
    TRAINING,
    WAITING,
    WARM,
    WRITING,
    JobHabits,
)

MARK, FAILURE, REPAIR, TIMER, SAVED = range(5)

Event = tuple[int, int, int, float]
"""When, its bits, the time to repair its node, and its luck."""


class ReferenceJob:
    """One run; everything is in whole ticks."""

    def __init__(
        self, habits: JobHabits, speeds: list[float], kept: list[float]
    ) -> None:
        self.habits, self.speeds, self.kept = habits, speeds, kept
        self.agenda: list[tuple[int, int, int, int, int]] = []
        self.numbers, self.epoch, self.save = count(), 0, 0
        self.state, self.since_state = TRAINING, 0
        self.causes, self.trained = [0] * NUM_STATES, [0] * len(speeds)
        self.counts, self.progress = [0] * 6, []
        self.level, self.broken = habits.num_replicas, 0
        self.unsaved, self.in_flight, self.is_saving = 0, 0, False
        self.start, self.reason, self.finish = 0, "", 0
        self.num_slow, self.lost, self.kind = 0, 0, "relaunched"
        self.needs_storage = not habits.peer_interval

    def run(self, events: list[Event], marks: list[int]) -> None:
        self.agenda = [(at, MARK, next(self.numbers), 0, 0) for at in marks]
        self.agenda += [
            (event[0], FAILURE, next(self.numbers), number, 0)
            for number, event in enumerate(events)
        ]
        heapq.heapify(self.agenda)
        self.enter(0, TRAINING)
        while len(self.progress) < len(marks):
            now, what, _, value, epoch = heapq.heappop(self.agenda)
            stale = self.is_stale(what, epoch)
            if not stale or self.state != TRAINING:
                self.account(now)
            if what == MARK:
                self.mark()
            elif what == FAILURE:
                self.meet(now, events[value])
            elif what == REPAIR:
                self.repair(now)
            elif not stale:
                self.happen(now, what)
        self.trained[self.level] += self.unsaved + self.in_flight

    def meet(self, now: int, event: Event) -> None:
        _, kind, repair, luck = event
        if kind & SLOWS:
            self.num_slow += 1
            self.reset_timer(now)
        elif kind & PLANNED:
            self.plan(now, "maintenance")
        elif not self.leaves(now, kind, repair):
            self.lose(kind, luck)
            if self.state not in {DETECTING, WAITING, MAINTAINING}:
                self.stop(now, kind)

    def is_stale(self, what: int, epoch: int) -> bool:
        """Whether a job that trains would not look at the clock."""
        if what == SAVED:
            trains = self.state == TRAINING and epoch == self.save
            return not (trains and self.is_saving)
        return what == REPAIR or (what == TIMER and epoch != self.epoch)

    def happen(self, now: int, what: int) -> None:
        if what == SAVED:
            self.keep_in_flight()
            self.enter(now, TRAINING)
        else:
            self.over(now)

    def mark(self) -> None:
        here = (self.unsaved + self.in_flight) * self.speeds[self.level]
        for kept, speed in zip(self.trained, self.speeds, strict=True):
            here += kept * speed
        self.progress.append(here)
        if self.state == TRAINING:
            self.reset_timer(self.since_state)

    def repair(self, now: int) -> None:
        self.broken -= 1
        if self.state == WAITING:  # look when all of this tick are done
            self.epoch += 1
            self.add(now, TIMER, 0, self.epoch)

    def add(self, time: int, what: int, value: int, epoch: int = 0) -> None:
        heapq.heappush(self.agenda, (time, what, next(self.numbers), value, epoch))

    @property
    def speed(self) -> Fraction:
        habits = self.habits
        return Fraction(habits.slow_speed if self.num_slow else habits.speed, SPEED)

    def account(self, now: int) -> None:
        spent = now - self.since_state
        self.since_state = now
        if self.state == TRAINING:
            gained = floor(spent * self.speed)
            healthy = floor(spent * Fraction(self.habits.speed, SPEED))
            self.unsaved += gained
            self.causes[SLOWED] += healthy - gained
            self.causes[SAVING_TO_PEERS] += spent - healthy
        else:
            self.causes[self.state] += spent

    @property
    def runnable(self) -> int:
        left = (self.habits.num_nodes - self.broken) // self.habits.nodes_per_replica
        return min(self.habits.num_replicas, left)

    def reset_timer(self, now: int) -> None:
        """Look again when the training will have come to its end."""
        if self.state == TRAINING and not self.is_saving:
            self.epoch += 1
            left = max(0, self.habits.interval - self.unsaved)
            self.add(now + ceil(left / self.speed), TIMER, 0, self.epoch)

    def enter(self, now: int, state: int) -> None:
        habits = self.habits
        self.state, self.epoch = state, self.epoch + 1
        wait = {
            COPYING: habits.copy,
            WRITING: habits.write,
            MAINTAINING: habits.maintenance,
        }
        if state == TRAINING and self.is_saving:
            self.add(max(self.finish, now), SAVED, 0, self.save)
        elif state == TRAINING:
            self.reset_timer(now)
        elif state == WAITING and self.runnable >= habits.fewest_replicas:
            self.level = self.runnable
            self.state = RESTARTING
            time = {
                "in process": habits.warm_restart,
                "on spares": habits.hot_restart,
                "relaunched": habits.restart,
            }[self.kind]
            time += habits.read if self.needs_storage else habits.peer_read
            self.add(now + time, TIMER, 0, self.epoch)
        elif state == WAITING:
            self.kind = "relaunched"
        elif state in wait:
            self.add(now + wait[state], TIMER, 0, self.epoch)

    def keep_in_flight(self) -> None:
        self.trained[self.level] += self.in_flight
        self.in_flight, self.is_saving = 0, False
        self.counts[1] += 1

    def over(self, now: int) -> None:
        """The state comes to its end by itself."""
        habits = self.habits
        if self.state == TRAINING and self.grows():
            self.reason = "grow"
            self.enter(now, WRITING)
        elif self.state == TRAINING:
            self.enter(now, COPYING if habits.is_asynchronous else WRITING)
        elif self.state == COPYING:
            self.in_flight, self.unsaved, self.start = self.unsaved, 0, 0
            self.is_saving, self.save = True, self.save + 1
            self.finish = now + habits.write - habits.copy
            self.enter(now, TRAINING)
        elif self.state == WRITING:
            self.written(now)
        elif self.state == RESTARTING:
            self.lost, self.needs_storage = 0, not habits.peer_interval
            self.enter(now, TRAINING)
        else:
            self.enter(now, WAITING)

    def written(self, now: int) -> None:
        self.trained[self.level] += self.unsaved + self.in_flight
        self.unsaved = self.in_flight = self.start = 0
        self.is_saving = False
        self.counts[1] += 1
        reason, self.reason = self.reason, ""
        self.counts[2] += reason == "maintenance"
        self.counts[3] += reason == "grow"
        self.counts[4] += reason == "drain"
        if reason:
            self.kind = "on spares" if reason == "drain" else "relaunched"
            self.needs_storage = reason != "drain" or not self.habits.peer_interval
        after = {
            "maintenance": MAINTAINING,
            "grow": WAITING,
            "drain": WAITING,
            "": TRAINING,
        }
        self.enter(now, after[reason])

    def grows(self) -> bool:
        more = self.speeds[self.runnable] - self.speeds[self.level]
        cost = self.habits.write + self.habits.restart + self.habits.read
        return self.runnable > self.level and more * self.habits.outlook > cost

    def plan(self, now: int, reason: str) -> None:
        if self.state in (TRAINING, COPYING, WRITING) and self.reason != "maintenance":
            self.reason = reason
            if self.state != WRITING:
                self.enter(now, WRITING)
        elif self.state == TRAINING:
            self.reset_timer(now)

    def last_with_peers(self) -> int:
        """Return the progress of the last checkpoint that peers have, one by one."""
        place = self.start
        after = place + self.habits.peer_interval
        while after + self.habits.peer_write <= self.unsaved:
            place, after = after, after + self.habits.peer_interval
        return place

    def leaves(self, now: int, kind: int, repair: int) -> bool:
        """Take the node out; return whether the job goes on to a checkpoint."""
        if kind & ENDS_SLOW:
            self.num_slow -= 1
        if kind & TAKES_NODE and self.broken < self.habits.num_nodes:
            self.broken += 1
            self.add(now + repair, REPAIR, 0)
        trains = self.state in {TRAINING, COPYING, WRITING}
        if kind & DRAINS and trains:
            self.plan(now, "drain")
        return bool(kind & DRAINS) and trains

    def lose(self, kind: int, luck: float) -> None:
        """Lose everything that is not in the storage, if memory goes with it."""
        memory = self.habits.peer_interval > 0 and not kind & LOSES_MEMORY
        if kind & TAKES_NODE:
            self.lost += 1
            memory &= luck < (self.kept[self.lost :] or self.kept[-1:])[0]
        if self.is_saving and self.finish < self.since_state:
            self.keep_in_flight()
        if not memory:
            self.causes[TRAINING] += self.unsaved + self.in_flight
            self.unsaved = self.in_flight = self.start = 0
            self.counts[5] += not self.needs_storage
            self.is_saving, self.needs_storage = False, True

    def stop(self, now: int, kind: int) -> None:
        habits = self.habits
        if habits.peer_interval:
            self.start = self.last_with_peers()
            self.causes[TRAINING] += self.unsaved - self.start
            self.unsaved = self.start
        order = ["in process", "on spares", "relaunched"]
        mine = 0 if kind & WARM else 1 if kind & TAKES_NODE else 2
        if self.state == RESTARTING:
            mine = max(mine, order.index(self.kind))
        self.kind, self.reason = order[mine], ""
        self.counts[0] += 1
        self.state, self.epoch = DETECTING, self.epoch + 1
        time = habits.hang_detection if kind & HANGS else habits.detection
        time += 0 if kind & WARM else habits.diagnosis
        self.add(now + time, TIMER, 0, self.epoch)
