"""Files of documents' lengths: what they say in place of a sample, or what is wrong."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.layers.documents import document_share
from estimators.models.document_lengths import MOST_LENGTHS, histogram, read_lengths
from estimators.models.spec import TransformerSpec
from nestsim.features.sweep.scenario_task import FILE_SETTINGS
from nestsim.scenario.load import Scenario
from tests import failures
from topologies.errors import InputError

SAMPLE = [900, 300, 70_000, 900, 900, 12]
FILE = "length,count\n12,1\n300,1\n900,2\n70000,1\n900,1\n5,0\n"
NAMED = {"name": "llama3-8b", "sequence_length": 4096}
SPELLED_OUT = {
    "family": "llama",
    "num_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 32_000,
    "sequence_length": 4096,
}


def scenario(folder: Path, model: Mapping[str, object]) -> Scenario:
    """Return a job of a model whose documents are measured."""
    document = Scenario.from_file("scenarios/gpt3_1.3b_8_a100.toml").document()
    document["model"] = {**model, "documents": "measured"}
    return Scenario.from_dict(document, folder / "scenario.toml")


@failures.over("model", [NAMED, SPELLED_OUT])
def test_a_file_says_what_a_sample_says(
    model: Mapping[str, object], tmp_path: Path
) -> None:
    (tmp_path / "lengths.csv").write_text(FILE)
    by_file = scenario(tmp_path, {**model, "document_lengths": "lengths.csv"})
    inline = scenario(tmp_path, {**model, "document_length_samples": SAMPLE})
    assert by_file.content() == inline.content()
    assert by_file.spec.document_length_counts == (1, 1, 3, 1)
    assert by_file.files()[1:] == (tmp_path / "lengths.csv",)
    assert set(by_file.named_files()) <= set(FILE_SETTINGS)


@given(st.lists(st.integers(1, 6000), min_size=1, max_size=40))
def test_a_histogram_leaves_what_the_mean_over_its_sample_leaves(
    sample: list[int],
) -> None:
    spec = TransformerSpec(
        family="llama",
        num_layers=1,
        hidden_size=64,
        num_attention_heads=1,
        vocab_size=100,
        sequence_length=512,
        documents="measured",
        document_length_samples=tuple(sample),
    )
    assert sum(spec.document_length_counts) == len(sample)
    # Pairs of each document, one by one: not from the histogram.
    places = np.arange(1, 512)
    longer = np.maximum(np.array(sample)[:, None] - places, 0).sum(axis=0)
    pairs = 512 + ((512 - places) * longer).sum() / sum(sample)
    assert document_share(spec) == pytest.approx(pairs / (512 * 513 / 2), rel=1e-12)


def test_lengths_need_as_many_counts() -> None:
    assert histogram([7, 3, 7], [1, 0, 4]) == ((7,), (5,))
    with pytest.raises(InputError, match="not as many"):
        histogram([7, 3], [1])


@failures.over(
    ["text", "where", "got"],
    [
        ("", "header", "none"),
        ("tokens,count\n3,1\n", "header", "tokens, count"),
        ("length,count\n3,1\n3.5,1\n", "line 3: length", "3.5"),
        ("length,count\n0,1\n", "line 2: length", "0"),
        ("length,count\n3,-1\n", "line 2: count", "-1"),
        ("length,count\n3\n", "line 2: count", "nothing"),
        ("length,count\n3,1" + "0" * 400 + "\n", "line 2: count", "1" + "0" * 400),
        ('length,count\n3,"1\n', "line", None),
        ("length,count\n3,0\n", "count", "0 in all lines"),
        (
            "length,count\n" + "".join(f"{i},1\n" for i in range(1, MOST_LENGTHS + 2)),
            "length",
            f"{MOST_LENGTHS + 1:,} lengths",
        ),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(
    text: str, where: str, got: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    assert caught.value.where.startswith(f"{path}: {where}")
    assert got is None or caught.value.got == got


@failures.over(
    ["settings", "problem"],
    [
        ({"document_lengths": "none.csv"}, "no such file"),
        (
            {"document_lengths": "lengths.csv", "document_length_samples": [3]},
            "is a file of what document_length_samples says, too",
        ),
    ],
)
def test_a_file_that_is_missing_or_one_too_many_is_refused(
    settings: Mapping[str, object], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "lengths.csv").write_text(FILE)
    with pytest.raises(InputError) as caught:
        scenario(tmp_path, {**NAMED, **settings})
    assert caught.value.problem == problem
    assert "model.document_lengths" in str(caught.value)
