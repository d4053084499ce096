"""The checks of a certificate: each lists or computes anew, and names what differs.

None of them searches. What is computed by the functions that the search uses, and what
is not, `Inspection.how` says.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from nestsim.document.wording import plan_label
from nestsim.features.certificate.plain import (
    has_plain_bounds,
    plain_first_bounds,
    plain_parameters,
)
from nestsim.features.certificate.recheck import (
    CLOSE,
    TICKS,
    Inspection,
    Recheck,
    infinite,
    inspection,
    is_close,
    spread,
)
from nestsim.features.certificate.record import (
    CLOSINGS,
    FIRST,
    MEMORY,
    OPENED,
    PARAMETERS,
    RELAXED,
    CertificateRecord,
    OpenedRecord,
    PlacementPlansRecord,
    ReplayRecord,
    every_first_bound,
    gap_of,
    left_of,
    sheets,
    space_rules,
)
from planner.cost.choices import MemoryChoice
from planner.cost.objective import PricedPlan
from planner.plans.checks import check_plan
from planner.plans.written import plan_of
from planner.search.replayed.candidates import Leaves
from planner.search.replayed.replays import SLACK
from planner.search.replayed.trail import ProofTrail
from planner.search.space import configuration_of
from planner.search.thriftiest import sizes_label
from planner.step.plan import Plan
from topologies.arrays import FloatArray
from topologies.errors import InputError
from topologies.input_file import Value


def check_space(job: Recheck) -> Inspection:
    """Hold the configurations against the space that is listed anew."""
    job.tell("list the space")
    return inspection(
        "configurations",
        len(job.rows),
        "the space listed anew by the rules: none is missing, none is invented",
        _space_failures(job),
    )


def _space_failures(job: Recheck) -> Iterator[str]:
    written, record = space_rules(job.candidates.spec), job.record
    for name in written.keys() | record.space.keys():
        if written.get(name) != record.space.get(name):
            yield (
                f"The rule {name} of the space is {written.get(name)}, not "
                f"{record.space.get(name)}."
            )
    for name, known, now in (
        ("device_bytes", record.device_bytes, job.candidates.bounds.memory),
        ("proven_gap", record.proven_gap, job.candidates.spec.proven_gap),
    ):
        if known != now:
            yield f"{name} is {now!r}, not {known!r}."
    if record.closings != CLOSINGS:
        yield "The names of what closes configurations are others."
    yield from _row_failures(job)


def _row_failures(job: Recheck) -> Iterator[str]:
    """Yield it if configurations are not those of the space."""
    every = {job.candidates[index] for index in range(len(job.candidates))}
    for missing in sorted(every - {*job.rows}):
        yield f"A configuration of the space is missing: {sizes_label(missing)}."
    for position, number in enumerate(job.numbers):
        if number is None:
            yield f"{job.label(position)} is not in the space."
    if len({*job.rows}) < len(job.rows):
        yield "A configuration is there twice."
    for position, by in enumerate(job.record.configurations.by):
        if not 0 <= by < len(CLOSINGS):
            yield f"{job.label(position)}: nothing closes it."


def check_first_bounds(job: Recheck) -> Inspection:
    """Compute the first bound of every configuration anew."""
    job.tell("bound all configurations")
    plain = has_plain_bounds(job.candidates)
    make = plain_first_bounds if plain else every_first_bound
    bounds = make(job.candidates)
    columns = job.record.configurations

    def failures() -> Iterator[str]:
        for position, number in job.known(FIRST, RELAXED, OPENED, MEMORY):
            known, now = columns.first_bound_s[position], float(bounds[number])
            if not is_close(known, now):
                yield (
                    f"{job.label(position)}: its first bound is {now!r} s, not "
                    f"{known!r} s."
                )

    how = (
        "the closed form again in plain numpy, not by the kernel of the search"
        if plain
        else "by the function of the search alone: devices differ, or weight gradients "
        "are put off"
    )
    count = sum(1 for _ in job.known(FIRST, RELAXED, OPENED, MEMORY))
    return inspection("first bounds", count, how, failures())


def check_parameters(job: Recheck) -> Inspection:
    """Count again what parameters alone fill."""
    columns, room = job.record.configurations, job.candidates.bounds.memory

    def failures() -> Iterator[str]:
        for position, number in job.known(PARAMETERS):
            known = columns.needed_bytes[position]
            now = plain_parameters(job.candidates, number)
            if not is_close(known, now) or columns.first_bound_s[position] is not None:
                yield (
                    f"{job.label(position)}: its parameters take {now:.0f} bytes of "
                    f"the mean stage's devices, not {known!r}."
                )
            elif now <= room:
                yield f"{job.label(position)}: its parameters fit."
        for position, _ in job.known(FIRST, RELAXED, OPENED):
            if columns.needed_bytes[position] is not None:
                yield f"{job.label(position)} is not out of memory, and has needs."

    count = sum(1 for _ in job.known(PARAMETERS))
    how = "counted again in plain Python under every ZeRO stage, beside what there is"
    return inspection(
        "configurations whose parameters do not fit", count, how, failures()
    )


def check_relaxed(job: Recheck) -> Inspection:
    """Bound every configuration that was looked at again, one by one."""
    job.tell("bound configurations one by one")
    columns, candidates = job.record.configurations, job.candidates

    def failures() -> Iterator[str]:
        for position, number in job.known(RELAXED, OPENED, MEMORY):
            cutoff = infinite(columns.cutoff_s[position])
            now = candidates.relaxed_bound(candidates[number], cutoff)
            known = columns.relaxed_bound_s[position]
            if not is_close(known, now):
                yield (
                    f"{job.label(position)}: its relaxed bound is {now!r} s, not "
                    f"{known!r} s."
                )
            if np.isinf(now) != (columns.by[position] == MEMORY):
                yield f"{job.label(position)}: whether any plan fits is wrong."
        for position, _ in job.known(FIRST, PARAMETERS):
            looked = columns.relaxed_bound_s[position], columns.cutoff_s[position]
            if looked != (None, None):
                yield f"{job.label(position)} was not looked at, and has a bound."

    count = sum(1 for _ in job.known(RELAXED, OPENED, MEMORY))
    how = (
        "by the function of the search, one configuration at a time; held against "
        "replays below"
    )
    return inspection("relaxed bounds", count, how, failures())


def check_memory(job: Recheck) -> Inspection:
    """Count again what the least demanding plan of configurations needs."""
    columns = job.record.configurations
    every = [(position, number, 0) for position, number in job.known(MEMORY)]

    def failures() -> Iterator[str]:
        for position, number, _ in every:
            known = columns.needed_bytes[position]
            now = job.candidates.least_memory(job.candidates[number])[0]
            if not is_close(known, now):
                yield (
                    f"{job.label(position)}: its least demanding plan needs {now:.0f} "
                    f"bytes, not {known!r}."
                )
        for position, number, _ in job.sample(every):
            leaf = job.candidates.least_memory(job.candidates[number])[1]
            if leaf is None:
                continue
            priced = job.keeping_gradients.price(job.candidates.plan(leaf))
            if job.candidates.has_room(priced) and _fits_host(job, priced.host_memory):
                yield f"{job.label(position)}: {plan_label(priced.plan)} fits."

    how = (
        f"their least demanding plans again, {len(job.sample(every)):,} of these by "
        "the account that judges plans, too, with gradients that are there all the time"
    )
    return inspection(
        "configurations of which no plan fits", len(every), how, failures()
    )


def _fits_host(job: Recheck, kept: float) -> bool:
    host = job.evaluator.network.host
    return host is None or kept <= host.memory


def check_opened(job: Recheck) -> Inspection:
    """List and bound the plans of opened configurations again, one plan at a time."""
    job.tell("bound plans one by one")
    failures: list[str] = []
    count = 0
    marked = {position for position, _ in job.known(OPENED)}
    listed = [opened.configuration for opened in job.record.opened]
    if sorted(listed) != sorted(marked):
        failures.append("The configurations that were opened are others than listed.")
    for place, opened in enumerate(job.record.opened):
        number = (
            job.numbers[opened.configuration]
            if opened.configuration in marked
            else None
        )
        if number is None:
            continue
        cutoff = infinite(opened.cutoff_s)
        every = tuple(job.candidates.leaves(job.candidates[number], cutoff))
        job.anew[place] = every
        failures += _opened_failures(job, opened, every)
        for leaves in {id(some.bounds): some for some in every}.values():
            count += len(leaves.choices) * len(leaves.layouts)
            if not are_sound(job.candidates.bounds_alone(leaves), leaves, cutoff):
                failures.append(
                    f"{job.label(opened.configuration)}: bounds of its plans on "
                    f"{leaves.placement.name} are above those that hold."
                )
    how = "listed anew, all memory and bounds again, one plan at a time and in full"
    return inspection("plans of opened configurations", count, how, failures)


def _opened_failures(
    job: Recheck, opened: OpenedRecord, every: tuple[Leaves, ...]
) -> Iterator[str]:
    """Yield what of an opened configuration is not what is listed anew."""
    label = job.label(opened.configuration)
    now = [PlacementPlansRecord.read(sheet) for sheet in sheets(every, ProofTrail())]
    if len(now) != len(opened.placements):
        yield f"{label} has {len(now)} placements, not {len(opened.placements)}."
        return
    for known, sheet in zip(opened.placements, now, strict=True):
        for name in _LISTED:
            if getattr(known, name) != getattr(sheet, name):
                yield f"{label} on {sheet.placement}: {name} is not what it was."
        same = len(known.bound_s) == len(sheet.bound_s) and all(
            map(is_close, known.bound_s, sheet.bound_s)
        )
        if not same:
            yield f"{label} on {sheet.placement}: bounds of plans are others."


_LISTED = (
    *("schedule", "placement", "same_as", "choices", "layouts"),
    *("choice", "layout", "num_blocks", "num_out_of_memory"),
)
"""Fields of `PlacementPlansRecord` that are the same when they are listed anew."""


def are_sound(alone: FloatArray, leaves: Leaves, cutoff: float) -> bool:
    """Tell whether bounds hold that were made of all plans in a call.

    None is above that of the plan by itself, those below the cutoff are the same, and
    what is not listed fits in no way.
    """
    together = np.full_like(alone, np.inf)
    together[leaves.numbers[:, 0], leaves.numbers[:, 1]] = leaves.bounds
    fits = np.isfinite(together)
    differs = fits != np.isfinite(alone)
    # Some choices count only where quicker ones do not fit.
    if (fits & differs).any() or any(
        not fits[_quicker(leaves.choices, number), layout].any()
        for number, layout in np.argwhere(differs).tolist()
    ):
        return False
    known, full = together[fits], alone[fits]
    is_same = np.isclose(known, full, rtol=CLOSE, atol=0.0)
    return bool(
        ((known <= full) | is_same).all() and (is_same | (known >= cutoff)).all()
    )


def _quicker(choices: tuple[MemoryChoice, ...], number: int) -> list[int]:
    """Return what has to fit nowhere for a choice to count; nothing for most."""
    chosen = choices[number]
    if not chosen.recompute_modules:
        return []
    alike = chosen._replace(recompute="none", recompute_modules=())
    return [
        place
        for place, choice in enumerate(choices[:number])
        if choice == alike
        or choice
        == chosen._replace(recompute_modules=choice.recompute_modules or ("",))
    ]


def check_timelines(job: Recheck) -> Inspection:
    """Bound plans by their timelines again."""
    job.tell("bound plans by their timelines")

    def failures() -> Iterator[str]:
        for opened, leaves, sheet in _anew(job):
            name = f"{job.label(opened.configuration)} on {sheet.placement}"
            if len(sheet.timeline_s) > len(leaves.bounds):
                yield f"{name}: more plans have timelines than there are."
                continue
            places = range(len(sheet.timeline_s))
            is_list = len(sheet.replayed) == len(sheet.replayed_s)
            if not is_list or sorted({*sheet.replayed} & {*places}) != [
                *sheet.replayed
            ]:
                yield f"{name}: plans were replayed that have no timeline."
            relaxed = job.candidates.least_rates(leaves.configuration)
            for place, known in enumerate(sheet.timeline_s):
                # Without what transfers share, where the search did not ask for it.
                enough = known * (1.0 - CLOSE)
                now = job.timelines.bound(leaves.leaf(place), relaxed, enough)
                if not is_close(known, now):
                    yield (
                        f"{name}: the bound of plan {place} by its timeline is {now!r} "
                        f"s, not {known!r} s."
                    )

    count = sum(len(sheet.timeline_s) for *_, sheet in _anew(job))
    how = (
        "by the function of the search, one plan at a time; held against replays below"
    )
    return inspection("plans bounded by their timelines", count, how, failures())


def _anew(job: Recheck) -> Iterator[tuple[OpenedRecord, Leaves, PlacementPlansRecord]]:
    """Yield the plans of placements, listed anew and as they are written."""
    for place, every in job.anew.items():
        opened = job.record.opened[place]
        for leaves, sheet in zip(every, opened.placements, strict=False):
            yield opened, leaves, sheet


def check_logic(job: Recheck) -> Inspection:
    """Hold what is printed against what is left."""
    record = job.record
    return inspection(
        "closings",
        len(job.rows),
        "each is closed by something sufficient; the least bound left, the gap and the "
        "verdict again from the rows",
        _logic_failures(record, job),
    )


def _logic_failures(record: CertificateRecord, job: Recheck) -> Iterator[str]:
    time = math.inf if record.answer is None else infinite(record.answer.replayed_s)
    limit = time / (1.0 + record.proven_gap)
    left = _left(job)
    for position, bound in enumerate(left):
        if record.configurations.closed[position] != (bound >= limit):
            closes = "closes" if bound >= limit else "does not close"
            yield (
                f"{job.label(position)}: the least bound left of it is {bound!r} s, "
                f"which {closes} it."
            )
    bound = min([*left, time])
    if bound != infinite(record.lower_bound_s):
        yield f"The least bound left is {bound!r} s, not {record.lower_bound_s!r} s."
    gap = gap_of(time, bound)
    if not is_close(gap, record.optimality_gap):
        yield f"The gap is {gap!r}, not {record.optimality_gap!r}."
    proven = limit <= bound and not (record.answer is None and record.stopped_by)
    if record.proven != proven:
        yield f"The answer is {'' if proven else 'not '}proven to the gap asked for."
    yield from _order_failures(job, time)


def _order_failures(job: Recheck, time: float) -> Iterator[str]:
    """Yield replays that are faster than the answer, or than their bounds."""
    reached = {math.inf}
    for name, floor, replayed in _every_replay(job):
        reached.add(infinite(replayed) * SLACK)
        if infinite(replayed) < time:
            yield f"{name} replays faster than the answer: {replayed!r} s."
        if infinite(replayed) < floor * (1.0 - CLOSE) - TICKS:
            yield f"{name} replays below its bound: {replayed!r} s."
    cutoffs = [
        *job.record.configurations.cutoff_s,
        *(opened.cutoff_s for opened in job.record.opened),
    ]
    for cutoff in dict.fromkeys(map(infinite, cutoffs)):
        if cutoff not in reached:
            yield f"Bounds end at {cutoff!r} s, which no replay asks for."


def _left(job: Recheck) -> list[float]:
    """Return the least bound that is left of each configuration [s]."""
    by = job.record.configurations.by
    left = [
        math.inf if by[position] in {PARAMETERS, MEMORY} else job.floor(position)
        for position in range(len(by))
    ]
    for opened in job.record.opened:
        position = opened.configuration
        if not 0 <= position < len(left):
            continue
        bounds = [
            left_of(_bounds_of(opened, sheet), sheet.timeline_s, {*sheet.replayed})
            for sheet in opened.placements
        ]
        left[position] = max(job.floor(position), min(bounds, default=math.inf))
    return left


def _bounds_of(opened: OpenedRecord, sheet: PlacementPlansRecord) -> tuple[float, ...]:
    """Return the bounds of the plans of a placement [s]."""
    if sheet.same_as is None:
        return sheet.bound_s
    return opened.placements[sheet.same_as % len(opened.placements)].bound_s


def _every_replay(job: Recheck) -> Iterator[tuple[str, float, float | None]]:
    """Yield what was replayed, its bound, and its time [s]."""
    for opened in job.record.opened:
        label = f"A plan of configuration {opened.configuration}"
        for sheet in opened.placements:
            bounds = _bounds_of(opened, sheet)
            for place, time in zip(sheet.replayed, sheet.replayed_s, strict=False):
                if 0 <= place < min(len(bounds), len(sheet.timeline_s)):
                    bound = max(bounds[place], sheet.timeline_s[place])
                    yield f"{label} on {sheet.placement}", bound, time
    for number, first in enumerate(job.record.first_replays):
        yield f"First replay {number}", 0.0, first.replayed_s


def check_answer(job: Recheck) -> Inspection:
    """Replay the answer, and look for it in the space."""
    job.tell("replay the answer")
    answer = job.record.answer
    return inspection(
        "the answer",
        int(answer is not None),
        "looked for in the space, its memory counted, its step replayed link by link",
        () if answer is None else _plan_failures(job, "The answer", answer),
    )


def _plan_failures(job: Recheck, name: str, written: ReplayRecord) -> Iterator[str]:
    """Yield what does not hold of a plan that is written out."""
    try:
        plan = plan_of(Value(written.plan))
        check_plan(job.evaluator.workload, plan, job.evaluator.network.num_devices)
        priced = job.evaluator.price(plan)
    except InputError:
        yield f"{name} is no plan of this job."
        return
    if priced.plan.to_json() != written.plan:
        yield f"{name} is not written as the plan that it is."
    elif not _is_in_space(job, plan):
        yield f"{name} is not in the space."
    elif not job.candidates.has_room(priced):
        yield f"{name} does not fit in memory."
    else:
        yield from _time_failures(job, name, priced, written.replayed_s)


def _is_in_space(job: Recheck, plan: Plan) -> bool:
    """Tell whether a plan is of the space: by the rules, or as one that is listed.

    Its devices are those of a placement of its configuration. Layouts beyond those that
    are listed, which a search proposes, count if they can be launched.
    """
    candidates, configuration = job.candidates, configuration_of(plan)
    if not any(configuration in family for family in candidates.families):
        return False
    devices = tuple(stage.devices for stage in plan.stages)
    for placement in candidates.listing.placements(configuration):
        if placement.rows == devices:
            break
    else:
        return False
    shardings = candidates.prices.rates(configuration, placement).shardings
    groups = {option.group_size for option in shardings}
    if any(
        stage.sharding_group_size not in (groups if stage.zero_stage else {1})
        for stage in plan.stages
    ):
        return False
    if candidates.is_launchable(plan) and (
        candidates.is_searched(plan) or not candidates.has_listed_layout(plan)
    ):
        return True
    listed = (
        leaves
        for leaves in candidates.leaves(configuration, math.inf)
        if leaves.placement.rows == devices
    )
    return any(
        candidates.plan(leaves.leaf(index)) == plan
        for leaves in listed
        for index in range(len(leaves.bounds))
    )


def _time_failures(
    job: Recheck, name: str, priced: PricedPlan, known: float | None
) -> Iterator[str]:
    """Yield it if a plan's replay is not what was written."""
    answer = job.record.answer
    best = math.inf if answer is None else infinite(answer.replayed_s)
    now = job.evaluator.replayed_time(priced, best if known is None else math.inf)
    if known is not None and not is_close(known, now):
        yield f"{name} replays in {now!r} s, not {known!r} s."
    elif known is None and now < best:
        yield f"{name} was broken off, and replays in {now!r} s, before the answer."


def check_replays(job: Recheck) -> Inspection:
    """Replay plans again that the search replayed."""
    first = job.record.first_replays
    every = [
        (place, number, index)
        for place, opened in enumerate(job.record.opened)
        for number, sheet in enumerate(opened.placements)
        for index in range(min(len(sheet.replayed), len(sheet.replayed_s)))
        if place in job.anew and number < len(job.anew[place])
    ]
    chosen = job.sample([*every, *((-1, number, 0) for number in range(len(first)))])

    def failures() -> Iterator[str]:
        for done, (place, number, index) in enumerate(chosen, 1):
            job.tell(f"replay plan {done} of {len(chosen)} again")
            if place < 0:
                yield from _plan_failures(job, f"First replay {number}", first[number])
                continue
            opened, leaves = job.record.opened[place], job.anew[place][number]
            sheet, label = opened.placements[number], job.label(opened.configuration)
            row = sheet.replayed[index]
            if not 0 <= row < len(leaves.bounds):
                continue  # `check_timelines` names it.
            yield from _time_failures(
                job,
                f"{label}: plan {row} on {leaves.placement.name}",
                job.evaluator.price(job.candidates.plan(leaves.leaf(row))),
                sheet.replayed_s[index],
            )

    how = f"of {len(every) + len(first):,} that the search replayed, evenly spaced"
    return inspection("plans replayed again", len(chosen), how, failures())


def check_bounds_by_replay(job: Recheck) -> Inspection:
    """Replay plans that bounds closed: none may be faster than its bound."""
    rows = [(-1, position, number) for position, number in job.known(FIRST, RELAXED)]
    plans = [
        (place, number, index)
        for place, every in job.anew.items()
        for number, leaves in enumerate(every)
        for index in range(len(leaves.bounds))
        if number < len(job.record.opened[place].placements)
        and index not in job.record.opened[place].placements[number].replayed
    ]
    count = 32 if job.replays is None else job.replays
    chosen = [
        *spread(rows, count - min(len(plans), count // 2)),
        *spread(plans, max(count // 2, count - len(rows))),
    ]

    def failures() -> Iterator[str]:
        for done, (place, number, index) in enumerate(chosen):
            job.tell(f"replay plan {done + 1} of {len(chosen)} that a bound closed")
            if place < 0:
                position, every = (
                    number,
                    job.candidates.leaves(job.candidates[index], math.inf),
                )
                leaves, row = (
                    next((some for some in every if len(some.bounds)), None),
                    0,
                )
                bound = job.floor(position)
            else:
                leaves, row = job.anew[place][number], index
                position = job.record.opened[place].configuration
                sharp = job.record.opened[place].placements[number].timeline_s
                bounds = float(leaves.bounds[index]), *sharp[index : index + 1]
                bound = max(job.floor(position), *bounds)
            if leaves is None:
                continue
            plan = job.candidates.plan(leaves.leaf(row))
            time = job.evaluator.replayed_time(job.evaluator.price(plan), bound)
            if time < bound * (1.0 - CLOSE) - TICKS:
                yield (
                    f"{job.label(position)}: {plan_label(plan)} replays in {time!r} s, "
                    f"below the bound of {bound!r} s that closed it."
                )

    how = (
        f"of {len(rows):,} configurations and {len(plans):,} plans that only a bound "
        "closes: one plan of each that is chosen, for the first time"
    )
    return inspection(
        "plans replayed against their bounds", len(chosen), how, failures()
    )


CHECKS: tuple[Callable[[Recheck], Inspection], ...] = (
    check_space,
    check_first_bounds,
    check_parameters,
    check_relaxed,
    check_memory,
    check_opened,
    check_timelines,
    check_logic,
    check_answer,
    check_replays,
    check_bounds_by_replay,
)
"""All checks, in the order in which they are made."""
