"""A known architecture that is changed: shorter, thinner, with windows, unpadded."""

from collections.abc import Sequence
from dataclasses import replace

from estimators.models.spec import (
    FIRST_DECODER_BLOCK,
    TransformerSpec,
    encoder_decoder_pattern,
)
from topologies.errors import InputError


def without_padding(spec: TransformerSpec, mean_length: int) -> TransformerSpec:
    """Return the architecture on sequences whose padding is left out.

    Products, activations and messages are those of the mean sequence; learned
    positions stay those of the longest one. Attention is that of sequences of the mean
    length, which is less than the mean over sequences of unlike lengths.

    Raises
    ------
    InputError
        If the mean is longer than the longest.
    """
    if not 1 <= mean_length <= spec.sequence_length:
        raise InputError(
            "longer than the sequences are",
            where="mean_sequence_length",
            got=mean_length,
            expected=f"at most sequence_length = {spec.sequence_length}",
        )
    return replace(spec, sequence_length=mean_length)


def with_sequence_length(
    spec: TransformerSpec, sequence_length: int
) -> TransformerSpec:
    """Return the same model for other sequences.

    A learned position embedding grows where the sequences are longer than it.

    Raises
    ------
    InputError
        If the length is not a positive whole number.
    """
    checked = replace(spec, sequence_length=sequence_length, max_position_embeddings=0)
    rows = max(spec.max_position_embeddings, checked.sequence_length)
    return replace(checked, max_position_embeddings=rows)


def with_picture(
    spec: TransformerSpec, image_pixels: Sequence[int], frames: int = 0
) -> TransformerSpec:
    """Return the same diffusion transformer for pictures of another size, or films.

    Parameters
    ----------
    spec
        A diffusion transformer, if anything is given.
    image_pixels
        Height and width, or both in one number; none for as they were [pixel].
    frames
        Pictures of a film; 0 for as they were.

    Raises
    ------
    InputError
        If the model is another, or tokens do not fill what is given.
    """
    if not image_pixels and not frames:
        return spec
    diffusion = spec.diffusion
    if diffusion is None:
        raise InputError(
            "belongs to diffusion transformers",
            where="frames" if frames else "image_pixels",
            got=frames or list(image_pixels),
            expected="to be left out",
        )
    diffusion = replace(
        diffusion,
        image_pixels=tuple(image_pixels) or diffusion.image_pixels,
        frames=frames or diffusion.frames,
    )
    length = diffusion.sequence_length
    return replace(
        spec, diffusion=diffusion, sequence_length=length, max_position_embeddings=0
    )


def with_num_layers(spec: TransformerSpec, num_layers: int) -> TransformerSpec:
    """Return the same model at another depth: its first blocks, where they differ.

    Blocks that are all alike are repeated. Encoder and decoder share the blocks as
    before, as nearly as whole numbers do.

    Raises
    ------
    InputError
        If blocks differ and there are fewer, or the depth is no depth.
    """
    pattern = spec.block_pattern
    if spec.has_decoder and num_layers > 1:
        decoder = spec.num_layers - pattern.index(FIRST_DECODER_BLOCK)
        part = round(num_layers * decoder / spec.num_layers)
        part = min(max(part, 1), num_layers - 1)
        pattern = encoder_decoder_pattern(num_layers - part, part)
    if len(set(pattern)) == 1:
        pattern = pattern[:1] * max(num_layers, 1)
    if pattern and num_layers > len(pattern):
        raise InputError(
            "more blocks than the model has, whose blocks differ",
            where="num_layers",
            got=num_layers,
            expected=f"at most {len(pattern)}",
        )
    left = pattern[:num_layers]
    embedding = spec.block_embedding
    if embedding:
        embedding = (embedding[0], num_layers, *embedding[2:])
    window = spec.window_size if any("window" in kind for kind in left) else 0
    return replace(
        spec,
        num_layers=num_layers,
        block_pattern=left,
        window_size=window,
        block_embedding=embedding,
    )


def with_one_of_each(spec: TransformerSpec) -> TransformerSpec:
    """Return the same model with one block of each kind, and the last one last."""
    if not spec.block_pattern:
        return replace(spec, num_layers=1)
    kinds, last = tuple(spec.block_kinds.values()), spec.last_block_kind
    pattern = kinds if kinds[-1] == last else (*kinds, last)
    return replace(spec, num_layers=len(pattern), block_pattern=pattern)


def with_windows(
    spec: TransformerSpec, window_size: int, skip_freq: int | Sequence[int] = 0
) -> TransformerSpec:
    """Return the same model with sliding windows.

    Parameters
    ----------
    spec
        A model without windows.
    window_size
        Tokens that a token attends to, itself included.
    skip_freq
        Every which block sees all tokens (Megatron's ``window_attn_skip_freq``), 2 for
        every second one; 0 for none of them. Or a 1 for each block with a window and a
        0 for each that sees all tokens.
    """
    if isinstance(skip_freq, int):
        numbers = range(1, spec.num_layers + 1)
        windowed = [not skip_freq or number % skip_freq > 0 for number in numbers]
    else:
        windowed = [mark == 1 for mark in skip_freq]
    if not any(windowed):
        return spec
    kinds = spec.block_pattern or (*spec.block_kinds.values(),) * spec.num_layers
    pattern = tuple(
        kind.replace("attention", "window") if has_window else kind
        for kind, has_window in zip(kinds, windowed, strict=True)
    )
    return replace(spec, window_size=window_size, block_pattern=pattern)
