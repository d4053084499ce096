"""Embeddings of n-grams beside words: LongCat-Flash-Lite's, by its equations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.huggingface import load_huggingface
from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import NGramEmbedding
from topologies.errors import InputError

LONGEST, EACH, ROWS = 3, 2, 50
HIDDEN, LENGTH, VOCABULARY = 32, 24, 11
SPEC = build_spec(
    {
        "family": "llama",
        "num_layers": 2,
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "vocab_size": VOCABULARY,
        "sequence_length": LENGTH,
        "ngram_embedding": (LONGEST, EACH, ROWS),
    }
)
LITE: dict[str, Any] = {
    "model_type": "longcat_flash_ngram",
    "vocab_size": 131072,
    "hidden_size": 3072,
    "num_layers": 14,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 327680,
    "ffn_hidden_size": 6144,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_topk": 12,
    "n_routed_experts": 256,
    "zero_expert_num": 128,
    "expert_ffn_hidden_size": 1024,
    "emb_neighbor_num": 4,
    "emb_split_num": 4,
    "ngram_vocab_size_ratio": 78,
}
"""Sizes of LongCat-Flash-Lite."""


class Reference(nn.Module):
    """A table and a product for each length of n-grams and each of its parts.

    "Scaling Embeddings Outperforms Scaling Experts in Language Models", 2026, section
    2: vectors of the n-grams that end at a token, numbered in digits of the
    vocabulary's size and taken modulo the rows of a table, averaged with the word's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lengths = [n for n in range(2, LONGEST + 1) for _ in range(EACH)]
        width = HIDDEN // len(self.lengths)
        self.tables = nn.ModuleList(
            nn.Embedding(ROWS + 2 * place + 1, width)
            for place in range(len(self.lengths))
        )
        self.products = nn.ModuleList(
            nn.Linear(width, HIDDEN, bias=False) for _ in self.lengths
        )

    def forward(self, words: Tensor, tokens: Tensor) -> Tensor:
        """Return what the words' vectors become."""
        total = words
        for n, table, product in zip(
            self.lengths, self.tables, self.products, strict=True
        ):
            rows = torch.empty_like(tokens)
            for sequence, row in zip(tokens.tolist(), rows, strict=True):
                for place in range(LENGTH):
                    ngram = [0] * n + sequence[: place + 1]
                    number = sum(
                        t * VOCABULARY**i for i, t in enumerate(ngram[::-1][:n])
                    )
                    row[place] = number % table.num_embeddings
            total = total + product(table(rows))
        return total / (1 + len(self.lengths))


def test_embeddings_of_ngrams_are_those_of_their_equations() -> None:
    torch.manual_seed(0)
    theirs, ours = Reference(), NGramEmbedding(SPEC)
    with torch.no_grad():
        tables = torch.cat([table.weight for table in theirs.tables])
        ours.tables.weight.copy_(tables)
        ours.proj.weight.copy_(torch.cat([p.weight for p in theirs.products], 1))
    words, tokens = torch.randn(2, LENGTH, HIDDEN), torch.randint(11, (2, LENGTH))
    with FlopCounterMode(display=False) as counter:
        expected = theirs(words, tokens)
    torch.testing.assert_close(ours(words, tokens), expected, atol=1e-5, rtol=1e-5)
    layer = trace_model(SPEC).layers[0]
    assert (
        2 * sum(op.model_flops for op in layer.operators) == counter.get_total_flops()
    )
    added = sum(parameter.numel() for parameter in theirs.parameters())
    counted = sum(parameter.elements for parameter in layer.parameters)
    assert counted == VOCABULARY * HIDDEN + added


def lite(folder: Path, **changed: Any) -> TransformerSpec:
    file = folder / "config.json"
    file.write_text(json.dumps({**LITE, **changed}), encoding="utf-8")
    return load_huggingface(file, sequence_length=4096)


def test_longcat_flash_lite_has_as_many_parameters_as_published(tmp_path: Path) -> None:
    """68.5 billion, of which 31.4 are of n-grams, as announced with the model."""
    graph = trace_model(lite(tmp_path))
    assert graph.num_parameters == pytest.approx(68.5e9, rel=0.002)
    (tables,) = (
        parameter.elements
        for parameter in graph.layers[0].parameters
        if parameter.name == "ngrams.tables.weight"
    )
    assert tables == pytest.approx(31.4e9, rel=0.001)


def test_tensor_parallel_ranks_split_the_rows_of_tables(tmp_path: Path) -> None:
    """And add vectors up, as those of words."""
    graph = trace_model(lite(tmp_path))
    whole, split = (
        layer_work(graph, 0, Degrees(tp=tp, sequence_parallel=tp > 1), 2)
        for tp in (1, 8)
    )
    product = LITE["hidden_size"] ** 2
    assert split.parameters == (whole.parameters - product) / 8 + product
    (sum_up,) = (c for c in split.collectives if c.operation == "reduce_scatter")
    size = 4096 * LITE["hidden_size"] * 2
    assert (sum_up.forward_count, sum_up.forward_bytes) == (2, 2 * size)


@failures.over(
    "changed",
    [
        {"emb_neighbor_num": 1},
        {"emb_split_num": 7},
        {"emb_split_num": "four"},
        {"ngram_vocab_size_ratio": 10**17},
    ],
)
def test_tables_that_do_not_fill_hidden_states_are_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    with pytest.raises(InputError):
        lite(tmp_path, **changed)
