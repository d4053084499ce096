"""Pictures of sequences: distributions, files of counts, and what a tower is told."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.evaluate.job import plan_job, simulate_job
from nestsim.features.sweep.scenario_task import FILE_SETTINGS
from nestsim.scenario.load import Scenario
from nestsim.scenario.pictures import NUM_SEQUENCES, equally_likely, log_normal
from tests import failures
from topologies.errors import InputError

GEMMA = {
    "model_type": "gemma3",
    "mm_tokens_per_image": 4,
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 8000,
        "max_position_embeddings": 4096,
        "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1024,
        "image_size": 224,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 4,
        "patch_size": 14,
    },
}


def scenario(folder: Path, model: Mapping[str, object]) -> Scenario:
    """Return a job of a small Gemma 3 with pictures of 256 patches, 4 tokens each."""
    (folder / "config.json").write_text(json.dumps(GEMMA), encoding="utf-8")
    document = Scenario.from_file("scenarios/gpt3_1.3b_8_a100.toml").document()
    document["model"] = {"config": "config.json", "sequence_length": 1024, **model}
    return Scenario.from_dict(document, folder / "scenario.toml")


def test_settings_are_what_the_tower_is_told(tmp_path: Path) -> None:
    named = {
        "freeze_vision_model": "freeze_model",
        "freeze_vision_projection": "freeze_projection",
    }
    for setting, field in named.items():
        for value in (False, True):
            tower = scenario(tmp_path, {"images": 3, setting: value}).spec.vision
            assert tower is not None
            assert getattr(tower, field) == value
            assert tower.image_counts == ()
    for whole in (False, True):
        model = {"images": 3, "use_hf_vision_model": whole}
        tower = scenario(tmp_path, model).spec.vision
        assert tower is not None
        assert tower.tensor_parallel != whole


def test_a_file_counts_sequences_by_their_pictures(tmp_path: Path) -> None:
    text = "images,count\n0,1\n5,1\n3,0\n2,1\n5,4\n"
    (tmp_path / "pictures.csv").write_text(text)
    job = scenario(tmp_path, {"image_counts": "pictures.csv"})
    tower = job.spec.vision
    assert tower is not None
    assert tower.images == 4  # (0 + 2 + 5 x 5) / 7 = 3.9
    assert tower.image_counts == (0, 2, 5, 5, 5, 5, 5)
    assert tmp_path / "pictures.csv" in job.files()
    assert set(job.named_files()) <= set(FILE_SETTINGS)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 10**9)), min_size=1, max_size=30
    ).filter(lambda rows: any(count for _, count in rows))
)
def test_quantiles_stand_for_the_sample(rows: list[tuple[int, int]]) -> None:
    values, counts = zip(*rows, strict=True)
    some = np.array(equally_likely(values, counts))
    total = sum(counts)
    if total <= NUM_SEQUENCES:
        assert some.tolist() == sorted(np.repeat(values, counts).tolist())
        return
    for value in set(values):
        share = sum(c for v, c in rows if v <= value) / total
        assert abs((some <= value).mean() - share) <= 1 / NUM_SEQUENCES


@given(st.integers(1, 40), st.floats(0.01, 3.0), st.integers(0, 400))
def test_a_distribution_has_its_mean_and_keeps_its_room(
    mean: int, sigma: float, more: int
) -> None:
    """A step of its location changes some of the quantiles by 1 at once."""
    some = np.array(log_normal(mean, sigma, mean + more))
    assert (np.diff(some) >= 0).all()
    assert some.min() >= 0
    assert some.max() <= mean + more
    assert some.mean() == pytest.approx(mean, abs=0.02 * mean)


def test_a_wide_room_leaves_the_logarithms_as_wide() -> None:
    some = np.array(log_normal(1000, 0.5, 10**6))
    assert np.log(some).std() == pytest.approx(0.5, rel=0.01)


@failures.over(
    "model, where",
    [
        ({"images": 300}, "images"),
        ({"images_sigma": 0.5}, "images_sigma"),
        ({"image_counts": "none.csv"}, "image_counts"),
        ({"images": 2, "image_counts": "pictures.csv"}, "image_counts"),
        ({"image_counts": "words.csv"}, "image_counts"),
        ({"image_counts": "crowded.csv"}, "image_counts"),
        ({"image_counts": "empty.csv"}, "image_counts"),
        ({"freeze_vision_model": True}, "freeze_vision_model"),
        ({"use_hf_vision_model": True}, "use_hf_vision_model"),
    ],
)
def test_what_cannot_be_is_refused(
    model: dict[str, object], where: str, tmp_path: Path
) -> None:
    for name, row in (
        ("pictures", "2,1"),
        ("words", "0,7"),
        ("crowded", "257,1\n1,3"),
        ("empty", "1,0"),
    ):
        (tmp_path / f"{name}.csv").write_text(f"images,count\n{row}\n")
    with pytest.raises(InputError) as caught:
        scenario(tmp_path, model)
    assert f"{where}: " in str(caught.value)


def test_a_large_tower_has_a_stage_of_its_own(tmp_path: Path) -> None:
    """The first layer is cut off where it takes as long as all blocks together."""
    of_stage = {}
    for images in (1, 40):
        job = scenario(tmp_path, {"images": images}).replace(
            {
                "search.pipeline_model_parallel_sizes": [2],
                "search.virtual_pipeline_model_parallel_sizes": [1],
                "search.micro_batch_sizes": [1],
                "search.tensor_model_parallel_sizes": [1],
            }
        )
        best = plan_job(job).candidates[0].priced.plan
        of_stage[images] = best.stages[0].chunks
    assert of_stage[1][0][1] > 0
    assert of_stage[40] == ((0, 0),)


def test_a_frozen_tower_is_held_in_replay_as_in_the_plan(tmp_path: Path) -> None:
    """And takes less of a device than one that is trained, on the first stage."""
    peaks = []
    for frozen in (True, False):
        job = scenario(tmp_path, {"images": 8, "freeze_vision_model": frozen})
        plan = {
            "pipeline_model_parallel_size": 2,
            "micro_batch_size": 1,
            "zero_stage": 1,
        }
        document = {**job.document(), "plan": plan}
        done = simulate_job(Scenario.from_dict(document, job.path)).candidate
        peaks.append(done.replay.memory[0].peak)
        planned = done.priced.stages[0].memory
        assert peaks[-1] == pytest.approx(sum(planned.values()), rel=1e-9)
        assert ("frozen weights" in planned) == frozen
    assert peaks[0] < peaks[1]
