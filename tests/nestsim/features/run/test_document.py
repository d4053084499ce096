"""The text report at several widths: complete, without colour codes, as approved."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from nestsim.document.parts import Document
from nestsim.document.terminal import MORE, print_document
from nestsim.evaluate.uncertainty import Band
from nestsim.features.run.document import plan_document, run_document
from nestsim.features.topology.document import topology_document
from planner.search.replayed.replays import OTHER_COPIES, OTHER_LAYOUTS
from planner.work import TIME_LIMIT, WORK_LIMIT, Spent
from tests import failures
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    INTERLEAVED,
    ONE_STAGE,
    SIXTEEN_STAGES,
    Shape,
    cluster,
    make_job,
    nothing_fits,
    nothing_found_yet,
    plans_of,
)
from topologies import load_accelerator

MIXED = (Shape(p=8, d=4, t=2, m=4, recompute="full", zero=3, pace=1.3), *FOUR_STAGES)
DEEP = (replace(SIXTEEN_STAGES[0], m=16, t=4),)
MANY_CHUNKS = (replace(INTERLEAVED[0], v=8),)


def shown(document: Document, width: int = 100, *, verbose: bool = True) -> str:
    """Return what a pipe of this width gets."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, force_terminal=False)
    print_document(document, console, verbose=verbose)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def test_a_user_reads_forty_lines_and_what_else_there_is() -> None:
    document = run_document(make_job(*FOUR_STAGES))
    text = shown(document, 120, verbose=False)
    assert len(text.splitlines()) <= 48
    details = [section.title for section in document.sections if section.detail]
    assert MORE in text
    assert all(title.lower() in " ".join(text.split()) for title in details)
    assert all(title not in text for title in details)
    whole = shown(document, 120)
    assert MORE not in whole
    assert all(title in whole for title in details)


@pytest.mark.parametrize("width", [80, 120])
def test_a_confirmed_job_reads_as_approved(
    snapshot: SnapshotAssertion, width: int
) -> None:
    result = make_job(*FOUR_STAGES)
    assert shown(run_document(result), width) == snapshot


def test_the_chunks_of_a_stage_read_as_approved(snapshot: SnapshotAssertion) -> None:
    text = shown(run_document(make_job(*INTERLEAVED)), 120)
    shows = ("schedule   ", "Stage ", "block", "vpp2")
    rows = (line for line in text.splitlines() if any(word in line for word in shows))
    assert "\n".join(rows) == snapshot


def test_plans_read_as_approved(snapshot: SnapshotAssertion) -> None:
    result = plans_of(make_job(*FOUR_STAGES))
    assert shown(plan_document(result)) == snapshot


def test_a_network_reads_as_approved(snapshot: SnapshotAssertion) -> None:
    accelerator = load_accelerator("h100-sxm")
    network = cluster(64)
    text = shown(topology_document(network, accelerator))
    assert text == snapshot


def test_nothing_fits_reads_as_approved(snapshot: SnapshotAssertion) -> None:
    assert shown(run_document(nothing_fits())) == snapshot
    empty = replace(plans_of(make_job(*FOUR_STAGES)), candidates=(), shortfall="why")
    assert "why" in shown(plan_document(empty))


def test_a_search_stopped_without_a_plan_reads_as_approved(
    snapshot: SnapshotAssertion,
) -> None:
    text = shown(run_document(nothing_found_yet()))
    assert text == snapshot
    assert "NO PLAN" not in text


def test_a_stopped_search_says_how_to_go_on_and_whether_it_repeats() -> None:
    job = make_job(*FOUR_STAGES)
    for spent, repeats in (
        (Spent(work=5, stopped_by=WORK_LIMIT), True),
        (Spent(work=5, stopped_by=TIME_LIMIT, time_limit=60.0), False),
        (Spent(work=5, time_limit=60.0), False),
        (Spent(work=5), True),
    ):
        result = replace(job, spent=spent, covers_space=not spent.is_stopped)
        plans = replace(plans_of(job), spent=spent)
        texts = (
            shown(run_document(result)),
            shown(plan_document(plans)),
        )
        for text in texts:
            said = " ".join(text.split())
            assert "work 5 units" in said
            assert ("may differ from run to run" in said) == (not repeats)
            assert (f"stopped by the {spent.stopped_by}" in said) == spent.is_stopped


def test_layouts_beyond_what_is_proven_are_counted_beside_the_proof() -> None:
    job = replace(make_job(*FOUR_STAGES), objective="replayed")
    stopped = Spent(work=5, stopped_by=WORK_LIMIT)
    for spent, proof in ((Spent(work=5), "Proven: no other"), (stopped, "Not proven:")):
        for count, words in ((0, ""), (1, "1 layout"), (12, "12 layouts")):
            statistics = {**job.search_statistics, OTHER_LAYOUTS: count}
            result = replace(job, spent=spent, search_statistics=statistics)
            text = " ".join(shown(run_document(result)).split())
            assert proof in text
            beside = f"faster. Tried beyond it: {words} of blocks."
            assert (beside in text) == (count > 0)
            assert ("Tried beyond" in text) == (count > 0)


def test_all_that_is_tried_beyond_the_proof_is_in_one_sentence() -> None:
    job = replace(make_job(*FOUR_STAGES), objective="replayed")
    counts = {OTHER_LAYOUTS: 2, OTHER_COPIES: 1}
    result = replace(job, search_statistics={**job.search_statistics, **counts})
    text = " ".join(shown(run_document(result)).split())
    words = "2 layouts of blocks and 1 plan with second copies of weights."
    assert f"Tried beyond it: {words}" in text


def test_a_tiny_gap_is_told_as_the_least_that_is_said() -> None:
    job = replace(make_job(*FOUR_STAGES), objective="replayed")
    time = job.candidates[0].simulated.iteration_time
    result = replace(job, lower_bound=time * (1.0 - 1e-6))
    text = " ".join(shown(run_document(result)).split())
    assert "replays more than 0.1 % faster" in text


def test_nothing_is_said_to_fit_only_where_that_is_proven() -> None:
    result = replace(nothing_fits(), covers_space=False)
    text = shown(run_document(result))
    assert text.startswith("NO PLAN FOUND")


@failures.over("width", [80, 100, 120])
@failures.over("shapes", [FOUR_STAGES, ONE_STAGE, MIXED, DEEP, MANY_CHUNKS])
def test_nothing_is_cut_off_and_no_line_is_too_long(
    shapes: tuple[Shape, ...], width: int
) -> None:
    result = make_job(*shapes)
    for text in (
        shown(run_document(result), width),
        shown(plan_document(plans_of(result)), width),
        shown(topology_document(result.network), width),
    ):
        assert "\x1b" not in text
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_every_number_of_the_candidates_stands_whole(width: int) -> None:
    result = make_job(*MIXED)
    text = shown(run_document(result), width)
    for candidate in result.candidates:
        assert f"{1e3 * candidate.simulated.iteration_time:.4g} ms" in text
        assert f"{1e3 * candidate.planned.iteration_time:.4g} ms" in text
        assert candidate.verdict.kind in text


def test_the_verdict_is_said_in_words() -> None:
    confirmed, refused = make_job(*FOUR_STAGES), make_job(*ONE_STAGE)
    assert shown(run_document(confirmed)).startswith("CONFIRMED")
    text = shown(run_document(refused))
    assert text.startswith("NOT CONFIRMED (infeasible)")
    assert "The replay confirms no plan" in text


def test_brackets_in_names_are_not_markup() -> None:
    result = make_job(*FOUR_STAGES, name="run [bold red] [/] [64 x h100]")
    text = shown(run_document(result), 120)
    assert "run [bold red] [/] [64 x h100]" in text


def test_only_software_that_was_measured_has_a_band() -> None:
    job = make_job(*FOUR_STAGES)
    said = "8 of 10 jobs like this one"
    assert said not in shown(run_document(job))
    with_band = replace(job, band=Band(0.5, 2.0))
    assert said in shown(run_document(with_band))


def test_a_model_without_a_causal_mask_has_one_mfu() -> None:
    result = make_job(*FOUR_STAGES)
    (first, *others) = result.candidates
    one = replace(first, simulated=replace(first.simulated, mfu_causal=0.25, mfu=0.25))
    text = shown(
        run_document(replace(result, candidates=(one, *others))),
        120,
    )
    assert "MFU 25.0 %, " in text
    assert "MFU, causal" not in text
