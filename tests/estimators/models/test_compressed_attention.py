"""DeepSeek-V4: its attention against transformers', its size, and pairs by counting.

Parameters and FLOPs of a small one are held to transformers in `test_hub_types`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from estimators.generation.engine import EngineSetup
from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, Grouping
from estimators.models.huggingface import load_huggingface
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import INDEX_SCORES
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import TurnedBack, TurnedQueries, families
from topologies.errors import InputError

transformers = pytest.importorskip("transformers")
hub_types = pytest.importorskip("tests.estimators.models.hub_types")

from transformers.models.deepseek_v4 import modeling_deepseek_v4  # noqa: E402

LENGTH, TYPE = 24, "deepseek_v4"
GIVEN: dict[str, Any] = {
    **hub_types.GIVEN[TYPE],
    "num_hidden_layers": 4,
    "sliding_window": 5,
    "index_topk": 3,
    "compress_rates": {
        "compressed_sparse_attention": 2,
        "heavily_compressed_attention": 6,
    },
}
NAMES = {
    "linear_q_down_proj.weight": "q_a_proj.weight",
    "linear_q_up_proj.weight": "q_b_proj.weight",
    "q_norm.weight": "q_a_norm.weight",
    "linear_kv.weight": "kv_proj.weight",
    "kv_norm.weight": "kv_norm.weight",
    "core_attention.softmax_offset": "sinks",
    "linear_groups.weight": "o_a_proj.weight",
    "linear_proj.weight": "o_b_proj.weight",
    "indexer.linear_wq_b.weight": "compressor.indexer.q_b_proj.weight",
    "indexer.linear_weights_proj.weight": (
        "compressor.indexer.scorer.weights_proj.weight"
    ),
}
"""Parameter of attention here -> that of transformers, but for summaries."""


def read(folder: Path, **changed: Any) -> TransformerSpec:
    config = transformers.AutoConfig.for_model(TYPE, **GIVEN)
    file = folder / "config.json"
    values = {**config.to_dict(), "model_type": TYPE, **changed}
    file.write_text(json.dumps(values, default=str), encoding="utf-8")
    return load_huggingface(file, sequence_length=LENGTH)


def copied(ours: Any, theirs: Any) -> None:
    """Give attention the weights of transformers', all of them."""
    weights: dict[str, Tensor] = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if "summaries." not in name:
                parameter.copy_(weights.pop(NAMES[name]))
                continue
            inside = "indexer." if name.startswith("indexer") else ""
            path, last = f"compressor.{inside}", name.partition("summaries.")[2]
            if last == "linear.weight":
                pair = (f"{path}{part}_proj.weight" for part in ("kv", "gate"))
                parameter.copy_(torch.cat([weights.pop(part) for part in pair]))
            else:
                named = {"position_bias": last, "norm.weight": "kv_norm.weight"}
                parameter.copy_(weights.pop(path + named[last]))
    assert not weights


def test_attention_is_that_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions are left out: transformers turns pairs in another order."""
    torch.manual_seed(0)
    half = GIVEN["qk_rope_head_dim"] // 2

    def still(_: Any, x: Tensor, position_ids: Tensor, **__: Any) -> Any:
        shape = (len(x), position_ids.shape[1], half)
        return torch.ones(shape), torch.zeros(shape)

    rotary = modeling_deepseek_v4.DeepseekV4RotaryEmbedding
    monkeypatch.setattr(rotary, "forward", still)
    spec = read(tmp_path)
    config = transformers.AutoConfig.for_model(
        TYPE, **GIVEN, attn_implementation="eager"
    )
    hidden, places = torch.randn(2, LENGTH, 96), torch.arange(LENGTH)[None]
    every = torch.ones(LENGTH, LENGTH)
    seen = every.tril() - every.tril(-GIVEN["sliding_window"])
    mask = torch.zeros_like(seen).masked_fill(seen == 0, float("-inf"))[None, None]
    turned = dict.fromkeys(("main", "compress"), still(None, hidden, places))
    for block, kind in enumerate(spec.block_pattern[:3]):
        theirs = modeling_deepseek_v4.DeepseekV4Attention(config, block).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.normal_(std=0.3)
        expected, _ = theirs(hidden, turned, places, mask.expand(2, -1, -1, -1))
        ours = families.build_block(spec, kind).self_attention.eval()
        copied(ours, theirs)
        monkeypatch.setattr(ours.turn.rotary, "forward", lambda *both: both)
        monkeypatch.setattr(ours.turn_back.rotary, "forward", lambda *both: both)
        torch.testing.assert_close(ours(hidden), expected, atol=1e-3, rtol=1e-3)


def test_contexts_are_turned_back() -> None:
    torch.manual_seed(0)
    width, turned = 16, 6
    flat, key = torch.randn(2, LENGTH, 3 * width), torch.randn(2, LENGTH, width)
    queries, turned_key = TurnedQueries(width, turned)(flat, key)
    back = TurnedBack(width, turned)
    torch.testing.assert_close(back(turned_key), key)
    normed = TurnedQueries(width, turned).norm(flat.unflatten(-1, (3, -1))).flatten(2)
    torch.testing.assert_close(back(queries), normed)
    assert not torch.allclose(queries, normed, atol=0.1)


def test_deepseek_v4_flash_has_as_many_parameters_as_transformers(
    tmp_path: Path,
) -> None:
    """At the sizes that transformers has for it, and at those of its first files."""
    config = transformers.AutoConfig.for_model(TYPE)
    values = config.to_dict()
    listed = ("layer_types", "mlp_layer_types", "compress_rates")
    older = {name: values[name] for name in values if name not in listed}
    older["compress_ratios"] = [0, 0, *[4, 128] * 21]
    for given in (values, older):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(given, default=str), encoding="utf-8")
        sizes = {name: given[name] for name in given if name != "model_type"}
        with torch.device("meta"):
            theirs = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(TYPE, **sizes)
            )
        ours = trace_model(load_huggingface(file)).num_parameters
        assert ours == sum(parameter.numel() for parameter in theirs.parameters())
        assert ours == pytest.approx(284e9, rel=2e-3)


def test_pairs_are_those_of_the_window_and_of_summaries(tmp_path: Path) -> None:
    """Counted one by one, but for what is not complete when a query comes."""
    spec = read(tmp_path)
    graph = trace_model(spec)
    heads, width = GIVEN["num_attention_heads"], GIVEN["head_dim"]
    for block, (rate, most) in enumerate([(0, 0), (6, LENGTH), (2, 3)]):
        layer = graph.layers[graph.kinds[1 + block]]
        (core,) = (op for op in layer.operators if op.operation == "attention")
        window = sum(min(t + 1, spec.window_size) for t in range(LENGTH))
        # The square of a causal mask without its diagonal counts twice.
        beside = sum(min((t + 0.5) / rate, most) for t in range(LENGTH)) if rate else 0
        assert core.pairs == pytest.approx(2 * window - LENGTH + 2 * beside, rel=0.02)
        assert core.model_flops == 4 * core.pairs * heads * width
    scores = (op for op in layer.operators if op.operation == INDEX_SCORES)
    assert [op.pairs for op in scores] == [LENGTH * LENGTH // 2]


def test_tensor_parallel_ranks_have_all_summaries_and_their_heads(
    tmp_path: Path,
) -> None:
    graph = trace_model(read(tmp_path))
    works = [
        {op.name: op for op in layer_work(graph, graph.kinds[3], degrees, 2).operators}
        for degrees in (Degrees(), Degrees(tp=2, sequence_parallel=True))
    ]
    for name, parts in (
        ("self_attention.linear_groups", 2),
        ("self_attention.core_attention.attention", 2),
        ("self_attention.summaries.linear", 1),
        ("self_attention.indexer.scores", 1),
    ):
        whole, split = (work[name].forward_flops for work in works)
        assert whole == parts * split > 0, name
    ring = {"cp": 2, "grouping": Grouping(cp_comm_type="a2a")}
    for degrees, words in ((Degrees(tp=4), "o_groups"), (Degrees(**ring), "indexer")):
        assert words in str(divisibility_problem(graph.spec, degrees))
    with pytest.raises(InputError, match="summaries"):
        EngineSetup().check(graph.spec)


@failures.over(
    ("key", "value"),
    [
        ("layer_types", ["full_attention"] * 4),
        ("num_key_value_heads", 2),
        ("attention_bias", True),
        ("index_topk", "many"),
        ("o_groups", 3),
        ("index_head_dim", 10**8),
    ],
)
def test_what_no_block_here_has_is_refused(
    tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, **{key: value})
    assert caught.value.where == f"{tmp_path / 'config.json'}: {key}"
    changed = {"layer_types": None, "compress_ratios": [0, 4, 8, 4]}
    with pytest.raises(InputError) as caught:
        read(tmp_path, **changed)
    assert caught.value.where.endswith("compress_ratios")
