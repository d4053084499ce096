"""What advice says: today, one change at a time, changes together, all of them."""

from collections.abc import Iterator, Sequence

from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FactList,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    Snippet,
)
from nestsim.document.wording import (
    mfu_words,
    percent,
    plan_label,
    plural,
    words_of_value,
)
from nestsim.features.advise.job import Advice, AdviceResult, OtherSetting
from topologies.units import format_duration, format_size

MOST_DIFFS = 3
"""Advice whose diffs the terminal shows; a folder has all."""


def advice_document(result: AdviceResult) -> Document:
    """Return what the advice says."""
    return Document(
        subject=result.scenario.name,
        doing="advise",
        headline=_headline(result),
        sections=tuple(_sections(result)),
    )


def _headline(result: AdviceResult) -> Headline:
    today = result.today.candidates[0]
    sentences = [
        f"Today: {format_duration(result.time)} per iteration, "
        f"{today.simulated.tokens_per_second:,.0f} tokens/s, MFU "
        f"{mfu_words(today.simulated)}, with {plan_label(today.priced.plan)}."
    ]
    if today.verdict.kind != "confirmed":
        sentences.append(today.verdict.reason)
    worthy = [advice for advice in result.advice if not result.is_noise(advice)]
    if worthy:
        first = worthy[0]
        sentences.append(
            f"{plural(len(first.changes), 'change')} together "
            f"({words_of(first.changes)}) would take {format_duration(first.time)}: "
            f"{percent(result.gain(first.time))} less."
            if len(first.changes) > 1
            else f"One change ({words_of(first.changes)}) would take "
            f"{format_duration(first.time)}: {percent(result.gain(first.time))} less."
        )
    sentences += _everything(result)
    gain = max((result.gain(advice.time) for advice in worthy), default=0.0)
    return Headline(
        verdict=f"{percent(gain)} LESS TIME" if worthy else "NOTHING TO GAIN",
        tone="good" if worthy else "plain",
        sentences=tuple(sentences),
        key_figures=(
            KeyFigure("today", format_duration(result.time)),
            *(
                [KeyFigure("with advice", format_duration(worthy[0].time))]
                if worthy
                else []
            ),
        ),
    )


def _everything(result: AdviceResult) -> Iterator[str]:
    """Say what there is if the whole plan may change."""
    search = result.best
    if search is None or search.chosen is None:
        return
    best = search.candidates[search.chosen]
    time = best.simulated.iteration_time
    gain = result.gain(time)
    words = f"{percent(gain)} less" if gain > 0 else f"{percent(-gain)} more"
    within = "what its [search] leaves"
    if "search" not in result.scenario.document():
        within = "what the framework launches"
    beside = " with the other settings of the first advice" if result.advice else ""
    yield (
        f"If the whole plan may change{beside}, the fastest of {within} takes "
        f"{format_duration(time)}, {words}: {plan_label(best.priced.plan)}."
    )


def _sections(result: AdviceResult) -> Iterator[Section]:
    singles = [advice for advice in result.advice if len(advice.changes) == 1]
    together = [advice for advice in result.advice if len(advice.changes) > 1]
    if singles:
        yield Section(
            "singles",
            "One change at a time",
            (_table(result, singles, "changes one by one"),),
        )
    if together:
        yield Section(
            "together",
            "Changes together",
            (_table(result, together, "changes in twos and threes"),),
        )
    for number, advice in enumerate(_shown(result), start=1):
        if advice.diff or advice.gaps:
            yield Section(
                f"diff-{number}",
                f"How: {words_of(advice.changes)}",
                (
                    Snippet(
                        name=advice.file, text=advice.diff, note=" ".join(advice.gaps)
                    ),
                ),
            )
    tried = ", ".join(
        f"{count} {name}" for name, count in result.tried.items() if count
    )
    yield Section(
        "basis",
        "What this rests on",
        (
            FactList({"tried": tried}),
            Sentences(
                (
                    "Each time is a replay of the whole step. In 8 of 10 public pairs "
                    "of one job under two settings, the predicted ratio of times is "
                    f"off by less than {percent(result.error)}: smaller gains are "
                    "noise, until they are measured.",
                )
            ),
        ),
    )


def _shown(result: AdviceResult) -> Sequence[Advice]:
    """Return the best advice of one change and of several."""
    groups = (
        [advice for advice in result.advice if len(advice.changes) > 1],
        [advice for advice in result.advice if len(advice.changes) == 1],
    )
    best = [group[0] for group in groups if group]
    return sorted(best, key=lambda advice: advice.time)[:MOST_DIFFS]


def _table(result: AdviceResult, advice: Sequence[Advice], caption: str) -> DataTable:
    """Return what changes gain, best first."""
    today = result.today.candidates[0].priced
    peak = max(stage.peak_memory for stage in today.stages)

    def gain_of(trial: Advice) -> Cell:
        gain = result.gain(trial.time)
        noise = ", noise" if result.is_noise(trial) else ""
        return Cell(f"{percent(gain)}{noise}", gain)

    return DataTable.of(
        caption,
        advice,
        {
            "Change": lambda trial: words_of(trial.changes),
            "Iteration": lambda trial: Cell(format_duration(trial.time), trial.time),
            "Saves": gain_of,
            "80 % band": lambda trial: "{:.1f} to {:.1f} %".format(
                *(100 * end for end in result.band(trial))
            ),
            "Memory": lambda trial: Cell(
                f"{'+' if trial.peak >= peak else '-'}"
                f"{format_size(abs(trial.peak - peak))}",
                trial.peak - peak,
            ),
            "Needs": lambda trial: trial.restart,
        },
    )


def words_of(changes: Sequence[OtherSetting]) -> str:
    """Write changes as settings: ``recompute = none, micro_batch_size = 2``."""
    return ", ".join(
        f"{path.partition('.')[2]} = {words_of_value(value)}"
        for change in changes
        for path, value in change.values().items()
    )
