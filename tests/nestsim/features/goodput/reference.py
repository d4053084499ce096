"""A job through failures as an agenda of entries that are cancelled: plain Python."""

import heapq
from itertools import count

from nestsim.features.goodput.kernels import (
    COPYING,
    DETECTING,
    HANGS,
    MAINTAINING,
    PLANNED,
    RESTARTING,
    TAKES_NODE,
    TRAINING,
    WAITING,
    WRITING,
    JobHabits,
)

MARK, FAILURE, REPAIR, TIMER, SAVED = range(5)


class ReferenceJob:
    """One run; everything is in whole ticks."""

    def __init__(self, habits: JobHabits, speeds: list[float]) -> None:
        self.habits, self.speeds = habits, speeds
        self.agenda: list[tuple[int, int, int, int, int]] = []
        self.numbers, self.epoch, self.save = count(), 0, 0
        self.state, self.since_state = TRAINING, 0
        self.causes, self.trained = [0] * 7, [0] * len(speeds)
        self.counts, self.progress = [0] * 4, []
        self.level, self.broken = habits.num_replicas, 0
        self.unsaved, self.in_flight, self.is_saving = 0, 0, False
        self.since, self.reason = 0, ""

    def run(self, times: list[int], kinds: list[int], marks: list[int]) -> None:
        for time, kind in zip(times, kinds, strict=True):
            self.add(time, FAILURE, kind)
        for mark in marks:
            self.add(mark, MARK, 0)
        self.enter(0, TRAINING)
        while True:
            now, what, _, value, epoch = heapq.heappop(self.agenda)
            self.account(now)
            if what == MARK:
                self.mark()
                if len(self.progress) == len(marks):
                    break
            elif what == FAILURE:
                (self.plan if value & PLANNED else self.fail)(now, value)
            else:
                self.happen(now, what, epoch)
        self.trained[self.level] += self.unsaved + self.in_flight

    def happen(self, now: int, what: int, epoch: int) -> None:
        if what == REPAIR:
            self.repair(now)
        elif what == SAVED:
            self.saved(now, epoch)
        elif epoch == self.epoch:
            self.over(now)

    def mark(self) -> None:
        here = (self.unsaved + self.in_flight) * self.speeds[self.level]
        for kept, speed in zip(self.trained, self.speeds, strict=True):
            here += kept * speed
        self.progress.append(here)

    def repair(self, now: int) -> None:
        self.broken -= 1
        if self.state == WAITING:  # look when all of this tick are done
            self.epoch += 1
            self.add(now, TIMER, 0, self.epoch)

    def add(self, time: int, what: int, value: int, epoch: int = 0) -> None:
        heapq.heappush(self.agenda, (time, what, next(self.numbers), value, epoch))

    def account(self, now: int) -> None:
        spent = now - self.since_state
        self.since_state = now
        if self.state == TRAINING:
            self.unsaved += spent
            self.since += spent
        else:
            self.causes[self.state] += spent

    @property
    def runnable(self) -> int:
        left = (self.habits.num_nodes - self.broken) // self.habits.nodes_per_replica
        return min(self.habits.num_replicas, left)

    def enter(self, now: int, state: int) -> None:
        habits = self.habits
        self.state, self.epoch = state, self.epoch + 1
        wait = {
            COPYING: habits.copy,
            WRITING: habits.write,
            RESTARTING: habits.restart,
            MAINTAINING: habits.maintenance,
        }
        if state == TRAINING and not self.is_saving:
            left = max(0, habits.interval - self.since)
            self.add(now + left, TIMER, 0, self.epoch)
        elif state == WAITING and self.runnable >= habits.fewest_replicas:
            self.level = self.runnable
            self.enter(now, RESTARTING)
        elif state in wait:
            self.add(now + wait[state], TIMER, 0, self.epoch)

    def saved(self, now: int, save: int) -> None:
        """A checkpoint beside the training is complete."""
        if save != self.save or not self.is_saving or self.state != TRAINING:
            return  # it is lost, or what stops the job saves all of it, or looks itself
        self.keep_in_flight()
        self.enter(now, TRAINING)

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
            self.in_flight, self.unsaved, self.since = self.unsaved, 0, 0
            self.is_saving, self.save = True, self.save + 1
            self.finish = now + habits.write - habits.copy
            self.add(self.finish, SAVED, 0, self.save)
            self.enter(now, TRAINING)
        elif self.state == WRITING:
            self.trained[self.level] += self.unsaved + self.in_flight
            self.unsaved = self.in_flight = self.since = 0
            self.is_saving = False
            self.counts[1] += 1
            reason, self.reason = self.reason, ""
            self.counts[2] += reason == "maintenance"
            self.counts[3] += reason == "grow"
            after = {"maintenance": MAINTAINING, "grow": WAITING, "": TRAINING}
            self.enter(now, after[reason])
        elif self.state == RESTARTING:
            self.enter(now, TRAINING)
        else:
            self.enter(now, WAITING)

    def grows(self) -> bool:
        more = self.speeds[self.runnable] - self.speeds[self.level]
        cost = self.habits.write + self.habits.restart
        return self.runnable > self.level and more * self.habits.outlook > cost

    def plan(self, now: int, kind: int) -> None:
        if self.state in (TRAINING, COPYING, WRITING) and self.reason != "maintenance":
            self.reason = "maintenance"
            if self.state != WRITING:
                self.enter(now, WRITING)

    def fail(self, now: int, kind: int) -> None:
        habits = self.habits
        if kind & TAKES_NODE and self.broken < habits.num_nodes:
            self.broken += 1
            self.add(now + habits.repair, REPAIR, 0)
        if self.state in (DETECTING, WAITING, MAINTAINING):
            return
        if self.is_saving and self.finish < now:
            self.keep_in_flight()
        self.causes[TRAINING] += self.unsaved + self.in_flight
        self.counts[0] += 1
        self.unsaved = self.in_flight = self.since = 0
        self.is_saving, self.reason = False, ""
        self.state, self.epoch = DETECTING, self.epoch + 1
        time = habits.hang_detection if kind & HANGS else habits.detection
        self.add(now + time, TIMER, 0, self.epoch)
