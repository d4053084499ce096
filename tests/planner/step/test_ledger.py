"""What ZeRO stages send and hold against what their papers say."""

import ast
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.kernels import tables
from planner.step.ledger import KERNEL_LEDGER, KERNEL_TERMS, LEDGER
from tests import failures

ROOT = Path(__file__).parents[3]

STAGES = range(4)

ELEMENTS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
"""What a rank of a large ring sends, over the elements of the tensor."""

IN_PASSES = {"forward", "backward", "gradient"}


def elements(zero_stage, num_microbatches=1):
    """Return what a rank sends in a step of all replicas in one group, over ``P``."""
    return sum(
        ELEMENTS[one.operation] * (num_microbatches if one.moment in IN_PASSES else 1)
        for one in LEDGER[zero_stage].sent
        if one.group != "across"
    )


@failures.over(("zero_stage", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_a_step_sends_the_volume_of_the_zero_paper(zero_stage, volume):
    """Rajbhandari et al., 2020, section 7: twice the parameters, half more with P_p."""
    assert elements(zero_stage) == volume


@given(st.integers(1, 1000))
def test_what_goes_layer_by_layer_is_sent_again_in_every_microbatch(m):
    sent = [elements(zero_stage, m) for zero_stage in STAGES]
    assert sent == [2, 2, m + 1, 3 * m]


@failures.over(
    ("zero_stage", "sharded"),
    [
        (0, set()),
        (1, {"optimizer"}),
        (2, {"optimizer", "gradients"}),
        (3, {"optimizer", "gradients", "weights"}),
    ],
)
def test_a_stage_shards_what_the_zero_paper_says(zero_stage, sharded):
    """Rajbhandari et al., 2020, section 5: P_os, P_os+g and P_os+g+p."""
    assert LEDGER[zero_stage].sharded == sharded


@failures.over("zero_stage", [1, 2, 3])
def test_ranks_of_one_shard_reduce_it_once_a_step(zero_stage):
    """Zhao et al., 2023, 3.2.2: a reduce-scatter inside, an all-reduce across."""
    across = [one for one in LEDGER[zero_stage].sent if one.group == "across"]
    assert [(one.operation, one.tensor) for one in across] == [
        ("all_reduce", "gradients")
    ]
    assert across[0].moment == "before optimizer"
    assert across[0].is_divided
    others = [one for one in LEDGER[zero_stage].sent if one not in across]
    assert {one.group for one in others} == {"inside"}
    assert not any(one.is_divided for one in others)


@failures.over("zero_stage", STAGES)
def test_every_gradient_is_reduced_and_every_weight_comes_back(zero_stage):
    stage = LEDGER[zero_stage]
    reduced = [
        one for one in stage.sent if one.tensor == "gradients" and one.group != "across"
    ]
    assert len(reduced) == 1
    gathered = [one.moment for one in stage.sent if one.tensor == "weights"]
    whole_weights = "weights" not in stage.sharded
    is_updated_in_parts = "optimizer" in stage.sharded
    assert gathered.count("after optimizer") == (whole_weights and is_updated_in_parts)
    assert (
        gathered.count("forward") == gathered.count("backward") == (not whole_weights)
    )
    # Whole layers are beside the shards of what is sent layer by layer.
    assert (stage.whole_gradients > 0) == (reduced[0].moment == "gradient")
    assert (stage.whole_weights > 0) == ("forward" in gathered)


@failures.over("zero_stage", STAGES)
def test_a_step_sends_in_the_order_of_its_moments(zero_stage):
    order = ["forward", "backward", "gradient", "before optimizer", "after optimizer"]
    moments = [order.index(one.moment) for one in LEDGER[zero_stage].sent]
    assert moments == sorted(moments)
    assert LEDGER[zero_stage].sent_at(*order) == LEDGER[zero_stage].sent


def test_the_kernels_count_the_same():
    names = (
        "reduced_whole",
        "reduced_once",
        "reduced_across",
        "gathered_once",
        "reduced_each",
        "gathered_each",
        "shards_optimizer",
        "shards_gradients",
        "shards_weights",
        "whole_gradients",
        "whole_weights",
    )
    assert sorted(names) == sorted(tables.ZeroTerms._fields)
    assert [[getattr(terms, name) for name in names] for terms in KERNEL_TERMS] == [
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0],
        [0, 0, 1, 0, 1, 2, 1, 1, 1, 1, 2],
    ]
    for number, terms in enumerate(KERNEL_TERMS):
        assert tables.zero_terms(KERNEL_LEDGER, number) == terms
    assert KERNEL_LEDGER.dtype == np.float64
    assert KERNEL_LEDGER.flags.c_contiguous


def branches(tree):
    """Yield comparisons of a stage's number with another one than 0."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        names = {getattr(node.left, "id", ""), getattr(node.left, "attr", "")}
        if not names & {"zero", "zero_stage", "zero_stages"}:
            continue
        numbers = [
            one.value
            for part in node.comparators
            for one in ast.walk(part)
            if isinstance(one, ast.Constant)
        ]
        if any(numbers):
            yield ast.unparse(node)


def readers():
    """Return the files that price, bound, place or list what a step sends."""
    files = [
        *(ROOT / "planner").rglob("*.py"),
        *(ROOT / "nestsim").glob("*.py"),
        *(ROOT / "nestsim" / "placing").glob("*.py"),
    ]
    # The solver of NEST's published instances keeps to their own rules.
    return [
        file
        for file in files
        if "nest_artifact" not in file.parts and not file.stem.startswith("nest_")
    ]


def test_no_other_file_knows_the_stages_by_their_numbers():
    assert len(readers()) > 50
    found = {str(file): [*branches(ast.parse(file.read_text()))] for file in readers()}
    assert {file: those for file, those in found.items() if those} == {}


@failures.over(
    "text", ["zero >= 2", "stage.zero_stage == 3", "one.zero_stage in {1, 2}"]
)
def test_a_branch_on_the_number_of_a_stage_is_found(text):
    assert [*branches(ast.parse(text))] == [text]
    assert not [*branches(ast.parse("zero == 0"))]
