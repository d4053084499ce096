"""Diffusion transformers as plain data: what is special to them beside blocks.

Nothing here knows torch. A diffusion transformer predicts what is to be taken from
noisy latents of a picture or a film, which an autoencoder made smaller: its tokens are
patches of latents. Time, a pooled text or a class shift, scale and gate what each block
does (adaptive norms [1]_); text is either in the sequence, as a stream of its own
[2]_, or what cross-attention reads [3]_. Autoencoder and text encoders are frozen and
usually run ahead of training: they are no part of the model.

References
----------
.. [1] Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023, section
   3.2: adaLN-Zero.
.. [2] Esser et al., "Scaling Rectified Flow Transformers for High-Resolution Image
   Synthesis", 2024, section 4: MMDiT.
.. [3] Wan Team, "Wan: Open and Advanced Large-Scale Video Generative Models", 2025,
   section 4.2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import floordiv, mod
from typing import Any

from estimators.models.limits import MAX_LAYERS
from topologies.errors import InputError

DIFFUSION_FAMILY = "diffusion"
"""Family of the models that this module describes."""

_MOST = 2**20
"""Largest size that is counted."""

DOUBLE, LAST_DOUBLE, SINGLE = "double", "last double", "single"
"""Kinds of blocks with text and picture in one sequence: of two streams, the last of
these, from which no text comes, and of one stream."""

ADAPTIVE, CROSS = "adaptive", "cross"
"""Kinds of blocks of a picture's tokens alone, without and with cross-attention."""

DIFFUSION_BLOCKS = (DOUBLE, LAST_DOUBLE, SINGLE, ADAPTIVE, CROSS)
"""All kinds of blocks of diffusion transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diffusion:
    """What enters a diffusion transformer, and what leaves it."""

    latent_channels: int
    """Channels of the latents that it reads."""

    output_channels: int = 0
    """Channels of what it predicts; 0 for `latent_channels`."""

    patch: Sequence[int] = (1, 2, 2)
    """Frames, height and width of a token in latents."""

    compression: Sequence[int] = (1, 8)
    """Frames, and pixels along height and width, of a latent. A film's first frame is
    one latent by itself."""

    text_tokens: int = 0
    """Tokens of the text; 0 without text."""

    text_width: int = 0
    """Width of what the text encoder made of them."""

    text_norm: bool = False
    """Whether that is normalised first, as in Qwen-Image."""

    text_layers: int = 1
    """Products that project it: 2 in Wan."""

    in_sequence: bool = True
    """Whether text is part of the sequence, or cross-attention reads it."""

    time_width: int = 256
    """Numbers that a time is written in."""

    pooled_width: int = 0
    """Width of a pooled text that joins the time; 0 without."""

    guidance: bool = False
    """Whether the strength of guidance joins the time, as in FLUX.1-dev."""

    num_classes: int = 0
    """Rows of an embedding of classes that joins the time; 0 without."""

    image_pixels: Sequence[int] = ()
    """Height and width of a picture, or both in one number [pixel]."""

    frames: int = 1
    """Pictures of a film; 1 for pictures."""

    modulation_tables: bool = False
    """Whether blocks share one product for shifts, scales and gates, and add a table of
    their own, as in Wan; else each has a product."""

    @property
    def patch_elements(self) -> int:
        """Numbers of a token's latents."""
        return self.latent_channels * math.prod(self.patch)

    @property
    def output_elements(self) -> int:
        """Numbers that are predicted of a token."""
        return (self.output_channels or self.latent_channels) * math.prod(self.patch)

    @property
    def joined_tokens(self) -> int:
        """Tokens of text in the sequence."""
        return self.text_tokens * self.in_sequence

    def check(self, spec: Any) -> None:
        """Refuse sizes and settings that such a model cannot have.

        Parameters
        ----------
        spec
            The `TransformerSpec` that this is part of.

        Raises
        ------
        InputError
            With what does not fit.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and not 0 <= value <= _MOST:
                raise InputError(
                    "is no size of a diffusion transformer",
                    where=field.name,
                    got=value,
                    expected=f"at most {_MOST:,}",
                )
        if spec.attention_implementation != "flash":
            raise InputError(
                "does not go with a diffusion transformer",
                where="attention_implementation",
                got=spec.attention_implementation,
                expected='"flash"',
            )
        if spec.sequence_length <= self.joined_tokens:
            raise InputError(
                "has no tokens of a picture",
                where="sequence_length",
                got=spec.sequence_length,
                expected=f"more than the {self.joined_tokens} tokens of the text in it",
            )

    @property
    def sequence_length(self) -> int:
        """Tokens of the sequence of a picture, or film.

        Raises
        ------
        InputError
            If tokens do not fill the picture, or the film.
        """
        image_pixels, frames = self.image_pixels, self.frames
        seconds, side = self.compression
        step, *cells = (
            size * latent
            for size, latent in zip(self.patch, (seconds, side, side), strict=True)
        )
        sizes = (*image_pixels, *image_pixels)[:2]
        if not sizes or any(map(mod, sizes, cells)):
            raise InputError(
                "tokens do not fill the picture",
                where="image_pixels",
                got=list(image_pixels),
                expected=f"multiples of {cells[0]} and {cells[1]} pixels",
            )
        latents = (frames - 1) // seconds + 1
        if (frames - 1) % seconds or latents % self.patch[0]:
            raise InputError(
                "tokens do not fill the film",
                where="frames",
                got=frames,
                expected=f"1, {step + 1}, {2 * step + 1}, ..",
            )
        places: int = math.prod(map(floordiv, sizes, cells))
        return self.joined_tokens + latents // self.patch[0] * places


_WORDS = frozenset(field.name for field in fields(Diffusion))


def diffusion_words(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a `TransformerSpec` in place of words for these models.

    Parameters
    ----------
    given
        Words: fields of `Diffusion`; ``double_num_layers`` and ``single_num_layers``,
        or ``num_layers``; ``last_double``, whether no text comes from the last block of
        two streams.
    """
    words = {name: value for name, value in given.items() if name not in _WORDS}
    sizes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name in _WORDS
    }
    diffusion = Diffusion(**sizes)
    words |= {"diffusion": diffusion, "vocab_size": 1}
    words.setdefault("sequence_length", diffusion.sequence_length)
    double = words.pop("double_num_layers", 0)
    single = words.pop("single_num_layers", 0)
    last = min(int(words.pop("last_double", False)), double)
    num_layers = words.setdefault("num_layers", double + single)
    if num_layers > MAX_LAYERS:  # the specification refuses them
        return words
    pattern = (DOUBLE,) * (double - last) + (LAST_DOUBLE,) * last + (SINGLE,) * single
    kind = CROSS if diffusion.text_tokens else ADAPTIVE
    return {**words, "block_pattern": pattern or (kind,) * num_layers}
