"""The page of a plan that was replayed: of ``nestsim run`` and ``nestsim simulate``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nestsim.document.parts import (
    Block,
    Document,
    FactList,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    Snippet,
    TimeWindow,
)
from nestsim.document.vega.drawing import rounded
from nestsim.page.candidates import candidates_table
from nestsim.page.causes import gap_figure, planned_figure
from nestsim.page.devices import devices_figure
from nestsim.page.links import link_figures
from nestsim.page.memory import memory_bars, memory_lines
from nestsim.page.tables import data_table
from nestsim.page.timeline import timeline_figure
from nestsim.report.assumptions import assumptions_rows
from nestsim.report.figures.data import time_unit, timeline_windows
from nestsim.report.json import reported_candidate
from nestsim.report.network import tiers_table
from nestsim.report.statistics import hottest_links, iteration_causes, level_uses
from nestsim.report.tables import (
    causes_table,
    levels_table,
    links_table,
    throughput_table,
)
from nestsim.report.text import (
    band_sentence,
    broken_rules_facts,
    broken_rules_title,
    memory_sentence,
    plan_facts,
    proof_sentence,
    reason_sentence,
    search_facts,
    time_facts,
    unproven_words,
)
from nestsim.report.wording import (
    engine_sentence,
    gap_sentence,
    mfu_words,
    no_plan_words,
    number,
    percent,
    plural,
    size_of_limit,
    verdict_words,
)
from topologies.network import Network
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate, ReplayedResult
    from nestsim.simulator.system import Replay


def result_page(
    result: "ReplayedResult",
    rows: Sequence[Mapping[str, Any]] = (),
    snippets: Sequence[Snippet] = (),
) -> Document:
    """Return the page of a replayed plan.

    Parameters
    ----------
    result
        What was found; of its candidates only the one that is reported is read.
    rows
        All replayed plans, fastest first: ``candidates`` of ``result.json``.
    snippets
        Configurations of the plan to copy.
    """
    best = reported_candidate(result)
    if best is None:
        return Document(
            subject=result.scenario_name,
            doing=result.kind,
            headline=_no_plan(result),
            sections=(*_basis(result), *_search(result, None)),
        )
    return Document(
        subject=result.scenario_name,
        doing=result.kind,
        headline=_headline(result, best),
        sections=(
            _plan(result, best),
            _step(result, best),
            _gap(result, best),
            *_candidates(rows, best),
            *_launch(snippets),
            *_basis(result),
            _details(result, best),
            *_search(result, best),
        ),
    )


def _no_plan(result: "ReplayedResult") -> Headline:
    return Headline(
        verdict=no_plan_words(result.spent, covers_space=result.covers_space),
        tone="bad",
        sentences=(result.shortfall,),
    )


def _headline(result: "ReplayedResult", best: "Candidate") -> Headline:
    kind, simulated, planned = best.verdict.kind, best.simulated, best.planned
    sentences = [
        reason_sentence(best),
        memory_sentence(best),
        band_sentence(result, best),
        proof_sentence(result, best),
    ]
    if result.chosen is None and result.kind == "run":
        sentences.append("No replayed plan was confirmed; the fastest one is shown.")
    return Headline(
        verdict=verdict_words(kind, result.assumptions.preset)
        + unproven_words(result, best),
        tone="good" if kind == "confirmed" else "bad",
        sentences=tuple(filter(None, sentences)),
        key_figures=(
            KeyFigure(
                name="Throughput",
                value=f"{number(simulated.tokens_per_second)} tokens/s",
                note=f"planned {number(planned.tokens_per_second)}; on "
                f"{plural(result.network.num_devices, 'device')}",
            ),
            KeyFigure(
                name="Time per iteration",
                value=format_duration(simulated.iteration_time),
                note=f"planned {format_duration(planned.iteration_time)}",
            ),
            KeyFigure(
                name="MFU",
                value=percent(simulated.mfu),
                note=mfu_words(simulated)
                .removeprefix(percent(simulated.mfu))
                .strip(" ()"),
            ),
            KeyFigure(
                name="Peak memory",
                value=size_of_limit(simulated.peak_memory, result.device_memory),
                note=f"{size_of_limit(simulated.peak_memory, result.usable_memory)} "
                "usable",
            ),
        ),
    )


def _plan(result: "ReplayedResult", best: "Candidate") -> Section:
    network = result.network
    blocks: list[Block] = [
        FactList(rows=plan_facts(best.priced, network, best.rank)),
        devices_figure(best, network, result.layer_names),
        data_table(
            tiers_table(network),
            f"The network: {network.kind}, from the inside out",
        ),
    ]
    if best.broken_rules:
        blocks.insert(1, FactList(rows=broken_rules_facts(best)))
        blocks.insert(1, Sentences(sentences=(f"{broken_rules_title(result)}:",)))
    return Section(name="plan", title="Plan", blocks=tuple(blocks))


def _step(result: "ReplayedResult", best: "Candidate") -> Section:
    memory = result.device_memory, result.usable_memory
    links = link_figures(best, result.network)
    silence = () if links else (Sentences(sentences=("No link carried anything.",)),)
    return Section(
        name="step",
        title="One step",
        blocks=(
            step_window(best.replay),
            timeline_figure(best),
            memory_lines(best, *memory),
            *links,
            *silence,
            memory_bars(best, *memory),
        ),
    )


def step_window(replay: "Replay") -> TimeWindow:
    """Return the windows of a step that its figures can show."""
    scale, unit = time_unit(replay.iteration_time)
    return TimeWindow(
        total=rounded(replay.iteration_time / scale),
        unit=unit,
        choices=tuple(
            (one.title, rounded(one.start / scale), rounded(one.end / scale))
            for one in timeline_windows(replay)
        ),
    )


def _gap(result: "ReplayedResult", best: "Candidate") -> Section:
    sentence = gap_sentence(best.verdict.gap, best.planned.iteration_time)
    gap = gap_figure(best)
    same = "The replay takes as long as planned: nothing differs beyond rounding."
    words = tuple(filter(None, (sentence, "" if gap else same)))
    return Section(
        name="gap",
        title="Planned beside simulated",
        blocks=(
            *([Sentences(sentences=words)] if words else []),
            data_table(
                throughput_table(best, result.device_memory),
                "Throughput and memory",
            ),
            planned_figure(best),
            *([gap] if gap else []),
        ),
    )


def _candidates(
    rows: Sequence[Mapping[str, Any]], best: "Candidate"
) -> tuple[Section, ...]:
    if not rows:
        return ()
    table = candidates_table(rows, best.rank)
    return (Section(name="candidates", title="Candidates", blocks=(table,)),)


def _launch(snippets: Sequence[Snippet]) -> tuple[Section, ...]:
    if not snippets:
        return ()
    return (Section(name="launch", title="Launch it", blocks=tuple(snippets)),)


def _basis(result: "ReplayedResult") -> tuple[Section, ...]:
    rows = FactList(rows=assumptions_rows(result.assumptions))
    return (Section(name="assumptions", title="What this rests on", blocks=(rows,)),)


def _details(result: "ReplayedResult", best: "Candidate") -> Section:
    plan, replay = best.priced.plan, best.replay
    causes = iteration_causes(replay, plan.schedule, plan.num_microbatches)
    return Section(
        name="details",
        title="Details of the replay",
        folded=True,
        blocks=(
            FactList(rows=time_facts(best)),
            data_table(
                causes_table(causes, replay.iteration_time),
                "Simulated iteration, by cause",
            ),
            *_traffic(replay, result.network),
            Sentences(sentences=(*replay.notes, engine_sentence(best))),
        ),
    )


def _traffic(replay: "Replay", network: Network) -> list[Block]:
    uses = level_uses(replay, network)
    if not uses:
        return []
    links = hottest_links(replay, network)
    return [
        data_table(levels_table(uses), "Links by level, over the iteration"),
        data_table(links_table(links), "Hottest links"),
    ]


def _search(result: "ReplayedResult", best: "Candidate | None") -> tuple[Section, ...]:
    if result.kind != "run":
        return ()
    rows = FactList(rows=search_facts(result, best))
    return (Section(name="search", title="Search", folded=True, blocks=(rows,)),)
