"""Where jobs are, while those are placed whose devices the file does not name.

Jobs whose devices the file names are there first, then those that are placed close
together or spread, the largest first, of equals by name: so the order of the file makes
no difference. Those that are to be placed best come last, all together: each of their
*joint placements* is replayed beside the jobs that are there, where their plans fit;
taken is the one by which all of them together lose the least throughput. That is
counted in devices: a job of ``n`` devices that takes ``s`` times as long as it could
loses ``n (1 - 1 / s)`` of them. A job that stands is held against itself alone; one
that is placed against the place where it is fastest alone, so that a place where it is
slow, but disturbs nobody, is no gain by itself.

A job's candidates depend on who is there already. So joint placements are a tree: each
candidate of the first job, in the room of which each candidate of the second, and so
on. None are alike, and where all candidates are known, so are all joint placements. Of
up to `MOST_TOGETHER` all are replayed. Of more, or where candidates were thought of,
one job after another is moved to where all lose the least while the others stay; where
that is no gain, two at once, one to each of its candidates and the other close together
in what that leaves; until neither is a gain. That begins with all close together, all
spread, and each placed best in turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from nestsim.features.jobs.fabric import Fabric
from nestsim.features.jobs.placements import (
    CandidateDevices,
    Candidates,
    Room,
    candidates,
    compact,
    spread,
)
from nestsim.features.jobs.plans import NoTenantPlanError, Plans
from nestsim.features.jobs.replay import lost_devices
from nestsim.features.jobs.results import JudgedPlacement, Meeting, PlacementChoice
from nestsim.features.jobs.scenario import Tenant
from nestsim.simulator.work import PipelineWork
from planner.work import Progress
from topologies.arrays import IntArray
from topologies.errors import InputError

MOST_TOGETHER = 128
"""Joint placements of several jobs that are all replayed."""

_MOST_ROUNDS = 8
"""Rounds in which each job is moved once, at most, from each beginning."""

_SAME = 1e-9
"""Devices that are lost, relative to all, by which placements do not differ."""

Joint = Mapping[int, CandidateDevices]
"""Where jobs are that are placed best, by the job's index."""


class _Loss(NamedTuple):
    """What a joint placement costs the jobs that stand and those placed in it."""

    meeting: Meeting
    """The jobs, replayed."""

    slowdowns: tuple[float, ...]
    """Of the jobs that stand, and of those placed against their fastest places."""

    lost: float
    """Throughput that all of them lose, in devices of theirs."""


class Floor:
    """Where jobs are, while they are placed."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        fabric: Fabric,
        plans: Plans,
        progress: Progress | None,
    ) -> None:
        self.tenants, self.fabric, self.plans = tenants, fabric, plans
        self.progress = progress
        self.devices: dict[int, IntArray] = {
            tenant.index: tenant.devices
            for tenant in tenants
            if tenant.devices is not None
        }
        self.choice: PlacementChoice | None = None
        self.notes: list[str] = []
        self._lowered: dict[object, PipelineWork] = {}
        self._judged: dict[object, _Loss] = {}
        self._least: dict[int, float] = {}

    def place_all(self) -> None:
        """Place the jobs whose devices the file does not name.

        Raises
        ------
        InputError
            If what is free does not suffice for one.
        NoTenantPlanError
            If a job to be placed best has no plan anywhere.
        """
        waiting = sorted(
            (tenant for tenant in self.tenants if tenant.index not in self.devices),
            key=lambda tenant: (-tenant.num_devices, tenant.name),
        )
        best = [tenant for tenant in waiting if tenant.placement == "best"]
        for tenant in waiting:
            if tenant not in best:
                place = compact if tenant.placement == "compact" else spread
                devices = place(self._room(), tenant.num_devices)
                if devices is None:
                    raise self._no_room(tenant)
                self.devices[tenant.index] = devices
        if best:
            self._place_best(best)

    def _no_room(self, tenant: Tenant) -> InputError:
        run = self._room().blocks_of(tenant.num_devices)[0]
        return InputError(
            "there are not enough devices left in one piece",
            where=f"jobs[{tenant.index}].num_devices",
            got=tenant.num_devices,
            expected=f"free devices in whole runs of {run}",
        )

    def _room(self, joint: Joint | None = None) -> Room:
        """Return the room beside those that stand, and those of a joint placement."""
        taken = {**self.devices, **_devices(joint or {})}
        standing = [tenant for tenant in self.tenants if tenant.index in taken]
        standing.sort(key=lambda tenant: tenant.name)
        cluster = self.tenants[0].scenario
        return Room.of(
            self.fabric.wires,
            [taken[tenant.index] for tenant in standing],
            is_even=cluster.degradation is None and not cluster.groups,
        )

    def _place_best(self, best: Sequence[Tenant]) -> None:
        """Place jobs where all lose the least, the first of equals."""
        lists = {tenant.index: self._known_places(tenant) for tenant in best}
        first = lists[best[0].index]
        if len(best) == 1 and len(first.listed) == 1:
            self.devices[best[0].index] = first.listed[0].devices
            return
        for tenant in best:
            alone = [self._alone(tenant, place) for place in lists[tenant.index].listed]
            self._least[tenant.index] = min(alone)
        joint = self._all_joint(best)
        is_complete = joint is not None
        if joint is None and len(best) == 1:
            joint = [{best[0].index: candidate} for candidate in first.listed]
        elif joint is None:
            joint = self._descended(best)
        if not joint:
            raise self._no_room(best[-1])
        self._choose(best, joint, is_complete=is_complete)

    def _known_places(self, tenant: Tenant) -> Candidates:
        """Return the candidates of a job beside those that stand alone."""
        free = candidates(self._room(), tenant.num_devices)
        if not free.listed:
            raise self._no_room(tenant)
        known = self._with_plans(tenant, free)
        dropped = len(free.listed) - len(known.listed)
        if dropped:
            self.notes.append(
                f"On {dropped} of {len(free.listed)} placements of "
                f'"{tenant.name}" no plan of it fits into memory: these were not '
                "tried."
            )
        return known

    def _choose(
        self, best: Sequence[Tenant], joint: Sequence[Joint], *, is_complete: bool
    ) -> None:
        """Put jobs where all lose the least, and keep what was tried."""
        losses = [self._loss(of_all) for of_all in joint]
        chosen = self._first_best([loss.lost for loss in losses])
        in_order = sorted(best, key=lambda tenant: tenant.index)
        self.choice = PlacementChoice(
            tenants=tuple(in_order),
            others=tuple(tenant.name for tenant in self._together(joint[chosen])),
            judged=tuple(
                self._judgement(in_order, of_all, loss)
                for of_all, loss in zip(joint, losses, strict=True)
            ),
            chosen=chosen,
            is_complete=is_complete,
        )
        self.devices.update(_devices(joint[chosen]))

    def _first_best(self, lost: Sequence[float]) -> int:
        """Return the place of the least loss, the first of equals."""
        nearly = _SAME * sum(tenant.num_devices for tenant in self.tenants)
        least = min(lost) + nearly
        return next(place for place, loss in enumerate(lost) if loss <= least)

    def _with_plans(self, tenant: Tenant, free: Candidates) -> Candidates:
        """Return the candidates where a job's plan fits, all with a plan if none does.

        They differ in that where accelerators do.

        Raises
        ------
        NoTenantPlanError
            If there are candidates, and the job has no plan on any.
        """
        planned, fitting, errors = [], [], []
        for candidate in free.listed:
            try:
                made = self.plans.on(tenant, candidate.devices)
            except NoTenantPlanError as error:
                errors.append(error)
                continue
            planned.append(candidate)
            if made.fits:
                fitting.append(candidate)
        if errors and not planned:
            raise errors[0]
        return free._replace(listed=tuple(fitting or planned))

    def _listed(self, tenant: Tenant, joint: Joint) -> Candidates:
        """Return the candidates of a job beside others that are placed best."""
        free = candidates(self._room(joint), tenant.num_devices)
        try:
            return self._with_plans(tenant, free)
        except NoTenantPlanError:
            return free._replace(listed=())

    def _all_joint(self, best: Sequence[Tenant]) -> list[Joint] | None:
        """Return all joint placements; None if not all are known, or too many."""
        known: list[Joint] = []
        for joint in self._tree(best, {}):
            if joint is None or len(known) == MOST_TOGETHER:
                return None
            known.append(joint)
        return known

    def _tree(self, best: Sequence[Tenant], placed: Joint) -> Iterator[Joint | None]:
        """Yield joint placements, and None where not all candidates are known."""
        if not best:
            yield placed
            return
        listed = self._listed(best[0], placed)
        if not listed.is_complete:
            yield None
        for candidate in listed.listed:
            yield from self._tree(best[1:], {**placed, best[0].index: candidate})

    def _descended(self, best: Sequence[Tenant]) -> list[Joint]:
        """Return joint placements on the ways to where no move of a job is a gain."""
        tried: dict[object, Joint] = {}
        for joint in self._beginnings(best):
            here = joint
            tried.setdefault(_key(here), here)
            for _ in range(_MOST_ROUNDS):
                before = here
                for tenant in best:
                    here = self._moved(self._moves(tenant, here), tried)
                if _key(here) == _key(before):
                    for first, second in permutations(best, 2):
                        moves = self._double_moves(first, second, here)
                        here = self._moved([here, *moves], tried)
                if _key(here) == _key(before):
                    break
        return list(tried.values())

    def _moved(self, moves: Sequence[Joint], tried: dict[object, Joint]) -> Joint:
        """Return the joint placement of least loss, the first of equals."""
        tried.update({_key(move): move for move in moves if _key(move) not in tried})
        return moves[self._first_best([self._loss(move).lost for move in moves])]

    def _double_moves(
        self, first: Tenant, second: Tenant, joint: Joint
    ) -> Iterator[Joint]:
        """Yield joint placements with two jobs elsewhere, the second close together."""
        moved = {first.index, second.index}
        others = {index: joint[index] for index in joint if index not in moved}
        for candidate in self._listed(first, others).listed:
            placed = {**others, first.index: candidate}
            devices = compact(self._room(placed), second.num_devices)
            if devices is not None:
                yield {**placed, second.index: CandidateDevices("compact", devices)}

    def _moves(self, tenant: Tenant, joint: Joint) -> list[Joint]:
        """Return a joint placement, and those with one job elsewhere."""
        others = {index: joint[index] for index in joint if index != tenant.index}
        listed = self._listed(tenant, others).listed
        here = [joint] if tenant.index in joint else []
        return [*here, *({**others, tenant.index: place} for place in listed)]

    def _beginnings(self, best: Sequence[Tenant]) -> Iterator[Joint]:
        """Yield joint placements from which jobs are moved."""
        for label, place in (("compact", compact), ("spread", spread)):
            joint: Joint = {}
            for tenant in best:
                devices = place(self._room(joint), tenant.num_devices)
                if devices is None:
                    break
                candidate = CandidateDevices(label, devices)
                joint = {**joint, tenant.index: candidate}
            else:
                yield joint
        joint = {}
        for tenant in best:
            moves = self._moves(tenant, joint)
            if not moves:
                return
            joint = self._moved(moves, {})
        yield joint

    def _together(self, joint: Joint) -> list[Tenant]:
        """Return the jobs that stand and those of a joint placement, by index."""
        there = {*self.devices, *joint}
        return [tenant for tenant in self.tenants if tenant.index in there]

    def _alone(self, tenant: Tenant, candidate: CandidateDevices) -> float:
        """Return the steady step of a job by itself on some devices [s]."""
        work = self._work(tenant, candidate.devices)
        return self.fabric.meet([tenant], [work]).alone[0]

    def _loss(self, joint: Joint) -> _Loss:
        """Return what a joint placement costs, replayed once."""
        together = self._together(joint)
        places = {**self.devices, **_devices(joint)}
        key = _key(joint)
        if key not in self._judged:
            if self.progress is not None:
                names = ", ".join(f'"{self.tenants[index].name}"' for index in joint)
                self.progress(f"place {names}", None)
            works = [self._work(tenant, places[tenant.index]) for tenant in together]
            meeting = self.fabric.meet(together, works)
            slowdowns = tuple(
                meeting.together[place] / self._least[tenant.index]
                if tenant.index in joint
                else meeting.slowdowns[place]
                for place, tenant in enumerate(together)
            )
            devices = [tenant.num_devices for tenant in together]
            lost = lost_devices(devices, slowdowns)
            self._judged[key] = _Loss(meeting, slowdowns, lost)
        return self._judged[key]

    def _judgement(
        self, best: Sequence[Tenant], joint: Joint, loss: _Loss
    ) -> JudgedPlacement:
        together = self._together(joint)
        return JudgedPlacement(
            labels=tuple(joint[tenant.index].label for tenant in best),
            devices=tuple(joint[tenant.index].devices for tenant in best),
            step_times=tuple(
                loss.meeting.together[together.index(tenant)] for tenant in best
            ),
            slowdowns=loss.slowdowns,
            lost=loss.lost,
        )

    def _work(self, tenant: Tenant, devices: IntArray) -> PipelineWork:
        """Return one step of a job on some devices."""
        key = (tenant.index, devices.tobytes())
        if key not in self._lowered:
            made = self.plans.on(tenant, devices)
            _, self._lowered[key] = self.fabric.lower(tenant, made)
        return self._lowered[key]


def _devices(joint: Joint) -> dict[int, IntArray]:
    return {index: candidate.devices for index, candidate in joint.items()}


def _key(joint: Joint) -> object:
    """Return what equal joint placements have in common."""
    places = {index: devices.tobytes() for index, devices in _devices(joint).items()}
    return tuple(sorted(places.items()))
