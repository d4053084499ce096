"""Bounds are below every schedule, and as high as they can be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.operators.schedules import (
    ENGINES,
    engine_bound,
    heads,
    lower_bound,
    tails,
)
from tests.estimators.operators.cases import Case, cases, graph_of, shortest

TRIPLES = st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=6)


def subsets(items):
    for mask in range(1, 1 << len(items)):
        yield [item for place, item in enumerate(items) if mask >> place & 1]


@settings(max_examples=80)
@given(TRIPLES)
def test_jacksons_schedule_is_as_long_as_the_best_bound_of_all_subsets(triples):
    best = max(
        (
            min(r for r, _, _ in some)
            + sum(p for _, p, _ in some)
            + min(q for _, _, q in some)
            for some in subsets(triples)
        ),
        default=0,
    )
    assert engine_bound([tuple(map(float, t)) for t in triples]) == best


@settings(max_examples=60)
@given(cases(most_tasks=5))
def test_no_schedule_is_shorter_than_the_bound(case):
    assert lower_bound(*case) <= shortest(case)


@settings(max_examples=60)
@given(cases(most_tasks=9))
def test_the_bound_covers_the_critical_path_and_the_load_of_each_engine(case):
    graph, p = case
    first = heads(graph.predecessors, p, range(len(p)))
    last = tails(graph, p)
    path = max(r + d + q for r, d, q in zip(first, p, last, strict=True))
    loads = [
        sum(d for d, task in zip(p, graph.tasks, strict=True) if task.engine == engine)
        for engine in ENGINES
    ]
    assert lower_bound(graph, p) >= max(path, *loads)


def test_head_load_and_tail_together_exceed_path_and_loads():
    """Two products between a norm and an addition: 1 + (2 + 2) + 1."""
    graph = graph_of(
        ("vector", "tensor", "tensor", "vector"), (0, 1), (0, 2), (1, 3), (2, 3)
    )
    case = Case(graph, (1.0, 2.0, 2.0, 1.0))
    assert lower_bound(*case) == shortest(case) == 6.0
