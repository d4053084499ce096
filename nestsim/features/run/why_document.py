"""What a step waits for, where time goes, and the user's plan beside it, in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nestsim.document.parts import FactList, Section
from nestsim.document.wording import (
    percent,
    plan_label,
    signed_percent,
    without_rounding,
    words_of_value,
)
from nestsim.evaluate.results import StepCause
from nestsim.features.run.causes import words_of_term
from nestsim.features.run.statistics import step_causes
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate, JobResult, ReplayedResult

_LEAST_SHOWN = 0.005
"""Share of the step below which the terminal has a cause with ``--verbose`` only."""

_LEAST_REASON = 0.05
"""Share of a difference of two steps below which a cause is no reason for it."""

_SAME = 5e-4
"""Relative difference of times below which they are called the same."""

_MOST_REASONS = 3
"""Causes that are named as reasons."""


def why_sections(result: "JobResult[Any]") -> Iterator[Section]:
    """Yield what a step waits for; nothing where that is not known."""
    if result.why:
        facts = FactList({cause.cause: cause_words(cause) for cause in result.why})
        yield Section("why", "Why not faster", (facts,))


def cause_words(cause: StepCause) -> str:
    """Write how long a step waits for something, and what would shorten it."""
    words = f"{format_duration(cause.seconds)} ({percent(cause.share)})"
    what_if = cause.what_if
    if what_if is None:
        return words
    settings = ", ".join(
        f"{path.rpartition('.')[2]} = {words_of_value(value)}"
        for path, value in what_if.settings.items()
    )
    change = what_if.change + (f" ({settings})" if settings else "")
    if not what_if.fits:
        return f"{words}; {change} does not fit"
    error = ", below model error" if what_if.below_model_error else ""
    return f"{words}; {change}: {signed_percent(-what_if.gain)}{error}"


def given_sentence(result: "ReplayedResult", best: "Candidate") -> str:
    """Say how much faster a plan is than the scenario's, and why; empty without."""
    given = result.given
    if given is None:
        return ""
    ratio = given.iteration_time / best.simulated.iteration_time
    fits = {"infeasible": ", which does not fit", "doubtful": ", which may not fit"}
    time = format_duration(given.iteration_time)
    yours = f"yours ({plan_label(given.plan)}: {time}{fits.get(given.verdict, '')})"
    if given.plan == best.priced.plan:
        return f"It is {yours}."
    total = given.iteration_time - best.simulated.iteration_time
    if abs(ratio - 1.0) < _SAME:
        return f"As fast as {yours}."
    sign, spends, how = (
        (1.0, "less", f"{ratio:.3g} x faster")
        if total > 0.0
        else (-1.0, "more", f"{1.0 / ratio:.3g} x slower")
    )
    terms = [
        f"{_duration(sign * seconds)} of {words_of_term(term)}"
        for term, seconds in given.longer.items()
        if sign * seconds > _LEAST_REASON * abs(total)
    ][:_MOST_REASONS]
    because = f", because it spends {spends}: {', '.join(terms)}" if terms else ""
    return f"{how} than {yours}{because}."


def time_facts(candidate: "Candidate") -> FactList:
    """Return where the time of a device goes, by what its passes do and wait for."""
    causes, total = step_causes(candidate), candidate.replay.iteration_time
    exact = {name: without_rounding(time, total) for name, time in causes.items()}
    rows = {
        words_of_term(name): f"{_duration(seconds)} ({percent(seconds / total)})"
        for name, seconds in exact.items()
        if seconds
    }
    shown = (
        words_of_term(name)
        for name, seconds in exact.items()
        if abs(seconds) >= _LEAST_SHOWN * total
    )
    return FactList(rows, brief=tuple(shown))


def _duration(seconds: float) -> str:
    return "-" * (seconds < 0.0) + format_duration(abs(seconds))
