"""Some of the plans that `python -m tests.frameworks` compares, where packages are."""

from collections import Counter

import pytest

from tests.frameworks.comparing import compare, draw_plans
from tests.frameworks.environments import (
    Environment,
    UnavailableError,
    built_python,
    find_checkout,
    read_environments,
)

PLANS = 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", read_environments().values(), ids=lambda item: item.name
)
def test_verdicts_are_those_of_the_framework(environment: Environment) -> None:
    try:
        python = built_python(environment, build=False)
        checkout = find_checkout(environment)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    plans = list(draw_plans(environment, PLANS, 3, Counter()))
    compared = compare(environment, python, plans, checkout)
    differing = [
        (row.drawn.tables["plan"], row.drawn.refusals, row.reason)
        for row in compared
        if row.differs
    ]
    assert not differing
    assert any(row.kind == "accepted by both" for row in compared)
    assert any(row.kind == "refused by both" for row in compared)
