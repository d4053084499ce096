"""Ways to cut the chain: those of each rule, listed from all compositions."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import (
    ACCOUNTED,
    BALANCED,
    EARLY,
    ENDS,
    EVEN,
    LATE,
    LAYOUT,
    SPLIT_CHECKS,
)
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.search.replayed.layouts import (
    MOST_SPARED,
    block_counts,
    layouts,
    spared_ends,
)
from tests import failures
from tests.planner.search.test_launchable import chain, made

SMALL = [
    (blocks, p, v)
    for blocks, p, v in product(range(1, 9), range(1, 6), range(1, 4))
    if p * v <= blocks + 2 and (p > 1 or v == 1)
]


def compositions(total, parts):
    """Yield every way to share blocks out, none to some virtual stages included."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def candidates(blocks, p, v, *, empty_ends):
    """List the ways in which all but the ends of several chunks have a block."""
    found = []
    for counts in compositions(blocks, p * v):
        inner = counts[1:-1] if empty_ends and v > 1 else counts
        if all(inner):
            found.append(counts)
    return found


def counted(counts, first, last):
    """Count some of the ends of the chain as blocks."""
    parts = list(counts)
    parts[0] += first
    parts[-1] += last
    return parts


ENDS_COUNTED = list(product((0, 1), repeat=2))


def are_equal(counts):
    return len(set(counts)) == 1


def is_accounted(counts):
    return any(are_equal(counted(counts, *ends)) for ends in ENDS_COUNTED)


def spares_at_its_ends(counts):
    """Tell whether stages between are alike and the ends have somewhat less."""
    return any(
        are_equal(counted(counts, first, last))
        for first, last in product(range(MOST_SPARED + 1), repeat=2)
    )


@failures.over("empty_ends", [False, True])
@failures.over(("blocks", "p", "v"), SMALL)
def test_equal_and_accounted_splits_are_all_there_are(blocks, p, v, empty_ends):
    every = candidates(blocks, p, v, empty_ends=empty_ends)

    def found(*splits):
        return set(block_counts(blocks, p, v, splits, empty_ends=empty_ends))

    assert found(EVEN) == {one for one in every if are_equal(one)}
    assert found(EVEN, ACCOUNTED) == {one for one in every if is_accounted(one)}
    assert found(ACCOUNTED) <= found(EVEN, ACCOUNTED)


@failures.over(("blocks", "p", "v"), SMALL)
def test_other_ends_are_all_there_are_with_one_chunk(blocks, p, v):
    """Up to `MOST_SPARED` blocks less; more than between is not tried."""
    found = set(block_counts(blocks, p, v, (EVEN, ENDS)))
    every = candidates(blocks, p, v, empty_ends=False)
    expected = {
        one for one in every if are_equal(one) or (v == 1 and spares_at_its_ends(one))
    }
    assert found == expected


@failures.over("empty_ends", [False, True])
@failures.over(("blocks", "p", "v"), SMALL)
def test_balanced_splits_are_one_for_each_way_to_count_the_ends(
    blocks, p, v, empty_ends
):
    every = candidates(blocks, p, v, empty_ends=empty_ends)
    found = block_counts(blocks, p, v, (BALANCED,), empty_ends=empty_ends)
    assert set(found) <= set(every)
    if p * v == 1:
        assert found == ((blocks,),)
        return
    for ends in ENDS_COUNTED:
        level = {one for one in every if spread(counted(one, *ends)) <= 1}
        # There is one exactly where there can be one.
        assert bool(level & set(found)) == bool(level)
    assert len(found) <= len(ENDS_COUNTED)
    assert all(
        any(spread(counted(one, *ends)) <= 1 for ends in ENDS_COUNTED) for one in found
    )


def spread(counts):
    return max(counts) - min(counts)


@failures.over(("blocks", "p", "v"), SMALL)
def test_rounds_are_alike(blocks, p, v):
    for kind in (EARLY, LATE):
        found = block_counts(blocks, p, v, (kind,))
        if blocks % v or blocks // v < p:
            assert found == ()
            continue
        (counts,) = found
        rounds = [counts[start : start + p] for start in range(0, p * v, p)]
        assert len(set(rounds)) == 1
        assert spread(rounds[0]) <= 1
        assert list(rounds[0]) == sorted(rounds[0], reverse=kind == EARLY)
        assert sum(counts) == blocks
        assert min(counts) >= 1


@failures.over(
    ("kind", "blocks", "p", "v", "made"),
    [
        # What DeepSpeed 0.16.9's and 0.19.8's partition_balanced(..) returned.
        (EARLY, 10, 4, 1, ((3, 3, 2, 2),)),
        (EARLY, 14, 4, 1, ((4, 4, 3, 3),)),
        (EARLY, 22, 8, 1, ((3, 3, 3, 3, 3, 3, 2, 2),)),
        # What InternEvo 0.5.2's partition_uniform(..) returned, or refused.
        (LATE, 10, 4, 1, ((2, 2, 3, 3),)),
        (LATE, 14, 4, 1, ((3, 3, 4, 4),)),
        (LATE, 20, 4, 2, ((2, 2, 3, 3) * 2,)),
        (LATE, 22, 4, 2, ((2, 3, 3, 3) * 2,)),
        (LATE, 7, 2, 2, ()),
        (LATE, 6, 4, 2, ()),
    ],
)
def test_what_is_left_over_goes_where_the_framework_put_it(kind, blocks, p, v, made):
    assert block_counts(blocks, p, v, (kind,)) == made


@failures.over(("blocks", "p", "v"), SMALL)
def test_layouts_spare_the_ends_and_share_the_rest_evenly(blocks, p, v):
    found = block_counts(blocks, p, v, (LAYOUT,), empty_ends=True)
    every = set(candidates(blocks, p, v, empty_ends=True))
    assert set(found) <= every
    most = 1 if v > 1 else MOST_SPARED
    for counts in found:
        ways = [
            counted(counts, *ends)
            for ends in product(range(most + 1 if p * v > 1 else 1), repeat=2)
        ]
        assert any(spread(parts) <= 1 and is_late(parts, p) for parts in ways)
    # What an even or an accounted split gives is a layout, too.
    assert set(block_counts(blocks, p, v, (EVEN, ACCOUNTED), empty_ends=True)) <= set(
        found
    )


def is_late(parts, p):
    """Tell whether every stage has about as many of what is over, late ones first."""
    least = min(parts)
    over = [sum(parts[stage::p]) - least * (len(parts) // p) for stage in range(p)]
    inner = over[:-1]
    return spread(over) <= 1 and inner == sorted(inner) and over[-1] <= min(over)


def plan_of(counts, p, v):
    """Return a plan of a pipeline with these blocks."""
    blocks = sum(counts)
    (bounds,) = layouts((counts,), 1, 2).tolist()
    spans = [(a, b - 1) for a, b in pairwise(bounds)]
    plan = made(pp=p, v=v, batch=p, counts=list(counts), bounds=spans)
    facts = LaunchFacts(
        is_block=chain(blocks),
        num_attention_heads=8,
        num_query_groups=8,
        num_moe_experts=0,
        global_batch_size=p,
        num_devices=p,
    )
    return plan, facts


@given(
    blocks=st.integers(1, 130),
    p=st.integers(2, 16),
    v=st.integers(1, 9),
    preset=st.sampled_from(sorted(FRAMEWORKS)),
)
def test_every_layout_keeps_the_framework_s_rule(blocks, p, v, preset):
    rules = FRAMEWORKS[preset].rules
    found = block_counts(blocks, p, v, rules.splits, empty_ends=rules.empty_ends)
    assert len(found) == len(set(found))
    for counts in found:
        assert len(counts) == p * v
        assert sum(counts) == blocks
        plan, facts = plan_of(counts, p, v)
        broken = {one.rule for one in broken_rules(plan, rules, facts)}
        assert "split" not in broken, counts


@given(st.data())
def test_layers_follow_one_another_from_the_first_to_the_last(data):
    blocks, p, v = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 6)), 1
    if p > 1:
        v = data.draw(st.integers(1, 4))
    kinds = data.draw(st.sets(st.sampled_from(sorted(SPLIT_CHECKS)), min_size=1))
    counts = block_counts(blocks, p, v, tuple(sorted(kinds)), empty_ends=True)
    if not counts:
        return
    before, after = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    cuts = layouts(counts, before, after).tolist()
    for row, held in zip(cuts, counts, strict=True):
        assert row[0] == 0
        assert row[-1] == before + blocks + after
        sizes = [b - a for a, b in pairwise(row)]
        sizes[0] -= before
        sizes[-1] -= after
        assert tuple(sizes) == held


def test_llama_3_405b_goes_over_sixteen_stages_of_eight_chunks():
    """126 blocks, the embedding and the loss make 128 virtual stages of one."""
    rules = FRAMEWORKS["megatron-core"].rules
    counts = (0, *(1,) * 126, 0)
    assert counts in block_counts(126, 16, 8, rules.splits, empty_ends=True)
    assert counts in block_counts(126, 16, 8, (EVEN, ACCOUNTED), empty_ends=True)
    assert block_counts(126, 16, 8, (EVEN,), empty_ends=True) == ()
    # Meta's own: sixteen stages, the first and the last one block short.
    short = (7, *(8,) * 14, 7)
    assert short in block_counts(126, 16, 1, rules.splits, empty_ends=True)


def test_equal_ones_come_first():
    assert block_counts(8, 4, 1, (EVEN, LAYOUT))[0] == (2, 2, 2, 2)
    assert block_counts(12, 3, 2, (EVEN, LAYOUT))[0] == (2,) * 6


@failures.over(("p", "v"), [(4, 1), (4, 2), (2, 3)])
def test_the_last_virtual_stage_is_spared_a_block_for_each_layer_of_prediction(p, v):
    each, spared = 9, 1 if v > 1 else MOST_SPARED
    for trailing in (1, 2):
        fewer = spared + trailing
        blocks = each * p * v - fewer
        short = (*(each,) * (p * v - 1), each - fewer)
        plain = block_counts(blocks, p, v, (LAYOUT,))
        found = block_counts(blocks, p, v, (LAYOUT,), trailing=trailing)
        assert short in found
        # With one chunk, what is left over may make up for a block.
        assert v == 1 or short not in plain
        assert set(plain) <= set(found)
        # Where there is no layout only the blocks are dealt out.
        assert block_counts(24, p, v, (EVEN,), trailing=trailing) == block_counts(
            24, p, v, (EVEN,)
        )


@pytest.mark.parametrize("trailing", [0, 1, 3])
def test_ends_spare_every_pair_of_numbers_the_smallest_in_all_first(trailing):
    pairs = list(spared_ends(4, trailing=trailing))
    firsts, lasts = range(MOST_SPARED + 1), range(MOST_SPARED + trailing + 1)
    assert sorted(pairs) == [(first, last) for first in firsts for last in lasts]
    totals = [first + last for first, last in pairs]
    assert totals == sorted(totals)
    assert list(spared_ends(1, trailing=trailing)) == [(0, 0)]
