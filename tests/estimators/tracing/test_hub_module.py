"""Types that no table reads, traced of transformers' modules: sizes, work, refusals."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from estimators.models.huggingface import (
    load_huggingface,
    missing_operator,
    model_types,
    read_types,
)
from estimators.tracing import hub_module
from estimators.tracing.hub_module import trace_hub_model
from estimators.tracing.trace import trace_model
from nestsim.scenario.model import build_model
from tests import failures
from topologies.errors import InputError
from topologies.notices import gathered_notices

pytest.importorskip("transformers")
hub_types = pytest.importorskip("tests.estimators.models.hub_types")

SOME: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("bitnet", {}),
    ("diffllama", {}),
    ("gemma4_text", {"hidden_size_per_layer_input": 0, "global_head_dim": 512}),
    ("modernbert-decoder", {}),
)
OTHERS = (
    *("bert-generation", "gemma4_unified_text", "gpt_neo", "megatron-bert"),
    *("moshi", "rembert", "roc_bert", "trocr"),
)
READ = ("cohere", "gemma2", "granite", "llama", "olmo2", "phi3", "qwen3")


def written(folder: Path, model_type: str, values: Mapping[str, Any]) -> Path:
    """Write a configuration."""
    file = folder / "config.json"
    text = json.dumps({**values, "model_type": model_type}, default=str)
    file.write_text(text, encoding="utf-8")
    return file


def check_counts(folder: Path, model_type: str, values: Mapping[str, Any]) -> None:
    """Check a traced type against torch's counter on transformers' module."""
    config = hub_types.hub_config(model_type, values)
    file = written(folder, model_type, config.to_dict())
    module = trace_hub_model(file, sequence_length=hub_types.LENGTH)
    assert module is not None
    assert model_type not in model_types()
    theirs = hub_types.hub_counts(hub_types.hub_model(model_type, config))
    assert hub_types.graph_counts(module.graph) == theirs


@failures.over(("model_type", "values"), SOME)
def test_a_traced_type_has_the_parameters_and_flops_of_its_module(
    tmp_path: Path, model_type: str, values: Mapping[str, Any]
) -> None:
    check_counts(tmp_path, model_type, values)


@failures.over("model_type", OTHERS)
def test_all_other_traced_types_have_the_parameters_and_flops_of_their_modules(
    tmp_path: Path, model_type: str
) -> None:
    check_counts(tmp_path, model_type, {})


@failures.over("model_type", READ)
def test_a_trace_says_what_the_reader_of_a_type_says(
    tmp_path: Path, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = hub_types.hub_config(model_type, {})
    file = written(tmp_path, model_type, config.to_dict())
    assert trace_hub_model(file) is None
    spec = load_huggingface(file, sequence_length=256)
    with monkeypatch.context() as patch:
        patch.setattr(hub_module, "may_be_traced", lambda _: True)
        module = trace_hub_model(file, sequence_length=256)
    assert module is not None
    traced, read = module.graph, trace_model(spec)
    assert hub_types.graph_counts(traced) == hub_types.graph_counts(read)
    assert len(traced.names) == len(read.names)
    for name in ("num_layers", "num_attention_heads", "num_query_groups", "causal"):
        assert getattr(traced.spec, name) == getattr(spec, name), name


def test_length_and_depth_are_those_of_the_file_unless_given(tmp_path: Path) -> None:
    file = written(tmp_path, "bitnet", {"num_hidden_layers": 3, "hidden_size": 320})
    module = trace_hub_model(file)
    assert module is not None
    assert module.graph.spec.sequence_length == 2048
    assert module.graph.spec.num_layers == 3
    module = trace_hub_model(file, sequence_length=64, num_layers=2)
    assert module is not None
    assert module.graph.spec.sequence_length == 64
    assert module.graph.spec.num_layers == 2


def test_what_a_trace_does_not_see_is_said(tmp_path: Path) -> None:
    config = hub_types.hub_config("modernbert-decoder", {})
    file = written(tmp_path, "modernbert-decoder", config.to_dict())
    with gathered_notices() as gathered:
        trace_hub_model(file, sequence_length=2048)
    sentences = " ".join(gathered.sentences(least=0.0))
    assert "without dropout" in sentences
    assert "windows of attention are counted as the whole sequence" in sentences
    values = {"num_hidden_layers": 2, "architectures": ["MegatronBertForPreTraining"]}
    with gathered_notices() as gathered:
        trace_hub_model(written(tmp_path, "megatron-bert", values), sequence_length=64)
    sentences = " ".join(gathered.sentences(least=0.0))
    assert "what MegatronBertForPreTraining has beside it is left out" in sentences


def test_of_a_file_of_several_models_the_language_model_is_traced(
    tmp_path: Path,
) -> None:
    """Of types that transformers has: others may mean more than the type says."""
    text = hub_types.hub_config("diffllama", {}).to_dict() | {"hidden_size": 512}
    several = {"text_config": text, "vision_config": {}}
    with gathered_notices() as gathered:
        module = trace_hub_model(
            written(tmp_path, "lfm2_vl", several), sequence_length=64
        )
    assert module is not None
    assert module.graph.spec.hidden_size == 512
    assert "vision tower" in " ".join(gathered.sentences(least=0.0))
    assert trace_hub_model(written(tmp_path, "no_such_type", several)) is None


def test_what_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    for model_type, values, problem in (
        ("gpt_neo", {"num_layers": 3}, "cannot be built"),
        ("bitnet", {"hidden_size": "wide"}, "cannot be built"),
    ):
        with pytest.raises(InputError) as caught:
            trace_hub_model(written(tmp_path, model_type, values), sequence_length=64)
        assert problem in caught.value.problem


@failures.over(
    ["name", "value"],
    [
        ("moe_routing", "random"),
        ("moe_routing_file", "loads.csv"),
        ("moe_expert_placement", "balanced"),
        ("documents", "fixed"),
        ("images", 2),
    ],
)
def test_what_only_readers_heed_is_refused_of_a_traced_type(
    tmp_path: Path, name: str, value: Any
) -> None:
    config = hub_types.hub_config("diffllama", {}).to_dict()
    written(tmp_path, "diffllama", config)
    table = {"config": "config.json", "sequence_length": 64}
    assert build_model(table, tmp_path).sequence_length == 64
    with pytest.raises(InputError, match="of transformers that is traced") as caught:
        build_model({**table, name: value}, tmp_path)
    assert caught.value.where == name


@failures.over("model_type", ["jetmoe", "whisper", "step3p7", "zamba"])
def test_what_is_known_not_to_be_a_chain_is_not_tried(
    tmp_path: Path, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the file's type nor by that of its language model."""
    with monkeypatch.context() as patch:
        patch.setattr(hub_module.importlib, "import_module", pytest.fail)
        assert trace_hub_model(written(tmp_path, model_type, {})) is None
        held = {"text_config": {"model_type": model_type}}
        assert trace_hub_model(written(tmp_path, "llava_onevision", held)) is None


def test_each_type_that_may_be_traced_is(tmp_path: Path) -> None:
    """At some values: gemma4 without embeddings of each layer."""
    tested = {*dict(SOME), *OTHERS}
    same = {"gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text"}
    types = read_types()["traced"]["types"]
    assert {same.get(name, name) for name in types} == tested
    assert all(missing_operator(name) for name in types)


def test_types_that_transformers_lacks_are_not_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trace_hub_model(written(tmp_path, "no_such_type", {})) is None
    file = written(tmp_path, "bitnet", {})
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert trace_hub_model(file) is None
    with pytest.raises(InputError) as caught:
        load_huggingface(written(tmp_path, "gpt_neo", {}))
    assert "nestsim[transformers]" in caught.value.hint
