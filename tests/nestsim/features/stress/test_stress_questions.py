"""The inverse question and the robust choice, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.features.stress.evaluator import ConditionEvaluator
from nestsim.features.stress.results import least_mean, least_worst, regrets
from nestsim.features.stress.thresholds import InverseRequest, bracket, narrow, worsened
from tests.nestsim.features.stress.clusters import small


@given(
    knee=st.floats(1.0, 900.0), slope=st.floats(0.1, 3.0), keep=st.floats(0.05, 0.99)
)
def test_the_bracket_holds_the_threshold_of_a_falling_share(
    knee: float, slope: float, keep: float
) -> None:
    def share(worsening: float) -> float:
        return min(1.0, (worsening / knee) ** -slope)

    threshold = knee * keep ** (-1.0 / slope)
    found = bracket(share, keep)
    assert found.is_monotone
    if found.lost is None:
        assert threshold >= 1024.0 * (1.0 - 1e-9)
        return
    assert found.kept is not None
    assert found.kept <= threshold * (1.0 + 1e-9)
    assert threshold <= found.lost * (1.0 + 1e-9)
    assert found.lost <= 1.01 * found.kept * (1.0 + 1e-9)


def test_a_share_that_is_never_kept_has_no_bracket() -> None:
    found = bracket(lambda worsening: 0.5, 0.9)
    assert found.kept is None
    assert found.lost == 1.0


def test_a_share_that_rises_again_is_told() -> None:
    found = bracket(lambda worsening: 1.0 if worsening in (1.0, 4.0) else 0.95, 0.9)
    assert not found.is_monotone
    assert found.kept == 1024.0
    assert found.lost is None


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> ConditionEvaluator:
    return ConditionEvaluator.of(small(tmp_path_factory.mktemp("questions")))


@pytest.mark.parametrize("quantity", ["oversubscription", "bandwidth"])
def test_the_bracket_holds_the_threshold_of_a_scan(
    evaluator: ConditionEvaluator, quantity: str
) -> None:
    asked = InverseRequest("leaf", quantity, 0.8)
    row = narrow(evaluator, "manual", asked, "kept")
    assert row["is_monotone"]
    plan = evaluator.make(worsened(evaluator, asked, 1.0), "manual").plan
    assert plan is not None
    scan = np.geomspace(1.0, 64.0, 60)
    times = np.array(
        [evaluator.run(worsened(evaluator, asked, x), plan).simulated for x in scan]
    )
    kept = times[0] / times >= asked.keep
    assert kept[0]
    assert not kept[-1]
    last, first = scan[kept][-1], scan[~kept][0]
    assert row["kept"] <= first
    assert row["lost"] >= last
    assert row["lost"] <= 1.01 * row["kept"]
    low, high = row["bandwidths"]
    assert low / high == pytest.approx(row["lost"] / row["kept"])


def test_re_made_plans_start_with_the_plan_that_is_kept(
    evaluator: ConditionEvaluator,
) -> None:
    asked = InverseRequest("leaf", "oversubscription", 0.8)
    kept, fresh = (narrow(evaluator, "nest", asked, way) for way in ("kept", "re-made"))
    assert kept["base_s"] == fresh["base_s"]
    assert dict(kept["tried"])[1.0] == dict(fresh["tried"])[1.0] == 1.0


tables = st.integers(1, 6).flatmap(
    lambda plans: st.integers(1, 6).flatmap(
        lambda conditions: st.lists(
            st.lists(st.integers(1, 9), min_size=conditions, max_size=conditions),
            min_size=plans,
            max_size=plans,
        )
    )
)


@given(tables)
def test_the_robust_choices_are_those_of_brute_force(table: list[list[int]]) -> None:
    times = np.array(table, dtype=np.float64)
    best = [min(column) for column in zip(*table, strict=True)]
    expected = [
        [time / low - 1.0 for time, low in zip(row, best, strict=True)] for row in table
    ]
    np.testing.assert_allclose(regrets(times), expected, atol=1e-12)
    worst = [max(row) for row in expected]
    mean = [sum(row) / len(row) for row in expected]
    choice = least_worst(times)
    assert choice.worst == pytest.approx(min(worst))
    assert worst[choice.plan] == pytest.approx(min(worst))
    assert expected[choice.plan][choice.worst_condition] == pytest.approx(min(worst))
    assert all(one > min(worst) + 1e-10 for one in worst[: choice.plan])
    assert least_mean(times).mean == pytest.approx(min(mean))
