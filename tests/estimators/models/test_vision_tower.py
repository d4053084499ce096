"""Vision towers in front of a language model: transformers' modules, closed forms."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.huggingface import load_huggingface
from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from estimators.models.vision import VisionTower
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError
from topologies.notices import gathered_notices

WIDTH = 64
TEXT: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 211,
    "max_position_embeddings": 4096,
}
QWEN: dict[str, Any] = {
    "depth": 6,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "out_hidden_size": WIDTH,
}
VISION: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {**QWEN, "fullatt_block_indexes": [2, 5]},
    "qwen3_vl": {
        **QWEN,
        "deepstack_visual_indexes": [1, 3],
        "num_position_embeddings": 16,
    },
    "gemma3": {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
        "vision_use_head": False,
    },
    "llama4": {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "image_size": 56,
        "vision_output_dim": 48,
        "projector_input_dim": 48,
        "projector_output_dim": 48,
    },
}
SIZES = {"qwen2_5_vl": (224, 112), "qwen3_vl": (96, 64)}
TEXTS = {
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
}


def written(folder: Path, model_type: str, **outer: Any) -> Path:
    transformers = pytest.importorskip("transformers")
    text = {**TEXT, "model_type": TEXTS[model_type]}
    vision = {**VISION[model_type]}
    config = transformers.AutoConfig.for_model(
        model_type, text_config=text, vision_config=vision, **outer
    )
    file = folder / "config.json"
    file.write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")
    return file


def read(file: Path, model_type: str, images: int = 2) -> TransformerSpec:
    size = SIZES.get(model_type, ()) if images else ()
    return load_huggingface(
        file, sequence_length=1024, images=images, image_pixels=size
    )


def extra(model_type: str) -> dict[str, Any]:
    return {"mm_tokens_per_image": 4} if model_type == "gemma3" else {}


@failures.over("model_type", VISION)
def test_towers_have_the_parameters_of_transformers(
    tmp_path: Path, model_type: str
) -> None:
    transformers = pytest.importorskip("transformers")
    file = written(tmp_path, model_type, **extra(model_type))
    spec = read(file, model_type)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForMultimodalLM.from_config(config)
    language = {
        id(p)
        for path, module in model.named_modules()
        if path.endswith("language_model")
        for p in module.parameters()
    } | {id(model.get_output_embeddings().weight)}
    theirs = sum(p.numel() for p in model.parameters() if id(p) not in language)
    bare = trace_model(replace(spec, vision=None)).num_parameters
    assert trace_model(spec).num_parameters - bare == theirs


def forward_flops(spec: TransformerSpec) -> int:
    return sum(op.model_flops for op in trace_model(spec).layers[0].operators)


def test_a_siglip_tower_has_the_flops_of_transformers(tmp_path: Path) -> None:
    """A patch's product is a convolution there."""
    transformers = pytest.importorskip("transformers")
    file = written(tmp_path, "gemma3", **extra("gemma3"))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        tower = transformers.AutoModel.from_config(
            config.vision_config, attn_implementation="eager"
        )
        pixels = torch.zeros(3, 3, 56, 56)
        with FlopCounterMode(display=False) as counter:
            tower(pixels)
    projected = 2 * 3 * 4 * 32 * WIDTH
    ours = forward_flops(read(file, "gemma3", images=3))
    assert ours == counter.get_total_flops() + projected


def test_a_qwen_tower_has_the_flops_of_transformers(tmp_path: Path) -> None:
    """Attention of one picture, without masks: windows are counted by themselves."""
    transformers = pytest.importorskip("transformers")
    file = written(tmp_path, "qwen3_vl")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    tower = transformers.AutoModel.from_config(
        config.vision_config, attn_implementation="eager"
    )
    pixels, grid = torch.zeros(6 * 4, 3 * 2 * 16 * 16), torch.tensor([[1, 6, 4]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        tower(pixels, grid_thw=grid)
    counts = counter.get_flop_counts()
    angles = sum(
        sum(part.values())
        for path, part in counts.items()
        if path.rpartition(".")[2].startswith("rotary")
    )
    theirs = counter.get_total_flops() - angles
    assert forward_flops(read(file, "qwen3_vl", images=1)) == theirs


def test_windows_leave_pairs_out(tmp_path: Path) -> None:
    """Two of six blocks see a picture; others a window of 8 x 8 patches each."""
    spec = read(written(tmp_path, "qwen2_5_vl"), "qwen2_5_vl", images=3)
    tower = spec.vision
    assert tower is not None
    assert (tower.patches, tower.windows, tower.tokens) == (128, 2, 96)
    pairs = 3 * (2 * 128**2 + 4 * 2 * 64**2)
    attention = [
        op.model_flops
        for op in trace_model(spec).layers[0].operators
        if op.operation == "attention"
    ]
    assert sum(attention) == 4 * pairs * tower.hidden_size
    whole = replace(spec, vision=replace(tower, windows=1, full_blocks=0))
    more = 4 * tower.hidden_size * 3 * 4 * 2 * 64**2
    assert forward_flops(whole) - forward_flops(spec) == more


def test_the_blocks_of_the_language_model_stay_as_they_are(tmp_path: Path) -> None:
    spec = read(written(tmp_path, "qwen3_vl"), "qwen3_vl")
    seeing, bare = trace_model(spec), trace_model(replace(spec, vision=None))
    assert seeing.names == bare.names
    assert seeing.layers[1:] == bare.layers[1:]


@failures.over("tp", [1, 2, 4])
def test_a_tensor_group_splits_a_tower(tmp_path: Path, tp: int) -> None:
    """Products but those of patches; two all-reduces a block, one for each merger."""
    spec = read(written(tmp_path, "qwen3_vl"), "qwen3_vl")
    tower = spec.vision
    assert tower is not None
    graph = trace_model(spec)
    works = [layer_work(graph, 0, Degrees(tp=t), 2) for t in (1, tp)]
    flops = [sum(op.forward_flops for op in work.operators) for work in works]
    patches = 2 * 2 * tower.patches * tower.patch_elements * tower.hidden_size
    assert flops[1] - patches == pytest.approx((flops[0] - patches) / tp)
    if tp > 1:
        reduces = [w for w in works[1].collectives if w.operation == "all_reduce"]
        mergers = 1 + tower.deep_mergers
        count = 2 * tower.num_layers + mergers + 1  # the word embedding
        assert sum(w.forward_count for w in reduces) == count


def test_a_tower_keeps_what_its_blocks_keep(tmp_path: Path) -> None:
    """Twice the pictures keep twice as much, and no recompute of blocks changes it."""
    file = written(tmp_path, "gemma3", **extra("gemma3"))
    kept = []
    for images in (1, 2, 3):
        work = layer_work(trace_model(read(file, "gemma3", images)), 0, Degrees(), 2)
        kept.append(work.saved_bytes["none"])
    assert kept[2] - kept[1] == kept[1] - kept[0] > 0


def test_pictures_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "qwen3_vl")
    for images, size, where in (
        (1, (), "image_pixels"),
        (1, (100, 64), "image_pixels"),
        (1, (0, 64), "image_pixels"),
        (1, (96,), "image_pixels"),
        (0, (96, 64), "image_pixels"),
        (2000, (96, 64), "images"),
    ):
        with pytest.raises(InputError) as caught:
            load_huggingface(
                file, sequence_length=1024, images=images, image_pixels=size
            )
        assert str(caught.value.where).endswith(where)
    file = written(tmp_path, "llama4")
    with pytest.raises(InputError):
        load_huggingface(file, sequence_length=1024, images=1, image_pixels=(112, 112))
    file.write_text(json.dumps({**TEXT, "model_type": "llama"}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_huggingface(file, images=1)
    assert "qwen2_5_vl" in str(caught.value.expected)


def test_a_tower_is_left_out_without_pictures(tmp_path: Path) -> None:
    file = written(tmp_path, "qwen3_vl")
    for images, said in ((0, True), (1, False)):
        with gathered_notices() as gathered:
            spec = read(file, "qwen3_vl", images)
        assert (spec.vision is None) == said
        sentences = " ".join(gathered.sentences(least=0.0))
        assert ("vision tower" in sentences) == said


def test_what_a_tower_does_not_go_with_is_refused() -> None:
    tower = VisionTower(
        kind="siglip",
        num_layers=2,
        hidden_size=32,
        ffn_hidden_size=48,
        num_heads=4,
        patch_elements=588,
        positions=16,
        patches=16,
    )
    words = {key: TEXT[f"{key}"] for key in ("hidden_size", "vocab_size")}
    spec = build_spec(
        {
            **words,
            "family": "llama",
            "num_layers": 2,
            "ffn_hidden_size": 96,
            "num_attention_heads": 8,
            "sequence_length": 64,
        }
    )
    spec = replace(spec, vision=tower)
    assert divisibility_problem(spec, Degrees(tp=4)) is None
    problem = divisibility_problem(spec, Degrees(tp=8))
    assert problem is not None
    assert "num_heads 4 of the vision tower" in problem
    problem = divisibility_problem(spec, Degrees(cp=2))
    assert problem is not None
    assert "picture" in problem


def test_gemma_3_has_an_encoder_as_large_as_published(tmp_path: Path) -> None:
    """417 million, without the projector: "Gemma 3 Technical Report", table 1."""
    text = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
    }
    vision = {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    }
    values = {
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": text,
        "vision_config": vision,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    spec = load_huggingface(file, sequence_length=4096, images=2)
    tower = spec.vision
    assert tower is not None
    assert (tower.patches, tower.tokens) == (4096, 512)
    bare = trace_model(replace(spec, vision=None)).num_parameters
    projector = 1152 + 1152 * 2560
    encoder = trace_model(spec).num_parameters - bare - projector
    assert encoder == pytest.approx(417e6, abs=0.5e6)
