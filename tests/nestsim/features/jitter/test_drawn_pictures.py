"""Microbatches with pictures of their own: towers in replay, and in closed form."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.jitter.job import compiled, jitter_job, jittered_times
from nestsim.scenario.load import Scenario
from planner.step.instructions import BACKWARD, FORWARD
from tests.nestsim.features.jitter.jobs import TEXT, check_closed_form, small
from tests.nestsim.scenario.test_pictures import GEMMA
from topologies.errors import InputError

RUNS = 400
FANS = "cluster.network.levels[0].fan_out"
COUNTS = "images,count\n0,3\n4,3\n16,2\n"
IMAGES = (0, 0, 0, 4, 4, 4, 16, 16)
MEAN = 6  # 44 / 8, rounded


def seeing(folder: Path, more: dict[str, Any] | None = None) -> Scenario:
    """Return eight replicas of one microbatch of one sequence."""
    (folder / "config.json").write_text(json.dumps(GEMMA), encoding="utf-8")
    (folder / "pictures.csv").write_text(COUNTS)
    model = {
        "config": "config.json",
        "sequence_length": 1024,
        "image_counts": "pictures.csv",
    }
    document = Scenario.from_toml(TEXT).document()
    document |= {"model": model, "jitter": {"images": "drawn"}}
    scenario = Scenario.from_dict(document, folder / "scenario.toml")
    return scenario.replace({"training.global_batch_size": 8} | (more or {}))


def times_of(scenario: Scenario, runs: int = RUNS) -> np.ndarray[Any, Any]:
    evaluator = compiled(Evaluator.of(scenario))
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    return jittered_times(evaluator, priced, scenario.jitter, range(runs))


def plain_time(scenario: Scenario, images: int) -> float:
    """Return the step of sequences that have so many pictures, all of them."""
    file = scenario.path.parent / f"{images}.csv"
    file.write_text(f"images,count\n{images},1\n")
    alike = scenario.replace({"model.image_counts": file.name})
    evaluator = compiled(Evaluator.of(alike))
    return evaluator.replayed_time(
        price_table_plan(alike, evaluator.network, evaluator.workload)
    )


def test_replicas_wait_for_the_one_with_the_most_pictures(tmp_path: Path) -> None:
    """Of eight draws the largest, by their distribution: 0, 4 or 16 of 8 alike."""
    scenario = seeing(tmp_path)
    times = times_of(scenario)
    below = np.array([3 / 8, 6 / 8, 1.0]) ** 8
    chances = np.diff(below, prepend=0.0)
    steps = np.array([plain_time(scenario, n) for n in (MEAN, 16)])
    slope = (steps[1] - steps[0]) / (16 - MEAN)
    of_each = steps[0] + slope * (np.array([0, 4, 16]) - MEAN)
    mean = float(chances @ of_each)
    deviation = math.sqrt(float(chances @ (of_each - mean) ** 2))
    assert abs(times.mean() - mean) <= 4 * deviation / math.sqrt(RUNS)
    assert {round(t / 1e-9) for t in times} <= {round(t / 1e-9) for t in of_each}
    # The line is through two steps: one between them is near it.
    assert plain_time(scenario, 12) == pytest.approx(steps[0] + 6 * slope, rel=0.03)


def test_a_device_alone_takes_what_its_pictures_take(tmp_path: Path) -> None:
    scenario = seeing(tmp_path, {FANS: 1, "training.global_batch_size": 4})
    evaluator = compiled(Evaluator.of(scenario))
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    drawn = evaluator.packed(priced, scenario.jitter.jitter)
    assert drawn is not None
    scale = (np.array(IMAGES) - MEAN) / (16 - MEAN)
    assert drawn.sequences.tolist() == pytest.approx(scale.tolist())
    plain, most = (plain_time(scenario, images) for images in (MEAN, 16))
    sums = np.array([drawn.drawn(0, run, 1, 4).sum() for run in range(20)])
    expected = plain + (most - plain) / 4 * sums
    assert times_of(scenario, 20) == pytest.approx(expected, rel=1e-6)


def test_the_stage_of_the_tower_alone_sees_pictures(tmp_path: Path) -> None:
    values = {FANS: 2, "plan.pipeline_model_parallel_size": 2}
    scenario = seeing(tmp_path, values)
    evaluator = compiled(Evaluator.of(scenario))
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    drawn = evaluator.packed(priced, scenario.jitter.jitter)
    assert drawn is not None
    work = evaluator.lower(priced, memory=False)
    growth = [
        [drawn.growth(work, kind, stage) for kind in (FORWARD, BACKWARD)]
        for stage in range(2)
    ]
    assert min(growth[0]) > 0.1
    assert growth[1] == [0.0, 0.0]


def test_a_frozen_tower_varies_in_forward_passes_alone(tmp_path: Path) -> None:
    frozen = {"freeze_vision_model": True, "freeze_vision_projection": True}
    more = {f"model.{name}": value for name, value in frozen.items()}
    scenario = seeing(tmp_path, {FANS: 1, **more})
    evaluator = compiled(Evaluator.of(scenario))
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    drawn = evaluator.packed(priced, scenario.jitter.jitter)
    assert drawn is not None
    work = evaluator.lower(priced, memory=False)
    assert drawn.growth(work, FORWARD, 0) > 0.1
    # Tokens are put among words, which passes gradients on.
    assert abs(drawn.growth(work, BACKWARD, 0)) < 1e-3


def test_replicas_take_what_the_closed_form_says(tmp_path: Path) -> None:
    scenario = seeing(tmp_path, {"training.global_batch_size": 64})
    check_closed_form(scenario, RUNS)


def test_sequences_that_are_alike_have_none_to_draw(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"jitter\.images"):
        jitter_job(small({"jitter.images": "drawn"}), workers=1)
    with pytest.raises(InputError, match=r"jitter\.images"):
        seeing(tmp_path, {"jitter.documents": "drawn"})
