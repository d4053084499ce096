"""Tracing, the graph as data, and the cache on disk."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.models.library import load_model, model_names
from estimators.tracing import trace as tracing
from estimators.tracing.graph import LAYOUTS, LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.user_cache import cache_folder, write_sealed

SPEC = replace(load_model("gpt3-125m"), num_layers=3)

USE_CACHE_ONLY = """
import sys
from pathlib import Path
from estimators.layers.work import Degrees
from estimators.models.huggingface import load_huggingface
from estimators.models.library import load_model
from estimators.layers.sharding import layer_work
from estimators.tracing.trace import trace_model
from topologies.user_cache import cache_folder, write_sealed
graph = trace_model(load_model("gpt3-125m"), cache_dir=Path(sys.argv[1]))
layer_work(graph, 1, Degrees(tp=2), 2)
assert "torch" not in sys.modules, "torch was imported"
print(graph.num_parameters)
"""


@pytest.fixture
def untraceable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every attempt to trace fail."""

    def refuse(spec: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(tracing, "_trace", refuse)


@failures.over("name", model_names())
def test_every_named_model_is_a_chain_of_few_distinct_layers(name: str) -> None:
    spec = load_model(name)
    graph = trace_model(spec)
    blocks = [f"block {i}" for i in range(spec.num_layers)]
    ends = [] if spec.family == "bert" else ["final norm"]
    ends += [f"mtp {depth}" for depth in range(spec.mtp_num_layers)]
    assert graph.names == ("embedding", *blocks, *ends, "head")
    kinds = list(spec.block_kinds.values())
    assert len(graph.layers) == 2 + len(kinds) + len(ends)
    pattern = spec.block_pattern or kinds * spec.num_layers
    expected = [1 + kinds.index(kind) for kind in pattern]
    assert graph.kinds == (0, *expected, *range(1 + len(kinds), len(graph.layers)))


@failures.over("name", model_names())
def test_tensors_of_an_operator_exist_and_have_known_layouts(name: str) -> None:
    for layer in trace_model(load_model(name)).layers:
        made = set() if layer.hidden_input is None else {layer.hidden_input}
        known = set(range(len(layer.tensors)))
        assert {tensor.layout for tensor in layer.tensors} <= {*LAYOUTS} - {"expert"}
        assert {p.layout for p in layer.parameters} <= {*LAYOUTS}
        for operator in layer.operators:
            assert {*operator.inputs, *operator.outputs, *operator.saved} <= known
            assert not made & {*operator.outputs}, "written twice"
            made |= {*operator.outputs}


def test_the_chain_s_hidden_states_fit_together() -> None:
    graph = trace_model(load_model("mixtral-8x7b"))
    embedding, block, norm, head = graph.layers
    hidden = embedding.tensors[embedding.operators[-1].outputs[0]]
    for layer in (block, norm, head):
        assert layer.hidden_input is not None
        assert layer.tensors[layer.hidden_input] == hidden
    assert block.tensors[block.operators[-1].outputs[0]] == hidden


def test_no_operator_is_missed_in_a_block() -> None:
    block = trace_model(replace(SPEC, attention_implementation="plain")).layers[1]
    assert [operator.operation for operator in block.operators] == [
        "norm",
        "linear",
        "matmul",
        "softmax",
        "dropout",
        "matmul",
        "linear",
        "dropout",
        "add",
        "norm",
        "linear",
        "activation",
        "linear",
        "dropout",
        "add",
    ]
    core = [operator.operation for operator in block.operators if operator.core]
    assert core == ["matmul", "softmax", "dropout", "matmul"]


def test_dropout_of_probability_zero_is_no_operator() -> None:
    spec = replace(SPEC, hidden_dropout=0.0, attention_dropout=0.0)
    graph = trace_model(replace(spec, attention_implementation="plain"))
    found = {op.operation for layer in graph.layers for op in layer.operators}
    assert "dropout" not in found


@failures.over("name", ["mixtral-8x7b", "bert-large", "gpt3-35b"])
def test_graphs_survive_json(name: str) -> None:
    graph = trace_model(load_model(name))
    assert LayerGraph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_a_cached_trace_is_the_trace(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = trace_model(SPEC, cache_dir=tmp_path)
    request.getfixturevalue("untraceable")
    assert trace_model(SPEC, cache_dir=tmp_path) == first


def test_models_that_differ_in_depth_only_share_a_trace(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    trace_model(SPEC, cache_dir=tmp_path)
    request.getfixturevalue("untraceable")
    deeper = trace_model(replace(SPEC, num_layers=30), cache_dir=tmp_path)
    assert len(deeper.names) == 33


def test_any_other_difference_is_traced(tmp_path: Path) -> None:
    for changes in ({}, {"sequence_length": 1024}, {"hidden_dropout": 0.0}):
        trace_model(replace(SPEC, **changes), cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_changed_code_is_traced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_model(SPEC, cache_dir=tmp_path)
    monkeypatch.setattr(tracing, "_source_digest", lambda: "other code")
    trace_model(SPEC, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_all_code_that_traces_is_part_of_the_key() -> None:
    folder = Path(tracing.__file__).parents[1]
    covered = {file for pattern in tracing._SOURCES for file in folder.glob(pattern)}
    names = {str(file.relative_to(folder)) for file in covered}
    assert {
        "tracing/graph.py",
        "tracing/rules.py",
        "tracing/trace.py",
        "models/attention.py",
        "models/layers.py",
        "models/spec.py",
    } <= names


def test_a_cached_trace_needs_no_torch(tmp_path: Path) -> None:
    expected = trace_model(load_model("gpt3-125m"), cache_dir=tmp_path).num_parameters
    done = subprocess.run(
        [sys.executable, "-c", USE_CACHE_ONLY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(tracing.__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == expected


@given(place=st.floats(0, 1, exclude_max=True), data=st.data())
@settings(max_examples=15)
def test_a_damaged_cache_is_written_anew(
    tmp_path_factory: pytest.TempPathFactory, place: float, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    expected = trace_model(SPEC, cache_dir=folder)
    (file,) = folder.iterdir()
    sound = file.read_bytes()
    index = int(place * len(sound))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != sound[index]))
    rest = data.draw(st.sampled_from([sound[index + 1 :], b""]))
    file.write_bytes(sound[:index] + bytes([byte]) + rest)
    assert trace_model(SPEC, cache_dir=folder) == expected
    assert file.read_bytes() == sound


@failures.over("content", [b"", b"\n", b"{}", b"3\n{}"])
def test_a_foreign_file_in_the_cache_is_replaced(
    tmp_path: Path, content: bytes
) -> None:
    expected = trace_model(SPEC, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert trace_model(SPEC, cache_dir=tmp_path) == expected
    assert len(file.read_bytes()) > len(content)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    graph = trace_model(SPEC, cache_dir=blocked)
    assert graph.num_parameters > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_nothing_but_traces_is_left_in_the_cache(tmp_path: Path) -> None:
    trace_model(SPEC, cache_dir=tmp_path / "new" / "folder")
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert file.suffix == ".trace"


def test_the_cache_s_place_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NESTSIM_CACHE_DIR", str(tmp_path))
    assert cache_folder("traces") == tmp_path / "traces"
    trace_model(SPEC)
    assert len(list((tmp_path / "traces").iterdir())) == 1
    monkeypatch.delenv("NESTSIM_CACHE_DIR")
    assert "nestsim" in os.fspath(cache_folder("traces"))


@failures.over("name", ["gpt3-125m", "bert-large", "mixtral-8x7b"])
def test_a_sound_trace_is_taken_from_the_cache(tmp_path: Path, name: str) -> None:
    spec = replace(load_model(name), num_layers=1)
    graph = trace_model(spec, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    found = tracing._read(file, spec)
    assert found is not None
    assert tuple(found.values()) == graph.layers


@failures.over(
    "change",
    [
        lambda data: [],
        lambda data: {},
        lambda data: 3,
        lambda data: {**data, "block": 3},
        lambda data: {name: data[name] for name in reversed(data)},
        lambda data: dict.fromkeys(data, data["block"]),
        lambda data: _with(data, "block", "tensors", [[1, "whole", "model"]]),
        lambda data: _with(data, "block", "tensors", [["1", "whole", "model"]]),
        lambda data: _with(data, "block", "tensors", {"a": 1}),
        lambda data: _with(data, "block", "hidden_input", 10**6),
        lambda data: _with(data, "block", "hidden_input", None),
        lambda data: _with(data, "block", "operators", [{}]),
        lambda data: _with(data, "embedding", "parameters", []),
        lambda data: _with(data, "embedding", "parameters", [["w", 1, "whole"]]),
        lambda data: _with(data, "embedding", "parameters", [["w", True, "x"]]),
    ],
)
def test_what_is_sealed_but_no_trace_of_the_model_is_not_believed(
    tmp_path: Path, change: Any
) -> None:
    expected = trace_model(SPEC, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    sound = file.read_bytes()
    text = json.dumps(change(json.loads(sound.partition(b"\n")[2]))).encode()
    write_sealed(file, text)
    assert trace_model(SPEC, cache_dir=tmp_path) == expected
    assert file.read_bytes() == sound


def _with(data: Any, layer: str, key: str, value: Any) -> Any:
    return {**data, layer: {**data[layer], key: value}}


def test_a_trace_of_another_model_is_not_believed(tmp_path: Path) -> None:
    wider = replace(SPEC, hidden_size=2 * SPEC.hidden_size)
    expected = trace_model(SPEC, cache_dir=tmp_path / "a")
    trace_model(wider, cache_dir=tmp_path / "b")
    (file,), (other,) = (tmp_path / "a").iterdir(), (tmp_path / "b").iterdir()
    file.write_bytes(other.read_bytes())
    assert trace_model(SPEC, cache_dir=tmp_path / "a") == expected


def test_a_pipe_in_the_cache_stops_nobody(tmp_path: Path) -> None:
    expected = trace_model(SPEC, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert trace_model(SPEC, cache_dir=tmp_path) == expected
