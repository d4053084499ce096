"""The report on a given plan: that of a run, without what a search has to say."""

import io
import math
from dataclasses import replace

from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from nestsim.document.terminal import print_document
from nestsim.evaluate.job import first_confirmed
from nestsim.evaluate.results import ReplayedResult
from nestsim.features.run.document import run_document
from nestsim.features.run.record import (
    reported_candidate,
    result_json,
    summary_rows,
)
from tests import failures
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    INTERLEAVED,
    Shape,
    make_job,
)


def given(shape: Shape) -> ReplayedResult:
    """Return a plan of this shape as if it had been given."""
    job = make_job(shape)
    given = replace(job.candidate, rank=0)
    return replace(job, kind="simulate", candidates=(given,), lower_bound=math.nan)


def shown(result: ReplayedResult) -> str:
    """Return what a pipe of 100 columns gets, without the padding of lines."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=100, color_system=None, force_terminal=False)
    print_document(run_document(result), console, verbose=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def test_a_given_plan_reads_as_approved(snapshot: SnapshotAssertion) -> None:
    assert shown(given(INTERLEAVED[0])) == snapshot


@failures.over("shape", FOUR_STAGES)
def test_json_says_what_a_run_of_the_same_plan_says(shape: Shape) -> None:
    result = given(shape)
    found, run = result_json(result), result_json(make_job(shape))
    assert found.pop("lower_bound_s") is None
    assert found.pop("optimality_gap") is None
    assert {key: run[key] for key in found} == found


def test_a_given_plan_has_no_rank_and_is_chosen_if_confirmed() -> None:
    result = given(FOUR_STAGES[0])
    assert "rank" not in shown(result)
    assert [row["planner_rank"] for row in summary_rows(result)] == [0]
    assert reported_candidate(result) is result.candidate
    confirmed = result.candidate.verdict.kind == "confirmed"
    assert (result.chosen == 0) is confirmed
    full = replace(
        result.candidate, verdict=replace(result.candidate.verdict, kind="infeasible")
    )
    assert first_confirmed([full]) is None
    refused = replace(result, candidates=(full,), chosen=None)
    assert reported_candidate(refused) is full
    assert shown(refused).startswith("NOT CONFIRMED (infeasible)")
