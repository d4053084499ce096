"""From an architecture to its `LayerGraph`, by torch.fx, cached on disk.

Each distinct layer is traced once. Importing torch takes seconds, so what was traced
is kept as JSON behind its own hash, in a file named by what it depends on: the
architecture (without its depth, which no layer depends on) and the source of
everything that takes part in tracing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

from estimators.models.changed import (
    with_one_of_each,
)
from estimators.models.spec import (
    TransformerSpec,
)
from estimators.tracing.graph import LayerGraph, TracedLayer
from topologies.errors import InputError
from topologies.input_file import Value, decode, parse_json
from topologies.notices import notices
from topologies.user_cache import cache_folder, read_sealed, write_sealed

_MOST_BYTES = 4 * 2**20
"""Longest file that is read as a trace, which takes some kB [byte]."""

_SOURCES = ("tracing/*.py", "models/*.py")


def trace_model(spec: TransformerSpec, *, cache_dir: Path | None = None) -> LayerGraph:
    """Return the chain of layers of a model.

    The result does not depend on whether it came from the cache; torch is imported
    only if it did not. A cache that is damaged is written anew, one that cannot be
    written is done without.

    Parameters
    ----------
    spec
        The architecture.
    cache_dir
        Where traces are kept; by default `topologies.user_cache.cache_folder`.
    """
    folder = cache_dir or cache_folder("traces")
    file = None if folder is None else folder / f"{_content_key(spec)}.trace"
    layers = None if file is None else _read(file, spec)
    if layers is None:
        with notices().once("tracing the model"):
            layers = _trace(with_one_of_each(spec))
        _write(file, layers)
    return LayerGraph.chain(spec, layers)


def _trace(spec: TransformerSpec) -> dict[str, TracedLayer]:
    from estimators.models.families import (
        block_inputs,
        build_layers,
        example_inputs,
        leaving_states,
    )
    from estimators.tracing.recorder import record_layer

    ids, labels = example_inputs(spec)
    left = leaving_states(spec)
    inputs = {"embedding": ids, "final norm": (left,)}
    for depth in range(spec.mtp_num_layers):
        inputs[f"mtp {depth}"] = (left.repeat(1, 1 + depth, 1), *ids)
    inputs["head"] = (left.repeat(1, 1 + spec.mtp_num_layers, 1), *labels)
    inputs |= {
        name: block_inputs(spec, kind) for name, kind in spec.block_kinds.items()
    }
    return {
        name: record_layer(
            module,
            inputs[name],
            takes_hidden=name != "embedding",
        )
        for name, module in build_layers(spec).items()
    }


def _content_key(spec: TransformerSpec) -> str:
    content = json.dumps(asdict(with_one_of_each(spec)), sort_keys=True)
    return hashlib.sha256(f"{content}\n{_source_digest()}".encode()).hexdigest()


@cache
def _source_digest() -> str:
    """Return a hash of the code that traces, so that no trace outlives its code."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for file in sorted(folder.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _read(file: Path, spec: TransformerSpec) -> dict[str, TracedLayer] | None:
    """Return the layers of a cache file, or None if there is no sound one.

    What is sealed is checked all the same: whoever can write the file can seal it.
    """
    text = read_sealed(file)
    if text is None or len(text) > _MOST_BYTES:
        return None
    try:
        layers = {
            name: TracedLayer.from_json(layer.raw)
            for name, layer in Value(
                parse_json(decode(text), expected="a trace")
            ).items()
        }
        _check_layers(layers, spec)
    except InputError:
        return None
    return layers


def _check_layers(layers: Mapping[str, TracedLayer], spec: TransformerSpec) -> None:
    """Refuse layers that are not those of an architecture.

    The names of its chain, the size of its embedding and of what enters a block are
    known without tracing.
    """
    blocks = list(spec.block_kinds)
    depths = [f"mtp {depth}" for depth in range(spec.mtp_num_layers)]
    names = ["embedding", *blocks, "final norm", *depths, "head"]
    if spec.family == "bert":
        names.remove("final norm")
    width = spec.hidden_size
    first = spec.sequence_length if spec.family == "vit" else spec.vocab_size
    known = (
        list(layers) == names
        and first * width in _sizes(layers["embedding"])
        and all(
            _enters(layers[name]) == spec.entering_tokens(kind) * width
            for name, kind in spec.block_kinds.items()
        )
    )
    if not known:
        raise InputError("is the trace of another model", expected="a trace")


def _enters(layer: TracedLayer) -> int:
    """Return the elements of the hidden states that enter a layer."""
    number = layer.hidden_input
    return 0 if number is None else layer.tensors[number].elements


def _sizes(layer: TracedLayer) -> list[int]:
    return [parameter.elements for parameter in layer.parameters]


def _write(file: Path | None, layers: Mapping[str, TracedLayer]) -> None:
    """Keep the layers, if there is a place for them."""
    if file is None:
        notices().cannot_keep("traces of models", "there is no home folder")
        return
    values = {name: layer.to_json() for name, layer in layers.items()}
    try:
        write_sealed(file, json.dumps(values).encode())
    except OSError as error:
        why = f"{file.parent}: {error.strerror or error}"
        notices().cannot_keep("traces of models", why)
