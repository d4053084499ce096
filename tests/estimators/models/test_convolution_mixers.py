"""Short convolutions and selective scans: transformers' modules, and closed forms."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import SelectiveMixer, ShortConvolution
from topologies.errors import InputError

LENGTH, HIDDEN = 24, 32
SIZES: dict[str, Any] = {
    "family": "llama",
    "num_layers": 2,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 101,
    "sequence_length": LENGTH,
}
SCAN: dict[str, Any] = {
    **SIZES,
    "block_pattern": ["selective_scan+dense", "attention+dense"],
    "selective_width": 64,
    "selective_state_dim": 6,
    "selective_step_rank": 5,
}
SHORT: dict[str, Any] = {
    **SIZES,
    "block_pattern": ["short_convolution+dense", "attention+dense"],
    "short_convolution_width": 3,
}


def theirs_filled(module: nn.Module) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def copied(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    """Give our module the other's weights, all of them, some under other names."""
    given = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(given.pop(names.get(name, name)))
    assert not given


@failures.over("kind", ["none", "plain", "weighted"])
def test_a_selective_mixer_computes_what_transformers_does(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "rms_norm_eps": 1e-5}
    if kind == "weighted":
        from transformers.models.jamba.modeling_jamba import JambaMambaMixer

        config = transformers.JambaConfig(mamba_d_state=6, mamba_dt_rank=5, **sizes)
        theirs = theirs_filled(JambaMambaMixer(config, 0))
    else:
        from transformers.models.falcon_mamba import modeling_falcon_mamba
        from transformers.models.mamba import modeling_mamba

        name = "FalconMambaConfig" if kind == "plain" else "MambaConfig"
        config = getattr(transformers, name)(state_size=6, time_step_rank=5, **sizes)
        config.mixer_rms_eps = 1e-5
        theirs = theirs_filled(
            modeling_falcon_mamba.FalconMambaMixer(
                config, 0, initialize_mixer_weights=False
            )
            if kind == "plain"
            else modeling_mamba.MambaMixer(config, 0)
        )
    ours = SelectiveMixer(build_spec({**SCAN, "selective_norm": kind}))
    norms = ("dt", "b", "c") if kind == "weighted" else ()
    names = {
        f"norms.{n}.weight": f"{name}_layernorm.weight" for n, name in enumerate(norms)
    }
    copied(ours, theirs, {**names, "scan.A_log": "A_log", "scan.D": "D"})
    hidden = torch.randn(2, LENGTH, HIDDEN)
    torch.testing.assert_close(ours(hidden), theirs(hidden), atol=1e-4, rtol=1e-4)


def test_a_short_convolution_computes_what_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    torch.manual_seed(0)
    config = transformers.Lfm2Config(
        hidden_size=HIDDEN, num_hidden_layers=2, full_attn_idxs=[1]
    )
    theirs = theirs_filled(Lfm2ShortConv(config, 0))
    ours = ShortConvolution(build_spec(SHORT))
    copied(ours, theirs, {})
    hidden = torch.randn(2, LENGTH, HIDDEN)
    torch.testing.assert_close(ours(hidden), theirs(hidden), atol=1e-5, rtol=1e-5)


def mixer_bytes(spec: TransformerSpec, degrees: Degrees) -> float:
    """Return what a block keeps beyond one with no mixer, in 2-byte numbers [byte]."""
    with_mixer = layer_work(trace_model(spec), 1, degrees, 2).saved_bytes["none"]
    alone = replace(
        spec,
        block_pattern=("dense",) * 2,
        short_convolution_width=0,
        selective_width=0,
        selective_state_dim=0,
        selective_step_rank=0,
    )
    return (
        with_mixer - layer_work(trace_model(alone), 1, degrees, 2).saved_bytes["none"]
    )


@failures.over("tp", [1, 2, 4])
def test_a_short_convolution_keeps_its_input_and_six_tensors_more(tp: int) -> None:
    """Two gates, values, what is convolved, its result, what is projected back."""
    kept = mixer_bytes(build_spec(SHORT), Degrees(tp=tp))
    hidden = 2 * LENGTH * HIDDEN
    assert kept == hidden * 2 + hidden * 6 / tp  # of the norm, and of the product


@failures.over("tp", [1, 2, 4])
def test_a_selective_scan_keeps_what_its_function_saves(tp: int) -> None:
    spec = build_spec(SCAN)
    kept = mixer_bytes(spec, Degrees(tp=tp))
    hidden, inner = 2 * LENGTH * HIDDEN, 2 * LENGTH * spec.selective_width
    # The convolution's input, the nonlinearity's and its result, steps, gate, the
    # result before the gate, and what is projected back.
    narrow = 2 * LENGTH * (spec.selective_step_rank + 2 * spec.selective_state_dim)
    states = 2 * 4 * spec.selective_width * spec.selective_state_dim
    assert kept == 2 * hidden + narrow + (7 * inner + states) / tp


def test_a_tensor_group_adds_up_narrow_vectors_beside_hidden_states() -> None:
    """Mamba-1's second all-reduce: as wide as steps and maps together."""
    spec = build_spec(SCAN)
    (work,) = layer_work(trace_model(spec), 1, Degrees(tp=2), 2).collectives
    narrow = spec.selective_step_rank + 2 * spec.selective_state_dim
    assert work.operation == "all_reduce"
    assert work.forward_count == 3
    assert work.forward_bytes == 2 * LENGTH * (2 * HIDDEN + narrow)


@failures.over("words", [SCAN, SHORT])
def test_ranks_cannot_share_a_sequence(words: dict[str, Any]) -> None:
    spec = build_spec(words)
    problem = divisibility_problem(spec, Degrees(cp=2))
    assert problem is not None
    assert "through whole sequences" in problem
    assert divisibility_problem(spec, Degrees(tp=4)) is None
    odd = replace(spec, num_attention_heads=1, num_query_groups=1, kv_channels=32)
    assert divisibility_problem(odd, Degrees(tp=64)) is not None


@failures.over(
    ("changed", "where"),
    [
        ({"selective_width": 0}, "selective_width"),
        ({"selective_state_dim": 0}, "selective_state_dim"),
        ({"short_convolution_width": 3}, "short_convolution_width"),
        ({"selective_norm": "layernorm"}, "selective_norm"),
        (
            {
                "selective_width": 2**20,
                "hidden_size": 2**20,
                "selective_step_rank": 2**20,
                "sequence_length": 2**24,
                "kv_channels": 8,
            },
            "",
        ),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(
    changed: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        build_spec({**SCAN, **changed})
    assert where in str(caught.value.where)
