"""Diffusion transformers: counts of diffusers, sharding, and what is refused."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.changed import with_picture
from estimators.models.diffusion import DIFFUSION_BLOCKS
from estimators.models.huggingface import load_huggingface
from estimators.models.library import build_spec, load_model
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators import torch_models
from topologies.errors import InputError

COUNTED = {
    "sd3-medium": (2_028_328_000, 8_437_355_053_056),
    "sd3.5-large": (8_056_627_520, 29_596_766_900_224),
    "flux.1-dev": (11_901_408_320, 74_384_653_418_496),
    "wan2.1-1.3b": (1_418_996_800, 283_001_787_777_024),
    "wan2.1-14b": (14_288_491_584, 6_523_436_592_005_120),
}
"""Parameters, and forward FLOPs of a sequence by torch's counter, of the classes of
diffusers 0.42.1 on the meta device with torch 2.13, at the library's sizes."""

COUNTED_PARAMETERS = {"flux.1-schnell": 11_891_178_560, "qwen-image": 20_430_401_088}
"""The same, of classes whose FLOPs were not counted at these sizes."""

PAPER = {"dit-b-2": (130e6, 23.01e9), "dit-l-2": (458e6, 80.71e9)}
PAPER["dit-xl-2"] = 675e6, 118.64e9
"""Peebles and Xie, 2023, tables 1 and 4: parameters, and products of 256 pixels."""

SIZES = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 16}
SMALL: Mapping[str, dict[str, Any]] = {
    "FluxTransformer2DModel": {
        **SIZES,
        "num_layers": 2,
        "num_single_layers": 3,
        "joint_attention_dim": 24,
        "pooled_projection_dim": 20,
        "guidance_embeds": True,
        "axes_dims_rope": [4, 6, 6],
    },
    "SD3Transformer2DModel": {
        **SIZES,
        "num_layers": 3,
        "joint_attention_dim": 24,
        "caption_projection_dim": 32,
        "pooled_projection_dim": 20,
        "pos_embed_max_size": 64,
        "qk_norm": "rms_norm",
    },
    "QwenImageTransformer2DModel": {
        **SIZES,
        "in_channels": 64,
        "num_layers": 2,
        "joint_attention_dim": 24,
        "axes_dims_rope": [4, 6, 6],
    },
    "WanTransformer3DModel": {
        **SIZES,
        "num_layers": 2,
        "text_dim": 24,
        "freq_dim": 20,
        "ffn_dim": 48,
    },
}
PIXELS = {"image_pixels": (128, 64), "frames": 9}
DEGREES = Degrees(sequence_parallel=False)


def counts(spec: TransformerSpec) -> tuple[int, int]:
    """Return parameters, and forward FLOPs of a sequence."""
    graph = trace_model(spec)
    layers = [graph.layers[kind] for kind in graph.kinds]
    flops = sum(op.model_flops for layer in layers for op in layer.operators)
    return graph.num_parameters, flops


def written(folder: Path, kind: str, values: Mapping[str, Any]) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({"_class_name": kind, **values}), encoding="utf-8")
    return file


@failures.over("name", COUNTED)
def test_models_have_the_counts_of_diffusers(name: str) -> None:
    assert counts(load_model(name)) == COUNTED[name]


@failures.over("name", COUNTED_PARAMETERS)
def test_models_have_the_parameters_of_diffusers(name: str) -> None:
    assert trace_model(load_model(name)).num_parameters == COUNTED_PARAMETERS[name]


@failures.over("name", PAPER)
def test_a_dit_is_as_large_as_its_paper_says(name: str) -> None:
    parameters, flops = counts(load_model(name))
    assert parameters == pytest.approx(PAPER[name][0], rel=0.003)
    assert flops / 2 == pytest.approx(PAPER[name][1], rel=0.005)


@failures.over("kind", SMALL)
def test_a_file_of_diffusers_is_its_class(tmp_path: Path, kind: str) -> None:
    """Where diffusers is installed: the class itself, on the meta device."""
    diffusers = pytest.importorskip("diffusers")
    spec = load_huggingface(written(tmp_path, kind, SMALL[kind]))
    spec = with_picture(spec, (128, 64), 9 if kind.startswith("Wan") else 0)
    assert spec.diffusion is not None
    text, tokens = spec.diffusion.text_tokens, spec.sequence_length
    elements = spec.diffusion.patch_elements
    with torch.device("meta"):
        model = getattr(diffusers, kind)(**SMALL[kind])
        states = torch.zeros(1, text, spec.diffusion.text_width)
        given: dict[str, Any] = {"encoder_hidden_states": states}
        given["timestep"] = torch.zeros(1)
        if kind.startswith("Wan"):
            given["hidden_states"] = torch.zeros(1, 16, 3, 16, 8)
        elif kind.startswith("SD3"):
            given["hidden_states"] = torch.zeros(1, 16, 16, 8)
        else:
            given["hidden_states"] = torch.zeros(1, tokens - text, elements)
        if kind.startswith(("SD3", "Flux")):
            given["pooled_projections"] = torch.zeros(1, spec.diffusion.pooled_width)
        if kind.startswith("Flux"):
            given |= {"guidance": torch.zeros(1), "txt_ids": torch.zeros(text, 3)}
            given["img_ids"] = torch.zeros(tokens - text, 3)
        if kind.startswith("Qwen"):
            given["img_shapes"] = [[(1, 8, 4)]]
        with FlopCounterMode(display=False) as counter:
            model(**given)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert counts(spec) == (parameters, counter.get_total_flops())


PUBLISHED_SIZES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "flux.1-dev": (
        "FluxTransformer2DModel",
        {
            "num_attention_heads": 24,
            "attention_head_dim": 128,
            "in_channels": 64,
            "guidance_embeds": True,
        },
    ),
    "sd3.5-large": (
        "SD3Transformer2DModel",
        {
            "num_attention_heads": 38,
            "attention_head_dim": 64,
            "in_channels": 16,
            "num_layers": 38,
            "qk_norm": "rms_norm",
        },
    ),
    "qwen-image": (
        "QwenImageTransformer2DModel",
        {"num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 64},
    ),
    "wan2.1-14b": (
        "WanTransformer3DModel",
        {"num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16},
    ),
}
"""Model -> class and keys of its transformer/config.json, without what is usual."""


@failures.over("name", PUBLISHED_SIZES)
def test_a_published_file_is_the_library_s_model(tmp_path: Path, name: str) -> None:
    ours, theirs = (
        load_model(name),
        load_huggingface(written(tmp_path, *PUBLISHED_SIZES[name])),
    )
    if name.startswith("wan"):  # its file does not say which films
        theirs = with_picture(theirs, (720, 1280))
    assert theirs.sequence_length == ours.sequence_length
    assert counts(theirs) == counts(ours)


def test_tokens_follow_from_pictures_and_films() -> None:
    """Wan: 8 x 8 pixels and 4 frames a latent, the first by itself, 2 x 2 a token."""
    wan, flux = load_model("wan2.1-14b"), load_model("flux.1-dev")
    assert wan.sequence_length == 21 * 45 * 80
    assert with_picture(wan, (480, 832)).sequence_length == 21 * 30 * 52
    assert with_picture(wan, (), 1).sequence_length == 45 * 80
    assert flux.sequence_length == 512 + 64 * 64
    assert with_picture(flux, (512,)).sequence_length == 512 + 32 * 32


@failures.over(
    ("name", "pixels", "frames", "where"),
    [
        ("flux.1-dev", (1000, 1024), 0, "image_pixels"),
        ("flux.1-dev", (1024, 1024), 0, ""),
        ("wan2.1-14b", (), 80, "frames"),
        ("llama2-7b", (64, 64), 0, "image_pixels"),
        ("llama2-7b", (), 5, "frames"),
    ],
)
def test_pictures_that_tokens_do_not_fill_are_refused(
    name: str, pixels: tuple[int, ...], frames: int, where: str
) -> None:
    if not where:
        with_picture(load_model(name), pixels, frames)
        return
    with pytest.raises(InputError) as caught:
        with_picture(load_model(name), pixels, frames)
    assert caught.value.where == where


@failures.over(
    ("kind", "changes", "where"),
    [
        ("WanTransformer3DModel", {"image_dim": 1280}, "image_dim"),
        ("WanTransformer3DModel", {"in_channels": 48}, "in_channels"),
        ("WanTransformer3DModel", {"text_dim": 2**40}, "text_width"),
        ("SD3Transformer2DModel", {"dual_attention_layers": [0]}, "dual_attention_"),
        ("FluxTransformer2DModel", {"num_layers": 10**9}, "num_layers"),
        ("DiTTransformer2DModel", {}, "model_type"),
        ("HunyuanVideoTransformer3DModel", {}, "model_type"),
    ],
)
def test_files_of_what_no_module_has_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], where: str
) -> None:
    values = {**SMALL.get(kind, {}), **changes}
    with pytest.raises(InputError) as caught:
        load_huggingface(written(tmp_path, kind, values))
    assert where in caught.value.where


@failures.over(
    "changes",
    [
        {"attention_implementation": "plain"},
        {"sequence_length": 512},
        {"documents": "fixed", "document_length": 64},
        {"mtp_num_layers": 1},
    ],
)
def test_what_goes_with_no_diffusion_transformer_is_refused(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(InputError):
        replace(load_model("flux.1-dev"), **changes)


def small(kind: str) -> TransformerSpec:
    """Return a small model with blocks of some kind."""
    layers = {
        "single": {"double_num_layers": 1, "single_num_layers": 1},
        "double": {"double_num_layers": 2},
        "last double": {"double_num_layers": 2, "last_double": True},
        "cross": {"num_layers": 2, "in_sequence": False, "modulation_tables": True},
        "adaptive": {"num_layers": 2, "text_tokens": 0, "num_classes": 5},
    }
    sizes = {"text_tokens": 8, "text_width": 12, "latent_channels": 4, "text_layers": 2}
    return build_spec(
        {
            "family": "diffusion",
            "hidden_size": 32,
            "num_attention_heads": 4,
            "pooled_width": 6,
            "time_width": 10,
            "image_pixels": (64,),
            "qk_layernorm": True,
            "qk_layernorm_whole": kind == "cross",
            **sizes,
            **layers[kind],
        }
    )


@failures.over("kind", DIFFUSION_BLOCKS)
def test_a_small_model_learns_on_a_cpu(kind: str) -> None:
    """Blocks as they are priced compute, and gradients reach all that they hold."""
    torch.manual_seed(0)
    spec = small(kind)
    families = torch_models.families
    layers = families.build_layers(spec, "cpu")
    inputs, (_, target) = families.example_inputs(spec, "cpu")
    inputs = [torch.randn_like(x) if x.is_floating_point() else x for x in inputs]
    target = torch.randn_like(target)
    parts = torch.nn.ModuleList(layers.values())
    optimizer = torch.optim.Adam(parts.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        hidden, *beside = layers["embedding"](*inputs)
        for name in spec.block_kinds:
            hidden = layers[name](hidden, *beside)
        time = layers["embedding"].time(inputs[2])
        loss = layers["head"](hidden, time, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    unreached = [n for n, p in parts.named_parameters() if p.grad is None]
    assert not unreached


def block_work(graph: LayerGraph, kind: str, **degrees: Any) -> Any:
    place = 1 + [*graph.spec.block_kinds.values()].index(kind)
    return layer_work(graph, place, DEGREES._replace(**degrees), 2)


def test_conditioning_is_whole_and_the_rest_is_split() -> None:
    """A FLUX's double block of width h: 2 x 12 h^2 of weights and 11 h of biases that
    are split, and on every rank 2 x 6 h (h + 1) of conditioning, biases behind sums and
    norms of heads."""
    graph = trace_model(load_model("flux.1-dev"))
    h, d = 3072, 128
    split, whole = 24 * h * h + 2 * 7 * h, 12 * h * (h + 1) + 4 * h + 4 * d
    for tp in (1, 2, 8):
        assert block_work(graph, "double", tp=tp).parameters == split / tp + whole
    split, whole = 12 * h * h + 7 * h, 3 * h * (h + 1) + h + 2 * d
    for tp in (1, 4):
        assert block_work(graph, "single", tp=tp).parameters == split / tp + whole


def test_what_an_adaptive_block_keeps() -> None:
    """Of a token: norms' inputs and results, what they are shifted to, two branches and
    attention: 12 h, two of 4 h; and one fp32 number of each head; of 2 bytes."""
    spec = load_model("dit-b-2")
    h, heads, s = spec.hidden_size, spec.num_attention_heads, spec.sequence_length
    kept = block_work(trace_model(spec), "adaptive").saved_bytes["none"]
    rows = 2 * 8 * h  # the conditioning, before and behind SiLU, and six rows of it
    assert kept == s * (2 * (12 * h + 2 * 4 * h) + 4 * heads) + rows


def test_text_and_picture_split_over_ranks_or_are_refused() -> None:
    flux, sd3 = load_model("flux.1-dev"), load_model("sd3-medium")
    assert divisibility_problem(flux, Degrees(cp=8, sequence_parallel=False)) is None
    problem = divisibility_problem(
        replace(sd3, sequence_length=4096 + 160), Degrees(cp=4, sequence_parallel=False)
    )
    assert problem is not None
    assert "text_tokens 154" in problem
