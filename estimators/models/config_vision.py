"""The vision tower that a Hugging Face ``config.json`` describes, for some pictures.

The tables under ``vision`` of ``model_types.toml`` say which type has which tower,
under which keys of ``vision_config`` its sizes stand, and what transformers has where a
file is silent. Heads of towers that nothing reads (SigLIP's pooling) are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from estimators.models.config_file import ConfigFile
from estimators.models.spec import TransformerSpec
from estimators.models.vision import VisionTower
from topologies.errors import InputError

_OBJECT = "vision_config"
_MOST = 10**6


def read_tower(
    config: ConfigFile,
    tables: Mapping[str, Any],
    spec: TransformerSpec,
    images: int,
    image_pixels: Sequence[int],
) -> VisionTower:
    """Return the tower of a file, for the pictures of one sequence.

    Parameters
    ----------
    config
        The whole file.
    tables
        Those under ``vision``, resolved.
    spec
        Its language model, at the length of training sequences.
    images
        Pictures of a sequence, or tiles of them.
    image_pixels
        Their height and width [pixel]; empty for what the file says.

    Raises
    ------
    InputError
        If there is no tower of this type, or pictures do not fit it or the sequence.
    """
    model_type = config.find("model_type")
    table = tables.get(model_type) if isinstance(model_type, str) else None
    if table is None or not isinstance(config.find(_OBJECT), dict):
        raise InputError(
            "the vision tower of this type is not modelled",
            where="images",
            got=images,
            expected="no images, which leaves the tower out, or a type of "
            + ", ".join(tables),
        )
    sizes = {
        word: config.value(int, f"{_OBJECT}.{key}", default or None)
        for word, (key, default) in table["keys"].items()
    }
    config.problems.refuse()
    height, width = _checked_size(config, table, sizes, image_pixels)
    patch = sizes["patch"]
    patches = (height // patch) * (width // patch)
    merged = sizes.get("side", 1) ** 2
    if table["kind"] == "llama4":
        merged = _unshuffled(config)
    if table["kind"] == "siglip":
        tokens = config.value(int, "mm_tokens_per_image", 256)
        merged = max(patches // tokens, 1)
        config.problems.refuse()
    window = sizes.get("window", 0)
    full = config.find(f"{_OBJECT}.fullatt_block_indexes", table.get("full", ()))
    deep = config.find(f"{_OBJECT}.deepstack_visual_indexes", table.get("deep", ()))
    _check_width(config, sizes, spec)
    tower = VisionTower(
        kind=table["kind"],
        num_layers=sizes["num_layers"],
        hidden_size=sizes["hidden_size"],
        ffn_hidden_size=sizes["ffn_hidden_size"],
        num_heads=sizes["num_heads"],
        patch_elements=3 * sizes.get("pictures", 1) * patch**2,
        positions=_positions(table["kind"], sizes, patches),
        images=images,
        patches=patches,
        merged=merged,
        windows=(height // window) * (width // window) if window else 1,
        full_blocks=len(full) if window else 0,
        projector_width=sizes.get("projector", 0),
        deep_mergers=len(deep),
    )
    if tower.tokens > spec.sequence_length:
        raise InputError(
            "their tokens are more than a sequence has",
            where="images",
            got=f"{images}, of {tower.tokens // images} tokens each",
            expected=f"sequence_length = {spec.sequence_length} tokens at most",
        )
    return tower


def _unshuffled(config: ConfigFile) -> int:
    """Return the patches that Llama 4 makes one of."""
    ratio = config.find(f"{_OBJECT}.pixel_shuffle_ratio", 0.5)
    config.require(f"{_OBJECT}.pixel_shuffle_ratio", (None, 0.5, 1.0))
    config.problems.refuse()
    return round(1 / ratio**2) if ratio else 4


def _positions(kind: str, sizes: Mapping[str, int], patches: int) -> int:
    """Return the rows of learned positions: of patches, unless the file says."""
    if kind == "qwen2_5_vl":
        return 0
    return sizes.get("positions", patches + (kind == "llama4"))


def _checked_size(
    config: ConfigFile,
    table: Mapping[str, Any],
    sizes: Mapping[str, int],
    image_pixels: Sequence[int],
) -> tuple[int, int]:
    """Return height and width of pictures that a tower takes [pixel]."""
    fixed = table.get("image_size")
    if fixed:
        side = config.value(int, f"{_OBJECT}.image_size", fixed)
        config.problems.refuse()
        if image_pixels and tuple(image_pixels) != (side, side):
            raise InputError(
                "the tower takes pictures of one size",
                where="image_pixels",
                got=list(image_pixels),
                expected=f"[{side}, {side}], or left out; images counts tiles",
            )
        return side, side
    unit = sizes.get("window") or sizes["patch"] * sizes["side"]
    fits = [0 < side <= _MOST and side % unit == 0 for side in image_pixels]
    if fits != [True, True]:
        raise InputError(
            "height and width of a picture are no multiples of what is merged",
            where="image_pixels",
            got=list(image_pixels),
            expected=f"multiples of {unit}, e.g. [{8 * unit}, {8 * unit}]",
        )
    height, width = image_pixels
    return height, width


def _check_width(
    config: ConfigFile, sizes: Mapping[str, int], spec: TransformerSpec
) -> None:
    """Refuse a tower whose tokens are not as wide as words, and odd heads."""
    for key, needed in (
        ("out_hidden_size", spec.hidden_size),
        ("vision_output_dim", sizes.get("projector")),
        ("projector_input_dim", sizes.get("projector")),
    ):
        if needed is not None:
            config.require(f"{_OBJECT}.{key}", (None, needed))
    config.problems.refuse()
    if sizes["hidden_size"] % sizes["num_heads"]:
        raise InputError(
            "does not divide the width of the tower",
            where=f"{_OBJECT}.num_heads",
            got=sizes["num_heads"],
            expected=f"a divisor of {sizes['hidden_size']}",
        )
