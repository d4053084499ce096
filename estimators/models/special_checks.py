"""What goes together in an encoder and decoder, a vision transformer, a Mamba-2 layer.

The checks of `estimators.models.spec` that one architecture alone has.
"""

from collections.abc import Mapping
from typing import Any

from estimators.models.limits import IMAGE_SIZES, MAMBA_SIZES, MAX_ELEMENTS
from topologies.errors import InputError


def check_special(spec: Any, pattern: tuple[str, ...]) -> None:
    """Refuse what an architecture cannot have, and sizes of others in it.

    Parameters
    ----------
    spec
        The `TransformerSpec`, its defaults resolved.
    pattern
        The blocks of an encoder and decoder of this depth; empty if there is none.

    Raises
    ------
    InputError
        With the field's name, what it has and what is expected.
    """
    _check_mamba(spec)
    _check_images(spec)
    _check_decoder(spec, pattern)


def _check_mamba(spec: Any) -> None:
    if not spec.has_mamba:
        _refuse_sizes(spec, tuple(MAMBA_SIZES), 'a block of kind "mamba" beside it')
        return
    if spec.family in {"bert", "t5", "vit"}:
        raise InputError(
            "has no Mamba-2 layers",
            where="family",
            got=spec.family,
            expected='"mamba"',
        )
    heads, groups = spec.mamba_num_heads, spec.mamba_num_groups
    if heads < 1 or heads % groups:
        raise InputError(
            "does not divide mamba_num_heads",
            where="mamba_num_groups",
            got=groups,
            expected=f"a divisor of mamba_num_heads = {heads}",
        )
    width, state = spec.mamba_width, spec.mamba_state_dim
    _check_elements(
        spec,
        {
            "mamba_num_heads x mamba_head_dim x hidden_size": 2
            * width
            * spec.hidden_size,
            "mamba_num_heads x mamba_head_dim x mamba_state_dim": width * state,
            "mamba_num_groups x mamba_state_dim x hidden_size": 2
            * groups
            * state
            * spec.hidden_size,
            "sequence_length x mamba_num_heads x mamba_head_dim": spec.sequence_length
            * (2 * width + width * state // spec.mamba_chunk_size),
            "sequence_length x mamba_chunk_size x mamba_num_groups": groups
            * spec.sequence_length
            * max(spec.mamba_chunk_size, state),
        },
    )


def _check_images(spec: Any) -> None:
    if spec.family != "vit":
        _refuse_sizes(spec, IMAGE_SIZES, 'family = "vit" beside it')
        return
    image, patch = spec.image_size, spec.patch_size
    if not patch or image < patch or image % patch:
        raise InputError(
            "patches do not fill an image",
            where="patch_size",
            got=patch,
            expected=f"a divisor of image_size = {image}",
        )
    tokens = (image // patch) ** 2 + 1
    if spec.sequence_length != tokens:
        raise InputError(
            "follows from the image",
            where="sequence_length",
            got=spec.sequence_length,
            expected=f"(image_size / patch_size)^2 + 1 = {tokens}",
        )
    _need(
        spec,
        causal=False,
        position_embedding_type="learned",
        max_position_embeddings=tokens,
        tie_word_embeddings=False,
        block_pattern=(),
    )


def _check_decoder(spec: Any, pattern: tuple[str, ...]) -> None:
    relative = spec.position_embedding_type == "relative"
    if not spec.has_decoder:
        _refuse_sizes(spec, ("decoder_sequence_length",), 'family = "t5" beside it')
        if relative:
            raise InputError(
                "belongs to an encoder and a decoder",
                where="position_embedding_type",
                got=spec.position_embedding_type,
                expected='"learned", "rope" or "none", or family = "t5" beside it',
            )
        return
    _need(
        spec,
        block_pattern=pattern,
        position_embedding_type="relative",
        causal=True,
        num_query_groups=spec.num_attention_heads,
        add_bias_linear=False,
        add_qkv_bias=False,
        kv_lora_rank=0,
    )
    longest = max(spec.sequence_length, spec.decoder_sequence_length)
    heads = spec.num_attention_heads
    _check_elements(
        spec,
        {
            "num_attention_heads x sequence_length^2": heads * longest**2,
            "decoder_sequence_length x vocab_size": spec.decoder_sequence_length
            * spec.vocab_size,
            "decoder_sequence_length x ffn_hidden_size": 2
            * spec.decoder_sequence_length
            * spec.ffn_hidden_size,
        },
    )


def _refuse_sizes(spec: Any, names: tuple[str, ...], beside: str) -> None:
    """Refuse the first size that belongs to another architecture."""
    for name in names:
        if getattr(spec, name):
            raise InputError(
                "belongs to another architecture",
                where=name,
                got=getattr(spec, name),
                expected=f"0, or {beside}",
            )


def _need(spec: Any, **values: object) -> None:
    for name, value in values.items():
        if getattr(spec, name) != value:
            raise InputError(
                f"does not go with family {spec.family}",
                where=name,
                got=getattr(spec, name),
                expected=str(value),
            )


def _check_elements(spec: Any, made: Mapping[str, int]) -> None:
    """Refuse sizes that together make a tensor that nobody can count."""
    sizes, most = max(made.items(), key=lambda item: item[1])
    if most > MAX_ELEMENTS:
        name = sizes.partition(" ")[0]
        raise InputError(
            f"makes a tensor of {float(most):.2g} elements, by {sizes}",
            where=name,
            got=getattr(spec, name),
            expected=f"sizes whose product is at most {float(MAX_ELEMENTS):.2g}",
        )
