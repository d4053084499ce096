"""From an architecture to its `LayerGraph`, by torch.fx, cached on disk.

Each distinct layer is traced once. Importing torch takes seconds, so what was traced
is kept as JSON behind its own hash, in a file named by what it depends on: the
architecture (without its depth, which no layer depends on) and the source of
everything that takes part in tracing.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from estimators.layer_graph import LayerGraph, TracedLayer
from estimators.models.spec import TransformerSpec
from topologies.errors import InputError
from topologies.input_file import decode, parse_json, read_file
from topologies.json_values import Value

_MOST_BYTES = 4 * 2**20
"""A trace takes some kB."""

_SOURCES = (
    "layer_graph.py",
    "layer_recorder.py",
    "operator_rules.py",
    "tracing.py",
    "models/*.py",
)


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
        Where traces are kept; by default `default_cache_dir`.
    """
    file = (cache_dir or default_cache_dir()) / f"{_content_key(spec)}.trace"
    layers = _read(file, spec)
    if layers is None:
        layers = _trace(replace(spec, num_layers=1))
        _write(file, layers)
    return LayerGraph.chain(spec, layers)


def default_cache_dir() -> Path:
    """Return ``$NESTSIM_CACHE_DIR/traces``, or its like among the user's caches."""
    given = os.environ.get("NESTSIM_CACHE_DIR")
    if given:
        return Path(given) / "traces"
    import platformdirs

    return Path(platformdirs.user_cache_dir("nestsim")) / "traces"


def _trace(spec: TransformerSpec) -> dict[str, TracedLayer]:
    import torch

    from estimators.layer_recorder import record_layer
    from estimators.models.families import build_layers, example_inputs

    ids, labels = example_inputs(spec)
    hidden = torch.empty(1, spec.sequence_length, spec.hidden_size, device="meta")
    inputs = {"embedding": ids, "head": (hidden, *labels)}
    return {
        name: record_layer(
            module,
            inputs.get(name, (hidden,)),
            takes_hidden=name != "embedding",
        )
        for name, module in build_layers(spec).items()
    }


def _content_key(spec: TransformerSpec) -> str:
    content = json.dumps(asdict(replace(spec, num_layers=1)), sort_keys=True)
    return hashlib.sha256(f"{content}\n{_source_digest()}".encode()).hexdigest()


@cache
def _source_digest() -> str:
    """Return a hash of the code that traces, so that no trace outlives its code."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for file in sorted(folder.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _read(file: Path, spec: TransformerSpec) -> dict[str, TracedLayer] | None:
    """Return the layers of a cache file, or None if there is no sound one.

    The seal holds for the file's name, so that a trace of another model is none. What
    is sealed is checked all the same: whoever can write the file can seal it.
    """
    expected = "a trace"
    try:
        content = read_file(file, expected=expected, most_bytes=_MOST_BYTES)
        digest, _, text = content.partition(b"\n")
        if digest != _seal(file, text):
            return None
        layers = {
            name: TracedLayer.from_json(layer.raw)
            for name, layer in Value(
                parse_json(decode(text), expected=expected)
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
    names = ["embedding", "block", "final norm", "head"]
    if spec.family == "bert":
        names.remove("final norm")
    hidden = spec.sequence_length * spec.hidden_size
    known = (
        list(layers) == names
        and spec.vocab_size * spec.hidden_size in _sizes(layers["embedding"])
        and layers["block"].hidden_input is not None
        and layers["block"].tensors[layers["block"].hidden_input].elements == hidden
    )
    if not known:
        raise InputError("is the trace of another model", expected="a trace")


def _sizes(layer: TracedLayer) -> list[int]:
    return [parameter.elements for parameter in layer.parameters]


def _seal(file: Path, text: bytes) -> bytes:
    """Return what stands in front of a trace that was written whole, for this file."""
    return hashlib.sha256(file.name.encode() + b"\n" + text).hexdigest().encode()


def _write(file: Path, layers: Mapping[str, TracedLayer]) -> None:
    """Write a cache file in one step, so that no other process reads half of it."""
    values = {name: layer.to_json() for name, layer in layers.items()}
    text = json.dumps(values).encode()
    digest = _seal(file, text)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(digest + b"\n" + text)
            Path(temporary).replace(file)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
