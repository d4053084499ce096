"""Towers whose parts are frozen, or that all ranks do: torch's autograd, properties."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from estimators.chain import build_layer_table
from estimators.layers.adapters import with_adapters
from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, LayerTable, model_flops_per_sequence
from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from estimators.models.vision import VisionTower
from estimators.platform import Platform
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from tests.estimators.models.test_vision_tower import VISION, extra, read, written
from topologies.accelerators import load_accelerator

TRAINED = {
    "all": {},
    "projector": {"freeze_model": True},
    "tower": {"freeze_projection": True},
    "nothing": {"freeze_model": True, "freeze_projection": True},
}


def seeing(
    folder: Path, model_type: str = "gemma3", images: int = 2, **changes: Any
) -> TransformerSpec:
    spec = read(written(folder, model_type, **extra(model_type)), model_type, images)
    assert spec.vision is not None
    return replace(spec, vision=replace(spec.vision, **changes))


def table_of(graph: LayerGraph, degrees: Degrees) -> LayerTable:
    return build_layer_table(
        graph,
        degrees=degrees,
        training=TrainingSpec(global_batch_size=8),
        platform=Platform(accelerator=load_accelerator("h100-sxm")),
    )


def torch_flops(folder: Path, trained: str) -> int:
    """Return what torch counts of Gemma 3's tower and projector, in both passes.

    A patch's product is a convolution, whose gradient of pixels nobody asks for.
    """
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    config.vision_config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.AutoModelForMultimodalLM.from_config(config).model
        pixels = torch.zeros(2, 3, 56, 56)
    model.vision_tower.requires_grad_(trained in {"all", "tower"})
    model.multi_modal_projector.requires_grad_(trained in {"all", "projector"})
    with FlopCounterMode(display=False) as counter:
        hidden = model.vision_tower(pixels).last_hidden_state
        tokens = model.multi_modal_projector(hidden)
        if trained != "nothing":
            tokens.sum().backward()
    return int(counter.get_total_flops())


@failures.over("trained", TRAINED)
def test_a_tower_has_the_passes_that_autograd_gives_it(
    tmp_path: Path, trained: str
) -> None:
    spec = seeing(tmp_path, **TRAINED[trained])
    graph = trace_model(spec)
    ours = model_flops_per_sequence(graph) - model_flops_per_sequence(
        trace_model(replace(spec, vision=None))
    )
    # The first product has no gradient of pixels, which a step is counted with here.
    tower = spec.vision
    assert tower is not None
    of_pixels = 2 * tower.images * tower.patches * tower.patch_elements
    unread = of_pixels * tower.hidden_size * (not tower.freeze_model)
    assert ours - unread == torch_flops(tmp_path, trained)


@failures.over("model_type", VISION)
def test_a_frozen_tower_keeps_what_its_projector_keeps(
    tmp_path: Path, model_type: str
) -> None:
    """Twice the blocks keep no more; with the projector frozen too nothing is kept."""
    kept = {}
    for trained, changes in TRAINED.items():
        graph = trace_model(seeing(tmp_path, model_type, **changes))
        kept[trained] = layer_work(graph, 0, Degrees(), 2).saved_bytes["none"]
    bare = trace_model(replace(seeing(tmp_path, model_type), vision=None))
    assert kept["nothing"] == layer_work(bare, 0, Degrees(), 2).saved_bytes["none"]
    assert kept["nothing"] < kept["projector"] < kept["tower"] < kept["all"]
    spec = seeing(tmp_path, model_type, freeze_model=True)
    tower = spec.vision
    assert tower is not None
    deep = replace(spec, vision=replace(tower, num_layers=2 * tower.num_layers))
    work = layer_work(trace_model(deep), 0, Degrees(), 2)
    assert work.saved_bytes["none"] == kept["projector"]


@failures.over("model_type", VISION)
@failures.over("tensor_parallel", [True, False])
def test_what_is_frozen_is_never_slower_nor_larger(
    tmp_path: Path, model_type: str, tensor_parallel: bool
) -> None:
    for degrees in (Degrees(), Degrees(tp=2), Degrees(tp=2, sequence_parallel=True)):
        tables = {}
        for trained, changes in TRAINED.items():
            spec = seeing(
                tmp_path, model_type, tensor_parallel=tensor_parallel, **changes
            )
            tables[trained] = table_of(trace_model(spec), degrees)
        whole = tables["all"]
        for less, more in (
            ("nothing", "projector"),
            ("nothing", "tower"),
            ("projector", "all"),
            ("tower", "all"),
        ):
            a, b = tables[less], tables[more]
            assert (a.forward_time <= b.forward_time).all()
            assert a.backward_time[0] < b.backward_time[0]
            assert a.saved_bytes["none"][0] < b.saved_bytes["none"][0]
            assert a.working_bytes["none"][0] <= b.working_bytes["none"][0]
            assert a.parameters[0] < b.parameters[0]
            # In bf16, and no more of it than was trained.
            held = a.parameters + a.frozen_weights / 2
            assert held.tolist() == whole.parameters.tolist()
        assert not whole.frozen_weights.any()


@failures.over("model_type", VISION)
def test_ranks_that_split_no_tower_do_all_of_it(
    tmp_path: Path, model_type: str
) -> None:
    """As a device by itself, with nothing to exchange but for the words."""
    spec = seeing(tmp_path, model_type, tensor_parallel=False)
    graph = trace_model(spec)
    alone = layer_work(graph, 0, Degrees(), 2)
    words = trace_model(replace(spec, vision=None))
    for sp in (False, True):
        degrees = Degrees(tp=2, sequence_parallel=sp)
        work = layer_work(graph, 0, degrees, 2)
        assert work.collectives == layer_work(words, 0, degrees, 2).collectives
        for ours, theirs in zip(work.operators, alone.operators, strict=True):
            if ours.name.startswith("vision_tower."):
                assert ours == theirs
        of_tower = work.parameters - layer_work(words, 0, degrees, 2).parameters
        all_of_it = alone.parameters - layer_work(words, 0, Degrees(), 2).parameters
        assert of_tower == all_of_it
    assert divisibility_problem(spec, Degrees(tp=4)) is None
    tower = spec.vision
    assert tower is not None
    odd = replace(spec, vision=replace(tower, num_heads=2))
    assert divisibility_problem(odd, Degrees(tp=4)) is None


def test_a_frozen_tower_sends_nothing_back(tmp_path: Path) -> None:
    works = [
        layer_work(
            trace_model(seeing(tmp_path, "qwen3_vl", freeze_model=frozen)),
            0,
            Degrees(tp=2),
            2,
        )
        for frozen in (False, True)
    ]
    reduces = [
        next(w for w in work.collectives if w.operation == "all_reduce")
        for work in works
    ]
    assert reduces[0].forward_count == reduces[1].forward_count
    tower = seeing(tmp_path, "qwen3_vl").vision
    assert tower is not None
    assert reduces[0].backward_count - reduces[1].backward_count == (
        2 * tower.num_layers
    )


def test_more_pictures_are_never_faster() -> None:
    """Gemma 3's tower as it was published, in front of one block."""
    tower = VisionTower(
        kind="siglip",
        num_layers=27,
        hidden_size=1152,
        ffn_hidden_size=4304,
        num_heads=16,
        patch_elements=588,
        positions=4096,
        patches=4096,
        merged=16,
    )
    words = build_spec(
        {
            "family": "llama",
            "num_layers": 1,
            "hidden_size": 2560,
            "ffn_hidden_size": 10240,
            "num_attention_heads": 8,
            "vocab_size": 262208,
            "sequence_length": 4096,
        }
    )
    for changes in TRAINED.values():
        tables = [
            table_of(
                trace_model(
                    replace(words, vision=replace(tower, images=images, **changes))
                ),
                Degrees(),
            )
            for images in (1, 2, 3, 8)
        ]
        passes = [(t.forward_time[0], t.backward_time[0]) for t in tables]
        saved = [t.saved_bytes["none"][0] for t in tables]
        assert (np.diff(np.array(passes), axis=0) >= 0.0).all()
        assert (np.diff(saved) >= 0.0).all()


def test_adapters_leave_a_frozen_tower_alone(tmp_path: Path) -> None:
    graph = trace_model(seeing(tmp_path, freeze_model=True))
    training = TrainingSpec(global_batch_size=8, adapter="lora")
    adapted = with_adapters(graph, training)
    front = [op for op in adapted.layers[0].operators if ".blocks." in op.name]
    assert front
    assert all(op.forward_only and not op.saved for op in front)
