"""Mist's formulas against the answers of its public implementation."""

import numpy as np
import pytest

from planner.rivals.mist.cluster import PCIE_FACTORS, Mesh
from planner.rivals.mist.stage_costs import MistMemory, Role, StageTimes, Strategies
from tests.planner.rivals.mist import golden
from tests.planner.rivals.mist.golden import L4, MB, GoldenStage, needs_golden

pytestmark = needs_golden

ROLES = {
    "mid": Role(is_first=False, is_last=False),
    "pre": Role(is_first=True, is_last=False),
    "post": Role(is_first=False, is_last=True),
    "both": Role(is_first=True, is_last=True),
}
"""Suffix of the golden columns -> ends of the chain."""


def stages() -> list[GoldenStage]:
    return [GoldenStage.of(row) for row in golden.rows("mist_golden_stage_costs.csv")]


def test_interference_is_mists_in_all_cases():
    rows = golden.rows("mist_golden_interference.csv")
    assert len(rows) == 40
    parts = [
        np.array([float(row[name]) for row in rows])
        for name in ("C", "G2G", "C2G", "G2C")
    ]
    expected = [float(row["out"]) for row in rows]
    assert PCIE_FACTORS.time(*parts) == pytest.approx(expected, rel=1e-12)


def test_all_stage_times_are_mists():
    cases = stages()
    assert len(cases) == 300
    for case in cases:
        times = StageTimes(
            profile=case.profile,
            rates=L4,
            mesh=case.mesh,
            num_steps=case.number("G"),
            strategies=case.strategies,
        )
        assert times.replicas == case.replicas
        for suffix, role in ROLES.items():
            steady, delta = times.times(
                case.number("layers"), case.number("ckpt"), role
            )
            expected = float(case.row[f"stable_{suffix}"])
            assert steady[0] == pytest.approx(expected, rel=1e-6)
            # Differences of times are known to the accuracy of those.
            assert delta[0] == pytest.approx(
                float(case.row[f"delta_{suffix}"]), rel=1e-6, abs=1e-6 * expected
            )


def test_all_stage_memory_is_mists_to_the_byte():
    compared = 0
    for case in stages():
        memory = MistMemory(
            profile=case.profile, replicas=case.replicas, strategies=case.strategies
        )
        for suffix, role in ROLES.items():
            if not case.row[f"mem_fwd_{suffix}"]:
                continue  # The last stage has no microbatch waiting.
            peaks = memory.peaks(
                case.number("layers"),
                case.number("ckpt"),
                case.number("p_saved_microbatches"),
                role,
            )
            assert peaks.forward[0] / MB == float(case.row[f"mem_fwd_{suffix}"])
            assert peaks.backward[0] / MB == float(case.row[f"mem_bwd_{suffix}"])
            compared += 1
        factor = memory.factor(is_pipelined=False, role=ROLES["mid"])
        assert factor[0] == pytest.approx(float(case.row["memory_factor"]), rel=1e-15)
    assert compared == 2 * 300 + 2 * 121


def test_many_strategies_at_once_are_each_by_itself():
    told = np.array([[0, 0, 1, 0.0, 0.0, 0.5, 0.25], [1, 1, 1, 0.5, 0.75, 1.0, 0.0]])

    def times(rows):
        return StageTimes(
            profile=golden.profile(2),
            rates=L4,
            mesh=Mesh(1, 4),
            num_steps=8,
            strategies=Strategies.of_rows(rows),
        ).times(6, 2, ROLES["both"])

    together = np.array(times(told))
    alone = np.concatenate([np.array(times(row[None])) for row in told], axis=1)
    assert (together == alone).all()


def test_the_base_case_of_the_readme():
    profile, plain = (
        golden.profile(8),
        Strategies.of_rows(np.array([[0, 0, 1, *[0] * 4]])),
    )
    steps, mesh, role = 2, Mesh(1, 2), ROLES["both"]
    steady, delta = StageTimes(
        profile=profile, rates=L4, mesh=mesh, num_steps=steps, strategies=plain
    ).times(24, 24, role)
    assert steps * steady[0] + delta[0] == pytest.approx(10.659405, rel=1e-7)
    peaks = MistMemory(profile=profile, replicas=2, strategies=plain).peaks(
        24, 24, 0, role
    )
    assert peaks.forward[0] / MB == 19255.25
    assert round(peaks.backward[0] / MB, 3) == 19503.125
