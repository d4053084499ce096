"""What jobs on one fabric say: slow-downs, where they meet, placements."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nestsim.document.figures import (
    BarGroups,
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
    GroupedBar,
    HeatCell,
    HeatGroup,
    HeatMap,
)
from nestsim.document.paints import DISTINCT
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    cell,
    keyed,
    paragraphs,
)
from nestsim.document.wording import number, percent, plan_label, plural, seeds_in_words
from nestsim.features.jobs.orbits import PUSH, Shifts
from nestsim.features.jobs.results import TenancyResult
from planner.step.plan import Plan
from topologies.units import format_duration

Record = Mapping[str, Any]

_ALL = "all jobs"

_MOST_LINKS, _MOST_PLACEMENTS, _MOST_RANGES = 8, 12, 6
"""Kinds of shared links and placements of a job that the text has; ranges of devices
that are written out."""

_NONE = 5e-4
"""Slow-downs closer to 1 than this are written as none."""


def jobs_document(data: Record) -> Document:
    """Return what jobs that share a fabric say.

    Parameters
    ----------
    data
        As ``jobs.json`` has it.
    """
    headline = Headline(
        verdict=data["headline"], tone="plain", key_figures=_key_figures(data)
    )
    if not data["jobs"]:
        headline = Headline.without("NO PLAN", data["headline"])
    sections = _sections(data) if data["jobs"] else ()
    return Document.of(data["scenario"], "jobs", headline, sections)


def _sections(data: Record) -> Iterator[Section]:
    jobs, names = data["jobs"], [job["job"] for job in data["jobs"]]
    yield Section(
        name="jobs",
        title="Slow-downs",
        blocks=(_slowdowns(jobs, data["ecmp_seeds"]), _job_table(jobs)),
    )
    if data["levels"]:
        links = data["shared_links"]
        yield Section(
            name="links",
            title="Where they meet",
            blocks=(
                _level_figure(data["levels"], names),
                _link_table(links, names)
                if links
                else Sentences(sentences=("No link carries two jobs.",)),
            ),
        )
    yield Section(
        name="placements",
        title="Placements",
        blocks=tuple(map(_placement_table, data["placements"])),
    )
    if data["shifts"]:
        yield Section(
            name="shifts",
            title="Other starts",
            blocks=tuple(map(_shift_figure, data["shifts"])),
        )
    yield Section(name="plans", title="Plans", blocks=(_plan_table(jobs),))
    yield Section(
        name="basis", title="What this rests on", blocks=paragraphs(data["notes"])
    )


def _key_figures(data: Mapping[str, Any]) -> tuple[KeyFigure, ...]:
    jobs: Sequence[Record] = data["jobs"]
    if not jobs:
        return ()
    worst = max(jobs, key=lambda job: float(job["slowdown"]))
    return (
        KeyFigure(
            name="Largest slow-down",
            value=times(worst["slowdown"]),
            note=f"{worst['job']}: {format_duration(worst['step_together_s'])} a step, "
            f"{format_duration(worst['step_alone_s'])} alone",
        ),
        KeyFigure(
            name="Lost by all jobs",
            value=f"{data['lost_in_words']} devices",
            note=f"of {sum(job['num_devices'] for job in jobs):,} that work",
        ),
        KeyFigure(
            name="Throughput of all jobs",
            value=f"{number(sum(job['tokens_per_s_together'] for job in jobs))} "
            "tokens/s",
            note=f"{number(sum(job['tokens_per_s_alone'] for job in jobs))} if each "
            "were alone",
        ),
    )


def _slowdowns(jobs: Sequence[Record], seeds: Sequence[int]) -> FigureBlock:
    """Return what the other jobs add to each job's step."""

    def bar(place: int, job: Record) -> GroupedBar:
        low, middle, high = (
            100.0 * (job[f"slowdown_{name}_of_seeds"] - 1.0) if seeds else 0.0
            for name in ("least", "median", "largest")
        )
        return GroupedBar(
            name=job["job"],
            length=100.0 * (job["slowdown"] - 1.0),
            words=times(job["slowdown"]),
            paint=f"series-{place % len(DISTINCT)}",
            mark=middle if seeds else None,
            whisker=(low, high) if seeds else None,
            tip=f"{job['job']}: {times(job['slowdown'])}",
        )

    bars = tuple(bar(place, job) for place, job in enumerate(jobs))
    of_seeds = {
        f"Seeds, {name}": keyed(f"slowdown_{name}_of_seeds", times)
        for name in ("least", "median", "largest")
        if seeds
    }
    words = f"Slow-down over {seeds_in_words(seeds)}: thin lines from the least to the "
    words += "largest, marks at the median."
    return FigureBlock(
        name="slow-downs",
        title="What the others add to the step of each job",
        about="Bars of what the other jobs add to the step of each job, relative "
        "to its step alone.",
        drawing=BarGroups.of(bars, "longer beside the others [% of the step alone]"),
        table=DataTable.of(
            "What the others multiply each job's step time by",
            jobs,
            {"Job": _name, "Slow-down": keyed("slowdown", times), **of_seeds},
        ),
        note=words if seeds else "",
    )


def _name(job: Record) -> str:
    return str(job["job"])


def _job_table(jobs: Sequence[Record]) -> DataTable:
    return DataTable.of(
        "Each job alone on its devices, and beside the others",
        jobs,
        {
            "Job": _name,
            "Devices": keyed("num_devices", number),
            "Alone": keyed("step_alone_s", format_duration),
            "Together": keyed("step_together_s", format_duration),
            "Slow-down": lambda job: Cell(job["slowdown_in_words"], job["slowdown"]),
            "Tokens/s": keyed("tokens_per_s_together", number),
            "Tokens/s, alone": keyed("tokens_per_s_alone", number),
        },
        sortable=True,
    )


def _shares(
    names: Sequence[str], keys: tuple[str, str]
) -> dict[str, Callable[[Record], str | Cell]]:
    """Return the columns of the share of a link that each job takes, and all."""

    def share(place: int) -> Callable[[Record], str | Cell]:
        return lambda record: cell(record[keys[0]][place], percent)

    return {
        **{f"Share, {name}": share(place) for place, name in enumerate(names)},
        "All jobs": keyed(keys[1], percent),
    }


def _level_figure(levels: Sequence[Record], names: Sequence[str]) -> FigureBlock:
    keys = "busiest_share", "busiest_share_of_all"
    columns = _shares(names, keys)

    rows = [*zip((*names, _ALL), columns.values(), strict=True)]

    def heat(row: int, column: int) -> HeatCell | None:
        name, write = rows[row]
        share = write(levels[column])
        if not isinstance(share, Cell):
            return None
        tip = f"{name}, {levels[column]['level']}: {share.text}"
        return HeatCell(share.key, share.text, tip)

    return FigureBlock(
        name="levels",
        title="The busiest link of each level, and the share that each job takes",
        about="A map of jobs (rows) and levels of the network (columns): the share of "
        "its capacity that a job takes of the link that it keeps busiest.",
        drawing=HeatMap(
            groups=(HeatGroup.of("", [*names, _ALL], len(levels), heat),),
            columns=tuple(level["level"] for level in levels),
            across="level of the network",
        ),
        table=DataTable.of(
            "Share of the capacity of the busiest link of each level",
            levels,
            {
                "Level": lambda level: level["level"],
                "Links used": keyed("num_links", number),
                "Shared": keyed("num_shared", number),
                **columns,
            },
        ),
    )


def _link_table(links: Sequence[Record], names: Sequence[str]) -> DataTable:
    return DataTable.of(
        "Links that several jobs use, the busiest first; alike ones once",
        links,
        {
            "Link": lambda link: link["link"],
            "Level": lambda link: link["level"],
            "Alike": keyed("num_alike", number),
            **_shares(names, ("share", "share_of_all")),
        },
        sortable=True,
        first=_MOST_LINKS,
    )


def _placement_table(choice: Record) -> DataTable:
    candidates, chosen, jobs = choice["candidates"], choice["chosen"], choice["jobs"]
    order = sorted(
        range(len(candidates)),
        key=lambda at: (at != chosen, candidates[at]["lost_devices"], at),
    )

    def slowdown(place: int) -> Callable[[Record], str | Cell]:
        return lambda candidate: cell(candidate["slowdown"][place], times)

    def step(place: int) -> Callable[[Record], str | Cell]:
        return lambda candidate: cell(
            candidate["places"][place]["step_s"], format_duration
        )

    def of_all(key: str) -> Callable[[Record], str | Cell]:
        return lambda candidate: " + ".join(place[key] for place in candidate["places"])

    several = len(jobs) > 1
    whole = "all that differ" if choice["is_complete"] else "not all that there are"
    if several and not choice["is_complete"]:
        whole = "found by moving jobs, not all that there are"
    names = " + ".join(f'"{job}"' for job in jobs)
    return DataTable.of(
        f"Where {names} {'hurt' if several else 'hurts'} least: "
        f"{plural(len(candidates), 'placement')}, {whole}",
        [candidates[at] for at in order],
        {
            "Placement": of_all("label"),
            "Devices": of_all("devices_in_words"),
            **{
                f"Step, {job}" if several else "Step": step(place)
                for place, job in enumerate(jobs)
            },
            **{
                f"Slow-down, {name}": slowdown(place)
                for place, name in enumerate(choice["beside"])
            },
            "Lost devices": keyed("lost_devices", devices_in_words),
        },
        sortable=True,
        shown=order.index(chosen),
        first=_MOST_PLACEMENTS,
    )


def _shift_figure(shifts: Record) -> FigureBlock:
    """Return what starts of a job make of those that it meets."""
    starts, names = shifts["starts"], shifts["beside"]

    def point(start: Record, place: int) -> CurvePoint:
        later, slowdown = format_duration(start["later_s"]), start["slowdown"][place]
        words = f"{names[place]}: {times(slowdown)}, {later} later"
        return CurvePoint(start["later_s"], 100.0 * (slowdown - 1.0), words)

    def slowdown(place: int) -> Callable[[Record], str | Cell]:
        return lambda start: cell(start["slowdown"][place], times)

    def repeated(start: Record) -> str:
        if start["orbit"] is None:
            return "nothing"
        orbit = shifts["orbits"][start["orbit"]]
        steps = " : ".join(f"{count:,}" for count in orbit["steps"])
        return f"{steps} in {format_duration(orbit['period_s'])}"

    def pushed(start: Record) -> str:
        if start["orbit"] is None:
            return _DRIFTS[start["is_settled"]]
        return str(shifts["orbits"][start["orbit"]]["pushed"])

    def number_of(start: Record) -> str:
        return "-" if start["orbit"] is None else str(start["orbit"] + 1)

    best = shifts["best"]
    return FigureBlock(
        name=f"shifts of {shifts['job']}",
        title=f'If "{shifts["job"]}" began later',
        about="Curves of what the other jobs add to each job's step over how much "
        "later one of them begins.",
        drawing=Curves(
            curves=tuple(
                DrawnCurve(name, tuple(point(start, place) for start in starts))
                for place, name in enumerate(names)
            ),
            across=f"start of {shifts['job']} after today's [s]",
            up="longer beside the others [% of the step alone]",
            round_ticks=True,
            marks=CurveMarks(upright=(starts[best]["later_s"],)),
        ),
        note=shifts["in_words"],
        table=DataTable.of(
            f'If "{shifts["job"]}" began later',
            starts,
            {
                "Later": keyed("later_s", format_duration),
                **{
                    f"Slow-down, {name}": slowdown(place)
                    for place, name in enumerate(names)
                },
                "Lost devices": keyed("lost_devices", devices_in_words),
                "Orbit": number_of,
                "Steps that repeat": repeated,
                "If pushed": pushed,
            },
            shown=best,
        ),
    )


_DRIFTS = {True: "drifts, mean known", False: "drifts"}
"""What jobs do that are not locked, by whether their mean is settled."""


def _plan_table(jobs: Sequence[Record]) -> DataTable:
    return DataTable.of(
        "Plans",
        jobs,
        {
            "Job": _name,
            "Plan": lambda job: plan_label(Plan.from_json(job["plan"])),
            "From": lambda job: "the file" if job["plan_is_given"] else "the search",
            "Devices": _ranges,
            "Begins": keyed("start_s", format_duration),
            "Planned step": keyed("planned_step_s", format_duration),
        },
    )


def _ranges(job: Record) -> str:
    ranges = job["devices"]
    more = [".."] if len(ranges) > _MOST_RANGES else []
    return ", ".join([*ranges[:_MOST_RANGES], *more])


def times(slowdown: float) -> str:
    """Write a slow-down for people: ``1.022x``."""
    return f"{slowdown:.3f}x"


def devices_in_words(lost: float) -> str:
    """Write devices whose throughput is lost, a part of one as well."""
    return f"{lost:,.1f}" if lost >= 10.0 else f"{lost:.2f}"


def headline(result: TenancyResult) -> str:
    """Say what the jobs do to each other at worst, and all together."""
    if not result.outcomes:
        return result.shortfall
    worst = result.worst
    if worst.slowdown < 1.0 + _NONE:
        return "No job slows another one down by as much as 0.1 %"
    longer = percent(worst.slowdown - 1.0)
    if not worst.is_known:
        low, high = (percent(outcome - 1.0) for outcome in worst.slowdown_range)
        longer = f"{low} to {high}"
    used = sum(len(outcome.devices) for outcome in result.outcomes)
    return (
        f'"{worst.tenant.name}" takes {longer} longer beside the others; all jobs '
        f"together lose {devices_in_words(result.lost)} of {plural(used, 'device')}"
    )


def slowdown_in_words(slowdown: float, low: float, high: float) -> str:
    """Write a slow-down, and its range where it has one."""
    if low == high:
        return times(slowdown)
    return f"{times(slowdown)} ({times(low)} to {times(high)})"


def shifts_in_words(shifts: Shifts) -> str:
    """Say what the best start of a job saves, and whether the jobs stay there."""
    best, worst = shifts.starts[shifts.best], shifts.starts[shifts.worst]
    today = shifts.starts[0]
    if not shifts.best and worst.lost - today.lost <= shifts.nearly:
        return f'When "{shifts.job}" begins makes no difference.'
    words = (
        f"Begun as today all lose {devices_in_words(today.lost)} devices, at worst "
        f"{devices_in_words(worst.lost)} ({format_duration(worst.offset)} later)"
    )
    if today.lost - best.lost <= shifts.nearly:
        return f"{words}: no start is better than today's. {_stays(shifts)}"
    return (
        f"{words}, at best {devices_in_words(best.lost)}: begun "
        f'{format_duration(best.offset)} later, "{shifts.job}" saves '
        f"{devices_in_words(shifts.saves)} devices. {_stays(shifts)}"
    )


def _stays(shifts: Shifts) -> str:
    """Say what becomes of the best start's phases."""
    orbit = shifts.starts[shifts.best].orbit
    if orbit is None:
        return "The phases drift there: nothing repeats."
    basin = shifts.basins[orbit]
    if basin.holds == "returns":
        return "The phases hold there by themselves: pushed, the jobs come back."
    where = "stay shifted" if basin.holds == "stays" else "drift or go elsewhere"
    return (
        "The phases do not hold there by themselves: pushed by "
        f"{percent(PUSH)} of the step, the jobs {where}, and lose "
        f"{devices_in_words(basin.pushed_lost)} devices."
    )
