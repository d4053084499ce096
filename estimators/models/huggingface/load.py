"""Read an architecture from a local Hugging Face ``config.json``.

Nothing is downloaded and nothing of the transformers library is needed. Keys that do
not change sizes or work (initialisation, token ids, rotary scaling) are ignored; keys
that would, and that the modules here cannot express, are refused.
"""

from pathlib import Path

from estimators.models.huggingface.config_file import ConfigFile, read_config
from estimators.models.huggingface.key_maps import (
    key_map,
    model_types,
    nearest_type,
    read_spec,
)
from estimators.models.spec import TransformerSpec, with_sequence_length
from topologies.errors import InputError
from topologies.input_file import file_in
from topologies.notices import notices

_MOST = 10**6
"""Largest size of a tower that is counted."""


def load_huggingface(
    path: Path, *, sequence_length: int | None = None
) -> TransformerSpec:
    """Read a ``config.json``.

    Parameters
    ----------
    path
        The file, or the folder that holds it.
    sequence_length
        Tokens per training sequence; by default the longest that the configuration
        allows.

    Raises
    ------
    InputError
        If the file cannot be read or is not JSON, the ``model_type`` is not known, or
        a key is missing or has an unexpected value. The message names file and key.
    """
    file = file_in(path, "config.json")
    try:
        config = read_config(file)
        model_type = config.value(str, "model_type")
        config.problems.refuse()
        if model_type not in model_types():
            raise InputError(
                "model type is not supported",
                where="model_type",
                got=model_type,
                expected="one of " + ", ".join(model_types()),
                hint=_hint(model_type),
            )
        spec = read_spec(config, key_map(model_type))
        if sentence := _left_out(config):
            notices().remark(f"note: {file.name}: {sentence}")
        if sequence_length is not None:
            spec = with_sequence_length(spec, sequence_length)
    except InputError as error:
        raise error.at(str(file), separator=": ") from None
    return spec


def parts_left_out(path: Path) -> str:
    """Return what of a ``config.json`` is left out, as a sentence; else nothing.

    Raises
    ------
    InputError
        If the file cannot be read or is not JSON.
    """
    return _left_out(read_config(file_in(path, "config.json")))


def _hint(model_type: str) -> str:
    """Say what comes nearest to a type that is not read."""
    near = nearest_type(model_type)
    start = f'the nearest that is read is "{near}": ' if near else ""
    return f"{start}spell the architecture out under [model], with its family and sizes"


def _left_out(config: ConfigFile) -> str:
    """Return what of a configuration no model here has, as a sentence; else nothing.

    Of models that see pictures the text model alone is read. The blocks of a tower are
    those of a ViT: ``4 h^2 + 2 h f`` weights, ``9 h + f`` biases and norms.
    """
    tower = config.values.get("vision_config")
    if not isinstance(tower, dict):
        return ""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size")
    sizes = [tower.get(name) for name in names]
    if not all(isinstance(size, int) and 0 < size < _MOST for size in sizes):
        return "The vision tower (vision_config) is left out, and what pictures cost."
    layers, h, f = (int(size or 0) for size in sizes)
    weights = layers * (4 * h * h + 2 * h * f + 9 * h + f)
    return (
        f"The vision tower (vision_config: {layers} blocks, {weights / 1e6:,.0f} "
        "million parameters in them) is left out, and what pictures cost."
    )
