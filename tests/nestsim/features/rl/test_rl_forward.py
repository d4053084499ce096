"""Forward passes alone: against their closed form, and against the whole step."""

import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.rl.forward import closed_form_time, forward_only, forward_time
from nestsim.simulator.work import PipelineWork
from tests.nestsim.features.rl.small import small


def lowered(
    pp: int, more: dict[str, object] | None = None
) -> tuple[Evaluator, PipelineWork, float]:
    scenario = small(
        {
            "training.global_batch_size": 32,
            "plan.pipeline_model_parallel_size": pp,
            **(more or {}),
        }
    )
    evaluator = Evaluator.of(scenario)
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    work = evaluator.lower(priced, memory=False)
    transfer = max(stage.transfer_time for stage in priced.stages) / 2.0
    return evaluator, work, transfer


def test_without_a_pipeline_passes_follow_each_other() -> None:
    evaluator, work, _ = lowered(1)
    alone = forward_only(work, 4)
    time = forward_time(evaluator.network, alone, evaluator.simulation)
    assert time == pytest.approx(4 * float(work.forward_time.sum()), rel=1e-9)


@pytest.mark.parametrize("pp", [2, 4])
def test_a_pipeline_takes_the_closed_form(pp: int) -> None:
    """All stages once, and the slowest for each further microbatch: a little less, as
    transfers go on beside the passes of the slowest stage."""
    evaluator, work, transfer = lowered(pp)
    alone = forward_only(work, 16)
    time = forward_time(evaluator.network, alone, evaluator.simulation)
    closed = closed_form_time(alone, transfer)
    slowest = float(alone.forward_time.max())
    assert 16 * slowest < time
    assert time == pytest.approx(closed, rel=2e-2)


def test_chunks_of_a_stage_count_together() -> None:
    chunks = {"plan.virtual_pipeline_model_parallel_size": 2}
    _, plain, _ = lowered(2)
    _, interleaved, _ = lowered(2, chunks)
    alone = [forward_only(work, 8) for work in (plain, interleaved)]
    assert alone[1].num_chunks == 1
    assert alone[1].forward_time.sum() == pytest.approx(alone[0].forward_time.sum())


def test_forward_passes_are_a_third_of_a_step_without_its_end() -> None:
    """A backward pass has twice the products, and a step ends with its collectives."""
    evaluator, work, _ = lowered(1)
    alone = forward_only(work, work.num_microbatches)
    forward = forward_time(evaluator.network, alone, evaluator.simulation)
    whole = evaluator.replay(work, memory=False)
    assert forward < whole.pipeline_time / 2.5
    assert forward > whole.pipeline_time / 3.5
