"""Mamba-2, hybrids, T5 and vision transformers against transformers' own modules.

Both are built small on the meta device from one ``config.json``. Of a scan transformers
computes in plain PyTorch what fused kernels do in products, in part as sums of
elementwise products, which torch's counter does not see: there FLOPs of linear layers
are compared, and what the mixer computes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from estimators.models.huggingface import load_huggingface
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import MambaMixer, RelativePositionBias

transformers = pytest.importorskip("transformers")

LENGTH, TARGETS = 32, 24
T5 = {
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_heads": 4,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "vocab_size": 211,
}
HYBRID = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 211,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 32,
    "n_groups": 2,
    "chunk_size": 8,
    "max_position_embeddings": LENGTH,
    "hybrid_override_pattern": "M-M*-M",
}
MAMBA = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "vocab_size": 211,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 32,
    "n_groups": 2,
    "chunk_size": 8,
    "expand": 2,
}
VIT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 11,
}
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("T5Config", "AutoModelForSeq2SeqLM", T5),
    "t5, gated": (
        "T5Config",
        "AutoModelForSeq2SeqLM",
        {**T5, "feed_forward_proj": "gated-gelu"},
    ),
    "vit": ("ViTConfig", "AutoModelForImageClassification", VIT),
    "mamba2": ("Mamba2Config", "AutoModelForCausalLM", MAMBA),
    "mamba2, tied": (
        "Mamba2Config",
        "AutoModelForCausalLM",
        {**MAMBA, "tie_word_embeddings": True},
    ),
    "nemotron_h": ("NemotronHConfig", "AutoModelForCausalLM", HYBRID),
}


def hub_model(kind: str, device: str = "meta") -> Any:
    name, model, values = CONFIGS[kind]
    config = getattr(transformers, name)(**values)
    with torch.device(device):
        return (
            getattr(transformers, model)
            .from_config(config, attn_implementation="eager")
            .eval()
        )


def own_spec(folder: Path, kind: str) -> TransformerSpec:
    """Return what our reader makes of the same configuration."""
    name, _, values = CONFIGS[kind]
    config = getattr(transformers, name)(**values)
    file = folder / "config.json"
    written = {**config.to_dict(), "num_labels": config.num_labels}
    file.write_text(json.dumps(written), encoding="utf-8")
    spec = load_huggingface(file, sequence_length=None if kind == "vit" else LENGTH)
    if spec.has_decoder:
        return replace(spec, decoder_sequence_length=TARGETS)
    return spec


def own_flops(graph: LayerGraph, *operations: str) -> int:
    """Return the forward FLOPs of one sequence."""
    by_kind = [
        sum(
            op.model_flops
            for op in one.operators
            if not operations or op.operation in operations
        )
        for one in graph.layers
    ]
    return sum(by_kind[kind] for kind in graph.kinds)


@failures.over("kind", CONFIGS)
def test_parameters_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    counted = sum(parameter.numel() for parameter in hub_model(kind).parameters())
    assert trace_model(own_spec(tmp_path, kind)).num_parameters == counted


@failures.over("kind", ["t5", "t5, gated", "vit"])
def test_flops_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    model = hub_model(kind)
    ids = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    images = torch.zeros(1, 3, 32, 32, device="meta")
    inputs = {"pixel_values": images}
    if kind != "vit":
        inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :TARGETS]}
    with FlopCounterMode(display=False) as counter:
        model(**inputs)
    assert own_flops(trace_model(own_spec(tmp_path, kind))) == counter.get_total_flops()


@failures.over("kind", ["mamba2", "nemotron_h"])
def test_flops_of_linear_layers_of_hybrids_are_those_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    model = hub_model(kind, "cpu")
    with FlopCounterMode(display=False) as counter:
        model(ids, use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    linear = counts[torch.ops.aten.mm] + counts.get(torch.ops.aten.addmm, 0)
    assert own_flops(trace_model(own_spec(tmp_path, kind)), "linear") == linear


def test_the_mixer_computes_what_transformers_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = hub_model("mamba2", "cpu").backbone.layers[0].mixer
    ours = MambaMixer(own_spec(tmp_path, "mamba2"))
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            own = name.replace("conv1d.", "conv1d_")
            own = own if own.startswith(("in_", "out_", "norm")) else f"scan.{own}"
            value.normal_(std=0.3)
            ours.get_parameter(own).copy_(value)
        hidden = torch.randn(2, LENGTH - 3, 64)
        torch.testing.assert_close(ours(hidden), theirs(hidden))


@failures.over("causal", [False, True])
def test_position_biases_are_those_of_transformers(
    tmp_path: Path, causal: bool
) -> None:
    torch.manual_seed(0)
    model = hub_model("t5", "cpu")
    stack = model.decoder if causal else model.encoder
    theirs = stack.block[0].layer[0].SelfAttention
    ours = RelativePositionBias(own_spec(tmp_path, "t5"), causal=causal)
    ours.weight.data = theirs.relative_attention_bias.weight.data
    expected, found = theirs.compute_bias(300, 300), ours(torch.zeros(1, 300, 64))
    seen = torch.ones(300, 300, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    torch.testing.assert_close(found * seen, expected * seen)
