"""Some of the plans that `python -m tests.frameworks` compares, where packages are."""

from collections import Counter

import pytest

from tests.frameworks.comparing import compare, draw_plans
from tests.frameworks.environments import (
    Environment,
    UnavailableError,
    built_python,
    read_environments,
)

PLANS = 30

PACKAGED = [
    environment
    for environment in read_environments().values()
    if not environment.checkout
]


@pytest.mark.slow
@pytest.mark.parametrize("environment", PACKAGED, ids=lambda item: item.name)
def test_verdicts_are_those_of_the_framework(environment: Environment) -> None:
    try:
        python = built_python(environment, build=False)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    plans = list(draw_plans(environment, PLANS, 3, Counter()))
    compared = compare(environment, python, plans, "")
    differing = [
        (row.drawn.tables["plan"], row.drawn.refusals, row.reason)
        for row in compared
        if row.differs
    ]
    assert not differing
    accepted = sum(row.kind == "accepted by both" for row in compared)
    assert 0.3 * PLANS < accepted < 0.8 * PLANS
