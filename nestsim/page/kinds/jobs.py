"""The page of jobs that share a fabric: of what ``jobs.json`` holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from nestsim.document.figures import (
    BarGroups,
    BarsOfGroup,
    GroupedBar,
    HeatCell,
    HeatGroup,
    HeatMap,
    HeatRow,
)
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
)
from nestsim.report.figures.palette import DISTINCT
from nestsim.report.wording import number, percent, plan_label, seeds_in_words
from planner.step.plan import Plan
from topologies.units import format_duration

Job = Mapping[str, Any]
"""One of the jobs."""

_ALL = "all jobs"


def jobs_page(data: Mapping[str, Any]) -> Document:
    """Return the page of jobs that share a fabric.

    Parameters
    ----------
    data
        As ``jobs.json`` has it.
    """
    sections = (
        Section(name="jobs", title="Slow-downs", blocks=_jobs(data)),
        Section(name="links", title="Where they meet", blocks=_links(data)),
        Section(name="placements", title="Placements", blocks=_placements(data)),
        Section(name="plans", title="Plans", blocks=_plans(data)),
        Section(
            name="basis",
            title="What this rests on",
            blocks=(Sentences(sentences=tuple(data["notes"])),)
            if data["notes"]
            else (),
        ),
    )
    return Document(
        subject=data["scenario"],
        doing="jobs",
        headline=Headline(
            verdict=data["headline"],
            tone="plain" if data["jobs"] else "bad",
            key_figures=_key_figures(data),
        ),
        sections=tuple(one for one in sections if one.blocks),
    )


def _times(slowdown: float) -> str:
    return f"{slowdown:.3f}x"


def _key_figures(data: Mapping[str, Any]) -> tuple[KeyFigure, ...]:
    jobs: Sequence[Job] = data["jobs"]
    if not jobs:
        return ()
    worst = max(jobs, key=lambda job: float(job["slowdown"]))
    return (
        KeyFigure(
            name="Largest slow-down",
            value=_times(worst["slowdown"]),
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


def _jobs(data: Mapping[str, Any]) -> tuple[Block, ...]:
    jobs: Sequence[Job] = data["jobs"]
    if not jobs:
        return ()
    bars = tuple(
        GroupedBar(
            name=job["job"],
            length=100.0 * (job["slowdown"] - 1.0),
            words=_times(job["slowdown"]),
            paint=f"series-{place % len(DISTINCT)}",
            mark=_longer(job["slowdown_largest_of_seeds"]),
            tip=f"{job['job']}: {_times(job['slowdown'])}",
        )
        for place, job in enumerate(jobs)
    )
    seeds = data["ecmp_seeds"]
    said = f"Lines: the largest over {seeds_in_words(seeds)}." if seeds else ""
    return (
        FigureBlock(
            name="slow-downs",
            title=data["headline"],
            about="Bars of what the other jobs add to the step of each job, relative "
            "to its step alone.",
            drawing=BarGroups(
                groups=(BarsOfGroup("", bars),), across="longer beside the others [%]"
            ),
            table=DataTable(
                caption="What the others multiply each job's step time by",
                columns=("Job", "Slow-down"),
                rows=tuple(
                    (job["job"], Cell(_times(job["slowdown"]), job["slowdown"]))
                    for job in jobs
                ),
                numbers=("Slow-down",),
            ),
            note=said,
        ),
        _job_table(jobs, seeds),
    )


def _longer(slowdown: float | None) -> float | None:
    return None if slowdown is None else 100.0 * (slowdown - 1.0)


def _job_table(jobs: Sequence[Job], seeds: Sequence[int]) -> DataTable:
    names = ("least", "median", "largest") if seeds else ()
    columns = tuple(f"Seeds, {name}" for name in names)
    numbers = ("Devices", "Alone", "Together", "Slow-down", "tokens/s", *columns)
    return DataTable(
        caption="Each job alone on its devices, and beside the others",
        columns=("Job", *numbers),
        rows=tuple(
            (
                job["job"],
                Cell(number(job["num_devices"]), job["num_devices"]),
                Cell(format_duration(job["step_alone_s"]), job["step_alone_s"]),
                Cell(format_duration(job["step_together_s"]), job["step_together_s"]),
                Cell(job["slowdown_in_words"], job["slowdown"]),
                Cell(
                    number(job["tokens_per_s_together"]), job["tokens_per_s_together"]
                ),
                *(
                    Cell(_times(found), found)
                    for name in names
                    for found in (job[f"slowdown_{name}_of_seeds"],)
                ),
            )
            for job in jobs
        ),
        numbers=numbers,
        sortable=True,
    )


def _links(data: Mapping[str, Any]) -> tuple[Block, ...]:
    levels, jobs = data["levels"], [job["job"] for job in data["jobs"]]
    if not levels:
        return ()
    names = [*jobs, _ALL]
    shares = [[*one["busiest_share"], one["busiest_share_of_all"]] for one in levels]
    rows = tuple(
        HeatRow(
            name,
            tuple(
                HeatCell(
                    of_level[place],
                    percent(of_level[place]),
                    f"{name}, {level['level']}: {percent(of_level[place])}",
                )
                for level, of_level in zip(levels, shares, strict=True)
            ),
        )
        for place, name in enumerate(names)
    )
    figure = FigureBlock(
        name="levels",
        title="The busiest link of each level, and the share that each job takes",
        about="A map of jobs (rows) and levels of the network (columns): the share of "
        "its capacity that a job takes of the link that it keeps busiest.",
        drawing=HeatMap(
            groups=(HeatGroup("", rows),),
            columns=tuple(one["level"] for one in levels),
            across="level",
        ),
        table=_level_table(levels, names, shares),
    )
    if not data["shared_links"]:
        return (figure, Sentences(sentences=("No link carries two jobs.",)))
    return figure, _link_table(data["shared_links"], names)


def _level_table(
    levels: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    shares: Sequence[Sequence[float]],
) -> DataTable:
    numbers = ("Links used", "Shared", *_distinct(names))
    return DataTable(
        caption="Share of the capacity of the busiest link of each level",
        columns=("Level", *numbers),
        rows=tuple(
            (
                level["level"],
                Cell(number(level["num_links"]), level["num_links"]),
                Cell(number(level["num_shared"]), level["num_shared"]),
                *(Cell(percent(share), share) for share in of_level),
            )
            for level, of_level in zip(levels, shares, strict=True)
        ),
        numbers=numbers,
    )


def _link_table(links: Sequence[Mapping[str, Any]], names: Sequence[str]) -> DataTable:
    numbers = ("Alike", *_distinct(names))
    return DataTable(
        caption="Links that several jobs use, the busiest first; alike ones once",
        columns=("Link", "Level", *numbers),
        rows=tuple(
            (
                one["link"],
                one["level"],
                Cell(number(one["num_alike"]), one["num_alike"]),
                *(Cell(percent(share), share) for share in one["share"]),
                Cell(percent(one["share_of_all"]), one["share_of_all"]),
            )
            for one in links
        ),
        numbers=numbers,
        sortable=True,
    )


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of jobs as headings that no other column has."""
    return tuple(f"Share, {name}" for name in names)


def _placements(data: Mapping[str, Any]) -> tuple[Block, ...]:
    return tuple(_placement_table(choice) for choice in data["placements"])


def _placement_table(choice: Mapping[str, Any]) -> DataTable:
    jobs = tuple(f"Slow-down, {name}" for name in choice["beside"])
    numbers = ("Step", *jobs, "Lost devices")
    whole = "all that differ" if choice["is_complete"] else "a choice of them"
    return DataTable(
        caption=f"Placements of {choice['job']} that were tried, {whole}",
        columns=("Placement", "Devices", *numbers),
        rows=tuple(
            (
                one["label"],
                one["devices_in_words"],
                Cell(format_duration(one["step_s"]), one["step_s"]),
                *(Cell(_times(found), found) for found in one["slowdown"]),
                Cell(f"{one['lost_devices']:,.2f}", one["lost_devices"]),
            )
            for one in choice["candidates"]
        ),
        numbers=numbers,
        sortable=True,
        shown=choice["chosen"],
    )


def _plans(data: Mapping[str, Any]) -> tuple[Block, ...]:
    if not data["jobs"]:
        return ()
    return (
        DataTable(
            caption="What each job runs",
            columns=("Job", "Plan", "From", "Devices", "Begins", "Planned step"),
            rows=tuple(
                (
                    job["job"],
                    plan_label(Plan.from_json(job["plan"])),
                    "the file" if job["plan_is_given"] else "the search",
                    ", ".join(job["devices"][:_MOST_RANGES])
                    + (", .." if len(job["devices"]) > _MOST_RANGES else ""),
                    Cell(format_duration(job["start_s"]), job["start_s"]),
                    Cell(format_duration(job["planned_step_s"]), job["planned_step_s"]),
                )
                for job in data["jobs"]
            ),
            numbers=("Begins", "Planned step"),
        ),
    )


_MOST_RANGES = 6
"""Ranges of devices that are written out."""
